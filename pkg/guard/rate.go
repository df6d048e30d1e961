package guard

import (
	"sync"
	"time"
)

// mostRemembered bounds how many keys a Rate knows at once. One that was not heard for long is as good as new.
const mostRemembered = 8192

// Rate lets each key do so much in a burst, and so much a second from then on. Make it with NewRate.
type Rate struct {
	perSecond, burst float64
	now              func() time.Time

	mu   sync.Mutex
	keys map[string]bucket
}

// bucket is what is left of a key's burst, as of a time.
type bucket struct {
	left float64
	at   time.Time
}

// NewRate makes a Rate. now is the clock, with its monotonic part.
func NewRate(perSecond, burst float64, now func() time.Time) *Rate {
	return &Rate{perSecond: perSecond, burst: burst, now: now, keys: map[string]bucket{}}
}

// Take says whether the key may go on, and if not after how long.
func (r *Rate) Take(key string) (ok bool, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	b, known := r.keys[key]
	if !known {
		r.makeRoom(now)
		b = bucket{r.burst, now}
	}
	b.left, b.at = r.refilled(b, now), now
	if ok = b.left >= 1; ok {
		b.left--
	} else {
		wait = time.Duration((1 - b.left) / r.perSecond * float64(time.Second))
	}
	r.keys[key] = b
	return ok, wait
}

func (r *Rate) refilled(b bucket, now time.Time) float64 {
	return min(r.burst, b.left+now.Sub(b.at).Seconds()*r.perSecond)
}

// makeRoom forgets keys whose burst is whole again, and all if none is: then there are too many to tell apart.
func (r *Rate) makeRoom(now time.Time) {
	if len(r.keys) < mostRemembered {
		return
	}
	for key, b := range r.keys {
		if r.refilled(b, now) >= r.burst {
			delete(r.keys, key)
		}
	}
	if len(r.keys) >= mostRemembered {
		clear(r.keys)
	}
}

// Slots bound how much is under way at once, for each key and for all.
type Slots struct {
	each, all int

	mu    sync.Mutex
	total int
	keys  map[string]int
}

// NewSlots makes Slots for so many of each key and of all.
func NewSlots(each, all int) *Slots { return &Slots{each: each, all: all, keys: map[string]int{}} }

// Enter takes a slot, which leave gives back; ok is false where there is none.
func (s *Slots) Enter(key string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.total >= s.all || s.keys[key] >= s.each {
		return nil, false
	}
	s.total++
	s.keys[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		if s.keys[key]--; s.keys[key] == 0 {
			delete(s.keys, key)
		}
	}, true
}
