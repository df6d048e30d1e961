package fsm

import (
	"slices"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// leaseFleet has the free hosts n1 and n2, the Mac m1, image img, and the tenants acme and beta.
func leaseFleet(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t)
	f.node("n1")
	f.node("n2")
	f.mac("m1")
	f.image("img")
	f.tenant("acme", "beta")
	return f
}

func (f *fleet) lease(id string) *Lease {
	f.t.Helper()
	l := f.view().Lease(id)
	if l == nil {
		f.t.Fatalf("there is no lease %s", id)
	}
	return l
}

// advance brings a lease on and holds it to the state.
func (f *fleet) advance(id string, want api.LeaseState) *Lease {
	f.t.Helper()
	l := f.do(KindAdvanceLease, AdvanceLease{ID: id}).Value.(*Lease)
	if l.State != want {
		f.t.Fatalf("got %+v, want %s", l, want)
	}
	return l
}

// scrubbing leases the hosts to acme and ends the lease up to its scrubs.
func scrubbing(t *testing.T, hosts ...string) *fleet {
	t.Helper()
	f := leaseFleet(t)
	f.node("m2")
	f.leased("l", "acme", hosts...)
	f.do(KindEndLease, EndLease{ID: "l"})
	f.advance("l", api.LeaseScrubbing)
	return f
}

func (f *fleet) scrubbed(id, node string, order uint64, failure string) *Lease {
	f.t.Helper()
	return f.do(KindReportScrub, ReportScrub{ID: id, Node: node, Order: order, Error: failure}).Value.(*Lease)
}

func TestLeaseTakesTheFirstFreeCandidatesAtOnceOrNone(t *testing.T) {
	f := leaseFleet(t)
	f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: new(true)})
	c := CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"absent", "n1", "n2", "n2", "m1"}, Count: 3, DurationMS: 48 * hourMS, Reasons: map[string]int{api.WhyLabel: 2}}
	r := f.send(KindCreateLease, nil, c)
	if r.Err == nil || r.Err.Code != api.CodeNoCapacity || r.Err.Reasons[api.WhyLabel] != 2 || !strings.HasPrefix(r.Err.Detail, "no healthy, uncordoned nodes") {
		t.Errorf("got %+v, want no_capacity: one host cannot count twice", r)
	}
	c.Count = 2
	l := f.do(KindCreateLease, c).Value.(*Lease)
	now := f.view().Meta().Now
	if !slices.Equal(l.Nodes, []string{"n2", "m1"}) || l.State != api.LeaseActive || l.StartsAt != now || l.EndsAt != now+48*hourMS || l.EarliestEnd != now+24*hourMS {
		t.Errorf("got %+v", l)
	}
	for _, name := range l.Nodes {
		if n := f.view().Node(name); n.Lease != "l" || f.view().LeaseFit(n, "beta", true) != api.WhyLeased {
			t.Errorf("got %+v, want it held", n)
		}
	}
	f.refused(api.CodeConflict, "", KindCreateLease, c)
	c.ID, c.Candidates, c.Count = "l2", []string{"n2"}, 0
	f.refused(api.CodeNoCapacity, "", KindCreateLease, c)
	f.refused(api.CodeConflict, "", KindDeleteNode, DeleteNode{Name: "n2"})
	f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: new(false)})
	f.health("n1", api.NodeSuspect)
	if got := f.view().LeaseFit(f.view().Node("n1"), "beta", false); got != api.WhyUnhealthy {
		t.Errorf("got %q for a suspect host", got)
	}
}

func TestLeaseIsForAWholeHostThatOthersDoNotUse(t *testing.T) {
	f := leaseFleet(t)
	f.launched("mine", "", Launch{Tenant: "acme", Name: "a", Image: "img"}, "n1")
	f.leased("l", "acme", "n1") // its own VM is no hindrance
	f.launched("other", "", Launch{Tenant: "beta", Name: "b", Image: "img"}, "n2")
	c := CreateLease{ID: "l2", Tenant: "acme", Candidates: []string{"n2"}, DurationMS: hourMS}
	f.refused(api.CodeNoCapacity, "", KindCreateLease, c)
	c.Tenant = "beta"
	f.do(KindCreateLease, c)
	// The operator's VMs are others', too.
	f.launched("o", "", Launch{Name: "o", Image: "img"}, "m1")
	c.ID, c.Candidates, c.DurationMS = "l3", []string{"m1"}, 24*hourMS
	f.refused(api.CodeNoCapacity, "", KindCreateLease, c)
}

