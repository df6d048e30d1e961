package fsm

import (
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What the model knows of time and money. It follows each VM's row from outside, command by command, and never looks
// at how stretches are opened and closed.

// running is a VM that somebody pays for, since when and at which rate.
type running struct {
	who   payer
	since api.Time
	rate  api.Rate
}

type payer struct{ kind, tenant string }

type books struct {
	running map[string]running  // by VM
	paid    map[string]api.Time // time that ended, by VM, kind and tenant
	closed  map[uint64]*LedgerRow
	text    map[uint64]string   // closed rows as they were exported first
	sum     map[string]api.Time // of closed rows, in the keys of paid
	last    map[string]api.Time // end of the last row, by VM
	seen    uint64              // the newest row
	ended   map[string]api.Time // how long ago a node says that a VM went, while that report applies
	failing string              // the VM whose hand-over fails, while that applies
	lost    string              // the host whose VMs are lost, while that applies
}

func newBooks() books {
	return books{running: map[string]running{}, paid: map[string]api.Time{}, closed: map[uint64]*LedgerRow{}, text: map[uint64]string{}, sum: map[string]api.Time{}, last: map[string]api.Time{}, ended: map[string]api.Time{}}
}

func account(vm string, p payer) string { return strings.Join([]string{vm, p.kind, p.tenant}, "/") }

// payerOf is who pays for a VM; the zero value for nobody: it never ran, or does not run now.
func payerOf(v *VM) payer {
	switch {
	case v == nil || v.RunningAt == 0:
		return payer{}
	case v.HandOver:
	case v.State == api.StateStopped || v.State == api.StateFailed || v.State == api.StateLost || v.State == api.StateDeleting && v.Down:
		return payer{}
	}
	if v.Warm && v.Tenant == "" {
		return payer{kind: api.LedgerPool}
	}
	return payer{kind: api.LedgerVM, tenant: v.Tenant}
}

// rateFor is what a VM should cost now.
func rateFor(v View, vm *VM) api.Rate {
	list := v.Prices().VM
	if payerOf(vm).kind == api.LedgerPool {
		list = v.Prices().Pool
	}
	onLeased := false
	for l := range v.AllLeases("") {
		onLeased = onLeased || l.State == api.LeaseActive && l.Tenant == vm.Tenant && slices.Contains(l.Nodes, vm.Node)
	}
	for _, p := range list {
		if p.GuestOS != "" && p.GuestOS != vm.GuestOS || onLeased && !p.OnLeased {
			continue
		}
		return api.Rate{VCPUHourMicros: p.VCPUHourMicros, GiBHourMicros: p.GiBHourMicros}
	}
	return api.Rate{}
}

// auditBills follows who pays for each VM.
func (m *model) auditBills(before, after View) {
	b, now := &m.books, after.Meta().Now
	ids := map[string]bool{}
	for _, v := range []View{before, after} {
		for vm := range v.VMs("") {
			ids[vm.ID] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		was, had := b.running[id]
		vm := after.VM(id)
		is := payerOf(vm)
		if (payer{}) == is && !had {
			continue
		}
		end := now
		switch {
		case had && is == was.who && was.rate != rateFor(after, vm) && m.leaseStarted(before, after, vm):
			m.saw("charged as leased")
		case had && is == was.who:
			continue
		case b.failing == id && !vm.Live():
			end = max(was.since, before.VM(id).ClaimedAt)
			m.saw("hand-over taken back")
		case had && (b.lost == before.VM(id).Node || bootedUnheard(before, after, before.VM(id).Node)):
			end = max(was.since, min(now, before.Node(before.VM(id).Node).ConfirmedAt))
			if end < now {
				m.saw("billed until heard")
			}
		case b.ended[id] > 0: // of one that moves the row stays
			end = max(was.since, now-b.ended[id])
			m.saw("ended a while ago")
		}
		if had {
			b.paid[account(id, was.who)] += end - was.since
			delete(b.running, id)
		}
		if is != (payer{}) {
			start := now
			if had {
				start = end
			}
			b.running[id] = running{is, start, rateFor(after, vm)}
			if had {
				m.saw("payer changed")
			}
		}
	}
}

// bootedUnheard says that a host turned out to have booted while it was silent.
func bootedUnheard(before, after View, node string) bool {
	was, is := before.Node(node), after.Node(node)
	return was != nil && is != nil && was.BootID != is.BootID && was.State != api.NodeHealthy
}

// leaseStarted says whether the VM's host became its tenant's by this command.
func (m *model) leaseStarted(before, after View, vm *VM) bool {
	return after.Leases(vm.Tenant, after.Node(vm.Node)) && !before.Leases(vm.Tenant, before.Node(vm.Node))
}

// auditLedger holds the ledger to what the model followed: closed rows never change, amounts are those of the formula,
// one row is open for each VM that runs and each host that is leased, and times add up.
func (m *model) auditLedger(after View) {
	b, now := &m.books, after.Meta().Now
	open := map[string]*LedgerRow{}
	for row := range after.Ledger(0) {
		if row.Seq > b.seen {
			b.seen = row.Seq
			m.opened(after, row)
		}
		if old := b.closed[row.Seq]; old != nil {
			if old != row {
				m.r.Fatalf("closed row %+v became %+v", old, row)
			}
			continue
		}
		if row.EndedAt == 0 {
			open[row.VMID] = row // a lease's are held to their leases
			m.heldByLease(after, row)
			continue
		}
		b.closed[row.Seq], b.text[row.Seq] = row, digest(row)
		m.closed(after, row)
	}
	for id, r := range b.running {
		row := open[id]
		if row == nil || row.Tenant != r.who.tenant || row.Kind != r.who.kind || row.StartedAt != r.since || row.Rate != r.rate {
			m.r.Fatalf("VM %s is paid for as %+v, and the open row is %+v", id, r, row)
		}
		delete(open, id)
	}
	for id, row := range open {
		if id != "" {
			m.r.Fatalf("nobody has VM %s, and row %+v is open", id, row)
		}
	}
	for _, k := range slices.Concat(slices.Collect(maps.Keys(b.paid)), slices.Collect(maps.Keys(b.sum))) {
		if got, want := b.sum[k], b.paid[k]; got != want {
			m.r.Fatalf("the ledger has %d ms for %s, which ran for %d ms until %s", got, k, want, now)
		}
	}
}

func (m *model) opened(after View, row *LedgerRow) {
	again := m.books.failing != "" && m.books.failing == row.VMID && row.StartedAt == m.books.last[row.VMID] // its pool pays on from the claim
	if row.StartedAt != after.Meta().Now && !again {
		m.r.Fatalf("row %+v opened at %s", row, after.Meta().Now)
	}
	if row.VMID == "" {
		return
	}
	if row.StartedAt < m.books.last[row.VMID] {
		m.r.Fatalf("row %+v begins before %s, when the one before ended", row, m.books.last[row.VMID])
	}
	m.saw("stretch of a " + row.Kind)
}

func (m *model) closed(after View, row *LedgerRow) {
	if row.EndedAt < row.StartedAt || row.EndedAt > after.Meta().Now {
		m.r.Fatalf("row %+v ended at %s", row, after.Meta().Now)
	}
	if row.Kind == api.LedgerAdjustment {
		return
	}
	if want := price(row); row.Amount != want {
		m.r.Fatalf("row %+v costs %d", row, want)
	}
	if row.Amount > 0 {
		m.saw("money")
	}
	m.heldByLease(after, row)
	if row.VMID != "" {
		m.books.sum[account(row.VMID, payer{row.Kind, row.Tenant})] += row.EndedAt - row.StartedAt
		m.books.last[row.VMID] = row.EndedAt
	}
}

// price is the formula over big numbers: milliseconds by size by rate, in whole micro-units, rounded down once.
func price(row *LedgerRow) int64 {
	n := func(v int64) *big.Int { return big.NewInt(v) }
	perHour, hours := new(big.Int), n(3_600_000)
	if row.Kind == api.LedgerLease {
		perHour = n(row.Rate.HourMicros)
	} else {
		perHour.Add(new(big.Int).Mul(n(int64(row.VCPUs)*1024), n(row.Rate.VCPUHourMicros)), new(big.Int).Mul(n(row.MemoryMiB), n(row.Rate.GiBHourMicros)))
		hours.Mul(hours, n(1024))
	}
	out := new(big.Int).Mul(n(int64(row.EndedAt-row.StartedAt)), perHour)
	if out.Quo(out, hours); !out.IsInt64() {
		return 1<<63 - 1
	}
	return out.Int64()
}

// heldByLease holds a row of a lease to the lease.
func (m *model) heldByLease(after View, row *LedgerRow) {
	if row.LeaseID == "" {
		return
	}
	l := after.Lease(row.LeaseID)
	ended := l.State != api.LeaseActive
	if l.State == api.LeasePending || row.StartedAt != l.StartsAt || row.Tenant != l.Tenant || ended != (row.EndedAt != 0) || ended && row.EndedAt != max(l.EndsAt, l.StartsAt) {
		m.r.Fatalf("row %+v of lease %+v", row, l)
	}
}

// exportAgain holds closed rows to what an export of them said when they closed.
func (m *model) exportAgain() {
	for row := range m.f.view().Ledger(0) {
		if text := m.books.text[row.Seq]; row.EndedAt != 0 && text != digest(row) {
			m.r.Fatalf("row %s is exported as %s now", text, digest(row))
		}
	}
	for _, tenant := range []string{"", "acme", "beta", "gamma"} {
		last, n := uint64(0), 0
		for row := range m.f.view().LedgerOf(tenant, 0) {
			if row.Tenant != tenant || row.Seq <= last {
				m.r.Fatalf("row %+v is among those of %q, after %d", row, tenant, last)
			}
			last, n = row.Seq, n+1
		}
		for row := range m.f.view().Ledger(0) {
			if row.Tenant == tenant {
				n--
			}
		}
		if n != 0 {
			m.r.Fatalf("the rows of %q are not all there", tenant)
		}
	}
}
