package central

import (
	"bytes"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestEveryPOSTHasOneEffectForOneKey(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.image("next")
		r.pool("rolled", body{"image": "tiny", "min_ready": 1})
		for path, c := range map[string]struct {
			body, spaced, other string
			status              int
			again               int // status of a repeat, if another
			same                []string
		}{
			"/fleet/images":            {`{"name":"i","path":"sim:?i"}`, ` { "path" : "sim:?i", "name":"i" } `, `{"name":"i","path":"sim:?j"}`, 201, 0, []string{"name", "path", "created_at", "version"}},
			"/fleet/pools":             {`{"name":"q","image":"tiny","min_ready":0}`, `{"min_ready":0,"image":"tiny","name":"q"}`, `{"name":"q","image":"tiny","min_ready":1}`, 201, 0, []string{"name", "version", "note"}},
			"/fleet/pools/rolled/roll": {`{"image":"next"}`, ` {"image":"next"}`, `{"image":"tiny"}`, 202, 0, []string{"name", "image"}},
			"/fleet/vms":               {`{"name":"a","image":"tiny","vcpus":2}`, `{"vcpus":2,"name":"a","image":"tiny"}`, `{"name":"b","image":"tiny","vcpus":2}`, 201, 0, []string{"node", "cold_reason"}},
			"/fleet/nodes/n2/cordon":   {`{}`, ``, `{"reason":"other"}`, 200, 0, []string{"name", "cordoned", "version"}},
			"/fleet/nodes/n2/drain":    {`{"reason":"disk"}`, ` {"reason":"disk"} `, `{}`, 200, 0, []string{"name", "draining", "reason", "version"}},
			"/fleet/nodes/n2/uncordon": {``, `{}`, `{"reason":"x"}`, 200, 0, []string{"name", "cordoned", "draining", "version"}},
			"/fleet/join-tokens":       {`{"kind":"node"}`, `{ "kind":"node"}`, `{"kind":"replica"}`, 201, 409, nil},
		} {
			key := "key-" + path
			send := func(replica, b string) reply {
				return r.call(replica, "POST", path, []byte(b), api.HeaderIdempotencyKey, key)
			}
			first := send(r.leader(), c.body)
			if first.status != c.status || first.header.Get(api.HeaderReplayed) != "" || first.header.Get(api.HeaderIdempotencyKey) != key {
				t.Errorf("%s: %s with replayed %q and key %q", path, first, first.header.Get(api.HeaderReplayed), first.header.Get(api.HeaderIdempotencyKey))
				continue
			}
			index := r.member(r.leader()).state.View().Meta().ActivitySeq
			for _, replica := range []string{r.leader(), r.follower()} {
				again := send(replica, c.spaced)
				want := c.status
				if c.again != 0 {
					want = c.again
				}
				if again.status != want || again.header.Get(api.HeaderReplayed) != "true" {
					t.Errorf("%s again on %s: %s with replayed %q", path, replica, again, again.header.Get(api.HeaderReplayed))
				}
				for _, field := range c.same {
					if a, b := into[body](t, first)[field], into[body](t, again)[field]; !cmp.Equal(a, b) {
						t.Errorf("%s again: %s is %v, was %v", path, field, b, a)
					}
				}
			}
			if got := send(r.follower(), c.other); got.status != 422 || got.code() != api.CodeKeyReused {
				t.Errorf("%s with another body: %s, want 422", path, got)
			}
			for _, e := range into[api.List[api.Activity]](t, r.call(r.leader(), "GET", "/fleet/activity?limit=20", nil)).Items {
				if seq, err := strconv.ParseUint(e.ID, 10, 64); err != nil || seq > index && e.Actor == "operator" {
					t.Errorf("%s again: it was carried out once more: %+v", path, e)
				}
			}
		}
		if got := r.call(r.leader(), "POST", "/fleet/nodes/n2/uncordon", nil, api.HeaderIdempotencyKey, "key-/fleet/nodes/n2/drain"); got.status != 422 {
			t.Errorf("a key of another route: %s, want 422", got)
		}
	})
}

