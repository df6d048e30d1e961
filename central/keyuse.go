package central

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	touchPeriod    = time.Minute
	usesPerCommand = 512
	keyUsesPath    = "/peer/key-uses"
)

// keyUses remembers when keys were used on this replica, until the state shows that it was written down. So a use
// that was told and not committed, or committed by another leader, is neither lost nor written twice.
type keyUses struct {
	mu   sync.Mutex
	last map[string]api.Time
}

func (u *keyUses) note(id string, now api.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[string]api.Time{}
	}
	u.last[id] = max(u.last[id], now)
}

// unwritten are the uses that the state does not show yet, in the order of their keys. What it shows is forgotten.
func (u *keyUses) unwritten(view fsm.View, now api.Time) (out []fsm.KeyUse) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, at := range u.last {
		if k := view.Key(id); k == nil || k.LastUsedAt >= min(at, now) {
			delete(u.last, id)
		} else {
			out = append(out, fsm.KeyUse{ID: id, At: min(at, now)})
		}
	}
	slices.SortFunc(out, func(a, b fsm.KeyUse) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// serveKeyUses tells the leader of uses that only this replica saw: stale reads and event streams.
func (r *Replica) serveKeyUses(w http.ResponseWriter, _ *http.Request) {
	uses := []fsm.KeyUse{}
	select {
	case <-r.opened:
		uses = append(uses, r.used.unwritten(r.state.View(), r.clock.now())...)
	default:
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(uses) // the other side notices a cut answer
}

// passKeys writes down when keys were last used, on any replica.
func (g *reign) passKeys(ctx context.Context) error {
	for _, uses := range askPeers[[]fsm.KeyUse](ctx, g.r, keyUsesPath) {
		for _, u := range uses {
			g.r.used.note(u.ID, u.At)
		}
	}
	var failed error
	for part := range slices.Chunk(g.r.used.unwritten(g.view(), g.now()), usesPerCommand) {
		_, err := g.propose(ctx, fsm.KindTouchKeys, actorCentral, nil, fsm.TouchKeys{Keys: part})
		failed = errors.Join(failed, err)
	}
	return failed
}
