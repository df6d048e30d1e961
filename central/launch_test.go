package central

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

type body = map[string]any

// launch is a launch that must succeed.
func (r *rig) launch(replica string, b body, header ...string) api.LaunchAnswer {
	r.t.Helper()
	got := r.call(replica, "POST", "/fleet/vms", b, header...)
	if got.status != http.StatusCreated {
		r.t.Fatalf("launching %v: %s", b, got)
	}
	return into[api.LaunchAnswer](r.t, got)
}

func TestALaunchThroughAFollowerIsForwardedOnce(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		follower := r.follower()
		r.mu.Lock()
		clear(r.passed)
		r.mu.Unlock()
		warm := r.launch(follower, body{"name": "warm", "pool": "p"})
		if !warm.Warm || warm.Pool != "p" || warm.ClaimMS == nil || warm.VM.ClaimedFrom != "p" || warm.ColdReason != "" {
			t.Errorf("got %+v, want one from the pool", warm)
		}
		if m := r.node(warm.Node).has(warm.VM.ID); m == nil || m.Name != "warm" || m.Labels[api.LabelWarmClaimed] != "p" || m.Labels[api.LabelWarmPool] != "" || m.Labels[api.LabelEphemeral] != "" {
			t.Errorf("its node has %+v, want it renamed and relabelled", m)
		}
		cold := r.launch(follower, body{"name": "cold", "image": "tiny", "ttl_seconds": 600, "cloud_init": body{"hostname": "a"}})
		if cold.Warm || cold.ColdReason != "cloud_init" {
			t.Errorf("got %+v, want a normal boot for its cloud_init", cold)
		}
		if m := r.node(cold.Node).has(cold.VM.ID); m == nil || m.Labels[api.LabelEphemeral] != "true" || m.deadline.IsZero() {
			t.Errorf("its node has %+v, want a deadline", m)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.passed[follower] != 2 || len(r.passed) != 1 {
			t.Errorf("requests passed on: %v, want one for each launch", r.passed)
		}
	})
}

func TestParallelLaunchesNeverShareASpare(t *testing.T) {
	const spares, launches = 5, 40
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			scenario(t, seed, func(t *testing.T, r *rig) {
				for i := range 3 {
					r.addNode(fmt.Sprint("n", i), func(n *modelNode) {
						n.lag = func() time.Duration { return time.Duration(r.random(30)) * time.Millisecond }
						n.bootTakes = 2 * time.Second // no spare is made up for while the launches run
					})
				}
				r.registered()
				r.image("tiny")
				r.pool("p", body{"image": "tiny", "min_ready": spares, "max_total": spares})
				var all sync.WaitGroup
				answers := make([]api.LaunchAnswer, launches)
				for i := range launches {
					replica, at := r.names[r.random(3)], time.Duration(r.random(40))*time.Millisecond
					all.Go(func() {
						r.wait(at)
						got, err := r.try(replica, operatorToken, "POST", "/fleet/vms", body{"name": fmt.Sprint("vm-", i), "pool": "p"})
						if err != nil || got.status != http.StatusCreated {
							t.Errorf("launch %d on %s: %v %s", i, replica, err, got)
							return
						}
						answers[i] = into[api.LaunchAnswer](t, got)
					})
				}
				all.Wait()
				warm, seen := 0, map[string]int{}
				for i, a := range answers {
					if seen[a.VM.ID]++; seen[a.VM.ID] > 1 {
						t.Errorf("VM %s was given to two launches", a.VM.ID)
					}
					if a.VM.Name != fmt.Sprint("vm-", i) {
						t.Errorf("launch %d got VM %s", i, a.VM.Name)
					}
					if a.Warm {
						warm++
					} else if a.ColdReason != "pool_empty" {
						t.Errorf("launch %d is cold for %q", i, a.ColdReason)
					}
				}
				if warm != spares {
					t.Errorf("%d launches were warm, want %d", warm, spares)
				}
				if s := r.status("p"); s.Claimed24h != spares || s.ClaimedRunning != spares || s.AvgClaimMS < 0 {
					t.Errorf("the pool counts %d claims and %d taken, want %d of both", s.Claimed24h, s.ClaimedRunning, spares)
				}
			})
		})
	}
}

