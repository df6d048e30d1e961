package central

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// tenantPool makes a pool of the tenant and waits until it is full.
func (r *rig) tenantPool(token, name string, minReady int) {
	r.t.Helper()
	r.must(token, "POST", "/fleet/pools", body{"name": name, "image": "tiny", "min_ready": minReady})
	r.full(name)
}

// scrubbedFor holds a node's log to a lease's end: one scrub at least, all for that lease, none while a machine was there,
// and nothing made between the last VM of the lease and the confirmed scrub.
func (r *rig) scrubbedFor(node, lease string) {
	r.t.Helper()
	n := r.node(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.scrubs) == 0 {
		r.t.Errorf("node %s was never asked for a scrub", node)
	}
	for _, of := range n.scrubs {
		if of != lease {
			r.t.Errorf("node %s was asked for a scrub of lease %q, want %s", node, of, lease)
		}
	}
	there, scrubbed := map[string]bool{}, false
	for _, o := range n.orders {
		switch {
		case o.outcome != "done":
		case o.op == http.MethodPost:
			there[o.id] = true
		case o.op == http.MethodDelete:
			delete(there, o.id)
		case o.op == opScrub:
			scrubbed = true
			if len(there) > 0 {
				r.t.Errorf("node %s was scrubbed with %d VMs on it", node, len(there))
			}
		}
	}
	if !scrubbed {
		r.t.Errorf("node %s carried out no scrub", node)
	}
}

// afterTheEnd lists VMs that appeared on the lease's hosts, or were claimed there, after its end was committed and before
// its scrub was.
func (r *rig) afterTheEnd(replica, lease string) (out []string) {
	events, _, _ := r.member(replica).state.Events().After(0, -1, 1<<20)
	var held []string
	seen := map[string]*fsm.VM{}
	for _, e := range events {
		switch row := e.Row.(type) {
		case *fsm.Lease:
			if row.ID == lease {
				if held = nil; row.State == api.LeaseEnding || row.State == api.LeaseScrubbing || row.State == api.LeaseScrubFailed {
					held = row.Nodes
				}
			}
		case *fsm.VM:
			old := seen[row.ID]
			if row.Live() && slices.Contains(held, row.Node) && (old == nil || old.Warm && !row.Warm || old.Node != row.Node) {
				out = append(out, fmt.Sprintf("%s of %q at index %d", row.Name, row.Tenant, e.Index))
			}
			seen[row.ID] = row
		}
	}
	return out
}

func TestALeasesEndRacesClaimsOnItsHost(t *testing.T) {
	claimed, cold := 0, 0
	for seed := range uint64(12) {
		scenario(t, seed, func(t *testing.T, r *rig) {
			r.ready("n1", "n2")
			r.node("n1").with(func() {
				r.node("n1").lag = func() time.Duration { return time.Duration(r.random(30)) * time.Millisecond }
			})
			token := r.tenant("acme", nil)
			l := r.lease("acme", "n1", "2h")
			r.tenantPool(token, "own", 3)
			var all sync.WaitGroup
			answers := make([]reply, 5)
			for i := range answers {
				at, replica := time.Duration(r.random(25))*time.Millisecond, r.names[r.random(3)]
				all.Go(func() {
					r.wait(at)
					answers[i], _ = r.try(replica, token, "POST", "/fleet/vms", body{"name": fmt.Sprint("vm-", i), "pool": "own"}, api.HeaderIdempotencyKey, fmt.Sprint("k", i))
				})
			}
			r.wait(time.Duration(r.random(25)) * time.Millisecond)
			if got := r.as(token, "DELETE", "/fleet/leases/"+l.ID, nil); got.status != http.StatusAccepted || into[api.Lease](t, got).State == api.LeaseActive {
				t.Errorf("ending the lease: %s", got)
			}
			all.Wait()
			r.leaseIn(l.ID, api.LeaseEnded, 2*time.Minute)
			for i, got := range answers {
				if got.status != http.StatusCreated {
					t.Errorf("launch %d: %s", i, got)
					continue
				}
				a := into[api.LaunchAnswer](t, r.insistAs(token, "POST", "/fleet/vms", body{"name": fmt.Sprint("vm-", i), "pool": "own"}, fmt.Sprint("k", i)))
				row := r.member(r.leader()).state.View().VM(a.VM.ID)
				switch { // whoever came first has it whole
				case a.Node == "n1" && row != nil:
					t.Errorf("launch %d has VM %s on the host whose lease has ended: %+v", i, a.VM.ID, row)
				case a.Node == "n1":
					claimed++
				case a.Warm || row == nil || row.Node != "n2" || row.HandOver || row.Tenant != "acme":
					t.Errorf("launch %d, which came too late for n1, has %+v: %+v", i, a, row)
				default:
					cold++
				}
			}
			if late := r.afterTheEnd(r.leader(), l.ID); len(late) > 0 {
				t.Errorf("after the end of the lease was committed its host was given to %v", late)
			}
			if r.node("n1").count() > 0 || !r.free("n1") {
				t.Errorf("n1 has %d VMs, and is free: %t", r.node("n1").count(), r.free("n1"))
			}
			r.scrubbedFor("n1", l.ID)
			r.eventually("the late ones to run", time.Minute, func() bool {
				return !slices.ContainsFunc(r.vms(), func(v api.VM) bool { return v.State != api.StateRunning || v.ReadyAt == 0 })
			})
			r.billedAsRun()
		})
	}
	if claimed == 0 || cold == 0 {
		t.Errorf("%d claims came first and %d too late; the race has to go both ways", claimed, cold)
	}
}

