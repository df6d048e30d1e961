package central

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// ask sends a request that may fail, in the background.
func (r *rig) ask(replica, method, path string, b any, header ...string) <-chan reply {
	out := make(chan reply, 1)
	go func() {
		got, _ := r.try(replica, operatorToken, method, path, b, header...) // no answer: status 0
		out <- got
	}()
	return out
}

func TestTheNextLeaderFinishesAHandOver(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 2, "max_total": 3})
		old := r.leader()
		launch := body{"name": "a", "pool": "p"}
		for _, n := range r.nodes { // the claim commits, and the node does not hear of it
			n.with(func() { n.silent = true })
		}
		lost := r.ask(old, "POST", "/fleet/vms", launch, api.HeaderIdempotencyKey, "k")
		var id string
		r.eventually("the claim to be committed", 10*time.Second, func() bool {
			if op := r.member(old).state.View().Operation("", "k"); op != nil {
				id = op.Ref
			}
			return id != ""
		})
		r.cutOff(old)
		r.network.Isolate(old)
		for _, n := range r.nodes {
			n.with(func() { n.silent = false })
		}
		next := r.newLeader(old)
		row := r.member(next).state.View().VM(id)
		r.eventually("the next leader to hand it over", 20*time.Second, func() bool { m := r.node(row.Node).has(id); return m != nil && m.Name == "a" })
		if got := <-lost; got.status != 0 && got.status != 504 {
			t.Errorf("the deposed leader answered %s, want 504 or nothing", got)
		}
		got := r.insist("POST", "/fleet/vms", launch, "k")
		again := into[api.LaunchAnswer](t, got)
		if again.VM.ID != id || !again.Warm || again.Pool != "p" || got.header.Get(api.HeaderReplayed) != "true" {
			t.Errorf("the repeat got %+v, want VM %s, warm and replayed", again, id)
		}
		r.full("p")
		if s := r.status("p"); s.Claimed24h != 1 || s.ClaimedRunning != 1 || s.Ready != 2 {
			t.Errorf("the pool counts %+v, want one claim and two ready", s)
		}
	})
}

func TestTheNextLeaderRepeatsACreateByID(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		old := r.leader()
		r.node("n1").with(func() { r.node("n1").lose = 1 << 30 })
		launch := body{"name": "a", "image": "tiny"}
		lost := r.ask(old, "POST", "/fleet/vms", launch, api.HeaderIdempotencyKey, "k")
		r.eventually("the node to have made it", 10*time.Second, func() bool { return r.node("n1").count() == 1 })
		r.network.Isolate(old)
		r.cutOff(old)
		r.newLeader(old)
		r.node("n1").with(func() { r.node("n1").lose = 0 })
		<-lost
		got := into[api.LaunchAnswer](t, r.insist("POST", "/fleet/vms", launch, "k"))
		if got.Node != "n1" || r.node("n1").has(got.VM.ID) == nil || r.node("n1").count() != 1 || r.node("n2").count() != 0 {
			t.Errorf("got %+v; n1 has %d VMs, n2 %d", got, r.node("n1").count(), r.node("n2").count())
		}
	})
}

func TestOneKeyOnTwoReplicasHasOneEffect(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 3})
		var all sync.WaitGroup
		ids := make([]string, 9)
		for i := range ids {
			all.Go(func() {
				got := into[api.LaunchAnswer](t, r.call(r.names[i%3], "POST", "/fleet/vms", body{"name": "a", "pool": "p"}, api.HeaderIdempotencyKey, "k"))
				ids[i] = got.VM.ID + " " + got.Node + " " + got.Pool + fmt.Sprint(got.Warm)
			})
		}
		all.Wait()
		for _, id := range ids {
			if id != ids[0] {
				t.Errorf("answers differ: %s and %s", ids[0], id)
			}
		}
		if s := r.status("p"); s.Claimed24h != 1 {
			t.Errorf("%d claims, want 1", s.Claimed24h)
		}
	})
}

