package chaos

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	writeEvery   = 20 * time.Millisecond
	writeTimeout = 700 * time.Millisecond
	gapLimit     = 90 * time.Second
)

// writes tries a small write all the time, at one replica after the other, so that one can tell for how long none works.
type writes struct {
	f *fleet

	mu      sync.Mutex
	invoked time.Time     // of the latest that worked
	back    time.Time     // and its answer
	changed chan struct{} // closed at the next
}

func newWrites(f *fleet) *writes { return &writes{f: f, changed: make(chan struct{})} }

func (w *writes) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		members := w.f.members()
		at := time.Now()
		a := w.f.call.once(ctx, members[n%len(members)].target(), request{token: operatorToken, method: http.MethodPatch, path: "/fleet/tenants/gap",
			body: map[string]any{"default_ttl_seconds": 60 + n%1000}, timeout: writeTimeout})
		if a.what == done {
			w.mu.Lock()
			w.invoked, w.back = at, time.Now()
			close(w.changed)
			w.changed = make(chan struct{})
			w.mu.Unlock()
		}
		pause(ctx, writeEvery)
	}
}

// after is how long after at the first write was answered that began after it.
func (w *writes) after(ctx context.Context, at time.Time) (time.Duration, bool) {
	limit := time.NewTimer(gapLimit)
	defer limit.Stop()
	for {
		w.mu.Lock()
		invoked, back, changed := w.invoked, w.back, w.changed
		w.mu.Unlock()
		if invoked.After(at) {
			return back.Sub(at), true
		}
		select {
		case <-changed:
		case <-limit.C:
			w.f.rec.broken(checkRecovery, "no write worked for %s", gapLimit)
			return 0, false
		case <-ctx.Done():
			return 0, false
		}
	}
}
