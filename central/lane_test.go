package central

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// A host stops answering without a word: its spare is claimed, since nobody knows it yet. The launch must not wait for it.
func TestALaunchGoesOnElsewhereWhenTheHostOfItsSpareFellSilent(t *testing.T) {
	for name, fall := range map[string]struct {
		how    func(*modelNode)
		within time.Duration
	}{
		"connection refused": {func(n *modelNode) { n.closed = true }, handOverPatience + time.Second},
		"no answer at all":   {func(n *modelNode) { n.silent = true }, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				r.pool("p", body{"image": "tiny", "min_ready": 2, "max_total": 2, "nodes": []string{"n1"}})
				r.node("n1").with(func() { fall.how(r.node("n1")) })
				r.insist("PATCH", "/fleet/pools/p", body{"nodes": []string{"n1", "n2"}}, "")
				began := time.Now()
				got := r.launch(r.leader(), body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
				if took := time.Since(began); got.Node != "n2" || got.Warm || got.ColdReason != "rename_failed" || took > fall.within {
					t.Errorf("after %s it is on %s (warm %t, %s), want a cold boot on n2 within %s", took, got.Node, got.Warm, got.ColdReason, fall.within)
				}
				began = time.Now()
				next := r.launch(r.leader(), body{"name": "b", "image": "tiny"})
				if took := time.Since(began); next.Node != "n2" || took > time.Second {
					t.Errorf("after %s the next one is on %s: the silent host was asked once more", took, next.Node)
				}
				if again := r.launch(r.follower(), body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k"); again.VM.ID != got.VM.ID {
					t.Errorf("the repeat answers VM %s, want %s", again.VM.ID, got.VM.ID)
				}
				r.node("n1").with(func() { r.node("n1").closed, r.node("n1").silent = false, false })
				r.eventually("the host to get VMs again", time.Minute, func() bool {
					dry := into[api.DryRunAnswer](t, r.call(r.leader(), "POST", "/fleet/vms?dry_run=true", body{"image": "tiny", "node": "n1", "cloud_init": body{}}))
					return dry.Node != nil
				})
			})
		})
	}
}

// The host may have made the VM: the answer comes soon and says so, the order goes on, and no other host gets the VM.
func TestAnUnknownOutcomeIsSaidSoonAndSettledInTheBackground(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		n1 := r.node("n1")
		n1.with(func() { n1.silent = true })
		began := time.Now()
		first := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, api.HeaderIdempotencyKey, "k")
		if took := time.Since(began); first.code() != api.CodeOutcomeUnknown || first.header.Get(api.HeaderIdempotencyKey) != "k" || took > 15*time.Second {
			t.Errorf("after %s: %s, want outcome_unknown with the key within 15 s", took, first)
		}
		began = time.Now()
		if other := r.launch(r.leader(), body{"name": "b", "image": "tiny"}); other.Node != "n2" || time.Since(began) > time.Second {
			t.Errorf("after %s another launch is on %s, want n2 at once", time.Since(began), other.Node)
		}
		reasons := into[api.DryRunAnswer](t, r.call(r.leader(), "POST", "/fleet/vms?dry_run=true", body{"image": "tiny", "node": "n1"})).Reasons
		if reasons[api.WhyUnhealthy] != 1 {
			t.Errorf("a named host that does not answer: reasons %v", reasons)
		}
		n1.with(func() { n1.silent = false })
		r.eventually("the order to be carried out without anyone asking", time.Minute, func() bool { return n1.count() == 1 })
		got := into[api.LaunchAnswer](t, r.insist("POST", "/fleet/vms", body{"name": "a", "image": "tiny"}, "k"))
		if got.Node != "n1" || n1.has(got.VM.ID) == nil {
			t.Errorf("the repeat answers %s on %s, want the VM on n1", got.VM.ID, got.Node)
		}
	})
}

func TestARefusalCountsUnderWhatItStandsFor(t *testing.T) {
	full := api.Errorf(api.CodeHostFull, "two macOS guests")
	full.Reasons = map[string]int{api.WhyMacOSLimit: 1}
	port := api.Errorf(api.CodeHostFull, "port 8080 is taken")
	port.Reasons = map[string]int{api.WhyPort: 1}
	for want, refusal := range map[string]*api.Error{
		api.WhyPressure:   api.Errorf(api.CodeHostPressure, "host under memory pressure"),
		api.WhyMemory:     api.Errorf(api.CodeHostFull, "full"),
		api.WhyMacOSLimit: full,
		api.WhyPort:       port,
		api.WhyImage:      api.Invalid("image", "no such file"),
		api.WhyBackend:    api.Invalid("network.mode", "not here"),
		api.WhyUnhealthy:  api.Errorf(api.CodeUnavailable, "starting"),
	} {
		t.Run(want, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				for _, n := range r.nodes {
					n.with(func() { n.refuse = refusal })
				}
				got := r.call(r.leader(), "POST", "/fleet/vms", body{"name": "a", "image": "tiny"})
				if got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), fmt.Sprintf(`"reasons":{"%s":2}`, want)) || !strings.Contains(string(got.body), refusal.Detail) {
					t.Errorf("got %s, want both hosts under %s and the host's words", got, want)
				}
				r.insist("POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 1}, "p")
				wait := map[string]string{api.WhyPressure: api.WaitPressure, api.WhyImage: api.WaitImage, api.WhyMacOSLimit: api.WaitMacOSLimit}[want]
				if wait == "" {
					wait = api.WaitNoCapacity
				}
				r.eventually("the pool to say "+wait, time.Minute, func() bool { s := r.status("p"); return s.WaitReason != nil && *s.WaitReason == wait })
			})
		})
	}
}