func TestADeposedLeaderIsRefusedByTokenAndServesNoDefaultRead(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1"})
		old := r.leader()
		n1 := r.node("n1")
		// Until it is written down that the node has made the VM, the next order may be its create once more.
		r.eventually("the VM to be known as made, with nothing left to order", time.Minute, func() bool {
			row := r.member(old).state.View().VM(a.VM.ID)
			return row.State == api.StateRunning && !row.NeedsOrder()
		})
		n1.with(func() { n1.late = 30 * time.Second }) // the order is under way while its sender loses its office
		r.call(old, "PATCH", "/fleet/vms/a", body{"labels": body{"team": "x"}})
		r.eventually("the order to be under way", time.Second, func() bool { n1.mu.Lock(); defer n1.mu.Unlock(); return n1.late == 0 })
		r.network.Isolate(old)
		read := r.call(old, "GET", "/fleet/vms", nil)
		if read.status != 503 {
			t.Errorf("a read on the cut-off leader: %s, want 503", read)
		}
		next := r.newLeader(old)
		r.launch(next, body{"name": "b", "image": "tiny", "node": "n1"})
		for _, path := range []string{"/fleet/vms", "/fleet/vms/a", "/fleet/pools", "/fleet/nodes", "/fleet/cluster"} {
			if got := r.call(old, "GET", path, nil); got.status != 503 {
				t.Errorf("%s on the deposed leader: %s, want 503", path, got)
			}
		}
		if got := r.call(old, "POST", "/fleet/vms", body{"name": "c", "image": "tiny"}); got.status != 503 && got.status != 504 {
			t.Errorf("a write on the deposed leader: %s", got)
		}
		stale := r.call(old, "GET", "/fleet/vms?stale=true", nil)
		if vms := into[api.List[api.VM]](t, stale).Items; len(vms) != 1 || stale.header.Get(api.HeaderLastContact) == "" {
			t.Errorf("a stale read on it: %s, want what it knew and how old that is", stale)
		}
		r.wait(40 * time.Second)
		refusals := 0
		for _, o := range n1.log() {
			refusals += count(o.outcome == "stale" && o.id == a.VM.ID)
		}
		if refusals != 1 {
			t.Errorf("%d orders of the deposed leader were refused, want 1", refusals)
		}
		if m := n1.has(a.VM.ID); m.Labels["team"] != "x" {
			t.Errorf("the label, which the next leader set, is %q", m.Labels["team"])
		}
	})
}

func TestTTLsFireOverAFailoverAndNothingEarlyWhateverWallClocksDo(t *testing.T) {
	for _, jumps := range [][3]time.Duration{{0, 0, 0}, {time.Hour, -time.Hour, time.Hour}, {-time.Hour, time.Hour, -time.Hour}} {
		t.Run(fmt.Sprint(jumps), func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				r.pool("p", body{"image": "tiny", "min_ready": 1})
				began := time.Now()
				old := r.leader()
				for i := range 6 {
					r.launch(old, body{"name": fmt.Sprint("short-", i), "image": "tiny", "ttl_seconds": 60})
				}
				r.launch(old, body{"name": "long", "image": "tiny", "ttl_seconds": 1800})
				r.launch(old, body{"name": "endless", "image": "tiny"})
				expired := func() (n int) {
					for _, v := range r.vms() {
						n += count(v.ExpiresAt != 0 && v.State != api.StateDeleting)
					}
					return 7 - n
				}
				r.wait(10 * time.Second)
				for i, name := range r.names {
					r.member(name).jump.Store(int64(jumps[(i+2)%3]))
				}
				r.wait(40 * time.Second)
				r.crash(old)
				r.newLeader(old)
				r.wait(time.Until(began.Add(59 * time.Second)))
				if n := expired(); n != 0 {
					t.Errorf("%d VMs ended before their time", n)
				}
				r.eventually("the six to be gone from fleet and nodes", time.Until(began.Add(66*time.Second)), func() bool {
					return len(r.vms()) == 3 && r.node("n1").count()+r.node("n2").count() == 3
				})
				for _, n := range r.nodes {
					for _, o := range n.log() {
						if o.op == "expire" {
							t.Errorf("node %s had to end %s itself", n.name, o.id)
						}
					}
				}
				r.wait(time.Minute)
				if n := len(r.vms()); n != 3 {
					t.Errorf("%d VMs are left, want the long-lived, the endless and the spare", n)
				}
				if s := r.status("p"); s.Ready != 1 {
					t.Errorf("the pool: %+v", s)
				}
				for _, n := range into[api.List[api.Node]](t, r.call(r.leader(), "GET", "/fleet/nodes", nil)).Items {
					if n.State != api.NodeHealthy {
						t.Errorf("node %s is %s", n.Name, n.State)
					}
				}
			})
		})
	}
}

