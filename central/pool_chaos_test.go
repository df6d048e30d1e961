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

// taker launches from pools that change under its hands: each launch at two replicas at once under one key, some with
// a secret, half of them deleted again.
type taker struct {
	r     *rig
	t     *testing.T
	rng   *rand.Rand
	token string
	pool  string
	who   string

	kept map[string]string // name → id
	warm int
}

func (k *taker) run(launches int) {
	for i := range launches {
		name := fmt.Sprintf("%s-%d", k.who, i)
		b := body{"name": name, "pool": k.pool}
		if k.rng.IntN(3) == 0 {
			delete(b, "pool")
			b["image"] = "tiny"
		}
		if k.rng.IntN(3) == 0 {
			b["claim"] = body{"secrets": body{"TOKEN": "secret-of-" + name}}
		}
		var at [2]reply
		var both sync.WaitGroup
		for n := range at {
			both.Go(func() { at[n] = k.r.persistAs(k.t, k.token, "POST", "/fleet/vms", b, "key-"+name) })
		}
		both.Wait()
		id, ended := "", false
		for _, got := range at {
			switch got.status {
			case http.StatusCreated:
				a := into[api.LaunchAnswer](k.t, got)
				k.warm += count(a.Warm)
				if id != "" && a.VM.ID != id {
					k.t.Errorf("two replicas answered %s with %s and %s", name, id, a.VM.ID)
				}
				id, ended = a.VM.ID, ended || a.VM.State == api.StateDeleting || a.VM.State == api.StateGone // its guest could not have the secret: the other answer says so
			case http.StatusNotFound, http.StatusForbidden, http.StatusConflict: // no such pool now, or no quota, or its own twin came first
			default:
				k.t.Errorf("launching %s: %s", name, got)
			}
		}
		if id != "" && !ended {
			k.kept[name] = id
			if i%2 == 1 {
				if got := k.r.persistAs(k.t, k.token, "DELETE", "/fleet/vms/"+id, nil, ""); got.status != 204 && got.status != 404 {
					k.t.Errorf("deleting %s: %s", name, got)
				}
				delete(k.kept, name)
			}
		}
		k.r.wait(time.Duration(k.rng.IntN(800)) * time.Millisecond)
	}
}

// churn changes the pool in every way that there is, whatever it is doing, until over is closed.
func (r *rig) churn(t *testing.T, pool string, rng *rand.Rand, over <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(50+rng.IntN(900)) * time.Millisecond):
		}
		method, path, b := "PATCH", "/fleet/pools/"+pool, body{"min_ready": rng.IntN(5)}
		switch rng.IntN(7) {
		case 0:
			b = body{"max_total": 5 + rng.IntN(6)}
		case 1:
			b = body{"max_total": nil, "max_age_seconds": 1 + rng.IntN(20)}
		case 2, 3:
			method, path, b = "POST", path+"/roll", body{"image": []string{"tiny", "tiny2"}[rng.IntN(2)], "max_unavailable": 1 + rng.IntN(3), "stale_use": []string{"allow", "never"}[rng.IntN(2)]}
		case 4:
			method, path, b = "POST", path+"/roll", body{"abort": true}
		case 5:
			if got := r.persistAs(t, operatorToken, "DELETE", path, nil, ""); got.status != 204 && got.status != 404 {
				t.Errorf("deleting the pool: %s", got)
			}
			method, path, b = "POST", "/fleet/pools", body{"name": pool, "image": "tiny", "min_ready": 3, "rotate_identity": rng.IntN(2) == 0}
		}
		got := r.persistAs(t, operatorToken, method, path, b, fmt.Sprint("churn-", n))
		switch got.code() {
		case "", api.CodeNotFound, api.CodeConflict, api.CodeNameTaken: // "conflict": it does not roll
		case api.CodeInvalid: // max_total below min_ready
		default:
			t.Errorf("%s %s %v: %s", method, path, b, got)
		}
	}
}

