package node

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// litter puts a file below the data directory.
func (h *host) litter(parts ...string) {
	h.t.Helper()
	path := filepath.Join(append([]string{h.dir}, parts...)...)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("a tenant's"), 0o400); err != nil {
		h.t.Fatal(err)
	}
}

// left lists what is in the directories that VMs use.
func (h *host) left() (paths []string) {
	h.t.Helper()
	for _, dir := range leftIn {
		found, err := filepath.Glob(filepath.Join(h.dir, dir, "*"))
		if err != nil {
			h.t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	return paths
}

func (h *host) scrubs(lease string, header ...string) api.ScrubAnswer {
	h.t.Helper()
	return decode[api.ScrubAnswer](h.t, h.want(200, "POST", "/v1/scrub", fields{"lease_id": lease}, header...))
}

// ordersOf are the orders the host has carried out of one kind.
func (h *host) ordersOf(op string) []simOrder {
	h.t.Helper()
	return slices.DeleteFunc(h.orders(), func(o simOrder) bool { return o.Op != op })
}

func TestAScrubRemovesWhatVMsLeftBehind(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		elsewhere := t.TempDir()
		if err := os.Symlink(elsewhere, filepath.Join(h.dir, "cache")); err != nil {
			t.Fatal(err)
		}
		h.litter("vms", uuid.NewString(), "disk.raw")
		h.litter("vms", "stray")
		h.litter("snapshots", "a", "b", "memory")
		h.litter("cache", "layer")
		h.litter("mine")
		got := h.scrubs("lease-1", fenced("1.5.7")...)
		if want := (api.ScrubAnswer{LeaseID: "lease-1", Removed: 4}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if left := h.left(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		for _, name := range []string{"mine", "node.db", "uuid", "credential", "vms", "snapshots", "cache"} {
			if _, err := os.Lstat(filepath.Join(h.dir, name)); err != nil {
				t.Errorf("the scrub took too much: %v", err)
			}
		}
		events := decode[api.List[api.Activity]](t, h.want(200, "GET", "/v1/events", nil)).Items
		at := slices.IndexFunc(events, func(e api.Activity) bool { return e.Action == "scrub" })
		if at < 0 || events[at].Target != "lease-1" || events[at].Detail["lease_id"] != "lease-1" || events[at].Outcome != "ok" {
			t.Errorf("got events %+v, want one of the scrub", events)
		}
		orders := h.ordersOf("scrub")
		if len(orders) != 1 || orders[0].VMID != "" || orders[0].Name != "lease-1" || orders[0].Token == nil || *orders[0].Token != "1.5.7" {
			t.Errorf("got orders %+v, want the scrub", orders)
		}
		if got := h.scrubs("lease-2"); got.Removed != 0 {
			t.Errorf("got %+v from a clean host", got)
		}
		h.boot(nil)
	})
}

func TestAHostWithVMsIsNotScrubbed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		running, stopped := h.boot(nil), h.boot(fields{"name": "vm-b"})
		h.want(200, "POST", "/v1/vms/"+stopped+"/stop", nil)
		h.litter("snapshots", "s")
		if e := h.refused(api.CodeConflict, "POST", "/v1/scrub", fields{"lease_id": "l"}); !strings.Contains(e.Detail, "2 VMs still") {
			t.Errorf("got %q", e.Detail)
		}
		h.want(204, "DELETE", "/v1/vms/"+running, nil)
		if e := h.refused(api.CodeConflict, "POST", "/v1/scrub", fields{"lease_id": "l"}); !strings.Contains(e.Detail, "1 VM still") {
			t.Errorf("got %q", e.Detail)
		}
		if len(h.left()) != 2 || len(h.ordersOf("scrub")) != 0 {
			t.Errorf("the refused scrub did something: %v, %v", h.left(), h.orders())
		}
		h.want(204, "DELETE", "/v1/vms/"+stopped, nil)
		if got := h.scrubs("l"); got.Removed != 1 {
			t.Errorf("got %+v, want the snapshot removed", got)
		}
	})
}

func TestARepeatedScrubAnswersAsTheFirstDid(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		h.litter("vms", uuid.NewString(), "disk.raw")
		first := h.scrubs("lease-1", fenced("1.5.7")...)
		id := h.boot(nil) // the next tenant's
		h.litter("snapshots", "next")
		repeat := func(token string) {
			t.Helper()
			if got := h.scrubs("lease-1", fenced(token)...); got != first {
				t.Errorf("got %+v, want %+v", got, first)
			}
			if !h.has(id) || len(h.left()) != 2 {
				t.Errorf("the repeat was carried out; left: %v", h.left())
			}
		}
		repeat("1.5.7")
		repeat("1.6.8") // the next leader
		if n := len(h.ordersOf("scrub")); n != 1 {
			t.Errorf("got %d scrubs, want 1", n)
		}
		h.restart()
		repeat("1.6.8")
		h.refused(api.CodeStaleToken, "POST", "/v1/scrub", fields{"lease_id": "lease-1"}, fenced("1.5.7")...)
		h.refused(api.CodeConflict, "POST", "/v1/scrub", fields{"lease_id": "lease-2"}, fenced("1.6.9")...)
	})
}

func TestADeposedLeaderScrubsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		h.scrubs("lease-1", fenced("2.1.1")...)
		h.litter("cache", "layer")
		h.refused(api.CodeStaleToken, "POST", "/v1/scrub", fields{"lease_id": "lease-2"}, fenced("1.9.1")...)
		if len(h.left()) != 1 || len(h.ordersOf("scrub")) != 1 {
			t.Errorf("the late order was carried out; left: %v", h.left())
		}
	})
}

