package central

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestARevokedKeyAuthorisesNothingAnywhere(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.tenant("acme", nil)
		key := r.key("acme", api.RoleTenant, 0)
		vm := into[api.LaunchAnswer](t, r.must(key.Secret, "POST", "/fleet/vms", body{"image": "tiny", "name": "a"}))
		r.running(vm.VM.ID)
		held := r.askAs(key.Secret, r.follower(), "GET", fmt.Sprintf("/fleet/vms?wait=50s&index=%d", 1<<40)) // it waits for a change
		r.wait(time.Second)
		r.must(operatorToken, "DELETE", "/fleet/tenants/acme/keys/"+key.ID, nil)
		for _, replica := range r.names { // at once, also where the revocation has not been applied
			for what, b := range map[string]any{"POST /fleet/vms": body{"image": "tiny"}, "DELETE /fleet/vms/a": nil, "PATCH /fleet/vms/a": body{"labels": body{"x": "y"}}, "GET /fleet/vms": nil, "POST /fleet/tenants/acme/keys": body{"role": "tenant"}} {
				method, path, _ := strings.Cut(what, " ")
				if got, err := r.try(replica, key.Secret, method, path, b); err != nil || got.status != http.StatusUnauthorized {
					t.Errorf("%s on %s: %v %s, want 401", what, replica, err, got)
				}
			}
		}
		r.applied()
		for _, replica := range r.names {
			for _, path := range []string{"/fleet/vms?stale=true", "/fleet/ledger?stale=true", "/fleet/events"} {
				if got, err := r.try(replica, key.Secret, "GET", path, nil); err != nil || got.status != http.StatusUnauthorized {
					t.Errorf("GET %s on %s: %v %s, want 401", path, replica, err, got)
				}
			}
		}
		r.launch(r.leader(), body{"image": "tiny", "name": "b"}) // what the reader waits for
		if got := <-held; got.status != http.StatusUnauthorized {
			t.Errorf("a read that outlasted its key: %s, want 401", got)
		}
	})
}

// askAs is ask with another token than the operator's.
func (r *rig) askAs(token, replica, method, path string) <-chan reply {
	out := make(chan reply, 1)
	go func() {
		got, _ := r.try(replica, token, method, path, nil) // no answer: status 0
		out <- got
	}()
	return out
}

// Writes by a key race its revocation: what the activity log has of the key stands before the revocation.
func TestNothingThatAKeyAuthorisedCommitsAfterItsRevocation(t *testing.T) {
	through, refused := 0, 0
	for seed := range uint64(5) {
		scenario(t, seed, func(t *testing.T, r *rig) {
			r.ready("n1", "n2")
			r.tenant("acme", nil)
			key := r.key("acme", api.RoleTenant, 0)
			var all sync.WaitGroup
			answers := make([]reply, 30)
			for i := range answers {
				at, replica := time.Duration(r.random(20))*time.Millisecond, r.names[r.random(3)]
				all.Go(func() {
					r.wait(at)
					answers[i], _ = r.try(replica, key.Secret, "POST", "/fleet/pools", body{"name": fmt.Sprint("p", i), "image": "tiny", "min_ready": 0})
				})
			}
			r.wait(time.Duration(5+r.random(10)) * time.Millisecond)
			if seed == 4 { // and its leader goes at the same time
				old := r.leader()
				go r.insist("DELETE", "/fleet/tenants/acme/keys/"+key.ID, nil, "")
				r.network.Isolate(old)
				r.newLeader(old)
				r.network.Rejoin(old)
			} else {
				r.must(operatorToken, "DELETE", "/fleet/tenants/acme/keys/"+key.ID, nil)
			}
			all.Wait()
			r.eventually("the key to be gone", time.Minute, func() bool { return r.member(r.leader()).state.View().Key(key.ID) == nil })
			for _, got := range answers {
				switch {
				case got.status == http.StatusCreated:
					through++
				case got.code() == api.CodeUnauthenticated:
					refused++
				case seed != 4 && got.code() != api.CodeQuotaExceeded: // eight pools are all that a tenant may have
					t.Errorf("a write: %s", got)
				}
			}
			revoked := uint64(0)
			view := r.member(r.leader()).state.View()
			for a := range view.Activities(0) {
				if strings.HasPrefix(a.Action, "DELETE /fleet/tenants/{name}/keys") && a.Target == key.ID {
					revoked = a.Seq
				}
			}
			for a := range view.Activities(0) {
				if a.Seq > revoked && strings.HasPrefix(a.Actor, "tenant:acme") {
					t.Errorf("after the revocation (%d) the key did %+v", revoked, *a)
				}
			}
			if revoked == 0 {
				t.Error("the revocation is not in the activity log")
			}
		})
	}
	if through == 0 || refused == 0 {
		t.Errorf("%d writes came before the revocation and %d after; the race has to go both ways", through, refused)
	}
}

