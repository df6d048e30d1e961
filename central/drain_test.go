package central

import (
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

func TestANodeWithVMsIsDeletedOnlyByForce(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1"})
		if got := r.call(r.leader(), "DELETE", "/fleet/nodes/n1", nil); got.code() != api.CodeConflict || !strings.Contains(string(got.body), "force") {
			t.Errorf("got %s, want 409 that names force", got)
		}
		r.node("n1").with(func() { r.node("n1").silent = true })
		if got := r.insist("DELETE", "/fleet/nodes/n1?force=true", nil, ""); got.status != 204 {
			t.Errorf("by force: %s", got)
		}
		if got := r.call(r.leader(), "GET", "/fleet/vms/"+a.VM.ID, nil); got.status != 404 {
			t.Errorf("its VM: %s", got)
		}
		r.node("n1").with(func() { clear(r.node("n1").vms) })
	})
}
