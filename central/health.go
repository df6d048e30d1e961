package central

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	suspectAfter = 30 * time.Second
	unreachable  = 5 * time.Minute
	twoBeats     = 2 * (beatInterval + beatInterval/20) // a host that was silent for longer has missed two

	// nodeLease is how long after a beat its host may run VMs that may boot elsewhere. They do so only when the host has
	// been silent under the present leader until it is unreachable: the difference is what clocks, a leader that does not
	// know yet that it is none, and the host's own work may take.
	nodeLease     = 4 * time.Minute
	verifyPeriod  = time.Second
	verifiedLasts = 5 * time.Second

	// changesPerCommand bounds a command about hosts, for a whole fleet can fall silent at once.
	changesPerCommand = 128
	factsPerCommand   = 32
	lossesPerCommand  = 32
	lossCandidates    = 8 // hosts that are named for each lost VM
	factsGather       = 20 * time.Millisecond
)

// passNodes follows the health of hosts, keeps back those that have to give up VMs first, and settles what lost ones had.
func (g *reign) passNodes(ctx context.Context) error {
	view, wall := g.view(), g.r.wall()
	g.r.fleet.awake(wall)
	lostAfter := time.Duration(0)
	if s := view.Policy().LostAfterSeconds; s != nil {
		lostAfter = time.Duration(*s) * time.Second
	}
	var changes []fsm.NodeChange
	for node := range view.Nodes("") {
		if node.Adopting {
			if node.State == api.NodeLost && g.holdsBack(view, node) {
				continue
			}
			if err := g.adopt(ctx, view, node); err != nil {
				return err
			}
			continue
		}
		b := g.r.fleet.get(node.Name)
		change := fsm.NodeChange{Name: node.Name}
		change.State, change.Fault = healthOf(node, g.r.fleet.silence(node.Name, wall), wall.Sub(g.since), lostAfter, b)
		switch {
		case change.State == node.State && change.Fault == node.Fault:
			continue
		case change.State == api.NodeHealthy && g.holdsBack(view, node):
			continue // not yet: that comes first
		}
		if node.State == api.NodeHealthy {
			change.ConfirmedAt = g.confirmed(b, wall)
		}
		changes = append(changes, change)
	}
	for part := range slices.Chunk(changes, changesPerCommand) {
		if _, err := g.propose(ctx, fsm.KindNodeHealth, actorCentral, nil, fsm.NodeHealth{Changes: part}); err != nil {
			return err
		}
	}
	if err := g.dropReasons(ctx, view, changes); err != nil {
		return err
	}
	return g.settleLost(ctx)
}

// dropReasons takes off hosts that are back why they were given up. Why one is cordoned stays.
func (g *reign) dropReasons(ctx context.Context, view fsm.View, changes []fsm.NodeChange) error {
	for _, change := range changes {
		was := view.Node(change.Name)
		if change.State != api.NodeHealthy || was.State != api.NodeLost || was.Cordoned || was.Reason == "" {
			continue
		}
		none := ""
		if _, err := g.propose(ctx, fsm.KindPatchNode, actorCentral, nil, fsm.PatchNode{Name: was.Name, Action: "node back", By: actorCentral, Reason: &none}); err != nil && codeOf(err) != api.CodeNotFound {
			return err
		}
	}
	return nil
}

// confirmed is when a host was last known to be there, in the fleet's time. One that this process never heard was there
// while another one led.
func (g *reign) confirmed(b *beat, wall time.Time) api.Time {
	if b == nil {
		return g.r.clock.before()
	}
	return g.now().Add(-max(0, wall.Sub(b.at)))
}

// healthOf is what a host's silence makes of it, and what an operator has to mend. Unreachable and lost need a whole
// window under this leader alone. A host that is back is healthy only with its whole list, and once its boot is known.
func healthOf(node *fsm.Node, silence, reign, lostAfter time.Duration, b *beat) (api.NodeState, string) {
	was := node.State
	switch {
	case was == api.NodeLost && silence >= suspectAfter:
		return was, ""
	case lostAfter > 0 && min(silence, reign) >= max(lostAfter, unreachable):
		return api.NodeLost, ""
	case min(silence, reign) >= unreachable:
		return api.NodeUnreachable, ""
	case silence >= suspectAfter && was == api.NodeHealthy:
		return api.NodeSuspect, ""
	case silence >= suspectAfter:
		return was, node.Fault
	case b != nil && b.fault != "" && was == api.NodeHealthy:
		return api.NodeSuspect, b.fault
	case b != nil && b.fault != "":
		return was, b.fault
	case b != nil && b.vms != nil && b.report.BootID == node.BootID && b.report.UUID == node.UUID:
		return api.NodeHealthy, ""
	}
	return was, node.Fault
}

