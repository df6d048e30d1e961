package fsm

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// stretches are the rows of a VM or of a lease, in the order of their opening.
func (f *fleet) stretches(vm, lease string) (rows []LedgerRow) {
	f.t.Helper()
	for row := range f.view().Ledger(0) {
		if row.VMID == vm && row.LeaseID == lease && row.Kind != api.LedgerAdjustment {
			rows = append(rows, *row)
		}
	}
	return rows
}

// stretch is the one row of a VM.
func (f *fleet) stretch(vm string) LedgerRow {
	f.t.Helper()
	rows := f.stretches(vm, "")
	if len(rows) != 1 {
		f.t.Fatalf("VM %s has the stretches %+v, want one", vm, rows)
	}
	return rows[0]
}

// bills says what was charged for: kind, tenant and length of each stretch of a VM; -1 for an open one.
type bills struct {
	Kind, Tenant string
	MS           api.Time
}

func (f *fleet) bills(vm string) (out []bills) {
	f.t.Helper()
	for _, row := range f.stretches(vm, "") {
		b := bills{row.Kind, row.Tenant, -1}
		if row.EndedAt != 0 {
			b.MS = row.EndedAt - row.StartedAt
		}
		out = append(out, b)
	}
	return out
}

func (f *fleet) prices(p api.Prices) {
	f.t.Helper()
	p.Currency = "EUR"
	f.do(KindPutPrices, PutPrices{Prices: p})
}

// billedFleet has hosts n1 and n2, image img of 1 vCPU and 256 MiB, tenant acme, and a price of 3 600 000 micros an
// hour, which is one a millisecond, for a vCPU.
func billedFleet(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t)
	f.node("n1")
	f.node("n2")
	f.image("img")
	f.tenant("acme")
	f.prices(api.Prices{VM: []api.VMPrice{{VCPUHourMicros: hourMS}}})
	return f
}

func (f *fleet) runs(id string) {
	f.t.Helper()
	f.launched(id, "", Launch{Tenant: "acme", Name: id, Image: "img"}, "n1")
	f.report(id, api.StateRunning)
}

func (f *fleet) gone(id string, msAgo int64) {
	f.t.Helper()
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: id, Node: f.vm(id).Node, State: api.StateGone, EndedMS: msAgo}}})
}

func TestStretchLastsFromTheFirstRunningToTheConfirmedEnd(t *testing.T) {
	f := billedFleet(t)
	f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "n1")
	f.pass(60_000)
	f.report("x", api.StateBooting)
	if got := f.bills("x"); got != nil {
		t.Errorf("got %+v, want nothing before it runs", got)
	}
	f.report("x", api.StateRunning)
	start := f.now
	f.pass(5_000)
	f.do(KindPatchVM, PatchVM{ID: "x", Patch: api.VMPatch{Name: api.Some("renamed")}})
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"x"}})
	if row := f.stretch("x"); row.EndedAt != 0 || row.Name != "renamed" || row.StartedAt != start {
		t.Errorf("got %+v, want it open until the node has confirmed", row)
	}
	f.pass(1_000)
	f.report("x", api.StateGone)
	want := LedgerRow{Seq: 1, Tenant: "acme", Kind: api.LedgerVM, VMID: "x", Name: "renamed", Node: "n1", GuestOS: api.GuestLinux, VCPUs: 1, MemoryMiB: 256,
		StartedAt: start, EndedAt: f.now, EndReason: "deleted", Rate: api.Rate{VCPUHourMicros: hourMS}, Amount: int64(f.now - start)}
	if diff := cmp.Diff(want, f.stretch("x")); diff != "" {
		t.Errorf("the row (-want +got):\n%s", diff)
	}
}

