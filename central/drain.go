package central

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	reasonDraining = "its node is draining"
	reasonForced   = "its node was drained by force"
	maxBlockers    = 50
	movesAtOnce    = 8 // VMs that a host ends at a time so that they boot elsewhere
	afterParking   = 20 * time.Second
)

// fate is what a drain does with a VM.
type fate int

const (
	fateEnds   fate = iota // it may be deleted at any time
	fateLeaves             // it is ending already
	fateMoves              // it boots elsewhere
	fateBlocks
)

// fateOf is pure: a drain moves VMs that may be moved, deletes spares and VMs with a deadline, and by force what else is
// there. All others stay.
func fateOf(v *fsm.VM, forced bool) fate {
	switch {
	case !v.Live():
		return fateLeaves
	case v.MayMove() || v.Move != "":
		return fateMoves
	case v.Ephemeral() || forced:
		return fateEnds
	}
	return fateBlocks
}

// drain empties hosts as far as it may. Spares are their pool's business.
func (g *reign) drain(ctx context.Context, view fsm.View) error {
	now := g.now()
	for node := range view.DrainingNodes() {
		if node.Adopting {
			continue
		}
		forced := node.Drain.Forced(now)
		var ids, byForce []string
		var moving []*fsm.VM
		for row := range view.VMsOn(node.Name) {
			switch {
			case fateOf(row, forced) == fateMoves:
				moving = append(moving, row)
			case row.Warm || fateOf(row, forced) != fateEnds:
			case row.Ephemeral():
				ids = append(ids, row.ID)
			default:
				byForce = append(byForce, row.ID)
			}
		}
		stuck, err := g.moveOff(ctx, view, node, moving)
		if err != nil {
			return err
		}
		if forced {
			byForce = append(byForce, stuck...)
		}
		if err := g.end(ctx, view, ids, "drain", reasonDraining, actorCentral); err != nil {
			return err
		}
		if err := g.end(ctx, view, byForce, "drain", reasonForced, actorCentral); err != nil {
			return err
		}
	}
	return nil
}

// moveOff has a host end VMs for which others have room; they boot there once it has. It gives those that fit nowhere.
func (g *reign) moveOff(ctx context.Context, view fsm.View, node *fsm.Node, rows []*fsm.VM) (stuck []string, err error) {
	body, taken, under := fsm.RelocateVMs{Node: node.Name, Keep: true}, map[string]load{}, 0
	why := map[string]string{}
	for _, row := range rows {
		if row.Move == "" {
			continue
		}
		under++ // its order sees to it
		if row.Move != fsm.MoveEnded {
			continue
		}
		if candidates, _, reasons := g.elsewhere(view, row, nil); len(candidates) == 0 {
			stuck, why[row.ID] = append(stuck, row.ID), inWords(reasons)
		}
	}
	for _, row := range rows {
		if row.Move != "" || under+len(body.VMs) >= movesAtOnce || node.State != api.NodeHealthy {
			continue
		}
		candidates, n, reasons := g.elsewhere(view, row, taken)
		if len(candidates) == 0 {
			stuck, why[row.ID] = append(stuck, row.ID), inWords(reasons)
			continue
		}
		taken[candidates[0]] = taken[candidates[0]].plus(n)
		body.VMs = append(body.VMs, fsm.LostVM{ID: row.ID, Candidates: candidates})
	}
	g.stuck.set(node.Name, why)
	if len(body.VMs) == 0 {
		return stuck, nil
	}
	if _, err := g.propose(ctx, fsm.KindRelocateVMs, actorCentral, nil, body); err != nil {
		return nil, err
	}
	for _, one := range body.VMs {
		g.orders.ensure(one.ID)
	}
	return stuck, nil
}

// elsewhere ranks hosts for a VM that is to boot anew, without those that list it: it runs once at most.
func (g *reign) elsewhere(view fsm.View, row *fsm.VM, taken map[string]load) (candidates []string, n need, reasons map[string]int) {
	n = needOf(row, view.Node(row.Node)).constrain(view, row.Pool, row.Launch)
	n.tried = map[string]string{}
	n.claim = n.claim || row.Launch != nil && row.Launch.Claim != nil
	candidates, reasons = g.r.hosts.rank(view, n, taken)
	candidates = slices.DeleteFunc(candidates, func(name string) bool { return g.r.fleet.lists(name, row.ID) })
	return candidates[:min(len(candidates), lossCandidates)], n, reasons
}

