package central

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// lost ends every replica and empties its disk, as a fire would, and starts a fresh cluster.
func (r *rig) lost() {
	r.t.Helper()
	for _, name := range r.names {
		r.crash(name)
		r.network.Wipe(name)
	}
	for _, name := range r.names {
		r.start(name)
	}
	r.serving()
}

// opsOn are the orders of a kind that a node carried out from the n-th on.
func (n *modelNode) opsOn(op string, from int) (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.orders[min(from, len(n.orders)):] {
		if o.op == op {
			ids = append(ids, o.id)
		}
	}
	return ids
}

func TestRestoreAdoptsNodeByNodeAndEndsNothingBefore(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.image("tiny")
		launch := func(name, node string, more body) string {
			b := body{"name": name, "image": "tiny", "node": node}
			for k, v := range more {
				b[k] = v
			}
			id := r.launch(r.leader(), b).VM.ID
			r.running(id)
			return id
		}
		kept, dies, deleted := launch("kept", "n1", nil), launch("dies", "n1", body{"ttl_seconds": 60}), launch("deleted", "n2", nil)
		old := into[api.Cluster](t, r.call(r.leader(), "GET", "/fleet/cluster", nil))
		backup := r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body
		late := launch("late", "n1", nil)
		r.call(r.leader(), "DELETE", "/fleet/vms/"+deleted, nil)
		r.eventually("it to be gone", time.Minute, func() bool { return len(r.node("n2").opsOn("DELETE", 0)) == 1 })

		n1 := r.node("n1")
		n1.mu.Lock()
		n1.mute = true // it runs and takes orders, and does not report
		n1.mu.Unlock()
		r.lost()
		before := len(n1.orders)
		got := into[api.Backup](t, r.call(r.follower(), "POST", restorePath, backup, "Content-Type", "application/octet-stream"))
		if got.ClusterID != old.ID || got.Epoch <= old.Epoch {
			t.Fatalf("restored %+v of cluster %s, epoch %d", got, old.ID, old.Epoch)
		}
		r.serving()
		state := func(node string) api.NodeState {
			return into[api.Node](t, r.call(r.leader(), "GET", "/fleet/nodes/"+node, nil)).State
		}
		r.eventually("n2 to be adopted", time.Minute, func() bool { return state("n2") == api.NodeHealthy })
		r.call(r.leader(), "DELETE", "/fleet/vms/"+kept, nil) // asked for, and not ordered before the list is merged
		r.wait(50 * time.Second)                              // "dies" is due
		r.call(r.leader(), "POST", "/fleet/cluster/transfer", nil)
		r.serving()
		r.wait(20 * time.Second)
		if ended := n1.opsOn("DELETE", before); len(ended) > 0 || state("n1") != api.NodeUnreachable {
			t.Errorf("n1 was not merged and was told to end %v; it is %s", ended, state("n1"))
		}
		if r.call(r.leader(), "POST", "/fleet/vms", body{"image": "tiny", "node": "n1"}).status != http.StatusServiceUnavailable {
			t.Error("a VM was placed on a host that was not merged")
		}
		n1.mu.Lock()
		n1.mute = false
		n1.mu.Unlock()
		r.eventually("n1 to be adopted", time.Minute, func() bool { return state("n1") == api.NodeHealthy })
		r.eventually("what is due to be ended", time.Minute, func() bool {
			ended := n1.opsOn("DELETE", before)
			return slices.Contains(ended, kept) && slices.Contains(ended, dies)
		})
		r.wait(20 * time.Minute) // longer than strangers are left alone
		if got := into[api.VM](t, r.call(r.leader(), "GET", "/fleet/vms/"+late, nil)); got.State != api.StateRunning || got.Tenant != nil || got.Name != "late" {
			t.Errorf("the VM that was started after the backup is %+v", got)
		}
		if got := r.call(r.leader(), "GET", "/fleet/vms/"+deleted, nil); got.status != http.StatusNotFound {
			t.Errorf("the VM that was deleted after the backup: %s", got)
		}
	})
}

