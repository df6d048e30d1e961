package central

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAReplicaAloneLaunchesRestartsAndStays(t *testing.T) {
	scenarioOf(t, 1, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		first := r.launch("central-1", body{"pool": "p", "name": "a"})
		if !first.Warm {
			t.Error("the first launch was not warm")
		}
		if got := r.call("central-1", "DELETE", "/fleet/cluster/replicas/central-1", nil); got.code() != api.CodeConflict {
			t.Errorf("removing the only replica: %s", got)
		}
		r.crash("central-1")
		var full atomic.Bool
		r.startAs("central-1", func(c *Config) {
			c.free = func() (uint64, error) {
				if full.Load() {
					return 0, nil
				}
				return 1 << 40, nil
			}
		})
		r.serving()
		if vms := r.vms(); len(vms) < 1 || r.call("central-1", "GET", "/fleet/vms/a", nil).status != http.StatusOK {
			t.Errorf("after the restart: %+v", vms)
		}
		r.registered()
		r.full("p")
		full.Store(true)
		r.wait(2 * rosterPeriod)
		if got := r.call("central-1", "POST", "/fleet/vms", body{"pool": "p"}); got.code() != api.CodeStorageFull {
			t.Errorf("with a full disk and nobody to step aside for: %s, want 507", got)
		}
		full.Store(false)
		r.wait(2 * rosterPeriod)
		r.launch("central-1", body{"pool": "p", "name": "b"})
	})
}

func TestFiveReplicasOutliveTwoAndNotThree(t *testing.T) {
	scenarioOf(t, 5, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		var down []string
		for _, name := range []string{"b", "c"} {
			old := r.leader()
			r.crash(old)
			down = append(down, old)
			r.launch(r.newLeader(old), body{"name": name, "image": "tiny"})
		}
		r.applied() // else what is left may not have heard yet that the last launch is committed
		third := r.leader()
		r.crash(third)
		down = append(down, third)
		var left string
		for _, name := range r.names {
			if r.member(name) != nil {
				left = name
			}
		}
		r.wait(10 * time.Second)
		if got := r.call(left, "POST", "/fleet/vms", body{"name": "d", "image": "tiny"}); got.code() != api.CodeNotLeader && got.code() != api.CodeUnavailable {
			t.Errorf("a launch with two of five: %s, want 503", got)
		}
		if got := r.call(left, "GET", "/fleet/vms", nil); got.status != http.StatusServiceUnavailable {
			t.Errorf("a current read with two of five: %s, want 503", got)
		}
		if vms := into[api.List[api.VM]](t, r.call(left, "GET", "/fleet/vms?stale=true", nil)).Items; len(vms) != 3 {
			t.Errorf("a stale read with two of five shows %d VMs, want 3", len(vms))
		}
		for i, name := range down {
			r.start(name)
			r.serving()
			r.launch(r.leader(), body{"name": []string{"e", "f", "g"}[i], "image": "tiny"})
		}
		r.applied()
		for _, name := range r.names {
			if got := into[api.List[api.VM]](t, r.call(name, "GET", "/fleet/vms?stale=true", nil)).Items; len(got) != 6 {
				t.Errorf("%s has %d VMs, want 6", name, len(got))
			}
		}
	})
}
