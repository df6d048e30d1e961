package central

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func (r *rig) nodeState(name string) api.Node {
	r.t.Helper()
	return into[api.Node](r.t, r.call(r.leader(), "GET", "/fleet/nodes/"+name, nil))
}

// lostAfter lets the policy call hosts lost.
func (r *rig) lostAfter(seconds int) {
	r.t.Helper()
	if got := r.call(r.leader(), "PATCH", "/fleet/policy", body{"lost_after_seconds": seconds}); got.status != 200 {
		r.t.Fatal(got)
	}
}

func (r *rig) row(id string) *fsm.VM {
	r.t.Helper()
	return r.member(r.leader()).state.View().VM(id)
}

// Failure mode 5.
func TestALostNodesVMsBootElsewhereOrAreLostAndItReturnsFenced(t *testing.T) {
	scenario(t, 5, func(t *testing.T, r *rig) {
		r.addNode("n1", func(n *modelNode) { n.facts.Labels["zone"] = "lab" })
		r.registered()
		r.image("tiny")
		r.call(r.leader(), "PUT", "/fleet/prices", body{"currency": "EUR", "vm": []body{{"guest_os": "linux", "vcpu_hour_micros": 3_600_000, "gib_hour_micros": 0, "on_leased": true}}, "lease": []body{}, "pool": []body{}})
		r.lostAfter(900)
		mobile := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true, "nodeSelector": body{"zone": "lab"}})
		r.moves(mobile.VM.ID)
		plain := r.launch(r.leader(), body{"name": "plain", "image": "tiny"})
		died := r.launch(r.leader(), body{"name": "died", "image": "tiny"})
		r.pool("p", body{"image": "tiny", "min_ready": 2})
		r.eventually("all to run", time.Minute, func() bool {
			return !slices.ContainsFunc(r.vms(), func(v api.VM) bool { return v.State != api.StateRunning })
		})
		r.addNode("n2", nil)
		r.addNode("n3", func(n *modelNode) { n.facts.Labels["zone"] = "lab" })
		r.registered()
		n1 := r.node("n1")
		heard := r.member(r.leader()).clock.now()
		n1.with(func() { n1.silent = true })
		r.eventually("unreachable", 6*time.Minute, func() bool { return r.nodeState("n1").State == api.NodeUnreachable })
		if v := r.row(mobile.VM.ID); v.State != api.StateUnknown || v.Node != "n1" {
			t.Errorf("before the node is lost the reschedulable VM is %s on %s", v.State, v.Node)
		}
		old := r.leader()
		r.crash(old) // whoever leads then waits a whole window
		r.newLeader(old)
		r.start(old)
		r.wait(14 * time.Minute)
		if got := r.nodeState("n1").State; got != api.NodeUnreachable {
			t.Errorf("%s within the new leader's first window", got)
		}
		r.eventually("the node to be lost and the reschedulable VM to run elsewhere", 3*time.Minute, func() bool {
			v := r.row(mobile.VM.ID)
			return r.nodeState("n1").State == api.NodeLost && v.State == api.StateRunning && v.Node == "n3"
		})
		if v := r.row(plain.VM.ID); v.State != api.StateLost || v.Node != "n1" {
			t.Errorf("the other VM is %+v", v)
		}
		r.full("p")
		for _, row := range everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?kind=vm&") {
			if row.Node == "n1" && (row.EndedAt == 0 || row.EndedAt > heard.Add(11*time.Second)) {
				t.Errorf("stretch %+v, want it closed when n1 was last heard, at %s", row, heard)
			}
		}
		if got := r.call(r.leader(), "POST", "/fleet/nodes/n1/lost", body{"reason": "fire"}); got.status != 200 {
			t.Error(got)
		}
		before := len(n1.log())
		n1.with(func() { n1.end(died.VM.ID, "it crashed"); n1.silent = false })
		r.eventually("the node to be healthy", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeHealthy })
		r.eventually("what was said of its loss to be taken off", time.Minute, func() bool { return r.nodeState("n1").Reason == "" })
		if n1.has(mobile.VM.ID) != nil {
			t.Error("the node serves again with a VM that is elsewhere")
		}
		r.eventually("the lost VM to be back, and the one that died to be gone", time.Minute, func() bool {
			return r.row(plain.VM.ID).State == api.StateRunning && r.row(died.VM.ID) == nil
		})
		fenced := 0
		for _, o := range n1.log()[before:] {
			if fenced += count(o.op == "DELETE" && o.id == mobile.VM.ID && o.outcome == "done"); o.id == plain.VM.ID && o.op == "DELETE" {
				t.Error("the VM that is still its own was deleted")
			}
		}
		if m := r.node("n3").has(mobile.VM.ID); fenced != 1 || m == nil || m.Name != "mobile" {
			t.Errorf("fenced %d times; elsewhere it is %+v", fenced, m)
		}
		r.eventually("the spares that were replaced to be removed", 15*time.Minute, func() bool { return n1.count() == 1 })
	})
}

