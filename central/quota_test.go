package central

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func quota(vms, vcpus int64) fsm.Tenant {
	return fsm.Tenant{Quota: api.Quota{MaxVMs: &vms, MaxVCPUs: &vcpus}}
}

// spender is a tenant that launches, fails, repeats and deletes at random, one thing after the other.
type spender struct {
	*rig
	name, token string
	limit       fsm.Tenant
	rng         *rand.Rand
	mine        []string
	calls       map[string]int // by what came of them
	n           int
}

// used is what the tenant holds; only its own next request can raise it.
func (s *spender) used() api.Holding {
	return s.member(s.leader()).state.View().Holding(s.name)
}

func (s *spender) once() {
	if len(s.mine) > 0 && s.rng.IntN(5) < 2 {
		s.remove()
		return
	}
	s.n++
	cpus := 1 + s.rng.Int64N(2)
	b := body{"name": fmt.Sprint(s.name, "-", s.n), "image": "tiny", "vcpus": cpus}
	key := fmt.Sprint(s.name, "-key-", s.n)
	before := s.used()
	if s.rng.IntN(3) == 0 { // its first answer is lost on the way
		s.calls["abandoned"]++
		_, _ = s.try(s.names[s.rng.IntN(3)], s.token, "POST", "/fleet/vms", b, api.HeaderIdempotencyKey, key)
	}
	got := s.insistAs(s.token, "POST", "/fleet/vms", b, key)
	fits := before.VMs+1 <= *s.limit.Quota.MaxVMs && before.VCPUs+cpus <= *s.limit.Quota.MaxVCPUs
	switch code := got.code(); {
	case got.status == http.StatusCreated:
		s.calls["launched"]++
		s.mine = append(s.mine, into[api.LaunchAnswer](s.t, got).VM.ID)
		if s.rng.IntN(4) == 0 { // a repeat takes nothing more
			s.calls["repeated"]++
			again := s.insistAs(s.token, "POST", "/fleet/vms", b, key)
			if again.status != http.StatusCreated || into[api.LaunchAnswer](s.t, again).VM.ID != s.mine[len(s.mine)-1] {
				s.t.Errorf("the repeat of %s answers %s", key, again)
			}
		}
	case code == api.CodeQuotaExceeded && fits:
		s.t.Errorf("tenant %s held %+v of %s and was refused %d vCPUs more: %s", s.name, before, asJSON(s.limit.Quota), cpus, got)
	case code == api.CodeQuotaExceeded:
		s.calls["refused"]++
	case code == api.CodeNoCapacity: // all nodes said no
		s.calls["nowhere"]++
	default:
		s.t.Errorf("launching %s: %s", key, got)
	}
}

func (s *spender) remove() {
	i := s.rng.IntN(len(s.mine))
	id := s.mine[i]
	got := s.insistAs(s.token, "DELETE", "/fleet/vms/"+id, nil, "")
	if got.status != http.StatusNoContent && got.status != http.StatusNotFound {
		s.t.Errorf("deleting %s: %s", id, got)
	}
	s.calls["deleted"]++
	s.mine = append(s.mine[:i], s.mine[i+1:]...)
}

// faults are what disturb does, in turn.
var faults = [...]string{"refusal", "leader cut off", "all refuse", "lost replies", "failed boots", "leader alone"}

// disturb does harm until done is closed, one fault after the other, and heals each.
func (r *rig) disturb(rng *rand.Rand, done <-chan struct{}, happened map[string]int) {
	names := []string{"n1", "n2", "n3"}
	refuse := func(n *modelNode) {
		n.with(func() { n.refuse = api.Errorf(api.CodeHostPressure, "the host is under memory pressure") })
	}
	for turn := 0; ; turn++ {
		select {
		case <-done:
			return
		case <-time.After(time.Duration(100+rng.IntN(400)) * time.Millisecond):
		}
		n, what := r.node(names[rng.IntN(len(names))]), faults[turn%len(faults)]
		happened[what]++
		switch what {
		case "refusal":
			refuse(n)
		case "all refuse":
			for _, n := range r.nodes {
				refuse(n)
			}
		case "lost replies":
			n.with(func() { n.lose = 1 + rng.IntN(3) })
		case "failed boots":
			n.with(func() { n.failBoots = true })
		default:
			r.isolateLeader(what == "leader cut off", time.Duration(1+rng.IntN(3))*time.Second)
		}
		r.wait(time.Duration(100+rng.IntN(900)) * time.Millisecond)
		for _, n := range r.nodes {
			n.with(func() { n.refuse, n.failBoots = nil, false })
		}
	}
}

// isolateLeader keeps the leader from the other replicas for a while, and from the nodes if so wished.
func (r *rig) isolateLeader(fromNodes bool, long time.Duration) {
	for _, name := range r.names {
		if m := r.member(name); m != nil && m.Leads() {
			r.network.Isolate(name)
			if fromNodes {
				r.cutOff(name)
			}
			r.wait(long)
			r.network.Rejoin(name)
			r.heal(name)
			return
		}
	}
}

