package fsm

import (
	"iter"
	"math/bits"
	"strconv"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	hourMS = 3_600_000
	mibGiB = 1024
)

// Prices is what later stretches are charged; empty before any were put.
func (v View) Prices() api.Prices {
	if p := v.prices.find(byID, text("prices")); p != nil {
		return p.Prices
	}
	return api.Prices{Currency: "EUR", VM: []api.VMPrice{}, Lease: []api.LeasePrice{}, Pool: []api.VMPrice{}}
}

// Ledger are the rows in the order of their opening, from the given number on.
func (v View) Ledger(start uint64) iter.Seq[*LedgerRow] {
	return v.ledger.from(byID, number("", start))
}

// LedgerOf are one tenant's rows (empty: the operator's), from the given number on.
func (v View) LedgerOf(tenant string, start uint64) iter.Seq[*LedgerRow] {
	return func(yield func(*LedgerRow) bool) {
		for row := range v.ledger.from(ledgerTenant, number(text(tenant), start)) {
			if row.Tenant != tenant || !yield(row) {
				return
			}
		}
	}
}

// bill is what a VM is billed as at the moment; a change of it ends one stretch and begins another.
type bill struct {
	kind, tenant, node string
	vcpus              int
	memoryMiB          int64
}

// billOf says what a row is billed as; the zero value: not at all. A VM that never ran costs nothing; one that runs
// is billed until its node has confirmed its end. One that is being handed over is billed whatever its node says of it:
// should the hand-over fail, one stretch is all there is to take back.
func billOf(v *VM) bill {
	if v == nil || v.RunningAt == 0 || v.isDown() && !v.HandOver {
		return bill{}
	}
	b := bill{kind: api.LedgerVM, tenant: v.Tenant, node: v.Node, vcpus: v.VCPUs, memoryMiB: v.MemoryMiB}
	if v.Warm && v.Tenant == "" {
		b.kind = api.LedgerPool
	}
	return b
}

// account opens and closes a VM's stretches as its row changes. It is called for every change, on every path.
func (t *tx) account(old, row *VM) {
	was, is := billOf(old), billOf(row)
	id := ""
	if old != nil {
		id = old.ID
	} else {
		id = row.ID
	}
	open := t.ledger.find(ledgerOpen, text("vm", id))
	if was == is {
		if open != nil && row != nil && open.Name != row.Name {
			named := *open
			named.Name = row.Name
			t.ledger.put(&named)
		}
		return
	}
	start := t.now
	if open != nil { // the next begins where it ends, also where that was before now
		start = t.closeStretch(open, t.closingAt(), endReason(old, row))
	}
	if is == (bill{}) {
		return
	}
	t.openAt(start, &LedgerRow{Tenant: is.tenant, Kind: is.kind, VMID: id, Name: row.Name, Node: is.node, Pool: row.Pool, GuestOS: row.GuestOS,
		VCPUs: is.vcpus, MemoryMiB: is.memoryMiB, Rate: t.rateOf(is, row.GuestOS)})
}

// closingAt is when what this command ends has really ended.
func (t *tx) closingAt() api.Time {
	if t.endedAt != 0 {
		return min(t.endedAt, t.now)
	}
	return t.now
}

func endReason(old, row *VM) string {
	switch {
	case row == nil:
		return or(old.Reason, "deleted")
	case old.Warm && !row.Warm:
		return "claimed"
	case row.Warm && !old.Warm:
		return "not handed over"
	case row.isDown():
		return or(row.Reason, string(row.State))
	case old.Node != row.Node:
		return "moved"
	case old.Tenant != row.Tenant:
		return "handed over"
	}
	return "resized"
}

// open begins a stretch now.
func (t *tx) open(row *LedgerRow) { t.openAt(t.now, row) }

func (t *tx) openAt(at api.Time, row *LedgerRow) {
	t.meta.LedgerSeq++
	row.Seq, row.StartedAt = t.meta.LedgerSeq, at
	t.ledger.put(row)
}

// closeStretch ends a stretch, settles what it costs, and gives its end.
func (t *tx) closeStretch(open *LedgerRow, at api.Time, reason string) api.Time {
	row := *open
	row.EndedAt, row.EndReason = max(at, open.StartedAt), reason
	row.Amount = row.cost(row.EndedAt)
	t.ledger.put(&row)
	return row.EndedAt
}

