package cli

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestOutput holds what people read. The sentences of launch and pool-create are those of the warm pools page.
func TestOutput(t *testing.T) {
	f := newFake(t, wholeFleet())
	for _, c := range []struct {
		line string
		exit int
		out  string
		err  string
	}{
		{line: "fleet launch build-42 --image macos-27-xcode --ttl 2h", out: said(
			"✓ Launched build-42 on studio-1 (macOS 27 with Xcode, 6 vCPUs, 16 GiB)",
			"  Started instantly from warm pool ios-ci (0.9s)")},
		{line: "fleet launch build-42 --pool ios-ci --dry-run", out: said(
			"✓ build-42 would go to studio-1",
			"  Taken from warm pool ios-ci")},
		{line: "fleet vms", out: said(
			"NAME                  STATE    NODE      IMAGE           SIZE             WARM           AGE  EXPIRES",
			"build-42              running  studio-1  macos-27-xcode  6 vCPUs, 16 GiB  from ios-ci    1h   in 2h",
			"warm-ios-ci-1a2b3c4d  running  studio-1  macos-27-xcode  6 vCPUs, 16 GiB  ios-ci, ready  1h   -")},
		{line: "fleet vm build-42", out: said(
			"build-42",
			"  state    running",
			"  node     studio-1",
			"  owner    operator",
			"  image    macos-27-xcode",
			"  guest    macos",
			"  size     6 vCPUs, 16 GiB",
			"  disk     128 GiB",
			"  warm     from ios-ci",
			"  labels   team=ios",
			"  created  2026-03-01 11:00:00 UTC (1h ago)",
			"  ready    2026-03-01 11:01:00 UTC (59m ago)",
			"  claimed  2026-03-01 11:59:00 UTC (1m ago)",
			"  expires  2026-03-01 14:00:00 UTC (in 2h)",
			"  backend  vz",
			"  id       "+vmID)},
		{line: "fleet rm build-42", out: said("✓ Deleted build-42 on studio-1")},
		{line: "fleet exec build-42 -- make test", exit: 3, out: "out\n", err: "err\n"},
		{line: "fleet pools", out: said(
			"NAME      OWNER     IMAGE           SIZE             READY  BOOTING  CLAIMED-24H  AVG-START  STATE",
			"ios-ci    acme      macos-27-xcode  6 vCPUs, 16 GiB  2/2    0        14           0.9s       ready",
			"linux-ci  operator  debian-13       1 vCPU, 1.5 GiB  1/4    1        0            -          backing_off",
			"! linux-ci: no node has room (3 hosts: label; 1: memory); retries in 20s")},
		{line: "fleet pool ios-ci", out: said(
			"ios-ci",
			"  state          ready",
			"  owner          acme",
			"  image          macos-27-xcode",
			"  guest          macos",
			"  size           6 vCPUs, 16 GiB",
			"  keeps          2 ready, 8 at most with those taken",
			"  now            2 ready, 0 booting, 3 taken and running",
			"  claims         14 in 24 h",
			"  average start  0.9s",
			"  last claim     2026-03-01 11:59:00 UTC (1m ago)",
			"  last fill      2026-03-01 11:59:30 UTC (30s ago)",
			"  readiness      agent",
			"  created        2026-02-27 12:00:00 UTC (2d ago)",
			"",
			"VM                    STATE  NODE      SINCE",
			"warm-ios-ci-1a2b3c4d  ready  studio-1  1m30s")},
		{line: "fleet pool-create ios-ci --image macos-27-xcode --min-ready 2", out: said(
			"✓ Created warm pool ios-ci: keeps 2 of macos-27-xcode booted (6 vCPUs, 16 GiB each).")},
		{line: "fleet pool-set ios-ci --min-ready 2", out: said(
			"✓ Changed warm pool ios-ci: keeps 2 of macos-27-xcode booted (6 vCPUs, 16 GiB each).",
			"  8 at most with those taken")},
		{line: "fleet pool-roll ios-ci --image macos-27-xcode-2", out: said(
			"✓ Rolling warm pool ios-ci to macos-27-xcode-2: 0 VMs to replace.",
			"  Watch it: fluxctl fleet pool ios-ci")},
		{line: "fleet pool-rm ios-ci --yes", out: said(
			"✓ Deleted warm pool ios-ci",
			"  Its warm VMs are being deleted; taken ones keep running")},
		{line: "fleet nodes", out: said(
			"NAME      STATE    VMS  FREE-VCPUS  FREE-MEMORY  MACOS  PRESSURE  WARM  LEASE  SEEN  WHY",
			"studio-1  healthy  2    116         32 GiB       2/2    normal    1     -      4s    -")},
		{line: "fleet node studio-1", out: said(
			"studio-1",
			"  state      healthy",
			"  vCPUs      116 free of 16 × 8",
			"  memory     32 GiB free of 64 GiB",
			"  Mac        m4-max 2/2 macOS guests",
			"  pressure   normal",
			"  available  40 GiB",
			"  warm       1 VM ready",
			"  sandboxes  0 active, 0 paused, 0 hibernated",
			"  backends   vz",
			"  labels     zone=lab",
			"  seen       2026-03-01 11:59:56 UTC (4s ago)",
			"  url        http://studio-1:7788",
			"  uuid       0190f3f0-0000-7000-8000-000000000001",
			"",
			"VM        STATE    IMAGE           SIZE             WARM         AGE",
			"build-42  running  macos-27-xcode  6 vCPUs, 16 GiB  from ios-ci  1h")},
		{line: "fleet cordon studio-1 --reason 'macOS update'", out: said(
			"✓ Cordoned studio-1: new VMs go elsewhere",
			"  2 VMs on it keep running; undo: fluxctl fleet uncordon studio-1")},
		{line: "fleet uncordon studio-1", out: said("✓ Uncordoned studio-1: new VMs may run there")},
		{line: "fleet drain studio-1 --yes", out: said(
			"✓ Draining studio-1: 2 of 3 VMs left, 1 to delete, 1 blocking",
			"BLOCKING  OWNER  WHY",
			"build-42  acme   it has no TTL",
			"  Watch it: fluxctl fleet node studio-1")},
		{line: "fleet node-lost studio-1 --yes", out: said(
			"✓ Gave up studio-1: its VMs are lost or boot elsewhere",
			"  Forget it: fluxctl fleet node-rm studio-1")},
		{line: "fleet node-replace studio-1 --yes", out: said(
			"✓ studio-1 may be taken over by the next host that joins under its name",
			"  Make a token for it: fluxctl cluster join-token --pattern 'studio-1'")},
		{line: "fleet node-rm studio-1 --yes", out: said(
			"✓ Forgot node studio-1",
			"  A host that reports under that name needs a join token again")},
		{line: "fleet images", out: said(
			"NAME            TITLE                GUEST  SIZE             DISK     AGENT",
			"macos-27-xcode  macOS 27 with Xcode  macos  6 vCPUs, 16 GiB  128 GiB  yes")},
		{line: "fleet image-add macos-27-xcode --path /images/macos-27-xcode --guest-os macos", out: said(
			"✓ Added image macos-27-xcode (macOS 27 with Xcode, 6 vCPUs, 16 GiB)",
			"  Keep some booted: fluxctl fleet pool-create NAME --image macos-27-xcode")},
		{line: "fleet image-rm macos-27-xcode", out: said("✓ Deleted image macos-27-xcode from the catalog")},
		{line: "fleet capacity", out: said(
			"! 2 of 3 nodes healthy, 2 VMs",
			"RESOURCE      TOTAL   USED    FREE",
			"vCPUs         128     12      116",
			"memory        64 GiB  32 GiB  32 GiB",
			"macOS guests  2       2       0")},
		{line: "fleet activity", out: said(
			"TIME                 ACTOR      ACTION           TARGET    OUTCOME",
			"2026-03-01 11:59:00  acme       POST /fleet/vms  build-42  ok",
			"2026-03-01 11:59:59  warm-pool  replace          ios-ci    ok")},
		{line: "fleet events", out: said(
			"1042.0     vm      created  build-42  running on studio-1",
			"1043.0     pool    changed  ios-ci  ready 2/2")},
		{line: "cluster status", out: said(
			"✓ central-2 leads, 3 of 3 replicas healthy; 1 more may fail",
			"  term 4, index 1042, epoch 1, cluster c0ffee",
			"NAME       ROLE    HEALTH   BEHIND  LAST-CONTACT  VERSION",
			"central-1  voter   healthy  2       12ms          1.2.3",
			"central-2  leader  healthy  0       -             1.2.3",
			"central-3  voter   healthy  0       9ms           1.2.3")},
		{line: "cluster join-token --pattern studio-* --uses 3", out: "fvj_secret\n", err: said(
			"Lets 3 nodes named studio-* join, until 2026-03-01 13:00:00 UTC (in 1h). Keep it in a file that only you may read, then:",
			"  fluxvm-agent node --central "+f.URL+" --join-token-file FILE")},
		{line: "vm ls", out: said(
			"NAME     STATE    BACKEND  IMAGE              SIZE             AGENT  AGE",
			"scratch  running  flux-vm  /images/debian-13  1 vCPU, 512 MiB  yes    5m")},
		{line: "vm get scratch", out: said(
			"scratch",
			"  state    running",
			"  image    /images/debian-13",
			"  guest    linux",
			"  size     1 vCPU, 512 MiB",
			"  agent    yes",
			"  created  2026-03-01 11:55:00 UTC (5m ago)",
			"  started  2026-03-01 11:55:00 UTC (5m ago)",
			"  ready    2026-03-01 11:55:03 UTC (4m57s ago)",
			"  backend  flux-vm",
			"  id       "+vmID)},
		{line: "vm create scratch --image /images/debian-13 --memory 512M", out: said(
			"✓ Created scratch (flux-vm, 1 vCPU, 512 MiB)",
			"  running, id "+vmID)},
		{line: "vm stop scratch", out: said("✓ Stopped scratch", "  now running")},
		{line: "vm rm scratch", out: said("✓ Deleted scratch")},
		{line: "vm exec scratch -- uname", out: "Linux\n"},
		{line: "vm console scratch", out: "booting\x1b[2J\nready\n"},
		{line: "balloon scratch", out: said(
			"scratch",
			"  memory  512 MiB",
			"  target  128 MiB",
			"  actual  96 MiB",
			"! the guest stopped short of the target: it needs the rest itself")},
		{line: "balloon scratch --set-mib 256", out: said("✓ Asked scratch to give back 256 MiB of 512 MiB", "  it has given 0 MiB")},
		{line: "memory scratch", out: said(
			"scratch",
			"  configured  512 MiB",
			"  pss         180 MiB",
			"  private     120 MiB",
			"  shared      190 MiB",
			"  rss         310 MiB",
			"  swap        0 MiB",
			"  balloon     128 MiB of 128 MiB asked for")},
		{line: "memory", out: said("memory", "  total      32 GiB", "  available  20 GiB", "  stalled    some 1.50 %, full 0.00 % (10 s)")},
		{line: "sandbox create try-it --profile tiny --ttl 30m", out: said("✓ Created sandbox scratch (flux-vm, 1 vCPU, 512 MiB)", "  running, id "+vmID)},
		{line: "sandbox ls", out: said(
			"NAME     STATE    SIZE             AGENT  AGE  EXPIRES",
			"scratch  running  1 vCPU, 512 MiB  yes    5m   -")},
		{line: "sandbox exec scratch -- uname", out: "Linux\n"},
		{line: "sandbox hibernate scratch", out: said("✓ Hibernated scratch", "  now running")},
		{line: "sandbox rm scratch", out: said("✓ Deleted scratch")},
		{line: "sandbox density", out: said("density", "  active      3", "  paused      1", "  hibernated  0", "  warm slots  2", "  available   20 GiB", "  pressure    none reported")},
		{line: "vm fork scratch", out: said("✓ Forked scratch into scratch", "  running, id "+vmID)},
		{line: "vm snapshot scratch tools", out: said("✓ Wrote scratch down as snapshot tools", "  VMs start from it with --image snapshot:tools --memory 512M")},
		{line: "vm snapshots", out: said(
			"NAME   BACKEND  SIZE             DISK  AGE",
			"tools  flux-vm  1 vCPU, 512 MiB  -     5m")},
		{line: "vm snapshot-rm tools", out: said("✓ Deleted tools")},
		{line: "image ls", out: said("IMAGE            SIZE   BACKEND  VMS", "local:debian-13  2 GiB  -        2")},
		{line: "image rm local:debian-13", out: said("✓ Deleted image debian-13")},
		{line: "image import debian-13 --from /srv/x.tar --digest sha256:" + strings.Repeat("a", 64), out: said("✓ Imported debian-13 (2 GiB)",
			"  Let the fleet launch it: fluxctl fleet image-add debian-13 --path local:debian-13")},
		{line: "version", out: "fluxctl 1.2.3\n"},
	} {
		t.Run(c.line, func(t *testing.T) {
			w := newWorld(t, f)
			if got := w.run(c.line); got != c.exit {
				t.Errorf("exit code: got %d, want %d; stderr: %s", got, c.exit, &w.err)
			}
			if diff := cmp.Diff(c.out, w.out.String()); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.err, withoutProgress(w.err.String())); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

// withoutProgress leaves out the lines that a slow machine adds.
func withoutProgress(s string) string {
	var out strings.Builder
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "Waiting for ") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestJSONIsTheObjectOfTheAPI(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]any{
		"fleet vms":                          wholeFleet()["GET /fleet/vms"],
		"fleet vm build-42":                  warmVM(),
		"fleet launch build-42 --image x":    api.LaunchAnswer{Node: "studio-1", VM: warmVM(), Warm: true, Pool: "ios-ci", ClaimMS: ptr(int64(870))},
		"fleet pools":                        page(iosPool(), troubledPool()),
		"fleet pool ios-ci":                  iosPool(),
		"fleet pool-create ios-ci --image x": iosPool(),
		"fleet pool-set ios-ci --max 3":      iosPool(),
		"fleet pool-roll ios-ci --image x":   iosPool(),
		"fleet nodes":                        page(studio()),
		"fleet node studio-1":                studio(),
		"fleet cordon studio-1":              studio(),
		"fleet uncordon studio-1":            studio(),
		"fleet drain studio-1 --yes":         drainedStudio(),
		"fleet node-lost studio-1 --yes":     studio(),
		"fleet node-replace studio-1 --yes":  studio(),
		"fleet node-rm studio-1 --yes":       map[string][]string{"deleted": {"studio-1"}},
		"fleet images":                       page(iosImage()),
		"fleet image-add x --path /x":        iosImage(),
		"fleet capacity":                     wholeFleet()["GET /fleet/capacity"],
		"fleet activity":                     wholeFleet()["GET /fleet/activity"],
		"fleet rm a b":                       map[string][]string{"deleted": {"a", "b"}},
		"fleet pool-rm ios-ci --yes":         map[string][]string{"deleted": {"ios-ci"}},
		"cluster status":                     threeReplicas(),
		"cluster join-token":                 wholeFleet()["POST /fleet/join-tokens"],
		"vm ls":                              page(scratch()),
		"vm get scratch":                     scratch(),
		"vm create x --memory 1G":            scratch(),
		"vm pause scratch":                   scratch(),
		"balloon scratch":                    wholeFleet()["GET /v1/vms/{id}/balloon"],
		"memory scratch":                     scratchMemory(),
		"sandbox ls":                         page(scratch()),
		"sandbox wake scratch":               scratch(),
		"sandbox density":                    wholeFleet()["GET /v1/sandboxes/density"],
		"vm snapshots":                       page(scratchSnapshot()),
		"vm resume scratch":                  scratch(),
		"vm exec scratch -o json -- uname":   api.ExecAnswer{Stdout: "Linux\n"},
		"version":                            map[string]string{"version": "1.2.3"},
	} {
		t.Run(line, func(t *testing.T) {
			w := newWorld(t, f)
			w.vars["FLUXCTL_OUTPUT"] = "json"
			if got := w.run(line); got != 0 {
				t.Fatalf("exit code: got %d, want 0; stderr: %s", got, &w.err)
			}
			wanted, err := json.Marshal(want)
			if err != nil {
				t.Fatal(err)
			}
			var got, expected any
			if err := json.Unmarshal(w.out.Bytes(), &got); err != nil {
				t.Fatalf("%v in %s", err, &w.out)
			}
			if err := json.Unmarshal(wanted, &expected); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(expected, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestEventsAsJSONAreOneALine(t *testing.T) {
	w := newWorld(t, newFake(t, wholeFleet()))
	if got := w.run("fleet events -o json"); got != 0 {
		t.Fatalf("exit code: got %d, want 0; stderr: %s", got, &w.err)
	}
	lines := strings.Split(strings.TrimSpace(w.out.String()), "\n")
	if len(lines) != 2 {
		t.Fatalf("lines: got %d, want 2: %s", len(lines), &w.out)
	}
	var e eventLine
	if err := json.Unmarshal([]byte(lines[1]), &e); err != nil || e.ID != "1043.0" || e.Event != "pool" || e.Action != "changed" {
		t.Errorf("got %+v, %v", e, err)
	}
}

func TestColourOnlyOnATerminalThatWantsIt(t *testing.T) {
	f := newFake(t, wholeFleet())
	for _, c := range []struct {
		name     string
		terminal bool
		vars     map[string]string
		coloured bool
	}{
		{"pipe", false, nil, false},
		{"terminal", true, nil, true},
		{"NO_COLOR", true, map[string]string{"NO_COLOR": "1"}, false},
		{"dumb terminal", true, map[string]string{"TERM": "dumb"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, line := range []string{"fleet vms", "fleet vms -o wide", "fleet pools", "fleet pool ios-ci", "fleet node studio-1 -o wide", "fleet launch x --image y", "fleet nope", "cluster status", "fleet activity"} {
				w := newWorld(t, f)
				w.terminal = c.terminal
				for k, v := range c.vars {
					w.vars[k] = v
				}
				w.run(line)
				all := w.out.String() + strings.ReplaceAll(w.err.String(), "\r\x1b[K", "")
				if got := strings.Contains(all, "\x1b["); got != c.coloured {
					t.Errorf("%s: coloured: got %v, want %v: %q", line, got, c.coloured, all)
				}
			}
		})
	}
}

func TestColourDoesNotMoveColumns(t *testing.T) {
	f := newFake(t, wholeFleet())
	plain, coloured := newWorld(t, f), newWorld(t, f)
	coloured.terminal = true
	plain.run("fleet vms")
	coloured.run("fleet vms")
	if diff := cmp.Diff(plain.out.String(), withoutColour(coloured.out.String())); diff != "" {
		t.Errorf("-plain +coloured:\n%s", diff)
	}
}

func withoutColour(s string) string {
	for {
		before, after, ok := strings.Cut(s, "\x1b[")
		if !ok {
			return s
		}
		_, rest, _ := strings.Cut(after, "m")
		s = before + rest
	}
}

func TestWideAddsColumns(t *testing.T) {
	w := newWorld(t, newFake(t, wholeFleet()))
	w.run("fleet vms --output wide")
	head, _, _ := strings.Cut(w.out.String(), "\n")
	if !strings.HasSuffix(head, "EXPIRES  ID                                    TENANT    BACKEND  IP  DISK     LABELS    REASON") {
		t.Errorf("got %q", head)
	}
}

func TestEmptyListsSayHowToBegin(t *testing.T) {
	f := newFake(t, answers{"GET /fleet/vms": page[api.VM](), "GET /fleet/pools": page[api.Pool](), "GET /fleet/nodes": page[api.Node](),
		"GET /fleet/images": page[api.Image](), "GET /v1/vms": page[api.Machine]()})
	for line, want := range map[string]string{"fleet vms": "fleet launch", "fleet pools": "pool-create", "fleet nodes": "fluxvm-agent node", "fleet images": "image-add", "vm ls": "vm create"} {
		w := newWorld(t, f)
		if got := w.run(line); got != 0 || w.out.Len() > 0 || !strings.Contains(w.err.String(), want) {
			t.Errorf("%s: got %d, %q, %q; want 0, nothing, %q", line, got, &w.out, &w.err, want)
		}
	}
}

func TestPoolTroubleSaysWhyAndWhen(t *testing.T) {
	a := newApp(Env{Now: func() time.Time { return noon }})
	for want, status := range map[string]api.PoolStatus{
		"": {State: api.PoolFilling},
		"at its limit of 8 VMs; refills as taken ones end, or raise it with pool-set --max":      {State: api.PoolFilling, WaitReason: ptr(api.WaitMaxTotal)},
		"every Mac runs its two macOS guests":                                                    {State: api.PoolFilling, WaitReason: ptr(api.WaitMacOSLimit)},
		"its VMs do not boot: exit 1; retries in 5s":                                             {State: api.PoolBackingOff, WaitReason: ptr(api.WaitBootFailed), LastError: ptr("exit 1"), BackoffUntil: api.TimeOf(noon.Add(5 * time.Second))},
		"waits after a failed boot; retries now":                                                 {State: api.PoolBackingOff, BackoffUntil: ago(time.Second)},
		"it runs only on nodes that acme leases, and there is none; lease one (3 hosts: leased)": {State: api.PoolFilling, WaitReason: ptr(api.WaitNoCapacity), Reasons: map[string]int{"leased": 3}, LastError: ptr("no host can take another VM of the pool: leased 3")},
		"the roll to new is paused (its VMs do not boot: exit 1; retries in 5s); VMs of old are kept. Go back: fluxctl fleet pool-roll ios-ci --abort": {State: api.PoolBackingOff, WaitReason: ptr(api.WaitBootFailed), LastError: ptr("exit 1"), BackoffUntil: api.TimeOf(noon.Add(5 * time.Second)), Roll: &api.Roll{Image: "new", From: "old", State: api.RollPaused}},
		"the roll to new is paused (no node has room); VMs of old are kept. Go back: fluxctl fleet pool-roll ios-ci --abort":                           {State: api.PoolReady, WaitReason: ptr(api.WaitNoCapacity), Roll: &api.Roll{Image: "new", From: "old", State: api.RollPaused}},
		"its nodes are under memory pressure (1 host: pressure)":                                                                                       {State: api.PoolFilling, WaitReason: ptr(api.WaitPressure), Reasons: map[string]int{"pressure": 1}},
	} {
		p := iosPool()
		p.Status = status
		if got := a.poolTrouble(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestClusterStatusSaysWhatTheNextLossMeans(t *testing.T) {
	for want, change := range map[string]func(*api.Cluster){
		"✓ central-2 leads, 3 of 3 replicas healthy; 1 more may fail":                        func(*api.Cluster) {},
		"! central-2 leads, 2 of 3 replicas healthy; the next loss stops all changes":        func(k *api.Cluster) { k.Replicas[0].Healthy = false },
		"! no leader, 1 of 3 replicas healthy; too few to change anything: start the others": func(k *api.Cluster) { k.Leader, k.Replicas[0].Healthy, k.Replicas[1].Healthy = "", false, false },
		"✓ central-2 leads, 1 of 1 replica healthy":                                          func(k *api.Cluster) { k.Replicas = k.Replicas[1:2] },
		"✓ central-2 leads, 2 of 2 replicas healthy; the next loss stops all changes":        func(k *api.Cluster) { k.Replicas[0].Role = "nonvoter" },
	} {
		k := threeReplicas()
		change(&k)
		w := newWorld(t, nil)
		newApp(w.env()).showCluster(k)
		if got, _, _ := strings.Cut(w.out.String(), "\n"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
