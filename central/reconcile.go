package central

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	vmPeriod      = time.Second
	nodePeriod    = 2 * time.Second
	tickEvery     = 10 * time.Second
	expirePerPass = 50 // a second, so that a long outage ends things at a bounded rate
	idsPerCommand = 64
	actorPool     = "warm-pool"
	actorCentral  = "central"
	reasonExpired = "its TTL ran out"
)

// loops are the reconcilers of a reign. Only they act without being asked.
func (g *reign) loops() []loop {
	if g.r.cfg.NoReconcile {
		return nil
	}
	return []loop{
		{"pool", g.r.cfg.PoolInterval, g.poolPoke, g.passPools},
		{"vm", vmPeriod, g.vmPoke, g.passVMs},
		{"lease", leasePeriod, g.leasePoke, g.passLeases},
		{"node", nodePeriod, g.nodePoke, g.passNodes},
		{"probe", probePeriod, nil, g.passProbes},
		{"key", touchPeriod, nil, g.passKeys},
	}
}

// observeAll turns what nodes list into news, whenever a beat comes or rows of theirs change, and pokes the loops that
// care. It looks at those nodes alone: a fleet of thousands beats hundreds of times a second. A part of the others is
// swept every second, so that what slips through only comes later.
func (g *reign) observeAll(ctx context.Context) {
	timer := time.NewTimer(sweepPeriod)
	defer timer.Stop()
	seen := g.view().Index()
	next := g.sweep(ctx, "", math.MaxInt)
	for {
		news, changes, whole := g.r.state.Events().After(seen, math.MaxInt, 1<<20)
		if len(news) > 0 || !whole {
			seen = g.view().Index()
			if whole {
				seen = news[len(news)-1].Index
			}
			g.observe(ctx, nodesOfRows(news))
			poke(g.poolPoke)
			poke(g.vmPoke)
			poke(g.queue.poke)
		}
		select {
		case <-ctx.Done():
			return
		case <-g.r.fleet.moved:
			g.observe(ctx, g.r.fleet.takeHeard())
			poke(g.queue.poke) // pressure may be over
		case <-timer.C:
			next = g.sweep(ctx, next, 0)
			timer.Reset(sweepPeriod)
		case <-changes:
			pause(ctx, 5*time.Millisecond) // changes come in bursts
		}
	}
}

const (
	sweepPeriod = time.Second
	sweepParts  = 10 // in as many periods all nodes are swept
	sweepLeast  = 64 // nodes in a period
)

// nodesOfRows are the nodes whose rows, or whose VMs' rows, changed.
func nodesOfRows(news []fsm.Event) map[string]bool {
	out := map[string]bool{}
	for _, e := range news {
		switch row := e.Row.(type) {
		case *fsm.VM:
			out[row.Node] = true
		case *fsm.Node:
			out[row.Name] = true
		}
	}
	return out
}

// sweep observes nodes from the given name on, a part of them at least, and gives the name to go on from.
func (g *reign) sweep(ctx context.Context, from string, least int) string {
	view, names, all := g.view(), map[string]bool{}, 0
	for range view.Nodes("") {
		all++
	}
	most := max(least, sweepLeast, all/sweepParts+1)
	for node := range view.Nodes(from) {
		if len(names) == most {
			g.observe(ctx, names)
			return node.Name
		}
		names[node.Name] = true
	}
	g.observe(ctx, names)
	return ""
}

func (g *reign) observe(ctx context.Context, names map[string]bool) {
	view := g.view()
	for name := range names {
		if ctx.Err() != nil {
			return // a whole fleet of large hosts takes a while, and the next leader looks for itself
		}
		node := view.Node(name)
		if node == nil {
			continue
		}
		news, strangers := observe(view, name, g.r.fleet.get(name), g.r.wall())
		for _, one := range news {
			g.outcomes.add(ctx, one, nil)
		}
		for _, id := range strangers {
			g.orders.once("stranger "+name+" "+id, func() { g.removeStranger(ctx, node, id) })
		}
	}
}

// removeStranger deletes a VM of this cluster that no row knows.
func (g *reign) removeStranger(ctx context.Context, node *fsm.Node, id string) {
	b := g.r.fleet.get(node.Name)
	if b == nil {
		return
	}
	token := fmt.Sprintf("%d.%d.%d", g.view().Meta().Epoch, g.term, g.view().Index())
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	g.r.logger.Info("removing a VM of this cluster that the fleet does not know", "node", node.Name, "vm", id)
	if err := g.r.calls.call(ctx, node.URL, b.credential, "DELETE", "/v1/vms/"+id, token, nil, nil); err != nil {
		g.r.logger.Warn("could not remove it; it will be tried again", "node", node.Name, "vm", id, "error", err)
	}
}

// passVMs gives open orders, ends what is overdue or in a drain's way, and brings time into the log while
// something waits for it.
func (g *reign) passVMs(ctx context.Context) error {
	view := g.view()
	now := g.now()
	var late []string
	for row := range view.Open() {
		if overdue(row, now) && row.Live() {
			late = append(late, row.ID)
			continue
		}
		g.orders.ensure(row.ID)
	}
	if err := g.end(ctx, view, late, "claim", reasonOverdue, actorCentral); err != nil {
		return err
	}
	var due []string
	waiting := false
	for row := range view.Due() {
		if row.ExpiresAt > now || len(due) == expirePerPass {
			waiting = true
			break
		}
		if g.adopting(view, row.Node) {
			continue
		}
		due = append(due, row.ID)
	}
	if err := g.end(ctx, view, due, "expire", reasonExpired, actorCentral); err != nil {
		return err
	}
	if err := g.drain(ctx, view); err != nil {
		return err
	}
	if waiting && now.Sub(view.Meta().Now) > tickEvery {
		_, err := g.propose(ctx, fsm.KindTick, actorCentral, nil, fsm.Tick{})
		return err
	}
	return nil
}