func TestFailedBootIsFree(t *testing.T) {
	f := billedFleet(t)
	for id, end := range map[string]func(id string){
		"failed":  func(id string) { f.report(id, api.StateBooting); f.pass(60_000); f.report(id, api.StateFailed) },
		"refused": func(id string) { f.do(KindMoveVM, MoveVM{ID: id, From: "n1"}) },
		"gone":    func(id string) { f.gone(id, 0) },
		"deleted": func(id string) { f.do(KindDeleteVMs, DeleteVMs{IDs: []string{id}}); f.gone(id, 0) },
		"stopped": func(id string) { f.report(id, api.StateStopped) },
	} {
		f.launched(id, "", Launch{Tenant: "acme", Name: id, Image: "img"}, "n1")
		end(id)
		if got := f.bills(id); got != nil {
			t.Errorf("%s: got %+v, want no bill", id, got)
		}
	}
}

func TestOnlyRunningTimeIsBilledInStretchesThatDoNotOverlap(t *testing.T) {
	f := billedFleet(t)
	f.runs("x") // the report came at its start
	for _, s := range []api.VMState{api.StatePaused, api.StateRunning, api.StateBooting, api.StateRunning} {
		f.report("x", s)
	}
	f.report("x", api.StateStopped)
	f.pass(60_000)
	f.report("x", api.StateRunning)
	f.health("n1", api.NodeUnreachable) // unknown, and billed still
	f.pass(600_000)
	f.health("n1", api.NodeHealthy)
	f.report("x", api.StateFailed)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"x"}}) // takes it down in no other way
	f.gone("x", 0)
	want := []bills{{api.LedgerVM, "acme", 50}, {api.LedgerVM, "acme", 600_040}}
	if diff := cmp.Diff(want, f.bills("x")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEndThatTheNodeSawClosesThereAndNeverBeforeTheStart(t *testing.T) {
	for _, c := range []struct{ ago, want int64 }{{0, 600_020}, {570_000, 30_020}, {600_020, 0}, {600_021, 0}, {math.MaxInt64, 0}, {-5, 600_020}} {
		f := billedFleet(t)
		f.runs("x")
		f.pass(600_000)
		f.gone("x", c.ago)
		if row := f.stretch("x"); int64(row.EndedAt-row.StartedAt) != c.want || row.Amount != c.want {
			t.Errorf("gone %d ms ago: got %+v, want %d ms", c.ago, row, c.want)
		}
	}
}

func TestEndOfOneReportIsNotThatOfTheNext(t *testing.T) {
	f := billedFleet(t)
	f.runs("x")
	f.runs("y")
	f.pass(600_000)
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "x", Node: "n1", State: api.StateGone, EndedMS: 100_000}, {ID: "y", Node: "n1", State: api.StateStopped}}})
	if x, y := f.stretch("x"), f.stretch("y"); x.EndedAt != f.now-100_000 || y.EndedAt != f.now {
		t.Errorf("got %+v and %+v", x, y)
	}
}

func TestRatesAreThoseOfTheOpening(t *testing.T) {
	f := billedFleet(t)
	f.runs("x")
	f.prices(api.Prices{VM: []api.VMPrice{{VCPUHourMicros: 7 * hourMS}}})
	f.report("x", api.StateStopped)
	f.report("x", api.StateRunning)
	if rows := f.stretches("x", ""); rows[0].Rate.VCPUHourMicros != hourMS || rows[0].Amount != 20 || rows[1].Rate.VCPUHourMicros != 7*hourMS || rows[1].CostUntil(rows[1].StartedAt+10) != 70 {
		t.Errorf("got %+v", rows)
	}
	if p := f.view().Prices(); p.Version == 0 || p.VM[0].VCPUHourMicros != 7*hourMS {
		t.Errorf("got %+v", p)
	}
}

