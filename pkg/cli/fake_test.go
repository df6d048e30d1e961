package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/api/apitest"
)

// noon is when all tests run.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) api.Time { return api.TimeOf(noon.Add(-d)) }

func ptr[T any](v T) *T { return &v }

const vmID = "0190f3f0-0000-7000-8000-000000000042"

// sent is one request that the fake got.
type sent struct {
	method, path, query, body, key, token string
}

// fakeAPI answers as central or a node would, from fixed objects. Fleet requests and answers are held to openapi.json.
type fakeAPI struct {
	*httptest.Server
	mux *http.ServeMux

	mu   sync.Mutex
	sent []sent
}

// answers maps "GET /fleet/pools" to the answer: an *api.Error, a func, or an object for 200 (201 for a POST that
// creates, nil for 204).
type answers map[string]any

func newFake(t *testing.T, a answers) *fakeAPI {
	t.Helper()
	f := &fakeAPI{mux: http.NewServeMux()}
	for pattern, answer := range a {
		f.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { reply(t, w, r, answer) })
	}
	f.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply(t, w, r, api.Errorf(api.CodeNotFound, "there is nothing at %s", r.URL.Path))
	})
	checked := apitest.Check(t, roundTripper(f.mux.ServeHTTP))
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("reading the request: %v", err)
		}
		f.mu.Lock()
		f.sent = append(f.sent, sent{r.Method, r.URL.Path, r.URL.RawQuery, string(raw), r.Header.Get(api.HeaderIdempotencyKey), r.Header.Get("Authorization")})
		f.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(raw))
		if !strings.HasPrefix(r.URL.Path, "/fleet/") || r.URL.Path == "/fleet/events" || !described(t, r.URL.Path) {
			f.mux.ServeHTTP(w, r)
			return
		}
		answer, err := checked.RoundTrip(r)
		if err != nil {
			t.Errorf("round trip: %v", err)
			return
		}
		defer answer.Body.Close()
		for k, v := range answer.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(answer.StatusCode)
		io.Copy(w, answer.Body)
	}))
	t.Cleanup(f.Close)
	return f
}

// described says whether openapi.json holds the path. Only routes of tenancy may still be missing there.
func described(t *testing.T, path string) bool {
	parts := strings.Split(path, "/")
	if newer := []string{"tenants", "operator-keys", "policy", "prices", "leases", "ledger", "usage"}; !slices.Contains(newer, parts[2]) && parts[len(parts)-1] != "scrub" {
		return true
	}
	routes, err := apitest.Routes()
	if err != nil {
		t.Error(err)
	}
	return slices.ContainsFunc(routes, func(r apitest.Route) bool {
		return slices.EqualFunc(strings.Split(r.Path, "/"), parts, func(known, got string) bool { return known == got || strings.HasPrefix(known, "{") })
	})
}

// roundTripper makes a handler a transport.
type roundTripper http.HandlerFunc

func (h roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	h(rec, r)
	return rec.Result(), nil
}

func reply(t *testing.T, w http.ResponseWriter, r *http.Request, answer any) {
	switch answer := answer.(type) {
	case func(http.ResponseWriter, *http.Request):
		answer(w, r)
	case nil:
		w.WriteHeader(http.StatusNoContent)
	case *api.Error:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(answer.Code.Status())
		json.NewEncoder(w).Encode(answer.Filled("req-7"))
	default:
		status := http.StatusOK
		if r.Method == http.MethodPost && (strings.Count(r.URL.Path, "/") == 2 || strings.HasSuffix(r.URL.Path, "/keys")) && r.URL.Query().Get("dry_run") == "" {
			status = http.StatusCreated
		}
		if strings.HasSuffix(r.URL.Path, "/roll") {
			status = http.StatusAccepted
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set(api.HeaderIndex, "7")
		w.Header().Set("ETag", `"7"`)
		w.Header().Set(api.HeaderIdempotencyKey, r.Header.Get(api.HeaderIdempotencyKey))
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Errorf("encoding the answer: %v", err)
		}
	}
}

// requests are those that changed something, or all.
func (f *fakeAPI) requests(method string) []sent {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []sent
	for _, s := range f.sent {
		if s.method == method {
			out = append(out, s)
		}
	}
	return out
}

// world is the Env of a test and what was written to it.
type world struct {
	t        *testing.T
	vars     map[string]string
	in       string
	terminal bool // In, Out and Err are one
	out, err bytes.Buffer
}