func TestLeasedHostTakesItsTenantOnly(t *testing.T) {
	f := leaseFleet(t)
	f.leased("l", "acme", "n1")
	for tenant, want := range map[string]bool{"acme": true, "beta": false, "": false} {
		r := f.launch("x"+tenant, "", Launch{Tenant: tenant, Name: "x", Image: "img"}, "n1")
		if (r.Err == nil) != want || r.Err != nil && r.Err.Code != api.CodeNoCapacity {
			t.Errorf("%q: got %+v", tenant, r)
		}
		if why := f.view().Fit(f.view().Node("n1"), Need{Tenant: tenant}); (why == api.WhyLeased) == want {
			t.Errorf("%q: got %q", tenant, why)
		}
	}
	if why := f.view().Fit(f.view().Node("n2"), Need{Tenant: "acme", Leased: true}); why != api.WhyLeased {
		t.Errorf("got %q for a need of a leased host elsewhere", why)
	}
}

func TestLeaseLastsAtLeastADayOnMacsAsPolicySays(t *testing.T) {
	f := leaseFleet(t)
	lease := func(id string, c CreateLease) Result {
		c.ID, c.Tenant = id, "acme"
		return f.send(KindCreateLease, nil, c)
	}
	for what, c := range map[string]CreateLease{
		"too short for a Mac":         {Candidates: []string{"m1"}, DurationMS: 24*hourMS - 1},
		"too short for a Mac among 2": {Candidates: []string{"n1", "m1"}, Count: 2, DurationMS: hourMS},
		"until too soon":              {Candidates: []string{"m1"}, EndsAt: f.now + 23*hourMS},
		"until the past":              {Candidates: []string{"n1"}, EndsAt: f.now - 1},
		"until far too late":          {Candidates: []string{"n1"}, EndsAt: f.now + 1098*24*hourMS + 60_000},
		"far too long":                {Candidates: []string{"n1"}, DurationMS: 1098*24*hourMS + 1},
		"less than a second":          {Candidates: []string{"n1"}, DurationMS: 999},
	} {
		field := "duration"
		if strings.HasPrefix(what, "until") {
			field = "ends_at"
		}
		if r := lease("l", c); r.Err == nil || r.Err.Code != api.CodeInvalid || r.Err.Field != field {
			t.Errorf("%s: got %+v", what, r)
		}
	}
	if l := f.done(lease("short", CreateLease{Candidates: []string{"n1"}, DurationMS: 1000})).Value.(*Lease); l.EarliestEnd != l.StartsAt {
		t.Errorf("got %+v, want no minimum off Macs", l)
	}
	until := f.now + 30*hourMS
	l := f.done(lease("mac", CreateLease{Candidates: []string{"m1"}, EndsAt: until})).Value.(*Lease)
	if l.EndsAt != until || l.EarliestEnd != l.StartsAt+24*hourMS {
		t.Errorf("got %+v, want it to end at %s", l, until)
	}
	f.policy(api.PolicyPatch{MinLeaseHours: api.Some(int64(0))})
	if f.lease("mac").EarliestEnd != l.EarliestEnd {
		t.Error("a policy changed the minimum of a lease that had begun")
	}
	f.mac("m2")
	f.done(lease("mac2", CreateLease{Candidates: []string{"m2"}, DurationMS: 1000}))
}

