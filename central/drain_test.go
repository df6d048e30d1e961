package central

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestADrainTellsWhatBlocksItAndForceEndsThat(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "short", "image": "tiny", "ttl_seconds": 3600})
		long := r.launch(r.leader(), body{"name": "long", "image": "tiny"})
		r.insist("POST", "/fleet/nodes/n1/drain", body{"reason": "a new disk"}, "drain")
		show := func() api.Node { return into[api.Node](t, r.call(r.follower(), "GET", "/fleet/nodes/n1", nil)) }
		r.eventually("only what blocks to be left", time.Minute, func() bool { d := show().Drain; return d.ToDelete == 0 && d.Blocked == 1 })
		n := show()
		if d := n.Drain; d.Total != 2 || d.Done || d.Overdue || d.By != "operator" || d.Blocking[0].ID != long.VM.ID || d.Blocking[0].Why == "" || n.CordonedBy != "operator" || n.Reason != "a new disk" {
			t.Errorf("got %+v with drain %+v", n, d)
		}
		r.insist("POST", "/fleet/nodes/n1/drain", body{"deadline_seconds": 20, "force": true}, "force")
		r.wait(15 * time.Second)
		if d := show().Drain; d.Blocked != 1 || d.Overdue || d.Deadline == 0 {
			t.Errorf("before its deadline: %+v", d)
		}
		r.eventually("nothing to be left", 30*time.Second, func() bool { return show().Drain.Done })
		if got := r.insist("DELETE", "/fleet/nodes/n1", nil, ""); got.status != 204 {
			t.Errorf("deleting the drained node: %s", got)
		}
		r.node("n1").with(func() { r.node("n1").silent = true })
	})
}

func TestAnUncordonCancelsADrain(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "long", "image": "tiny"})
		r.insist("POST", "/fleet/nodes/n1/drain", body{"deadline_seconds": 20, "force": true}, "force")
		n := into[api.Node](t, r.insist("POST", "/fleet/nodes/n1/uncordon", body{}, "un"))
		if n.Drain != nil || n.Draining || n.CordonedBy != "" {
			t.Errorf("got %+v", n)
		}
		r.wait(time.Minute)
		if r.node("n1").count() != 1 {
			t.Error("the drain went on")
		}
	})
}

func TestANodeWithVMsIsDeletedOnlyByForceAndOnceItIsSilent(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1"})
		if got := r.call(r.leader(), "DELETE", "/fleet/nodes/n1", nil); got.code() != api.CodeConflict || !strings.Contains(string(got.body), "force") {
			t.Errorf("got %s, want 409 that names force", got)
		}
		if got := r.call(r.leader(), "DELETE", "/fleet/nodes/n1?force=true", nil); got.code() != api.CodeConflict || !strings.Contains(string(got.body), "drain n1 --force") || r.row(a.VM.ID) == nil {
			t.Errorf("by force while it is healthy: %s, want 409 that names the drain, and its VM kept", got)
		}
		r.node("n1").with(func() { r.node("n1").silent = true })
		r.eventually("suspect", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeSuspect })
		if got := r.call(r.leader(), "DELETE", "/fleet/nodes/n1", nil); got.code() != api.CodeConflict {
			t.Errorf("without force: %s", got)
		}
		if got := r.insist("DELETE", "/fleet/nodes/n1?force=true", nil, ""); got.status != 204 {
			t.Errorf("by force: %s", got)
		}
		if got := r.call(r.leader(), "GET", "/fleet/vms/"+a.VM.ID, nil); got.status != 404 {
			t.Errorf("its VM: %s", got)
		}
		r.node("n1").with(func() { clear(r.node("n1").vms) })
	})
}

func TestADrainBootsReschedulableVMsElsewhereAndNeverTwice(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.image("tiny")
		first := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true, "claim": body{"hostname": "h1"}})
		bound := r.launch(r.leader(), body{"name": "bound", "image": "tiny", "reschedulable": true, "node": "n1"})
		r.running(first.VM.ID)
		r.running(bound.VM.ID)
		r.moves(first.VM.ID)
		n1 := r.node("n1")
		r.insist("POST", "/fleet/nodes/n1/drain", nil, "drain")
		show := func() api.NodeDrain { return *r.nodeState("n1").Drain }
		r.eventually("both to be told as blocking, for there is no other host", time.Minute, func() bool { return show().Blocked == 2 })
		if d := show(); !strings.Contains(d.Blocking[0].Why, "no other host takes it now: cordoned 1") || n1.count() != 2 {
			t.Errorf("got %+v, want why it cannot move", d)
		}
		n1.with(func() { n1.lose = 1 }) // the answer to the first order is lost
		r.addNode("n2", nil)
		r.registered()
		twice := false
		r.eventually("it to run elsewhere", time.Minute, func() bool {
			twice = twice || n1.has(first.VM.ID) != nil && r.node("n2").has(first.VM.ID) != nil
			v := r.row(first.VM.ID)
			return v.Node == "n2" && v.State == api.StateRunning && v.Claim == nil
		})
		if v := r.row(first.VM.ID); twice || v.Name != "mobile" || v.Move != "" || n1.has(first.VM.ID) != nil {
			t.Errorf("ran twice: %t; it is %+v", twice, v)
		}
		if given := r.node("n2").claims[first.VM.ID]; len(given) != 1 || given[0].Hostname != "h1" {
			t.Errorf("its guest was given %+v there, want the launch's claim again", given)
		}
		again := into[api.VM](t, r.call(r.leader(), "GET", "/fleet/vms/mobile", nil))
		if d := show(); d.ToMove != 0 || d.Blocked != 1 || d.Blocking[0].ID != bound.VM.ID || again.ID != first.VM.ID {
			t.Errorf("left is %+v, want the one that is bound to its host; %+v", d, again)
		}
		r.insist("POST", "/fleet/nodes/n1/drain", body{"force": true}, "force")
		r.eventually("nothing to be left", time.Minute, func() bool { return show().Done })
		if r.row(bound.VM.ID) != nil || r.row(first.VM.ID) == nil {
			t.Error("force ended the wrong one")
		}
	})
}