func TestTheOperatorsWordLosesASilentNodeAndDeletesIt(t *testing.T) {
	scenario(t, 5, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1"})
		r.eventually("it to run", time.Minute, func() bool { return r.row(a.VM.ID).State == api.StateRunning })
		if got := r.call(r.leader(), "POST", "/fleet/nodes/n1/lost", nil); got.code() != api.CodeConflict {
			t.Errorf("losing a healthy node: %s", got)
		}
		n1 := r.node("n1")
		n1.with(func() { n1.silent = true })
		r.eventually("suspect", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeSuspect })
		// A launch that is being placed there when the operator speaks goes on elsewhere.
		if got := r.call(r.follower(), "POST", "/fleet/nodes/n1/lost", body{"reason": "fire"}); got.status != 200 || into[api.Node](t, got).State != api.NodeLost {
			t.Fatal(got)
		}
		r.eventually("the VM to be lost", time.Minute, func() bool { return r.row(a.VM.ID).State == api.StateLost })
		b := r.launch(r.leader(), body{"name": "b", "image": "tiny"})
		if b.Node != "n2" {
			t.Errorf("got %+v", b)
		}
		r.call(r.leader(), "DELETE", "/fleet/vms/a", nil)
		r.eventually("a deleted VM of a lost node to be gone", time.Minute, func() bool { return r.row(a.VM.ID) == nil })
		if got := r.call(r.leader(), "DELETE", "/fleet/nodes/n1", nil); got.status != 204 {
			t.Errorf("deleting the lost node: %s", got)
		}
		n1.with(func() { clear(n1.vms) })
	})
}

func TestLaunchesUnderWayOnANodeThatIsLostGoOnElsewhere(t *testing.T) {
	scenario(t, 5, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1, "nodes": []string{"n1"}})
		n1 := r.node("n1")
		n1.with(func() { n1.silent = true })
		warm := r.ask(r.leader(), "POST", "/fleet/vms", body{"name": "warm", "image": "tiny"}, api.HeaderIdempotencyKey, "k1")
		cold := r.ask(r.leader(), "POST", "/fleet/vms", body{"name": "cold", "image": "tiny", "balloon": body{}}, api.HeaderIdempotencyKey, "k2")
		r.eventually("suspect", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeSuspect })
		r.call(r.leader(), "POST", "/fleet/nodes/n1/lost", nil)
		<-warm
		<-cold
		for key, name := range map[string]string{"k1": "warm", "k2": "cold"} {
			b := body{"name": name, "image": "tiny"}
			if name == "cold" {
				b["balloon"] = body{}
			}
			if got := into[api.LaunchAnswer](t, r.insist("POST", "/fleet/vms", b, key)); got.Node != "n2" || r.node("n2").has(got.VM.ID) == nil {
				t.Errorf("%s: %+v", name, got)
			}
		}
		n1.with(func() { clear(n1.vms); n1.silent = false })
		r.eventually("healthy", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeHealthy })
	})
}