// relocate boots a VM elsewhere that has ended on the host that it moves off.
func (o *orders) relocate(row *fsm.VM) (settled, bool) {
	g := o.reign
	if o.isParked(row.ID) {
		return settled{waits: true}, false
	}
	candidates, _, reasons := g.elsewhere(g.view(), row, nil)
	if len(candidates) == 0 {
		return settled{open: fmt.Errorf("no host takes the VM that moves off node %s: %s", row.Node, inWords(reasons))}, true
	}
	result, err := g.propose(g.ctx, fsm.KindRelocateVMs, actorCentral, nil, fsm.RelocateVMs{Node: row.Node, Keep: true, VMs: []fsm.LostVM{{ID: row.ID, Candidates: candidates}}})
	if placed, ok := result.Value.([]string); err != nil || !ok || len(placed) == 0 {
		return settled{open: cmp.Or(err, errors.New("the hosts filled up meanwhile"))}, true
	}
	return settled{}, false
}

// park notes that no host takes a VM that is to boot anew: they are not asked again before some time has passed.
func (o *orders) park(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.parked[id] = o.reign.r.wall().Add(afterParking)
}

func (o *orders) isParked(id string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	until, known := o.parked[id]
	if known && !o.reign.r.wall().Before(until) {
		delete(o.parked, id)
		return false
	}
	return known
}

// stuckMoves are VMs that a drain would move and no host takes, with the counted reasons, by their nodes.
type stuckMoves struct {
	mu sync.Mutex
	of map[string]map[string]string
}

func (s *stuckMoves) set(node string, why map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]map[string]string{}
	}
	if s.of[node] = why; len(why) == 0 {
		delete(s.of, node)
	}
}

func (s *stuckMoves) why(node string) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.of[node]
}

// wireDrain is how far a host's drain is; nil without one.
func wireDrain(view fsm.View, n *fsm.Node, now api.Time, stuck map[string]string) *api.NodeDrain {
	d := n.Drain
	if d == nil {
		return nil
	}
	out := &api.NodeDrain{By: d.By, StartedAt: d.StartedAt, Deadline: d.Deadline, Force: d.Force, Total: d.Total, Blocking: []api.DrainBlocker{}}
	left := 0
	for v := range view.VMsOn(n.Name) {
		left++
		why := "it has no TTL; delete it, give it one, or drain with force"
		switch fateOf(v, d.Forced(now)) {
		case fateBlocks:
		case fateMoves:
			if stuck[v.ID] == "" || d.Forced(now) {
				out.ToMove++
				continue
			}
			why = "it boots elsewhere, and no other host takes it now: " + stuck[v.ID]
		default:
			out.ToDelete++
			continue
		}
		if out.Blocked++; len(out.Blocking) < maxBlockers {
			out.Blocking = append(out.Blocking, api.DrainBlocker{ID: v.ID, Name: v.Name, Tenant: orNull(v.Tenant), Why: why})
		}
	}
	out.Done, out.Overdue = left == 0, left > 0 && d.Deadline != 0 && now >= d.Deadline
	return out
}

// drainNode answers POST /fleet/nodes/{name}/drain. A repeat changes deadline and force of the drain under way.
func (q *request) drainNode() error {
	var body api.DrainRequest
	if len(q.body) > 0 {
		if err := q.decode(&body); err != nil {
			return err
		}
	}
	yes := true
	change := fsm.PatchNode{Action: "POST /fleet/nodes/{name}/drain", Cordoned: &yes, Draining: &yes, Reason: body.Reason, By: q.caller.actor,
		Drain: &fsm.DrainHost{DeadlineSeconds: body.DeadlineSeconds, Force: body.Force}}
	return q.changeNode(change, q.op(body))
}