func TestAKeyIsMadeWhereNoneIsGiven(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		sized := body{"image": "tiny", "vcpus": 2, "memory_mib": 768}
		first := r.call(r.follower(), "POST", "/fleet/vms", sized)
		key := first.header.Get(api.HeaderIdempotencyKey)
		if key == "" {
			t.Fatalf("no key came back with %s", first)
		}
		again := r.call(r.leader(), "POST", "/fleet/vms", sized, api.HeaderIdempotencyKey, key)
		if a, b := into[api.LaunchAnswer](t, first), into[api.LaunchAnswer](t, again); a.VM.ID != b.VM.ID || again.header.Get(api.HeaderReplayed) != "true" {
			t.Errorf("the repeat made %s, want %s", b.VM.ID, a.VM.ID)
		}
		r.insist("DELETE", "/fleet/vms/"+into[api.LaunchAnswer](t, first).VM.ID, nil, "")
		r.eventually("the VM to be gone", time.Minute, func() bool { return len(r.vms()) == 0 })
		gone := into[api.LaunchAnswer](t, r.call(r.leader(), "POST", "/fleet/vms", sized, api.HeaderIdempotencyKey, key))
		if gone.VM.State != api.StateGone || gone.VM.ID != into[api.LaunchAnswer](t, first).VM.ID || gone.VM.VCPUs != 2 || gone.VM.MemoryMiB != 768 {
			t.Errorf("the repeat after its end answers %+v, want it gone, with the size that it had", gone.VM)
		}
	})
}

func TestADryRunNeitherTakesNorKeepsAKey(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/vms?dry_run=true", body{"image": "tiny"}, api.HeaderIdempotencyKey, "k")
		if got := r.call(r.leader(), "POST", "/fleet/vms", body{"image": "tiny", "name": "a"}, api.HeaderIdempotencyKey, "k"); got.status != 201 {
			t.Errorf("got %s, want the key to be free", got)
		}
	})
}

func TestIfMatchHoldsAChangeToWhatWasRead(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 0})
		r.launch(r.leader(), body{"name": "a", "image": "tiny", "balloon": body{}})
		r.wait(time.Second)
		for path, patch := range map[string]body{
			"/fleet/vms/a":       {"labels": body{"x": "1"}},
			"/fleet/pools/p":     {"max_total": 9},
			"/fleet/images/tiny": {"title": "Tiny"},
		} {
			etag := r.call(r.follower(), "GET", path, nil).header.Get("ETag")
			first := r.call(r.follower(), "PATCH", path, patch, "If-Match", etag)
			if first.status != 200 || first.header.Get("ETag") == etag {
				t.Errorf("%s: %s with ETag %s after %s", path, first, first.header.Get("ETag"), etag)
			}
			if version := into[body](t, first)["version"]; first.header.Get("ETag") != fmt.Sprintf(`"%v"`, version) {
				t.Errorf("%s: ETag %s of version %v", path, first.header.Get("ETag"), version)
			}
			if got := r.call(r.leader(), "PATCH", path, patch, "If-Match", etag); got.status != 409 || got.code() != api.CodeConflict {
				t.Errorf("%s with the old version: %s, want 409", path, got)
			}
			if got := r.call(r.leader(), "PATCH", path, patch, "If-Match", "*"); got.status != 200 {
				t.Errorf("%s with any version: %s", path, got)
			}
		}
	})
}

func TestIfMatchHoldsTheEndOfALeaseToWhatWasRead(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		acme := r.tenant("acme", nil)
		path := "/fleet/leases/" + r.lease("acme", "n1", "1h").ID
		etag := r.must(acme, "GET", path, nil).header.Get("ETag")
		r.must(acme, "PATCH", path, body{"auto_renew": true})
		if got := r.as(acme, "DELETE", path, nil, "If-Match", etag); got.code() != api.CodeConflict {
			t.Errorf("with the old version: %s, want conflict", got)
		}
		r.must(acme, "DELETE", path, nil, "If-Match", r.must(acme, "GET", path, nil).header.Get("ETag"))
	})
}

func TestIfMatchHoldsADeletionToWhatWasRead(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		r.tenant("acme", nil)
		r.call(r.leader(), "POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 0})
		r.launch(r.leader(), body{"name": "a", "image": "tiny", "node": "n1"})
		for _, path := range []string{"/fleet/pools/p", "/fleet/vms/a", "/fleet/vms/n1/a", "/fleet/tenants/acme", "/fleet/nodes/n2", "/fleet/images/tiny"} {
			if got := r.call(r.leader(), "DELETE", path, nil, "If-Match", `"1"`); got.code() != api.CodeConflict || !strings.Contains(string(got.body), "read it again") {
				t.Errorf("%s with an old version: %s, want 409", path, got)
			}
		}
		r.node("n2").with(func() { r.node("n2").silent = true })
		etag := r.call(r.leader(), "GET", "/fleet/nodes/n2", nil).header.Get("ETag")
		if got := r.call(r.leader(), "DELETE", "/fleet/nodes/n2", nil, "If-Match", etag); got.status != http.StatusNoContent {
			t.Errorf("with the version that was read: %s", got)
		}
	})
}

