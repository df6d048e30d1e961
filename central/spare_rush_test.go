package central

import (
	"fmt"
	"maps"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Launches that all see one spare name few hosts beside it. All but one lose it, and find those hosts full: they still
// have as many rankings of the whole fleet as launches that saw none.
func TestARushForOneSpareStillFindsTheHostsThatAreFree(t *testing.T) {
	const hosts, launches = 84, 80 // more than one spare, spareCandidates hosts and two rankings
	for name, more := range map[string]body{
		"any host":   {},
		"a selector": {"nodeSelector": map[string]string{"rack": "a"}},
		"with wait":  {"wait_for_capacity_secs": 60},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				for i := range hosts { // each has room for one
					r.addNode(fmt.Sprintf("n%02d", i), func(n *modelNode) {
						n.facts.VCPUsTotal, n.facts.Labels = 1, map[string]string{"rack": "a"}
					})
				}
				r.registered()
				r.image("tiny")
				r.pool("p", body{"image": "tiny", "min_ready": 1, "max_total": 1})
				leader := r.leader()
				r.network.Isolate(leader) // so that all rank on what they see now
				var all sync.WaitGroup
				var mu sync.Mutex
				warm := 0
				for i := range launches {
					b := body{"name": fmt.Sprint("vm-", i), "image": "tiny"}
					maps.Copy(b, more)
					all.Go(func() {
						got, err := r.try(leader, operatorToken, "POST", "/fleet/vms", b, api.HeaderIdempotencyKey, fmt.Sprint("k", i))
						if err != nil || got.status != http.StatusCreated {
							t.Errorf("launch %d: %v %s", i, err, got)
							return
						}
						if into[api.LaunchAnswer](t, got).Warm {
							mu.Lock()
							warm++
							mu.Unlock()
						}
					})
				}
				r.wait(200 * time.Millisecond)
				r.network.Rejoin(leader)
				all.Wait()
				if warm == 0 {
					t.Error("nobody got the spare")
				}
			})
		})
	}
}
