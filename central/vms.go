package central

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	rankings      = 3                // how often a launch is ranked anew when the hosts filled up meanwhile
	settleTimeout = 12 * time.Second // how long a launch's answer waits for the node; its order is repeated after that all the same
	readyTimeout  = 15 * time.Minute // the same with wait=ready
)

// vm finds the VM that the path names: by id, or by name among the caller's.
func (q *request) vm(view fsm.View) (*fsm.VM, error) {
	name := q.name("id")
	if v := view.VM(name); v != nil && q.caller.sees(v.Tenant) {
		return v, nil
	}
	if v := view.VMNamed(q.caller.tenant, name); v != nil {
		return v, nil
	}
	return nil, api.NotFound("VM", name)
}

func (q *request) getVM() error {
	view := q.r.state.View()
	v, err := q.vm(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.sendVersioned(http.StatusOK, v.Version, wireVM(v))
}

// launchOf is a request as the log carries it.
func launchOf(body *api.LaunchRequest, tenant, id string) fsm.Launch {
	l := fsm.Launch{Tenant: tenant, Name: body.Name, Image: body.Image, Pool: body.Pool, VCPUs: body.VCPUs, MemoryMiB: body.MemoryMiB, DiskGiB: body.DiskSizeGiB,
		TTLSeconds: body.TTLSeconds, Node: body.Node, Selector: body.Selector(), Labels: body.Labels, Backend: body.Backend,
		Resched: body.Reschedulable, ColdField: body.ColdField(), Claim: claimOf(body.Claim)}
	if body.Apple != nil {
		l.GuestOS = body.Apple.GuestOS
	}
	if l.Name == "" {
		l.Name = "vm-" + id[len(id)-12:]
	}
	boot := fsm.Boot{CloudInit: body.CloudInit, Network: body.Network, Networks: body.Networks, Apple: body.Apple, ExtraDisks: body.ExtraDisks,
		SecurityProfile: body.SecurityProfile, Balloon: body.Balloon}
	if l.ColdField != "" || body.Network != nil {
		l.Boot = &boot
	}
	return l
}

// launchVM answers POST /fleet/vms: one log entry, one order to a node, then the answer.
func (q *request) launchVM() error {
	var body api.LaunchRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	tenant, err := q.ownTenant(body.Tenant)
	if err != nil {
		return err
	}
	dry, err := q.flag("dry_run")
	if err != nil {
		return err
	}
	wait := q.URL.Query().Get("wait")
	if wait != "" && wait != "ready" {
		return api.Invalid("wait", "wait must be ready, or left out")
	}
	id := newID()
	l := launchOf(&body, tenant, id)
	if dry {
		return q.dryRun(&l)
	}
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	known := body
	known.Claim = body.Claim.WithoutSecrets() // a hash of secrets would let them be guessed
	op, secret := q.op(known), len(body.Claim.SecretNames()) > 0
	commit := func() (func() error, error) {
		giveBack, err := g.turns.take(q.Context(), launchKey{op.Scope, op.Key})
		if err != nil {
			return nil, err
		}
		defer giveBack()
		done, replayed, err := q.commitWithSecrets(g, op, id, l, body.Claim)
		if err != nil {
			return nil, err
		}
		// Secrets would be lost with the leader, so the answer says that the guest has them.
		return func() error { return q.answerLaunch(g, op, done, replayed, wait == "ready", secret) }, nil
	}
	if body.WaitForCapacitySecs > 0 {
		return g.whenRoom(q.Context(), op, &l, time.Duration(body.WaitForCapacitySecs)*time.Second, commit)
	}
	return launchNow(commit)
}

// commitWithSecrets is commitLaunch with the launch's secrets at hand for whoever gives the order.
func (q *request) commitWithSecrets(g *reign, op *fsm.Op, id string, l fsm.Launch, claim *api.Claim) (*fsm.Operation, bool, error) {
	if claim == nil {
		return q.commitLaunch(g, op, id, l)
	}
	known := g.view().Operation(op.Scope, op.Key) != nil
	kept, err := g.secrets.keep(op, claim.Secrets, known, q.r.wall())
	if err != nil {
		return nil, false, err
	}
	done, replayed, err := q.commitLaunch(g, op, id, l)
	switch row := q.r.state.View().VM(refOf(done)); {
	case !kept:
	case err != nil && codeOf(err) != "" && codeOf(err) != api.CodeOutcomeUnknown, replayed && (row == nil || row.Claim == nil):
		g.secrets.drop(op.Scope, op.Key) // nobody waits for them
	}
	return done, replayed, err
}

func refOf(op *fsm.Operation) string {
	if op == nil {
		return ""
	}
	return op.Ref
}

// spareCandidates is how many hosts are named for a spare, and for a launch that finds one, should others be faster: what a
// command names is read by every replica.
const spareCandidates = 4

// commitLaunch ranks and proposes, again if the hosts filled up in between. A first try for a spare is none of the rankings.
func (q *request) commitLaunch(g *reign, op *fsm.Op, id string, l fsm.Launch) (*fsm.Operation, bool, error) {
	for try := 0; ; try++ {
		view := q.r.state.View()
		body, why := g.rankLaunch(view, id, l)
		if why != nil {
			body = fsm.LaunchVM{ID: id, Launch: l, Keep: true} // the state says no, or knows the key
		} else if plan, err := view.Plan(&l, nil, body.NoHandOut); try == 0 && err == nil && plan.Claim != nil {
			body.Candidates = body.Candidates[:min(len(body.Candidates), spareCandidates)]
		} else {
			try = max(try, 1)
		}
		result, err := q.propose(fsm.KindLaunchVM, op, body)
		switch full := codeOf(err) == api.CodeNoCapacity; {
		case full && why != nil:
			return nil, false, why
		case full && len(body.Candidates) > 0 && try < rankings && q.Context().Err() == nil:
			continue
		case err != nil:
			return nil, false, err
		}
		return result.Value.(*fsm.Operation), result.Replayed, nil
	}
}

// rankLaunch adds to a launch what only the leader knows: hosts that could take it, and hosts that are not heard.
func (g *reign) rankLaunch(view fsm.View, id string, l fsm.Launch) (fsm.LaunchVM, error) {
	plan, err := view.Resolve(&l)
	if err != nil {
		return fsm.LaunchVM{}, err
	}
	if l.Node != "" && view.Node(l.Node) == nil {
		return fsm.LaunchVM{}, unknownNode()
	}
	n := needFor(view, &l, plan)
	out := fsm.LaunchVM{ID: id, Launch: l, Keep: true}
	out.Candidates, out.Reasons = g.r.hosts.rank(view, n, nil)
	out.NoHandOut = g.noHandOut(view, view.HandOuts(&plan, &l))
	return out, nil
}

// noHandOut are the hosts with ready spares of the pools that are not heard, or do not answer. The state rules out all but
// healthy ones. Hosts without spares are left out: a whole fleet may be silent, and a command has its limit.
func (g *reign) noHandOut(view fsm.View, pools []*fsm.Pool) (names []string) {
	wall, skipped := g.r.wall(), g.r.calls.lanes.skipped()
	for _, p := range pools {
		for s := range view.Spares(p.Name) {
			if s.WarmState() != "ready" {
				break
			}
			heard := g.r.fleet.handsOut(s.Node, wall)
			if heard && skipped == nil || slices.Contains(names, s.Node) {
				continue
			}
			if node := view.Node(s.Node); node != nil && node.State == api.NodeHealthy && (!heard || skipped[node.URL]) {
				names = append(names, node.Name)
			}
		}
	}
	return names
}

// needFor is what a launch that was resolved needs of a host.
func needFor(view fsm.View, l *fsm.Launch, plan fsm.Plan) need {
	return need{tenant: l.Tenant, guestOS: plan.GuestOS, imagePath: plan.Image.Path, vcpus: plan.VCPUs, memoryMiB: plan.MemoryMiB, claim: l.Claim != nil}.constrain(view, l.Pool, l)
}

func unknownNode() *api.Error {
	return api.Invalid("node", "there is no node of that name; fluxctl fleet nodes lists them")
}

// dryRun says where a launch would go, and changes nothing.
func (q *request) dryRun(l *fsm.Launch) error {
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	view := q.r.state.View()
	ranked, err := g.rankLaunch(view, newID(), *l)
	if err != nil {
		return err
	}
	plan, err := view.Plan(l, ranked.Candidates, ranked.NoHandOut)
	if err != nil {
		return err
	}
	out := api.DryRunAnswer{Reasons: ranked.Reasons}
	if plan.Node != nil {
		out.Node = &plan.Node.Name
	}
	if plan.Claim != nil {
		out.Warm, out.Pool = true, &plan.Pool.Name
	}
	out.Hosts = q.verdicts(view, judgement(judge(view, g.weatherOf(view), needFor(view, l, plan), nil)))
	q.index(view)
	return q.send(http.StatusOK, out)
}

// maxVerdicts is how many hosts a dry run tells of.
const maxVerdicts = 100

func judgement(fits, others []verdict) []verdict { return append(fits, others...) }

// verdicts shows what placement makes of the hosts that the caller may see: the ranked ones first.
func (q *request) verdicts(view fsm.View, all []verdict) (out []api.HostVerdict) {
	for i, v := range all {
		if node := view.Node(v.name); node == nil || !q.seesNode(view, node) {
			continue
		}
		one := api.HostVerdict{Node: v.name, Reason: v.why}
		if v.why == "" {
			one.Rank, one.FreeMemoryMiB, one.Residual = i+1, v.leftMiB, v.residual
		}
		if out = append(out, one); len(out) == maxVerdicts {
			break
		}
	}
	return out
}

// answerLaunch waits until the VM's node has been told and answers with the operation as it then stands.
func (q *request) answerLaunch(g *reign, op *fsm.Op, done *fsm.Operation, replayed, wait, secret bool) error {
	timeout := settleTimeout
	if wait || secret {
		timeout = readyTimeout
	}
	ctx, cancel := context.WithTimeout(q.Context(), timeout)
	defer cancel()
	var how settled
	for ref := ""; ref != done.Ref; {
		var err error
		ref = done.Ref
		how, err = g.orders.settle(ctx, ref)
		switch {
		case errors.Is(err, errDeposed), errors.Is(err, context.DeadlineExceeded):
			return api.Errorf(api.CodeOutcomeUnknown, "the launch was accepted, and whether its node carries it out is not known yet; repeat it with the same Idempotency-Key to learn that")
		case err != nil:
			return err
		case how.ended != nil:
			return how.ended
		}
		if done, err = outcomeOf(q.r.state.View(), op, done); err != nil {
			return err
		}
	}
	view := q.r.state.View()
	if wait || secret {
		v := q.awaitReady(ctx, done.Ref)
		view = q.r.state.View()
		if _, err := outcomeOf(view, op, done); err != nil {
			return err
		}
		if err := secretsGiven(v, secret && !replayed); err != nil {
			return err
		}
	}
	if !replayed {
		q.countLaunch(done, how.claimMS)
		poke(g.poolPoke)
	}
	return q.send(http.StatusCreated, wireLaunch(view, done, how.claimMS))
}

// outcomeOf is a launch as it now stands. One that no host took is known no more, and whoever did not see it end learns
// it here.
func outcomeOf(view fsm.View, op *fsm.Op, done *fsm.Operation) (*fsm.Operation, error) {
	if now := view.Operation(op.Scope, op.Key); now != nil {
		return now, nil
	}
	if row := view.VM(done.Ref); row == nil || !row.Live() {
		return nil, api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes take the VM: those that were asked refused it; ask for less, or make room on a host")
	}
	return done, nil
}

// secretsGiven holds back the answer of a launch whose secrets did not reach the guest: the next leader would not have
// them, and only the client can bring them again.
func secretsGiven(v *fsm.VM, first bool) error {
	switch {
	case first && v == nil:
		return api.Errorf(api.CodeConflict, "the VM ended before its guest had the launch's secrets; launch another one under a new Idempotency-Key")
	case first && (!v.Live() || v.State == api.StateFailed):
		return api.Errorf(api.CodeConflict, "VM %s did not get the launch's secrets: %s; launch another one under a new Idempotency-Key", v.Name, v.Reason)
	case v != nil && v.Claim != nil && len(v.Claim.Secrets) > 0:
		return api.Errorf(api.CodeOutcomeUnknown, "the launch was accepted, and its secrets have not reached the guest of VM %s yet; repeat it with the same Idempotency-Key and secrets", v.Name)
	}
	return nil
}

func (q *request) countLaunch(op *fsm.Operation, claimMS int64) {
	start := "cold"
	if op.Warm {
		start = "warm"
		q.r.metrics.claimMS.Observe(float64(claimMS))
	}
	q.r.metrics.launches.WithLabelValues(start).Inc()
}

// awaitReady waits until the guest agent has answered, or the VM has come to an end that it will not leave.
// It gives the VM as it was seen last.
func (q *request) awaitReady(ctx context.Context, id string) (v *fsm.VM) {
	if g := q.leading(); g != nil {
		defer g.outcomes.hurry()()
	}
	for ctx.Err() == nil {
		view := q.r.state.View()
		changed := view.Watch(fsm.EventVM)
		if now := view.VM(id); now != nil || v == nil {
			v = now
		} else {
			return v
		}
		if v == nil || v.State == api.StateFailed || v.State == api.StateDeleting || v.State == api.StateRunning && (v.ReadyAt != 0 || v.NoAgent) && v.Claim == nil {
			return v
		}
		select {
		case <-changed:
		case <-view.Abandoned():
		case <-ctx.Done():
		}
	}
	return v
}

func (q *request) patchVM() error {
	var body api.VMPatch
	if err := q.decode(&body); err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	v, err := q.vm(q.r.state.View())
	if err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPatchVM, nil, fsm.PatchVM{ID: v.ID, Patch: body, IfMatch: version})
	if err != nil {
		return err
	}
	row := result.Value.(*fsm.VM)
	if g := q.leading(); g != nil {
		g.orders.ensure(row.ID)
	}
	return q.sendVersioned(http.StatusOK, row.Version, wireVM(row))
}