func TestWithAllReplicasDownNodesKeepDeadlinesAndNothingIsLost(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		short := r.launch(r.leader(), body{"name": "short", "image": "tiny", "ttl_seconds": 60, "balloon": body{}})
		r.launch(r.leader(), body{"name": "endless", "image": "tiny", "balloon": body{}})
		r.wait(time.Second)
		for _, name := range r.names {
			r.crash(name)
		}
		r.wait(5 * time.Minute)
		if r.node(short.Node).has(short.VM.ID) != nil {
			t.Error("the node kept a VM whose time was over")
		}
		for _, name := range r.names {
			r.start(name)
		}
		r.leader()
		for range 60 {
			r.wait(time.Second)
			for _, v := range r.vms() {
				if v.State != api.StateRunning && v.ID != short.VM.ID {
					t.Fatalf("after the outage VM %s is %s (%s)", v.Name, v.State, v.Reason)
				}
			}
		}
		if left := r.vms(); len(left) != 2 {
			t.Errorf("left are %+v, want the endless one and the spare", left)
		}
	})
}

func TestASilentNodeIsSuspectThenUnreachableThenBackWithItsInventory(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.pool("p", body{"image": "tiny", "min_ready": 1})
		kept := r.launch(r.leader(), body{"name": "kept", "image": "tiny"})
		died := r.launch(r.leader(), body{"name": "died", "image": "tiny"})
		r.eventually("both running", time.Minute, func() bool {
			for _, v := range r.vms() {
				if v.State != api.StateRunning {
					return false
				}
			}
			return true
		})
		state := func() api.NodeState {
			return into[api.Node](t, r.call(r.leader(), "GET", "/fleet/nodes/n1", nil)).State
		}
		n1 := r.node("n1")
		n1.with(func() { n1.silent = true })
		r.wait(25 * time.Second)
		if got := state(); got != api.NodeHealthy {
			t.Errorf("after 25 s: %s", got)
		}
		r.eventually("suspect", 10*time.Second, func() bool { return state() == api.NodeSuspect })
		got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "new", "pool": "p"})
		if got.status != 503 {
			t.Errorf("a launch with the only node suspect: %s, want 503", got)
		}
		old := r.leader()
		r.crash(old) // the next leader waits a whole window of its own
		next := r.newLeader(old)
		r.wait(4*time.Minute + 30*time.Second)
		if got := state(); got != api.NodeSuspect {
			t.Errorf("%s within the new leader's first five minutes", got)
		}
		r.eventually("unreachable", time.Minute, func() bool { return state() == api.NodeUnreachable })
		r.wait(10 * time.Second) // its last list says that they run, and that is no news
		for _, v := range r.vms() {
			if v.State != api.StateUnknown {
				t.Errorf("VM %s is %s, want unknown", v.Name, v.State)
			}
		}
		if use := r.member(next).state.View().Use("n1"); use.VMs != 3 || use.MemoryMiB != 3*512 {
			t.Errorf("unknown VMs still count: %+v", use)
		}
		n1.with(func() { delete(n1.vms, died.VM.ID); n1.silent = false })
		r.eventually("healthy again", 20*time.Second, func() bool { return state() == api.NodeHealthy })
		r.eventually("the inventory to be taken over", 30*time.Second, func() bool {
			all := map[string]api.VMState{}
			for _, v := range r.vms() {
				all[v.ID] = v.State
			}
			return all[kept.VM.ID] == api.StateRunning && all[died.VM.ID] == ""
		})
		r.full("p")
		for _, o := range n1.log() {
			if o.op == "DELETE" && o.id != died.VM.ID && o.outcome == "done" {
				if row := r.member(next).state.View().VM(o.id); row != nil && !row.Warm {
					t.Errorf("%s was deleted for the silence", o.id)
				}
			}
		}
	})
}