// holdsBack says that a host that is back may not serve yet: what it had is not settled, or it still has VMs that boot
// elsewhere by now, which it is told to give up.
func (g *reign) holdsBack(view fsm.View, node *fsm.Node) bool {
	return node.State == api.NodeLost && len(view.Unsettled(node.Name)) > 0 || g.fence(view, node, g.r.fleet.get(node.Name))
}

// fence has a host that is back give up VMs that boot elsewhere since, by their ids. It says whether there are any: the
// host serves again only when its list is without them.
func (g *reign) fence(view fsm.View, node *fsm.Node, b *beat) bool {
	ids := foreign(view, node.Name, b)
	for _, id := range ids {
		g.orders.once("fence "+node.Name+" "+id, func() { g.removeStranger(g.ctx, node, id) })
	}
	return len(ids) > 0
}

// foreign are the VMs that a node lists and that other nodes have by now.
func foreign(view fsm.View, node string, b *beat) (ids []string) {
	if b == nil {
		return nil
	}
	for id, vm := range b.vms {
		if row := view.VM(id); vm.State != api.StateGone && vm.Cluster == view.Meta().ClusterID && row != nil && row.Node != node {
			ids = append(ids, id)
		}
	}
	return ids
}

// settleLost deals with the VMs of lost hosts, some in each command.
func (g *reign) settleLost(ctx context.Context) error {
	wall := g.r.wall()
	for node := range g.view().Nodes("") {
		if node.State != api.NodeLost {
			continue
		}
		view := g.view()
		ids := view.Unsettled(node.Name)
		if g.fenced(node.Name, wall) { // one that is back keeps what it has
			for vm := range view.VMsOn(node.Name) {
				if vm.State == api.StateLost && vm.Reschedulable {
					ids = append(ids, vm.ID)
				}
			}
		}
		for part := range slices.Chunk(ids, lossesPerCommand) {
			if err := g.lose(ctx, node.Name, part); err != nil {
				return err
			}
		}
	}
	return nil
}

// fenced says that a host has been silent for so long that it has stopped VMs that may boot elsewhere, by itself.
func (g *reign) fenced(node string, wall time.Time) bool {
	return min(g.r.fleet.silence(node, wall), wall.Sub(g.since)) >= unreachable
}

// leaseFor is how long a host that has just reported may run VMs that may boot elsewhere, in ms; 0 says nothing of it. Only
// the leader says so, for it alone decides that they do, and only while a majority takes it for the leader; not to a host
// that may still have one that boots elsewhere: it may be that host under another name.
func (q *request) leaseFor(node string) int64 {
	g := q.leading()
	if g == nil {
		return 0
	}
	view := g.view()
	n, at, b := view.Node(node), g.verified.Load(), g.r.fleet.get(node)
	if b == nil || b.vms == nil || len(foreign(view, node, b)) > 0 {
		return 0
	}
	if n == nil || n.State == api.NodeLost || n.Adopting || at == nil || q.r.wall().Sub(*at) > verifiedLasts {
		return 0
	}
	return nodeLease.Milliseconds()
}

// verify notes, as long as it is so, that a majority takes this replica for the leader.
func (g *reign) verify(ctx context.Context) {
	for ctx.Err() == nil {
		asked := g.r.wall()
		within, cancel := context.WithTimeout(ctx, verifiedLasts)
		if g.r.log.VerifyRead(within) == nil {
			g.verified.Store(&asked)
		}
		cancel()
		pause(ctx, verifyPeriod)
	}
}

// lose settles some VMs of a lost host. Those that may boot elsewhere are spread over what the ones before will take.
func (g *reign) lose(ctx context.Context, node string, ids []string) error {
	view, taken, body := g.view(), map[string]load{}, fsm.LoseVMs{Node: node, Keep: true}
	for _, id := range ids {
		row := view.VM(id)
		if row == nil {
			continue
		}
		one := fsm.LostVM{ID: id}
		fenced := g.fenced(node, g.r.wall())
		if row.Reschedulable && row.State == api.StateLost && !fenced {
			continue // its host may run it still
		}
		if row.Reschedulable && row.Live() && fenced {
			var n need
			one.Candidates, n, _ = g.elsewhere(view, row, taken)
			if len(one.Candidates) > 0 {
				taken[one.Candidates[0]] = taken[one.Candidates[0]].plus(n)
			} else if row.State == api.StateLost {
				continue // nothing is new
			}
		}
		body.VMs = append(body.VMs, one)
	}
	if len(body.VMs) == 0 {
		return nil
	}
	result, err := g.propose(ctx, fsm.KindLoseVMs, actorCentral, nil, body)
	if err != nil {
		return err
	}
	if placed, ok := result.Value.([]string); ok {
		for _, id := range placed {
			g.orders.ensure(id)
		}
	}
	poke(g.poolPoke)
	return nil
}