func TestEarlyEndOfAMacIsAnIntentUntilItsMinimumIsOver(t *testing.T) {
	f := leaseFleet(t)
	start := f.leased("l", "acme", "m1").StartsAt
	f.refused(api.CodeNotFound, "", KindEndLease, EndLease{ID: "l", Tenant: "beta"})
	f.refused(api.CodeNotFound, "", KindEndLease, EndLease{ID: "absent"})
	f.refused(api.CodeConflict, "", KindEndLease, EndLease{ID: "l", IfMatch: 1})
	f.pass(hourMS)
	l := f.do(KindEndLease, EndLease{ID: "l", Tenant: "acme"}).Value.(*Lease)
	if l.State != api.LeaseActive || !l.EndAsked || l.EndsAt != start+24*hourMS || l.Reason == "" {
		t.Errorf("got %+v, want it to go on to its minimum", l)
	}
	f.do(KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{AutoRenew: api.Some(false)}}) // does not take the end back
	f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "m1")                   // it is still its tenant's
	f.pass(start + 24*hourMS - f.now - 30)
	before := f.view()
	f.advance("l", api.LeaseActive)
	if changed := difference(t, before, f.view()); changed != "" {
		t.Errorf("ten milliseconds early it changed %s", changed)
	}
	f.advance("l", api.LeaseEnding)
	if rows := f.stretches("", "l"); len(rows) != 1 || rows[0].EndedAt != start+24*hourMS {
		t.Errorf("got %+v, want it billed to the minimum", rows)
	}
}

func TestEndThatWasAskedIsTakenBackByALaterEnd(t *testing.T) {
	f := leaseFleet(t)
	f.leased("l", "acme", "m1")
	f.do(KindEndLease, EndLease{ID: "l"})
	later := f.now + 40*hourMS
	l := f.do(KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Some(later), AutoRenew: api.Some(true)}, IfMatch: f.lease("l").Version}).Value.(*Lease)
	if l.EndAsked || l.EndsAt != later || l.Reason != "" || !l.AutoRenew {
		t.Errorf("got %+v", l)
	}
	f.refused(api.CodeInvalid, "ends_at", KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Some(l.EarliestEnd - 1)}})
	f.refused(api.CodeInvalid, "ends_at", KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Null[api.Time]()}})
	f.refused(api.CodeConflict, "", KindPatchLease, PatchLease{ID: "l", IfMatch: 1})
	f.refused(api.CodeNotFound, "", KindPatchLease, PatchLease{ID: "absent"})
	f.do(KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Some(l.EarliestEnd)}})
	f.pass(24 * hourMS)
	f.refused(api.CodeInvalid, "ends_at", KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Some(f.now - 1)}})
	f.do(KindEndLease, EndLease{ID: "l"})
	f.refused(api.CodeConflict, "", KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{AutoRenew: api.Some(true)}})
}

func TestEndAskedForAfterTheTermIsNotBilledBeyondIt(t *testing.T) {
	f := leaseFleet(t)
	ends := f.leased("l", "acme", "n1").EndsAt
	f.pass(ends - f.now + hourMS) // nobody has noticed yet
	if l := f.do(KindEndLease, EndLease{ID: "l"}).Value.(*Lease); l.State != api.LeaseEnding || l.EndsAt != ends {
		t.Errorf("got %+v, want it ended at %s", l, ends)
	}
	if rows := f.stretches("", "l"); len(rows) != 1 || rows[0].EndedAt != ends {
		t.Errorf("got %+v, want it billed for its term", rows)
	}
}

func TestEndThatWasAskedIsTakenBackByARenewal(t *testing.T) {
	f := leaseFleet(t)
	f.leased("l", "acme", "m1")
	f.do(KindEndLease, EndLease{ID: "l"})
	l := f.do(KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{AutoRenew: api.Some(true)}}).Value.(*Lease)
	if l.EndAsked || l.Reason != "" || !l.AutoRenew {
		t.Errorf("got %+v, want no trace of the end", l)
	}
	f.pass(l.EndsAt - f.now)
	if got := f.advance("l", api.LeaseActive); got.EndsAt <= l.EndsAt {
		t.Errorf("got %+v, want it renewed", got)
	}
}