func TestOnlyAHostsWordAboutThisScrubFreesIt(t *testing.T) {
	for name, answer := range map[string]func(lease string) (api.ScrubAnswer, error){
		"another lease":   func(string) (api.ScrubAnswer, error) { return api.ScrubAnswer{LeaseID: "another"}, nil },
		"no lease at all": func(string) (api.ScrubAnswer, error) { return api.ScrubAnswer{LeaseID: " "}, nil },
		"a failure": func(string) (api.ScrubAnswer, error) {
			return api.ScrubAnswer{}, api.Errorf(api.CodeInvalid, "no such route")
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				token := r.tenant("acme", nil)
				l := r.lease("acme", "n1", "2h")
				n1 := r.node("n1")
				n1.with(func() {
					n1.scrub = func(_ context.Context, _ int, lease string) (api.ScrubAnswer, error) { return answer(lease) }
				})
				r.must(token, "DELETE", "/fleet/leases/"+l.ID, nil)
				row := r.leaseIn(l.ID, api.LeaseScrubFailed, time.Minute)
				if row.Reason == "" || row.Scrubs[0].State != api.ScrubFailed || r.free("n1") {
					t.Errorf("after a wrong answer the lease is %+v", row)
				}
				asked := n1.asked()
				r.wait(2 * time.Minute)
				if r.free("n1") || n1.asked() != asked {
					t.Errorf("without the operator, n1 is free: %t, and was asked %d times more", r.free("n1"), n1.asked()-asked)
				}
				got := r.as(operatorToken, "POST", "/fleet/vms", body{"image": "tiny", "node": "n1"})
				if got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"scrub":1`) {
					t.Errorf("a launch on it: %s, want no_capacity for its scrub", got)
				}
				if got := r.as(operatorToken, "POST", "/fleet/leases", body{"tenant": "acme", "node": "n1", "duration": "2h"}); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"scrub":1`) {
					t.Errorf("another lease of it: %s, want no_capacity for its scrub", got)
				}
				r.must(operatorToken, "POST", "/fleet/nodes/n1/scrub", nil)
				r.eventually("the retry to have failed", time.Minute, func() bool { return n1.asked() > asked && r.leaseRow(l.ID).State == api.LeaseScrubFailed })
				if got := r.as(operatorToken, "POST", "/fleet/nodes/n1/scrub", body{"override": true}); got.status != 400 {
					t.Errorf("an override without a reason: %s, want 400", got)
				}
				for _, who := range []string{token, r.key("", api.RoleViewer, 0).Secret} {
					if got := r.as(who, "POST", "/fleet/nodes/n1/scrub", body{"override": true, "reason": "trust me"}); got.status != 403 {
						t.Errorf("an override by one who may not: %s", got)
					}
				}
				if name == "a failure" {
					r.must(operatorToken, "POST", "/fleet/nodes/n1/scrub", body{"override": true, "reason": "wiped by hand"})
				} else {
					n1.with(func() { n1.scrub = nil })
					r.must(operatorToken, "POST", "/fleet/nodes/n1/scrub", nil)
				}
				r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
				if !r.free("n1") {
					t.Error("n1 is not free after its scrub")
				}
				for _, of := range n1.scrubs {
					if of != l.ID {
						t.Errorf("a scrub was ordered for %q, want %s", of, l.ID)
					}
				}
				noted := everything[api.Activity](r, operatorToken, "/fleet/activity?target=n1&")
				if len(noted) < 2 || noted[0].Action != "POST /fleet/nodes/{name}/scrub" || noted[0].Actor != "operator" {
					t.Errorf("the activity log has %+v, want who let the host go", noted)
				}
				r.must(operatorToken, "POST", "/fleet/vms", body{"image": "tiny", "node": "n1"})
			})
		})
	}
}