func TestFirstPriceThatFitsCounts(t *testing.T) {
	f := newFleet(t)
	m := host("m1", true)
	m.Labels = map[string]string{"chip": "m4-max", "zone": ""}
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: m})
	f.image("img")
	f.macImage("mac")
	f.tenant("acme")
	if p := f.view().Prices(); p.Currency != "EUR" || p.VM == nil || p.Lease == nil || p.Pool == nil {
		t.Errorf("got %+v before any were put", p)
	}
	rate := func(kind, tenant, guest string) int64 {
		txn := tx{View: f.view()}
		return txn.rateOf(bill{kind: kind, tenant: tenant, node: "m1"}, guest).VCPUHourMicros
	}
	host := func(prices ...api.LeasePrice) int64 {
		f.prices(api.Prices{Lease: prices})
		txn := tx{View: f.view()}
		return txn.leaseRate(f.view().Node("m1")).HourMicros
	}
	f.prices(api.Prices{VM: []api.VMPrice{{GuestOS: "macos", VCPUHourMicros: 1}, {GuestOS: "linux", VCPUHourMicros: 2}, {VCPUHourMicros: 3}, {GuestOS: "linux", VCPUHourMicros: 4, OnLeased: true}}, Pool: []api.VMPrice{{GuestOS: "linux", VCPUHourMicros: 5}}})
	before := [...]int64{rate("vm", "acme", "macos"), rate("vm", "acme", "linux"), rate("vm", "acme", "windows"), rate("pool", "", "linux"), rate("pool", "", "macos")}
	if want := [...]int64{1, 2, 3, 5, 0}; before != want {
		t.Errorf("got %v, want %v", before, want)
	}
	f.leased("l", "acme", "m1")
	if got, want := [...]int64{rate("vm", "acme", "macos"), rate("vm", "acme", "linux"), rate("vm", "", "linux")}, [...]int64{0, 4, 2}; got != want {
		t.Errorf("on a leased host: got %v, want %v", got, want)
	}
	for _, c := range []struct {
		prices []api.LeasePrice
		want   int64
	}{
		{nil, 0},
		{[]api.LeasePrice{{Label: "chip=m4-max", HourMicros: 1}, {HourMicros: 2}}, 1},
		{[]api.LeasePrice{{Label: "chip=m4", HourMicros: 1}, {Label: "", HourMicros: 2}}, 2},
		{[]api.LeasePrice{{Label: "zone=", HourMicros: 3}}, 3},
		{[]api.LeasePrice{{Label: "rack=", HourMicros: 1}, {Label: "rack", HourMicros: 1}, {Label: "chip", HourMicros: 4}}, 4},
	} {
		if got := host(c.prices...); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.prices, got, c.want)
		}
	}
}

func TestVMsAreFreeOnALeasedHostUnlessPricesSayOtherwise(t *testing.T) {
	for _, onLeased := range []bool{false, true} {
		f := billedFleet(t)
		f.prices(api.Prices{VM: []api.VMPrice{{VCPUHourMicros: hourMS, OnLeased: onLeased}}, Lease: []api.LeasePrice{{HourMicros: 2 * hourMS}}})
		f.runs("before")
		f.pass(1_000)
		f.leased("l", "acme", "n1")
		f.runs("after")
		f.pass(10_000)
		for _, id := range []string{"before", "after"} {
			f.do(KindDeleteVMs, DeleteVMs{IDs: []string{id}})
			f.gone(id, 0)
		}
		before, after := int64(0), f.stretch("after")
		for _, row := range f.stretches("before", "") {
			before += row.Amount
		}
		switch {
		case onLeased && (len(f.stretches("before", "")) != 1 || before < 11_000 || after.Amount < 10_000):
			t.Errorf("with a price for leased hosts: got %d and %+v", before, after)
		case !onLeased && (before != 1_020 || after.Amount != 0): // until the lease began
			t.Errorf("without: got %d and %+v", before, after)
		}
		f.do(KindEndLease, EndLease{ID: "l"})
		if l := f.stretches("", "l")[0]; l.Amount != 2*int64(l.EndedAt-l.StartedAt) || l.Tenant != "acme" || l.Node != "n1" || l.Kind != api.LedgerLease {
			t.Errorf("got %+v, want the host billed", l)
		}
	}
}

