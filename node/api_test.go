package node

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

type simOrder struct {
	Op    string   `json:"op"`
	VMID  string   `json:"vm_id"`
	Name  string   `json:"name"`
	Token *string  `json:"token"`
	At    api.Time `json:"at"`
}

func (h *host) orders() []simOrder {
	h.t.Helper()
	return decode[api.List[simOrder]](h.t, h.want(200, "GET", "/v1/sim/orders", nil)).Items
}

func TestWhatIsWrongWithARequestIsSaid(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		for _, b := range []string{`{"name": `, `[]`, `"vm"`, `{"memory_mib": "much"}`, `{"id":"x","nmae":1}`, ``, `{} {}`} {
			h.refused(api.CodeInvalid, "POST", "/v1/vms", b)
		}
		h.refused(api.CodeTooLarge, "POST", "/v1/vms", strings.Repeat(" ", api.MaxBody+1))
		for name, changes := range map[string]fields{
			"id": {"id": "../../x"}, "memory_mib": {"memory_mib": 0}, "backend": {"backend": "vz"}, "image": {"image": "/etc/passwd"},
			"balloon": {"balloon": fields{}}, "expires_in_ms": {"expires_in_ms": -1}, "security_profile": {"security_profile": "measured"},
		} {
			if e := h.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), changes)); e.Field != name {
				t.Errorf("%s: got field %q (%s)", name, e.Field, e.Detail)
			}
		}
		for _, image := range []string{"sim:boot_ms=1", "sim:?boot=1", "sim:?boot_ms=-1", "sim:?boot_ms=1&boot_ms=2", "sim:?fail=perhaps", "sim:?%zz"} {
			h.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), fields{"image": image}))
		}
		for _, changes := range []fields{{"name": "../x"}, {"name": nil}, {"expires_in_ms": "soon"}, {"expires_in_ms": -5}, {"labels": nil}, {"labels": fields{strings.Repeat("k", 300): "v"}}, {"memory_mib": 1}} {
			h.refused(api.CodeInvalid, "PATCH", "/v1/vms/"+id, changes)
		}
		h.refused(api.CodeInvalid, "GET", "/v1/vms?limit=501", nil)
		h.refused(api.CodeInvalid, "GET", "/v1/events?since=x", nil)
		if e := h.refused(api.CodeInvalid, "GET", "/v1/vms?state=running", nil); e.Field != "state" || !strings.Contains(e.Detail, "takes cursor, limit") {
			t.Errorf("an unknown parameter: %+v", e)
		}
		if e := h.refused(api.CodeInvalid, "DELETE", "/v1/vms/"+id+"?force=true", nil); !strings.Contains(e.Detail, "takes none") {
			t.Errorf("a parameter where none is taken: %+v", e)
		}
		h.refused(api.CodeNotFound, "GET", "/v1/vms/"+uuid.NewString(), nil)
		h.refused(api.CodeNotFound, "GET", "/v1/vms/..%2F..%2Fetc", nil)
		h.refused(api.CodeNotFound, "GET", "/v2/vms", nil)
		h.refused(api.CodeForbidden, "POST", "/v1/vms/"+id+"/stop", nil, "Sec-Fetch-Site", "cross-site")
		w := h.want(405, "PUT", "/v1/vms/"+id, nil)
		if allow := w.Header().Get("Allow"); allow != "GET, PATCH, DELETE" {
			t.Errorf("got Allow %q", allow)
		}
		if e := decode[api.Error](t, w); e.Code != api.CodeInvalid || e.RequestID == "" {
			t.Errorf("got %+v", e)
		}
	})
}

func TestListsArePagedWithoutGapOrDouble(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		for range 7 {
			h.boot(nil)
		}
		for _, path := range []string{"/v1/vms", "/v1/events", "/v1/sim/orders"} {
			type item struct {
				ID   string `json:"id"`
				VMID string `json:"vm_id"`
			}
			seen, next := map[string]bool{}, path+"?limit=3"
			for pages := 0; next != ""; pages++ {
				page := decode[api.List[item]](t, h.want(200, "GET", next, nil))
				if pages > 3 || len(page.Items) > 3 {
					t.Fatalf("%s: too many pages or items", path)
				}
				for _, i := range page.Items {
					key := i.ID + i.VMID
					if seen[key] {
						t.Errorf("%s: %s twice", path, key)
					}
					seen[key] = true
				}
				if next = ""; page.NextCursor != nil {
					next = path + "?limit=3&cursor=" + *page.NextCursor
				}
			}
			if len(seen) != 7 {
				t.Errorf("%s: got %d items, want 7", path, len(seen))
			}
		}
	})
}

func TestRolesAreKeptApart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.AdminTokens, c.ReadTokens = []string{"root"}, []string{"look"} })
		as := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
		h.refused(api.CodeUnauthenticated, "GET", "/v1/vms", nil)
		h.refused(api.CodeUnauthenticated, "GET", "/v1/vms", nil, as("roo")...)
		h.refused(api.CodeUnauthenticated, "GET", "/v1/sim", nil)
		h.want(200, "GET", "/v1/vms", nil, as("look")...)
		h.want(200, "GET", "/healthz", nil)
		h.refused(api.CodeForbidden, "POST", "/v1/vms", body(uuid.NewString(), nil), as("look")...)
		h.refused(api.CodeForbidden, "PATCH", "/v1/sim", fields{"freeze": true}, as("look")...)
		h.want(201, "POST", "/v1/vms", body(uuid.NewString(), nil), as("root")...)
		h.want(201, "POST", "/v1/vms", body(uuid.NewString(), nil), as(h.id.credential)...)
	})
}

