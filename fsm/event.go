package fsm

import (
	"math"
	"sync"
)

// Kinds of events.
const (
	EventVM      = "vm"
	EventPool    = "pool"
	EventNode    = "node"
	EventCluster = "cluster"
	EventLease   = "lease"
	EventTenant  = "tenant"
)

// Actions of events.
const (
	ActionCreated = "created"
	ActionChanged = "changed"
	ActionDeleted = "deleted"
)

// Event is one change that shows. Row is an immutable *VM, *Pool or *Node as it was after the change (before it,
// for a deletion). Index and N order events and are the same on every replica.
type Event struct {
	Index  uint64
	N      int
	Kind   string
	Action string
	Tenant string // who may see it beside the operator; empty: only the operator
	Row    any
}

// ringSize is how many events a replica remembers.
const ringSize = 8192

// Ring remembers the newest events. Apply writes it; streams read it and wait on Changed.
type Ring struct {
	mu      sync.Mutex
	events  []Event // in order; at most ringSize
	floor   uint64  // every event after the floorN-th of this index is here
	floorN  int
	changed chan struct{}
}

func newRing() *Ring { return &Ring{floorN: -1, changed: make(chan struct{})} }

func (r *Ring) add(events []Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
	if over := len(r.events) - ringSize; over > ringSize/4 { // cut now and then, not every time
		r.floor, r.floorN = r.events[over-1].Index, r.events[over-1].N
		r.events = append([]Event(nil), r.events[over:]...)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// reset forgets everything up to the index: what led to it is not known event by event.
func (r *Ring) reset(index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events, r.floor, r.floorN = nil, index, math.MaxInt
	close(r.changed)
	r.changed = make(chan struct{})
}

// After gives up to limit events after the n-th of the index, and a channel that is closed when more come. For what
// comes after the whole index n is math.MaxInt.
// ok is false when some of them are forgotten: the reader has to list anew.
func (r *Ring) After(index uint64, n, limit int) (events []Event, more <-chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if index < r.floor || index == r.floor && n < r.floorN {
		return nil, nil, false
	}
	lo, hi := 0, len(r.events)
	for lo < hi {
		mid := (lo + hi) / 2
		if e := r.events[mid]; e.Index > index || e.Index == index && e.N > n {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	out := r.events[lo:min(lo+limit, len(r.events))]
	return append([]Event(nil), out...), r.changed, true
}