// goOn sees to a VM whose lost host was not told of it: its launch goes on elsewhere.
func (o *orders) goOn(row *fsm.VM) (settled, bool) {
	why := "node " + row.Node + " is lost"
	var moved fsm.Moved
	var err error
	switch {
	case row.HandOver:
		moved, err = o.reign.failHandOver(row, why)
	case row.State == api.StatePlaced && row.Told == 0 && row.Reschedulable && !o.reign.fenced(row.Node, o.reign.r.wall()):
		err = errors.New(why + ", and may have been told of the VM")
	case row.State == api.StatePlaced && row.Told == 0 && !row.Warm:
		moved, err = o.reign.move(row, why, api.WhyUnhealthy)
	default:
		err = errors.New(why) // the loop of the nodes settles it
	}
	switch {
	case err != nil:
		return settled{open: err}, true
	case moved.Ended != nil:
		return settled{ended: moved.Ended}, false
	case moved.VM != nil && moved.VM.ID != row.ID:
		return settled{replacedBy: moved.VM.ID}, false
	}
	return settled{}, false
}

// factQueue has changed facts of known hosts on their way into the log, the newest of each.
type factQueue struct {
	mu    sync.Mutex
	nodes map[string]fsm.Node
	poke  chan struct{}
}

func (f *factQueue) add(n fsm.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.nodes == nil {
		f.nodes = map[string]fsm.Node{}
	}
	f.nodes[n.Name] = n
	poke(f.poke)
}

func (f *factQueue) take() (out []fsm.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		out = append(out, f.nodes[name])
	}
	f.nodes = nil
	return out
}

// recordFacts brings changed facts into the log, many in one command. What is lost on the way comes with the next beats.
func (g *reign) recordFacts(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.facts.poke:
			pause(ctx, factsGather)
		}
		for part := range slices.Chunk(g.facts.take(), factsPerCommand) {
			if err := g.updateNodes(ctx, part); err != nil && ctx.Err() == nil {
				g.r.logger.Warn("could not record what hosts have become; their next reports bring it again", "error", err)
			}
		}
		poke(g.poolPoke)
		poke(g.nodePoke)
	}
}

func (g *reign) updateNodes(ctx context.Context, nodes []fsm.Node) error {
	_, err := g.propose(ctx, fsm.KindUpdateNodes, actorCentral, nil, fsm.UpdateNodes{Nodes: nodes})
	if half := len(nodes) / 2; codeOf(err) == api.CodeTooLarge && half > 0 {
		return errors.Join(g.updateNodes(ctx, nodes[:half]), g.updateNodes(ctx, nodes[half:]))
	}
	return err
}

// loseNode answers POST …/lost: the operator knows that a silent host will not come back as it was.
func (q *request) loseNode() error {
	return q.giveUpNode(fsm.LoseNode{Action: "POST /fleet/nodes/{name}/lost"})
}

// replaceNode answers POST …/replace: another host takes the name of a silent one over.
func (q *request) replaceNode() error {
	return q.giveUpNode(fsm.LoseNode{Action: "POST /fleet/nodes/{name}/replace", Replace: true})
}

func (q *request) giveUpNode(body fsm.LoseNode) error {
	reason, op, err := q.reason()
	if err != nil {
		return err
	}
	body.Name = q.name("name")
	if reason != nil {
		body.Reason = *reason
	}
	if _, err := q.propose(fsm.KindLoseNode, op, body); err != nil {
		return err
	}
	if body.Replace {
		q.r.fleet.forget(body.Name)
	}
	if g := q.leading(); g != nil {
		poke(g.nodePoke)
	}
	return q.getNode()
}

// reason reads a body that may hold a reason and nothing else.
func (q *request) reason() (*string, *fsm.Op, error) {
	var body struct {
		Reason *string `json:"reason,omitempty"`
	}
	if len(q.body) > 0 {
		if err := q.decode(&body); err != nil {
			return nil, nil, err
		}
	}
	if body.Reason != nil {
		words := api.NodePatch{Reason: api.Some(*body.Reason)}
		if err := words.Check(); err != nil {
			return nil, nil, err
		}
	}
	return body.Reason, q.op(body), nil
}

// twinFault tells an operator how to part a host from its copy.
func twinFault(name string) string {
	return fmt.Sprintf("two daemons report as node %s: on the copy, stop the daemon, remove DATA/uuid and DATA/credential, and start it with another --name and a join token; the node goes on a minute after only one of them reports", name)
}