func TestALostReplyOnCreateIsAskedForAgainByID(t *testing.T) {
	for _, lost := range []int{1, 3, orderTries + 2} {
		t.Run(fmt.Sprint(lost, " lost"), func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				r.node("n1").with(func() { r.node("n1").lose = lost })
				got := r.launch(r.leader(), body{"name": "a", "image": "tiny"})
				if got.Node != "n1" {
					t.Fatalf("it went to %s, want n1, the first by name", got.Node)
				}
				var made, again int
				for _, o := range r.node("n1").log() {
					if o.id != got.VM.ID {
						t.Errorf("another VM was ordered: %+v", o)
					}
					made += count(o.outcome == "done")
					again += count(o.outcome == "again")
				}
				if made != 1 || again == 0 || len(r.node("n2").log()) > 0 {
					t.Errorf("made %d times, asked for again %d times, n2 was ordered %v", made, again, r.node("n2").log())
				}
			})
		})
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// The node made the VM and its answer was lost; then its port is closed. Only that a first order could not be sent
// lets a VM go elsewhere.
func TestAVMThatMayHaveBeenMadeGoesNowhereElse(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		n1 := r.node("n1")
		n1.with(func() { n1.lose = 1 })
		done := make(chan reply, 1)
		leader := r.leader()
		go func() {
			done <- r.call(leader, "POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
		}()
		r.eventually("the create to have reached n1", time.Minute, func() bool { return len(n1.log()) > 0 })
		n1.with(func() { n1.closed = true })
		r.wait(20 * time.Second)
		n1.with(func() { n1.closed = false })
		if first := <-done; first.code() != api.CodeOutcomeUnknown {
			t.Errorf("while it is not known whether n1 has it: %s, want outcome_unknown", first)
		}
		got := into[api.LaunchAnswer](t, r.insist("POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, "k"))
		if got.Node != "n1" || len(r.node("n2").log()) > 0 {
			t.Errorf("it is on %s and n2 was ordered %v", got.Node, r.node("n2").log())
		}
	})
}

func TestANodeThatCannotBeReachedIsPassedOver(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.node("n1").with(func() { r.node("n1").closed = true })
		if got := r.launch(r.leader(), body{"name": "a", "image": "tiny"}); got.Node != "n2" {
			t.Errorf("it went to %s, want n2", got.Node)
		}
	})
}

func TestARefusalGoesToTheNextCandidate(t *testing.T) {
	for _, code := range []api.Code{api.CodeHostPressure, api.CodeHostFull, api.CodeUnavailable, api.CodeInvalid} {
		t.Run(string(code), func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2", "n3")
				for _, n := range []string{"n1", "n2"} {
					r.node(n).with(func() { r.node(n).refuse = api.Errorf(code, "not now") })
				}
				got := r.launch(r.leader(), body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
				if got.Node != "n3" || got.VM.Node != "n3" {
					t.Errorf("it went to %s (%s), want n3", got.Node, got.VM.Node)
				}
				again := r.launch(r.follower(), body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
				if again.VM.ID != got.VM.ID || again.Node != got.Node {
					t.Errorf("the repeat answers %s on %s, want %s on %s", again.VM.ID, again.Node, got.VM.ID, got.Node)
				}
			})
		})
	}
}

func TestWhenAllRefuseNothingIsLeft(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		for _, n := range r.nodes {
			n.with(func() { n.refuse = api.Errorf(api.CodeHostPressure, "the host is under memory pressure") })
		}
		got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
		if got.status != 503 || got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), "no healthy, uncordoned nodes") || !strings.Contains(string(got.body), "memory pressure") {
			t.Errorf("got %s, want 503 no_capacity with the last refusal", got)
		}
		if left := r.vms(); len(left) > 0 {
			t.Errorf("left over: %+v", left)
		}
		for _, n := range r.nodes {
			n.with(func() { n.refuse = nil })
		}
		again := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
		if again.status != http.StatusCreated || again.header.Get(api.HeaderReplayed) != "" {
			t.Errorf("the key is not free again: %s", again)
		}
	})
}

