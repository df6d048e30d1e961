package runners

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const app = "acme/app"

var morning = time.Date(2026, 1, 2, 8, 0, 0, 0, time.UTC)

func at(d time.Duration) api.Time { return api.TimeOf(morning.Add(d)) }

func queuedJob(id int64, labels ...string) job {
	return job{repo: app, id: id, labels: labels, since: morning.Add(time.Duration(id) * time.Second)}
}

// heldVM is one of the pool mac, launched at the beginning; runner 0 is one that is not started.
func heldVM(name string, runner int) api.VM {
	vm := api.VM{ID: "id-" + name, Name: name, State: api.StateRunning, CreatedAt: at(0), Labels: map[string]string{labelPool: "mac", labelRepo: app}}
	if runner != 0 {
		vm.Labels[labelRunner] = fmt.Sprint(runner)
	}
	return vm
}

// said writes steps down so that they can be compared.
func said(s steps) (out []string) {
	for _, l := range s.launches {
		out = append(out, "launch "+l.name+" of "+l.pool.Name)
	}
	for _, one := range s.starts {
		out = append(out, "start "+one.vm.Name)
	}
	for _, e := range s.ends {
		out = append(out, "end "+e.vm.Name+": "+e.why)
	}
	slices.Sort(out)
	return out
}