// Of a lease of two hosts both scrubs take too long. The answers come when the operator has had one of them repeated: they
// are about orders that are no longer under way.
func TestAScrubThatTakesTooLongHasFailedAndItsLateAnswerFreesNothing(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		token := r.tenant("acme", nil)
		l := into[api.Lease](t, r.must(token, "POST", "/fleet/leases", body{"node_selector": body{}, "count": 2, "duration": "24h"}))
		n1, first, second := r.node("n1"), make(chan struct{}), make(chan struct{})
		r.node("n2").with(func() { r.node("n2").scrub = blocked(first) })
		n1.with(func() {
			n1.scrub = func(ctx context.Context, nth int, lease string) (api.ScrubAnswer, error) {
				if nth == 1 {
					return blocked(first)(ctx, nth, lease)
				}
				return blocked(second)(ctx, nth, lease)
			}
		})
		r.must(token, "DELETE", "/fleet/leases/"+l.ID, nil)
		row := r.leaseIn(l.ID, api.LeaseScrubbing, time.Minute)
		if len(row.Scrubs) != 2 || row.Scrubs[0].StartedAt == 0 || row.Scrubs[0].Order == 0 {
			t.Errorf("the scrubs are %+v", row.Scrubs)
		}
		r.eventually("both hosts to be asked", time.Minute, func() bool { return n1.asked() > 0 && r.node("n2").asked() > 0 })
		r.skip(29 * time.Minute)
		r.wait(5 * time.Second)
		if state := r.leaseRow(l.ID).State; state != api.LeaseScrubbing {
			t.Errorf("after 29 minutes the lease is %s", state)
		}
		r.skip(time.Minute)
		r.eventually("both scrubs to have failed", 10*time.Second, func() bool {
			row = r.leaseRow(l.ID)
			return row.Scrubs[0].State == api.ScrubFailed && row.Scrubs[1].State == api.ScrubFailed
		})
		if r.free("n1") || r.free("n2") || row.State != api.LeaseScrubFailed || !strings.Contains(row.Reason, "30 minutes") {
			t.Errorf("after its time the lease is %+v", row)
		}
		r.must(operatorToken, "POST", "/fleet/nodes/n1/scrub", nil)
		r.eventually("the repeat to be under way", time.Minute, func() bool { return n1.asked() > 1 })
		close(first)
		r.wait(time.Minute)
		row = r.leaseRow(l.ID)
		if row.Scrubs[0].State != api.ScrubRunning || row.Scrubs[1].State != api.ScrubFailed || r.free("n1") || r.free("n2") {
			t.Errorf("late answers made the lease %+v", row)
		}
		close(second)
		r.eventually("n1 to be free", time.Minute, func() bool { return r.free("n1") })
		r.wait(time.Minute)
		if r.free("n2") || r.leaseRow(l.ID).State != api.LeaseScrubFailed {
			t.Errorf("the scrub of n1 freed n2, too: %+v", r.leaseRow(l.ID))
		}
		r.must(operatorToken, "POST", "/fleet/nodes/n2/scrub", nil)
		r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
		r.scrubbedFor("n1", l.ID)
		r.scrubbedFor("n2", l.ID)
	})
}

