package central

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// waiting is how many launches the leader has in its line.
func (r *rig) waiting() int {
	g := r.member(r.leader()).reign.Load()
	if g == nil {
		return -1
	}
	g.queue.mu.Lock()
	defer g.queue.mu.Unlock()
	return g.queue.total
}

func TestALaunchWaitsForRoomAndTakesIt(t *testing.T) {
	whole := body{"name": "b", "image": "tiny", "memory_mib": 65536, "wait_for_capacity_secs": 600}
	for name, free := range map[string]func(r *rig){
		"a VM ended":  func(r *rig) { r.call(r.leader(), "DELETE", "/fleet/vms/a", nil) },
		"a host came": func(r *rig) { r.addNode("n2", nil) },
		"a host was uncordoned": func(r *rig) {
			r.call(r.leader(), "POST", "/fleet/nodes/n0/uncordon", nil)
		},
		"pressure is over": func(r *rig) {
			n := r.node("n9")
			n.with(func() { n.facts.Density.HostPressureLevel = level(api.PressureNormal) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.addNode("n9", func(n *modelNode) { n.facts.Density.HostPressureLevel = level(api.PressureCritical) })
				r.ready("n0", "n1")
				r.call(r.leader(), "POST", "/fleet/nodes/n0/cordon", nil)
				r.launch(r.leader(), body{"name": "a", "image": "tiny"})
				got := r.ask(r.follower(), "POST", "/fleet/vms", whole, api.HeaderIdempotencyKey, "k")
				r.eventually("it to wait", time.Minute, func() bool { return r.waiting() == 1 })
				index := r.member(r.leader()).state.View().Index()
				r.wait(20 * time.Second)
				if now := r.member(r.leader()).state.View().Index(); now > index+4 { // ticks
					t.Errorf("%d entries in the log while nothing changed", now-index)
				}
				began := time.Now()
				free(r)
				if a := into[api.LaunchAnswer](t, <-got); a.VM.Name != "b" || time.Since(began) > 15*time.Second {
					t.Errorf("after %s: %+v", time.Since(began), a)
				}
				if n := r.waiting(); n != 0 {
					t.Errorf("%d still wait", n)
				}
			})
		})
	}
}

