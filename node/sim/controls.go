package sim

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	routeControls = "/v1/sim"
	routeOrders   = "/v1/sim/orders"
	maxOrders     = 100_000
	maxPage       = 500
)

// settings are GET /v1/sim: how the host misbehaves.
type settings struct {
	PressureLevel   *string `json:"pressure_level"`
	MemAvailableMiB *int64  `json:"mem_available_mib"` // null: what its machines leave
	Rename          bool    `json:"rename"`            // false: PATCH of a VM answers 404, as an old daemon would
	Freeze          bool    `json:"freeze"`            // true: answers nothing and sends no beat
	RefuseCreates   *string `json:"refuse_creates"`    // the message of the refusal
	FailScrub       *string `json:"fail_scrub"`        // why a scrub does not work; null: it works
	LostReplies     int     `json:"lost_replies"`      // so many answers to orders are dropped after the work is done
	ClockOffsetSecs int64   `json:"clock_offset_secs"` // of the wall clock
	BootID          string  `json:"boot_id"`           // a new one is a reboot: the host's VMs are gone
}

// change is PATCH /v1/sim.
type change struct {
	PressureLevel   api.Optional[string] `json:"pressure_level,omitzero"`
	MemAvailableMiB api.Optional[int64]  `json:"mem_available_mib,omitzero"`
	Rename          api.Optional[bool]   `json:"rename,omitzero"`
	Freeze          api.Optional[bool]   `json:"freeze,omitzero"`
	RefuseCreates   api.Optional[string] `json:"refuse_creates,omitzero"`
	FailScrub       api.Optional[string] `json:"fail_scrub,omitzero"`
	LostReplies     api.Optional[int]    `json:"lost_replies,omitzero"`
	ClockOffsetSecs api.Optional[int64]  `json:"clock_offset_secs,omitzero"`
	BootID          api.Optional[string] `json:"boot_id,omitzero"`
}

func (c change) check() error {
	switch level := c.PressureLevel; {
	case level.Set && !level.Null && level.V != api.PressureNormal && level.V != api.PressureWarn && level.V != api.PressureCritical:
		return api.Invalid("pressure_level", "pressure_level must be normal, warn, critical or null")
	case c.MemAvailableMiB.V < 0:
		return api.Invalid("mem_available_mib", "mem_available_mib must not be negative")
	case c.LostReplies.V < 0:
		return api.Invalid("lost_replies", "lost_replies must not be negative")
	case c.BootID.Set && (c.BootID.V == "" || len(c.BootID.V) > 128):
		return api.Invalid("boot_id", "boot_id must have 1-128 characters")
	case c.Rename.Null || c.Freeze.Null:
		return api.Errorf(api.CodeInvalid, "rename and freeze must be true or false")
	}
	return nil
}

// order is one entry of GET /v1/sim/orders.
type order struct {
	At    api.Time `json:"at"`
	Op    string   `json:"op"`
	VMID  string   `json:"vm_id"`
	Name  string   `json:"name"`
	Token *string  `json:"token"` // null: given by the host's admin, or by nobody
}

// controls are the host's settings and what it was ordered. They make the driver steer the daemon.
type controls struct {
	mu      sync.Mutex
	set     settings
	orders  []order
	dropped int // orders no longer kept
	beat    func()
	reboot  func()
}

func newControls() *controls { return &controls{set: settings{Rename: true}} }

func (c *controls) read() settings {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.set
}

func (c *controls) refusal() *string { return c.read().RefuseCreates }

// Silent says that the host is frozen.
func (c *controls) Silent() bool { return c.read().Freeze }

// Capabilities are those of the daemon, less renaming if that is off.
func (c *controls) Capabilities() api.Capabilities {
	return api.Capabilities{Rename: c.read().Rename, Claim: true}
}

// BootID is the one that was set, else the host's own.
func (c *controls) BootID(real string) string {
	if set := c.read().BootID; set != "" {
		return set
	}
	return real
}

// Now is the wall clock, as far off as was set.
func (c *controls) Now() time.Time {
	return time.Now().Add(time.Duration(c.read().ClockOffsetSecs) * time.Second)
}

// Steer takes what the controls may cause.
func (c *controls) Steer(bootID string, beat, reboot func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beat, c.reboot = beat, reboot
	if c.set.BootID == "" {
		c.set.BootID = bootID
	}
}

// Ordered lists an order that was carried out.
func (c *controls) Ordered(op, vmID, name, token string) {
	o := order{At: api.TimeOf(time.Now()), Op: op, VMID: vmID, Name: name}
	if token != "" {
		o.Token = &token
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.orders); n > 0 {
		o.At = max(o.At, c.orders[n-1].At) // also where the host's clock is set back
	}
	c.orders = append(c.orders, o)
	if len(c.orders) > maxOrders {
		c.dropped += maxOrders / 4
		c.orders = append([]order(nil), c.orders[maxOrders/4:]...)
	}
}

