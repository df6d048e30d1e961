package central

import (
	"math"
	"strings"
	"sync"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// hosts keeps, side by side and in the order of their names, what placement looks at of every host: to gather it anew
// for each launch costs more than all the rest of a launch once there are thousands. Before each look it takes over what
// has changed since the last one; it decides nothing that judge, which gathers anew, would not.
type hosts struct {
	state *fsm.State
	fleet *fleet
	lanes *lanes

	mu    sync.Mutex
	of    <-chan struct{} // View.Abandoned of the state that it is of
	index uint64          // of the view that it shows
	all   []hostFacts
	plain []plainHost // of the same hosts
	at    map[string]int
}

func newHosts(state *fsm.State, fleet *fleet, lanes *lanes) *hosts {
	return &hosts{state: state, fleet: fleet, lanes: lanes, at: map[string]int{}}
}

// rank is rank on what is kept.
func (h *hosts) rank(view fsm.View, n need, taken map[string]load) (candidates []string, reasons map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sync(view)
	h.listen(view)
	limit := view.Policy().MaxBootsPerNode
	from, to := 0, len(h.all)
	if n.node != "" {
		at, known := h.at[n.node]
		if !known {
			return nil, map[string]int{}
		}
		from, to = at, at+1
	}
	defer h.special(n, taken)()
	simple := len(n.nodes)+len(n.selector)+len(n.poolSelector) == 0 && n.backend == "" && !n.leased && n.guestOS != api.GuestMacOS && !n.claim && !strings.HasPrefix(n.imagePath, api.LocalImage)
	sim, most := strings.HasPrefix(n.imagePath, "sim:"), math.MaxInt32
	if n.spare {
		most = limit
	}
	best := make([]ranked, 0, maxCandidates)
	reasons = map[string]int{}
	last, count := "", 0 // reasons come in runs
	for i := from; i < to; i++ {
		if p := &h.plain[i]; simple && p.ok && p.sim == sim && (!n.spare || p.rename && int(p.booting) < most) {
			leftMiB, leftCPU := p.memoryMiB-p.heldMiB-n.memoryMiB, p.cpus-p.heldCPU-int64(n.vcpus)
			if leftMiB >= 0 && leftCPU >= 0 {
				if len(best) < maxCandidates || !p.behind(&best[len(best)-1], leftMiB, leftCPU) {
					best = insertRanked(best, h.all[i].score(&n, load{}), n.guestOS)
				}
				continue
			}
		}
		f := &h.all[i]
		if why := f.exclude(&n, taken[f.node.Name], limit); why != "" {
			if why != last {
				reasons[last], last, count = reasons[last]+count, why, 0
			}
			count++
			continue
		}
		best = insertRanked(best, f.score(&n, taken[f.node.Name]), n.guestOS)
	}
	reasons[last] += count
	delete(reasons, "")
	for i := range best {
		candidates = append(candidates, best[i].name)
	}
	return candidates, reasons
}

// special takes care that hosts which the need or the moment makes something special of are looked at in full, until the
// function that it gives is called.
func (h *hosts) special(n need, taken map[string]load) (done func()) {
	var full, mute []int
	mark := func(at int) {
		if h.plain[at].ok {
			h.plain[at].ok, full = false, append(full, at)
		}
	}
	for name := range taken {
		if at, known := h.at[name]; known {
			mark(at)
		}
	}
	for name := range n.tried {
		if at, known := h.at[name]; known {
			mark(at)
		}
	}
	if skipped := h.lanes.skipped(); len(skipped) > 0 {
		for at := range h.all {
			if skipped[h.all[at].node.URL] {
				h.all[at].mute, mute = true, append(mute, at)
				mark(at)
			}
		}
	}
	return func() {
		for _, at := range full {
			h.plain[at].ok = true
		}
		for _, at := range mute {
			h.all[at].mute = false
		}
	}
}

// plainHost is what decides about a host for which nothing but room has to be looked at: what most hosts are for most
// launches. They lie close together, for all of them are read.
type plainHost struct {
	ok, warn, sim, rename                        bool
	booting, vms, slots                          int32
	memoryMiB, heldMiB, cpus, heldCPU, available int64
}

func plainOf(f *hostFacts) plainHost {
	n := f.node
	return plainHost{ok: n.State == api.NodeHealthy && !n.Cordoned && !n.Draining && n.Lease == "" && !f.critical && len(f.images) == 0 && n.MemoryMiBTotal > 0 && f.cpus > 0,
		warn: f.warn, sim: f.sim, rename: n.Rename, booting: int32(f.use.Booting), vms: int32(f.heldVMs), slots: int32(f.density.WarmSlotsReady),
		memoryMiB: n.MemoryMiBTotal, heldMiB: f.heldMiB, cpus: f.cpus, heldCPU: f.heldCPU, available: f.density.HostMemAvailableMiB}
}

// behind says whether compare would put the host, whose name is the greater one, behind the other.
func (p *plainHost) behind(r *ranked, leftMiB, leftCPU int64) bool {
	switch {
	case p.warn != r.warn:
		return p.warn
	case r.own, leftMiB*1000 < r.residual*p.memoryMiB, leftCPU*1000 < r.residual*p.cpus: // its residual is less
		return true
	case leftMiB*1000 >= (r.residual+1)*p.memoryMiB && leftCPU*1000 >= (r.residual+1)*p.cpus:
		return false
	case int(p.vms) != r.vms:
		return int(p.vms) > r.vms
	case int(p.slots) != r.slots:
		return int(p.slots) < r.slots
	}
	return p.available <= r.available
}

// insertRanked keeps the best in order. Of equals, the one that came first is the better one: it has the lesser name.
func insertRanked(best []ranked, r ranked, guestOS string) []ranked {
	if len(best) == maxCandidates {
		if compare(&r, &best[len(best)-1], guestOS) >= 0 {
			return best
		}
		best = best[:len(best)-1]
	}
	at := len(best)
	for at > 0 && compare(&r, &best[at-1], guestOS) < 0 {
		at--
	}
	best = append(best, ranked{})
	copy(best[at+1:], best[at:])
	best[at] = r
	return best
}

// sync takes over what the view shows of hosts and their VMs.
func (h *hosts) sync(view fsm.View) {
	index := view.Index()
	if h.of == view.Abandoned() && index == h.index {
		return
	}
	changed, ok := h.state.Touched(min(h.index, index)) // an older view has to be looked at as it was
	if h.of != view.Abandoned() || !ok {
		h.rebuild(view)
		return
	}
	for _, name := range changed {
		node, at := view.Node(name), -1
		if i, known := h.at[name]; known {
			at = i
		}
		if node == nil && at < 0 {
			continue
		}
		if node == nil || at < 0 { // it came or went
			h.rebuild(view)
			return
		}
		h.set(at, hostFactsOf(view, node, h.all[at].weather))
	}
	h.index = index
}

func (h *hosts) rebuild(view fsm.View) {
	h.of, h.index, h.all, h.at = view.Abandoned(), view.Index(), h.all[:0], map[string]int{}
	for node := range view.Nodes("") {
		h.at[node.Name] = len(h.all)
		h.all = append(h.all, hostFactsOf(view, node, h.fleet.weather(node.Name)))
	}
	h.plain = make([]plainHost, len(h.all))
	for at := range h.all {
		h.plain[at] = plainOf(&h.all[at])
	}
}

func (h *hosts) set(at int, f hostFacts) {
	h.all[at], h.plain[at] = f, plainOf(&f)
}

// listen takes over what hosts have reported.
func (h *hosts) listen(view fsm.View) {
	for name := range h.fleet.takeNews() {
		if at, known := h.at[name]; known {
			h.set(at, hostFactsOf(view, h.all[at].node, h.fleet.weather(name)))
		}
	}
}