func TestALaunchThatFitsNowhereSaysWhy(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2", "n3")
		r.call(r.leader(), "POST", "/fleet/nodes/n1/cordon", nil)
		got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "a", "image": "tiny", "memory_mib": 1 << 20})
		if got.status != 503 || !strings.Contains(string(got.body), `"reasons":{"cordoned":1,"memory":2}`) {
			t.Errorf("got %s, want counted reasons", got)
		}
		dry := into[api.DryRunAnswer](t, r.call(r.leader(), "POST", "/fleet/vms?dry_run=true", body{"name": "a", "image": "tiny", "memory_mib": 1 << 20}))
		if dry.Node != nil || dry.Reasons["memory"] != 2 {
			t.Errorf("dry run: got %+v", dry)
		}
		dry = into[api.DryRunAnswer](t, r.call(r.follower(), "POST", "/fleet/vms?dry_run=true", body{"image": "tiny"}))
		if dry.Node == nil || *dry.Node != "n2" || len(r.vms()) > 0 {
			t.Errorf("dry run: got %+v and VMs %v", dry, r.vms())
		}
	})
}

func TestARefusedRenameEndsTheSpareAndBootsNormally(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		for _, n := range r.nodes {
			n.with(func() { n.noRename = api.Errorf(api.CodeNotFound, "no such route") })
		}
		spare := into[api.Pool](t, r.call(r.leader(), "GET", "/fleet/pools/p", nil)).Warm[0]
		got := r.launch(r.follower(), body{"name": "a", "pool": "p", "ttl_seconds": 3600}, api.HeaderIdempotencyKey, "k")
		if got.Warm || got.ColdReason != "rename_failed" || got.VM.ID == spare.ID || got.VM.ExpiresAt == 0 {
			t.Errorf("got %+v, want a normal boot for rename_failed", got)
		}
		again := r.launch(r.leader(), body{"name": "a", "pool": "p", "ttl_seconds": 3600}, api.HeaderIdempotencyKey, "k")
		if again.VM.ID != got.VM.ID || again.ColdReason != "rename_failed" {
			t.Errorf("the repeat answers %+v", again)
		}
		r.eventually("the spare to be gone", time.Minute, func() bool { return r.node(spare.Node).has(spare.ID) == nil })
		if s := r.status("p"); s.ClaimedRunning != 0 || s.Claimed24h != 0 {
			t.Errorf("the pool still counts the claim: %+v", s)
		}
	})
}

// An order may arrive when its sender has long given up. By then the VM is elsewhere, or no longer wanted.
func TestACreateThatArrivesLateMakesNoSecondVM(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		dry := into[api.DryRunAnswer](t, r.call(r.leader(), "POST", "/fleet/vms?dry_run=true", body{"image": "tiny"}))
		n := r.node(*dry.Node)
		n.with(func() { n.late, n.refuse = 30*time.Second, api.Errorf(api.CodeUnavailable, "not now") })
		got := into[api.LaunchAnswer](t, r.insist("POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, "k"))
		if got.Node == n.name {
			t.Fatalf("it is on %s, which refused it", got.Node)
		}
		n.with(func() { n.refuse = nil })
		r.wait(time.Minute)
		if n.has(got.VM.ID) != nil {
			t.Errorf("%s made the VM as well", n.name)
		}

		n.with(func() { n.late = 30 * time.Second })
		r.insist("POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 1, "nodes": []string{n.name}}, "p")
		r.eventually("the spare's create to be under way", time.Minute, func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.late == 0 })
		r.insist("PATCH", "/fleet/pools/p", body{"min_ready": 0}, "")
		r.eventually("the spare to be gone", time.Minute, func() bool { return len(r.vms()) == 1 })
		r.wait(time.Minute)
		if n.count() != 0 {
			t.Errorf("%s has %d VMs of a pool that keeps none", n.name, n.count())
		}
	})
}