func TestQuotasHoldUnderFaults(t *testing.T) {
	const turns = 125 // of each of four tenants
	for seed := range uint64(1) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			scenario(t, seed, func(t *testing.T, r *rig) {
				r.ready("n1", "n2", "n3")
				for _, n := range r.nodes {
					n.with(func() {
						n.lag = func() time.Duration { return time.Duration(r.random(60)) * time.Millisecond }
						n.keepGone = 30 * time.Second
					})
				}
				limits := map[string]fsm.Tenant{"t1": quota(3, 100), "t2": quota(6, 5), "t3": quota(1, 2), "t4": quota(8, 9)}
				var spenders []*spender
				for _, name := range []string{"t1", "t2", "t3", "t4"} {
					q := limits[name].Quota
					token := r.tenant(name, body{"max_vms": *q.MaxVMs, "max_vcpus": *q.MaxVCPUs})
					spenders = append(spenders, &spender{rig: r, name: name, token: token, limit: limits[name], rng: rand.New(rand.NewPCG(seed, uint64(len(spenders)))), calls: map[string]int{}})
				}
				var work, harm sync.WaitGroup
				done, happened := make(chan struct{}), map[string]int{}
				harm.Go(func() { r.disturb(rand.New(rand.NewPCG(seed, 99)), done, happened) })
				for _, s := range spenders {
					work.Go(func() {
						for range turns {
							s.once()
							r.wait(time.Duration(s.rng.IntN(300)) * time.Millisecond)
						}
					})
				}
				work.Wait()
				close(done)
				harm.Wait()
				calls := map[string]int{}
				for _, s := range spenders {
					for what, n := range s.calls {
						calls[what] += n
					}
				}
				for _, what := range []string{"launched", "refused", "abandoned", "repeated", "deleted", "nowhere"} {
					if calls[what] < 5 {
						t.Errorf("%s only %d times: %v", what, calls[what], calls)
					}
				}
				for _, what := range faults {
					if happened[what] < 3 {
						t.Errorf("%s only %d times: %v", what, happened[what], happened)
					}
				}
				limits["t2"], limits["t4"] = fsm.Tenant{Quota: api.Quota{MaxVCPUs: limits["t2"].Quota.MaxVCPUs}}, fsm.Tenant{Quota: api.Quota{MaxVCPUs: limits["t4"].Quota.MaxVCPUs}}
				r.applied()
				r.quotaHistory(r.leader(), limits)
				for name := range limits {
					r.recounted(name)
				}
				for _, s := range spenders {
					for len(s.mine) > 0 {
						s.remove()
					}
				}
				r.eventually("all VMs to be gone", 2*time.Minute, func() bool { return len(r.vms()) == 0 })
				for name := range limits {
					if h := r.member(r.leader()).state.View().Holding(name); h != (api.Holding{}) {
						t.Errorf("tenant %s holds %+v when all is gone", name, h)
					}
				}
			})
		})
	}
}

func TestParallelLaunchesNeverExceedAQuotaWhileLeadersDie(t *testing.T) {
	const launches, most = 30, 4
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			scenario(t, seed, func(t *testing.T, r *rig) {
				r.ready("n1", "n2", "n3")
				for _, n := range r.nodes {
					n.with(func() { n.lag = func() time.Duration { return time.Duration(r.random(400)) * time.Millisecond } })
				}
				token := r.tenant("acme", body{"max_vms": most})
				var all sync.WaitGroup
				answers := make([]reply, launches)
				for i := range answers {
					at := time.Duration(r.random(4000)) * time.Millisecond
					all.Go(func() {
						r.wait(at)
						answers[i] = r.insistAs(token, "POST", "/fleet/vms", body{"name": fmt.Sprint("vm-", i), "image": "tiny"}, fmt.Sprint("k", i))
					})
				}
				for range 2 {
					r.wait(time.Duration(100+r.random(1500)) * time.Millisecond)
					old := r.leader()
					r.crash(old)
					r.newLeader(old)
					r.start(old)
				}
				all.Wait()
				made := map[string]bool{}
				for i, got := range answers {
					switch {
					case got.status == http.StatusCreated:
						made[into[api.LaunchAnswer](t, got).VM.ID] = true
					case got.code() != api.CodeQuotaExceeded:
						t.Errorf("launch %d: %s", i, got)
					}
				}
				if len(made) != most || len(r.vms()) != most {
					t.Errorf("%d launches were let through and %d VMs are there, want %d", len(made), len(r.vms()), most)
				}
				r.serving()
				r.applied()
				r.quotaHistory(r.leader(), map[string]fsm.Tenant{"acme": quota(most, 1000)})
				r.recounted("acme")
			})
		})
	}
}