// end asks for the end of VMs that are still as the view shows them, and has their nodes told.
func (g *reign) end(ctx context.Context, view fsm.View, ids []string, action, reason, actor string) error {
	for len(ids) > 0 {
		n := min(len(ids), idsPerCommand)
		_, err := g.propose(ctx, fsm.KindDeleteVMs, actor, nil, fsm.DeleteVMs{IDs: ids[:n], AsOf: view.Index(), Action: action, Reason: reason})
		if err != nil && codeOf(err) != api.CodeNotFound {
			return err
		}
		for _, id := range ids[:n] {
			g.orders.ensure(id)
		}
		ids = ids[n:]
	}
	return nil
}

// passPools brings every pool to what decidePool says.
func (g *reign) passPools(ctx context.Context) error {
	var first error
	for p := range g.view().Pools("") {
		if err := g.passPool(ctx, p.Name); err != nil && first == nil {
			first = fmt.Errorf("pool %s: %w", p.Name, err)
		}
	}
	return first
}

func (g *reign) passPool(ctx context.Context, name string) error {
	view := g.view()
	p := view.Pool(name)
	if p == nil {
		return nil
	}
	plan := decidePool(view, p, g.now())
	if err := g.drop(ctx, view, p, plan.drops); err != nil {
		return err
	}
	body := fsm.FillPool{Pool: name, Wait: plan.wait, Failed: plan.keep}
	switch {
	case len(plan.keep) > 0:
		body.Wait = &fsm.Wait{Reason: api.WaitBootFailed, Error: plan.keep[0].Reason}
	case plan.fill > 0:
		g.chooseHosts(g.view(), p, plan.fill, &body)
	case plan.want > 0: // it backs off for want of room, which may have come
		g.chooseHosts(g.view(), p, plan.want, &body)
		body.Room, body.Wait = len(body.Spares) > 0, plan.wait
	}
	if len(body.Spares) == 0 && body.Wait == nil && !plan.roll {
		return nil
	}
	result, err := g.propose(ctx, fsm.KindFillPool, actorPool, nil, body)
	if err != nil {
		if codeOf(err) == api.CodeNotFound {
			return nil // deleted meanwhile
		}
		return err
	}
	if placed, ok := result.Value.([]string); ok {
		for _, id := range placed {
			g.orders.ensure(id)
		}
	}
	return nil
}

// drop ends spares. A replacement is written down, a trim is not.
func (g *reign) drop(ctx context.Context, view fsm.View, p *fsm.Pool, drops []drop) error {
	for _, d := range drops {
		action := "replace"
		if d.reason == reasonTrim {
			action = ""
		}
		if err := g.end(ctx, view, []string{d.vm.ID}, action, d.reason, actorPool); err != nil {
			return err
		}
		if d.failed {
			wait := fsm.FillPool{Pool: p.Name, Wait: &fsm.Wait{Reason: api.WaitBootFailed, Error: d.reason}}
			if _, err := g.propose(ctx, fsm.KindFillPool, actorPool, nil, wait); err != nil {
				return err
			}
		}
	}
	return nil
}

// chooseHosts ranks hosts for each spare, spreading them over what the ones before will take.
func (g *reign) chooseHosts(view fsm.View, p *fsm.Pool, fill int, body *fsm.FillPool) {
	n := need{tenant: p.Tenant, leased: p.Tenant != "", guestOS: p.GuestOS, vcpus: p.VCPUs, memoryMiB: p.MemoryMiB, nodes: p.Nodes, poolSelector: p.NodeSelector, spare: true, claim: p.RotateIdentity}
	image := view.Image(p.Image)
	if image == nil {
		body.Wait = &fsm.Wait{Reason: api.WaitImage, Error: "image " + p.Image + " is no longer in the catalog"}
		return
	}
	n.imagePath = image.Path
	taken := map[string]load{}
	for range fill {
		candidates, reasons := rank(view, g.weatherOf(view), n, taken)
		if len(candidates) == 0 {
			body.Wait = noRoom(reasons)
			return
		}
		id := newID()
		body.Spares = append(body.Spares, fsm.Spare{ID: id, Name: "warm-" + p.Name + "-" + id[len(id)-8:], Candidates: candidates})
		taken[candidates[0]] = taken[candidates[0]].plus(n)
	}
}

// noRoom is why no host takes a spare. Hosts that are merely busy starting others are waited for quietly.
func noRoom(reasons map[string]int) *fsm.Wait {
	if reasons[api.WhyStartLimit] > 0 {
		return nil
	}
	reason := api.WaitNoCapacity
	switch {
	case reasons[api.WhyMacOSLimit] > 0 && reasons[api.WhyMemory]+reasons[api.WhyCPU] == 0:
		reason = api.WaitMacOSLimit
	case reasons[api.WhyPressure] > 0 && reasons[api.WhyMemory]+reasons[api.WhyCPU] == 0:
		reason = api.WaitPressure
	}
	return &fsm.Wait{Reason: reason, Reasons: reasons, Error: "no host can take another VM of the pool: " + inWords(reasons)}
}

// inWords writes counts of reasons as text, in the order of their names.
func inWords(reasons map[string]int) string {
	if len(reasons) == 0 {
		return "the fleet has no nodes"
	}
	var parts []string
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		parts = append(parts, fmt.Sprintf("%s %d", why, reasons[why]))
	}
	return strings.Join(parts, ", ")
}