// TestPoolsSurviveEveryChangeInTheMiddleOfClaims lets clients take VMs, also with secrets and at the edge of a quota,
// while their pools are resized, rolled, rolled back, deleted and made again, and replicas and nodes fail. In the end
// each launch that was acknowledged has its VM, with its own secret in it, no pool has a spare too many, and no tenant
// ever had more than its quota.
func TestPoolsSurviveEveryChangeInTheMiddleOfClaims(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			scenario(t, seed, func(t *testing.T, r *rig) {
				for i := range 4 {
					r.addNode(fmt.Sprint("n", i), func(n *modelNode) {
						n.lag = func() time.Duration { return time.Duration(r.random(40)) * time.Millisecond }
					})
				}
				r.registered()
				r.image("tiny")
				r.image("tiny2")
				const most = 6
				acme := r.tenant("acme", body{"max_vms": most})
				r.lease("acme", "n3", "48h")
				if got := r.insistAs(acme, "POST", "/fleet/pools", body{"name": "own", "image": "tiny", "min_ready": 3, "max_total": 100}, "own"); got.status != http.StatusCreated {
					t.Fatal(got)
				}
				r.full("own")
				r.pool("p", body{"image": "tiny", "min_ready": 3})

				takers := []*taker{{pool: "p", token: operatorToken, who: "a"}, {pool: "p", token: operatorToken, who: "b"}, {pool: "own", token: acme, who: "c"}, {pool: "own", token: acme, who: "d"}}
				var work, around sync.WaitGroup
				for i, k := range takers {
					k.r, k.t, k.rng, k.kept = r, t, rand.New(rand.NewPCG(seed, uint64(10+i))), map[string]string{}
					work.Go(func() { k.run(14) })
				}
				over := make(chan struct{})
				around.Go(func() { r.churn(t, "p", rand.New(rand.NewPCG(seed, 20)), over) })
				go func() { work.Wait(); close(over) }()
				r.torment(over)
				around.Wait()
				for _, name := range r.names {
					r.network.Rejoin(name)
				}

				r.insist("POST", "/fleet/pools", body{"name": "p", "image": "tiny"}, "again")
				r.insist("PATCH", "/fleet/pools/p", body{"min_ready": 3, "max_total": nil, "max_age_seconds": 0}, "")
				for _, k := range takers { // so that the quota has room for all that is to be ready
					for name, id := range k.kept {
						if row := r.member(r.leader()).state.View().VM(id); row == nil || !row.Live() || row.Name != name {
							t.Errorf("VM %s was acknowledged as %s and is %+v", name, id, row)
						}
						for _, given := range r.given(id) {
							if secret := given.Secrets["TOKEN"]; secret != "" && secret != "secret-of-"+name {
								t.Errorf("the guest of %s was given %s", name, secret)
							}
						}
						if got := r.persistAs(t, k.token, "DELETE", "/fleet/vms/"+id, nil, ""); got.status != 204 {
							t.Errorf("deleting %s: %s", name, got)
						}
					}
				}
				r.insist("PATCH", "/fleet/pools/own", body{"max_age_seconds": 0}, "") // any change retries at once
				for _, pool := range []string{"p", "own"} {
					r.eventually("exactly three of pool "+pool, 5*time.Minute, func() bool {
						s := r.status(pool)
						return s.State == api.PoolReady && s.Ready == 3 && s.Booting == 0 && s.Stale == 0 && s.ClaimedRunning == 0 && s.Roll == nil
					})
				}
				r.eventually("no VM beside the spares", 5*time.Minute, func() bool { return len(r.vms()) == 6 })
				limit := int64(most)
				r.quotaHistory(r.leader(), map[string]fsm.Tenant{"acme": {Quota: api.Quota{MaxVMs: &limit}}})
				r.recounted("acme")
				if where := r.holds(t, "secret-of-"); where != "" {
					t.Errorf("a secret is in%s", where)
				}
				warm := 0
				for _, k := range takers {
					warm += k.warm
				}
				if warm == 0 {
					t.Error("no launch was warm")
				}
			})
		})
	}
}