func newWorld(t *testing.T, f *fakeAPI) *world {
	w := &world{t: t, vars: map[string]string{"HOME": t.TempDir(), "FLUXVM_TOKEN": "fvx_test"}}
	if f != nil {
		w.vars["FLUXVM_FLEET_URL"], w.vars["FLUXVM_API"] = f.URL, f.URL
	}
	return w
}

func (w *world) env() Env {
	return Env{
		In: strings.NewReader(w.in), Out: &w.out, Err: &w.err,
		Getenv: func(k string) string { return w.vars[k] }, Now: func() time.Time { return noon },
		IsTerminal: func(any) bool { return w.terminal }, Version: "1.2.3",
	}
}

// run carries out one command line, given as words separated by blanks; a word in single quotes may hold blanks.
func (w *world) run(line string) int {
	w.t.Helper()
	w.out.Reset()
	w.err.Reset()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	return Run(ctx, w.env(), words(line))
}

func words(line string) []string {
	var out []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}

// said joins the lines of an expected output.
func said(lines ...string) string { return strings.Join(lines, "\n") + "\n" }

func warmVM() api.VM {
	return api.VM{
		ID: vmID, Name: "build-42", Node: "studio-1", Backend: "vz", Image: "macos-27-xcode", GuestOS: "macos", VCPUs: 6, MemoryMiB: 16384, DiskSizeGiB: 128,
		State: api.StateRunning, Labels: map[string]string{"team": "ios"}, CreatedAt: ago(time.Hour), ReadyAt: ago(59 * time.Minute), ExpiresAt: api.TimeOf(noon.Add(2 * time.Hour)),
		Pool: "ios-ci", ClaimedFrom: "ios-ci", ClaimedAt: ago(time.Minute), Ephemeral: true, Version: 9,
	}
}

func iosImage() api.Image {
	return api.Image{Name: "macos-27-xcode", Path: "/images/macos-27-xcode", GuestOS: "macos", Title: "macOS 27 with Xcode", VCPUs: 6, MemoryMiB: 16384, DiskSizeGiB: 128, HasAgent: true, CreatedAt: ago(48 * time.Hour), Version: 1}
}

func iosPool() api.Pool {
	return api.Pool{
		Name: "ios-ci", Owner: "acme", Tenant: ptr("acme"), Image: "macos-27-xcode", GuestOS: "macos", Size: api.Size{VCPUs: 6, MemoryMiB: 16384}, MinReady: 2, MaxTotal: 8,
		NodeSelector: map[string]string{}, Nodes: []string{}, Readiness: "agent", CreatedAt: ago(48 * time.Hour), Version: 3,
		Status: api.PoolStatus{State: api.PoolReady, Ready: 2, ClaimedRunning: 3, Claimed24h: 14, AvgClaimMS: 910, LastClaimAt: ago(time.Minute), LastFillAt: ago(30 * time.Second)},
		Warm:   []api.WarmVM{{Node: "studio-1", ID: vmID, Name: "warm-ios-ci-1a2b3c4d", State: "ready", Image: "macos-27-xcode", Since: ago(90 * time.Second)}},
	}
}

// troubledPool backs off; its error tries to steer the terminal.
func troubledPool() api.Pool {
	p := iosPool()
	p.Name, p.Owner, p.Tenant, p.Image, p.Size, p.MinReady, p.MaxTotal, p.Warm = "linux-ci", "operator", nil, "debian-13", api.Size{VCPUs: 1, MemoryMiB: 1536}, 4, 16, []api.WarmVM{}
	p.Status = api.PoolStatus{State: api.PoolBackingOff, Ready: 1, Booting: 1, WaitReason: ptr(api.WaitNoCapacity), LastError: ptr("no healthy, uncordoned nodes\x1b[31m"),
		BackoffUntil: api.TimeOf(noon.Add(20 * time.Second)), Reasons: map[string]int{"label": 3, "memory": 1}}
	return p
}

func studio() api.Node {
	return api.Node{
		Name: "studio-1", UUID: "0190f3f0-0000-7000-8000-000000000001", URL: "http://studio-1:7788", State: api.NodeHealthy, Backends: []string{"vz"}, Capabilities: api.Capabilities{Rename: true},
		VCPUsTotal: 16, MemoryMiBTotal: 65536, CPUOvercommit: 8, VMCount: 2, FreeVCPUs: 116, FreeMemoryMiB: 32768, FreeMacOS: 0, Labels: map[string]string{"zone": "lab"},
		Density: api.Density{HostPressureLevel: ptr("normal"), HostMemAvailableMiB: 40960, WarmSlotsReady: 1}, Apple: &api.AppleHost{Chip: "m4-max", MacOSGuests: 2, MacOSLimit: 2},
		LastSeenAt: ago(4 * time.Second), Version: 5,
	}
}

