package fsm

import (
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What can happen to the model's leases. The model knows by itself which host is whose, and which scrub was ordered.

// ordered is a scrub that a host was told to do.
type ordered struct {
	lease  string
	order  uint64
	at     api.Time
	failed bool
}

// longestLease is three years in ms.
const longestLease = 3 * 366 * 24 * hourMS

// foreign says that a VM is another's than the tenant's, and no idle spare of a shared pool.
func foreign(vm *VM, tenant string) bool { return vm.Tenant != tenant && (!vm.Warm || vm.Tenant != "") }

// leasable says whether a host is nobody's and, unless it is drained first, used by nobody else.
func (m *model) leasable(v View, node, tenant string, drain bool) bool {
	n := v.Node(node)
	if n == nil || m.held[node] != "" || n.State != api.NodeHealthy || n.Cordoned || n.Draining {
		return false
	}
	for vm := range v.VMs("") {
		if vm.Node == node && !drain && foreign(vm, tenant) {
			return false
		}
	}
	return true
}

func (m *model) createLease(*rapid.T) {
	m.lease(m.pick([]string{"acme", "acme", "beta", "gamma"}, "tenant"), m.candidates(), rapid.IntRange(0, 2).Draw(m.r, "count"), m.chance(2, "drain"))
}

func (m *model) lease(tenant string, candidates []string, count int, drain bool) {
	length := rapid.SampledFrom([]int64{60_000, hourMS, 25 * hourMS, 48 * hourMS, 24 * hourMS, 500, -5, longestLease, longestLease + 1}).Draw(m.r, "length")
	c := CreateLease{ID: m.next("lease"), Tenant: tenant, Candidates: candidates, Count: count, AutoRenew: m.chance(4, "auto-renew"), Drain: drain, Reasons: map[string]int{api.WhyLabel: 1}}
	if m.chance(3, "until") {
		c.EndsAt = m.f.view().Meta().Now + api.Time(length)
	} else {
		c.DurationMS = length
	}
	if before, r, op, applied := m.keyed(KindCreateLease, "", c, c); applied {
		m.leased(before, r, op, c)
	}
}

// leased holds the outcome of a lease to a second reading of the rules.
func (m *model) leased(before View, r Result, op *Op, c CreateLease) {
	var hosts []string
	shortest := int64(1000)
	for _, name := range c.Candidates {
		if len(hosts) < max(c.Count, 1) && m.leasable(before, name, c.Tenant, c.Drain) && !slices.Contains(hosts, name) {
			hosts = append(hosts, name)
			if before.Node(name).Mac {
				shortest = max(shortest, policyFor(before, c.Tenant).MinLeaseHours*hourMS)
			}
		}
	}
	now := m.f.view().Meta().Now
	length := c.DurationMS
	if length == 0 {
		length = int64(c.EndsAt - now)
	}
	want := api.Code("")
	switch {
	case before.Tenant(c.Tenant) == nil:
		want = api.CodeInvalid
	case before.Lease(c.ID) != nil:
		want = api.CodeConflict
	case !mayHaveMore(before, c.Tenant, api.Holding{Leases: 1}):
		want = api.CodeQuotaExceeded
	case len(hosts) < max(c.Count, 1):
		want = api.CodeNoCapacity
	case length < shortest || length > longestLease:
		want = api.CodeInvalid
	}
	if r.Err != nil {
		if r.Err.Code != want {
			m.r.Fatalf("lease %+v: %+v, want %q", c, r.Err, want)
		}
		m.saw("lease " + string(want))
		return
	}
	l := r.Value.(*Lease)
	if want != "" || !slices.Equal(l.Nodes, hosts) {
		m.r.Fatalf("lease %+v got %+v, want %s, or hosts %v", c, l, want, hosts)
	}
	m.kept(r, KindCreateLease, op, c, c.ID)
	waits := false
	for vm := range before.VMs("") {
		waits = waits || c.Drain && slices.Contains(hosts, vm.Node) && foreign(vm, c.Tenant)
	}
	state := map[bool]api.LeaseState{true: api.LeasePending, false: api.LeaseActive}[waits]
	if l.State != state || !waits && (l.StartsAt != now || l.EarliestEnd-now != api.Time(shortest) && shortest > 1000 || shortest == 1000 && l.EarliestEnd != now) {
		m.r.Fatalf("lease %+v is %+v, want %s", c, l, state)
	}
	m.saw("lease " + string(state))
	for _, name := range hosts {
		m.held[name] = l.ID
	}
	for vm := range m.f.view().VMs("") {
		if slices.Contains(hosts, vm.Node) && vm.Warm && vm.Tenant == "" && vm.Live() {
			m.r.Fatalf("lease %+v left the shared spare %+v on its host", l, vm)
		}
	}
}

func (m *model) anyLease(which func(*Lease) bool) *Lease {
	found := map[string]*Lease{}
	for l := range m.f.view().AllLeases("") {
		if which(l) {
			found[l.ID] = l
		}
	}
	if len(found) == 0 {
		m.skip()
	}
	return found[m.pick(slices.Sorted(maps.Keys(found)), "lease")]
}

func (m *model) patchLease(*rapid.T) {
	l := m.anyLease((*Lease).Live)
	c := PatchLease{ID: l.ID}
	now := max(m.f.view().Meta().Now, m.f.now+10)
	if m.chance(2, "ends_at") {
		c.Patch.EndsAt = api.Some(rapid.SampledFrom([]api.Time{l.EarliestEnd, l.EarliestEnd - 1, now, now - 1, now + hourMS, l.EndsAt + hourMS, now + longestLease, now + longestLease + 1}).Draw(m.r, "ends at"))
	}
	if m.chance(3, "auto_renew") {
		c.Patch.AutoRenew = api.Some(m.chance(2, "on"))
	}
	if m.chance(5, "a version of the past") {
		c.IfMatch = 1
	}
	_, r := m.send(KindPatchLease, c)
	tooEarly := c.Patch.EndsAt.Set && c.Patch.EndsAt.V < max(l.EarliestEnd, now)
	tooLate := c.Patch.EndsAt.Set && c.Patch.EndsAt.V > now+longestLease
	if want := c.IfMatch == 0 && l.State == api.LeaseActive && !tooEarly && !tooLate; want != (r.Err == nil) {
		m.r.Fatalf("got %+v for patch %+v of %+v", r, c, l)
	}
	if is := m.f.view().Lease(l.ID); r.Err == nil && (is.EarliestEnd != l.EarliestEnd || c.Patch.EndsAt.Set && (is.EndsAt != c.Patch.EndsAt.V || is.EndAsked)) {
		m.r.Fatalf("patch %+v made %+v of %+v", c, is, l)
	}
}

func (m *model) endLease(*rapid.T) {
	l := m.anyLease(func(*Lease) bool { return true })
	c := EndLease{ID: l.ID, Tenant: m.pick([]string{"", l.Tenant, "acme", "beta"}, "by")}
	_, r := m.send(KindEndLease, c)
	now, is := m.f.view().Meta().Now, m.f.view().Lease(l.ID)
	switch {
	case c.Tenant != "" && c.Tenant != l.Tenant:
		if r.Err == nil || r.Err.Code != api.CodeNotFound {
			m.r.Fatalf("got %+v for the end of a lease of %s by %s", r, l.Tenant, c.Tenant)
		}
	case l.State == api.LeasePending:
		m.saw("ended before it began")
		if is.State != api.LeaseEnded {
			m.r.Fatalf("lease %+v is %+v", l, is)
		}
		for _, name := range l.Nodes {
			delete(m.held, name)
		}
	case l.State == api.LeaseActive && now < l.EarliestEnd:
		m.saw("end as intent")
		if is.State != api.LeaseActive || is.EndsAt != l.EarliestEnd || !is.EndAsked || is.AutoRenew || is.Reason == "" {
			m.r.Fatalf("the end of %+v before its time made %+v", l, is)
		}
	case l.State == api.LeaseActive:
		ends := now
		if !l.AutoRenew {
			ends = min(now, l.EndsAt)
		}
		if is.State != api.LeaseEnding || is.EndsAt != ends {
			m.r.Fatalf("the end of %+v at %s made %+v", l, now, is)
		}
	case is != l:
		m.r.Fatalf("the end of %+v made %+v", l, is)
	}
}

// advance has a host confirm ends before some leases are brought on, for else few would get far.
func (m *model) advance(*rapid.T) {
	l := m.anyLease(func(l *Lease) bool { return l.State != api.LeaseEnded })
	if l.State != api.LeaseActive && m.chance(2, "hosts confirm") {
		m.confirmEnds(l.Nodes)
	}
	before, _ := m.send(KindAdvanceLease, AdvanceLease{ID: l.ID})
	v := m.f.view()
	now, is := v.Meta().Now, v.Lease(l.ID)
	rows, foreigners := 0, 0
	for vm := range before.VMs("") {
		if slices.Contains(l.Nodes, vm.Node) {
			rows++
			if foreign(vm, l.Tenant) {
				foreigners++
			}
		}
	}
	overdue := slices.ContainsFunc(l.Nodes, func(n string) bool {
		s := m.scrubs[n]
		return s != nil && s.lease == l.ID && !s.failed && now-s.at > scrubLimitMS
	})
	want := l.State
	switch {
	case l.State == api.LeasePending && l.Until && l.EndsAt-now < max(l.EarliestEnd, 1000):
		want = api.LeaseEnded
		m.saw("too late to begin")
		for _, name := range l.Nodes {
			delete(m.held, name)
		}
	case l.State == api.LeasePending && foreigners == 0:
		want = api.LeaseActive
		m.saw("started late")
	case l.State == api.LeaseActive && now >= l.EndsAt && (!l.AutoRenew || l.EndAsked):
		want = api.LeaseEnding
	case l.State == api.LeaseActive && now >= l.EndsAt:
		m.saw("renewed")
		if is.EndsAt != now+api.Time(l.LengthMS) {
			m.r.Fatalf("lease %+v was renewed as %+v", l, is)
		}
	case l.State == api.LeaseEnding && rows == 0:
		want = api.LeaseScrubbing
		for _, name := range l.Nodes {
			m.scrubs[name] = &ordered{lease: l.ID, order: m.f.index, at: now}
		}
	case overdue:
		m.saw("scrub overdue")
		want = api.LeaseScrubFailed
		for i, s := range is.Scrubs { // one at a time
			if s.State == api.ScrubFailed && l.Scrubs[i].State == api.ScrubRunning {
				m.scrubs[s.Node].failed = true
			}
		}
	default:
		if is != l {
			m.r.Fatalf("nothing was due of %+v, and it became %+v", l, is)
		}
	}
	if is.State != want {
		m.r.Fatalf("lease %+v became %+v, want %s", l, is, want)
	}
	m.saw("lease " + string(want))
}

// confirmEnds has hosts say that what was asked to end is gone.
func (m *model) confirmEnds(nodes []string) {
	var c ReportVMs
	for vm := range m.f.view().VMs("") {
		if slices.Contains(nodes, vm.Node) && !vm.Live() {
			c.Reports = append(c.Reports, VMReport{ID: vm.ID, Node: vm.Node, State: api.StateGone})
		}
	}
	m.send(KindReportVMs, c)
}

// reportScrub says how a scrub went, most times of the one that was ordered.
func (m *model) reportScrub(*rapid.T) {
	l := m.anyLease(func(l *Lease) bool { return len(l.Scrubs) > 0 })
	s := l.Scrubs[rapid.IntRange(0, len(l.Scrubs)-1).Draw(m.r, "scrub")]
	c := ReportScrub{ID: l.ID, Node: s.Node, Order: s.Order}
	switch rapid.IntRange(0, 9).Draw(m.r, "report") {
	case 4:
		c.Node = m.pick(modelNodes, "node")
	case 5:
		c.Order += uint64(rapid.SampledFrom([]int{1, -1, 1000}).Draw(m.r, "order"))
	case 6:
		c.ID = m.anyLease(func(*Lease) bool { return true }).ID
	case 7, 8, 9:
		c.Error = "a disk is busy"
	}
	before, r := m.send(KindReportScrub, c)
	if r.Err != nil {
		m.r.Fatalf("got %+v for %+v", r, c)
	}
	switch o := m.scrubs[c.Node]; {
	case o == nil || o.lease != c.ID || o.order != c.Order || o.failed:
		m.saw("scrub report ignored")
		if changed := difference(m.r, before, m.f.view()); changed != "" {
			m.r.Fatalf("report %+v is not of the scrub %+v, and changed %s", c, o, changed)
		}
	case c.Error != "":
		m.saw("scrub failed")
		o.failed = true
	default:
		m.saw("scrubbed")
		m.free(c.Node)
	}
}

// free notes that a host is clean: nobody's from now on.
func (m *model) free(node string) {
	delete(m.held, node)
	delete(m.scrubs, node)
}

func (m *model) retryScrub(*rapid.T) {
	c := RetryScrub{Node: m.pick(append(modelNodes, "n3"), "node"), Override: m.chance(3, "override"), Reason: "looked at it"}
	for _, name := range slices.Sorted(maps.Keys(m.scrubs)) {
		if m.scrubs[name].failed && m.chance(2, "a failed one") {
			c.Node = name
		}
	}
	if before, r, op, applied := m.keyed(KindRetryScrub, "", c, c); applied {
		m.retried(before, r, op, c)
	}
}

func (m *model) retried(before View, r Result, op *Op, c RetryScrub) {
	o := m.scrubs[c.Node]
	if want := o != nil && o.failed; want != (r.Err == nil) {
		m.r.Fatalf("got %+v for %+v of scrub %+v", r, c, o)
	}
	if r.Err != nil {
		return
	}
	m.kept(r, KindRetryScrub, op, c, c.Node)
	if c.Override {
		m.saw("scrub overridden")
		m.free(c.Node)
		return
	}
	m.saw("scrub retried")
	o.order, o.at, o.failed = m.f.index, m.f.view().Meta().Now, false
}

// checkHosts holds hosts to whom the model gave them: nobody gets one before the scrub of the lease before is confirmed.
func (m *model) checkHosts() {
	for n := range m.f.view().Nodes("") {
		if n.Lease != m.held[n.Name] {
			m.r.Fatalf("node %s is held by lease %q, want %q", n.Name, n.Lease, m.held[n.Name])
		}
	}
	for name := range m.held {
		if m.f.view().Node(name) == nil {
			m.r.Fatalf("node %s went, and lease %s holds it", name, m.held[name])
		}
	}
}

// next states of a lease; every other pair is impossible.
var leaseSteps = map[api.LeaseState][]api.LeaseState{
	"":                   {api.LeasePending, api.LeaseActive},
	api.LeasePending:     {api.LeasePending, api.LeaseActive, api.LeaseEnded},
	api.LeaseActive:      {api.LeaseActive, api.LeaseEnding},
	api.LeaseEnding:      {api.LeaseScrubbing},
	api.LeaseScrubbing:   {api.LeaseScrubbing, api.LeaseScrubFailed, api.LeaseEnded},
	api.LeaseScrubFailed: {api.LeaseScrubbing, api.LeaseScrubFailed, api.LeaseEnded},
}

// auditLeases holds each lease that changed to the steps it may take, and each leased host to serving its tenant only.
func (m *model) auditLeases(before, after View) {
	now := after.Meta().Now
	stretches := map[string]int{}
	for row := range after.Ledger(0) {
		if row.LeaseID != "" {
			stretches[row.LeaseID+"/"+row.Node]++
		}
	}
	for l := range after.AllLeases("") {
		for _, name := range l.Nodes {
			if n := stretches[l.ID+"/"+name]; n > 1 || (n == 1) != (l.StartsAt != 0) {
				m.r.Fatalf("lease %+v has %d stretches for host %s", l, n, name)
			}
		}
		was := before.Lease(l.ID)
		if was == l {
			continue
		}
		var from api.LeaseState
		if was != nil {
			from = was.State
		}
		switch {
		case !slices.Contains(leaseSteps[from], l.State):
			m.r.Fatalf("lease %+v became %+v", was, l)
		case from == api.LeaseActive && l.State == api.LeaseEnding && (now < was.EarliestEnd || now < l.EndsAt):
			m.r.Fatalf("lease %+v ended early, at %s: %+v", was, now, l)
		case l.State == api.LeaseActive && from == api.LeasePending && l.Until && l.EndsAt != was.EndsAt:
			m.r.Fatalf("lease %+v was to end at a named time, and began as %+v", was, l)
		case l.State == api.LeaseActive && from != l.State && (l.StartsAt != now || l.EndsAt != now+api.Time(l.LengthMS)):
			m.r.Fatalf("lease %+v began at %s", l, now)
		}
		states := map[string]int{}
		for _, s := range l.Scrubs {
			states[s.State]++
		}
		if failed := l.State == api.LeaseScrubFailed; failed != (states[api.ScrubFailed] > 0) || len(l.Scrubs) > 0 && (l.State == api.LeaseEnded) != (states[api.ScrubDone] == len(l.Scrubs)) {
			m.r.Fatalf("lease %+v is not what its scrubs say", l)
		}
	}
	for vm := range after.VMs("") {
		was, n := before.VM(vm.ID), after.Node(vm.Node)
		if !vm.Live() || n == nil || n.Lease == "" {
			continue
		}
		l := after.Lease(n.Lease)
		isNew := was == nil || was.Node != vm.Node || was.Tenant != vm.Tenant
		if l.State == api.LeaseActive && vm.Tenant != l.Tenant || l.State == api.LeasePending && isNew || l.State != api.LeaseActive && l.State != api.LeasePending {
			m.r.Fatalf("VM %+v lives on %s, which is held by %+v", vm, vm.Node, l)
		}
	}
}
