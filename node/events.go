package node

import (
	"strconv"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const maxEvents = 4096

// events are the latest things that happened on the host. Ids rise, also over restarts of the daemon.
type events struct {
	mu   sync.Mutex
	next uint64
	ring []api.Activity // oldest first
}

func newEvents() *events { return &events{next: uint64(time.Now().UnixMilli()) * 1000} }

func (e *events) add(at api.Time, actor, action, target, outcome string, detail map[string]any) {
	if detail == nil {
		detail = map[string]any{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	e.ring = append(e.ring, api.Activity{ID: strconv.FormatUint(e.next, 10), At: at, Actor: actor, Action: action, Target: target, Outcome: outcome, Detail: detail})
	if len(e.ring) > maxEvents {
		e.ring = append(e.ring[:0:0], e.ring[maxEvents/4:]...)
	}
}

// after gives at most limit events with ids above since, and whether there are more.
func (e *events) after(since uint64, limit int) (page []api.Activity, more bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.ring {
		if id, _ := strconv.ParseUint(e.ring[i].ID, 10, 64); id > since {
			page = append(page, e.ring[i:min(len(e.ring), i+limit)]...)
			return page, i+limit < len(e.ring)
		}
	}
	return nil, false
}
