package node

import (
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// leasing makes central answer with a lease of four minutes, or, when it is no leader, without one.
func leasing(leads bool) func(string, api.Register) (int, any) {
	answer := api.RegisterAnswer{OK: true, NextInMS: 10_000}
	if leads {
		answer.LeaseMS = 240_000
	}
	return func(string, api.Register) (int, any) { return 200, answer }
}

// again ends the daemon of a member and starts the next one.
func again(h *host, c *central) {
	h.t.Helper()
	h.stop()
	h.startWith(func(d *Daemon) { d.beats.client.Transport = c })
}

func unheard(string, api.Register) (int, any) { return 0, nil }

func TestAHostThatTheLeaderDoesNotAnswerStopsWhatMayBootElsewhere(t *testing.T) {
	for name, silence := range map[string]func(string, api.Register) (int, any){"nobody answers": unheard, "only followers answer": leasing(false)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				c := newCentral()
				c.say(leasing(true))
				h := newMember(t, c, "http://a")
				passes(time.Second)
				mobile, plain := h.boot(fields{"reschedulable": true}), h.boot(fields{"name": "vm-b"})
				passes(5 * time.Minute)
				if got := h.get(mobile).State; got != api.StateRunning {
					t.Fatalf("while the leader answers it is %s", got)
				}
				c.say(silence)
				passes(229 * time.Second) // the last answer was to a report of ten seconds ago at most
				if got := h.get(mobile).State; got != api.StateRunning {
					t.Errorf("within the lease it is %s", got)
				}
				passes(13 * time.Second)
				if m := h.get(mobile); m.State != api.StateStopped || m.Reason != reasonHeld {
					t.Errorf("after the lease it is %s (%s)", m.State, m.Reason)
				}
				if got := h.get(plain).State; got != api.StateRunning {
					t.Errorf("the VM that stays here is %s", got)
				}
				late := body("0198c0de-0000-7000-8000-0000000000aa", fields{"name": "vm-c", "reschedulable": true})
				h.want(201, "POST", "/v1/vms", late)
				again(h, c)
				passes(time.Minute)
				for _, id := range []string{mobile, late["id"].(string)} {
					if got := h.get(id).State; got != api.StateStopped {
						t.Errorf("after a restart without an answer one is %s", got)
					}
				}
				c.say(leasing(true))
				h.awaitState(mobile, api.StateRunning)
				h.awaitState(late["id"].(string), api.StateRunning)
				h.want(204, "DELETE", "/v1/vms/"+mobile, nil)
			})
		})
	}
}

func TestALeaseOutlivesARestartAndCountsWhileTheHostSleeps(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCentral()
		c.say(leasing(true))
		h := newMember(t, c, "http://a")
		passes(time.Second)
		mobile := h.boot(fields{"reschedulable": true})
		passes(time.Minute)
		started := h.get(mobile).StartedAt
		c.say(unheard)
		again(h, c)
		passes(2 * time.Minute)
		if m := h.get(mobile); m.State != api.StateRunning || m.StartedAt != started {
			t.Errorf("after a restart within the lease it is %s", m.State)
		}
		h.facts.mu.Lock()
		h.facts.since = h.facts.since.Add(-time.Hour) // it slept
		h.facts.mu.Unlock()
		passes(2 * leaseLook)
		if m := h.get(mobile); m.State != api.StateStopped {
			t.Errorf("after a sleep of an hour it is %s", m.State)
		}
	})
}

func TestWithoutAFleetThereIsNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"reschedulable": true})
		passes(time.Hour)
		if got := h.get(id).State; got != api.StateRunning {
			t.Errorf("it is %s", got)
		}
	})
}
