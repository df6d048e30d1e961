package central

import (
	"context"
	"sync"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// turns lets launches of one key through one at a time. A launch that others were faster than is proposed again, and a
// refusal is remembered nowhere: between the two proposals a repeat would be told no, and then the first gets a VM.
type turns struct {
	mu   sync.Mutex
	held map[launchKey]chan struct{} // closed when the turn is over
}

// take waits until no other request under the key is worked on. The caller gives the turn back.
func (t *turns) take(ctx context.Context, k launchKey) (giveBack func(), err error) {
	for {
		t.mu.Lock()
		other, taken := t.held[k]
		if !taken {
			if t.held == nil {
				t.held = map[launchKey]chan struct{}{}
			}
			mine := make(chan struct{})
			t.held[k] = mine
			t.mu.Unlock()
			return func() {
				t.mu.Lock()
				delete(t.held, k)
				t.mu.Unlock()
				close(mine)
			}, nil
		}
		t.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, api.Errorf(api.CodeOutcomeUnknown, "another request under the same Idempotency-Key is still worked on; repeat it with that key to learn its outcome")
		}
	}
}

// taken says whether a request under the key is worked on.
func (t *turns) taken(k launchKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, taken := t.held[k]
	return taken
}
