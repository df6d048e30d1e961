package central

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"net/url"
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
		{"pool", g.r.cfg.PoolInterval, g.poolPoke, g.passPools, fillGather},
		{"vm", vmPeriod, g.vmPoke, g.passVMs, changesGather},
		{"lease", leasePeriod, g.leasePoke, g.passLeases, 0},
		{"node", nodePeriod, g.nodePoke, g.passNodes, 0},
		{"probe", probePeriod, nil, g.passProbes, 0},
		{"key", touchPeriod, nil, g.passKeys, 0},
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
			g.observeRows(ctx, news)
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
			g.forgetSecrets()
			timer.Reset(sweepPeriod)
		case <-changes:
			pause(ctx, changesGather) // changes come in bursts
		}
	}
}

const (
	sweepPeriod = time.Second
	sweepParts  = 10 // in as many periods all nodes are swept
	sweepLeast  = 64 // nodes in a period

	changesGather = 20 * time.Millisecond  // what changes in it is looked at together
	fillGather    = 100 * time.Millisecond // so long a pool waits for its refill: little beside a boot, and claims go on meanwhile
)

// observeRows looks at the rows of VMs that changed, and at all of a node whose own row did.
func (g *reign) observeRows(ctx context.Context, changes []fsm.Event) {
	view, nodes, now := g.view(), map[string]bool{}, g.r.wall()
	for _, e := range changes {
		switch row := e.Row.(type) {
		case *fsm.VM:
			if row = view.VM(row.ID); row == nil {
				continue
			}
			b := g.r.fleet.get(row.Node)
			if !believed(view, row.Node, b) {
				continue
			}
			if one, ok := observeRow(view, row, b, now); ok {
				g.takeNews(ctx, view, b, one)
			}
		case *fsm.Node:
			nodes[row.Name] = true
		}
	}
	g.observe(ctx, nodes)
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
		b := g.r.fleet.get(name)
		news, strangers := observe(view, name, b, g.r.wall())
		for _, one := range news {
			g.takeNews(ctx, view, b, one)
		}
		for _, id := range strangers {
			g.orders.once("stranger "+name+" "+id, func() { g.removeStranger(ctx, node, id) })
		}
	}
}

// takeNews records what a list says of a VM. That one lacks a VM is a hint only: a list may be written before the VM is
// made and arrive, from a host that stood still meanwhile, long after. So the host is asked.
func (g *reign) takeNews(ctx context.Context, view fsm.View, b *beat, one fsm.VMReport) {
	row, node := view.VM(one.ID), view.Node(one.Node)
	if one.State != api.StateGone || b.vms[one.ID] != nil || row == nil || node == nil {
		g.outcomes.add(ctx, one, nil)
		return
	}
	g.orders.once("missing "+one.Node+" "+one.ID, func() {
		if g.orders.lacks(row, node, b) {
			g.outcomes.add(ctx, one, nil)
		}
	})
}

// removeStranger deletes a VM of this cluster that no row has on the node.
func (g *reign) removeStranger(ctx context.Context, node *fsm.Node, id string) {
	b, row := g.r.fleet.get(node.Name), g.view().VM(id)
	if b == nil || row != nil && row.Node == node.Name {
		return
	}
	token := fmt.Sprintf("%d.%d.%d", g.view().Meta().Epoch, g.term, g.view().Index())
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	g.r.logger.Info("removing a VM of this cluster that the fleet does not know", "node", node.Name, "vm", id)
	if err := g.r.calls.call(ctx, node.URL, b.credential, "DELETE", "/v1/vms/"+url.PathEscape(id), token, nil, nil); err != nil {
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
	var body fsm.FillPools
	spares, taken := 0, map[string]load{}
	due := g.pools.due(g.r.state.Events(), g.view(), g.r.wall(), g.r.cfg.PoolInterval)
	for p := range g.view().Pools("") {
		if !due(p.Name) {
			continue
		}
		fill, err := g.passPool(ctx, p.Name, taken)
		if err != nil {
			first = cmp.Or(first, fmt.Errorf("pool %s: %w", p.Name, err))
			continue
		}
		if fill == nil {
			continue
		}
		body.Fills, spares = append(body.Fills, *fill), spares+len(fill.Spares)
		if spares >= sparesPerCommand {
			first = cmp.Or(first, g.fill(ctx, body))
			body.Fills, spares = nil, 0
		}
	}
	return cmp.Or(first, g.fill(ctx, body))
}

// sparesPerCommand is how many spares a command places, and a few more: each names its hosts.
const sparesPerCommand = 64

// fill commits what was decided for pools, and has the spares made.
func (g *reign) fill(ctx context.Context, body fsm.FillPools) error {
	if len(body.Fills) == 0 {
		return nil
	}
	result, err := g.propose(ctx, fsm.KindFillPools, actorPool, nil, body)
	if err != nil {
		return err
	}
	if placed, ok := result.Value.([]string); ok {
		for _, id := range placed {
			g.orders.ensure(id)
		}
	}
	return nil
}

// passPool drops a pool's spares that have to go, and says how it is filled; nil: not now. taken is what the pools before
// it will take of hosts, and then also this one.
func (g *reign) passPool(ctx context.Context, name string, taken map[string]load) (*fsm.FillPool, error) {
	view := g.view()
	p := view.Pool(name)
	if p == nil {
		return nil, nil
	}
	plan := decidePool(view, p, g.now())
	g.pools.looked(view, p, plan)
	if err := g.drop(ctx, view, p, plan.drops); err != nil {
		return nil, err
	}
	body := fsm.FillPool{Pool: name, Wait: plan.wait, Failed: plan.keep}
	switch {
	case len(plan.keep) > 0:
		body.Wait = &fsm.Wait{Reason: api.WaitBootFailed, Error: plan.keep[0].Reason}
	case plan.fill > 0:
		g.chooseHosts(g.view(), p, plan.fill, &body, taken)
	case plan.want > 0: // it backs off for want of room, which may have come
		g.chooseHosts(g.view(), p, plan.want, &body, taken)
		body.Room, body.Wait = len(body.Spares) > 0, plan.wait
	}
	if len(body.Spares) == 0 && body.Wait == nil && !plan.roll {
		return nil, nil
	}
	return &body, nil
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

// chooseHosts ranks hosts for the spares and gives each the next one, with a few more for the case that others take it
// first; when all have one, they are ranked anew with what they will hold.
func (g *reign) chooseHosts(view fsm.View, p *fsm.Pool, fill int, body *fsm.FillPool, taken map[string]load) {
	n := need{tenant: p.Tenant, leased: p.Tenant != "", guestOS: p.GuestOS, vcpus: p.VCPUs, memoryMiB: p.MemoryMiB, nodes: p.Nodes, poolSelector: p.NodeSelector, spare: true, claim: p.RotateIdentity}
	image := view.Image(p.Image)
	if image == nil {
		body.Wait = &fsm.Wait{Reason: api.WaitImage, Error: "image " + p.Image + " is no longer in the catalog"}
		return
	}
	n.imagePath = image.Path
	var hosts []string
	for range fill {
		if len(hosts) == 0 {
			var reasons map[string]int
			if hosts, reasons = g.r.hosts.rank(view, n, taken); len(hosts) == 0 {
				body.Wait = noRoom(reasons)
				return
			}
		}
		id := newID()
		body.Spares = append(body.Spares, fsm.Spare{ID: id, Name: "warm-" + p.Name + "-" + id[len(id)-8:], Candidates: hosts[:min(len(hosts), spareCandidates)]})
		taken[hosts[0]] = taken[hosts[0]].plus(n)
		hosts = hosts[1:]
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