func TestAScrubNamesALeaseAndWantsAnAdmin(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.AdminTokens, c.ReadTokens = []string{"boss"}, []string{"guest"} })
		as := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
		h.refused(api.CodeUnauthenticated, "POST", "/v1/scrub", fields{"lease_id": "l"})
		h.refused(api.CodeForbidden, "POST", "/v1/scrub", fields{"lease_id": "l"}, as("guest")...)
		for _, bad := range []string{``, `{}`, `{"lease_id":""}`, `{"lease_id":"a b"}`, `{"lease_id":"é"}`, `{"lease_id":1}`, `{"lease_id":"l","all":true}`,
			`{"lease_id":"` + strings.Repeat("l", longestLease+1) + `"}`} {
			h.refused(api.CodeInvalid, "POST", "/v1/scrub", bad, as("boss")...)
		}
		h.want(200, "POST", "/v1/scrub", fields{"lease_id": "l", "tenant": "acme"}, as("boss")...)
	})
}

func TestAScrubThatFailsSaysWhyAndCanBeRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, broken := newFlaky(t)
		h.litter("vms", uuid.NewString(), "disk.raw")
		h.want(200, "PATCH", "/v1/sim", fields{"fail_scrub": "the disk is worn out"})
		if e := h.refused(api.CodeInternal, "POST", "/v1/scrub", fields{"lease_id": "lease-1"}); !strings.Contains(e.Detail, "lease-1") || !strings.Contains(e.Detail, "the disk is worn out") {
			t.Errorf("got %q", e.Detail)
		}
		h.want(200, "PATCH", "/v1/sim", fields{"fail_scrub": nil})
		broken.removes.Store(1)
		if e := h.refused(api.CodeInternal, "POST", "/v1/scrub", fields{"lease_id": "lease-1"}); !strings.Contains(e.Detail, "the disk is busy") {
			t.Errorf("got %q", e.Detail)
		}
		if len(h.left()) != 1 || len(h.ordersOf("scrub")) != 0 {
			t.Errorf("left %v, orders %v; want nothing done", h.left(), h.orders())
		}
		h.boot(nil) // a host whose scrub failed is central's to keep apart
		h.refused(api.CodeConflict, "POST", "/v1/scrub", fields{"lease_id": "lease-1"})
	})
}

// slow is the sim driver with a scrub that lasts until it is let go, and that notes which machines it removed.
type slow struct {
	*sim.Driver
	begun, goOn chan struct{}

	mu      sync.Mutex
	removed []string
}

func (s *slow) Scrub() error {
	s.begun <- struct{}{}
	<-s.goOn
	return nil
}

func (s *slow) Remove(spec machine.Spec, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, spec.ID)
	return nil
}

func newSlowHost(t *testing.T) (*host, *slow) {
	s := &slow{Driver: sim.New(sim.Config{}), begun: make(chan struct{}, 8), goOn: make(chan struct{})}
	return newHost(t, func(c *Config) { c.Drivers = []machine.Driver{s} }), s
}

func TestNoVMComesWhileAHostIsScrubbed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, s := newSlowHost(t)
		orphan := uuid.NewString()
		h.litter("vms", orphan, "disk.raw")
		h.litter("vms", "no-id", "disk.raw")
		answers := make([]*httptest.ResponseRecorder, 3)
		var asking sync.WaitGroup
		for i := range answers {
			asking.Go(func() { answers[i] = h.do("POST", "/v1/scrub", fields{"lease_id": "lease-1"}) })
		}
		<-s.begun
		synctest.Wait()
		id := uuid.NewString()
		h.refused(api.CodeUnavailable, "POST", "/v1/vms", body(id, nil))
		close(s.goOn)
		asking.Wait()
		for _, w := range answers {
			if want := (api.ScrubAnswer{LeaseID: "lease-1", Removed: 2}); w.Code != 200 || decode[api.ScrubAnswer](t, w) != want {
				t.Errorf("got %d, want %+v from each", w.Code, want)
			}
		}
		if len(s.begun) > 0 || len(h.ordersOf("scrub")) != 1 {
			t.Error("the scrub was carried out more than once")
		}
		if diff := cmp.Diff([]string{orphan}, s.removed); diff != "" {
			t.Errorf("machines ended without a record: %s", diff)
		}
		h.want(201, "POST", "/v1/vms", body(id, nil))
	})
}

func TestAScrubStopsWhenTheDaemonEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, s := newSlowHost(t)
		h.litter("cache", "layer")
		codes := make(chan int, 2)
		for _, lease := range []string{"lease-1", "lease-2"} {
			go func() { codes <- h.do("POST", "/v1/scrub", fields{"lease_id": lease}).Code }()
		}
		<-s.begun
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { defer close(stopped); h.stop() }()
		if code := <-codes; code != 503 {
			t.Errorf("the waiting scrub: got %d, want 503", code)
		}
		s.goOn <- struct{}{}
		if code := <-codes; code != 503 {
			t.Errorf("the scrub under way: got %d, want 503", code)
		}
		<-stopped
		if len(h.left()) != 1 {
			t.Errorf("left %v", h.left())
		}
		h.start()
		close(s.goOn)
		if got := h.scrubs("lease-1"); got.Removed != 1 {
			t.Errorf("got %+v after the restart", got)
		}
	})
}

func TestTheLatestScrubsAreRemembered(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		for i := range keepScrubs + 1 {
			h.scrubs(fmt.Sprint("lease-", i))
		}
		h.restart()
		h.litter("cache", "layer")
		if got := h.scrubs("lease-1"); got.Removed != 0 || len(h.left()) != 1 {
			t.Errorf("got %+v, left %v: the oldest one kept was carried out again", got, h.left())
		}
		if got := h.scrubs("lease-0"); got.Removed != 1 {
			t.Errorf("got %+v, want the one that was forgotten carried out", got)
		}
	})
}