// Failure mode 6.
func TestARebootBillsUntilTheHostWasHeardAndItsVMsAreReplaced(t *testing.T) {
	scenario(t, 6, func(t *testing.T, r *rig) {
		r.ready("n1")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		n1 := r.node("n1")
		heard := r.member(r.leader()).clock.now()
		n1.with(func() { n1.silent = true })
		r.wait(2 * time.Minute)
		n1.with(func() { n1.silent = false })
		n1.reboot()
		r.eventually("the VM to be gone", time.Minute, func() bool { return r.row(a.VM.ID) == nil })
		r.full("p")
		for _, row := range everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?vm_id="+a.VM.ID+"&") {
			if row.EndedAt == 0 || row.EndedAt > heard.Add(11*time.Second) {
				t.Errorf("stretch %+v, want it closed when the host was last heard, at %s", row, heard)
			}
		}
	})
}

// Failure mode 6.
func TestAClonedNodeIsQuarantinedWithTheFixAndLosesNothing(t *testing.T) {
	scenario(t, 6, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 2, "nodes": []string{"n1"}})
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1", "balloon": body{}})
		r.eventually("it to run", time.Minute, func() bool { return r.row(a.VM.ID).State == api.StateRunning })
		orders := len(r.node("n1").log())
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		n1 := r.node("n1")
		n1.mu.Lock()
		clone := n1.facts
		n1.mu.Unlock()
		clone.BootID, clone.Instance, clone.HasVMs, clone.VMs, clone.VMsDigest = "boot-9", "daemon-9", true, []api.ReportedVM{}, "none"
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				for _, name := range r.names {
					_, _ = r.try(name, n1.secret(), "POST", "/fleet/register", clone)
				}
				pause(ctx, 3*time.Second)
			}
		}()
		r.eventually("the node to be held back", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeSuspect })
		if got := r.nodeState("n1"); !strings.Contains(got.Reason, "two daemons report as node n1") || !strings.Contains(got.Reason, "remove DATA/uuid") {
			t.Errorf("the reason %q does not name the fix", got.Reason)
		}
		if got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "b", "pool": "p"}); got.status != 503 {
			t.Errorf("a launch from its spares: %s", got)
		}
		old := r.leader()
		r.crash(old)
		r.newLeader(old)
		r.wait(6 * time.Minute)
		if got := r.nodeState("n1"); got.State != api.NodeSuspect || got.Reason == "" {
			t.Errorf("after a while it is %s (%s)", got.State, got.Reason)
		}
		stop()
		<-done
		r.eventually("the node to be back once one of them reports", 3*time.Minute, func() bool {
			n := r.nodeState("n1")
			return n.State == api.NodeHealthy && n.Reason == ""
		})
		for _, v := range r.vms() {
			if v.State != api.StateRunning {
				t.Errorf("VM %s is %s (%s)", v.Name, v.State, v.Reason)
			}
		}
		for _, o := range n1.log()[orders:] {
			t.Errorf("the node was ordered %+v because of its copy", o)
		}
	})
}

// Failure mode 6: reports of daemons that have ended may arrive late, in any order, and make no twin of the present one.
func TestAReportOfAnEarlierDaemonIsNotBelievedAndTellsOfNoCopy(t *testing.T) {
	scenario(t, 6, func(t *testing.T, r *rig) {
		r.ready("n1")
		n1 := r.node("n1")
		var old []api.Register
		for i := range 4 {
			n1.mu.Lock()
			one := n1.report()
			n1.mu.Unlock()
			one.HasVMs, one.Labels = true, map[string]string{"host": "n1", "daemon": fmt.Sprint(i)}
			old = append(old, one)
			n1.with(func() { n1.facts.Instance = fmt.Sprint("later-", i) })
			r.wait(time.Second)
		}
		id := r.launch(r.leader(), body{"name": "a", "image": "tiny"}).VM.ID
		r.running(id)
		r.wait(2 * time.Minute)
		for _, i := range []int{0, 2, 1, 3} {
			for _, replica := range r.names {
				if got, err := r.try(replica, n1.secret(), "POST", "/fleet/register", old[i]); err != nil || got.status != 200 {
					t.Fatalf("%v %s", err, got)
				}
			}
			for range 24 {
				r.wait(5 * time.Second)
				if n := r.nodeState("n1"); n.State != api.NodeHealthy || n.Reason != "" {
					t.Fatalf("after the report of daemon %d the node is %s (%s)", i, n.State, n.Reason)
				}
			}
			n := r.nodeState("n1")
			if v := r.row(id); n.Labels["daemon"] != "" || v == nil || v.State != api.StateRunning {
				t.Errorf("after the report of daemon %d the node is %+v and its VM %+v", i, n, v)
			}
		}
	})
}