// The daemon of a host is started anew, as for an upgrade: for a moment nothing listens there.
func TestASpareWaitsAMomentForTheDaemonOfItsHost(t *testing.T) {
	for _, away := range []time.Duration{100 * time.Millisecond, 1500 * time.Millisecond} {
		scenario(t, 1, func(t *testing.T, r *rig) {
			r.ready("n1", "n2")
			r.pool("p", body{"image": "tiny", "min_ready": 1, "nodes": []string{"n1"}})
			spare := into[api.Pool](t, r.call(r.leader(), "GET", "/fleet/pools/p", nil)).Warm[0]
			r.node("n1").with(func() { r.node("n1").closed = true })
			done, leader := make(chan api.LaunchAnswer, 1), r.leader()
			go func() { done <- r.launch(leader, body{"name": "a", "pool": "p"}) }()
			r.wait(away)
			r.node("n1").with(func() { r.node("n1").closed = false })
			if got := <-done; !got.Warm || got.VM.ID != spare.ID {
				t.Errorf("away for %s: got %+v, want the spare that was there", away, got)
			}
		})
	}
}

func TestADaemonTooOldToRenameCostsOneSpare(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 2, "nodes": []string{"n1"}})
		n1 := r.node("n1")
		n1.with(func() { n1.noRename = api.Errorf(api.CodeNotFound, "no such route") }) // while it says that it can
		for i, want := range []string{"rename_failed", "pool_empty"} {
			if got := r.launch(r.leader(), body{"name": fmt.Sprint("a", i), "image": "tiny"}); got.Warm || got.ColdReason != want {
				t.Errorf("launch %d got %+v, want %s", i, got, want)
			}
		}
		r.eventually("the node to hold no spares", time.Minute, func() bool {
			s := r.status("p")
			return s.Ready+s.Booting == 0 && !r.member(r.leader()).state.View().Node("n1").Rename
		})
		n1.with(func() { n1.noRename = nil; n1.facts.Instance = "daemon-2" }) // it was upgraded
		r.eventually("the node to be trusted again", time.Minute, func() bool { return r.member(r.leader()).state.View().Node("n1").Rename })
		r.call(r.leader(), "PATCH", "/fleet/pools/p", body{"min_ready": 2})
		r.full("p")
		if got := r.launch(r.leader(), body{"name": "b", "image": "tiny"}); !got.Warm || got.Node != "n1" {
			t.Errorf("after the upgrade: %+v", got)
		}
	})
}

// words answers every request with a page of text, as a server does that has no such route.
type words struct{ status int }

func (w words) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: w.status, Status: fmt.Sprint(w.status), Header: http.Header{}, Body: io.NopCloser(strings.NewReader("404 page not found")), Request: req}, nil
}