func TestLeaseRenewsItselfUntilItsEndIsAsked(t *testing.T) {
	f := leaseFleet(t)
	l := f.do(KindCreateLease, CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS, AutoRenew: true}).Value.(*Lease)
	for range 3 {
		f.pass(l.EndsAt - f.now)
		l = f.advance("l", api.LeaseActive)
		if l.EndsAt != f.view().Meta().Now+hourMS {
			t.Errorf("got %+v, want an hour more", l)
		}
	}
	if rows := f.stretches("", "l"); len(rows) != 1 || rows[0].EndedAt != 0 || f.activities(actorLease, "renew", "ok") != 3 {
		t.Errorf("got %+v, want one stretch over all renewals", rows)
	}
	f.do(KindEndLease, EndLease{ID: "l"})
	f.advance("l", api.LeaseScrubbing)
}

func TestLeaseEndsByItselfAndItsHostIsFreeOnlyWhenItsScrubIsConfirmed(t *testing.T) {
	f := leaseFleet(t)
	f.leased("l", "acme", "n1")
	f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "n1")
	f.report("x", api.StateRunning)
	nobody := func(why string) {
		t.Helper()
		n := f.view().Node("n1")
		for _, tenant := range []string{"acme", "beta", ""} {
			if got := f.view().Fit(n, Need{Tenant: tenant}); got != why {
				t.Errorf("%q: got %q, want %q", tenant, got, why)
			}
		}
		if got := f.view().LeaseFit(n, "beta", true); got != why {
			t.Errorf("a lease: got %q, want %q", got, why)
		}
	}
	f.pass(48 * hourMS)
	if l := f.advance("l", api.LeaseEnding); !slices.Equal(f.view().Blockers(l), []string{"x"}) {
		t.Errorf("it waits for %v, want the VM that is left", f.view().Blockers(l))
	}
	nobody(api.WhyLeased)
	if v := f.vm("x"); v.Live() || !v.NeedsOrder() {
		t.Errorf("got %+v, want its end ordered", v)
	}
	f.advance("l", api.LeaseEnding) // the node has not confirmed
	f.report("x", api.StateGone)
	l := f.advance("l", api.LeaseScrubbing)
	if f.view().Blockers(l) != nil {
		t.Errorf("a scrub waits for %v", f.view().Blockers(l))
	}
	nobody(api.WhyScrub)
	if s := l.Scrubs[0]; s.Node != "n1" || s.Order != f.index || s.State != api.ScrubRunning || s.StartedAt != f.view().Meta().Now {
		t.Errorf("got %+v", s)
	}
	if got := f.do(KindEndLease, EndLease{ID: "l"}).Value.(*Lease); got != l {
		t.Errorf("another end made %+v", got)
	}
	if l := f.scrubbed("l", "n1", l.Scrubs[0].Order, ""); l.State != api.LeaseEnded || l.Live() || f.view().Node("n1").Lease != "" {
		t.Errorf("got %+v, want the host free", l)
	}
	f.leased("l2", "beta", "n1")
	if f.activities(actorLease, "end", "ok") != 1 || f.activities(actorLease, "scrub", "ok") != 1 || f.activities(actorLease, "ended", "ok") != 1 {
		t.Error("the end is not in the activity log")
	}
	f.refused(api.CodeNotFound, "", KindAdvanceLease, AdvanceLease{ID: "absent"})
	f.refused(api.CodeNotFound, "", KindReportScrub, ReportScrub{ID: "absent"})
	f.advance("l", api.LeaseEnded)
}

func TestOnlyTheScrubThatWasOrderedOfThatVeryLeaseCounts(t *testing.T) {
	f := scrubbing(t, "n1")
	f.leased("other", "beta", "n2")
	f.do(KindEndLease, EndLease{ID: "other"})
	order, others := f.lease("l").Scrubs[0].Order, f.advance("other", api.LeaseScrubbing).Scrubs[0].Order
	before := f.view()
	for what, c := range map[string]ReportScrub{
		"another lease":  {ID: "other", Node: "n1", Order: order},
		"another node":   {ID: "l", Node: "n2", Order: others},
		"the wrong host": {ID: "l", Node: "n2", Order: order},
		"another order":  {ID: "l", Node: "n1", Order: order - 1},
		"no order":       {ID: "l", Node: "n1"},
	} {
		f.do(KindReportScrub, c)
		if changed := difference(t, before, f.view()); changed != "" {
			t.Errorf("a report of %s changed %s", what, changed)
		}
	}
	f.scrubbed("l", "n1", order, "")
	before = f.view()
	f.scrubbed("l", "n1", order, "a late failure")
	if changed := difference(t, before, f.view()); changed != "" {
		t.Errorf("a repeat changed %s", changed)
	}
}

