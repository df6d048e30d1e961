package central

import (
	"net/http"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// A launch that others were faster than is between two of its proposals when its repeat comes, and there is no room. The
// repeat is not told so before it is known what the first does with the room that there is a moment later.
func TestARepeatWaitsForTheLaunchThatIsWorkedOn(t *testing.T) {
	for name, launch := range map[string]body{
		"at once":   {"name": "a", "image": "tiny"},
		"with wait": {"name": "a", "image": "tiny", "wait_for_capacity_secs": 1},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1")
				r.call(r.leader(), "POST", "/fleet/nodes/n1/cordon", nil) // no room
				g := r.member(r.leader()).reign.Load()
				giveBack, err := g.turns.take(t.Context(), launchKey{"", "k"})
				if err != nil {
					t.Fatal(err)
				}
				var repeats []<-chan reply
				for _, replica := range r.names {
					repeats = append(repeats, r.ask(replica, "POST", "/fleet/vms", launch, api.HeaderIdempotencyKey, "k"))
				}
				if got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "b", "image": "tiny"}, api.HeaderIdempotencyKey, "other"); got.code() != api.CodeNoCapacity {
					t.Errorf("under another key: %s, want no_capacity at once", got)
				}
				r.wait(5 * time.Second)
				r.call(r.leader(), "POST", "/fleet/nodes/n1/uncordon", nil)
				giveBack()
				ids := map[string]bool{}
				for i, repeat := range repeats {
					got := <-repeat
					if got.status != http.StatusCreated {
						t.Errorf("repeat %d: %s", i, got)
						continue
					}
					ids[into[api.LaunchAnswer](t, got).VM.ID] = true
				}
				if len(ids) != 1 || len(g.turns.held) != 0 {
					t.Errorf("repeats are answered with VMs %v, and turns of %v are left", ids, g.turns.held)
				}
			})
		})
	}
}

// The first brings the secrets; those that repeat it, and end before it, do not take them away.
func TestLaunchesOfOneKeyKeepTheirSecrets(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		var all []<-chan reply
		for i := range 6 {
			all = append(all, r.ask(r.names[i%len(r.names)], "POST", "/fleet/vms", claimBody("a", nil), api.HeaderIdempotencyKey, "k"))
		}
		var id string
		for i, one := range all {
			got := <-one
			if got.status != http.StatusCreated {
				t.Errorf("request %d: %s", i, got)
				continue
			}
			id = into[api.LaunchAnswer](t, got).VM.ID
		}
		if given := r.given(id); len(given) != 1 || given[0].Secrets["TOKEN"] != testSecret || len(r.vms()) != 1 {
			t.Errorf("the guest was given %+v, and there are %d VMs", given, len(r.vms()))
		}
		r.eventually("no secret to be held", time.Minute, func() bool {
			s := &r.member(r.leader()).reign.Load().secrets
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.held) == 0
		})
	})
}

func TestARequestWhoseClientLeftWaitsForNoTurn(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		g := r.member(r.leader()).reign.Load()
		giveBack, err := g.turns.take(t.Context(), launchKey{"", "k"})
		if err != nil {
			t.Fatal(err)
		}
		got := <-r.ask(r.leader(), "POST", "/fleet/vms", body{"image": "tiny"}, api.HeaderIdempotencyKey, "k") // for a minute
		if got.status != 0 {
			t.Errorf("while its turn does not come: %s", got)
		}
		giveBack()
		r.wait(time.Second)
		if vms := r.vms(); len(vms) > 0 {
			t.Errorf("it went on without its client: %v", vms)
		}
	})
}