// cost is what the stretch costs up to a time, rounded down once.
func (r *LedgerRow) cost(until api.Time) int64 {
	if r.Kind == api.LedgerAdjustment {
		return r.Amount
	}
	ms := uint64(max(0, until-r.StartedAt))
	if r.Kind == api.LedgerLease {
		return scaled(ms, uint64(r.Rate.HourMicros), hourMS)
	}
	perHour := uint64(r.VCPUs)*uint64(r.Rate.VCPUHourMicros)*mibGiB + uint64(r.MemoryMiB)*uint64(r.Rate.GiBHourMicros)
	return scaled(ms, perHour, hourMS*mibGiB)
}

// CostUntil is what the stretch costs from its start up to a time within it, rounded down; at its end, its amount.
func (r *LedgerRow) CostUntil(at api.Time) int64 { return r.cost(at) }

// scaled is a*b/c, rounded down, by way of 128 bits; the largest number where even that does not fit.
func scaled(a, b, c uint64) int64 {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return 1<<63 - 1
	}
	q, _ := bits.Div64(hi, lo, c)
	return int64(min(q, 1<<63-1))
}

// rateOf is what a VM is charged from now on. On its tenant's leased host it is free unless a price says otherwise.
func (t *tx) rateOf(b bill, guestOS string) api.Rate {
	prices := t.Prices()
	list := prices.VM
	if b.kind == api.LedgerPool {
		list = prices.Pool
	}
	leased := t.Leases(b.tenant, t.Node(b.node))
	for _, p := range list {
		if (p.GuestOS == "" || p.GuestOS == guestOS) && (!leased || p.OnLeased) {
			return api.Rate{VCPUHourMicros: p.VCPUHourMicros, GiBHourMicros: p.GiBHourMicros}
		}
	}
	return api.Rate{}
}

// chargeAsLeased begins new stretches for the VMs that a tenant already has on a host which is leased to it from now on.
func (t *tx) chargeAsLeased(tenant, node string) {
	var stretches []*LedgerRow
	for vm := range t.VMsOn(node) {
		if open := t.ledger.find(ledgerOpen, text("vm", vm.ID)); open != nil && open.Tenant == tenant {
			stretches = append(stretches, open)
		}
	}
	for _, open := range stretches {
		row := *open
		row.Rate = t.rateOf(billOf(t.VM(open.VMID)), open.GuestOS)
		if row.Rate != open.Rate {
			t.closeStretch(open, t.now, "its node was leased")
			t.open(&row)
		}
	}
}

// leaseRate is what a leased host is charged: the first price whose label it has.
func (t *tx) leaseRate(n *Node) api.Rate {
	for _, p := range t.Prices().Lease {
		if p.Label == "" || n != nil && hasLabel(n, p.Label) {
			return api.Rate{HourMicros: p.HourMicros}
		}
	}
	return api.Rate{}
}

func hasLabel(n *Node, term string) bool {
	for i := range len(term) {
		if term[i] == '=' {
			v, ok := n.Labels[term[:i]]
			return ok && v == term[i+1:]
		}
	}
	_, ok := n.Labels[term]
	return ok
}

// putPrices replaces what is charged. Stretches that are open keep their rates. Its value is the *Prices.
func (t *tx) putPrices(c PutPrices) (any, error) {
	if err := checkVersion("price list", t.Prices().Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := &Prices{c.Prices}
	row.Version = t.index
	t.prices.put(row)
	t.log(t.env.Actor, "PUT /fleet/prices", "prices", "", "ok")
	return row, nil
}

// adjustLedger gives or takes money. Its value is the *LedgerRow.
func (t *tx) adjustLedger(c AdjustLedger) (any, error) {
	r := c.Request
	if t.Tenant(r.Tenant) == nil {
		return nil, api.NotFound("tenant", r.Tenant)
	}
	t.meta.LedgerSeq++
	row := &LedgerRow{Seq: t.meta.LedgerSeq, Tenant: r.Tenant, Kind: api.LedgerAdjustment, Name: "adjustment", StartedAt: t.now, EndedAt: t.now, EndReason: r.Reason, Amount: r.AmountMicros}
	t.ledger.put(row)
	if _, err := t.remember(Operation{Ref: strconv.FormatUint(row.Seq, 10)}); err != nil {
		return nil, err
	}
	t.log(t.env.Actor, "POST /fleet/ledger", r.Tenant, r.Tenant, "ok", "reason", r.Reason)
	return row, nil
}
