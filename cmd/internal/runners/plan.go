package runners

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What a VM was made for is in its labels.
const (
	labelPool   = "gha.fluxvm/pool"
	labelRepo   = "gha.fluxvm/repository"
	labelRunner = "gha.fluxvm/runner" // GitHub's number of it, from when it is about to be started

	namePrefix = "fluxvm-gha-"
)

const (
	startGrace = 10 * time.Minute // what a runner has from its VM's launch to be seen by GitHub
	idleGrace  = 2 * time.Minute  // how long a runner waits for a job when none is queued
)

// job is one that waits for a runner.
type job struct {
	repo   string
	id     int64
	labels []string
	since  time.Time
}

// runner is one that GitHub knows.
type runner struct {
	id           int64
	online, busy bool
}

// world is what plan decides from. The VMs were listed first and the jobs last: what is missing of a VM's runner is
// then really gone, and a runner that has just taken a job counts as one that waits for one rather than the reverse.
type world struct {
	vms      []api.VM                    // those with our labels
	runners  map[string]map[int64]runner // by repository; one that could not be asked has no entry
	jobs     []job                       // queued ones
	underway map[string]launch           // by the VM's name: what is being done right now
	now      api.Time
}

// launch is a VM to be made for a job.
type launch struct {
	pool *Pool
	repo string
	name string
}

// start is a VM whose runner is to be started.
type start struct {
	launch
	vm api.VM
}

// ending is a VM to be deleted, and its runner with it.
type ending struct {
	vm  api.VM
	why string
}

type steps struct {
	launches []launch
	starts   []start
	ends     []ending
}

// plan decides what is to be done now. It reads nothing else and changes nothing.
func plan(pools []Pool, w world) (out steps) {
	for i := range pools {
		planPool(&out, pools, i, w)
	}
	for _, vm := range w.vms { // of pools that are no more: what runs ends with its job
		name := vm.Labels[labelPool]
		if !slices.ContainsFunc(pools, func(p Pool) bool { return p.Name == name }) && w.fate(vm) != works {
			out.ends = append(out.ends, ending{vm, "its pool is not in the configuration any more"})
		}
	}
	return out
}

// planPool decides for one pool. Any idle runner takes any job of its pool and repository, so numbers count, and not for
// whose job a VM was made.
func planPool(out *steps, pools []Pool, i int, w world) {
	p, held := &pools[i], 0
	idle := map[string][]api.VM{} // by repository: VMs that wait for a job, or will
	supply, names := map[string]int{}, map[string]bool{}
	for _, one := range w.underway {
		names[one.name] = true
		if one.pool.Name == p.Name {
			held++
			supply[one.repo]++
		}
	}
	for _, vm := range w.vms {
		underway := names[vm.Name]
		names[vm.Name] = true
		if underway || vm.Labels[labelPool] != p.Name || vm.State == api.StateDeleting {
			continue
		}
		held++
		repo := vm.Labels[labelRepo]
		switch w.fate(vm) {
		case unstarted:
			out.starts = append(out.starts, start{launch{p, repo, vm.Name}, vm})
			supply[repo]++
		case waits:
			idle[repo] = append(idle[repo], vm)
			supply[repo]++
		case finished:
			out.ends = append(out.ends, ending{vm, "its job is done"})
		case broken:
			out.ends = append(out.ends, ending{vm, "its runner has not come up"})
		}
	}
	queued := map[string]int{}
	oldestFirst := func(a, b job) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.id, b.id)) }
	for _, j := range slices.SortedFunc(slices.Values(w.jobs), oldestFirst) {
		if slices.IndexFunc(pools, func(one Pool) bool { return one.takes(j.labels) }) != i {
			continue // the first pool that takes it does
		}
		if queued[j.repo]++; queued[j.repo] <= supply[j.repo] || held >= p.MaxRunners {
			continue
		}
		name := freeName(j.id, names)
		names[name] = true
		held++
		out.launches = append(out.launches, launch{p, j.repo, name})
	}
	for repo, vms := range idle {
		for _, vm := range vms[min(len(vms), queued[repo]):] {
			if w.now.Sub(begun(vm)) > idleGrace {
				out.ends = append(out.ends, ending{vm, "no job is queued for it"})
			}
		}
	}
}

// freeName is the name of a VM for a job. The job's own is taken when an earlier VM for it has gone to another job.
func freeName(job int64, taken map[string]bool) string {
	name := namePrefix + strconv.FormatInt(job, 10)
	for n := 2; taken[name]; n++ {
		name = fmt.Sprintf("%s%d-%d", namePrefix, job, n)
	}
	return name
}

type fate int

const (
	works     fate = iota // keep it
	unstarted             // its runner is still to be started
	waits                 // its runner waits for a job, or is coming up
	finished
	broken
)

func (w world) fate(vm api.VM) fate {
	late := w.now.Sub(begun(vm)) > startGrace
	id := vm.Labels[labelRunner]
	switch vm.State {
	case api.StateFailed, api.StateStopped, api.StateLost:
		return broken
	}
	if id == "" && late {
		return broken
	} else if id == "" {
		return unstarted
	}
	runners, asked := w.runners[vm.Labels[labelRepo]]
	number, err := strconv.ParseInt(id, 10, 64)
	if !asked || err != nil {
		return works
	}
	r, there := runners[number]
	switch {
	case !there:
		return finished
	case r.busy:
		return works
	case !r.online && late:
		return broken
	}
	return waits
}

// begun is when the VM was launched: a warm one had booted before.
func begun(vm api.VM) api.Time { return max(vm.CreatedAt, vm.ClaimedAt) }
