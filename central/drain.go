package central

import (
	"context"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	reasonDraining = "its node is draining"
	reasonForced   = "its node was drained by force"
	maxBlockers    = 50
)

// fate is what a drain does with a VM.
type fate int

const (
	fateEnds   fate = iota // it may be deleted at any time
	fateLeaves             // it is ending already
	fateBlocks
)

// fateOf is pure: a drain deletes spares and VMs with a deadline, and by force what else is there. All others stay.
func fateOf(v *fsm.VM, forced bool) fate {
	switch {
	case !v.Live():
		return fateLeaves
	case v.Ephemeral() || forced:
		return fateEnds
	}
	return fateBlocks
}

// drain empties hosts as far as it may. Spares are their pool's business.
func (g *reign) drain(ctx context.Context, view fsm.View) error {
	now := g.now()
	for node := range view.Nodes("") {
		if !node.Draining || node.Adopting {
			continue
		}
		forced := node.Drain.Forced(now)
		var ids, byForce []string
		for row := range view.VMsOn(node.Name) {
			switch {
			case row.Warm || fateOf(row, forced) != fateEnds:
			case row.Ephemeral():
				ids = append(ids, row.ID)
			default:
				byForce = append(byForce, row.ID)
			}
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

// wireDrain is how far a host's drain is; nil without one.
func wireDrain(view fsm.View, n *fsm.Node, now api.Time) *api.NodeDrain {
	d := n.Drain
	if d == nil {
		return nil
	}
	out := &api.NodeDrain{By: d.By, StartedAt: d.StartedAt, Deadline: d.Deadline, Force: d.Force, Total: d.Total, Blocking: []api.DrainBlocker{}}
	left := 0
	for v := range view.VMsOn(n.Name) {
		left++
		if fateOf(v, d.Forced(now)) != fateBlocks {
			out.ToDelete++
			continue
		}
		if out.Blocked++; len(out.Blocking) < maxBlockers {
			out.Blocking = append(out.Blocking, api.DrainBlocker{ID: v.ID, Name: v.Name, Tenant: orNull(v.Tenant), Why: "it has no TTL; delete it, give it one, or drain with force"})
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