func TestAnAnswerInWordsMeansThatTheDaemonIsTooOld(t *testing.T) {
	for status, want := range map[int]bool{404: true, 405: true, 501: true, 500: false, 403: false} {
		err := newNodeCaller(words{status}, time.Now).call(t.Context(), "http://n1", "", "PATCH", "/v1/vms/x", "1.1.1", api.MachinePatch{}, nil)
		if err == nil || errors.Is(err, errNoRoute) != want {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

func TestASpareThatDiedIsNotHandedOver(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		spare := into[api.Pool](t, r.call(r.leader(), "GET", "/fleet/pools/p", nil)).Warm[0]
		n := r.node(spare.Node)
		n.mu.Lock() // central has not heard of it
		n.vms[spare.ID].State = api.StateStopped
		n.mu.Unlock()
		got := r.launch(r.leader(), body{"name": "a", "pool": "p"})
		if got.Warm || got.ColdReason != "rename_failed" || got.VM.ID == spare.ID {
			t.Errorf("got %+v, want a normal boot", got)
		}
		r.full("p")
	})
}

func TestAPoolDelaysForFullHostsAndBacksOffForFailures(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.addNode("n1", func(n *modelNode) { n.failBoots = true })
		r.registered()
		r.image("tiny")
		got := r.call(r.leader(), "POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 2})
		if got.status != http.StatusCreated {
			t.Fatal(got)
		}
		backedOff := func() api.PoolStatus {
			r.eventually("the pool to back off", time.Minute, func() bool { return r.status("p").State == api.PoolBackingOff })
			return r.status("p")
		}
		first := backedOff()
		if first.WaitReason == nil || *first.WaitReason != api.WaitBootFailed || first.LastError == nil || !strings.Contains(*first.LastError, "no bootable device") {
			t.Errorf("got %+v, want the node's reason", first)
		}
		r.wait(3 * time.Minute) // 5, 10, 20, 40, 80 s
		made := 0
		for _, o := range r.node("n1").log() {
			made += count(o.op == "POST")
		}
		if made < 8 || made > 14 {
			t.Errorf("%d boots in three minutes, want about six waves of two", made)
		}
		n := 0
		for _, a := range into[api.List[api.Activity]](t, r.call(r.leader(), "GET", "/fleet/activity", nil)).Items {
			n += count(a.Actor == "warm-pool" && a.Action == "boot")
		}
		if n != 1 {
			t.Errorf("%d activity entries for one streak of failed boots, want 1", n)
		}
		// The wait is the state's, not the leader's.
		old := r.leader()
		before := backedOff()
		boots := len(r.node("n1").log())
		r.crash(old)
		r.newLeader(old)
		if after := r.status("p"); after.BackoffUntil != before.BackoffUntil {
			t.Errorf("the wait ends at %s after the failover, was %s", after.BackoffUntil, before.BackoffUntil)
		}
		r.wait(5 * time.Second)
		for _, o := range r.node("n1").log()[boots:] {
			if o.op == "POST" {
				t.Errorf("the new leader boots at once: %+v", o)
			}
		}
		r.node("n1").with(func() { r.node("n1").failBoots = false })
		r.insist("PATCH", "/fleet/pools/p", body{"min_ready": 1}, "")
		r.full("p")
		if s := r.status("p"); s.LastError != nil || s.BackoffUntil != 0 || s.WaitReason != nil {
			t.Errorf("after a good boot the status is %+v, want all forgotten", s)
		}
	})
}

// A node that has made the VM answers a repeated create with what it has; what was changed meanwhile it must still hear.
func TestAChangeWhileTheNodeBootsTheVMReachesTheNode(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		n1 := r.node("n1")
		n1.with(func() { n1.lag = func() time.Duration { return 2 * time.Second } })
		leader := r.leader()
		pending := r.ask(leader, "POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
		r.eventually("the VM to be placed", time.Second, func() bool { return r.member(leader).state.View().VMNamed("", "a") != nil })
		if got := r.call(r.follower(), "PATCH", "/fleet/vms/a", body{"name": "b", "labels": body{"team": "x"}, "ttl_seconds": 3600}); got.status != 200 {
			t.Fatal(got)
		}
		id := into[api.LaunchAnswer](t, <-pending).VM.ID
		r.eventually("the node to have heard of the change", time.Minute, func() bool {
			m := n1.has(id)
			return m.Name == "b" && m.Labels["team"] == "x" && m.Labels[api.LabelEphemeral] == "true" && !m.deadline.IsZero()
		})
		if v := into[api.VM](t, r.call(leader, "PATCH", "/fleet/vms/b", body{"labels": nil, "ttl_seconds": nil})); len(v.Labels) != 0 || v.ExpiresAt != 0 {
			t.Errorf("null labels and TTL leave %v until %s", v.Labels, v.ExpiresAt)
		}
	})
}