func TestALaunchThatWaitedInVainSaysWhy(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		began := time.Now()
		b := body{"name": "b", "image": "tiny", "memory_mib": 65537, "wait_for_capacity_secs": 30}
		got := r.call(r.leader(), "POST", "/fleet/vms", b, api.HeaderIdempotencyKey, "k")
		if took := time.Since(began); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"reasons":{"memory":1}`) || took < 30*time.Second || took > 35*time.Second {
			t.Errorf("after %s: %s", took, got)
		}
		if got := r.call(r.leader(), "POST", "/fleet/vms", body{"image": "tiny", "wait_for_capacity_secs": 3601}); got.code() != api.CodeInvalid {
			t.Errorf("longer than an hour: %s", got)
		}
		b["memory_mib"] = 512 // the key is free
		if got := r.call(r.leader(), "POST", "/fleet/vms", b, api.HeaderIdempotencyKey, "k"); got.status != http.StatusCreated {
			t.Errorf("the same key for what fits: %s", got)
		}
	})
}

func TestHostsThatRefuseAreNotAskedWithoutEndByALaunchThatWaits(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		n1 := r.node("n1")
		n1.with(func() { n1.refuse = api.Errorf(api.CodeHostPressure, "under pressure") })
		got := r.ask(r.leader(), "POST", "/fleet/vms", body{"name": "b", "image": "tiny", "wait_for_capacity_secs": 300}, api.HeaderIdempotencyKey, "k")
		r.wait(40 * time.Second)
		if n := len(n1.log()); n < 4 || n > 15 {
			t.Errorf("the host was asked %d times in 40 s", n)
		}
		n1.with(func() { n1.refuse = nil })
		if a := into[api.LaunchAnswer](t, <-got); a.Node != "n1" {
			t.Errorf("got %+v", a)
		}
	})
}

// Tenants take turns, however many launches one of them lines up; within a tenant the oldest goes first.
func TestTheLineIsFair(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		tenants := []string{"acme", "bolt", "cog"}
		for _, name := range tenants {
			r.insist("POST", "/fleet/tenants", body{"name": name}, name)
		}
		r.launch(r.leader(), body{"name": "all", "image": "tiny", "memory_mib": 65536})
		lines := map[string]int{"acme": 6, "bolt": 3, "cog": 1}
		var all sync.WaitGroup
		queued := 0
		for _, tenant := range slices.Sorted(maps.Keys(lines)) {
			for i := range lines[tenant] {
				all.Go(func() {
					b := body{"name": fmt.Sprint(tenant, "-", i), "tenant": tenant, "image": "tiny", "memory_mib": 65536, "wait_for_capacity_secs": 3000, "ttl_seconds": 5}
					r.insist("POST", "/fleet/vms", b, fmt.Sprint(tenant, i))
				})
				queued++
				r.eventually("it to be in the line", time.Minute, func() bool { return r.waiting() == queued })
			}
		}
		r.call(r.leader(), "DELETE", "/fleet/vms/all", nil)
		all.Wait()
		var order []string
		for _, a := range into[api.List[api.Activity]](t, r.call(r.leader(), "GET", "/fleet/activity?limit=500", nil)).Items {
			if a.Action == "POST /fleet/vms" && a.Target != "all" {
				order = append(order, a.Target)
			}
		}
		slices.Reverse(order)
		want := "acme-0 bolt-0 cog-0 acme-1 bolt-1 acme-2 bolt-2 acme-3 acme-4 acme-5"
		if got := strings.Join(order, " "); got != want {
			t.Errorf("they went\n%s, want\n%s", got, want)
		}
	})
}

func TestALaunchThatWaitsOverAChangeOfLeaderLinesUpAnew(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "a", "image": "tiny", "memory_mib": 65536})
		b := body{"name": "b", "image": "tiny", "memory_mib": 65536, "wait_for_capacity_secs": 600}
		old := r.leader()
		first := r.ask(old, "POST", "/fleet/vms", b, api.HeaderIdempotencyKey, "k")
		r.eventually("it to wait", time.Minute, func() bool { return r.waiting() == 1 })
		r.network.Isolate(old)
		if got := <-first; got.code() != api.CodeNotLeader {
			t.Errorf("from the leader that was: %s, want not_leader and nothing applied", got)
		}
		r.newLeader(old)
		r.network.Rejoin(old)
		second := r.ask(r.follower(), "POST", "/fleet/vms", b, api.HeaderIdempotencyKey, "k")
		r.eventually("it to wait again", time.Minute, func() bool { return r.waiting() == 1 })
		r.insist("DELETE", "/fleet/vms/a", nil, "")
		if a := into[api.LaunchAnswer](t, <-second); a.VM.Name != "b" {
			t.Errorf("got %+v", a)
		}
	})
}

func TestTheLineIsBounded(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		var all sync.WaitGroup
		for i := range maxTenantWaiting {
			all.Go(func() {
				r.call(r.leader(), "POST", "/fleet/vms", body{"name": fmt.Sprint("b", i), "image": "tiny", "memory_mib": 65537, "wait_for_capacity_secs": 40})
			})
		}
		r.eventually("all to wait", 30*time.Second, func() bool { return r.waiting() == maxTenantWaiting })
		if got := r.call(r.leader(), "POST", "/fleet/vms", body{"image": "tiny", "memory_mib": 65537, "wait_for_capacity_secs": 40}); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), "wait for room already") {
			t.Errorf("one more: %s", got)
		}
		all.Wait()
	})
}

func TestARepeatOfALaunchThatWaitsMayWaitInAFullLine(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/nodes/n1/cordon", nil)
		var all []<-chan reply
		launch := func(key string) {
			all = append(all, r.ask(r.leader(), "POST", "/fleet/vms", body{"image": "tiny", "memory_mib": 64, "wait_for_capacity_secs": 40}, api.HeaderIdempotencyKey, key))
		}
		for i := range maxTenantWaiting {
			launch(fmt.Sprint("k", i))
			r.eventually("it to be in the line", 30*time.Second, func() bool { return r.waiting() == i+1 })
		}
		launch("k0")
		r.eventually("the repeat to wait", 30*time.Second, func() bool { return r.waiting() == maxTenantWaiting+1 })
		r.call(r.leader(), "POST", "/fleet/nodes/n1/uncordon", nil)
		first, repeat := <-all[0], <-all[maxTenantWaiting]
		if a, b := into[api.LaunchAnswer](t, first), into[api.LaunchAnswer](t, repeat); a.VM.ID != b.VM.ID {
			t.Errorf("the first got %s and its repeat %s", a.VM.ID, b.VM.ID)
		}
		for _, one := range all[1:maxTenantWaiting] {
			<-one
		}
	})
}

func TestALaunchThatBreaksInItsTurnDoesNotHoldTheLineUp(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/nodes/n1/cordon", nil)
		g := r.member(r.leader()).reign.Load()
		breaks := &waiter{launch: &fsm.Launch{Name: "a", Image: "tiny"}, op: &fsm.Op{Key: "a"}, turn: make(chan struct{}), done: make(chan struct{})}
		if err := g.queue.join(breaks); err != nil {
			t.Fatal(err)
		}
		next := r.ask(r.leader(), "POST", "/fleet/vms", body{"name": "b", "image": "tiny", "wait_for_capacity_secs": 600})
		r.eventually("both to wait", time.Minute, func() bool { return r.waiting() == 2 })
		r.call(r.leader(), "POST", "/fleet/nodes/n1/uncordon", nil)
		<-breaks.turn
		func() {
			defer func() { _ = recover() }()
			_, _ = breaks.use(func() (func() error, error) { panic("broken") })
		}()
		if a := into[api.LaunchAnswer](t, <-next); a.VM.Name != "b" {
			t.Errorf("got %+v", a)
		}
	})
}

func TestAHostStartsOnlySoManyAtATimeAndRefusesNone(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.addNode("n1", func(n *modelNode) { n.bootTakes = 3 * time.Second })
		r.registered()
		r.image("tiny")
		limit, most := api.DefaultPolicy().MaxBootsPerNode, 0
		for i := range 3 * limit {
			if got := r.launch(r.leader(), body{"name": fmt.Sprint("b", i), "image": "tiny"}); got.Node != "n1" {
				t.Errorf("launch %d is on %s", i, got.Node)
			}
		}
		n1 := r.node("n1")
		r.eventually("all to run", time.Minute, func() bool {
			booting, running := 0, 0
			n1.mu.Lock()
			for _, m := range n1.vms {
				booting += count(m.State == api.StateBooting)
				running += count(m.State == api.StateRunning)
			}
			n1.mu.Unlock()
			most = max(most, booting)
			return running == 3*limit
		})
		if most > limit || most == 0 {
			t.Errorf("%d were starting at a time, want %d at most", most, limit)
		}
		for at, o := range n1.log() { // in the order of their launches, as far as they start at one time
			launched := -1
			if _, err := fmt.Sscanf(o.name, "b%d", &launched); err != nil || launched-at >= limit || at-launched >= limit {
				t.Errorf("launch %s was the start number %d", o.name, at)
			}
		}
	})
}