func TestLeaseIsBilledToItsEndHoweverLateThatIsNoticed(t *testing.T) {
	f := billedFleet(t)
	l := f.leased("l", "acme", "n1", "n2")
	f.pass(100 * hourMS) // every replica was down
	f.advance("l", api.LeaseEnding)
	rows := f.stretches("", "l")
	if len(rows) != 2 {
		t.Fatalf("got %+v, want one for each host", rows)
	}
	for _, row := range rows {
		if row.StartedAt != l.StartsAt || row.EndedAt != l.EndsAt || row.EndReason != "ended" {
			t.Errorf("got %+v, want it to last from %s to %s", row, l.StartsAt, l.EndsAt)
		}
	}
}

func TestIdleSharedSpareIsThePoolsCostAndItsClaimersFromTheClaimOn(t *testing.T) {
	f := billedFleet(t)
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
	f.prices(api.Prices{VM: []api.VMPrice{{VCPUHourMicros: 2 * hourMS}}, Pool: []api.VMPrice{{VCPUHourMicros: hourMS}}})
	f.pool("p", "", "img", 2)
	f.ready("p", "n1", "s", "o")
	f.pass(10_000)
	f.launched("x", "", Launch{Tenant: "acme", Name: "build", Pool: "p"})
	f.report("s", api.StateRunning)
	f.launched("y", "", Launch{Name: "own", Pool: "p"}) // the operator's claims count, too
	rows := f.stretches("s", "")
	if diff := cmp.Diff([]bills{{api.LedgerPool, "", 10_030}, {api.LedgerVM, "acme", -1}}, f.bills("s")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rows[0].EndedAt != rows[1].StartedAt || rows[0].Amount != 10_030 || rows[0].EndReason != "claimed" || rows[0].Name != "warm-p-s" || rows[1].Name != "build" || rows[1].Pool != "p" || rows[1].Rate.VCPUHourMicros != 2*hourMS {
		t.Errorf("got %+v", rows)
	}
	if diff := cmp.Diff([]bills{{api.LedgerPool, "", 10_040}, {api.LedgerVM, "", -1}}, f.bills("o")); diff != "" {
		t.Errorf("the operator's (-want +got):\n%s", diff)
	}
	n := 0
	for row := range f.view().LedgerOf("acme", 0) {
		if row.Tenant != "acme" {
			t.Errorf("acme sees %+v", row)
		}
		n++
	}
	if n != 1 {
		t.Errorf("acme sees %d rows, want 1", n)
	}
}

func TestOwnSpareIsItsTenantsFromItsBootAndAClaimChangesNothing(t *testing.T) {
	f := tenantFleet(t)
	f.launched("x", "", Launch{Tenant: "acme", Name: "build", Pool: "ci"})
	f.report("a", api.StateRunning)
	if row := f.stretch("a"); row.Kind != api.LedgerVM || row.Tenant != "acme" || row.EndedAt != 0 || row.Name != "build" || row.Pool != "ci" {
		t.Errorf("got %+v, want one open stretch under its new name", row)
	}
}

func TestFailedHandOverCostsTheClaimerNothing(t *testing.T) {
	for what, meanwhile := range map[string]func(f *fleet){
		"at once": func(*fleet) {},
		"stopped meanwhile": func(f *fleet) {
			f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "s", Node: "n1", State: api.StateStopped}}})
		},
		"stopped and started meanwhile": func(f *fleet) {
			for _, s := range []api.VMState{api.StateStopped, api.StateRunning} {
				f.pass(60_000)
				f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "s", Node: "n1", State: s}}})
			}
		},
		"gone meanwhile": func(f *fleet) { f.gone("s", 30_000) },
	} {
		f := billedFleet(t)
		f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
		f.pool("p", "", "img", 1)
		f.ready("p", "n1", "s")
		f.launched("x", "", Launch{Tenant: "acme", Name: "build", Pool: "p"})
		f.pass(60_000)
		meanwhile(f)
		f.do(KindFailHandOver, FailHandOver{ID: "s", NewID: "new", Candidates: []string{"n2"}})
		rows := f.stretches("s", "")
		for i, row := range rows {
			if row.Tenant == "acme" && (row.Amount != 0 || row.EndedAt != row.StartedAt) {
				t.Errorf("%s: got %+v", what, row)
			}
			if i > 0 && row.StartedAt != rows[i-1].EndedAt {
				t.Errorf("%s: got %+v after %+v, want no gap", what, row, rows[i-1])
			}
			if row.Tenant == "" && row.Kind != api.LedgerPool {
				t.Errorf("%s: got %+v, want what nobody got to be a cost of its pool", what, row)
			}
		}
		if what == "at once" && (len(rows) != 3 || rows[1].EndReason != "not handed over" || rows[2].EndedAt != 0) {
			t.Errorf("%s: got %+v, want the pool to pay until the spare is gone", what, rows)
		}
		if got := f.bills("new"); got != nil {
			t.Errorf("%s: got %+v for a VM that boots", what, got)
		}
		f.gone("s", 0)
		f.report("new", api.StateRunning)
		if row := f.stretch("new"); row.Tenant != "acme" || row.StartedAt != f.now {
			t.Errorf("%s: got %+v, want the new VM billed from its start", what, row)
		}
	}
}