// drainedStudio is a node that is being drained, and one VM blocks that.
func drainedStudio() api.Node {
	n := studio()
	n.Cordoned, n.Draining, n.CordonedBy, n.Reason = true, true, "operator", "macOS update"
	n.Drain = &api.NodeDrain{By: "operator", StartedAt: ago(time.Minute), Total: 3, ToDelete: 1, Blocked: 1,
		Blocking: []api.DrainBlocker{{ID: "0190f3f0-0000-7000-8000-000000000009", Name: "build-42", Tenant: ptr("acme"), Why: "it has no TTL"}}}
	return n
}

func threeReplicas() api.Cluster {
	return api.Cluster{ID: "c0ffee", Epoch: 1, Leader: "central-2", Term: 4, Index: 1042, Replicas: []api.Replica{
		{Name: "central-1", ClusterAddr: "10.0.0.1:7800", URL: "http://10.0.0.1:7799", Role: "voter", Healthy: true, AppliedIndex: 1040, LastContactMS: 12, Version: "1.2.3"},
		{Name: "central-2", ClusterAddr: "10.0.0.2:7800", URL: "http://10.0.0.2:7799", Role: "leader", Healthy: true, AppliedIndex: 1042, Version: "1.2.3"},
		{Name: "central-3", ClusterAddr: "10.0.0.3:7800", URL: "http://10.0.0.3:7799", Role: "voter", Healthy: true, AppliedIndex: 1042, LastContactMS: 9, Version: "1.2.3"},
	}}
}

func scratch() api.Machine {
	return api.Machine{ID: vmID, Name: "scratch", Backend: "flux-vm", Image: "/images/debian-13", GuestOS: "linux", VCPUs: 1, MemoryMiB: 512, State: api.StateRunning,
		Labels: map[string]string{}, Agent: true, CreatedAt: ago(5 * time.Minute), StartedAt: ago(5 * time.Minute), ReadyAt: ago(297 * time.Second)}
}

func page[T any](items ...T) api.List[T] { return api.List[T]{Items: items} }

