package node

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// deaf is a listener to which nobody ever connects: requests go straight to the handler, so that a daemon can run
// on a synthetic clock.
type deaf struct {
	once   sync.Once
	closed chan struct{}
	ip     string
}

func newDeaf() *deaf { return &deaf{closed: make(chan struct{}), ip: "127.0.0.1"} }

func (d *deaf) Accept() (net.Conn, error) { <-d.closed; return nil, net.ErrClosed }

func (d *deaf) Close() error { d.once.Do(func() { close(d.closed) }); return nil }

func (d *deaf) Addr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(d.ip), Port: 7788} }

// fakeFacts is a host whose uptime is the (synthetic) clock's and that reboots when told to.
type fakeFacts struct {
	mu     sync.Mutex
	boot   string
	since  time.Time
	memory api.HostMemory
}

func newFacts() *fakeFacts {
	return &fakeFacts{boot: "boot-1", since: time.Now(), memory: api.HostMemory{MemTotalMiB: 65536, MemAvailableMiB: 65536}}
}

func (f *fakeFacts) BootID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.boot
}

func (f *fakeFacts) Uptime() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.since)
}

func (f *fakeFacts) Chip() string { return "m4-max" }

func (f *fakeFacts) Memory() (api.HostMemory, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.memory, nil
}

func (f *fakeFacts) reboot() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.boot, f.since = f.boot+"+", time.Now()
}

// host is one data directory on which daemons run one after another.
type host struct {
	t     *testing.T
	dir   string
	facts *fakeFacts
	cfg   func(*Config)
	*Daemon
	ended chan error
}

// inBubble runs the test on a synthetic clock; goroutines that are left over fail it.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

func newHost(t *testing.T, cfg func(*Config)) *host {
	h := &host{t: t, dir: t.TempDir(), facts: newFacts(), cfg: cfg}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *host) config() Config {
	cfg := Config{Name: "node-1", DataDir: h.dir, Listener: newDeaf(), Facts: h.facts, Drivers: []machine.Driver{sim.New(sim.Config{})}}
	if h.cfg != nil {
		h.cfg(&cfg)
	}
	return cfg
}

func (h *host) start() {
	h.t.Helper()
	h.startWith(nil)
}

func (h *host) startWith(change func(*Daemon)) {
	h.t.Helper()
	d, err := New(h.config())
	if err != nil {
		h.t.Fatal(err)
	}
	if change != nil {
		change(d)
	}
	h.Daemon, h.ended = d, make(chan error, 1)
	go func() { h.ended <- d.Run(context.Background()) }()
	for h.do("GET", "/readyz", nil).Code != 200 {
		select {
		case err := <-h.ended:
			h.t.Fatalf("Run ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// stop ends the daemon as SIGTERM does.
func (h *host) stop() {
	if h.Daemon == nil {
		return
	}
	if err := h.Close(); err != nil {
		h.t.Errorf("Close: %v", err)
	}
	if err := <-h.ended; err != nil {
		h.t.Errorf("Run: %v", err)
	}
	h.Daemon = nil
}

func (h *host) restart() {
	h.t.Helper()
	h.stop()
	h.start()
}

func (h *host) do(method, path string, body any, header ...string) *httptest.ResponseRecorder {
	h.t.Helper()
	var raw []byte
	switch b := body.(type) {
	case nil:
	case string:
		raw = []byte(b)
	default:
		var err error
		if raw, err = json.Marshal(b); err != nil {
			h.t.Fatal(err)
		}
	}
	req := httptest.NewRequest(method, path, bytes.NewReader(raw))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	func() {
		defer func() {
			if r := recover(); r != nil && r != http.ErrAbortHandler {
				panic(r)
			}
		}()
		h.Handler().ServeHTTP(w, req)
	}()
	return w
}

// want sends a request and fails unless it is answered with the status.
func (h *host) want(status int, method, path string, body any, header ...string) *httptest.ResponseRecorder {
	h.t.Helper()
	w := h.do(method, path, body, header...)
	if w.Code != status {
		h.t.Fatalf("%s %s: got %d %s, want %d", method, path, w.Code, w.Body, status)
	}
	return w
}

// refused wants an error of the code.
func (h *host) refused(code api.Code, method, path string, body any, header ...string) api.Error {
	h.t.Helper()
	w := h.want(code.Status(), method, path, body, header...)
	e := decode[api.Error](h.t, w)
	if e.Code != code || e.RequestID == "" || e.Detail == "" || e.Status != w.Code || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/problem+json") {
		h.t.Fatalf("%s %s: got problem %+v (%s), want code %s", method, path, e, w.Header().Get("Content-Type"), code)
	}
	return e
}

func decode[V any](t *testing.T, w *httptest.ResponseRecorder) V {
	t.Helper()
	var v V
	raw, _ := io.ReadAll(w.Body)
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("answer %q: %v", raw, err)
	}
	return v
}

type fields map[string]any

func body(id string, changes fields) fields {
	b := fields{"id": id, "name": "vm-a", "image": "sim:?boot_ms=50&agent_ms=50", "vcpus": 1, "memory_mib": 256}
	for k, v := range changes {
		b[k] = v
	}
	return b
}

// boot makes a VM and waits until its agent has answered.
func (h *host) boot(changes fields) string {
	h.t.Helper()
	id := uuid.NewString()
	h.want(201, "POST", "/v1/vms", body(id, changes))
	h.await(id, func(m api.Machine) bool { return m.Agent })
	return id
}

func (h *host) get(id string) api.Machine {
	h.t.Helper()
	return decode[api.Machine](h.t, h.want(200, "GET", "/v1/vms/"+id, nil))
}

func (h *host) await(id string, done func(api.Machine) bool) api.Machine {
	h.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		m := h.get(id)
		if done(m) {
			return m
		}
		if time.Now().After(end) {
			h.t.Fatalf("VM %s does not come to what is wanted; it is %+v", id, m)
		}
		<-time.After(time.Millisecond)
	}
}

func (h *host) awaitState(id string, want api.VMState) api.Machine {
	h.t.Helper()
	return h.await(id, func(m api.Machine) bool { return m.State == want })
}

func (h *host) has(id string) bool {
	h.t.Helper()
	return h.do("GET", "/v1/vms/"+id, nil).Code == 200
}

func fenced(text string) []string { return []string{api.HeaderFencing, text} }

// passes lets so much of the synthetic clock go by.
func passes(d time.Duration) { <-time.After(d) }