func TestFailedScrubKeepsTheHostUntilItIsRepeatedOrOverridden(t *testing.T) {
	for _, override := range []bool{false, true} {
		f := scrubbing(t, "n1")
		order := f.lease("l").Scrubs[0].Order
		f.refused(api.CodeConflict, "", KindRetryScrub, RetryScrub{Node: "n1", Override: override}) // it runs still
		f.refused(api.CodeConflict, "", KindRetryScrub, RetryScrub{Node: "n2"})
		f.refused(api.CodeNotFound, "", KindRetryScrub, RetryScrub{Node: "absent"})
		l := f.scrubbed("l", "n1", order, "a disk is busy")
		if l.State != api.LeaseScrubFailed || !strings.Contains(l.Reason, "a disk is busy") || f.view().Node("n1").Lease != "l" {
			t.Errorf("got %+v", l)
		}
		if got := f.view().LeaseFit(f.view().Node("n1"), "beta", true); got != api.WhyScrub {
			t.Errorf("got %q", got)
		}
		f.scrubbed("l", "n1", order, "") // too late: an operator has to look at it
		f.advance("l", api.LeaseScrubFailed)
		l = f.do(KindRetryScrub, RetryScrub{Node: "n1", Override: override, Reason: "looked at it"}).Value.(*Lease)
		if override {
			if l.State != api.LeaseEnded || f.view().Node("n1").Lease != "" {
				t.Errorf("got %+v, want the operator's word taken", l)
			}
			continue
		}
		if s := l.Scrubs[0]; l.State != api.LeaseScrubbing || l.Reason != "" || s.Order != f.index || s.State != api.ScrubRunning || s.Reason != "" {
			t.Errorf("got %+v, want the scrub ordered anew", l)
		}
		if l := f.scrubbed("l", "n1", order, ""); l.State != api.LeaseScrubbing {
			t.Errorf("got %+v, want the first order's answer ignored", l)
		}
		if l := f.scrubbed("l", "n1", l.Scrubs[0].Order, ""); l.State != api.LeaseEnded {
			t.Errorf("got %+v", l)
		}
	}
}

func TestOverdueScrubFailsAndTimeAloneFreesNoHost(t *testing.T) {
	f := scrubbing(t, "n1")
	f.pass(f.lease("l").Scrubs[0].StartedAt + scrubLimitMS - f.now - 20)
	f.advance("l", api.LeaseScrubbing)
	f.pass(20)
	if l := f.advance("l", api.LeaseScrubFailed); !strings.Contains(l.Reason, "30 minutes") {
		t.Errorf("got %+v", l)
	}
	f.pass(1000 * hourMS)
	f.advance("l", api.LeaseScrubFailed)
	if f.view().Node("n1").Lease != "l" {
		t.Error("the host is free")
	}
}

func TestLeaseOfManyHostsEndsWithItsLastScrubAndIsFailedWhileAnyIs(t *testing.T) {
	f := scrubbing(t, "n1", "n2", "m2")
	order := f.lease("l").Scrubs[0].Order
	if l := f.scrubbed("l", "n1", order, ""); l.State != api.LeaseScrubbing || f.view().Node("n1").Lease != "" {
		t.Errorf("got %+v, want the first host free before the others are", l)
	}
	f.leased("next", "beta", "n1")
	f.scrubbed("l", "n2", order, "busy")
	f.scrubbed("l", "m2", order, "lost")
	if l := f.do(KindRetryScrub, RetryScrub{Node: "n2"}).Value.(*Lease); l.State != api.LeaseScrubFailed || !strings.Contains(l.Reason, "m2") {
		t.Errorf("got %+v, want it failed for the other host still", l)
	}
	if l := f.scrubbed("l", "n2", f.index, ""); l.State != api.LeaseScrubFailed || f.view().Node("n2").Lease != "" {
		t.Errorf("got %+v", l)
	}
	if l := f.do(KindRetryScrub, RetryScrub{Node: "m2", Override: true}).Value.(*Lease); l.State != api.LeaseEnded || f.view().Node("n1").Lease != "next" {
		t.Errorf("got %+v, want it ended and the next lease untouched", l)
	}
}

