package central

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	leasePeriod  = time.Second
	scrubTimeout = 5 * time.Minute
)

func wireLease(view fsm.View, l *fsm.Lease) api.Lease {
	out := api.Lease{ID: l.ID, Tenant: l.Tenant, Nodes: l.Nodes, State: l.State, StartsAt: l.StartsAt, EndsAt: l.EndsAt, EarliestEnd: l.EarliestEnd,
		AutoRenew: l.AutoRenew, Reason: l.Reason, BlockedBy: view.Blockers(l), CreatedAt: l.CreatedAt, Version: l.Version}
	if l.StartsAt == 0 { // until it starts the column holds its length
		out.EarliestEnd = 0
	}
	if out.BlockedBy == nil {
		out.BlockedBy = []string{}
	}
	for _, s := range l.Scrubs {
		out.Scrubs = append(out.Scrubs, api.Scrub{Node: s.Node, State: s.State, StartedAt: s.StartedAt, Reason: s.Reason})
	}
	return out
}

// lease finds the lease that the path names, if the caller may know of it.
func (q *request) lease(view fsm.View) (*fsm.Lease, error) {
	id := q.name("id")
	if l := view.Lease(id); l != nil && q.caller.sees(l.Tenant) {
		return l, nil
	}
	return nil, api.NotFound("lease", id)
}

func (q *request) listLeases() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	tenant, node, state := q.URL.Query().Get("tenant"), q.URL.Query().Get("node"), q.URL.Query().Get("state")
	if err := oneOf("state", state, api.LeasePending, api.LeaseActive, api.LeaseEnding, api.LeaseScrubbing, api.LeaseScrubFailed, api.LeaseEnded); err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	return q.send(http.StatusOK, listPage(p, view.AllLeases(p.after), func(l *fsm.Lease) string { return l.ID }, func(l *fsm.Lease) bool {
		return q.caller.sees(l.Tenant) && (tenant == "" || l.Tenant == tenant) && (node == "" || slices.Contains(l.Nodes, node)) && (state == "" || string(l.State) == state)
	}, func(l *fsm.Lease) api.Lease { return wireLease(view, l) }))
}

func (q *request) getLease() error {
	view := q.r.state.View()
	l, err := q.lease(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.sendVersioned(http.StatusOK, l.Version, wireLease(view, l))
}

// createLease answers POST /fleet/leases: 201 with an active lease, 202 with one that waits, or no_capacity at once.
func (q *request) createLease() error {
	var body api.LeaseRequest
	if err := api.Decode(q.body, &body); err != nil {
		return err
	}
	var err error
	if body.Tenant, err = q.ownTenant(body.Tenant); err != nil {
		return err
	}
	if err := body.Check(); err != nil {
		return err
	}
	view := q.r.state.View()
	if body.Node != "" && view.Node(body.Node) == nil {
		return unknownNode()
	}
	command := fsm.CreateLease{ID: newID(), Tenant: body.Tenant, Count: max(body.Count, 1), EndsAt: body.EndsAt, AutoRenew: body.AutoRenew, Drain: body.Drain}
	if d, ok := api.ParseDuration(body.Duration); ok {
		command.DurationMS = d.Milliseconds()
	}
	command.Candidates, command.Reasons = leaseCandidates(view, &body)
	result, err := q.propose(fsm.KindCreateLease, q.op(body), command)
	if err != nil {
		return err
	}
	id := command.ID
	if op, ok := result.Value.(*fsm.Operation); ok {
		id = op.Ref
	}
	view = q.r.state.View()
	l := view.Lease(id)
	if l == nil {
		return api.Errorf(api.CodeInternal, "lease %s was created and is not there", id)
	}
	q.wakePools()
	status := http.StatusCreated
	if l.State == api.LeasePending {
		status = http.StatusAccepted
	}
	return q.sendVersioned(status, l.Version, wireLease(view, l))
}

// leaseCandidates are the hosts that could be leased: free ones first, then the least used.
func leaseCandidates(view fsm.View, body *api.LeaseRequest) (names []string, reasons map[string]int) {
	reasons = map[string]int{}
	type host struct {
		name string
		vms  int
		mac  bool
	}
	var fits []host
	for n := range view.Nodes("") {
		switch {
		case body.Node != "" && n.Name != body.Node:
			continue
		case !api.Matches(body.NodeSelector, n.Labels):
			reasons[api.WhyLabel]++
			continue
		}
		if why := view.LeaseFit(n, body.Tenant, body.Drain); why != "" {
			reasons[why]++
			continue
		}
		fits = append(fits, host{n.Name, view.Use(n.Name).VMs, n.Mac})
	}
	slices.SortStableFunc(fits, func(a, b host) int { return a.vms - b.vms })
	for _, h := range fits[:min(len(fits), 4*maxCandidates)] {
		names = append(names, h.name)
	}
	return names, reasons
}

func (q *request) patchLease() error {
	var body api.LeasePatch
	if err := q.decode(&body); err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	l, err := q.lease(q.r.state.View())
	if err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPatchLease, nil, fsm.PatchLease{ID: l.ID, Patch: body, IfMatch: version})
	if err != nil {
		return err
	}
	l = result.Value.(*fsm.Lease)
	return q.sendVersioned(http.StatusOK, l.Version, wireLease(q.r.state.View(), l))
}