func wholeFleet() answers {
	vm, pool, node := warmVM(), iosPool(), studio()
	warm := warmVM()
	warm.Name, warm.ClaimedFrom, warm.ClaimedAt, warm.ExpiresAt, warm.WarmPool, warm.WarmState, warm.Labels = "warm-ios-ci-1a2b3c4d", "", 0, 0, "ios-ci", "ready", map[string]string{}
	all := tenancy()
	maps.Copy(all, answers{
		"GET /fleet/vms":                    page(vm, warm),
		"GET /fleet/vms/{id}":               vm,
		"DELETE /fleet/vms/{id}":            nil,
		"GET /fleet/pools":                  page(pool, troubledPool()),
		"GET /fleet/pools/{name}":           pool,
		"POST /fleet/pools":                 pool,
		"PATCH /fleet/pools/{name}":         pool,
		"POST /fleet/pools/{name}/roll":     pool,
		"DELETE /fleet/pools/{name}":        nil,
		"GET /fleet/nodes":                  page(node),
		"GET /fleet/nodes/{name}":           node,
		"PATCH /fleet/nodes/{name}":         node,
		"POST /fleet/nodes/{name}/uncordon": node,
		"POST /fleet/nodes/{name}/drain":    drainedStudio(),
		"POST /fleet/nodes/{name}/lost":     node,
		"POST /fleet/nodes/{name}/replace":  node,
		"DELETE /fleet/nodes/{name}":        nil,
		"GET /fleet/nodes/{name}/vms":       page(vm),
		"GET /fleet/images":                 page(iosImage()),
		"GET /fleet/images/{name}":          iosImage(),
		"POST /fleet/images":                iosImage(),
		"DELETE /fleet/images/{name}":       nil,
		"GET /fleet/capacity":               api.Capacity{Nodes: 3, Healthy: 2, VCPUsTotal: 128, VCPUsFree: 116, MemoryMiBTotal: 65536, MemoryMiBFree: 32768, MacOSTotal: 2, MacOSFree: 0, VMs: 2},
		"GET /fleet/activity": page(
			api.Activity{ID: "9.0", At: ago(time.Second), Actor: "warm-pool", Action: "replace", Target: "ios-ci", Outcome: "ok", Detail: map[string]any{}},
			api.Activity{ID: "8.0", At: ago(time.Minute), Actor: "acme", Action: "POST /fleet/vms", Target: "build-42", Outcome: "ok", Detail: map[string]any{"warm": true}}),
		"GET /fleet/cluster":      threeReplicas(),
		"POST /fleet/join-tokens": api.JoinToken{ID: "jt-1", Token: "fvj_secret", Kind: "node", NamePattern: "studio-*", Uses: 3, ExpiresAt: api.TimeOf(noon.Add(time.Hour))},
		"POST /fleet/vms": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("dry_run") == "true" {
				writeJSON(w, http.StatusOK, api.DryRunAnswer{Node: ptr("studio-1"), Warm: true, Pool: ptr("ios-ci"), Reasons: map[string]int{}})
				return
			}
			w.Header().Set(api.HeaderIdempotencyKey, r.Header.Get(api.HeaderIdempotencyKey))
			writeJSON(w, http.StatusCreated, api.LaunchAnswer{Node: "studio-1", VM: warmVM(), Warm: true, Pool: "ios-ci", ClaimMS: ptr(int64(870))})
		},
		"POST /fleet/vms/{id}/exec": api.ExecAnswer{ExitCode: 3, Stdout: "out\n", Stderr: "err\n"},
		"GET /fleet/events": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			raw, _ := json.Marshal(warmVM())
			fmt.Fprintf(w, "id: 1042.0\nevent: vm\ndata: {\"action\":\"created\",\"object\":%s}\n\n", raw)
			raw, _ = json.Marshal(iosPool())
			fmt.Fprintf(w, "id: 1043.0\nevent: pool\ndata: {\"action\":\"changed\",\"object\":%s}\n\n", raw)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"GET /v1/vms":              page(scratch()),
		"GET /v1/vms/{id}":         scratch(),
		"POST /v1/vms":             scratch(),
		"DELETE /v1/vms/{id}":      nil,
		"POST /v1/vms/{id}/stop":   scratch(),
		"POST /v1/vms/{id}/start":  scratch(),
		"POST /v1/vms/{id}/pause":  scratch(),
		"POST /v1/vms/{id}/resume": scratch(),
		"POST /v1/vms/{id}/exec":   api.ExecAnswer{Stdout: "Linux\n"},
		"GET /v1/vms/{id}/console": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "booting\x1b[2J\nready\n")
		},
		"GET /v1/vms/{id}/balloon":          api.Balloon{MemoryMiB: 512, TargetMiB: 128, ActualMiB: ptr(int64(96)), Driver: api.BalloonStuck},
		"POST /v1/vms/{id}/balloon":         api.Balloon{MemoryMiB: 512, TargetMiB: 256, ActualMiB: ptr(int64(0))},
		"GET /v1/vms/{id}/memory":           scratchMemory(),
		"GET /v1/host/memory":               api.HostMemory{MemTotalMiB: 32768, MemAvailableMiB: 20480, PSI: &api.PSI{SomeAvg10: 1.5}},
		"POST /v1/vms/{id}/fork":            scratch(),
		"POST /v1/vms/{id}/snapshot":        scratchSnapshot(),
		"GET /v1/snapshots":                 page(scratchSnapshot()),
		"DELETE /v1/snapshots/{name}":       nil,
		"GET /v1/images":                    page(api.HostImage{Path: "local:debian-13", VMs: 2, Digest: "sha256:" + strings.Repeat("a", 64), Bytes: 2 << 30}),
		"POST /v1/images":                   api.HostImage{Path: "local:debian-13", Digest: "sha256:" + strings.Repeat("a", 64), Bytes: 2 << 30},
		"DELETE /v1/images/{name}":          nil,
		"GET /v1/sandboxes":                 page(scratch()),
		"POST /v1/sandboxes":                scratch(),
		"POST /v1/sandboxes/{id}/hibernate": scratch(),
		"POST /v1/sandboxes/{id}/wake":      scratch(),
		"GET /v1/sandboxes/density":         api.Density{HostMemAvailableMiB: 20480, WarmSlotsReady: 2, ActiveSandboxes: 3, PausedSandboxes: 1},
	})
	return all
}

func scratchMemory() api.MemoryReport {
	return api.MemoryReport{VMID: vmID, ConfiguredMiB: 512, Usage: &api.MemoryUsage{RSSKiB: 310 << 10, PSSKiB: 180 << 10, PrivateKiB: 120 << 10, SharedKiB: 190 << 10},
		Balloon: &api.Balloon{MemoryMiB: 512, TargetMiB: 128, ActualMiB: ptr(int64(128))}}
}

func scratchSnapshot() api.Snapshot {
	return api.Snapshot{Name: "tools", Image: "snapshot:tools", Backend: api.BackendFluxVM, VCPUs: 1, MemoryMiB: 512, CreatedAt: ago(5 * time.Minute)}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}
