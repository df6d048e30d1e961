package central

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
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

// Between the moment in which a launch is committed and the one in which its answer is looked for, all may be over: the
// answer then says what became of the launch, not what was meant to.
func TestAnAnswerThatComesLateSaysWhatBecameOfTheLaunch(t *testing.T) {
	full, busy := api.Errorf(api.CodeHostFull, "full"), api.Errorf(api.CodeStaleToken, "another leader was here")
	for name, c := range map[string]struct {
		refuse *api.Error // what the host says to a new VM
		pool   bool
		want   api.Code
	}{
		"no host took it": {full, false, api.CodeNoCapacity},
		"no host took it, nor what it was to have before": {full, true, api.CodeNoCapacity},
		"it goes on as another VM that no host has yet":   {busy, true, api.CodeOutcomeUnknown},
		"it goes on as another VM":                        {nil, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1")
				if c.pool {
					r.pool("p", body{"image": "tiny", "min_ready": 1})
				}
				n1 := r.node("n1")
				n1.with(func() { n1.refuse, n1.noRename = c.refuse, api.Errorf(api.CodeConflict, "not this one") })
				m := r.member(r.leader())
				q := &request{Request: httptest.NewRequest(http.MethodPost, "/fleet/vms", nil), r: m.Replica, w: &answer{ResponseWriter: httptest.NewRecorder()}}
				op := &fsm.Op{Key: "k", Digest: "d"}
				done, _, err := q.commitLaunch(m.reign.Load(), op, newID(), fsm.Launch{Name: "a", Image: "tiny"})
				if err != nil {
					t.Fatal(err)
				}
				r.eventually("what was committed to be over", time.Minute, func() bool {
					row := m.state.View().VM(done.Ref)
					return row == nil || c.pool && !row.Live()
				})
				r.wait(5 * time.Second)
				err = q.answerLaunch(m.reign.Load(), op, done, false, false, false)
				if codeOf(err) != c.want || c.want == "" && (err != nil || q.w.status != http.StatusCreated) {
					t.Errorf("got %v with status %d, want %q", err, q.w.status, c.want)
				}
				n1.with(func() { n1.refuse, n1.noRename = nil, nil })
			})
		})
	}
}

func TestALaunchThatWaitsForItsGuestIsToldThatNoHostTookIt(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		n1 := r.node("n1")
		n1.with(func() { n1.bootTakes = 20 * time.Second })
		for range api.DefaultPolicy().MaxBootsPerNode { // it has to wait for those
			r.launch(r.leader(), body{"image": "tiny"})
		}
		got := r.ask(r.leader(), "POST", "/fleet/vms?wait=ready", body{"name": "a", "image": "tiny"})
		r.eventually("it to be committed", 10*time.Second, func() bool { return r.member(r.leader()).state.View().VMNamed("", "a") != nil })
		n1.with(func() { n1.refuse = api.Errorf(api.CodeHostFull, "full") })
		if answer := <-got; answer.code() != api.CodeNoCapacity {
			t.Errorf("got %s, want no_capacity", answer)
		}
	})
}