func TestTheNextLeaderGoesOnWithALeaseWhereverItIs(t *testing.T) {
	for _, at := range []api.LeaseState{api.LeasePending, api.LeaseActive, api.LeaseEnding, api.LeaseScrubbing} {
		t.Run(string(at), func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				token := r.tenant("acme", nil)
				n1, open := r.node("n1"), make(chan struct{})
				in := into[api.LaunchAnswer](t, r.must(operatorToken, "POST", "/fleet/vms", body{"name": "in-the-way", "image": "tiny", "node": "n1"}))
				r.running(in.VM.ID)
				began := time.Now()
				made := r.must(token, "POST", "/fleet/leases", body{"node": "n1", "duration": "60s", "drain": true})
				l := into[api.Lease](t, made)
				if made.status != http.StatusAccepted || l.State != api.LeasePending || l.StartsAt != 0 || !slices.Equal(l.BlockedBy, []string{in.VM.ID}) {
					t.Fatalf("a lease of a host in use: %s", made)
				}
				kill := func(state api.LeaseState) {
					if state != at {
						return
					}
					if got := r.leaseRow(l.ID).State; got != state {
						t.Errorf("the lease is %s when its leader dies, want %s", got, state)
					}
					old := r.leader()
					r.crash(old)
					r.newLeader(old)
					r.start(old)
				}
				if got := r.as(operatorToken, "POST", "/fleet/vms", body{"image": "tiny", "node": "n1"}); got.code() != api.CodeNoCapacity {
					t.Errorf("a launch on a host that waits for a lease: %s", got)
				}
				kill(api.LeasePending)
				r.insist("DELETE", "/fleet/vms/"+in.VM.ID, nil, "")
				r.leaseIn(l.ID, api.LeaseActive, time.Minute)
				if took := time.Since(began); at != api.LeasePending && took > 10*time.Second {
					t.Errorf("it took %s to start", took)
				}
				started := time.Now()
				vm := into[api.LaunchAnswer](t, r.insistAs(token, "POST", "/fleet/vms", body{"name": "a", "image": "tiny", "node": "n1"}, "a"))
				r.running(vm.VM.ID)
				r.wait(time.Until(started.Add(57 * time.Second)))
				kill(api.LeaseActive)
				if at == api.LeaseEnding {
					n1.with(func() { n1.closed = true })
				}
				n1.with(func() { n1.scrub = blocked(open) })
				r.wait(time.Until(started.Add(61 * time.Second)))
				r.eventually("the lease to have passed its end", 10*time.Second, func() bool { return r.leaseRow(l.ID).State != api.LeaseActive })
				kill(api.LeaseEnding)
				n1.with(func() { n1.closed = false })
				r.leaseIn(l.ID, api.LeaseScrubbing, time.Minute)
				kill(api.LeaseScrubbing)
				if r.free("n1") {
					t.Error("n1 is free before its scrub")
				}
				close(open)
				row := r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
				if !r.free("n1") || r.member(r.leader()).state.View().VM(vm.VM.ID) != nil {
					t.Errorf("at the end the lease is %+v, the VM %+v", row, r.member(r.leader()).state.View().VM(vm.VM.ID))
				}
				if late := r.afterTheEnd(r.leader(), l.ID); len(late) > 0 {
					t.Errorf("after the end of the lease its host was given to %v", late)
				}
				r.scrubbedFor("n1", l.ID)
				bills := everything[api.LedgerRow](r, token, "/fleet/ledger?kind=lease&")
				if len(bills) != 1 || bills[0].LeaseID != l.ID || bills[0].EndedAt.Sub(bills[0].StartedAt) != time.Minute {
					t.Errorf("the lease is billed as %+v, want one stretch of its minute", bills)
				}
				r.billedAsRun()
			})
		})
	}
}

