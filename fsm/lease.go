package fsm

import (
	"iter"
	"slices"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// scrubLimitMS is how long a scrub may take; then it has failed, and the host stays with its lease.
const scrubLimitMS = 30 * 60 * 1000

// shortestLeaseMS is how long a lease lasts at least where policy says nothing.
const shortestLeaseMS = 1000

// actorLease is who acts when a lease's time has come.
const actorLease = "lease"

// Lease finds a lease by id.
func (v View) Lease(id string) *Lease { return v.leases.find(byID, text(id)) }

// Leases are in the order of their ids, from the given one on, the ended ones with them.
func (v View) AllLeases(start string) iter.Seq[*Lease] {
	return v.leases.from(byID, start)
}

// LiveLeases are those that still hold hosts.
func (v View) LiveLeases() iter.Seq[*Lease] { return v.leases.each(leaseLive, text("live")) }

// Blockers are the VMs that a lease waits for: of others while it is pending, all that are left while it ends. One whose
// end was asked for still runs until its node has confirmed that it is gone.
func (v View) Blockers(l *Lease) (ids []string) {
	if l.State != api.LeasePending && l.State != api.LeaseEnding {
		return nil
	}
	for _, node := range l.Nodes {
		for vm := range v.VMsOn(node) {
			if l.State == api.LeaseEnding || ofOthers(vm, l.Tenant) {
				ids = append(ids, vm.ID)
			}
		}
	}
	return ids
}

// ofOthers says whether a VM keeps a host from being the tenant's alone. Idle spares of shared pools never do.
func ofOthers(vm *VM, tenant string) bool {
	return vm.Tenant != tenant && !(vm.Warm && vm.Tenant == "")
}

// LeaseFit says why a host cannot be leased to the tenant now; empty when it can.
func (v View) LeaseFit(n *Node, tenant string, drain bool) string {
	switch {
	case n.Lease != "":
		l := v.Lease(n.Lease)
		if l != nil && (l.State == api.LeaseScrubbing || l.State == api.LeaseScrubFailed) {
			return api.WhyScrub
		}
		return api.WhyLeased
	case n.State != api.NodeHealthy:
		return api.WhyUnhealthy
	case n.Cordoned || n.Draining:
		return api.WhyCordoned
	case drain:
		return ""
	}
	for vm := range v.VMsOn(n.Name) {
		if ofOthers(vm, tenant) {
			return api.WhyMemory // it is in use by others, if only until its node has confirmed their end
		}
	}
	return ""
}

// createLease gives the first free candidates to a tenant, at once or, with drain, when others' VMs are off them.
// Its value is the *Lease.
func (t *tx) createLease(c CreateLease) (any, error) {
	if t.Tenant(c.Tenant) == nil {
		return nil, api.Invalid("tenant", "there is no tenant of that name; fluxctl fleet tenants lists them")
	}
	if t.Lease(c.ID) != nil {
		return nil, api.Errorf(api.CodeConflict, "there is a lease with the id %s already", c.ID)
	}
	if err := t.mayHold(c.Tenant, api.Holding{Leases: 1}); err != nil {
		return nil, err
	}
	l := &Lease{ID: c.ID, Tenant: c.Tenant, State: api.LeaseActive, AutoRenew: c.AutoRenew, LengthMS: c.DurationMS, Until: c.DurationMS == 0, CreatedAt: t.now}
	minimum, err := t.chooseHosts(l, c)
	if err != nil {
		return nil, err
	}
	field := "duration"
	if l.Until {
		field, l.LengthMS = "ends_at", int64(c.EndsAt-t.now)
	}
	switch {
	case minimum > 0 && l.LengthMS < minimum:
		return nil, api.Invalid(field, "a lease of these hosts lasts at least %d h; give a longer duration or a later ends_at", minimum/hourMS)
	case l.LengthMS < shortestLeaseMS:
		return nil, api.Invalid(field, "a lease lasts at least a second; give a longer duration or a later ends_at")
	case l.LengthMS > api.MaxLease.Milliseconds():
		return nil, api.Invalid(field, "a lease lasts at most %d days; give a shorter duration or an earlier ends_at, and auto_renew if it is to go on", api.MaxLeaseDays)
	}
	l.EarliestEnd = api.Time(minimum) // from its start; see start
	l.EndsAt = t.now + api.Time(l.LengthMS)
	if _, err := t.remember(Operation{Ref: l.ID}); err != nil {
		return nil, err
	}
	for _, name := range l.Nodes {
		row := *t.Node(name)
		row.Lease = l.ID
		t.putNode(&row)
		t.endSpares(name)
	}
	t.leases.put(l) // so that it can be asked for blockers
	l.State = api.LeasePending
	if !c.Drain || len(t.Blockers(l)) == 0 {
		t.start(l)
	} else {
		l.Reason = "waits until the VMs of others are off its hosts"
		t.putLease(l)
	}
	t.log(t.env.Actor, "POST /fleet/leases", l.ID, l.Tenant, "ok", "state", string(l.State))
	return l, nil
}

// chooseHosts takes the first candidates that are free and says how long the lease lasts at least, in ms.
func (t *tx) chooseHosts(l *Lease, c CreateLease) (minimum int64, err error) {
	for _, name := range c.Candidates {
		n := t.Node(name)
		if n == nil || slices.Contains(l.Nodes, name) || t.LeaseFit(n, c.Tenant, c.Drain) != "" {
			continue
		}
		if n.Mac {
			minimum = t.PolicyOf(c.Tenant).MinLeaseHours * hourMS
		}
		if l.Nodes = append(l.Nodes, name); len(l.Nodes) == max(c.Count, 1) {
			return minimum, nil
		}
	}
	e := noCapacity(c.Reasons)
	e.Detail = "no healthy, uncordoned nodes are free to be leased; ask for fewer, or with drain to wait until others' VMs are off"
	return 0, e
}

// endSpares asks for the end of shared pools' idle VMs on a host that is leased now.
func (t *tx) endSpares(node string) {
	var spares []*VM
	for vm := range t.VMsOn(node) {
		if vm.Warm && vm.Tenant == "" && vm.Live() {
			spares = append(spares, vm)
		}
	}
	for _, vm := range spares {
		t.endVM(vm, "its node was leased")
	}
}

// putLease stores a lease with a new version and an event.
func (t *tx) putLease(l *Lease) {
	action := ActionChanged
	if l.CreatedAt == t.now && l.Version == 0 {
		action = ActionCreated
	}
	l.Version = t.index
	t.leases.put(l)
	t.event(EventLease, action, l.Tenant, l)
}

// CannotBegin says that a pending lease whose end was named has no room left for its minimum term before that.
func (l *Lease) CannotBegin(now api.Time) bool {
	return l.State == api.LeasePending && l.Until && l.EndsAt-now < max(l.EarliestEnd, shortestLeaseMS)
}

// start makes a lease active from now on: its term, its minimum and its bill begin. An end that was named stays.
func (t *tx) start(l *Lease) {
	if l.Until {
		l.LengthMS = int64(l.EndsAt - t.now)
	}
	l.State, l.Reason = api.LeaseActive, ""
	l.StartsAt, l.EndsAt, l.EarliestEnd = t.now, t.now+api.Time(l.LengthMS), t.now+l.EarliestEnd
	t.putLease(l)
	for _, name := range l.Nodes {
		t.open(&LedgerRow{Tenant: l.Tenant, Kind: api.LedgerLease, LeaseID: l.ID, Name: name, Node: name, Rate: t.leaseRate(t.Node(name))})
		t.chargeAsLeased(l.Tenant, name)
	}
	t.tryAgainAll(l.Tenant)
}

// patchLease extends a lease or turns its renewal on or off. Its value is the *Lease.
func (t *tx) patchLease(c PatchLease) (any, error) {
	have := t.Lease(c.ID)
	if have == nil {
		return nil, api.NotFound("lease", c.ID)
	}
	if err := checkVersion("lease", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	if have.State != api.LeaseActive {
		return nil, api.Errorf(api.CodeConflict, "lease %s is %s; only an active one can be changed", have.ID, have.State)
	}
	row := *have
	if p := c.Patch.EndsAt; p.Set {
		if p.V < max(have.EarliestEnd, t.now) {
			return nil, api.Invalid("ends_at", "ends_at must not be before %s, the end of its minimum term, or now", max(have.EarliestEnd, t.now))
		}
		if p.V > t.now.Add(api.MaxLease) {
			return nil, api.Invalid("ends_at", "ends_at must be within %d days from now; give an earlier one, and auto_renew if the lease is to go on", api.MaxLeaseDays)
		}
		row.EndsAt, row.EndAsked, row.Reason = p.V, false, ""
	}
	if p := c.Patch.AutoRenew; p.Set {
		if row.AutoRenew = p.V; p.V { // it goes on, so it no longer ends as was asked
			row.EndAsked, row.Reason = false, ""
		}
	}
	t.putLease(&row)
	t.log(t.env.Actor, "PATCH /fleet/leases/{id}", row.ID, row.Tenant, "ok")
	return &row, nil
}

// endLease takes in the wish to end a lease: now if its minimum term is over, else then. Its value is the *Lease.
func (t *tx) endLease(c EndLease) (any, error) {
	have := t.Lease(c.ID)
	if have == nil || c.Tenant != "" && have.Tenant != c.Tenant {
		return nil, api.NotFound("lease", c.ID)
	}
	if err := checkVersion("lease", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := *have
	switch have.State {
	case api.LeasePending:
		t.drop(&row, "ended before it began")
	case api.LeaseActive:
		end := max(t.now, row.EarliestEnd)
		if !row.AutoRenew { // one that was to end already ended then, however late that is noticed
			end = min(end, row.EndsAt)
		}
		row.EndAsked, row.AutoRenew, row.EndsAt = true, false, end
		if row.EndsAt > t.now {
			row.Reason = "ends when its minimum term is over"
			t.putLease(&row)
		} else {
			t.beginEnd(&row)
		}
	default:
		return have, nil
	}
	t.log(t.env.Actor, "DELETE /fleet/leases/{id}", row.ID, row.Tenant, "ok", "ends_at", row.EndsAt.String())
	return &row, nil
}

// drop ends a lease that never began: nothing of its tenant ran under it.
func (t *tx) drop(l *Lease, reason string) {
	for _, name := range l.Nodes {
		t.freeHost(l, name)
	}
	l.State, l.Reason = api.LeaseEnded, reason
	l.EndsAt, l.EarliestEnd = t.now, 0
	t.putLease(l)
}

// beginEnd stops the bill, at the time the lease was to end however late that is noticed, and asks for the end of everything on the hosts.
func (t *tx) beginEnd(l *Lease) {
	l.State, l.Reason = api.LeaseEnding, "waits until its VMs are deleted"
	t.putLease(l)
	for _, name := range l.Nodes {
		if open := t.ledger.find(ledgerOpen, text("lease", l.ID, name)); open != nil {
			t.closeStretch(open, min(l.EndsAt, t.now), "ended")
		}
		t.endAllOn(name)
	}
}

func (t *tx) endAllOn(node string) {
	var rows []*VM
	for vm := range t.VMsOn(node) {
		if vm.Live() {
			rows = append(rows, vm)
		}
	}
	for _, vm := range rows {
		t.endVM(vm, "the lease of its node has ended")
	}
}

// freeHost lets go of a host, if it is this lease's.
func (t *tx) freeHost(l *Lease, name string) {
	if n := t.Node(name); n != nil && n.Lease == l.ID {
		row := *n
		row.Lease = ""
		t.putNode(&row)
	}
}

// advanceLease brings a lease one state on if the rows and the time allow. It is asked again and again, and harmless
// when there is nothing to do. Its value is the *Lease.
func (t *tx) advanceLease(c AdvanceLease) (any, error) {
	have := t.Lease(c.ID)
	if have == nil {
		return nil, api.NotFound("lease", c.ID)
	}
	row := *have
	switch row.State {
	case api.LeasePending:
		if row.CannotBegin(t.now) {
			t.drop(&row, "others' VMs were on its hosts for so long that its minimum term no longer fits before its ends_at; lease again with a later one")
			t.log(actorLease, "start", row.ID, row.Tenant, "failed", "reason", row.Reason)
			break
		}
		t.drainFor(&row)
		if len(t.Blockers(&row)) == 0 {
			t.start(&row)
			t.log(actorLease, "start", row.ID, row.Tenant, "ok")
		}
	case api.LeaseActive:
		switch {
		case t.now < row.EndsAt:
		case row.AutoRenew && !row.EndAsked:
			row.EndsAt = t.now + api.Time(row.LengthMS)
			t.putLease(&row)
			t.log(actorLease, "renew", row.ID, row.Tenant, "ok")
		default:
			t.beginEnd(&row)
			t.log(actorLease, "end", row.ID, row.Tenant, "ok")
		}
	case api.LeaseEnding:
		t.beginScrubs(&row)
	case api.LeaseScrubbing, api.LeaseScrubFailed:
		t.overdueScrubs(&row)
	}
	return t.Lease(c.ID), nil
}

// drainFor ends what a drain may end: others' VMs with a deadline. The rest is waited for.
func (t *tx) drainFor(l *Lease) {
	var rows []*VM
	for _, name := range l.Nodes {
		for vm := range t.VMsOn(name) {
			if vm.Live() && vm.Ephemeral() && ofOthers(vm, l.Tenant) {
				rows = append(rows, vm)
			}
		}
	}
	for _, vm := range rows {
		t.endVM(vm, "its node is drained for a lease")
	}
}

// beginScrubs orders the hosts cleaned once no VM is left on any of them.
func (t *tx) beginScrubs(l *Lease) {
	for _, name := range l.Nodes {
		if t.Use(name).VMs > 0 {
			t.endAllOn(name)
			return
		}
	}
	l.State, l.Reason, l.Scrubs = api.LeaseScrubbing, "", nil
	for _, name := range l.Nodes {
		l.Scrubs = append(l.Scrubs, Scrub{Node: name, State: api.ScrubRunning, Order: t.index, StartedAt: t.now})
	}
	t.putLease(l)
	t.log(actorLease, "scrub", l.ID, l.Tenant, "ok")
}

// overdueScrubs fails scrubs that take too long. Time alone never frees a host.
func (t *tx) overdueScrubs(l *Lease) {
	for i := range l.Scrubs {
		if s := l.Scrubs[i]; s.State == api.ScrubRunning && t.now-s.StartedAt > scrubLimitMS {
			t.settleScrub(l, i, "not confirmed within 30 minutes")
			return
		}
	}
}

// reportScrub takes a host's word, if it is about the scrub that was ordered of this very lease. Value: the *Lease.
func (t *tx) reportScrub(c ReportScrub) (any, error) {
	have := t.Lease(c.ID)
	if have == nil {
		return nil, api.NotFound("lease", c.ID)
	}
	row := *have
	for i, s := range row.Scrubs {
		if s.Node == c.Node && s.Order == c.Order && s.State == api.ScrubRunning {
			t.settleScrub(&row, i, c.Error)
			break
		}
	}
	return t.Lease(c.ID), nil
}

// settleScrub ends the i-th scrub: done frees its host, failed keeps it. A lease ends with its last scrub.
func (t *tx) settleScrub(l *Lease, i int, failure string) {
	l.Scrubs = slices.Clone(l.Scrubs)
	s := &l.Scrubs[i]
	if failure != "" {
		s.State, s.Reason = api.ScrubFailed, failure
		l.sumUp()
		t.putLease(l)
		t.log(actorLease, "scrub", l.ID, l.Tenant, "failed", "node", s.Node, "error", failure)
		return
	}
	s.State, s.Reason = api.ScrubDone, ""
	t.freeHost(l, s.Node)
	l.sumUp()
	t.putLease(l)
	if l.State == api.LeaseEnded {
		t.log(actorLease, "ended", l.ID, l.Tenant, "ok")
	}
}

// sumUp makes the lease's state that of its scrubs: failed while any is, else running while any is, else ended.
func (l *Lease) sumUp() {
	l.State, l.Reason = api.LeaseEnded, ""
	for _, s := range l.Scrubs {
		switch {
		case s.State == api.ScrubFailed:
			l.State, l.Reason = api.LeaseScrubFailed, "the scrub of node "+s.Node+" failed: "+s.Reason+"; retry it with fluxctl fleet scrub "+s.Node
			return
		case s.State == api.ScrubRunning:
			l.State = api.LeaseScrubbing
		}
	}
}

// retryScrub orders a failed scrub again, or takes the operator's word that the host is clean. Value: the *Lease.
func (t *tx) retryScrub(c RetryScrub) (any, error) {
	n := t.Node(c.Node)
	if n == nil {
		return nil, api.NotFound("node", c.Node)
	}
	l := t.Lease(n.Lease)
	at := -1
	if l != nil {
		at = slices.IndexFunc(l.Scrubs, func(s Scrub) bool { return s.Node == c.Node && s.State == api.ScrubFailed })
	}
	if at < 0 {
		return nil, api.Errorf(api.CodeConflict, "node %s has no failed scrub to repeat", c.Node)
	}
	if _, err := t.remember(Operation{Ref: c.Node}); err != nil {
		return nil, err
	}
	row := *l
	if c.Override {
		t.settleScrub(&row, at, "")
	} else {
		row.Scrubs = slices.Clone(l.Scrubs)
		row.Scrubs[at] = Scrub{Node: c.Node, State: api.ScrubRunning, Order: t.index, StartedAt: t.now}
		row.sumUp()
		t.putLease(&row)
	}
	t.log(t.env.Actor, "POST /fleet/nodes/{name}/scrub", c.Node, l.Tenant, "ok", "lease", l.ID, "override", boolText(c.Override), "reason", c.Reason)
	return t.Lease(l.ID), nil
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return ""
}
