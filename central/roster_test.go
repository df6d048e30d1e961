package central

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// anew starts every replica again, one after the other, with another configuration.
func (r *rig) anew(change func(name string, c *Config)) {
	r.t.Helper()
	for _, name := range r.names {
		r.end(name)
		r.startAs(name, func(c *Config) { change(name, c) })
		r.serving()
	}
}

func TestANewKindOfCommandWaitsUntilEveryMemberKnowsIt(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.anew(func(name string, c *Config) {
			c.baseline, c.newest = fsm.KindAdoptNode, fsm.Newest
			if name == "central-3" {
				c.newest = fsm.KindAdoptNode
			}
		})
		r.registered()
		lose := func() reply {
			return r.call(r.leader(), "POST", "/fleet/nodes/n1/lost", body{})
		}
		refused := func(when string) {
			t.Helper()
			r.wait(2 * rosterPeriod)
			if got := lose(); got.code() != api.CodeUnavailable || !strings.Contains(got.String(), "central-3") || !strings.Contains(got.String(), "upgrade") {
				t.Errorf("a new kind %s: %s, want 503 that names central-3", when, got)
			}
		}
		refused("with an old member")
		r.launch(r.leader(), body{"name": "a", "image": "tiny"}) // what all know goes on
		if r.leader() == "central-3" {
			r.call("central-3", "POST", "/fleet/cluster/transfer", nil)
			r.newLeader("central-3")
		}
		r.crash("central-3")
		refused("with an old member that is down")
		r.startAs("central-3", func(c *Config) { c.baseline, c.newest = fsm.KindAdoptNode, fsm.Newest })
		r.serving()
		r.wait(2 * rosterPeriod)
		if got := lose(); got.code() != api.CodeConflict {
			t.Errorf("once all know it: %s, want the state's own answer, that a healthy host is not lost", got)
		}
	})
}

func TestAReplicaThatIsTooOldForTheLogEndsWith79(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		old := r.follower()
		r.end(old)
		exits := make(chan string, 8)
		r.startAs(old, func(c *Config) {
			c.newest, c.baseline = fsm.KindAdoptNode, fsm.KindAdoptNode
			c.Exit = func(code int, message string) {
				select {
				case exits <- fmt.Sprint(code, " ", message):
				default:
				}
			}
		})
		r.serving()
		r.call(r.leader(), "POST", "/fleet/nodes/n1/lost", body{})
		select {
		case said := <-exits:
			if !strings.HasPrefix(said, "79 ") || !strings.Contains(said, "upgrade") {
				t.Errorf("it ended with %q", said)
			}
		case <-time.After(time.Minute):
			t.Error("it runs on with a state that parts from the others'")
		}
		r.crash(old)
		r.start(old)
		r.serving()
	})
}

func TestALeaderWithAFullDiskStepsAsideAndOnlyAFullMajorityRefuses(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		free := map[string]*atomic.Int64{}
		for _, name := range r.names {
			free[name] = &atomic.Int64{}
			free[name].Store(DefaultDiskReserve)
		}
		r.anew(func(name string, c *Config) {
			c.free = func() (uint64, error) { return uint64(free[name].Load()), nil }
		})
		r.registered()
		kept := r.launch(r.leader(), body{"name": "kept", "image": "tiny"})
		first := r.leader()
		free[first].Store(DefaultDiskReserve - 1)
		next := r.newLeader(first)
		if got, err := r.try(first, "", "GET", "/readyz", nil); err != nil || got.status != http.StatusServiceUnavailable || !strings.Contains(got.String(), "disk") {
			t.Errorf("the full replica is ready: %s, %v", got, err)
		}
		for i := range 3 { // whoever is asked
			r.launch(r.names[i], body{"name": fmt.Sprint("goes-on-", i), "image": "tiny"})
		}
		r.wait(time.Minute)
		if now := r.leader(); now == first {
			t.Errorf("%s leads again, with a full disk", first)
		}

		free[next].Store(0)
		r.eventually("leadership with the last that has room", time.Minute, func() bool { l := r.leader(); return l != first && l != next })
		r.wait(2 * rosterPeriod)
		launch := func() reply {
			return r.call(r.leader(), "POST", "/fleet/vms", body{"image": "tiny"})
		}
		got := launch()
		if got.status != http.StatusInsufficientStorage || got.code() != api.CodeStorageFull || !strings.Contains(got.String(), first) || !strings.Contains(got.String(), next) {
			t.Errorf("a launch with two of three disks full: %s, want 507 that names both", got)
		}
		if got := r.call(r.leader(), "GET", "/fleet/vms/"+kept.VM.ID, nil); got.status != http.StatusOK {
			t.Errorf("a read: %s", got)
		}
		if got := r.call(r.leader(), "DELETE", "/fleet/vms/"+kept.VM.ID, nil); got.status != http.StatusNoContent {
			t.Errorf("a delete: %s", got)
		}
		r.eventually("the VM to be gone", time.Minute, func() bool { return len(r.vms()) == 3 })

		free[next].Store(DefaultDiskReserve + DefaultDiskReserve/8)
		r.wait(2 * rosterPeriod)
		if got := launch(); got.code() != api.CodeStorageFull {
			t.Errorf("with room for a moment only: %s, want 507 still", got)
		}
		free[next].Store(DefaultDiskReserve * 2)
		r.wait(2 * rosterPeriod)
		if got := launch(); got.status != http.StatusCreated {
			t.Errorf("once there is room: %s", got)
		}
	})
}

func TestALeaderThatCannotLetGoEnds(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		stuck, exits := make(chan struct{}), make(chan string, 1)
		var hang atomic.Bool
		name := r.follower()
		r.end(name)
		r.startAs(name, func(c *Config) {
			c.free = func() (uint64, error) {
				if hang.Load() {
					<-stuck // as a file system that does not answer
				}
				return 1 << 40, nil
			}
			c.Exit = func(code int, message string) { exits <- fmt.Sprint(code, " ", message) }
		})
		r.serving()
		if got := r.call(r.leader(), "POST", "/fleet/cluster/transfer", body{"to": name}); got.status != http.StatusNoContent {
			t.Fatalf("handing over: %s", got)
		}
		r.eventually("it to lead", time.Minute, func() bool { return r.leader() == name })
		hang.Store(true)
		r.wait(2 * rosterPeriod)
		r.network.Isolate(name)
		select {
		case said := <-exits:
			if !strings.HasPrefix(said, "70 ") || !strings.Contains(said, "went on for") {
				t.Errorf("it ended with %q", said)
			}
		case <-time.After(time.Minute):
			t.Error("it runs on, and could never lead again")
		}
		hang.Store(false)
		close(stuck)
		r.network.Rejoin(name)
		r.serving()
	})
}

func TestMetricsTellOfTheLogAndTheDisk(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		got := r.call(r.leader(), "GET", "/metrics", nil)
		for _, name := range []string{"log_bytes", "log_free_pages", "waiting", "abandoned", "snapshot_index", "applied_index", "leader"} {
			if !strings.Contains(string(got.body), "\nfluxvm_raft_"+name+" ") {
				t.Errorf("metrics lack fluxvm_raft_%s", name)
			}
		}
		if !strings.Contains(string(got.body), "\nfluxvm_disk_low 0") {
			t.Error("metrics do not say that the disk has room")
		}
	})
}
