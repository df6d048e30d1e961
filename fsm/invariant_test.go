package fsm

import (
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestCheckNoticesEveryBrokenInvariant writes rows that no command leads to, so that it is known that the tests that
// rely on Check would see them.
func TestCheckNoticesEveryBrokenInvariant(t *testing.T) {
	vm := func(change func(*VM)) func(*tx) { // spare a, changed behind Use's back
		return func(t *tx) {
			row := *t.VM("a")
			change(&row)
			t.vms.put(&row)
		}
	}
	pool := func(change func(*Pool)) func(*tx) {
		return func(t *tx) {
			row := *t.Pool("p")
			change(&row)
			t.pools.put(&row)
		}
	}
	more := func(id string, change func(*VM)) func(*tx) { // a second row like spare a, properly counted
		return func(t *tx) {
			row := *t.VM("a")
			row.ID, row.Name = id, id
			change(&row)
			t.putVM(nil, &row)
		}
	}
	node := func(name, lease string) func(*tx) {
		return func(t *tx) {
			row := *t.Node(name)
			row.Lease = lease
			t.nodes.put(&row)
		}
	}
	lease := func(state api.LeaseState) func(*tx) {
		return func(t *tx) {
			row := *t.Lease("l")
			row.State = state
			t.leases.put(&row)
		}
	}
	ledger := func(change func(*LedgerRow)) func(*tx) { // the open row of spare a
		return func(t *tx) {
			row := *t.ledger.find(ledgerOpen, text("vm", "a"))
			change(&row)
			t.ledger.put(&row)
		}
	}
	for _, c := range []struct {
		want  string
		spoil func(*tx)
	}{
		{"has no node", vm(func(v *VM) { v.Node = "" })},
		{"is a spare and taken at once", vm(func(v *VM) { v.ClaimedFrom = "p" })},
		{"is a live spare of pool absent, which is not there", vm(func(v *VM) { v.Pool = "absent" })},
		{"is handed over without a claim", vm(func(v *VM) { v.HandOver = true })},
		{"keeps its launch, and its node has it", vm(func(v *VM) { v.Launch = &Launch{} })},
		{"has forgotten its launch", vm(func(v *VM) { v.Warm, v.State, v.Told = false, api.StatePlaced, 0 })},
		{"its node confirmed order", vm(func(v *VM) { v.Told = v.Order + 1 })},
		{"was ready without having run", vm(func(v *VM) { v.RunningAt = 0 })},
		{"comes from the future", vm(func(v *VM) { v.Version = 1 << 40 })},
		{"comes from the future", vm(func(v *VM) { v.Order = 1 << 40 })},
		{"hold the name warm-p-a", more("b", func(v *VM) { v.Name = "warm-p-a" })},
		{"come from one key", func(t *tx) {
			vm(func(v *VM) { v.Key = "k" })(t)
			more("b", func(v *VM) { v.Key = "k" })(t)
		}},
		{"its key belongs to VM other", func(t *tx) {
			vm(func(v *VM) { v.Key = "k" })(t)
			t.operations.put(&Operation{Key: "k", Ref: "other"})
		}},
		{"is said to hold", vm(func(v *VM) { v.MemoryMiB++ })},
		{"is said to hold", func(t *tx) { t.uses.put(&Use{Node: "n1", VMs: 7}) }},
		{"is said to hold", func(t *tx) { t.uses.put(&Use{Node: "absent", VMs: 1}) }},
		{"nodes hold VMs and 0 are counted", func(t *tx) { t.uses.remove(&Use{Node: "n1"}) }},
		{"has 3 macOS guests; 2 are allowed", func(t *tx) {
			for _, id := range []string{"x", "y", "z"} {
				more(id, func(v *VM) { v.GuestOS, v.State = api.GuestMacOS, api.StateDeleting })(t)
			}
		}},
		{"keeps 2 ready of 1 in all", pool(func(p *Pool) { p.MinReady, p.MaxTotal = 2, 1 })},
		{"keeps 33 ready", pool(func(p *Pool) { p.MinReady, p.MaxTotal = 33, 50 })},
		{"of 101 in all", pool(func(p *Pool) { p.MaxTotal = 101 })},
		{"keeps -1 ready", pool(func(p *Pool) { p.MinReady = -1 })},
		{"does not follow min_ready", pool(func(p *Pool) { p.MaxTotal++ })},
		{"counts -1 claims", func(t *tx) { t.claims.put(&ClaimStat{Pool: "p", Claims: -1}) }},
		{"node n1 is held by lease absent", node("n1", "absent")},
		{"node n1 is held by lease l, which does not have it", node("n1", "l")},
		{"node n2 is held by lease l, which does not have it", lease(api.LeaseEnded)},
		{"lease l and node n2 disagree", node("n2", "")},
		{"lives on node n2, which acme leases", more("b", func(v *VM) { v.Node = "n2" })},
		{"lives on node n2, whose lease is ending", func(t *tx) {
			more("b", func(v *VM) { v.Node, v.Warm, v.Tenant = "n2", false, "acme" })(t)
			lease(api.LeaseEnding)(t)
		}},
		{"is open for lease l, which is not active", lease(api.LeasePending)},
		{"overlap", ledger(func(r *LedgerRow) { r.Seq, r.EndedAt = 99, r.StartedAt })},
		{"overlap", func(t *tx) {
			ledger(func(r *LedgerRow) { r.EndedAt, r.Amount = r.StartedAt+1000, 0 })(t)
			t.account(nil, t.VM("a")) // t.now is long ago
		}},
		{"lasts -1 ms", ledger(func(r *LedgerRow) { r.EndedAt = r.StartedAt - 1 })},
		{"and costs 7", ledger(func(r *LedgerRow) { r.EndedAt, r.Amount = r.StartedAt+1, 7 })},
		{"is open for what VM a is not", ledger(func(r *LedgerRow) { r.Tenant = "acme" })},
		{"VM a runs and nobody is billed", ledger(func(r *LedgerRow) { r.EndedAt = r.StartedAt })},
		{"lease l is active and nobody is billed for node n2", func(t *tx) {
			t.ledger.remove(t.ledger.find(ledgerOpen, text("lease", "l", "n2")))
		}},
		{"operations are counted and 1 are there", func(t *tx) { t.operations.put(&Operation{Key: "k"}) }},
	} {
		f := newFleet(t)
		f.node("n1")
		f.node("n2")
		f.image("img")
		f.tenant("acme")
		f.leased("l", "acme", "n2")
		f.pool("p", "", "img", 1)
		f.ready("p", "n1", "a")
		c.spoil(&tx{View: f.state.work, index: f.index})
		f.state.publish()
		if err := f.view().Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