func TestACommandUnderOneKeyRunsOnce(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/vms?wait=ready", body{"name": "a", "image": "tiny"})
		n1, cmd := r.node("n1"), body{"argv": []string{"make"}}
		n1.with(func() { n1.lose = 1 })
		if got := r.call(r.leader(), "POST", "/fleet/vms/a/exec", cmd, api.HeaderIdempotencyKey, "k"); got.code() != api.CodeOutcomeUnknown {
			t.Errorf("its answer was lost: %s, want outcome_unknown", got)
		}
		old := r.leader()
		r.crash(old)
		r.newLeader(old)
		if got := into[api.ExecAnswer](t, r.insist("POST", "/fleet/vms/a/exec", cmd, "k")); got.Stdout != "run 1\n" {
			t.Errorf("the repeat over another leader: %q, want the first run's answer", got.Stdout)
		}
		if got := into[api.ExecAnswer](t, r.insist("POST", "/fleet/vms/a/exec", cmd, "k2")); got.Stdout != "run 2\n" {
			t.Errorf("another key: %q, want a second run", got.Stdout)
		}
		r.insist("PATCH", "/fleet/vms/a", body{"labels": body{"a": "b"}}, "")
		n1.with(func() {
			n1.vms[into[api.VM](t, r.call(r.leader(), "GET", "/fleet/vms/a", nil)).ID].State = api.StateFailed
		})
		r.eventually("the failure to be seen", time.Minute, func() bool {
			return into[api.VM](t, r.call(r.leader(), "GET", "/fleet/vms/a", nil)).State == api.StateFailed
		})
		if got := r.call(r.leader(), "POST", "/fleet/vms/a/exec", cmd); got.code() != api.CodeConflict || strings.Contains(string(got.body), "yet") {
			t.Errorf("a command in a failed VM: %s, want 409 that does not speak of waiting", got)
		}
	})
}

// counting carries requests and notes how many are under way to each host.
type counting struct {
	mu        sync.Mutex
	now, most map[string]int
	hold      chan struct{}
}

func (c *counting) RoundTrip(req *http.Request) (*http.Response, error) {
	host := req.URL.Host
	c.mu.Lock()
	c.now[host]++
	c.most[host] = max(c.most[host], c.now[host])
	c.mu.Unlock()
	<-c.hold
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now[host]--
	return answered(req, http.StatusOK, struct{}{}), nil
}

func TestANodeGetsABoundedNumberOfOrdersAtATime(t *testing.T) {
	net := &counting{now: map[string]int{}, most: map[string]int{}, hold: make(chan struct{})}
	calls := newNodeCaller(net, time.Now)
	var all sync.WaitGroup
	for i := range 4 * ordersPerNode {
		all.Go(func() {
			url := fmt.Sprint("http://n", i%2)
			if err := calls.call(t.Context(), url, "", "PATCH", "/v1/vms/x", "", nil, nil); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() { // what may take long has places of its own
			if err := calls.call(t.Context(), "http://n0", "", "POST", "/v1/vms/x/exec", "", nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	for range 8 * ordersPerNode {
		net.hold <- struct{}{}
	}
	all.Wait()
	if net.most["n0"] > ordersPerNode+longPerNode || net.most["n1"] > ordersPerNode || net.most["n1"] == 0 {
		t.Errorf("at most %v requests at a time, want %d and %d", net.most, ordersPerNode+longPerNode, ordersPerNode)
	}
}

func TestALaneOpensAfterFailuresInARowAndTriesOneAtATime(t *testing.T) {
	now := time.Now()
	l := newLanes(func() time.Time { return now })
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	ask := func(method, path string, end error) error {
		leave, err := l.enter(t.Context(), "u", method, path)
		if err == nil {
			leave(end)
		}
		return err
	}
	late := context.DeadlineExceeded
	for i, step := range []struct {
		method, path string
		end          error
		skips        bool
	}{
		{"POST", "/v1/vms", late, false},
		{"GET", "/v1/vms/x", api.Errorf(api.CodeNotFound, "no"), false}, // any answer counts as one
		{"POST", "/v1/vms", refused, false},
		{"DELETE", "/v1/vms/x", late, false}, // may rightly take that long
		{"POST", "/v1/vms/x/exec", late, false},
		{"PATCH", "/v1/vms/x", errors.New("connection reset"), false},
		{"PATCH", "/v1/vms/x", late, true},
	} {
		if err := ask(step.method, step.path, step.end); err != nil || l.skips("u") != step.skips {
			t.Errorf("step %d: %v, skipped %t, want %t", i, err, l.skips("u"), step.skips)
		}
	}
	var unsent notSent
	if err := ask("POST", "/v1/vms", nil); !errors.As(err, &unsent) || !errors.Is(err, errSkipped) {
		t.Errorf("a skipped node was asked: %v", err)
	}
	now = now.Add(skipFor)
	trial, err := l.enter(t.Context(), "u", "POST", "/v1/vms")
	if err != nil {
		t.Fatalf("nobody may try: %v", err)
	}
	if err := ask("POST", "/v1/vms", nil); !errors.Is(err, errSkipped) {
		t.Errorf("a second one tries meanwhile: %v", err)
	}
	trial(nil)
	if err := ask("POST", "/v1/vms", nil); err != nil || l.skips("u") {
		t.Errorf("after a good trial: %v, skipped %t", err, l.skips("u"))
	}
	l.keep(map[string]bool{})
	if len(l.of) != 0 {
		t.Errorf("lanes of nodes that are gone are kept: %v", l.of)
	}
}