func TestSharedSparesEndWhenTheirHostIsLeasedAndNeverBlockIt(t *testing.T) {
	f := leaseFleet(t)
	f.pool("p", "", "img", 2)
	f.ready("p", "n1", "s")
	f.fill("p", "n1", "boots")
	f.leased("l", "acme", "n1")
	for _, id := range []string{"s", "boots"} {
		if v := f.vm(id); v.Live() || !v.NeedsOrder() {
			t.Errorf("got %+v, want its end ordered", v)
		}
	}
	if p := f.view().Pool("p"); p.Failures != 0 || f.view().Count(p).Total() != 0 {
		t.Errorf("got %+v, want no failure and room for others", p)
	}
	if op := f.launched("x", "", Launch{Name: "x", Pool: "p"}, "n2"); op.Warm {
		t.Errorf("got %+v, want no spare of a leased host", op)
	}
}

func TestSparesOfATenantsPoolEndWithTheLease(t *testing.T) {
	f := tenantFleet(t)
	f.launched("x", "", Launch{Tenant: "acme", Name: "taken", Pool: "ci"})
	f.do(KindEndLease, EndLease{ID: "l"})
	for _, id := range []string{"a", "b"} {
		if f.vm(id).Live() {
			t.Errorf("VM %s outlives the lease of its host", id)
		}
	}
	if v := f.vm("a"); v.HandOver || v.Launch != nil {
		t.Errorf("got %+v, want the hand-over dropped with the VM", v)
	}
	r := f.launch("y", "", Launch{Tenant: "acme", Name: "y", Pool: "ci"}, "own", "n1")
	if r.Err != nil || r.Value.(*Operation).Node != "n1" {
		t.Errorf("got %+v, want a cold boot elsewhere", r)
	}
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "z", Candidates: []string{"own", "n1"}})
	if f.view().VM("z") != nil {
		t.Error("a launch that its lease ended went on")
	}
}

func TestLeaseAndClaimOnOneHostHaveOneWinner(t *testing.T) {
	race := func() *fleet {
		f := leaseFleet(t)
		f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
		f.pool("p", "", "img", 1)
		f.ready("p", "n1", "s")
		return f
	}
	claim := LaunchVM{ID: "x", Launch: Launch{Tenant: "beta", Name: "build", Pool: "p"}, Candidates: []string{"n2"}}
	lease := CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS}

	f := race()
	f.do(KindLaunchVM, claim)
	f.refused(api.CodeNoCapacity, "", KindCreateLease, lease)
	if v := f.vm("s"); v.Tenant != "beta" || f.view().Node("n1").Lease != "" {
		t.Errorf("got %+v, want it beta's on a host that is nobody's", v)
	}
	f = race()
	f.do(KindCreateLease, lease)
	if op := f.do(KindLaunchVM, claim).Value.(*Operation); op.Warm || op.Node != "n2" || f.vm("s").Tenant != "" {
		t.Errorf("got %+v, want a cold boot elsewhere", op)
	}
	// A claim of acme itself goes with its lease.
	f = race()
	claim.Launch.Tenant = "acme"
	f.do(KindLaunchVM, claim)
	f.do(KindCreateLease, lease)
	if v := f.vm("s"); !v.Live() || !v.HandOver {
		t.Errorf("got %+v, want the claim of the same tenant to stand", v)
	}
	// The end of a lease races a claim of its tenant's spare.
	f = tenantFleet(t)
	f.do(KindEndLease, EndLease{ID: "l"})
	if op := f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "n1"); op.Warm {
		t.Errorf("got %+v, want no spare of an ended lease", op)
	}
}

