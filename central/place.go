package central

import (
	"cmp"
	"slices"
	"strings"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// maxCandidates is how many hosts a command names.
const maxCandidates = 32

// need is what is to be placed, and where it may go.
type need struct {
	tenant                      string
	leased                      bool // only hosts that the tenant leases
	guestOS, backend, imagePath string
	vcpus                       int
	memoryMiB                   int64
	node                        string            // empty: any
	nodes                       []string          // a pool's; empty: any
	selector                    map[string]string // the launch's
	poolSelector                map[string]string
	tried                       map[string]string // hosts that refused it, and the reason each stands for
	claim                       bool              // the host's daemon must be able to give a claim to the guest
	spare                       bool              // for a pool: the host must be able to hand over, and not be starting too many
}

// weather is what a host last reported of itself, beside its committed facts.
type weather struct {
	known     bool // it was heard by this process
	mute      bool // it does not answer this process now
	density   api.Density
	vcpus     int // sum over its own list of VMs, with those made on the host directly
	memoryMiB int64
	vms       int
	macOS     int
	images    []string // what its drivers offer; empty where they do not say
}

// ranked is a host that fits, with what the order looks at.
type ranked struct {
	name      string
	warn      bool
	own       bool  // the tenant leases it, so it is paid for
	residual  int64 // thousandths of the host left after placement
	leftMiB   int64
	vms       int
	slots     int
	available int64
}

// verdict is what placement makes of one host: a rank from 1 on, or the reason that rules it out.
type verdict struct {
	ranked
	why string
}

// hostFacts is what placement looks at of one host: its row, what rows take of it, its lease, and what it reports.
type hostFacts struct {
	node  *fsm.Node
	use   fsm.Use
	lease *fsm.Lease
	weather

	// Of these: what is asked of every host at every launch.
	sim, warn, critical bool
	cpus                int64 // with overcommit
	heldCPU, heldMiB    int64 // the larger of what the rows take and what it reports
	heldVMs             int
}

func hostFactsOf(view fsm.View, node *fsm.Node, w weather) hostFacts {
	f := hostFacts{node: node, use: view.Use(node.Name), lease: view.LeaseOf(node), weather: w}
	f.sim = node.Backend("") == api.BackendSim
	if level := w.density.HostPressureLevel; level != nil {
		f.warn, f.critical = *level == api.PressureWarn, *level == api.PressureCritical
	}
	f.cpus = int64(node.VCPUsTotal * max(node.CPUOvercommit, 1))
	f.heldCPU, f.heldMiB = int64(max(f.use.VCPUs, w.vcpus)), max(f.use.MemoryMiB, w.memoryMiB)
	f.heldVMs = max(f.use.VMs, w.vms)
	return f
}

// judge looks at every host: first those that can take the need, best first, then the others in the order of their
// names. taken adds to what the rows say of a host: what the caller is about to place there.
func judge(view fsm.View, of func(node string) weather, n need, taken map[string]load) (fits, others []verdict) {
	limit := view.Policy().MaxBootsPerNode
	for node := range view.Nodes(n.node) {
		if n.node != "" && node.Name != n.node {
			break // it is the first, or not there
		}
		f := hostFactsOf(view, node, of(node.Name))
		if why := f.exclude(&n, taken[node.Name], limit); why != "" {
			others = append(others, verdict{ranked{name: node.Name}, why})
			continue
		}
		fits = append(fits, verdict{ranked: f.score(&n, taken[node.Name])})
	}
	slices.SortFunc(fits, func(a, b verdict) int { return compare(&a.ranked, &b.ranked, n.guestOS) })
	return fits, others
}

// exclude names what keeps a host from taking the need; empty if nothing does. limit is how many VMs a host may start at
// a time.
func (f *hostFacts) exclude(n *need, taken load, limit int) string {
	node := f.node
	sim := f.sim
	if n.backend != "" {
		sim = node.Backend(n.backend) == api.BackendSim
	}
	switch {
	case len(n.nodes) > 0 && !slices.Contains(n.nodes, node.Name),
		len(n.selector) > 0 && !api.Matches(n.selector, node.Labels), len(n.poolSelector) > 0 && !api.Matches(n.poolSelector, node.Labels):
		return api.WhyLabel
	case n.tried[node.Name] != "":
		return n.tried[node.Name]
	case f.mute:
		return api.WhyUnhealthy
	case !strings.HasPrefix(n.imagePath, api.LocalImage) && strings.HasPrefix(n.imagePath, "sim:") != sim:
		return api.WhyBackend // of an imported one the reports tell
	}
	if why := fsm.Fit(node, f.use, f.lease, fsm.Need{Tenant: n.tenant, Leased: n.leased, GuestOS: n.guestOS, Backend: n.backend, VCPUs: n.vcpus + taken.vcpus, MemoryMiB: n.memoryMiB + taken.memoryMiB, Claim: n.claim}); why != "" {
		return why
	}
	overcommit := max(node.CPUOvercommit, 1)
	weight := n.vcpus + taken.vcpus
	if n.guestOS == api.GuestMacOS { // macOS guests get no overcommit
		weight *= overcommit
	}
	switch {
	case len(f.images) > 0 && lacks(f.images, n.imagePath), len(f.images) == 0 && strings.HasPrefix(n.imagePath, api.LocalImage):
		return api.WhyImage
	case f.critical:
		return api.WhyPressure
	case n.spare && !node.Rename:
		return api.WhyBackend
	case n.spare && f.use.Booting+taken.vms >= limit:
		return api.WhyStartLimit
	case n.guestOS == api.GuestMacOS && max(f.use.MacOS, f.macOS)+taken.macOS >= api.MacOSPerHost:
		return api.WhyMacOSLimit
	case int64(f.vcpus+weight) > f.cpus:
		return api.WhyCPU
	case f.memoryMiB+n.memoryMiB+taken.memoryMiB > node.MemoryMiBTotal:
		return api.WhyMemory
	}
	return ""
}

// load is what a host is about to get and no row shows yet.
type load struct {
	vms, vcpus, macOS int
	memoryMiB         int64
}

// plus adds one VM of the kind.
func (l load) plus(n need) load {
	l.vms, l.vcpus, l.memoryMiB = l.vms+1, l.vcpus+n.vcpus, l.memoryMiB+n.memoryMiB
	if n.guestOS == api.GuestMacOS {
		l.macOS++
	}
	return l
}

// score is what the order looks at of a host that can take the need.
func (f *hostFacts) score(n *need, taken load) ranked {
	node := f.node
	leftMiB := node.MemoryMiBTotal - f.heldMiB - taken.memoryMiB - n.memoryMiB
	leftCPU := f.cpus - f.heldCPU - int64(taken.vcpus+n.vcpus)
	residual := min(leftMiB*1000/max(node.MemoryMiBTotal, 1), leftCPU*1000/max(f.cpus, 1))
	return ranked{name: node.Name, own: f.lease.UsableBy(n.tenant), warn: f.warn, residual: residual, leftMiB: leftMiB, vms: f.heldVMs + taken.vms,
		slots: f.density.WarmSlotsReady, available: f.density.HostMemAvailableMiB}
}

// compare puts the better host first. macOS guests go to the tightest fit, so that large Macs stay free.
func compare(a, b *ranked, guestOS string) int {
	if out := cmp.Or(boolCompare(a.warn, b.warn), boolCompare(b.own, a.own)); out != 0 {
		return out
	}
	fit := cmp.Compare(b.residual, a.residual)
	if guestOS == api.GuestMacOS {
		fit = cmp.Compare(a.leftMiB, b.leftMiB)
	}
	if fit != 0 {
		return fit
	}
	if out := cmp.Or(cmp.Compare(a.vms, b.vms), cmp.Compare(b.slots, a.slots), cmp.Compare(b.available, a.available)); out != 0 {
		return out
	}
	return cmp.Compare(a.name, b.name)
}

func boolCompare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// lacks says whether a host that reports these images does not have the one at the path. Each host reports the images that
// were imported on it; of others it knows only where a driver knows them all.
func lacks(reported []string, path string) bool {
	if slices.Contains(reported, path) {
		return false
	}
	return strings.HasPrefix(path, api.LocalImage) || slices.ContainsFunc(reported, func(r string) bool { return !strings.HasPrefix(r, api.LocalImage) })
}
