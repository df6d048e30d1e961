package central

import (
	"net/http"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestAnAnsweredHandOverStands: a launch is answered as soon as the host has the spare's new name, and that is written
// down behind the answer. A leader that is lost in between leaves the next one a hand-over to repeat; whatever the host
// makes of the repeat, the VM that the client was told of stays.
func TestAnAnsweredHandOverStands(t *testing.T) {
	for name, trouble := range map[string]func(n *modelNode, on bool){
		"the host's daemon has become too old": func(n *modelNode, on bool) {
			if n.noRename = nil; on {
				n.noRename = api.Errorf(api.CodeNotFound, "no such route")
			}
		},
		"the host refuses changes": func(n *modelNode, on bool) {
			if n.noRename = nil; on {
				n.noRename = api.Errorf(api.CodeConflict, "not now")
			}
		},
		"the host is down for a while": func(n *modelNode, on bool) { n.closed = on },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1")
				r.pool("p", body{"image": "tiny", "min_ready": 1, "max_total": 2})
				n, old := r.node("n1"), r.leader()
				spare := r.vms()[0].ID
				n.with(func() { n.lag = func() time.Duration { return 400 * time.Millisecond } })
				answer := r.ask(old, "POST", "/fleet/vms", body{"name": "a", "pool": "p"}, api.HeaderIdempotencyKey, "k")
				r.eventually("the host to have renamed it", 10*time.Second, func() bool { m := n.has(spare); return m != nil && m.Name == "a" })
				r.network.Isolate(old)
				n.with(func() { n.lag = nil; trouble(n, true) })
				got := <-answer
				if got.status != http.StatusCreated || into[api.LaunchAnswer](t, got).VM.ID != spare {
					t.Fatalf("got %s, want VM %s", got, spare)
				}
				next := r.newLeader(old)
				r.wait(10 * time.Second)
				n.with(func() { trouble(n, false) })
				r.network.Rejoin(old)
				r.eventually("the hand-over to be written down", time.Minute, func() bool { row := r.member(next).state.View().VM(spare); return row == nil || !row.HandOver })
				if row := r.member(next).state.View().VM(spare); row == nil || row.Name != "a" || !row.Live() || row.Warm {
					t.Errorf("the VM that was answered is now %+v", row)
				}
				r.full("p")
			})
		})
	}
}
