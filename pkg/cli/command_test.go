package cli

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		t.Run(c.CommandPath(), func(t *testing.T) {
			if c.Short == "" || strings.HasSuffix(c.Short, ".") || !strings.HasPrefix(c.Example, "  fluxctl") && !strings.HasPrefix(c.Example, "  source") {
				t.Errorf("short %q, example %q: a command needs both, the example indented by two blanks", c.Short, c.Example)
			}
			w := newWorld(t, nil)
			line := strings.TrimPrefix(c.CommandPath(), "fluxctl") + " --help"
			if got := w.run(line); got != 0 || !strings.Contains(w.out.String(), "Examples:") || w.err.Len() > 0 {
				t.Errorf("--help: got %d, %s, %s", got, &w.out, &w.err)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(New(Env{}))
}

func TestWrongUsageSaysWhatToType(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]string{
		"flet":                                         `✗ fluxctl has no command "flet"; did you mean fleet?`,
		"fleet pol":                                    `✗ fluxctl fleet has no command "pol"; did you mean pools or pool or policy?`,
		"fleet zzzzzz":                                 `✗ fluxctl fleet has no command "zzzzzz"; see fluxctl fleet --help`,
		"fleet vm":                                     `✗ fluxctl fleet vm needs NAME; see fluxctl fleet vm --help`,
		"fleet rm":                                     `✗ fluxctl fleet rm needs NAME; see fluxctl fleet rm --help`,
		"fleet vms extra":                              `✗ fluxctl fleet vms has no use for "extra"; see fluxctl fleet vms --help`,
		"fleet vms --nope":                             `✗ fluxctl fleet vms has no flag --nope; see fluxctl fleet vms --help`,
		"fleet vms -z":                                 `✗ fluxctl fleet vms has no flag -z; see fluxctl fleet vms --help`,
		"fleet vms --label team":                       `✗ --label "team" must be KEY=VALUE`,
		"fleet vms -o yaml":                            `✗ --output "yaml" must be table, wide or json`,
		"fleet launch x":                               `✗ say what to launch: --image IMAGE or --pool POOL`,
		"fleet launch X --image y":                     `✗ name must be 1-63 characters of a-z, 0-9 and -`,
		"fleet launch x --image y --memory 16":         `✗ --memory: "16" is no size; write it like 16G, 16GiB or 512M`,
		"fleet launch x --image y --disk 512M":         `✗ --disk: "512M" must be a whole number of GiB, such as 16G`,
		"fleet launch x --image y --ttl 2":             `✗ --ttl: "2" is no duration; write it like 90s, 30m, 2h or 7d`,
		"fleet launch x --image y --ttl 0s":            `✗ --ttl: "0s" is too short; the least is 1s`,
		"fleet launch x --image y --vcpus 0":           `✗ --vcpus: a VM has 1 vCPU at least; leave --vcpus out for the default`,
		"fleet launch x --image y --vcpus two":         `✗ --vcpus: "two" is not a whole number`,
		"fleet launch x --image":                       `✗ flag needs an argument: --image; see fluxctl fleet launch --help`,
		"fleet exec build-42":                          `✗ put -- between the name and the command: fluxctl fleet exec build-42 -- CMD`,
		"fleet exec build-42 uname -a":                 `✗ fluxctl fleet exec has no flag -a; see fluxctl fleet exec --help`,
		"fleet exec build-42 --":                       `✗ say what to run after --: fluxctl fleet exec build-42 -- CMD`,
		"fleet pool-create ios-ci":                     `✗ say what the pool keeps booted: --image IMAGE`,
		"fleet pool-create x --image y --min-ready 99": `✗ min_ready must be from 0 to 32`,
		"fleet pool-set ios-ci":                        `✗ say what to change: --min-ready, --max, --node-selector, --node, --any-node, --keep-failed or --max-age`,
		"fleet pool-set x --any-node --node y":         `✗ give --any-node, or --node and --node-selector, not both`,
		"fleet pool-rm ios-ci":                         `✗ Delete warm pool ios-ci and its warm VMs? This asks first, and there is no terminal to ask on; pass --yes to go ahead`,
		"fleet drain studio-1":                         `✗ Drain studio-1 and delete its ephemeral VMs? This asks first, and there is no terminal to ask on; pass --yes to go ahead`,
		"fleet image-add x":                            `✗ say where the image is on the nodes: --path PATH`,
		"vm create x":                                  `✗ say how much memory the VM gets: --memory 512M`,
		"cluster join-token --kind king":               `✗ kind must be node or replica`,
		"completion tcsh":                              `✗ there is no completion for "tcsh"; choose bash, zsh or fish`,
		"context use lab":                              `✗ there is no context "lab"; known: none, add one with fluxctl context add`,
		"--context lab fleet vms":                      `✗ there is no context "lab"; known: none, add one with fluxctl context add`,
		"context add lab":                              `✗ say where the fleet is: --fleet-url URL[,URL], or --api URL for one host`,
		"context add lab --fleet-url nowhere":          `✗ --fleet-url: endpoint "nowhere" must be a URL such as http://127.0.0.1:7799`,
	} {
		t.Run(line, func(t *testing.T) {
			w := newWorld(t, f)
			if got := w.run(line); got != 2 {
				t.Errorf("exit code: got %d, want 2", got)
			}
			if got := strings.TrimSuffix(w.err.String(), "\n"); got != want || w.out.Len() > 0 {
				t.Errorf("got  %s\nwant %s\nstdout %q", got, want, &w.out)
			}
		})
	}
	for _, s := range f.requests(http.MethodPost) {
		t.Errorf("wrong usage sent %s %s", s.method, s.path)
	}
}

func TestRefusalsDecideTheExitCode(t *testing.T) {
	busy := api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes match; free room or ask for less")
	busy.Reasons = map[string]int{"label": 3, "memory": 1, "macos_limit": 1}
	for _, c := range []struct {
		refusal *api.Error
		line    string
		exit    int
		want    string
	}{
		{api.Errorf(api.CodeNotFound, "there is no VM \"build-42\""), "fleet vm build-42", 3, said(`✗ there is no VM "build-42"`)},
		{api.Errorf(api.CodeNotFound, "there is no VM \"build-42\""), "fleet vm build-42 -v", 3, said(`✗ there is no VM "build-42"`, "  request id req-7")},
		{api.Errorf(api.CodeNotFound, "there is no VM \"build-42\""), "fleet vm build-42 -o wide", 3, said(`✗ there is no VM "build-42"`, "  request id req-7")},
		{busy, "fleet vm build-42", 5, said("✗ no healthy, uncordoned nodes match; free room or ask for less", "  3 hosts: label; 1: macos limit; 1: memory")},
		{api.Errorf(api.CodeQuotaExceeded, "the quota of acme has room for 0 more VMs; delete one or ask for more"), "fleet vm x", 4, said("✗ the quota of acme has room for 0 more VMs; delete one or ask for more")},
		{api.Errorf(api.CodeUnauthenticated, "the token is not known"), "fleet vm x", 4, said("✗ the token is not known", "  set FLUXVM_TOKEN or FLUXVM_TOKEN_FILE, or choose a context: fluxctl context use NAME")},
		{api.Errorf(api.CodeInvalid, "limit must be\nfrom 1 \x1b[2Jto 500"), "fleet vm x", 2, said("✗ limit must be from 1  [2Jto 500")},
		{api.Errorf(api.CodeInternal, "the state machine halted; see its log"), "fleet vm x", 1, said("✗ the state machine halted; see its log")},
		{api.Errorf(api.CodeStorageFull, "the disk of central-1 is full"), "fleet vm x", 5, said("✗ the disk of central-1 is full")},
	} {
		t.Run(string(c.refusal.Code)+" "+c.line, func(t *testing.T) {
			f := newFake(t, answers{"GET /fleet/vms/{id}": c.refusal})
			w := newWorld(t, f)
			if got := w.run(c.line); got != c.exit {
				t.Errorf("exit code: got %d, want %d", got, c.exit)
			}
			if diff := cmp.Diff(c.want, withoutProgress(w.err.String())); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSilenceNamesTheWayToAFleet(t *testing.T) {
	w := newWorld(t, nil)
	w.vars["FLUXVM_FLEET_URL"] = "http://127.0.0.1:1"
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if got := Run(ctx, w.env(), words("fleet vms")); got != 5 {
		t.Errorf("exit code: got %d, want 5", got)
	}
	got := withoutProgress(w.err.String())
	if !strings.HasPrefix(got, "✗ no answer from http://127.0.0.1:1: ") || !strings.HasSuffix(got, "  FLUXVM_FLEET_URL or a context names the replicas; to try a fleet here: fluxvm-agent dev\n") {
		t.Errorf("got %s", got)
	}
}

func TestLaunchSendsWhatWasAsked(t *testing.T) {
	f := newFake(t, wholeFleet())
	w := newWorld(t, f)
	w.in = "#cloud-config\nhostname: web\npackages: [git]\nruncmd:\n  - make test\nwrite_files:\n  - path: /etc/x\n    content: y\n    permissions: '0644'\n"
	line := "fleet launch build-42 --image debian-13 --ttl 1d --vcpus 2 --memory 4G --disk 64G --node studio-1 --node-selector zone=lab --label team=ios --cloud-init - --reschedulable --wait --key k1"
	if got := w.run(line); got != 0 {
		t.Fatalf("exit code: got %d, want 0; %s", got, &w.err)
	}
	posted := f.requests(http.MethodPost)
	if len(posted) != 1 || posted[0].key != "k1" || posted[0].query != "wait=ready" || posted[0].token != "Bearer fvx_test" {
		t.Fatalf("got %+v", posted)
	}
	var got api.LaunchRequest
	if err := api.Decode([]byte(posted[0].body), &got); err != nil {
		t.Fatal(err)
	}
	want := api.LaunchRequest{
		Name: "build-42", Image: "debian-13", VCPUs: 2, MemoryMiB: 4096, DiskSizeGiB: 64, TTLSeconds: 86400, Node: "studio-1", Reschedulable: true,
		NodeSelector: map[string]string{"zone": "lab"}, Labels: map[string]string{"team": "ios"},
		CloudInit: &api.CloudInit{Hostname: "web", Packages: []string{"git"}, RunCmd: []string{"make test"}, WriteFiles: []api.CloudInitFile{{Path: "/etc/x", Content: "y", Permissions: "0644"}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLaunchRefusesCloudInitThatWouldBeIgnored(t *testing.T) {
	f := newFake(t, wholeFleet())
	for in, want := range map[string]string{
		"#cloud-config\nusers: [{name: x}]\n": `the key "users" or its value is not supported`,
		"#cloud-config\nruncmd: [[ls, -l]]\n": `the key "runcmd" or its value is not supported`,
		"a: [":                                "is no #cloud-config",
		"":                                    "must hold keys such as packages",
	} {
		w := newWorld(t, f)
		w.in = in
		if got := w.run("fleet launch x --image y --cloud-init -"); got != 2 || !strings.Contains(w.err.String(), want) {
			t.Errorf("%q: got %d, %s; want 2, %q", in, got, &w.err, want)
		}
	}
}

func TestLaunchSaysWhyItWasCold(t *testing.T) {
	for reason, want := range map[string]string{
		"pool_empty":    "warm pool ios-ci has nothing ready",
		"no_pool":       "no warm pool matches",
		"rename_failed": "its node could not hand the warm VM over",
		"cloud_init":    "a warm VM cannot have cloud_init",
		"memory_mib":    "the warm VMs of that image have another memory_mib",
		"node":          "no ready warm VM is on studio-1",
		"nodeSelector":  "no ready warm VM is on a matching node",
	} {
		vm := warmVM()
		vm.ClaimedFrom, vm.ClaimedAt, vm.ColdReason, vm.Image = "", 0, reason, "/images/x"
		f := newFake(t, answers{"POST /fleet/vms": api.LaunchAnswer{Node: "studio-1", VM: vm, ColdReason: reason}})
		w := newWorld(t, f)
		w.run("fleet launch build-42 --pool ios-ci --node studio-1")
		if diff := cmp.Diff(said("✓ Launched build-42 on studio-1 (/images/x, 6 vCPUs, 16 GiB)", "  Booted normally: "+want), w.out.String()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestLaunchWhoseVMHasEndedSaysSo(t *testing.T) {
	vm := warmVM()
	vm.State, vm.Reason = api.StateGone, "its guest could not take its claim"
	w := newWorld(t, newFake(t, answers{"POST /fleet/vms": api.LaunchAnswer{Node: "studio-1", VM: vm}}))
	if got := w.run("fleet launch build-42 --image x --key k1"); got != 1 || w.out.Len() > 0 || !strings.Contains(w.err.String(), "has ended since: its guest could not") {
		t.Errorf("exit code %d, %q, %q; want 1 and why it ended", got, w.out.String(), w.err.String())
	}
}

func TestLaunchOfUnknownOutcomeNamesItsKey(t *testing.T) {
	f := newFake(t, answers{"POST /fleet/vms": func(w http.ResponseWriter, r *http.Request) {
		e := api.Errorf(api.CodeInternal, "x")
		if r.Header.Get(api.HeaderIdempotencyKey) == "k1" {
			e = api.Errorf(api.CodeOutcomeUnknown, "leadership was lost while the launch was on its way")
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(e.Code.Status())
		json.NewEncoder(w).Encode(e.Filled("req-7"))
	}})
	w := newWorld(t, f)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if got := Run(ctx, w.env(), words("fleet launch x --image y --key k1")); got != 5 {
		t.Errorf("exit code: got %d, want 5", got)
	}
	want := said("✗ leadership was lost while the launch was on its way", "  it may have been carried out; the same command with --key k1 tells, and launches no second VM")
	if diff := cmp.Diff(want, withoutProgress(w.err.String())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestDryRunThatFitsNowhereFailsAsTheLaunchWould(t *testing.T) {
	f := newFake(t, answers{"POST /fleet/vms": api.DryRunAnswer{Reasons: map[string]int{"memory": 2}}})
	w := newWorld(t, f)
	if got := w.run("fleet launch big --image y --dry-run"); got != 5 {
		t.Errorf("exit code: got %d, want 5", got)
	}
	if diff := cmp.Diff(said("✗ no node would take big; free room, add a node or ask for less", "  2 hosts: memory"), w.err.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := w.run("fleet launch big --image y --dry-run -o json"); got != 5 || !json.Valid(w.out.Bytes()) || w.err.Len() > 0 {
		t.Errorf("as JSON: got %d, %s, %s", got, &w.out, &w.err)
	}
}

func TestPoolFlagsKeepUnsetAndZeroApart(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]string{
		"fleet pool-create ios-ci --image x":                            `{"name":"ios-ci","image":"x"}`,
		"fleet pool-create ios-ci --image x --min-ready 0 --memory 16G": `{"name":"ios-ci","image":"x","min_ready":0,"memory_mib":16384}`,
		"fleet pool-set ios-ci --min-ready 0":                           `{"min_ready":0}`,
		"fleet pool-set ios-ci --max 9 --node a --node b":               `{"max_total":9,"nodes":["a","b"]}`,
		"fleet pool-set ios-ci --any-node":                              `{"node_selector":null,"nodes":null}`,
		"fleet cordon studio-1":                                         `{"cordoned":true}`,
		"fleet cordon studio-1 --reason update":                         `{"cordoned":true,"reason":"update"}`,
		"fleet node-lost studio-1 --yes --reason fire":                  `{"reason":"fire"}`,
		"fleet node-replace studio-1 --yes":                             `{}`,
		"fleet pool-roll ios-ci --image x --stale-use never":            `{"image":"x","stale_use":"never"}`,
		"cluster join-token --expires 1d --uses 3":                      `{"kind":"node","uses":3,"expires_in_secs":86400}`,
		"fleet image-add x --path /x --memory 1G --disk 64G":            `{"name":"x","path":"/x","memory_mib":1024,"disk_size_gib":64,"has_agent":true}`,
		"fleet image-add x --path /x --no-agent":                        `{"name":"x","path":"/x"}`,
		"fleet exec build-42 --env A=1 --timeout 2m -- sh -c 'a b'":     `{"argv":["sh","-c","a b"],"env":{"A":"1"},"timeout_secs":120}`,
	} {
		w := newWorld(t, f)
		w.run(line)
		f.mu.Lock()
		got := f.sent[len(f.sent)-1].body
		f.mu.Unlock()
		if got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", line, got, want)
		}
	}
}

func TestVMListIsFilteredByTheFleet(t *testing.T) {
	f := newFake(t, wholeFleet())
	newWorld(t, f).run("fleet vms --node studio-1 --pool ios-ci --state running --label team=ios")
	if got, want := f.requests(http.MethodGet)[0].query, "label=team%3Dios&node=studio-1&pool=ios-ci&state=running"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRemovalGoesByIDAndOverFailures(t *testing.T) {
	a := wholeFleet()
	a["GET /fleet/vms/gone"] = api.Errorf(api.CodeNotFound, "there is no VM \"gone\"")
	f := newFake(t, a)
	w := newWorld(t, f)
	if got := w.run("fleet rm gone build-42"); got != 3 {
		t.Errorf("exit code: got %d, want 3", got)
	}
	if got := w.out.String() + withoutProgress(w.err.String()); got != said("✓ Deleted build-42 on studio-1", `✗ there is no VM "gone"`) {
		t.Errorf("got %s", got)
	}
	if deleted := f.requests(http.MethodDelete); len(deleted) != 1 || deleted[0].path != "/fleet/vms/"+vmID {
		t.Errorf("got %+v, want one DELETE by id", deleted)
	}
}

func TestExecHandsOnInputOutputAndTime(t *testing.T) {
	f := newFake(t, answers{"POST /fleet/vms/{id}/exec": api.ExecAnswer{Stdout: "part", TimedOut: true, Truncated: true}})
	w := newWorld(t, f)
	w.in = "hello"
	if got := w.run("fleet exec build-42 -i --timeout 5s -- cat"); got != 124 {
		t.Errorf("exit code: got %d, want 124", got)
	}
	if w.out.String() != "part" || w.err.String() != said("The output was cut at 1 MiB.", "✗ cat ran longer than 5s and was ended; allow it more with --timeout") {
		t.Errorf("got %q, %q", &w.out, &w.err)
	}
	if body := f.requests(http.MethodPost)[0].body; !strings.Contains(body, `"stdin":"hello"`) {
		t.Errorf("got %s", body)
	}
}

func TestOutputIsNotTouchedByTheGuestsTerminalCodes(t *testing.T) {
	w := newWorld(t, newFake(t, wholeFleet()))
	w.terminal = true
	w.run("vm console scratch")
	if got := w.out.String(); got != "booting[2J\nready\n" {
		t.Errorf("got %q", got)
	}
}

func TestConfirmation(t *testing.T) {
	for answer, want := range map[string]struct {
		exit    int
		deleted int
	}{"y\n": {0, 1}, "yes\n": {0, 1}, "n\n": {1, 0}, "\n": {1, 0}, "": {1, 0}} {
		f := newFake(t, wholeFleet())
		w := newWorld(t, f)
		w.terminal, w.in = true, answer
		if got := w.run("fleet pool-rm ios-ci"); got != want.exit || len(f.requests(http.MethodDelete)) != want.deleted {
			t.Errorf("%q: got %d and %d deletions, want %+v", answer, got, len(f.requests(http.MethodDelete)), want)
		}
		if !strings.HasPrefix(w.err.String(), "Delete warm pool ios-ci and its warm VMs? [y/N] ") {
			t.Errorf("%q: got %q", answer, &w.err)
		}
	}
}

func TestConfirmationEndsWithAnInterrupt(t *testing.T) {
	r, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := newApp(Env{In: r, IsTerminal: func(any) bool { return true }})
	if err := a.confirm(ctx, false, "Go?"); err != context.Canceled {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestContextsAreKeptAndChosen(t *testing.T) {
	lab, other := newFake(t, wholeFleet()), newFake(t, wholeFleet())
	w := newWorld(t, nil)
	delete(w.vars, "FLUXVM_TOKEN")
	w.in = "fvx_lab\n"
	if got := w.run("context add lab --fleet-url " + lab.URL + " --token -"); got != 0 {
		t.Fatalf("add: %d, %s", got, &w.err)
	}
	if got := w.out.String(); got != said("✓ Saved context lab: "+lab.URL, "  It is the current one.") {
		t.Errorf("got %s", got)
	}
	path := filepath.Join(w.vars["HOME"], ".config", "fluxvm", "contexts.toml")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("got %v, %v; want mode 0600", info, err)
	}
	tokenFile := filepath.Join(w.vars["HOME"], "token")
	if err := os.WriteFile(tokenFile, []byte("fvx_other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.run("context add other --fleet-url " + other.URL + " --token-file " + tokenFile)
	w.run("context list")
	want := said("NAME   CURRENT  FLEET                   TOKEN", "lab    yes      "+lab.URL+"  (kept here)", "other  -        "+other.URL+"  "+tokenFile)
	if got := w.out.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") || strings.Contains(got, "fvx_") {
		t.Errorf("got %s, want %s", got, want)
	}
	if w.run("context list -o json"); strings.Contains(w.out.String(), "fvx_") || !json.Valid(w.out.Bytes()) {
		t.Errorf("got %s", &w.out)
	}

	last := func(f *fakeAPI) string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.sent) == 0 {
			return "nothing"
		}
		return f.sent[len(f.sent)-1].token
	}
	w.run("fleet vms")
	if got := last(lab); got != "Bearer fvx_lab" {
		t.Errorf("current context: got %s", got)
	}
	w.run("--context other fleet vms")
	if got := last(other); got != "Bearer fvx_other" {
		t.Errorf("--context: got %s", got)
	}
	w.run("context use other")
	w.vars["FLUXVM_FLEET_URL"] = lab.URL
	w.run("fleet vms")
	if got := last(lab); got != "" {
		t.Errorf("a context's token went to an address from the environment: %s", got)
	}
	w.vars["FLUXVM_TOKEN"] = "fvx_env"
	w.run("fleet vms")
	if got := last(lab); got != "Bearer fvx_env" {
		t.Errorf("environment: got %s", got)
	}

	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := w.run("context list"); got != 2 || !strings.Contains(w.err.String(), "chmod 600 "+path) {
		t.Errorf("a token that others may read: got %d, %s", got, &w.err)
	}
}

func TestCompletionKnowsTheFleet(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]string{
		"fleet vm ''":               "build-42\nwarm-ios-ci-1a2b3c4d\n:4\n",
		"fleet rm build-42 ''":      "warm-ios-ci-1a2b3c4d\n:4\n",
		"fleet pool ''":             "ios-ci\nlinux-ci\n:4\n",
		"fleet cordon ''":           "studio-1\n:4\n",
		"fleet launch x --image ''": "macos-27-xcode\n:4\n",
		"fleet launch x --pool ''":  "ios-ci\nlinux-ci\n:4\n",
		"fleet vms -o ''":           "table\nwide\njson\n:4\n",
		"vm stop ''":                "scratch\n:4\n",
		"completion ''":             "bash\nzsh\nfish\n:4\n",
		"fleet vm build-42 ''":      ":4\n",
	} {
		w := newWorld(t, f)
		if w.run("__complete " + line); w.out.String() != want {
			t.Errorf("%s: got %q, want %q", line, &w.out, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		w := newWorld(t, nil)
		if got := w.run("completion " + shell); got != 0 || !strings.Contains(w.out.String(), "fluxctl") {
			t.Errorf("%s: got %d, %d bytes", shell, got, w.out.Len())
		}
	}
}

func TestCompletionDoesNotKeepTheShellWaiting(t *testing.T) {
	release := make(chan struct{})
	f := newFake(t, answers{"GET /fleet/pools": func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-release:
		}
		reply(t, w, r, page[api.Pool]())
	}})
	w := newWorld(t, f)
	w.run("__complete fleet pool ''")
	close(release)
	if w.out.String() != ":4\n" {
		t.Errorf("got %q, want no names", &w.out)
	}
}

func TestFollowedEventsEndWithAnInterrupt(t *testing.T) {
	w := newWorld(t, newFake(t, wholeFleet()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	env, lines := w.env(), 0
	env.Out = writer(func(p []byte) (int, error) {
		if lines += strings.Count(string(p), "\n"); lines == 2 {
			cancel()
		}
		return len(p), nil
	})
	if got := Run(ctx, env, words("fleet events --follow")); got != 0 || lines != 2 {
		t.Errorf("got %d after %d lines, want 0 after 2; %s", got, lines, &w.err)
	}
}

func TestPastEventsBeginWithTheOldestStillKnown(t *testing.T) {
	serve := wholeFleet()["GET /fleet/events"].(func(http.ResponseWriter, *http.Request))
	f := newFake(t, answers{"GET /fleet/events": func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Last-Event-ID") != "" {
			reply(t, w, r, api.Errorf(api.CodeCursorGone, "events after 0.0 are no longer known"))
			return
		}
		serve(w, r)
	}})
	w := newWorld(t, f)
	if got := w.run("fleet events"); got != 0 || strings.Count(w.out.String(), "\n") != 2 {
		t.Errorf("got %d, %s, %s", got, &w.out, &w.err)
	}
	want := said("✗ events after 0.0 are no longer known", "  leave --from out to see what is still remembered")
	if got := w.run("fleet events --from 1.0"); got != 1 || w.err.String() != want {
		t.Errorf("--from: got %d, %s", got, &w.err)
	}
}

func TestOutputThatCannotBeWrittenFailsTheCommand(t *testing.T) {
	w := newWorld(t, newFake(t, wholeFleet()))
	env := w.env()
	env.Out = writer(func([]byte) (int, error) { return 0, io.ErrShortWrite })
	for _, line := range []string{"fleet vms", "fleet vms -o json", "fleet vm x", "version", "fleet --help"} {
		w.err.Reset()
		if got := Run(t.Context(), env, words(line)); got != 1 || !strings.Contains(w.err.String(), "writing the output: short write") {
			t.Errorf("%s: got %d, %s", line, got, &w.err)
		}
	}
}

func TestInterruptIsSaidInAWord(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := newFake(t, answers{"GET /fleet/vms/{id}": func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
		reply(t, w, r, api.Errorf(api.CodeNotFound, "too late"))
	}})
	w := newWorld(t, f)
	if got := Run(ctx, w.env(), words("fleet vm x")); got != 1 || w.err.String() != "✗ interrupted\n" {
		t.Errorf("got %d, %s", got, &w.err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// locked is a buffer that progress writes to while the test reads.
type locked struct {
	mu sync.Mutex
	strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

func TestProgressBeginsAfterASecond(t *testing.T) {
	for _, c := range []struct {
		took     time.Duration
		terminal bool
		want     string
	}{
		{900 * time.Millisecond, false, ""},
		{900 * time.Millisecond, true, ""},
		{2500 * time.Millisecond, true, "\r\x1b[KWaiting for build-42 … 1s\r\x1b[KWaiting for build-42 … 2s\r\x1b[K"},
		{12 * time.Second, false, "Waiting for build-42 … 1s\nWaiting for build-42 … 11s\n"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var err locked
			a := newApp(Env{Err: &err, IsTerminal: func(any) bool { return c.terminal }})
			got, _ := during(t.Context(), a, "build-42", func(ctx context.Context) (int, error) {
				select {
				case <-time.After(c.took):
				case <-ctx.Done():
				}
				return 42, nil
			})
			if got != 42 || err.String() != c.want {
				t.Errorf("%v: got %d, %q; want %q", c.took, got, err.String(), c.want)
			}
		})
	}
}

func TestMoreCommandsAreAdded(t *testing.T) {
	ran := false
	env := newWorld(t, nil).env()
	env.More = func() []*cobra.Command {
		return []*cobra.Command{{Use: "serve", RunE: func(*cobra.Command, []string) error { ran = true; return nil }}}
	}
	if got := Run(t.Context(), env, []string{"serve"}); got != 0 || !ran {
		t.Errorf("got %d, ran %v", got, ran)
	}
}