func TestTheOperatorsOwnFailedClaimIsAPoolCostToo(t *testing.T) {
	f := billedFleet(t)
	f.pool("p", "", "img", 1)
	f.ready("p", "n1", "s")
	f.launched("x", "", Launch{Name: "build", Pool: "p"})
	f.pass(60_000)
	f.do(KindFailHandOver, FailHandOver{ID: "s", NewID: "new", Candidates: []string{"n2"}})
	f.gone("s", 0)
	if diff := cmp.Diff([]bills{{api.LedgerPool, "", 10}, {api.LedgerVM, "", 0}, {api.LedgerPool, "", 60_030}}, f.bills("s")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// No route changes a VM's size; should one come, the ledger is ready for it.
func TestAnotherSizeIsAnotherStretchFromTheSameInstant(t *testing.T) {
	f := billedFleet(t)
	f.runs("x")
	f.prices(api.Prices{VM: []api.VMPrice{{VCPUHourMicros: 2 * hourMS}}}) // holds for what begins later
	start := f.stretch("x").StartedAt
	f.pass(5_000)
	resized := &tx{View: f.state.work, index: f.index + 1, now: f.now, meta: f.view().Meta()}
	row := *f.vm("x")
	row.VCPUs, row.MemoryMiB = 3, 512
	resized.putVM(f.vm("x"), &row)
	resized.tables.meta.put(&resized.meta)
	f.state.publish()
	if err := f.view().Check(); err != nil {
		t.Fatal(err)
	}
	at := f.now
	f.pass(1_000)
	f.gone("x", 0)
	want := []LedgerRow{
		{Seq: 1, Tenant: "acme", Kind: api.LedgerVM, VMID: "x", Name: "x", Node: "n1", GuestOS: api.GuestLinux, VCPUs: 1, MemoryMiB: 256,
			StartedAt: start, EndedAt: at, EndReason: "resized", Rate: api.Rate{VCPUHourMicros: hourMS}, Amount: int64(at - start)},
		{Seq: 2, Tenant: "acme", Kind: api.LedgerVM, VMID: "x", Name: "x", Node: "n1", GuestOS: api.GuestLinux, VCPUs: 3, MemoryMiB: 512,
			StartedAt: at, EndedAt: f.now, EndReason: "deleted", Rate: api.Rate{VCPUHourMicros: 2 * hourMS}, Amount: 6 * int64(f.now-at)},
	}
	if diff := cmp.Diff(want, f.stretches("x", "")); diff != "" {
		t.Errorf("the rows (-want +got):\n%s", diff)
	}
}

func TestHandOverThatIsConfirmedOfAStoppedVMStopsTheBill(t *testing.T) {
	f := billedFleet(t)
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
	f.pool("p", "", "img", 1)
	f.ready("p", "n1", "s")
	f.launched("x", "", Launch{Tenant: "acme", Name: "build", Pool: "p"})
	f.report("s", api.StateStopped)
	if diff := cmp.Diff([]bills{{api.LedgerPool, "", 10}, {api.LedgerVM, "acme", 10}}, f.bills("s")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAmountsAreRoundedDownOnceOverBigNumbers(t *testing.T) {
	for _, row := range []LedgerRow{
		{Kind: api.LedgerVM, VCPUs: 3, MemoryMiB: 1000, EndedAt: 3_599_999, Rate: api.Rate{VCPUHourMicros: 333, GiBHourMicros: 777}},
		{Kind: api.LedgerVM, VCPUs: 1, MemoryMiB: 1, EndedAt: 1, Rate: api.Rate{VCPUHourMicros: 1, GiBHourMicros: 1}},
		{Kind: api.LedgerPool, VCPUs: 256, MemoryMiB: 1 << 20, EndedAt: 1000 * 366 * 24 * hourMS, Rate: api.Rate{VCPUHourMicros: 1 << 42, GiBHourMicros: 1 << 42}},
		{Kind: api.LedgerLease, EndedAt: 7 * hourMS / 3, Rate: api.Rate{HourMicros: 900_001}},
		{Kind: api.LedgerLease, EndedAt: math.MaxInt64, Rate: api.Rate{HourMicros: 1 << 42}},
		{Kind: api.LedgerLease, StartedAt: 5, EndedAt: 5, Rate: api.Rate{HourMicros: 1 << 42}},
	} {
		if got, want := row.CostUntil(row.EndedAt), price(&row); got != want {
			t.Errorf("%+v costs %d, want %d", row, got, want)
		}
	}
	row := LedgerRow{Kind: api.LedgerLease, StartedAt: 5, Rate: api.Rate{HourMicros: hourMS}}
	if got := row.CostUntil(4); got != 0 {
		t.Errorf("got %d for a time before its start", got)
	}
}

func TestAdjustmentHasItsReasonAndCountsAtOnce(t *testing.T) {
	f := billedFleet(t)
	f.refused(api.CodeNotFound, "", KindAdjustLedger, AdjustLedger{Request: api.AdjustmentRequest{Tenant: "absent", AmountMicros: 1, Reason: "r"}})
	op := &Op{Key: "k", Digest: "d"}
	c := AdjustLedger{Request: api.AdjustmentRequest{Tenant: "acme", AmountMicros: -5, Reason: "a disk was busy"}}
	row := f.done(f.send(KindAdjustLedger, op, c)).Value.(*LedgerRow)
	if row.Amount != -5 || row.EndReason != "a disk was busy" || row.StartedAt != row.EndedAt || row.Kind != api.LedgerAdjustment || row.CostUntil(f.now) != -5 {
		t.Errorf("got %+v", row)
	}
	if r := f.send(KindAdjustLedger, op, c); !r.Replayed || f.view().Meta().LedgerSeq != 1 {
		t.Errorf("got %+v, want it given once", r)
	}
	f.do(KindDeleteTenant, DeleteTenant{Name: "acme"})
	n := 0
	for range f.view().LedgerOf("acme", 0) {
		n++
	}
	if n != 1 {
		t.Errorf("got %d rows, want the ledger of a tenant to outlive it", n)
	}
}

func TestClosedRowsAreTheSameOnEachExport(t *testing.T) {
	f := billedFleet(t)
	f.runs("x")
	f.report("x", api.StateStopped)
	f.report("x", api.StateRunning)
	closed := digest(f.stretches("x", "")[0])
	f.do(KindPatchVM, PatchVM{ID: "x", Patch: api.VMPatch{Name: api.Some("renamed")}})
	f.prices(api.Prices{})
	f.gone("x", 1_000_000)
	f.state = restored(t, f.snapshot())
	if got := digest(f.stretches("x", "")[0]); got != closed {
		t.Errorf("got %s, want %s", got, closed)
	}
	n := 0
	for row := range f.view().Ledger(2) { // a cursor
		if row.Seq != 2 {
			t.Errorf("got row %d after a cursor at 2", row.Seq)
		}
		n++
	}
	if n != 1 {
		t.Errorf("got %d rows from the cursor on, want 1", n)
	}
}
