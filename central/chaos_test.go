package central

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestAcknowledgedLaunchesSurviveWhateverHappens lets clients launch and delete while replicas crash and part and
// nodes lag, lose answers, refuse and fall silent. What was acknowledged must be there in the end, once; the audit
// of every scenario holds the rest.
func TestAcknowledgedLaunchesSurviveWhateverHappens(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			scenario(t, seed, func(t *testing.T, r *rig) {
				for i := range 3 {
					r.addNode(fmt.Sprint("n", i), func(n *modelNode) {
						n.lag = func() time.Duration { return time.Duration(r.random(40)) * time.Millisecond }
					})
				}
				r.registered()
				r.image("tiny")
				r.pool("p", body{"image": "tiny", "min_ready": 3, "max_total": 100})
				const clients, each = 4, 16
				var work sync.WaitGroup
				kept := make([]map[string]string, clients) // name → id
				warm := make([]int, clients)
				for c := range clients {
					kept[c] = map[string]string{}
					work.Go(func() {
						for i := range each {
							name := fmt.Sprintf("c%d-%d", c, i)
							got := r.persist(t, "POST", "/fleet/vms", body{"name": name, "pool": "p"}, "key-"+name)
							if got.status != http.StatusCreated {
								t.Errorf("launching %s: %s", name, got)
								return
							}
							a := into[api.LaunchAnswer](t, got)
							warm[c] += count(a.Warm)
							if a.VM.Name != name {
								t.Errorf("launching %s gave %+v", name, a.VM)
							}
							if kept[c][name] = a.VM.ID; i%2 == 1 {
								if got := r.persist(t, "DELETE", "/fleet/vms/"+a.VM.ID, nil, ""); got.status != 204 && got.status != 404 {
									t.Errorf("deleting %s: %s", name, got)
								}
								delete(kept[c], name)
							}
							r.wait(time.Duration(r.random(1500)) * time.Millisecond)
						}
					})
				}
				over := make(chan struct{})
				go func() { work.Wait(); close(over) }()
				r.torment(over)
				for _, name := range r.names {
					r.network.Rejoin(name)
				}
				r.full("p")
				there, taken := map[string]string{}, 0
				for _, v := range r.vms() {
					if v.WarmPool == "" && v.State != api.StateDeleting {
						there[v.Name] = v.ID
					}
				}
				for c := range clients {
					taken += warm[c]
					for name, id := range kept[c] {
						if there[name] != id {
							t.Errorf("VM %s was acknowledged as %s and is %q", name, id, there[name])
						}
						delete(there, name)
					}
				}
				for name, id := range there {
					t.Errorf("VM %s (%s) is there and nobody has it", name, id)
				}
				if taken == 0 {
					t.Error("no launch was warm")
				}
			})
		})
	}
}

// persist repeats a request on any replica until it has a final answer.
func (r *rig) persist(t *testing.T, method, path string, b any, key string) reply {
	return r.persistAs(t, operatorToken, method, path, b, key)
}

func (r *rig) persistAs(t *testing.T, token, method, path string, b any, key string) (got reply) {
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); r.wait(time.Duration(50+r.random(400)) * time.Millisecond) {
		var header []string
		if key != "" {
			header = []string{api.HeaderIdempotencyKey, key}
		}
		var err error
		if got, err = r.try(r.names[r.random(3)], token, method, path, b, header...); err == nil && got.status < 500 {
			return got
		}
	}
	return got
}

// torment does one thing after the other to replicas and nodes, and undoes it, until over is closed: six at least.
func (r *rig) torment(over <-chan struct{}) {
	for faults := 1; ; faults++ {
		select {
		case <-over:
			if faults > 6 {
				return
			}
		case <-time.After(time.Duration(100+r.random(900)) * time.Millisecond):
		}
		replica, n := r.names[r.random(3)], r.node(fmt.Sprint("n", r.random(3)))
		hold := time.Duration(200+r.random(4000)) * time.Millisecond
		switch r.random(9) {
		case 0:
			r.crash(replica)
			r.wait(hold)
			r.start(replica)
		case 1:
			r.end(replica)
			r.wait(hold)
			r.start(replica)
		case 2:
			r.network.Isolate(replica)
			r.wait(hold)
			r.network.Rejoin(replica)
		case 3:
			r.cutOff(replica)
			r.wait(hold)
			r.heal(replica)
		case 4:
			n.with(func() { n.lose += 1 + r.random(4) })
		case 5:
			n.with(func() { n.refuse = api.Errorf(api.CodeHostPressure, "not now") })
			r.wait(hold)
			n.with(func() { n.refuse = nil })
		case 6:
			n.with(func() { n.silent = true })
			r.wait(hold)
			n.with(func() { n.silent = false })
		case 7:
			n.with(func() { n.closed = true })
			r.wait(hold)
			n.with(func() { n.closed = false })
		case 8:
			n.with(func() { n.noRename = api.Errorf(api.CodeConflict, "not now") })
			r.wait(hold)
			n.with(func() { n.noRename = nil })
		}
	}
}