func (q *request) deleteVM() error {
	v, err := q.vm(q.r.state.View())
	if err != nil {
		return err
	}
	return q.remove(v)
}

// deleteVMOnNode answers DELETE /fleet/vms/{node}/{id}: only the VM of that node is meant.
func (q *request) deleteVMOnNode() error {
	v, err := q.vm(q.r.state.View())
	if err != nil || v.Node != q.name("node") {
		return api.Errorf(api.CodeNotFound, "there is no VM %s on node %s", q.name("id"), q.name("node"))
	}
	return q.remove(v)
}

func (q *request) remove(v *fsm.VM) error {
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	if !v.Live() {
		return q.noContent() // its end is under way
	}
	if _, err := q.propose(fsm.KindDeleteVMs, nil, fsm.DeleteVMs{IDs: []string{v.ID}, IfMatch: version, Action: "DELETE /fleet/vms/{id}", Reason: "deleted by " + q.caller.actor}); err != nil {
		return err
	}
	if g := q.leading(); g != nil {
		g.orders.ensure(v.ID)
		poke(g.poolPoke)
	}
	return q.noContent()
}

// consoleLimit is how much of a console's end is shown at most, in bytes.
const consoleLimit = 256 << 10

// getConsole shows the end of a VM's console output as text.
func (q *request) getConsole() error {
	v, err := q.vm(q.r.state.View())
	if err != nil {
		return err
	}
	node, b := q.r.state.View().Node(v.Node), q.r.fleet.get(v.Node)
	if node == nil || b == nil {
		return api.Errorf(api.CodeUnavailable, "node %s was not heard yet; try again in a moment", v.Node)
	}
	ctx, cancel := context.WithTimeout(q.Context(), orderTimeout)
	defer cancel()
	text, err := q.r.calls.text(ctx, node.URL, b.credential, "/v1/vms/"+url.PathEscape(v.ID)+"/console?limit="+strconv.Itoa(consoleLimit))
	if err != nil {
		if codeOf(err) != "" {
			return err
		}
		return noAnswer(v.Node)
	}
	q.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	q.index(q.r.state.View())
	_, _ = q.w.Write(text) // the caller has gone
	return nil
}