func TestAClaimTakesNoSpareOfASilentNode(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 1, "nodes": []string{"n1"}})
		r.node("n1").with(func() { r.node("n1").silent = true })
		r.wait(32 * time.Second)
		got := r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		if got.Warm || got.Node != "n2" {
			t.Errorf("got %+v, want a boot on n2", got)
		}
		r.node("n1").with(func() { r.node("n1").silent = false })
		r.full("p")
	})
}

func TestARebootEndsVMsAndPoolsRefill(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.pool("p", body{"image": "tiny", "min_ready": 2})
		a := r.launch(r.leader(), body{"name": "a", "pool": "p"})
		r.full("p")
		r.node("n1").reboot()
		r.eventually("the VM to be gone", time.Minute, func() bool { return r.call(r.leader(), "GET", "/fleet/vms/"+a.VM.ID, nil).status == 404 })
		r.eventually("two other spares to be ready", time.Minute, func() bool { return r.status("p").Ready == 2 && r.node("n1").count() == 2 })
		ended := false
		for _, e := range into[api.List[api.Activity]](t, r.call(r.leader(), "GET", "/fleet/activity", nil)).Items {
			ended = ended || e.Action == "end" && e.Target == "a" && e.Detail["reason"] == "its host was rebooted"
		}
		if !ended {
			t.Error("the activity log does not say why the VM ended")
		}
	})
}

func TestWhatANodeForgotIsGoneAndWhatNobodyOrderedIsRemoved(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		n1 := r.node("n1")
		cluster := r.member(r.leader()).state.View().Meta().ClusterID
		n1.with(func() {
			delete(n1.vms, a.VM.ID)
			for id, c := range map[string]string{"00000000-0000-4000-8000-000000000001": cluster, "00000000-0000-4000-8000-000000000002": "", "00000000-0000-4000-8000-000000000003": "another"} {
				n1.vms[id] = &machineRow{Machine: api.Machine{ID: id, Name: "x", State: api.StateRunning, VCPUs: 1, MemoryMiB: 1024, Labels: map[string]string{}}, cluster: c, born: time.Now()}
			}
		})
		r.eventually("the forgotten VM to be gone", time.Minute, func() bool { return len(r.vms()) == 0 })
		if node := into[api.Node](t, r.call(r.leader(), "GET", "/fleet/nodes/n1", nil)); node.FreeMemoryMiB != 65536-3*1024 || node.FreeVCPUs != 64-3 {
			t.Errorf("free are %d MiB and %d vCPUs; VMs made on the host count, too", node.FreeMemoryMiB, node.FreeVCPUs)
		}
		r.wait(9 * time.Minute)
		if n1.count() != 3 {
			t.Errorf("a stranger was removed within ten minutes: %d left", n1.count())
		}
		r.eventually("the stranger of this cluster to be removed", 3*time.Minute, func() bool { return n1.count() == 2 })
		r.wait(time.Minute)
		if n1.count() != 2 {
			t.Errorf("%d VMs left, want those of others untouched", n1.count())
		}
		n1.with(func() { clear(n1.vms) })
	})
}