// Failure mode 6.
func TestARemadeHostIsRefusedUntilItsNodeIsReplaced(t *testing.T) {
	scenario(t, 6, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1", "reschedulable": true})
		b := r.launch(r.leader(), body{"name": "b", "image": "tiny", "nodeSelector": body{"host": "n1"}})
		r.eventually("b to run", time.Minute, func() bool { return r.row(b.VM.ID).State == api.StateRunning })
		n1 := r.node("n1")
		n1.with(func() { n1.silent = true })
		token := into[api.JoinToken](t, r.call(r.leader(), "POST", "/fleet/join-tokens", body{"kind": "node", "uses": 9})).Token
		remade := with(facts("n1"), func(f *api.Register) { f.Credential = "new"; f.Instance = "new" })
		join := func(report api.Register) reply {
			got, err := r.try(r.leader(), token, "POST", "/fleet/register", report)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		if got := join(remade); got.code() != api.CodeConflict || !strings.Contains(got.String(), "fluxctl fleet node-replace n1") {
			t.Errorf("a host made anew: %s", got)
		}
		lostKey := with(remade, func(f *api.Register) { f.UUID = n1.facts.UUID })
		if got := join(lostKey); got.code() != api.CodeConflict || !strings.Contains(got.String(), "fluxctl fleet node-replace n1") {
			t.Errorf("a host that lost its key: %s", got)
		}
		renamed := with(lostKey, func(f *api.Register) { f.Name = "n9" })
		if got := join(renamed); got.code() != api.CodeConflict || !strings.Contains(got.String(), "--name n1") {
			t.Errorf("a renamed host: %s", got)
		}
		r.eventually("the old one to be suspect", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeSuspect })
		if got := r.call(r.leader(), "POST", "/fleet/nodes/n1/replace", body{"reason": "a new disk"}); got.status != 200 {
			t.Fatal(got)
		}
		n1.with(func() {
			clear(n1.vms)
			n1.facts.UUID, n1.facts.Instance, n1.joined, n1.silent = "0198c0de-0000-7000-8000-00000000000f", "new", false, false
		})
		r.eventually("the new one to be healthy", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeHealthy })
		r.eventually("its VMs to be settled", time.Minute, func() bool { return r.row(b.VM.ID) == nil && r.row(a.VM.ID) == nil })
	})
}

// Failure modes 7 and 8.
func TestAPausedProcessLosesNobody(t *testing.T) {
	now := time.Now()
	f := newFleet(now)
	f.listing("n", now, "1")
	for range 20 {
		now = now.Add(time.Second)
		f.awake(now)
	}
	if got := f.silence("n", now); got != 20*time.Second {
		t.Errorf("while it runs: silent for %s, want 20 s", got)
	}
	now = now.Add(time.Hour)
	f.awake(now)
	if got := f.silence("n", now.Add(time.Second)); got != time.Second {
		t.Errorf("after a pause of an hour: silent for %s, want 1 s", got)
	}
}