func TestDrainedLeaseWaitsUntilOthersAreOffItsHost(t *testing.T) {
	f := leaseFleet(t)
	f.launched("keeps", "", Launch{Tenant: "beta", Name: "keeps", Image: "img"}, "m1")
	f.launched("ends", "", Launch{Tenant: "beta", Name: "ends", Image: "img", TTLSeconds: 9_999}, "m1")
	f.launched("mine", "", Launch{Tenant: "acme", Name: "mine", Image: "img"}, "m1")
	c := CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"m1"}, DurationMS: 30 * hourMS, Drain: true}
	l := f.do(KindCreateLease, c).Value.(*Lease)
	if l.State != api.LeasePending || l.StartsAt != 0 || l.Reason == "" || !slices.Equal(f.view().Blockers(l), []string{"ends", "keeps"}) {
		t.Fatalf("got %+v, blocked by %v", l, f.view().Blockers(l))
	}
	if len(f.stretches("", "l")) != 0 {
		t.Error("a lease that waits is billed")
	}
	for _, tenant := range []string{"acme", "beta", ""} { // nobody new, its own tenant neither
		if r := f.launch("new", "", Launch{Tenant: tenant, Name: "new", Image: "img"}, "m1"); r.Err == nil {
			t.Errorf("%q: got %+v on a host that is waited for", tenant, r)
		}
	}
	f.refused(api.CodeConflict, "", KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{AutoRenew: api.Some(true)}})
	f.advance("l", api.LeasePending)
	if f.vm("ends").Live() || !f.vm("keeps").Live() || !f.vm("mine").Live() {
		t.Error("a drain ends others' VMs that have a deadline, and no more")
	}
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"keeps"}})
	f.advance("l", api.LeasePending) // both run until their host has confirmed
	f.report("ends", api.StateGone)
	f.pass(hourMS)
	f.advance("l", api.LeasePending)
	f.report("keeps", api.StateGone)
	l = f.advance("l", api.LeaseActive)
	if now := f.view().Meta().Now; l.StartsAt != now || l.EndsAt != now+30*hourMS || l.EarliestEnd != now+24*hourMS || l.Reason != "" || !f.vm("mine").Live() {
		t.Errorf("got %+v, want its term counted from now", l)
	}
	if f.view().Blockers(l) != nil {
		t.Error("an active lease waits for something")
	}
}

func TestLeaseThatNeverBeganEndsWithoutAScrubOrABill(t *testing.T) {
	f := leaseFleet(t)
	f.launched("x", "", Launch{Name: "x", Image: "img"}, "m1")
	f.do(KindCreateLease, CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"m1"}, DurationMS: 30 * hourMS, Drain: true})
	l := f.do(KindEndLease, EndLease{ID: "l", Tenant: "acme"}).Value.(*Lease)
	if l.State != api.LeaseEnded || l.StartsAt != 0 || l.EarliestEnd != 0 || len(l.Scrubs) != 0 || f.view().Node("m1").Lease != "" || len(f.stretches("", "l")) != 0 {
		t.Errorf("got %+v", l)
	}
	if !f.vm("x").Live() {
		t.Error("it ended another's VM")
	}
}

func TestLeaseWithDrainIsActiveAtOnceWhenNobodyIsThere(t *testing.T) {
	f := leaseFleet(t)
	f.pool("p", "", "img", 1)
	f.ready("p", "n1", "s")
	l := f.do(KindCreateLease, CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS, Drain: true}).Value.(*Lease)
	if l.State != api.LeaseActive {
		t.Errorf("got %+v, want idle shared spares not waited for", l)
	}
}