func TestABlockingReadWaitsForWhatItShows(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 0})
		r.wait(5 * time.Second)
		for _, replica := range []string{r.leader(), r.follower()} {
			for _, flag := range []string{"", "&stale=true"} {
				now := r.call(replica, "GET", "/fleet/vms?stale=true", nil).header.Get(api.HeaderIndex)
				at := fmt.Sprintf("index=%s%s", now, flag)
				began := time.Now()
				r.call(replica, "GET", "/fleet/vms?wait=30s&"+at, nil)
				if took := time.Since(began); took < 30*time.Second || took > 31*time.Second {
					t.Errorf("%s%s: with nothing new it took %s, want 30s", replica, flag, took)
				}
				began = time.Now()
				waiting := r.ask(replica, "GET", "/fleet/vms?wait=50s&"+at, nil)
				r.wait(time.Second)
				r.call(r.leader(), "PATCH", "/fleet/pools/p", body{"max_total": 5 + r.random(90)}) // of no interest to it
				r.wait(time.Second)
				made := r.launch(r.leader(), body{"image": "tiny", "balloon": body{}})
				got := <-waiting
				if took := time.Since(began); took < 2*time.Second || took > 3*time.Second {
					t.Errorf("%s%s: it came back after %s, want it at the launch after 2s", replica, flag, took)
				}
				if !strings.Contains(string(got.body), made.VM.ID) || index(got) <= index(reply{header: http.Header{api.HeaderIndex: {now}}}) {
					t.Errorf("%s%s: it shows %s at index %s, want the new VM", replica, flag, got, got.header.Get(api.HeaderIndex))
				}
				r.wait(time.Second)
			}
		}
		began := time.Now()
		r.call(r.leader(), "GET", "/fleet/vms?index=1&wait=50s", nil)
		if took := time.Since(began); took > time.Second {
			t.Errorf("a read from an old index took %s, want it at once", took)
		}
		follower := r.follower()
		waiting := r.ask(follower, "GET", "/fleet/vms?stale=true&wait=50s&index=999999", nil)
		r.wait(time.Second)
		began = time.Now()
		r.end(follower)
		<-waiting
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a replica that stops holds a reader for %s", took)
		}
	})
}

// index is the one that a read carries.
func index(a reply) uint64 {
	n, err := strconv.ParseUint(a.header.Get(api.HeaderIndex), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func TestReadyzSaysWhetherRequestsCanBeServed(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		for _, name := range r.names {
			for _, path := range []string{"/healthz", "/readyz", "/metrics", "/openapi.json"} {
				if got, err := r.try(name, "", "GET", path, nil); err != nil || got.status != 200 {
					t.Errorf("%s on %s: %v %s", path, name, err, got)
				}
			}
		}
		lost := r.follower()
		r.network.Isolate(lost)
		r.wait(15 * time.Second)
		if got := r.call(lost, "GET", "/readyz", nil); got.status != 503 {
			t.Errorf("readyz of a cut-off replica: %s, want 503", got)
		}
		if got := r.call(lost, "GET", "/healthz", nil); got.status != 200 {
			t.Errorf("healthz of a cut-off replica: %s, want 200", got)
		}
		cluster := into[api.Cluster](t, r.call(r.leader(), "GET", "/fleet/cluster", nil))
		for _, one := range cluster.Replicas {
			if one.Healthy != (one.Name != lost) {
				t.Errorf("the cluster says %+v", one)
			}
		}
		r.network.Rejoin(lost)
		r.eventually("ready again", time.Minute, func() bool { return r.call(lost, "GET", "/readyz", nil).status == 200 })
	})
}

// pagesOf are the ids of a list, page by page; between does something after each page.
func (r *rig) pagesOf(path string, limit int, between func()) (ids []string) {
	r.t.Helper()
	next := ""
	for {
		got := into[api.List[map[string]any]](r.t, r.call(r.names[r.random(3)], "GET", fmt.Sprintf("%slimit=%d%s", path, limit, next), nil))
		for _, item := range got.Items {
			id, ok := item["id"].(string)
			if !ok {
				id = item["name"].(string)
			}
			ids = append(ids, id)
		}
		if len(got.Items) > limit {
			r.t.Errorf("a page of %d with limit %d", len(got.Items), limit)
		}
		if got.NextCursor == nil {
			return ids
		}
		next = "&cursor=" + *got.NextCursor
		between()
	}
}