func TestAMacsLeaseEndsEarlyAsAWish(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.addNode("mac", func(n *modelNode) { n.facts.Apple = &api.AppleHost{Chip: "m4", MacOSLimit: api.MacOSPerHost} })
		r.registered()
		r.image("tiny")
		token := r.tenant("acme", nil)
		if got := r.as(token, "POST", "/fleet/leases", body{"node": "mac", "duration": "23h"}); got.status != 400 || !strings.Contains(string(got.body), "24 h") {
			t.Errorf("a lease of 23 hours on a Mac: %s, want 400 with the minimum", got)
		}
		r.must(operatorToken, "PATCH", "/fleet/policy", body{"min_lease_hours": 1})
		l := into[api.Lease](t, r.must(token, "POST", "/fleet/leases", body{"node": "mac", "duration": "48h", "auto_renew": true}))
		r.must(operatorToken, "PATCH", "/fleet/policy", body{"min_lease_hours": 0}) // holds for leases made later
		if l.EarliestEnd.Sub(l.StartsAt) != time.Hour || l.EndsAt.Sub(l.StartsAt) != 48*time.Hour {
			t.Errorf("the lease is %+v", l)
		}
		ended := into[api.Lease](t, r.must(token, "DELETE", "/fleet/leases/"+l.ID, nil))
		if ended.State != api.LeaseActive || ended.EndsAt != l.EarliestEnd || ended.AutoRenew || ended.Reason == "" {
			t.Errorf("after the wish to end it: %+v", ended)
		}
		r.must(token, "POST", "/fleet/vms", body{"image": "tiny", "node": "mac"}) // until then it is as good as ever
		old := r.leader()
		r.crash(old)
		r.newLeader(old)
		r.skip(59 * time.Minute)
		r.wait(5 * time.Second)
		if state := r.leaseRow(l.ID).State; state != api.LeaseActive {
			t.Errorf("it is %s before its minimum term is over", state)
		}
		r.skip(time.Minute)
		r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
		if bill := everything[api.LedgerRow](r, token, "/fleet/ledger?kind=lease&"); len(bill) != 1 || bill[0].EndedAt.Sub(bill[0].StartedAt) != time.Hour {
			t.Errorf("billed are %+v, want the minimum of one hour", bill)
		}
		r.scrubbedFor("mac", l.ID)
	})
}

