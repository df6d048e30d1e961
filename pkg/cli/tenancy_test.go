package cli

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestTenancyOutput holds what people read about tenants, leases and money.
func TestTenancyOutput(t *testing.T) {
	f := newFake(t, wholeFleet())
	for _, c := range []struct{ line, out, err string }{
		{line: "fleet tenants", out: said(
			"NAME  MAX-VMS  MAX-VCPUS  MAX-MEMORY  MAX-MACOS  MAX-LEASES  MAX-POOLS  AGE",
			"acme  10       none       64 GiB      none       0           4          2d",
			"zeta  none     none       none        none       none        none       1h")},
		{line: "fleet tenant acme", out: said(
			"acme",
			"  default TTL  2h",
			"  max TTL      none",
			"  created      2026-02-27 12:00:00 UTC (2d ago)",
			"",
			"RESOURCE      USED    LIMIT   SHARE",
			"VMs           3       10      ███░░░░░░░ 30%",
			"vCPUs         12      none    -",
			"memory        48 GiB  64 GiB  ███████░░░ 75%",
			"macOS guests  0       none    -",
			"leases        0       0       -",
			"pools         5       4       ██████████ 125%")},
		{line: "fleet tenant-create acme --max-vms 10 --max-memory 64G --max-leases 0 --max-pools 4 --default-ttl 2h", out: said(
			"✓ Created tenant acme: limits VMs 10, memory 64 GiB, leases 0, pools 4, default TTL 2h",
			"  Give it a key: fluxctl fleet key-create acme > FILE")},
		{line: "fleet tenant-set acme --max-vms 10", out: said("✓ Changed tenant acme: limits VMs 10, memory 64 GiB, leases 0, pools 4, default TTL 2h")},
		{line: "fleet tenant-rm acme --yes", out: said("✓ Deleted tenant acme")},
		{line: "fleet keys acme", out: said(
			"ID   ROLE    AGE  EXPIRES  LAST-USED",
			"k-1  tenant  2d   never    1m ago",
			"k-3  viewer  1h   in 1h    never")},
		{line: "fleet keys --operator", out: said(
			"ID   ROLE    AGE  EXPIRES  LAST-USED",
			"k-9  viewer  1h   never    never")},
		{line: "fleet key-create acme --expires 1d", out: "fvx_secret\n", err: said(
			"Key k-2 of acme, role tenant, expires 2026-03-02 12:00:00 UTC (in 1d). Its secret is shown only now: keep it in a file that only its owner may read,",
			"and name that file in FLUXVM_TOKEN_FILE. To end it: fluxctl fleet key-revoke acme k-2")},
		{line: "fleet key-create --operator --role viewer", out: "fvx_secret\n", err: said(
			"Key k-2 of the operator, role viewer, expires 2026-03-02 12:00:00 UTC (in 1d). Its secret is shown only now: keep it in a file that only its owner may read,",
			"and name that file in FLUXVM_TOKEN_FILE. To end it: fluxctl fleet key-revoke --operator k-2")},
		{line: "fleet key-revoke acme k-1 k-3", out: said("✓ Deleted key k-1 of acme: it is refused from now on", "✓ Deleted key k-3 of acme: it is refused from now on")},
		{line: "fleet key-revoke --operator k-9", out: said("✓ Deleted key k-9 of the operator: it is refused from now on")},
		{line: "fleet policy", out: said(
			"SETTING                   VALUE  DEFAULT  MEANS",
			"allow_shared_pool_claims  false  false    tenants may take VMs of shared pools",
			"require_lease_for_macos   true   true     a tenant's macOS guests run on nodes it leases only",
			"isolate_tenant_networks   false  false    each tenant has a network of its own, so no shared pools",
			"min_lease_hours           24     24       shortest lease of a Mac",
			"max_boots_per_node        4      4        warm VMs that one node boots at a time",
			"lost_after_seconds        never  never    silence after which a node is lost")},
		{line: "fleet prices", out: said(
			"PRICE        OF           VCPU-HOUR-EUR  GIB-HOUR-EUR  HOUR-EUR  ON-LEASED",
			"VM           linux        0.01           0.005         -         -",
			"VM           macos        0.125          0.00          -         yes",
			"leased node  chip=m4-max  -              -             0.90      -",
			"leased node  any          -              -             0.50      -")},
		{line: "fleet leases", out: said(
			"ID   TENANT  STATE         NODES              ENDS    RENEWS  AGE",
			"l-1  acme    active        studio-1           in 7d   -       0s",
			"l-0  acme    scrub_failed  studio-2,studio-3  1h ago  -       3d",
			"! l-0: the scrub of studio-3 failed: disk busy [31m; nobody gets the node before it is clean: fluxctl fleet scrub studio-3")},
		{line: "fleet lease l-0", out: said(
			"l-0",
			"  state         scrub_failed",
			"  waits         the scrub of studio-3 failed: disk busy [31m; nobody gets the node before it is clean: fluxctl fleet scrub studio-3",
			"  tenant        acme",
			"  nodes         studio-2, studio-3",
			"  started       2026-02-26 12:00:00 UTC (3d ago)",
			"  ends          2026-03-01 11:00:00 UTC (1h ago)",
			"  earliest end  2026-02-27 12:00:00 UTC (2d ago)",
			"  created       2026-02-26 12:00:00 UTC (3d ago)",
			"",
			"SCRUB     STATE   SINCE  REASON",
			"studio-2  done    1h     -",
			"studio-3  failed  1h     disk busy [31m")},
		{line: "fleet lease --tenant acme --node studio-1 --for 7d", out: said(
			"✓ Leased studio-1 to acme until 2026-03-08 12:00:00 UTC (in 7d)",
			"  Lease l-1; to end it: fluxctl fleet lease-end l-1",
			"  Ends and is billed no earlier than 2026-03-02 12:00:00 UTC (in 1d)")},
		{line: "fleet lease-set l-1 --auto-renew=false", out: said("✓ Changed lease l-1: ends 2026-03-08 12:00:00 UTC (in 7d)")},
		{line: "fleet lease-end l-1 --yes", out: said(
			"✓ Lease l-1 ends: the VMs of acme on studio-1 go, then a scrub",
			"  Watch it: fluxctl fleet lease l-1")},
		{line: "fleet scrub studio-1", out: said(
			"✓ Scrubbing studio-1 again",
			"  Watch it: fluxctl fleet leases --node studio-1")},
		{line: "fleet scrub studio-1 --override --reason wiped --yes", out: said("✓ Took studio-1 as clean, without a scrub")},
		{line: "fleet usage", out: said(
			"TENANT    VM-HOURS  VCPU-HOURS  GIB-HOURS  LEASE-HOURS  AMOUNT-EUR",
			"acme      2.00      12.00       32.00      1.00         1.73",
			"operator  0.01      0.00        0.00       0.00         0.00",
			"total     2.01      12.00       32.00      1.00         1.73")},
		{line: "fleet ledger", out: said(
			"STARTED              ENDED                TENANT  KIND        NAME      NODE      SIZE             END      AMOUNT-EUR",
			"2026-03-01 10:00:00  2026-03-01 11:00:00  acme    vm          build-42  studio-1  6 vCPUs, 16 GiB  deleted  0.83",
			"2026-03-01 11:00:00  open                 acme    lease       l-1       studio-1  -                -        -",
			"2026-03-01 12:00:00  2026-03-01 12:00:00  acme    adjustment  -         -         -                outage   -12.50")},
		{line: "fleet ledger-adjust acme --amount -12.50 --reason outage", out: said("✓ Credited acme 12.50 EUR", "  Ledger row 19")},
	} {
		t.Run(c.line, func(t *testing.T) {
			w := newWorld(t, f)
			if got := w.run(c.line); got != 0 {
				t.Errorf("exit code: got %d, want 0; stderr: %s", got, &w.err)
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

func TestTenancyInJSONIsTheObjectOfTheAPI(t *testing.T) {
	f := newFake(t, wholeFleet())
	prices := filepath.Join(t.TempDir(), "prices.json")
	if err := os.WriteFile(prices, []byte(`{"currency":"EUR","vm":[],"lease":[],"pool":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]any{
		"fleet tenants":                                  wholeFleet()["GET /fleet/tenants"],
		"fleet tenant acme":                              heldTenant{acme(), acmeUsage().Used},
		"fleet tenant-create acme":                       acme(),
		"fleet tenant-set acme --max-vms none":           acme(),
		"fleet tenant-rm acme --yes":                     map[string][]string{"deleted": {"acme"}},
		"fleet keys acme":                                wholeFleet()["GET /fleet/tenants/{name}/keys"],
		"fleet key-create acme":                          newKey(ptr("acme"), api.RoleTenant),
		"fleet key-create --operator":                    newKey(nil, api.RoleViewer),
		"fleet key-revoke acme k-1":                      map[string][]string{"deleted": {"k-1"}},
		"fleet policy":                                   api.DefaultPolicy(),
		"fleet policy --set min_lease_hours=1":           wholeFleet()["PATCH /fleet/policy"],
		"fleet prices":                                   euros(),
		"fleet prices --file " + prices:                  euros(),
		"fleet leases":                                   page(studioLease(), dirtyLease()),
		"fleet lease l-0":                                dirtyLease(),
		"fleet lease --node studio-1 --for 7d":           studioLease(),
		"fleet lease-set l-1 --until 2026-04-01":         studioLease(),
		"fleet scrub studio-1":                           studio(),
		"fleet usage":                                    marchUsage(),
		"fleet ledger":                                   page(vmRow(), leaseRow(), creditRow()),
		"fleet ledger-adjust acme --amount 1 --reason x": creditRow(),
	} {
		t.Run(line, func(t *testing.T) {
			w := newWorld(t, f)
			if got := w.run(line + " -o json"); got != 0 || withoutProgress(w.err.String()) != "" {
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

func TestTenancyFlagsBecomeTheBodiesOfTheContract(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]string{
		"fleet tenant-create acme": `{"name":"acme"}`,
		"fleet tenant-create acme --max-vms 0 --max-pools none --max-memory 0 --max-ttl 7d":                         `{"name":"acme","quota":{"max_vms":0,"max_vcpus":null,"max_memory_mib":0,"max_macos_guests":null,"max_leases":null,"max_pools":null},"max_ttl_seconds":604800}`,
		"fleet tenant-set acme --max-vms none --max-memory 1.5G --max-macos 0 --default-ttl none":                   `{"quota":{"max_vms":null,"max_memory_mib":1536,"max_macos_guests":0},"default_ttl_seconds":null}`,
		"fleet tenant-create acme --policy require_lease_for_macos=false --policy min_lease_hours=0":                `{"name":"acme","policy":{"allow_shared_pool_claims":null,"require_lease_for_macos":false,"isolate_tenant_networks":null,"min_lease_hours":0}}`,
		"fleet tenant-set acme --policy isolate_tenant_networks=true --policy min_lease_hours=fleet":                `{"policy":{"isolate_tenant_networks":true,"min_lease_hours":null}}`,
		"fleet tenant-set acme --max-ttl 1h30m":                                                                     `{"max_ttl_seconds":5400}`,
		"fleet key-create acme":                                                                                     `{"role":"tenant"}`,
		"fleet key-create acme --role viewer --expires 30d":                                                         `{"role":"viewer","expires_in_secs":2592000}`,
		"fleet key-create --operator":                                                                               `{"role":"operator"}`,
		"fleet policy --set allow_shared_pool_claims=true --set min_lease_hours=default --set max_boots_per_node=8": `{"allow_shared_pool_claims":true,"min_lease_hours":null,"max_boots_per_node":8}`,
		"fleet lease --tenant acme --node studio-1 --for 1d12h":                                                     `{"tenant":"acme","node":"studio-1","duration":"36h"}`,
		"fleet lease --tenant acme --node-selector chip=m4 --count 2 --for 2w --auto-renew --drain":                 `{"tenant":"acme","node_selector":{"chip":"m4"},"count":2,"duration":"14d","auto_renew":true,"drain":true}`,
		"fleet lease --tenant acme --node studio-1 --until '2026-03-08 12:00'":                                      `{"tenant":"acme","node":"studio-1","ends_at":"2026-03-08T12:00:00.000Z"}`,
		"fleet lease --node studio-1 --for 90s":                                                                     `{"node":"studio-1","duration":"90s"}`,
		"fleet lease-set l-1 --until 2026-04-01T00:00:00+02:00":                                                     `{"ends_at":"2026-03-31T22:00:00.000Z"}`,
		"fleet lease-set l-1 --extend 1d":                                                                           `{"ends_at":"2026-03-02T11:00:00.000Z"}`,
		"fleet lease-set l-1 --auto-renew":                                                                          `{"auto_renew":true}`,
		"fleet scrub studio-1":                                                                                      `{}`,
		"fleet scrub studio-1 --override --reason 'disk replaced' -y":                                               `{"override":true,"reason":"disk replaced"}`,
		"fleet launch x --image y --tenant acme --dry-run":                                                          `{"name":"x","image":"y","tenant":"acme"}`,
		"fleet pool-create x --image y --tenant acme":                                                               `{"name":"x","image":"y","tenant":"acme"}`,
		"fleet ledger-adjust acme --amount -0.000125 --reason credit -o json":                                       `{"tenant":"acme","amount_micros":-125,"reason":"credit"}`,
	} {
		w := newWorld(t, f)
		if got := w.run(line); got != 0 {
			t.Errorf("%s: exit code %d; %s", line, got, &w.err)
		}
		f.mu.Lock()
		got := f.sent[len(f.sent)-1].body
		f.mu.Unlock()
		if !sameJSON(t, got, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", line, got, want)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	return cmp.Equal(x, y)
}

func TestTenancyFiltersGoToTheFleet(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]string{
		"fleet leases --tenant acme --node studio-1 --state active":                               "/fleet/leases?node=studio-1&state=active&tenant=acme",
		"fleet ledger --tenant acme --kind vm --vm v --lease l --from 2026-03-01 --to 2026-04-01": "/fleet/ledger?from=2026-03-01T00%3A00%3A00.000Z&kind=vm&lease_id=l&limit=500&tenant=acme&to=2026-04-01T00%3A00%3A00.000Z&vm_id=v",
		"fleet usage --by tenant,day --from 2026-03-01":                                           "/fleet/usage?from=2026-03-01T00%3A00%3A00.000Z&group_by=tenant%2Cday",
		"fleet usage --by ''": "/fleet/usage?",
		"fleet activity --tenant acme --actor warm-pool --action 'POST /fleet/vms' --target x": "/fleet/activity?action=POST+%2Ffleet%2Fvms&actor=warm-pool&target=x&tenant=acme",
		"fleet vms --tenant acme": "/fleet/vms?tenant=acme",
	} {
		w := newWorld(t, f)
		before := len(f.requests(http.MethodGet))
		if got := w.run(line + " -o json"); got != 0 {
			t.Errorf("%s: exit code %d; %s", line, got, &w.err)
		}
		if s := f.requests(http.MethodGet)[before]; s.path+"?"+s.query != want {
			t.Errorf("%s:\ngot  %s?%s\nwant %s", line, s.path, s.query, want)
		}
	}
}

func TestWrongUsageOfTenancySaysWhatToType(t *testing.T) {
	f := newFake(t, wholeFleet())
	w := newWorld(t, f)
	w.in = `{"currency":"EUR","vms":[]}`
	part := filepath.Join(t.TempDir(), "part.json")
	if err := os.WriteFile(part, []byte(`{"currency":"EUR","vm":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"fleet tenant-create Acme":                                 `✗ name must be 1-40 characters of a-z, 0-9 and -`,
		"fleet tenant-create acme --max-vms many":                  `✗ --max-vms: "many" is no limit; write a whole number, or none for no limit`,
		"fleet tenant-create acme --max-vms -1":                    `✗ --max-vms: "-1" is no limit; write a whole number, or none for no limit`,
		"fleet tenant-create acme --max-memory 64":                 `✗ --max-memory: "64" is no size; write it like 16G, 16GiB or 512M`,
		"fleet tenant-create acme --max-ttl 5":                     `✗ --max-ttl: "5" is no duration; write it like 90s, 30m, 2h or 7d`,
		"fleet tenant-set acme --policy boots=1":                   `✗ --policy: there is no setting "boots"; choose of allow_shared_pool_claims, require_lease_for_macos, isolate_tenant_networks, min_lease_hours`,
		"fleet tenant-set acme --policy max_boots_per_node=2":      `✗ --policy: there is no setting "max_boots_per_node"; choose of allow_shared_pool_claims, require_lease_for_macos, isolate_tenant_networks, min_lease_hours`,
		"fleet tenant-set acme --policy min_lease_hours=default":   `✗ --policy min_lease_hours: "default" must be true, false, a whole number or fleet`,
		"fleet tenant-create acme --policy min_lease_hours=100000": `✗ policy.min_lease_hours must be a whole number from 0 to 8784`,
		"fleet tenant-set acme":                                    `✗ say what to change, such as --max-vms 40; see fluxctl fleet tenant-set --help`,
		"fleet tenant-rm acme":                                     `✗ Remove tenant acme and its keys? This asks first, and there is no terminal to ask on; pass --yes to go ahead`,
		"fleet keys":                                               `✗ say whose keys: fluxctl fleet keys TENANT, or --operator`,
		"fleet keys acme --operator":                               `✗ give TENANT or --operator, not both`,
		"fleet key-create":                                         `✗ say whose keys: fluxctl fleet key-create TENANT, or --operator`,
		"fleet key-create acme --role operator":                    `✗ role must be tenant or viewer`,
		"fleet key-create --operator --role tenant":                `✗ role must be operator or viewer`,
		"fleet key-revoke acme":                                    `✗ say which key: fluxctl fleet key-revoke acme ID; fluxctl fleet keys acme lists them`,
		"fleet policy --set min_lease_hours":                       `✗ --set "min_lease_hours" must be KEY=VALUE`,
		"fleet policy --set min_lease_hours=soon":                  `✗ --set min_lease_hours: "soon" must be true, false, a whole number or default`,
		"fleet policy --set min_lease_hours=true":                  `✗ --set: a value has the wrong kind; fluxctl fleet policy shows how each is written`,
		"fleet policy --set min_lease=1":                           `✗ --set: there is no setting "min_lease"; choose of allow_shared_pool_claims, require_lease_for_macos, isolate_tenant_networks, min_lease_hours, max_boots_per_node, lost_after_seconds`,
		"fleet prices --file /nowhere/prices.json":                 `✗ cannot read --file: open /nowhere/prices.json: no such file or directory`,
		"fleet prices --file " + part:                              "✗ --file " + part + ": lease is required",
		"fleet prices --file -":                                    `✗ --file -: unknown field "vms" before byte 27; check its spelling`,
		"fleet lease":                                              `✗ say what to lease: --node NODE, or --node-selector KEY=VALUE with --count NUMBER`,
		"fleet lease l-1 --node studio-1":                          `✗ give the ID of a lease to show it, or flags to make one, not both`,
		"fleet lease --tenant acme --node a --count 2":             `✗ --count goes with --node-selector; --node is one node`,
		"fleet lease --tenant acme --node a":                       `✗ say for how long: --for DURATION, such as --for 7d, or --until TIME`,
		"fleet lease --node a --for 1d --until 2026-03-02":         `✗ say for how long: --for DURATION, such as --for 7d, or --until TIME`,
		"fleet lease --node a --until tomorrow":                    `✗ --until: "tomorrow" is no time; write it like 2026-03-01, '2026-03-01 12:00' (UTC) or 2026-03-01T12:00:00+01:00`,
		"fleet lease-set l-1":                                      `✗ say what to change: --extend, --until or --auto-renew`,
		"fleet lease-set l-1 --extend 1d --until 2026-04-1":        `✗ --until: "2026-04-1" is no time; write it like 2026-03-01, '2026-03-01 12:00' (UTC) or 2026-03-01T12:00:00+01:00`,
		"fleet lease-end l-1":                                      `✗ End lease l-1 and delete its tenant's VMs on its nodes? This asks first, and there is no terminal to ask on; pass --yes to go ahead`,
		"fleet scrub studio-1 --override":                          `✗ say why studio-1 is clean: --reason TEXT`,
		"fleet scrub studio-1 --override --reason x":               `✗ Take studio-1 as clean without a scrub? What its last tenant left there may reach the next. This asks first, and there is no terminal to ask on; pass --yes to go ahead`,
		"fleet usage --by week":                                    `✗ --by: "week" must be of tenant, pool, day`,
		"fleet ledger-adjust acme --reason x":                      `✗ say how much: --amount AMOUNT; below 0 is a credit, as in --amount -12.50`,
		"fleet ledger-adjust acme --amount 1":                      `✗ say why: --reason TEXT`,
		"fleet ledger-adjust acme --amount 1,5 --reason x":         `✗ --amount: "1,5" is no amount; write it like 12.50 or -0.000125, with six decimals at most`,
	} {
		t.Run(line, func(t *testing.T) {
			if got := w.run(line); got != 2 {
				t.Errorf("exit code: got %d, want 2", got)
			}
			if got := strings.TrimSuffix(w.err.String(), "\n"); got != want || w.out.Len() > 0 {
				t.Errorf("got  %s\nwant %s\nstdout %q", got, want, &w.out)
			}
		})
	}
	for _, s := range f.sent {
		t.Errorf("wrong usage sent %s %s", s.method, s.path)
	}
}

func TestTenancyAsksBeforeItTakesAway(t *testing.T) {
	for line, method := range map[string]string{
		"fleet tenant-rm acme": http.MethodDelete, "fleet lease-end l-1": http.MethodDelete, "fleet scrub studio-1 --override --reason x": http.MethodPost,
	} {
		for answer, want := range map[string]int{"y\n": 1, "n\n": 0} {
			f := newFake(t, wholeFleet())
			w := newWorld(t, f)
			w.terminal, w.in = true, answer
			if w.run(line); len(f.requests(method)) != want || !strings.Contains(w.err.String(), "? ") || !strings.Contains(w.err.String(), "[y/N]") {
				t.Errorf("%s, %q: %d requests, want %d; %s", line, answer, len(f.requests(method)), want, &w.err)
			}
		}
	}
}

func TestLeaseEndSaysWhenItReallyEnds(t *testing.T) {
	early, over := studioLease(), studioLease()
	over.State = api.LeaseEnded
	for want, answer := range map[string]any{
		"✓ Lease l-1 ends 2026-03-02 12:00:00 UTC (in 1d), when its minimum term is over": early,
		"✓ Lease l-1 is over; its nodes are free":                                         nil,
	} {
		f := newFake(t, answers{"DELETE /fleet/leases/{id}": func(w http.ResponseWriter, r *http.Request) {
			if answer == nil {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			writeJSON(w, http.StatusAccepted, answer)
		}})
		w := newWorld(t, f)
		w.run("fleet lease-end l-1 --yes")
		if got, _, _ := strings.Cut(w.out.String(), "\n"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	w := newWorld(t, nil)
	newApp(w.env()).endedLease(over)
	if got := w.out.String(); got != said("✓ Lease l-1 is over; its nodes are free") {
		t.Errorf("got %q", got)
	}
}

func TestASecretThatIsLostFailsTheCommand(t *testing.T) {
	w := newWorld(t, newFake(t, answers{"POST /fleet/tenants/{name}/keys": acmeKey()}))
	want := said("✗ key k-1 was made, but its secret was lost with the answer; end it and make another: fluxctl fleet key-revoke acme k-1")
	if got := w.run("fleet key-create acme"); got != 1 || w.out.Len() > 0 || withoutProgress(w.err.String()) != want {
		t.Errorf("got %d, %q, %s", got, &w.out, &w.err)
	}
}

func TestAPendingLeaseSaysWhatItWaitsFor(t *testing.T) {
	l := studioLease()
	l.State, l.StartsAt, l.BlockedBy = api.LeasePending, 0, []string{vmID}
	w := newWorld(t, newFake(t, answers{"POST /fleet/leases": l}))
	w.run("fleet lease --tenant acme --node studio-1 --for 7d --drain")
	if diff := cmp.Diff(said("✓ Lease l-1 of studio-1 to acme begins once the VMs of others have left: 1 VM to go", "  Watch it: fluxctl fleet lease l-1"), w.out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := leaseTrouble(l); got != "waits for 1 VM of others to leave studio-1" {
		t.Errorf("got %q", got)
	}
	l.State = api.LeaseEnding
	if got := leaseTrouble(l); got != "waits for 1 VM to be gone from studio-1 before the scrub" {
		t.Errorf("got %q", got)
	}
}

func TestLeaseWithoutAFreeNodeEndsWithUnavailable(t *testing.T) {
	busy := api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes are free to lease; ask for another, or use drain")
	busy.Reasons = map[string]int{"leased": 2}
	w := newWorld(t, newFake(t, answers{"POST /fleet/leases": busy}))
	if got := w.run("fleet lease --tenant acme --node studio-1 --for 7d"); got != 5 || !strings.Contains(w.err.String(), "2 hosts: leased") {
		t.Errorf("got %d, %s", got, &w.err)
	}
}

func TestLedgerIsExportedAsTheAPIWritesIt(t *testing.T) {
	next := "c1"
	f := newFake(t, answers{"GET /fleet/ledger": func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderIndex, "7")
		if r.URL.Query().Get("cursor") == "" {
			writeJSON(w, http.StatusOK, api.List[api.LedgerRow]{Items: []api.LedgerRow{vmRow()}, NextCursor: &next})
			return
		}
		writeJSON(w, http.StatusOK, page(leaseRow(), creditRow()))
	}})
	want := [][]string{api.LedgerColumns()}
	for _, r := range []api.LedgerRow{vmRow(), leaseRow(), creditRow()} {
		want = append(want, r.Record())
	}
	for _, how := range []string{"-o csv", "--csv"} {
		w := newWorld(t, f)
		if got := w.run("fleet ledger " + how); got != 0 {
			t.Fatalf("%s: exit code %d; %s", how, got, &w.err)
		}
		got, err := csv.NewReader(&w.out).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", how, diff)
		}
	}
	w := newWorld(t, f)
	if got := w.run("fleet tenants -o csv"); got != 2 || !strings.Contains(w.err.String(), "table, wide or json") {
		t.Errorf("CSV of what has none: got %d, %s", got, &w.err)
	}
	w = newWorld(t, newFake(t, answers{"GET /fleet/ledger": api.Errorf(api.CodeForbidden, "not yours")}))
	if got := w.run("fleet ledger --csv"); got != 4 {
		t.Errorf("a refused export: got %d, want 4", got)
	}
}

func TestAmountsDoNotNeedThePrices(t *testing.T) {
	a := wholeFleet()
	a["GET /fleet/prices"] = api.Errorf(api.CodeForbidden, "prices are the operator's")
	w := newWorld(t, newFake(t, a))
	if got := w.run("fleet usage --by ''"); got != 0 || w.out.String() != said("VM-HOURS  VCPU-HOURS  GIB-HOURS  LEASE-HOURS  AMOUNT", "2.01      12.00       32.00      1.00         1.73") {
		t.Errorf("got %d, %s, %s", got, &w.out, &w.err)
	}
}

func TestPricesReadFromAFileArePutWhole(t *testing.T) {
	f := newFake(t, wholeFleet())
	w := newWorld(t, f)
	w.in = `{"currency":"EUR","vm":[{"guest_os":"linux","vcpu_hour_micros":10000,"gib_hour_micros":5000,"on_leased":false}],"lease":[],"pool":[],"version":3}`
	if got := w.run("fleet prices --file -"); got != 0 || !strings.HasPrefix(w.out.String(), "✓ Changed the prices") {
		t.Fatalf("got %d, %s, %s", got, &w.out, &w.err)
	}
	want := `{"currency":"EUR","vm":[{"guest_os":"linux","vcpu_hour_micros":10000,"gib_hour_micros":5000,"on_leased":false}],"lease":[],"pool":[]}`
	if got := f.requests(http.MethodPut); len(got) != 1 || got[0].body != want {
		t.Errorf("got %+v, want %s", got, want)
	}
}

func TestEmptyTenancySaysHowToBegin(t *testing.T) {
	f := newFake(t, answers{"GET /fleet/tenants": page[api.Tenant](), "GET /fleet/leases": page[api.Lease](), "GET /fleet/tenants/{name}/keys": page[api.Key](),
		"GET /fleet/ledger": page[api.LedgerRow](), "GET /fleet/prices": api.Prices{Currency: "EUR", VM: []api.VMPrice{}, Lease: []api.LeasePrice{}, Pool: []api.VMPrice{}}, "GET /fleet/activity": page[api.Activity]()})
	for line, want := range map[string]string{
		"fleet tenants": "tenant-create", "fleet leases": "fleet lease --tenant", "fleet keys acme": "key-create acme", "fleet ledger": "Nothing was billed.",
		"fleet prices": "--file", "fleet activity": "yet", "fleet activity --actor x": "of that kind",
	} {
		w := newWorld(t, f)
		if got := w.run(line); got != 0 || w.out.Len() > 0 || !strings.Contains(w.err.String(), want) {
			t.Errorf("%s: got %d, %q, %q; want 0, nothing, %q", line, got, &w.out, &w.err, want)
		}
	}
}

func TestCompletionKnowsTenancy(t *testing.T) {
	f := newFake(t, wholeFleet())
	for line, want := range map[string]string{
		"fleet tenant ''":                 "acme\nzeta\n:4\n",
		"fleet keys ''":                   "acme\nzeta\n:4\n",
		"fleet key-revoke ''":             "acme\nzeta\n:4\n",
		"fleet key-revoke acme ''":        "k-1\nk-3\n:4\n",
		"fleet key-revoke acme k-1 ''":    "k-3\n:4\n",
		"fleet key-revoke --operator ''":  "k-9\n:4\n",
		"fleet lease-end ''":              "l-0\nl-1\n:4\n",
		"fleet lease --tenant ''":         "acme\nzeta\n:4\n",
		"fleet launch x --tenant ''":      "acme\nzeta\n:4\n",
		"fleet ledger --kind ''":          "vm\nlease\npool\nadjustment\n:4\n",
		"fleet leases --state ''":         "pending\nactive\nending\nscrubbing\nscrub_failed\nended\n:4\n",
		"fleet key-create acme --role ''": "tenant\nviewer\noperator\n:4\n",
		"fleet scrub ''":                  "studio-1\n:4\n",
	} {
		w := newWorld(t, f)
		if w.run("__complete " + line); w.out.String() != want {
			t.Errorf("%s: got %q, want %q", line, &w.out, want)
		}
	}
}

func TestMoneyIsShownAndReadExactly(t *testing.T) {
	for text, micros := range map[string]int64{
		"0.00": 0, "0.000001": 1, "12.50": 12_500_000, "-12.50": -12_500_000, "0.125": 125_000, "1.0001": 1_000_100,
		"9223372036854.775807": 1<<63 - 1, "-9223372036854.775808": -1 << 63,
	} {
		if got := money(micros); got != text {
			t.Errorf("money(%d): got %s, want %s", micros, got, text)
		}
		var v moneyValue
		if err := v.Set(text); micros != -1<<63 && (err != nil || int64(v) != micros) {
			t.Errorf("%s: got %d, %v", text, v, err)
		}
	}
	for _, text := range []string{"", "-", ".5", "1.0000001", "1e3", "1,50", "--1", "+1", "9223372036855", "1.-5"} {
		var v moneyValue
		if v.Set(text) == nil {
			t.Errorf("%q was read as %d", text, v)
		}
	}
}

func TestDurationsAreHandedOnExactly(t *testing.T) {
	for want, d := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "36h": 36 * time.Hour, "90m": 90 * time.Minute, "93784s": 26*time.Hour + 3*time.Minute + 4*time.Second} {
		got := exactDuration(d)
		if back, ok := api.ParseDuration(got); got != want || !ok || back != d {
			t.Errorf("got %s, which the API reads as %v; want %s", got, back, want)
		}
	}
}

func TestQuotaBarIsFullOnlyWhenTheQuotaIs(t *testing.T) {
	for _, c := range []struct {
		used  int64
		limit *int64
		want  string
	}{
		{5, nil, ""}, {0, ptr(int64(0)), ""}, {0, ptr(int64(3)), "░░░░░░░░░░ 0%"}, {999, ptr(int64(1000)), "█████████░ 99%"}, {3, ptr(int64(3)), "██████████ 100%"}, {9, ptr(int64(3)), "██████████ 300%"},
	} {
		if got := quotaBar(c.used, c.limit); got != c.want {
			t.Errorf("%d of %v: got %q, want %q", c.used, c.limit, got, c.want)
		}
	}
}