func TestPlan(t *testing.T) {
	pools := []Pool{{Name: "mac", Labels: []string{"self-hosted", "macOS", "fluxvm"}, MaxRunners: 3}, {Name: "linux", Labels: []string{"self-hosted", "Linux", "fluxvm"}, MaxRunners: 1}}
	up, idle, offline := runner{online: true, busy: true}, runner{online: true}, runner{}
	failed := heldVM("fluxvm-gha-1", 5)
	failed.State = api.StateFailed
	deleting := heldVM("fluxvm-gha-1", 5)
	deleting.State = api.StateDeleting
	old := heldVM("fluxvm-gha-1", 5)
	old.Labels[labelPool] = "gone"
	for name, c := range map[string]struct {
		world
		want []string
	}{
		"each job gets a VM, by labels in any case": {
			world{jobs: []job{queuedJob(1, "self-hosted", "MacOS"), queuedJob(2, "linux"), queuedJob(3, "windows"), queuedJob(4)}, now: at(0)},
			[]string{"launch fluxvm-gha-1 of mac", "launch fluxvm-gha-2 of linux"}},
		"the first pool that takes a job does": {
			world{jobs: []job{queuedJob(1, "fluxvm")}, now: at(0)}, []string{"launch fluxvm-gha-1 of mac"}},
		"no more than the most, the oldest job first": {
			world{jobs: []job{queuedJob(4, "macos"), queuedJob(3, "macos"), queuedJob(2, "macos"), queuedJob(1, "macos")}, now: at(0)},
			[]string{"launch fluxvm-gha-1 of mac", "launch fluxvm-gha-2 of mac", "launch fluxvm-gha-3 of mac"}},
		"one that works counts to the most, and not for what is queued": {
			world{jobs: []job{queuedJob(1, "macos"), queuedJob(2, "macos"), queuedJob(3, "macos")}, vms: []api.VM{heldVM("fluxvm-gha-9", 5)},
				runners: map[string]map[int64]runner{app: {5: up}}, now: at(0)},
			[]string{"launch fluxvm-gha-1 of mac", "launch fluxvm-gha-2 of mac"}},
		"one that waits serves any job": {
			world{jobs: []job{queuedJob(1, "macos")}, vms: []api.VM{heldVM("fluxvm-gha-9", 5)}, runners: map[string]map[int64]runner{app: {5: idle}}, now: at(time.Hour)}, nil},
		"a job whose own VM went to another gets a second": {
			world{jobs: []job{queuedJob(1, "macos")}, vms: []api.VM{heldVM("fluxvm-gha-1", 5)}, runners: map[string]map[int64]runner{app: {5: up}}, now: at(0)},
			[]string{"launch fluxvm-gha-1-2 of mac"}},
		"what is under way counts": {
			world{jobs: []job{queuedJob(1, "macos")}, underway: map[string]launch{"fluxvm-gha-1": {&pools[0], app, "fluxvm-gha-1"}}, now: at(0)}, nil},
		"what is under way is left alone and counted once": {
			world{jobs: []job{queuedJob(1, "macos"), queuedJob(2, "macos")}, vms: []api.VM{heldVM("fluxvm-gha-1", 0)},
				underway: map[string]launch{"fluxvm-gha-1": {&pools[0], app, "fluxvm-gha-1"}}, now: at(time.Hour)},
			[]string{"launch fluxvm-gha-2 of mac"}},
		"one of an earlier run is started, and serves": {
			world{jobs: []job{queuedJob(1, "macos")}, vms: []api.VM{heldVM("fluxvm-gha-1", 0)}, runners: map[string]map[int64]runner{app: {}}, now: at(time.Minute)},
			[]string{"start fluxvm-gha-1"}},
		"a runner that is gone has done its job": {
			world{vms: []api.VM{heldVM("fluxvm-gha-1", 5)}, runners: map[string]map[int64]runner{app: {}}, now: at(0)},
			[]string{"end fluxvm-gha-1: its job is done"}},
		"not when GitHub could not be asked": {
			world{vms: []api.VM{heldVM("fluxvm-gha-1", 5)}, now: at(time.Hour)}, nil},
		"a runner that never came up is ended in time": {
			world{vms: []api.VM{heldVM("fluxvm-gha-1", 5), heldVM("fluxvm-gha-2", 0)}, runners: map[string]map[int64]runner{app: {5: offline}}, now: at(startGrace + time.Second)},
			[]string{"end fluxvm-gha-1: its runner has not come up", "end fluxvm-gha-2: its runner has not come up"}},
		"one at work stays, however old and silent": {
			world{vms: []api.VM{heldVM("fluxvm-gha-1", 5)}, runners: map[string]map[int64]runner{app: {5: {busy: true}}}, now: at(48 * time.Hour)}, nil},
		"one too many waits a while and is ended": {
			world{jobs: []job{queuedJob(1, "macos")}, vms: []api.VM{heldVM("fluxvm-gha-1", 5), heldVM("fluxvm-gha-2", 6)},
				runners: map[string]map[int64]runner{app: {5: idle, 6: idle}}, now: at(idleGrace + time.Second)},
			[]string{"end fluxvm-gha-2: no job is queued for it"}},
		"but not at once": {
			world{vms: []api.VM{heldVM("fluxvm-gha-1", 5)}, runners: map[string]map[int64]runner{app: {5: idle}}, now: at(idleGrace)}, nil},
		"a VM that failed is ended whatever GitHub says": {
			world{vms: []api.VM{failed}, runners: map[string]map[int64]runner{app: {5: up}}, now: at(0)},
			[]string{"end fluxvm-gha-1: its runner has not come up"}},
		"one that goes already is left alone": {
			world{jobs: []job{queuedJob(1, "macos")}, vms: []api.VM{deleting}, runners: map[string]map[int64]runner{app: {}}, now: at(0)},
			[]string{"launch fluxvm-gha-1-2 of mac"}},
		"one whose pool is gone ends after its job": {
			world{vms: []api.VM{old}, runners: map[string]map[int64]runner{app: {}}, now: at(0)},
			[]string{"end fluxvm-gha-1: its pool is not in the configuration any more"}},
		"and not before": {
			world{vms: []api.VM{old}, runners: map[string]map[int64]runner{app: {5: up}}, now: at(0)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, said(plan(pools, c.world))); diff != "" {
				t.Errorf("plan differs (-want +got):\n%s", diff)
			}
		})
	}
}