// Failure mode 18.
func TestBeatsOfAnIdleFleetMakeNoEntryAndChangedFactsMakeOneForMany(t *testing.T) {
	scenario(t, 18, func(t *testing.T, r *rig) {
		var names []string
		for i := range 40 {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		r.ready(names...)
		r.pool("p", body{"image": "tiny", "min_ready": 3})
		r.wait(time.Minute)
		leader := r.leader()
		commands := func() (n int) {
			_, rest, _ := strings.Cut(string(r.call(leader, "GET", "/metrics", nil).body), "\nfluxvm_commands_applied_total ")
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := commands()
		r.wait(20 * time.Minute) // 40 nodes send 14,400 beats
		if n := commands() - before; n != 0 || before == 0 {
			t.Errorf("20 idle minutes made %d commands after %d, want none", n, before)
		}
		for _, name := range names {
			n := r.node(name)
			n.with(func() { n.facts.Labels = map[string]string{"host": name, "os": "new"}; n.facts.MemoryMiBTotal = 32768 })
		}
		r.eventually("all labels to be known", time.Minute, func() bool {
			for n := range r.member(leader).state.View().Nodes("") {
				if n.Labels["os"] != "new" || n.MemoryMiBTotal != 32768 {
					return false
				}
			}
			return true
		})
		if n := commands() - before; n > 8 {
			t.Errorf("40 nodes with other labels and totals made %d commands, want few", n)
		}
		old := r.leader()
		r.crash(old)
		next := r.newLeader(old)
		r.wait(2 * time.Minute)
		for n := range r.member(next).state.View().Nodes("") {
			if n.State != api.NodeHealthy {
				t.Errorf("node %s is %s after a change of leader", n.Name, n.State)
			}
		}
		for e := range r.member(next).state.View().Activities(0) {
			if strings.HasPrefix(e.Action, "node ") {
				t.Errorf("the change of leader made %s of node %s", e.Action, e.Target)
			}
		}
	})
}

// runs says whether a machine runs on the node, or is about to.
func (n *modelNode) runs(id string) bool {
	m := n.has(id)
	return m != nil && (m.State == api.StateRunning || m.State == api.StateBooting)
}

// Whichever way the network is cut, a VM that boots elsewhere has been stopped by its host before.
func TestAReschedulableVMNeverRunsTwice(t *testing.T) {
	for name, cut := range map[string]func(r *rig, leader string) []string{
		"cut from all":             func(r *rig, _ string) []string { return r.names },
		"cut from the leader":      func(_ *rig, leader string) []string { return []string{leader} },
		"the operator loses it":    func(r *rig, _ string) []string { return r.names },
		"and the leader is killed": func(r *rig, _ string) []string { return r.names },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 5, func(t *testing.T, r *rig) {
				r.ready("n1")
				r.lostAfter(300)
				id := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true}).VM.ID
				r.running(id)
				r.moves(id)
				r.addNode("n2", nil)
				r.registered()
				r.wait(20 * time.Second)
				n1, n2, leader := r.node("n1"), r.node("n2"), r.leader()
				began := time.Now()
				for _, replica := range cut(r, leader) {
					r.mu.Lock()
					r.cut[[2]string{replica, "n1"}] = true
					r.mu.Unlock()
				}
				killed := false
				r.eventually("it to run elsewhere", 20*time.Minute, func() bool {
					switch passed := time.Since(began); {
					case name == "the operator loses it" && passed > 40*time.Second:
						r.call(r.leader(), "POST", "/fleet/nodes/n1/lost", nil)
					case name == "and the leader is killed" && passed > 4*time.Minute && !killed:
						killed = true
						r.crash(leader)
						r.start(leader)
						r.mu.Lock()
						r.cut[[2]string{leader, "n1"}] = true
						r.mu.Unlock()
					}
					if n1.runs(id) && n2.runs(id) {
						t.Fatalf("after %s it runs on both", time.Since(began))
					}
					return n2.runs(id)
				})
				if took := time.Since(began); took < nodeLease {
					t.Errorf("it was moved after %s, within the host's lease", took)
				}
				for _, replica := range r.names {
					r.heal(replica)
				}
				r.eventually("its host to be back without it", 2*time.Minute, func() bool {
					if n1.runs(id) {
						t.Fatal("the host that is back runs it again")
					}
					return r.nodeState("n1").State == api.NodeHealthy && n1.has(id) == nil
				})
				if v := r.row(id); v.Node != "n2" || v.State != api.StateRunning {
					t.Errorf("it is %s on %s", v.State, v.Node)
				}
			})
		})
	}
}