func TestStreamsOfARevokedKeyEndWithinFiveSeconds(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.tenant("acme", nil)
		for _, busy := range []bool{false, true} {
			key, short, other := r.key("acme", api.RoleTenant, 0), r.key("acme", api.RoleViewer, 20*time.Second), r.key("acme", api.RoleViewer, 0)
			r.applied()
			type reader struct {
				*stream
				stop func()
			}
			var revoked, expiring, others []reader
			for _, replica := range r.names {
				for token, list := range map[string]*[]reader{key.Secret: &revoked, short.Secret: &expiring, other.Secret: &others} {
					s, status, stop := r.followAs(token, replica, "")
					if status != http.StatusOK {
						t.Fatalf("a stream on %s: %d", replica, status)
					}
					*list = append(*list, reader{s, stop})
				}
			}
			ended := func(list []reader) (n int) {
				for _, s := range list {
					select {
					case <-s.over:
						n++
					default:
					}
				}
				return n
			}
			// spend lets time pass, busy or not.
			spend := func(long time.Duration) {
				for began := time.Now(); time.Since(began) < long; {
					if busy {
						r.must(other.Secret, "GET", "/fleet/vms", nil)
						r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"max_ttl_seconds": 100 + r.random(1000)})
					}
					r.wait(100 * time.Millisecond)
				}
			}
			spend(10 * time.Second)
			if n := ended(revoked) + ended(expiring) + ended(others); n > 0 {
				t.Errorf("busy %t: %d streams ended by themselves", busy, n)
			}
			r.must(operatorToken, "DELETE", "/fleet/tenants/acme/keys/"+key.ID, nil)
			spend(5 * time.Second)
			if n := ended(revoked); n != 3 {
				t.Errorf("busy %t: five seconds after the revocation %d of 3 streams have ended", busy, n)
			}
			if n := ended(expiring) + ended(others); n > 0 {
				t.Errorf("busy %t: %d streams of other keys ended with it", busy, n)
			}
			spend(10 * time.Second)
			if n := ended(expiring); n != 3 {
				t.Errorf("busy %t: after the key's expiry %d of 3 streams have ended", busy, n)
			}
			if n := ended(others); n > 0 {
				t.Errorf("busy %t: %d streams of a good key ended", busy, n)
			}
			for _, s := range append(append(revoked, expiring...), others...) {
				s.stop()
			}
		}
	})
}

func TestAKeysLastUseIsWrittenDown(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.tenant("acme", nil)
		used, idle := r.key("acme", api.RoleTenant, 0), r.key("acme", api.RoleTenant, 0)
		last := func(id string) api.Time {
			for _, k := range everything[api.Key](r, operatorToken, "/fleet/tenants/acme/keys?") {
				if k.ID == id {
					return k.LastUsedAt
				}
			}
			t.Fatalf("there is no key %s", id)
			return 0
		}
		use := func(replica string) api.Time {
			if got, err := r.try(replica, used.Secret, "GET", "/fleet/vms", nil); err != nil || got.status != 200 {
				t.Fatal(err, got)
			}
			return r.at(time.Now())
		}
		for range 2 {
			at := use(r.follower())
			r.wait(90 * time.Second)
			if got := last(used.ID); got < at-1000 || got > at {
				t.Errorf("last used at %s, want %s", got, at)
			}
			old := r.leader()
			r.crash(old)
			r.newLeader(old)
			r.start(old)
			r.serving()
		}
		// A stale read of a follower and a stream from it never reach the leader.
		follower := r.follower()
		index := func() uint64 { return r.member(r.leader()).state.View().Index() }
		started, at := index(), r.at(time.Now())
		for range 50 {
			if got, err := r.try(follower, used.Secret, "GET", "/fleet/vms?stale=true", nil); err != nil || got.status != 200 {
				t.Fatal(err, got)
			}
		}
		r.wait(90 * time.Second)
		if got := last(used.ID); got < at-1000 || got > at+1000 {
			t.Errorf("used on a follower at %s, and last used at %s", at, got)
		}
		if n := index() - started; n == 0 || n > 25 { // the log has other entries, too
			t.Errorf("50 uses led to %d entries of the log", n)
		}
		if got := last(idle.ID); got != 0 {
			t.Errorf("a key that was never used was last used at %s", got)
		}
	})
}