// endLease answers DELETE: the wish is taken in, and the answer shows when and how far the end is.
func (q *request) endLease() error {
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	l, err := q.lease(q.r.state.View())
	if err != nil {
		return err
	}
	if !l.Live() {
		return q.noContent()
	}
	result, err := q.propose(fsm.KindEndLease, nil, fsm.EndLease{ID: l.ID, Tenant: q.caller.tenant, IfMatch: version})
	if err != nil {
		return err
	}
	if g := q.leading(); g != nil {
		poke(g.vmPoke)
		poke(g.leasePoke)
	}
	l = result.Value.(*fsm.Lease)
	return q.sendVersioned(http.StatusAccepted, l.Version, wireLease(q.r.state.View(), l))
}

// scrubNode repeats a failed scrub, or takes the operator's word that the host is clean.
func (q *request) scrubNode() error {
	var body struct {
		Override bool   `json:"override,omitempty"`
		Reason   string `json:"reason,omitempty"`
	}
	if len(q.body) > 0 {
		if err := q.decode(&body); err != nil {
			return err
		}
	}
	if body.Override && body.Reason == "" {
		return api.Invalid("reason", "reason is required with override: say how you know that the host is clean")
	}
	if _, err := q.propose(fsm.KindRetryScrub, q.op(body), fsm.RetryScrub{Node: q.name("name"), Override: body.Override, Reason: body.Reason}); err != nil {
		return err
	}
	if g := q.leading(); g != nil {
		poke(g.leasePoke)
	}
	return q.getNode()
}

// scrubs are the scrub orders that are on their way, so that none is sent twice at once.
type scrubs struct {
	mu      sync.Mutex
	active  map[string]bool
	running sync.WaitGroup
}

// leaseDue says whether a lease can be brought on, so that nothing is proposed in vain.
func leaseDue(view fsm.View, l *fsm.Lease, now api.Time) bool {
	switch l.State {
	case api.LeasePending:
		blockers := view.Blockers(l)
		return len(blockers) == 0 || l.CannotBegin(now) ||
			slices.ContainsFunc(blockers, func(id string) bool { vm := view.VM(id); return vm != nil && vm.Live() && vm.Ephemeral() })
	case api.LeaseActive:
		return now >= l.EndsAt
	case api.LeaseEnding:
		for _, node := range l.Nodes {
			for vm := range view.VMsOn(node) {
				return vm.Live() // one that was missed has to end; those that are ending are waited for
			}
		}
		return true
	case api.LeaseScrubbing, api.LeaseScrubFailed:
		return slices.ContainsFunc(l.Scrubs, func(s fsm.Scrub) bool { return s.State == api.ScrubRunning && now.Sub(s.StartedAt) > 30*time.Minute })
	}
	return false
}

// passLeases brings leases on and has their hosts scrubbed.
func (g *reign) passLeases(ctx context.Context) error {
	view, now := g.view(), g.now()
	var failed error
	for l := range view.LiveLeases() {
		if slices.ContainsFunc(l.Nodes, func(n string) bool { return g.adopting(view, n) }) {
			continue
		}
		if leaseDue(view, l, now) {
			if _, err := g.propose(ctx, fsm.KindAdvanceLease, "lease", nil, fsm.AdvanceLease{ID: l.ID}); err != nil {
				failed = errors.Join(failed, err)
			}
			poke(g.vmPoke)
		}
		for _, s := range l.Scrubs {
			if s.State == api.ScrubRunning {
				g.scrub(ctx, l, s)
			}
		}
	}
	return failed
}

// scrub orders one host cleaned, unless that is under way. What is not answered is asked again by the next pass; only
// a host's clear word counts.
func (g *reign) scrub(ctx context.Context, l *fsm.Lease, s fsm.Scrub) {
	what := fmt.Sprintf("%s/%s/%d", l.ID, s.Node, s.Order)
	g.scrubs.mu.Lock()
	defer g.scrubs.mu.Unlock()
	if g.scrubs.active[what] {
		return
	}
	if g.scrubs.active == nil {
		g.scrubs.active = map[string]bool{}
	}
	g.scrubs.active[what] = true
	g.scrubs.running.Go(func() {
		defer func() {
			g.scrubs.mu.Lock()
			defer g.scrubs.mu.Unlock()
			delete(g.scrubs.active, what)
		}()
		if report, ok := g.orderScrub(ctx, l, s); ok {
			if _, err := g.propose(ctx, fsm.KindReportScrub, "lease", nil, report); err != nil && ctx.Err() == nil {
				g.r.logger.Warn("could not record a scrub; it will be asked for again", "lease", l.ID, "node", s.Node, "error", err)
			}
			poke(g.poolPoke)
		}
	})
}

func (g *reign) orderScrub(ctx context.Context, l *fsm.Lease, s fsm.Scrub) (fsm.ReportScrub, bool) {
	report := fsm.ReportScrub{ID: l.ID, Node: s.Node, Order: s.Order}
	node, b := g.view().Node(s.Node), g.r.fleet.get(s.Node)
	if node == nil || b == nil {
		return report, false
	}
	ctx, cancel := context.WithTimeout(ctx, scrubTimeout)
	defer cancel()
	token := fmt.Sprintf("%d.%d.%d", g.view().Meta().Epoch, g.term, s.Order)
	var out api.ScrubAnswer
	err := g.r.calls.call(ctx, node.URL, b.credential, http.MethodPost, "/v1/scrub", token, api.ScrubRequest{LeaseID: l.ID, Tenant: l.Tenant}, &out)
	switch code := codeOf(err); {
	case err == nil && out.LeaseID == l.ID:
		return report, true
	case err == nil:
		report.Error = "the host spoke of another lease"
		return report, true
	case code == "" || code == api.CodeStaleToken || code == api.CodeUnauthenticated || code == api.CodeConflict || code.Temporary():
		pause(ctx, time.Second) // not answered, or VMs are still going: the next pass asks again
		return report, false
	}
	report.Error = errorDetail(err)
	return report, true
}