// A host may come back as another node, with what it had: it is to run nothing that boots elsewhere by now.
func TestAHostThatComesBackAsAnotherNodeRunsNothingThatMoved(t *testing.T) {
	scenario(t, 5, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		one := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true})
		id := one.VM.ID
		r.running(id)
		r.moves(id)
		home := r.node(one.Node)
		home.with(func() { home.silent = true })
		r.eventually("it to be suspect", time.Minute, func() bool { return r.nodeState(one.Node).State == api.NodeSuspect })
		r.insist("POST", "/fleet/nodes/"+one.Node+"/lost", nil, "lost")
		r.eventually("it to run elsewhere", 6*time.Minute, func() bool { v := r.row(id); return v.Node != one.Node && v.State == api.StateRunning })
		if home.runs(id) {
			t.Fatal("its host has not stopped it")
		}
		again := r.addNode("n9", func(n *modelNode) {
			home.mu.Lock()
			defer home.mu.Unlock()
			for id, m := range home.vms {
				copied := *m
				n.vms[id] = &copied
			}
		})
		r.eventually("it to be a node", time.Minute, func() bool { return r.member(r.leader()).state.View().Node("n9") != nil })
		r.eventually("it to be taken off there", time.Minute, func() bool {
			if again.runs(id) {
				t.Fatal("it runs there, too")
			}
			return again.has(id) == nil
		})
		if v := r.row(id); v.State != api.StateRunning || v.Node == "n9" {
			t.Errorf("it is %s on %s", v.State, v.Node)
		}
		home.with(func() { clear(home.vms) })
	})
}

func TestAHostThatHearsTheFleetAgainGoesOnWithWhatItHeld(t *testing.T) {
	scenario(t, 5, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		one := r.launch(r.leader(), body{"name": "mobile", "image": "tiny", "reschedulable": true})
		r.running(one.VM.ID)
		home := r.node(one.Node)
		home.with(func() { home.mute = true })
		r.eventually("its host to stop it", 5*time.Minute, func() bool { return !home.runs(one.VM.ID) })
		home.with(func() { home.mute = false })
		r.eventually("it to run again where it was", time.Minute, func() bool {
			v := r.row(one.VM.ID)
			return home.runs(one.VM.ID) && v.State == api.StateRunning && v.Node == one.Node
		})
	})
}

// Failure mode 6: a report may be under way for as long as a replica stands still.
func TestAReportFromBeforeARebootIsNotBelieved(t *testing.T) {
	scenario(t, 6, func(t *testing.T, r *rig) {
		r.ready("n1")
		n1 := r.node("n1")
		n1.mu.Lock()
		old := n1.report()
		n1.mu.Unlock()
		old.HasVMs, old.Labels = true, map[string]string{"host": "n1", "os": "old"}
		n1.with(func() { n1.silent = true })
		r.wait(40 * time.Second)
		n1.reboot()
		n1.with(func() { n1.silent = false })
		r.eventually("the new boot to be known", time.Minute, func() bool {
			return r.member(r.leader()).state.View().Node("n1").BootID != old.BootID && r.nodeState("n1").State == api.NodeHealthy
		})
		id := r.launch(r.leader(), body{"name": "a", "image": "tiny"}).VM.ID
		r.running(id)
		for _, replica := range r.names {
			if got, err := r.try(replica, n1.secret(), "POST", "/fleet/register", old); err != nil || got.status != 200 {
				t.Fatalf("%v %s", err, got)
			}
		}
		r.wait(30 * time.Second)
		if n := r.member(r.leader()).state.View().Node("n1"); n.BootID == old.BootID || n.Labels["os"] != "" || n.State != api.NodeHealthy {
			t.Errorf("the old report made it %+v", n)
		}
		if v := r.row(id); v == nil || v.State != api.StateRunning || n1.has(id) == nil {
			t.Errorf("the VM of the new boot is %+v", v)
		}
	})
}