// A list that was written before the VM was made may arrive long after: from a host that stood still in between.
func TestAListThatLacksAVMIsNotTakenForItsEnd(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		a := r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		n1 := r.node("n1")
		n1.with(func() { n1.unlisted = a.VM.ID })
		r.wait(5 * missingFor)
		if got := r.call(r.leader(), "GET", "/fleet/vms/"+a.VM.ID, nil); got.status != 200 || n1.has(a.VM.ID) == nil {
			t.Errorf("a VM that its host has, though no list of it: %s", got)
		}
		n1.with(func() { delete(n1.vms, a.VM.ID) })
		r.eventually("the VM to be gone once its host says so", time.Minute, func() bool { return len(r.vms()) == 0 })
	})
}

func TestADrainMovesSparesEndsWhatHasATTLAndLeavesTheRest(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 2})
		short := r.launch(r.leader(), body{"name": "short", "image": "tiny", "ttl_seconds": 3600, "node": "n1", "balloon": body{}})
		long := r.launch(r.leader(), body{"name": "long", "image": "tiny", "node": "n1", "balloon": body{}})
		if got := r.call(r.follower(), "POST", "/fleet/nodes/n1/drain", body{"reason": "a new disk"}); got.status != 200 {
			t.Fatal(got)
		}
		r.eventually("only the endless VM to be left on n1", time.Minute, func() bool { return r.node("n1").count() == 1 })
		if r.node("n1").has(long.VM.ID) == nil || r.node("n1").has(short.VM.ID) != nil {
			t.Error("the wrong one is left")
		}
		r.full("p")
		for _, s := range into[api.Pool](t, r.call(r.leader(), "GET", "/fleet/pools/p", nil)).Warm {
			if s.Node != "n2" {
				t.Errorf("spare %s is on %s", s.Name, s.Node)
			}
		}
		if got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "x", "image": "tiny", "node": "n1", "balloon": body{}}); got.status != 503 {
			t.Errorf("a launch onto a draining node: %s", got)
		}
	})
}

func TestARollKeepsAllButOneReady(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.image("next")
		r.pool("p", body{"image": "tiny", "min_ready": 3})
		if got := r.call(r.leader(), "POST", "/fleet/pools/p/roll", body{"image": "next"}); got.status != http.StatusAccepted {
			t.Fatal(got)
		}
		r.eventually("the roll to be done", time.Minute, func() bool { // no reader ever sees fewer
			p := into[api.Pool](t, r.call(r.leader(), "GET", "/fleet/pools/p", nil))
			if p.Status.Ready < 2 || p.Status.Ready+p.Status.Booting > 3 {
				t.Errorf("%d ready and %d booting within the roll, want two ready at least and three in all at most", p.Status.Ready, p.Status.Booting)
			}
			return p.Status.Ready == 3 && p.Status.Stale == 0 && p.Image == "next"
		})
	})
}

func TestAStoppedLeaderHandsOverAndLaunchesGoOn(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.pool("p", body{"image": "tiny", "min_ready": 2})
		for i := range 6 {
			key := fmt.Sprint("k", i)
			old := r.leader()
			pending := r.ask(r.follower(), "POST", "/fleet/vms", body{"name": key, "pool": "p"}, api.HeaderIdempotencyKey, key)
			r.wait(time.Duration(r.random(20)) * time.Millisecond)
			r.end(old)
			<-pending
			got := into[api.LaunchAnswer](t, r.insist("POST", "/fleet/vms", body{"name": key, "pool": "p"}, key))
			if got.VM.Name != key {
				t.Errorf("launch %s: %+v", key, got)
			}
			r.start(old)
		}
		names := map[string]int{}
		for _, v := range r.vms() {
			names[v.Name]++
		}
		for i := range 6 {
			if names[fmt.Sprint("k", i)] != 1 {
				t.Errorf("VM k%d is there %d times", i, names[fmt.Sprint("k", i)])
			}
		}
	})
}