// Hosts are drained one after the other, as for an update.
func TestAVMThatDrainsMoveComesBackToItsHost(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		id := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true}).VM.ID
		r.running(id)
		r.moves(id)
		for i := range 4 {
			from := r.row(id).Node
			r.insist("POST", "/fleet/nodes/"+from+"/drain", nil, fmt.Sprint("drain", i))
			r.eventually("it to run on the other", time.Minute, func() bool {
				v := r.row(id)
				if v == nil {
					t.Fatalf("the drain of %s ended it", from)
				}
				return v.Node != from && v.State == api.StateRunning
			})
			if r.node(from).has(id) != nil {
				t.Errorf("%s has it still", from)
			}
			r.insist("POST", "/fleet/nodes/"+from+"/uncordon", nil, fmt.Sprint("uncordon", i))
		}
	})
}

func TestAMovedVMThatHostsRefuseWaitsForOne(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		one := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true})
		id := one.VM.ID
		r.running(id)
		r.moves(id)
		other := r.node("n1")
		if one.Node == "n1" {
			other = r.node("n2")
		}
		other.with(func() { other.refuse = api.Errorf(api.CodeHostPressure, "under pressure") })
		asked := len(other.log())
		r.insist("POST", "/fleet/nodes/"+one.Node+"/drain", nil, "drain")
		r.wait(2 * time.Minute)
		v := r.row(id)
		if v == nil || v.State != api.StateStopped || !strings.Contains(v.Reason, "under pressure") {
			t.Fatalf("while no host takes it it is %+v", v)
		}
		if n := len(other.log()) - asked; n < 2 || n > 15 {
			t.Errorf("the host was asked %d times in two minutes", n)
		}
		if got := r.call(r.leader(), "PATCH", "/fleet/vms/mobile", body{"labels": body{"a": "b"}}); got.status != 200 {
			t.Errorf("changing it: %s", got)
		}
		other.with(func() { other.refuse = nil })
		r.eventually("it to run there", time.Minute, func() bool {
			v := r.row(id)
			return v != nil && v.State == api.StateRunning && v.Node == other.name && !v.Again
		})
	})
}

func TestAForcedDrainEndsWhatHasLeftItsHostAndFitsNowhere(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		one := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true})
		r.running(one.VM.ID)
		home, other := r.node(one.Node), "n1"
		if one.Node == other {
			other = "n2"
		}
		home.with(func() { home.closed = true })
		r.insist("POST", "/fleet/nodes/"+one.Node+"/drain", nil, "drain")
		r.eventually("the move to begin", time.Minute, func() bool { return r.row(one.VM.ID).Move != "" })
		r.insist("POST", "/fleet/nodes/"+other+"/cordon", nil, "cordon")
		home.with(func() { home.closed = false })
		show := func() api.NodeDrain { return *r.nodeState(one.Node).Drain }
		r.eventually("it to be told as blocking once its host has ended it", 2*time.Minute, func() bool { return home.has(one.VM.ID) == nil && show().Blocked == 1 })
		if d := show(); d.ToMove != 0 || !strings.Contains(d.Blocking[0].Why, "no other host takes it now: cordoned 2") || r.row(one.VM.ID).State != api.StateStopped {
			t.Errorf("got %+v and %+v", d, r.row(one.VM.ID))
		}
		r.insist("POST", "/fleet/nodes/"+one.Node+"/drain", body{"force": true}, "force")
		r.eventually("nothing to be left", time.Minute, func() bool { return show().Done && r.row(one.VM.ID) == nil })
	})
}

func TestAMoveGoesOnUnderTheNextLeaderAndWithoutRoomWaitsForIt(t *testing.T) {
	scenario(t, 2, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.image("tiny")
		one := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true})
		r.running(one.VM.ID)
		r.moves(one.VM.ID)
		n1 := r.node("n1")
		r.addNode("n2", nil)
		r.registered()
		r.insist("POST", "/fleet/nodes/n1/drain", nil, "drain")
		r.eventually("the move to begin", time.Minute, func() bool { return r.row(one.VM.ID).Move != "" || r.row(one.VM.ID).Node == "n2" })
		r.insist("POST", "/fleet/nodes/n2/cordon", nil, "cordon")
		old := r.leader()
		r.crash(old)
		r.newLeader(old)
		r.start(old)
		r.wait(20 * time.Second)
		if v := r.row(one.VM.ID); v.Node == "n1" {
			if v.State != api.StateStopped || v.Reason == "" || n1.has(one.VM.ID) != nil {
				t.Errorf("without room it is %s (%s)", v.State, v.Reason)
			}
			r.insist("POST", "/fleet/nodes/n2/uncordon", nil, "uncordon")
		}
		r.eventually("it to run elsewhere", time.Minute, func() bool {
			v := r.row(one.VM.ID)
			return v.Node == "n2" && v.State == api.StateRunning
		})
	})
}