func TestALeaseIsGivenAtOnceOrRefused(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		for _, n := range []string{"a1", "a2", "b1"} {
			r.addNode(n, func(m *modelNode) { m.facts.Labels["row"] = n[:1] })
		}
		r.registered()
		r.image("tiny")
		r.pool("shared", body{"image": "tiny", "min_ready": 2, "node_selector": body{"row": "a"}})
		acme, globex := r.tenant("acme", body{"max_leases": 1}), r.tenant("globex", nil)
		if got := r.as(acme, "POST", "/fleet/leases", body{"node_selector": body{"row": "a"}, "count": 3, "duration": "1h"}); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"label":1`) {
			t.Errorf("three hosts of two: %s, want no_capacity with reasons", got)
		}
		l := into[api.Lease](t, r.must(acme, "POST", "/fleet/leases", body{"node_selector": body{"row": "a"}, "count": 2, "duration": "1h"}, api.HeaderIdempotencyKey, "k"))
		again := into[api.Lease](t, r.must(acme, "POST", "/fleet/leases", body{"node_selector": body{"row": "a"}, "count": 2, "duration": "1h"}, api.HeaderIdempotencyKey, "k"))
		slices.Sort(l.Nodes)
		if l.State != api.LeaseActive || !slices.Equal(l.Nodes, []string{"a1", "a2"}) || again.ID != l.ID { // idle spares block nothing
			t.Errorf("the lease is %+v, its repeat %+v", l, again)
		}
		r.eventually("the shared spares to be off the leased hosts", time.Minute, func() bool { return r.node("a1").count()+r.node("a2").count() == 0 })
		if got := r.as(acme, "POST", "/fleet/leases", body{"node": "b1", "duration": "1h"}); got.code() != api.CodeQuotaExceeded {
			t.Errorf("a second lease of a quota of one: %s", got)
		}
		if got := r.as(globex, "POST", "/fleet/leases", body{"node": "a1", "duration": "1h", "drain": true}); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"leased":1`) {
			t.Errorf("a lease of a leased host: %s", got)
		}
		if got := r.as(globex, "POST", "/fleet/vms", body{"image": "tiny", "node": "a1"}); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"leased":1`) {
			t.Errorf("a launch on another's host: %s", got)
		}
		extended := into[api.Lease](t, r.must(acme, "PATCH", "/fleet/leases/"+l.ID, body{"ends_at": l.EndsAt.Add(time.Hour)}))
		if extended.EndsAt != l.EndsAt.Add(time.Hour) {
			t.Errorf("extended by an hour it ends at %s, was %s", extended.EndsAt, l.EndsAt)
		}
		if got := r.as(globex, "PATCH", "/fleet/leases/"+l.ID, body{"auto_renew": true}); got.status != 404 {
			t.Errorf("changing another's lease: %s", got)
		}
		r.eventually("the shared pool to say that its hosts are leased", time.Minute, func() bool {
			s := r.status("shared")
			return s.Ready == 0 && s.WaitReason != nil && *s.WaitReason == api.WaitNoCapacity && s.Reasons["leased"] == 2
		})
		// One host of the two stays dirty: the other is free, and the lease has not ended.
		a2 := r.node("a2")
		a2.with(func() {
			a2.scrub = func(context.Context, int, string) (api.ScrubAnswer, error) {
				return api.ScrubAnswer{}, api.Errorf(api.CodeInternal, "the disk is busy")
			}
		})
		r.must(acme, "DELETE", "/fleet/leases/"+l.ID, nil)
		row := r.leaseIn(l.ID, api.LeaseScrubFailed, time.Minute)
		r.eventually("the clean host to be free", time.Minute, func() bool { return r.free("a1") })
		if r.free("a2") || !strings.Contains(row.Reason, "a2") {
			t.Errorf("a2 is free: %t; the lease says %q", r.free("a2"), row.Reason)
		}
		r.full("shared")
		a2.with(func() { a2.scrub = nil })
		r.must(operatorToken, "POST", "/fleet/nodes/a2/scrub", nil)
		r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
		if got := r.as(acme, "DELETE", "/fleet/leases/"+l.ID, nil); got.status != 204 {
			t.Errorf("ending an ended lease: %s", got)
		}
	})
}

func TestALeaseRenewsItselfUntilItMayNot(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		token := r.tenant("acme", nil)
		l := into[api.Lease](t, r.must(token, "POST", "/fleet/leases", body{"node": "n1", "duration": "30s", "auto_renew": true}))
		r.wait(40 * time.Second)
		old := r.leader()
		r.crash(old)
		r.newLeader(old)
		r.wait(30 * time.Second)
		if row := r.leaseRow(l.ID); row.State != api.LeaseActive || row.EndsAt.Sub(row.StartsAt) < 90*time.Second || row.EndsAt.Sub(row.StartsAt) > 100*time.Second {
			t.Errorf("after 70 s of a lease of 30 s that renews: %+v", row)
		}
		r.insistAs(token, "PATCH", "/fleet/leases/"+l.ID, body{"auto_renew": false}, "")
		r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
		if bill := everything[api.LedgerRow](r, token, "/fleet/ledger?kind=lease&"); len(bill) != 1 || bill[0].EndedAt != r.leaseRow(l.ID).EndsAt {
			t.Errorf("billed are %+v, want one stretch up to its end", bill)
		}
	})
}

// A blocker that ends already is waited for, and one that may not be ended too: nothing is proposed in vain on each pass.
func TestAPendingLeaseIsBroughtOnOnlyWhenThereIsSomethingToDo(t *testing.T) {
	w := newWorld(t)
	w.node(host("n1"))
	w.image("tiny", api.GuestLinux)
	w.do(fsm.KindCreateTenant, fsm.CreateTenant{Request: api.TenantRequest{Name: "acme"}})
	w.do(fsm.KindLaunchVM, fsm.LaunchVM{ID: "x", Launch: fsm.Launch{Name: "x", Image: "tiny", TTLSeconds: 3600}, Candidates: []string{"n1"}})
	w.report("x", api.StateRunning)
	w.do(fsm.KindCreateLease, fsm.CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"n1"}, EndsAt: w.now + 3_600_000, Drain: true})
	due := func(want bool, when string) {
		t.Helper()
		l := w.view().Lease("l")
		if got := leaseDue(w.view(), l, w.now); got != want {
			t.Errorf("%s: due %t, want %t for %+v", when, got, want, l)
		}
	}
	due(true, "a VM with a deadline is in the way")
	w.do(fsm.KindAdvanceLease, fsm.AdvanceLease{ID: "l"})
	due(false, "it is being deleted")
	w.now += 3_600_000
	due(true, "its named end has come")
	w.now -= 3_600_000
	w.do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: "x", Node: "n1", State: api.StateGone}}})
	due(true, "nothing is in the way")
	w.do(fsm.KindAdvanceLease, fsm.AdvanceLease{ID: "l"})
	due(false, "it is active")
}