func TestAPagedListIsTheSumOfItsPagesUnderWrites(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2", "n3")
		var kept []string
		for i := range 24 {
			vm := r.launch(r.leader(), body{"name": fmt.Sprint("kept-", i), "image": "tiny", "labels": body{"even": fmt.Sprint(i%2 == 0)}}).VM
			kept = append(kept, vm.ID)
			if i%3 == 0 {
				r.launch(r.leader(), body{"name": fmt.Sprint("victim-", i), "image": "tiny"})
			}
			r.image(fmt.Sprintf("image-%02d", i))
		}
		nothing := func() {}
		for path, want := range map[string]int{"/fleet/vms?": 32, "/fleet/vms?label=even%3Dtrue&": 12, "/fleet/vms?label=even%3Dtrue&label=even%3Dfalse&": 12, "/fleet/images?": 25, "/fleet/nodes?": 3, "/fleet/pools?": 0, "/fleet/activity?": 60, "/fleet/vms?node=n1&": 11, "/fleet/vms?tenant=operator&": 32, "/fleet/vms?tenant=acme&": 0} {
			whole := r.pagesOf(path, 500, nothing)
			if len(whole) < want-1 || len(whole) > want+1 && path != "/fleet/activity?" {
				t.Errorf("%s lists %d, want about %d", path, len(whole), want)
			}
			for _, limit := range []int{1, 7, len(whole), len(whole) + 1} {
				if limit == 0 {
					continue
				}
				if diff := cmp.Diff(whole, r.pagesOf(path, limit, nothing)); diff != "" {
					t.Errorf("%s in pages of %d (-whole +pages):\n%s", path, limit, diff)
				}
			}
		}
		i := 0
		paged := r.pagesOf("/fleet/vms?", 5, func() {
			if i%3 == 0 {
				r.call(r.leader(), "DELETE", fmt.Sprint("/fleet/vms/victim-", i), nil)
			}
			r.launch(r.leader(), body{"name": fmt.Sprint("new-", i), "image": "tiny"})
			i++
		})
		seen := map[string]int{}
		for _, id := range paged {
			if seen[id]++; seen[id] > 1 {
				t.Errorf("VM %s is on two pages", id)
			}
		}
		for _, id := range kept {
			if seen[id] == 0 {
				t.Errorf("VM %s was there all the time and is on no page", id)
			}
		}
		if i < 5 {
			t.Errorf("only %d writes between the pages", i)
		}
	})
}

func TestListPage(t *testing.T) {
	rows := func(after string) iter.Seq[string] {
		return func(yield func(string) bool) {
			for _, s := range []string{"a", "b", "c", "d", "e"} {
				if s >= after && !yield(s) {
					return
				}
			}
		}
	}
	keep := func(s string) bool { return s != "b" && s != "e" }
	same := func(s string) string { return s }
	for limit := 1; limit <= 6; limit++ {
		var got []string
		p := page{limit: limit}
		for pages := 1; ; pages++ {
			out := listPage(p, rows(p.after), same, keep, same)
			got = append(got, out.Items...)
			if out.NextCursor == nil {
				if want := (3 + limit - 1) / limit; pages != want {
					t.Errorf("limit %d: %d pages, want %d", limit, pages, want)
				}
				break
			}
			q := &request{Request: mustRequest("/x?cursor=" + *out.NextCursor)}
			next, err := q.page()
			if err != nil {
				t.Fatal(err)
			}
			p.after = next.after
		}
		if !slices.Equal(got, []string{"a", "c", "d"}) {
			t.Errorf("limit %d: %v", limit, got)
		}
	}
}

func mustRequest(target string) *http.Request {
	req, err := http.NewRequest("GET", target, nil)
	if err != nil {
		panic(err)
	}
	return req
}

func TestConsoleAndExecGoToTheNode(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.launch(r.leader(), body{"name": "a", "image": "tiny"})
		if got := r.call(r.leader(), "POST", "/fleet/vms/a/exec", body{"argv": []string{"true"}}); got.status != 409 {
			t.Errorf("exec before the agent has answered: %s, want 409", got)
		}
		ready := r.call(r.follower(), "POST", "/fleet/vms?wait=ready", body{"name": "b", "image": "tiny"})
		if vm := into[api.LaunchAnswer](t, ready).VM; vm.ReadyAt == 0 || vm.State != api.StateRunning {
			t.Errorf("wait=ready answered %+v", vm)
		}
		for _, replica := range []string{r.leader(), r.follower()} {
			if got := into[api.ExecAnswer](t, r.call(replica, "POST", "/fleet/vms/b/exec", body{"argv": []string{"echo", "hello"}})); !strings.HasPrefix(got.Stdout, "run ") {
				t.Errorf("exec: %+v", got)
			}
			if got := r.call(replica, "GET", "/fleet/vms/b/console", nil); got.status != 200 || !bytes.Equal(got.body, []byte("login: ")) {
				t.Errorf("console: %s", got)
			}
		}
		r.node("n1").with(func() { r.node("n1").closed = true })
		for _, path := range []string{"/fleet/vms/b/console", "/fleet/vms/b/exec"} {
			method, b := "GET", any(nil)
			if strings.HasSuffix(path, "exec") {
				method, b = "POST", body{"argv": []string{"true"}}
			}
			if got := r.call(r.leader(), method, path, b); got.status != 503 || got.code() != api.CodeUnavailable {
				t.Errorf("%s with the node away: %s, want 503", path, got)
			}
		}
		r.node("n1").with(func() { r.node("n1").closed = false })
	})
}