// Intercept freezes the host, forgets how to rename and loses answers. The controls themselves always answer.
func (c *controls) Intercept(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == routeControls || strings.HasPrefix(r.URL.Path, routeControls+"/") {
			next.ServeHTTP(w, r)
			return
		}
		set := c.read()
		switch {
		case set.Freeze:
			io.Copy(io.Discard, r.Body) // or the caller's leaving would not be noticed
			<-r.Context().Done()        // a frozen host does not even close the connection
			panic(http.ErrAbortHandler)
		case !set.Rename && r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, "/v1/vms/"):
			refuse(w, api.Errorf(api.CodeNotFound, "there is no such route"))
		case r.Method != http.MethodGet && r.Method != http.MethodHead && c.loseReply():
			next.ServeHTTP(&lost{header: http.Header{}}, r)
			panic(http.ErrAbortHandler)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (c *controls) loseReply() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set.LostReplies == 0 {
		return false
	}
	c.set.LostReplies--
	return true
}

// lost takes an answer that nobody gets.
type lost struct{ header http.Header }

func (l *lost) Header() http.Header { return l.header }

func (l *lost) Write(p []byte) (int, error) { return len(p), nil }

func (l *lost) WriteHeader(int) {}

// Paths is where the controls are.
func (c *controls) Paths() string { return routeControls }

// ServeHTTP answers the controls' own routes.
func (c *controls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body any
	var err error
	switch {
	case r.URL.Path == routeControls && r.Method == http.MethodGet:
		body = c.read()
	case r.URL.Path == routeControls && r.Method == http.MethodPatch:
		body, err = c.patch(w, r)
	case r.URL.Path == routeOrders && r.Method == http.MethodGet:
		body, err = c.list(r)
	case r.URL.Path == routeControls, r.URL.Path == routeOrders:
		w.Header().Set("Allow", "GET, PATCH")
		if r.URL.Path == routeOrders {
			w.Header().Set("Allow", "GET")
		}
		e := api.Errorf(api.CodeInvalid, "%s is not possible here", r.Method).Filled(w.Header().Get(api.HeaderRequestID))
		e.Status = http.StatusMethodNotAllowed
		problem(w, e)
		return
	default:
		err = api.Errorf(api.CodeNotFound, "there is no such route; the controls are %s and %s", routeControls, routeOrders)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(body)
}

func (c *controls) patch(w http.ResponseWriter, r *http.Request) (settings, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, api.MaxBody))
	if err != nil {
		return settings{}, api.Errorf(api.CodeTooLarge, "the body cannot be read or has more than %d bytes", api.MaxBody)
	}
	var p change
	if err := api.Decode(raw, &p); err != nil {
		return settings{}, err
	}
	if err := p.check(); err != nil {
		return settings{}, err
	}
	beat, reboot, reboots := c.apply(p)
	if reboots && reboot != nil {
		reboot()
	}
	if beat != nil {
		beat()
	}
	return c.read(), nil
}

// apply makes the change and says whether it is a reboot.
func (c *controls) apply(p change) (beat, reboot func(), reboots bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	reboots = p.BootID.Set && p.BootID.V != c.set.BootID
	assignPointer(&c.set.PressureLevel, p.PressureLevel)
	assignPointer(&c.set.MemAvailableMiB, p.MemAvailableMiB)
	assignPointer(&c.set.RefuseCreates, p.RefuseCreates)
	assignPointer(&c.set.FailScrub, p.FailScrub)
	assign(&c.set.Rename, p.Rename)
	assign(&c.set.Freeze, p.Freeze)
	assign(&c.set.LostReplies, p.LostReplies)
	assign(&c.set.ClockOffsetSecs, p.ClockOffsetSecs)
	assign(&c.set.BootID, p.BootID)
	return c.beat, c.reboot, reboots
}

func assign[V any](to *V, from api.Optional[V]) {
	if from.Set {
		*to = from.V
	}
}

func assignPointer[V any](to **V, from api.Optional[V]) {
	switch {
	case from.Null:
		*to = nil
	case from.Set:
		v := from.V
		*to = &v
	}
}

// list is one page of the orders, oldest first. A cursor is the number of the last order seen.
func (c *controls) list(r *http.Request) (api.List[order], error) {
	limit, after := maxPage, 0
	var err error
	if text := r.URL.Query().Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxPage {
			return api.List[order]{}, api.Invalid("limit", "limit must be from 1 to %d", maxPage)
		}
	}
	if text := r.URL.Query().Get("cursor"); text != "" {
		if after, err = strconv.Atoi(text); err != nil || after < 0 {
			return api.List[order]{}, api.Invalid("cursor", "cursor must be the next_cursor of an earlier page")
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	from := min(max(0, after-c.dropped), len(c.orders))
	to := min(from+limit, len(c.orders))
	page := api.List[order]{Items: append([]order(nil), c.orders[from:to]...)}
	if to < len(c.orders) {
		next := strconv.Itoa(c.dropped + to)
		page.NextCursor = &next
	}
	return page, nil
}

func refuse(w http.ResponseWriter, err error) {
	var e *api.Error
	if !errors.As(err, &e) {
		e = api.Errorf(api.CodeInternal, "the sim host could not do it")
	}
	problem(w, e.Filled(w.Header().Get(api.HeaderRequestID)))
}

func problem(w http.ResponseWriter, e *api.Error) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.Status)
	json.NewEncoder(w).Encode(e)
}