// TestASpareThatWasHandedOverAfterTheBackupIsNobodyElses: the backup still has it as a spare, and its host knows better.
func TestASpareThatWasHandedOverAfterTheBackupIsNobodyElses(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.image("tiny")
		r.pool("p", body{"image": "tiny", "min_ready": 2})
		backup := r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body
		taken := r.launch(r.leader(), body{"name": "taken", "pool": "p"})
		if !taken.Warm || r.node("n1").has(taken.VM.ID).Name != "taken" {
			t.Fatalf("no spare was handed over: %+v", taken)
		}
		r.lost()
		r.call(r.leader(), "POST", restorePath, backup, "Content-Type", "application/octet-stream")
		r.serving()
		r.eventually("n1 to be adopted", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeHealthy })
		if v := r.row(taken.VM.ID); v == nil || v.Warm || v.Pool != "" || v.Name != "taken" || v.State != api.StateRunning {
			t.Errorf("the spare that was handed over is %+v", v)
		}
		r.full("p")
		for i := range 3 {
			got := r.launch(r.leader(), body{"name": "later-" + strconv.Itoa(i), "pool": "p"})
			if got.VM.ID == taken.VM.ID {
				t.Error("one VM was handed over twice")
			}
		}
		if v := r.node("n1").has(taken.VM.ID); v == nil || v.Name != "taken" {
			t.Errorf("the VM that was handed over before is %+v", v)
		}
	})
}

func TestRestoreIsRefusedOverAFleetAndOfDamagedBackups(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.image("tiny")
		r.applied()
		backup := r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body
		if got := r.call(r.leader(), "POST", restorePath, backup[:len(backup)-9], "Content-Type", "application/octet-stream"); got.code() != api.CodeInvalid {
			t.Errorf("a cut backup: %s", got)
		}
		r.ready("n1")
		if got := r.call(r.leader(), "POST", restorePath, backup, "Content-Type", "application/octet-stream"); got.code() != api.CodeConflict {
			t.Errorf("over a fleet: %s", got)
		}
	})
}

func TestRestoreReleasesReaders(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.image("tiny")
		r.applied()
		backup := r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body
		index := strconv.FormatUint(r.member(r.follower()).state.View().Index(), 10)
		began := time.Now()
		waits := r.ask(r.follower(), "GET", "/fleet/images?stale=true&wait=5m&index="+index, nil)
		r.wait(30 * time.Second) // nothing changes, and it does wait
		select {
		case got := <-waits:
			t.Fatalf("the reader did not wait: %s", got)
		default:
		}
		if got := r.call(r.leader(), "POST", restorePath, backup, "Content-Type", "application/octet-stream"); got.status != http.StatusOK {
			t.Fatalf("restoring: %s", got)
		}
		if got := <-waits; got.status == 0 { // it gave up
			t.Errorf("the reader waited for %s over a restore", time.Since(began))
		}
		r.eventually("every replica to be restored", time.Minute, func() bool {
			for _, name := range r.names {
				if r.member(name).state.View().Meta().Epoch < 2 {
					return false
				}
			}
			return true
		})
	})
}

// Failure mode 3 after a restore: one that is lost before it was merged is held to giving up what boots elsewhere, too.
func TestAHostThatIsLostBeforeItIsMergedReturnsFenced(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.image("tiny")
		mobile := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true})
		r.running(mobile.VM.ID)
		r.moves(mobile.VM.ID)
		home := r.node(mobile.Node)
		other := "n1"
		if mobile.Node == other {
			other = "n2"
		}
		backup := r.call(r.leader(), "POST", "/fleet/cluster/snapshot", nil).body
		home.with(func() { home.mute = true })
		r.lost()
		r.call(r.leader(), "POST", restorePath, backup, "Content-Type", "application/octet-stream")
		r.serving()
		r.eventually("the other to be adopted", time.Minute, func() bool { return r.nodeState(other).State == api.NodeHealthy })
		if got := r.call(r.leader(), "POST", "/fleet/nodes/"+mobile.Node+"/lost", nil); got.status != http.StatusOK {
			t.Fatal(got)
		}
		r.eventually("it to run elsewhere", 6*time.Minute, func() bool {
			v := r.row(mobile.VM.ID)
			return v.Node == other && v.State == api.StateRunning
		})
		home.with(func() { home.mute = false })
		r.eventually("the host to serve again", 2*time.Minute, func() bool { return r.nodeState(mobile.Node).State == api.NodeHealthy })
		if home.has(mobile.VM.ID) != nil {
			t.Error("the host serves again with a VM that runs elsewhere")
		}
		if v := r.row(mobile.VM.ID); v.Node != other || r.node(other).has(mobile.VM.ID) == nil {
			t.Errorf("it is %s on %s now", v.State, v.Node)
		}
	})
}