func TestLeasesAreAnsweredOnceUnderTheirKeys(t *testing.T) {
	f := leaseFleet(t)
	c := CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS}
	op := &Op{Key: "k", Digest: "d"}
	f.done(f.send(KindCreateLease, op, c))
	c.ID = "again"
	if r := f.send(KindCreateLease, op, c); !r.Replayed || r.Value.(*Operation).Ref != "l" || f.view().Lease("again") != nil {
		t.Errorf("got %+v, want the first lease", r)
	}
	f.do(KindEndLease, EndLease{ID: "l"})
	f.advance("l", api.LeaseScrubbing)
	f.scrubbed("l", "n1", f.lease("l").Scrubs[0].Order, "busy")
	again := &Op{Key: "k2", Digest: "d"}
	f.done(f.send(KindRetryScrub, again, RetryScrub{Node: "n1"}))
	if r := f.send(KindRetryScrub, again, RetryScrub{Node: "n1"}); !r.Replayed {
		t.Errorf("got %+v, want a replay", r)
	}
}

func TestLeaseOutlivesTheRestoreOfASnapshot(t *testing.T) {
	f := scrubbing(t, "n1", "n2")
	order := f.lease("l").Scrubs[0].Order
	f.state = restored(t, f.snapshot())
	if l := f.scrubbed("l", "n1", order, ""); l.State != api.LeaseScrubbing || f.view().Node("n1").Lease != "" || f.view().Node("n2").Lease != "l" {
		t.Errorf("got %+v", l)
	}
}

func TestALeaseUntilANamedTimeEndsThenHoweverLongItWaited(t *testing.T) {
	waiting := func() *fleet {
		f := leaseFleet(t)
		f.launched("x", "", Launch{Tenant: "beta", Name: "x", Image: "img"}, "m1")
		f.do(KindCreateLease, CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"m1"}, EndsAt: f.now + 30*hourMS, Drain: true})
		return f
	}
	f := waiting()
	until := f.lease("l").EndsAt
	f.pass(5 * hourMS)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"x"}})
	f.gone("x", 0)
	l := f.advance("l", api.LeaseActive)
	if l.EndsAt != until || l.EarliestEnd != l.StartsAt+24*hourMS || l.LengthMS != int64(until-l.StartsAt) {
		t.Errorf("got %+v, want it to end at %s", l, until)
	}
	f = waiting()
	f.pass(6*hourMS - 30)
	f.advance("l", api.LeasePending)
	f.pass(30)
	l = f.advance("l", api.LeaseEnded)
	if l.Reason == "" || f.view().Node("m1").Lease != "" || f.activities(actorLease, "start", "failed") != 1 || f.view().Holding("acme").Leases != 0 {
		t.Errorf("got %+v, want it given up, with the reason, once its minimum term no longer fits", l)
	}
	if rows := f.stretches("", "l"); rows != nil {
		t.Errorf("got %+v, want no bill for a lease that never began", rows)
	}
	if !f.vm("x").Live() {
		t.Error("a lease that was given up ended another's VM")
	}
}

func TestALeaseIsNotActiveWhileAnothersVMIsStillThere(t *testing.T) {
	f := leaseFleet(t)
	f.launched("x", "", Launch{Tenant: "beta", Name: "x", Image: "img"}, "n1")
	f.report("x", api.StateRunning)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"x"}})
	c := CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS}
	f.refused(api.CodeNoCapacity, "", KindCreateLease, c) // its node has not confirmed the end
	drained := c
	drained.ID, drained.Drain = "d", true
	if l := f.do(KindCreateLease, drained).Value.(*Lease); l.State != api.LeasePending {
		t.Errorf("got %+v, want it to wait", l)
	}
	f.do(KindEndLease, EndLease{ID: "d"})
	f.gone("x", 0)
	if l := f.do(KindCreateLease, c).Value.(*Lease); l.State != api.LeaseActive {
		t.Errorf("got %+v, want it active", l)
	}
}

func TestTheEndOfALeaseHasABound(t *testing.T) {
	f := leaseFleet(t)
	f.leased("l", "acme", "n1")
	far := f.now + 1098*24*hourMS
	f.refused(api.CodeInvalid, "ends_at", KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Some(far + 60_000)}})
	f.do(KindPatchLease, PatchLease{ID: "l", Patch: api.LeasePatch{EndsAt: api.Some(far)}})
}
