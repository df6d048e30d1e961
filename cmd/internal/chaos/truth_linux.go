package chaos

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// late is how much later than a newer leader's an older leader's order may be listed: an order is listed just after it
// has been decided.
const late = api.Time(2000)

// truth is what hosts really have and were really ordered.
type truth struct {
	f *fleet

	mu     sync.Mutex
	hosts  map[string]*hostTruth
	named  map[string]string // the launch that a VM was first renamed for, by id
	orders int
}

type hostTruth struct {
	run         string
	cursor      string
	epoch, term uint64 // the newest leadership it obeyed
	since       api.Time
	lastVM      string // ordered by it
}

type order struct {
	At    api.Time `json:"at"`
	Op    string   `json:"op"`
	VMID  string   `json:"vm_id"`
	Name  string   `json:"name"`
	Token *string  `json:"token"`
}

func newTruth(f *fleet) *truth {
	return &truth{f: f, hosts: map[string]*hostTruth{}, named: map[string]string{}}
}

// watch looks at all hosts again and again until ctx ends.
func (t *truth) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for _, h := range t.f.hosts {
			t.look(ctx, h)
		}
		t.twice(ctx)
		pause(ctx, time.Second)
	}
}

// look reads what a host was ordered since the last look.
func (t *truth) look(ctx context.Context, h *host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have := t.hosts[h.name]
	if have == nil {
		have = &hostTruth{}
		t.hosts[h.name] = have
	}
	if run := h.daemon.run(); run != have.run {
		have.run, have.cursor = run, "0" // it lists what this start was ordered
	}
	for ctx.Err() == nil {
		a := t.f.call.once(ctx, h.target(), request{token: operatorToken, method: "GET", path: "/v1/sim/orders?limit=500&cursor=" + have.cursor, timeout: 2 * time.Second})
		var page api.List[order]
		if a.what != done || a.read(&page) != nil || h.daemon.run() != have.run {
			return
		}
		for _, o := range page.Items {
			t.ordered(h, have, o)
		}
		n, _ := strconv.Atoi(have.cursor)
		have.cursor = strconv.Itoa(n + len(page.Items))
		if page.NextCursor == nil {
			return
		}
	}
}

func (t *truth) ordered(h *host, have *hostTruth, o order) {
	t.orders++
	if o.Token == nil {
		return
	}
	parts := strings.SplitN(*o.Token, ".", 3)
	if len(parts) != 3 {
		t.f.rec.broken(checkFence, "%s has an order with the token %q", h.name, *o.Token)
		return
	}
	epoch, _ := strconv.ParseUint(parts[0], 10, 64)
	term, _ := strconv.ParseUint(parts[1], 10, 64)
	switch {
	case epoch > have.epoch || epoch == have.epoch && term > have.term:
		have.epoch, have.term, have.since = epoch, term, o.At
	case (epoch < have.epoch || term < have.term) && o.At > have.since+late:
		t.f.rec.broken(checkFence, "%s carried out %s of VM %s with token %s, %d ms after it had obeyed term %d", h.name, o.Op, o.VMID, *o.Token, o.At-have.since, have.term)
	}
	have.lastVM = o.VMID
	if o.Op != "patch" || o.Name == "" || strings.HasPrefix(o.Name, "warm-") {
		return
	}
	if before := t.named[o.VMID]; before != "" && before != o.Name {
		t.f.rec.broken(checkClaim, "%s was ordered to hand VM %s to %s, and before to %s", h.name, o.VMID, o.Name, before)
	}
	t.named[o.VMID] = o.Name
}

// newest is the newest leadership that a host obeyed, and a VM that it has.
func (t *truth) newest(h *host) (epoch, term uint64, vm string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	have := t.hosts[h.name]
	if have == nil {
		return 0, 0, ""
	}
	machines, err := t.f.machines(context.Background(), h)
	if err != nil || len(machines) == 0 {
		return 0, 0, ""
	}
	return have.epoch, have.term, machines[0].ID
}

// machines are the VMs that a host has.
func (f *fleet) machines(ctx context.Context, h *host) (all []api.Machine, err error) {
	for cursor := ""; ; {
		a := f.call.once(ctx, h.target(), request{token: operatorToken, method: "GET", path: "/v1/vms?limit=500&cursor=" + cursor, timeout: 3 * time.Second})
		if a.what != done {
			return nil, fmt.Errorf("asking %s for its VMs: %d %w", h.name, a.status, a.err)
		}
		var page api.List[api.Machine]
		if err := a.read(&page); err != nil {
			return nil, fmt.Errorf("reading the VMs of %s: %w", h.name, err)
		}
		all = append(all, page.Items...)
		if page.NextCursor == nil {
			return all, nil
		}
		cursor = *page.NextCursor
	}
}

// twice looks for VMs that run on two hosts at once.
func (t *truth) twice(ctx context.Context) {
	on := map[string]*host{}
	for _, h := range t.f.hosts {
		machines, err := t.f.machines(ctx, h)
		if err != nil {
			continue
		}
		for _, m := range machines {
			other := on[m.ID]
			if on[m.ID] = h; other != nil && t.has(ctx, other, m.ID) && t.has(ctx, h, m.ID) && t.has(ctx, other, m.ID) {
				t.f.rec.broken(checkTwice, "VM %s (%s) is on %s and on %s", m.ID, m.Name, other.name, h.name)
			}
		}
	}
}

func (t *truth) has(ctx context.Context, h *host, id string) bool {
	return t.f.call.once(ctx, h.target(), request{token: operatorToken, method: "GET", path: "/v1/vms/" + id, timeout: 3 * time.Second}).what == done
}