func TestNoListenerBeyondLoopbackWithoutAToken(t *testing.T) {
	wide := func(c *Config) Config {
		l := newDeaf()
		l.ip = "0.0.0.0"
		c.Name, c.DataDir, c.Listener, c.Facts, c.Drivers = "node-1", t.TempDir(), l, newFacts(), []machine.Driver{sim.New(sim.Config{})}
		return *c
	}
	d, err := New(wide(&Config{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--admin-token-file") {
		t.Errorf("got %v, want a refusal that says what to give", err)
	}
	if d, err = New(wide(&Config{AdminTokens: []string{"root"}})); err != nil {
		t.Fatal(err)
	}
	if err := d.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--tls-cert") || !strings.Contains(err.Error(), "--insecure") {
		t.Errorf("got %v, want a refusal that says what to give", err)
	}
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) {
			c.AdminTokens, c.Insecure = []string{"root"}, true
			l := newDeaf()
			l.ip, c.Listener = "0.0.0.0", l
		})
		h.refused(api.CodeUnauthenticated, "GET", "/v1/vms", nil)
	})
}

func TestASimHostMisbehavesAsItIsTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		set := func(change fields) { t.Helper(); h.want(200, "PATCH", "/v1/sim", change) }
		h.refused(api.CodeInvalid, "PATCH", "/v1/sim", fields{"freez": true})
		h.refused(api.CodeInvalid, "PATCH", "/v1/sim", fields{"pressure_level": "high"})

		set(fields{"rename": false})
		h.refused(api.CodeNotFound, "PATCH", "/v1/vms/"+id, fields{"name": "x"})
		if h.report().Capabilities.Rename {
			t.Error("the host still reports that it can rename")
		}
		set(fields{"rename": true, "refuse_creates": "maintenance"})
		if e := h.refused(api.CodeUnavailable, "POST", "/v1/vms", body(uuid.NewString(), nil)); e.Detail != "maintenance" {
			t.Errorf("got %q", e.Detail)
		}
		set(fields{"refuse_creates": nil, "lost_replies": 1})
		lost := uuid.NewString()
		if w := h.do("POST", "/v1/vms", body(lost, nil)); w.Body.Len() > 0 {
			t.Errorf("the answer was not lost: %s", w.Body)
		}
		h.want(200, "POST", "/v1/vms", body(lost, nil))

		set(fields{"freeze": true})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		frozen := make(chan struct{})
		go func() {
			defer close(frozen)
			defer func() { _ = recover() }()
			req, _ := http.NewRequestWithContext(ctx, "GET", "/v1/vms", nil)
			h.Handler().ServeHTTP(nopWriter{}, req)
			t.Error("a frozen host answered")
		}()
		<-frozen
		set(fields{"freeze": false, "pressure_level": "critical", "mem_available_mib": 123})
		d := decode[api.Density](t, h.want(200, "GET", "/v1/sandboxes/density", nil))
		if d.HostPressureLevel == nil || *d.HostPressureLevel != "critical" || d.HostMemAvailableMiB != 123 {
			t.Errorf("got %+v", d)
		}

		before := h.report()
		set(fields{"boot_id": "another-boot"})
		after := h.report()
		if after.BootID != "another-boot" || after.Instance == before.Instance || after.VMCount != 0 {
			t.Errorf("after the reboot: %+v", after)
		}
		h.refused(api.CodeNotFound, "GET", "/v1/vms/"+id, nil)
		ops := ""
		for _, o := range h.orders() {
			ops += o.Op + " "
		}
		if ops != "create create " {
			t.Errorf("got the orders %q; what was refused or not ordered must not be there", ops)
		}
	})
}

type nopWriter struct{}

func (nopWriter) Header() http.Header         { return http.Header{} }
func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }
func (nopWriter) WriteHeader(int)             {}

func TestWarmSlotsAreReadyVMsOfPools(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		slots := func() int {
			return decode[api.Density](t, h.want(200, "GET", "/v1/sandboxes/density", nil)).WarmSlotsReady
		}
		warm := fields{api.LabelWarmPool: "ios"}
		id := h.boot(fields{"labels": warm})
		h.want(201, "POST", "/v1/vms", body(uuid.NewString(), fields{"labels": warm, "image": "sim:?fail=agent"}))
		passes(time.Minute)
		if got := slots(); got != 1 {
			t.Errorf("got %d, want 1: the other has no agent yet", got)
		}
		h.want(200, "PATCH", "/v1/vms/"+id, fields{"labels": fields{api.LabelWarmPool: nil}})
		if got := slots(); got != 0 {
			t.Errorf("got %d after the claim, want 0", got)
		}
	})
}

func TestARealListenerServesAndEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Name: "node-1", DataDir: t.TempDir(), Listener: l, Drivers: []machine.Driver{sim.New(sim.Config{})}, StopMachines: true})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(context.Background()) }()
	b := fmt.Sprintf(`{"id":%q,"memory_mib":64}`, uuid.NewString())
	resp, err := http.Post("http://"+l.Addr().String()+"/v1/vms", "application/json", bytes.NewReader([]byte(b)))
	for end := time.Now().Add(20 * time.Second); err == nil && resp.StatusCode == 503 && time.Now().Before(end); {
		resp.Body.Close()
		resp, err = http.Post("http://"+l.Addr().String()+"/v1/vms", "application/json", bytes.NewReader([]byte(b)))
	}
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 201 || resp.Header.Get(api.HeaderRequestID) == "" {
		t.Errorf("got %d, %v", resp.StatusCode, resp.Header)
	}
	http.DefaultClient.CloseIdleConnections()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Run(context.Background()); err == nil {
		t.Error("a closed daemon ran again")
	}
}
