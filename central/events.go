package central

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	eventsPath    = "/fleet/events"
	catchUp       = 5 * time.Second // how far behind the others a replica may be that is asked to go on with a stream
	eventsPerRead = 256
	keepAlive     = 4 * time.Second // also how long a stream outlives the revocation of its key
)

// streamEvents answers GET /fleet/events with what changed, from any replica: event ids are the same everywhere.
func (q *request) streamEvents() error {
	index, n, err := q.startOfStream()
	if err == nil {
		err = q.reached(index)
	}
	if err != nil {
		return err
	}
	flush := http.NewResponseController(q.w)
	started := false
	timer := time.NewTicker(keepAlive)
	defer timer.Stop()
	for {
		events, more, ok := q.r.state.Events().After(index, n, eventsPerRead)
		if !ok {
			if started {
				return nil // the next try is told
			}
			return api.Errorf(api.CodeCursorGone, "events after %d.%d are no longer known here; list what you need and go on with from=now", index, n)
		}
		if !started {
			started = true
			q.w.Header().Set("Content-Type", "text/event-stream")
			q.w.Header().Set("Cache-Control", "no-store")
			q.index(q.r.state.View())
			q.w.WriteHeader(http.StatusOK)
			_, _ = fmt.Fprint(q.w, ": open\n\n")
		}
		for _, e := range events {
			index, n = e.Index, e.N
			if !q.caller.sees(e.Tenant) {
				continue
			}
			if err := q.writeEvent(e); err != nil {
				return nil // the reader has gone
			}
		}
		if err := flush.Flush(); err != nil {
			return nil
		}
		if len(events) == eventsPerRead {
			continue
		}
		select {
		case <-more:
		case <-timer.C:
			if !q.stillGood() {
				return nil
			}
			_, _ = fmt.Fprint(q.w, ": still here\n\n")
		case <-q.Context().Done():
			return nil
		case <-q.r.closing:
			return nil
		}
	}
}

// startOfStream reads where the stream is to go on: after Last-Event-ID, else from now on.
func (q *request) startOfStream() (index uint64, n int, err error) {
	now := func() (uint64, int, error) { return q.r.state.View().Index(), math.MaxInt, nil }
	id := q.Header.Get("Last-Event-ID")
	switch from := q.URL.Query().Get("from"); {
	case id != "":
	case from == "" || from == "now":
		return now()
	default:
		id = from
	}
	left, right, ok := strings.Cut(id, ".")
	index, err = strconv.ParseUint(left, 10, 64)
	if ok && err == nil {
		n, err = strconv.Atoi(right)
	}
	if !ok || err != nil || n < 0 {
		return 0, 0, api.Invalid("from", "from and Last-Event-ID must be the id of an event, such as 120.0, or now")
	}
	return index, n, nil
}

// reached waits until this replica has come to where a stream is to go on; the others may be ahead of it.
func (q *request) reached(index uint64) error {
	ctx, cancel := context.WithTimeout(q.Context(), catchUp)
	defer cancel()
	for view := q.r.state.View(); view.Index() < index; view = q.r.state.View() {
		select {
		case <-view.Watch(""):
		case <-view.Abandoned():
		case <-q.r.closing:
			return api.Errorf(api.CodeUnavailable, "this replica is ending; ask another one")
		case <-ctx.Done():
			return api.Errorf(api.CodeCursorGone, "event %d has not happened here; list what you need and go on with from=now", index)
		}
	}
	return nil
}

func (q *request) writeEvent(e fsm.Event) error {
	var object any
	switch row := e.Row.(type) {
	case *fsm.VM:
		object = wireVM(row)
	case *fsm.Pool:
		object = wirePool(q.r.state.View(), row, false)
	case *fsm.Lease:
		object = wireLease(q.r.state.View(), row)
	case *fsm.Tenant:
		object = wireTenant(row)
	case *fsm.Node:
		object = q.showNode(q.r.state.View())(row)
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return err
	}
	data, err := json.Marshal(api.Event{Action: e.Action, Object: raw})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(q.w, "id: %d.%d\nevent: %s\ndata: %s\n\n", e.Index, e.N, e.Kind, data)
	return err
}
