package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// FromNow asks Events for what happens from now on.
const FromNow = "now"

// streamSilence is how long a stream may say nothing, not even a comment, before another replica is asked.
const streamSilence = 60 * time.Second

// Event is one change. ID resumes a stream after it; Kind is vm, pool, node, lease, tenant or cluster.
type Event struct {
	ID   string
	Kind string
	api.Event
}

// Events follows the fleet's changes after the event with the id from; empty is all that the fleet still holds,
// FromNow what comes. The stream goes on over replicas: every event comes at least once, in order. It ends with
// an error: the context's, or a refusal such as CodeCursorGone (then list anew and follow FromNow).
func (c *Client) Events(ctx context.Context, from string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		waits, cursor := newBackoff(), from
		for at := c.caller.current.Load(); ; at++ {
			endpoint := c.caller.endpoints[at%int64(len(c.caller.endpoints))]
			stopped, err := c.caller.follow(ctx, endpoint, &cursor, func(e Event) bool {
				waits.Reset()
				return yield(e, nil)
			})
			if stopped {
				return
			}
			if ctx.Err() != nil {
				yield(Event{}, context.Cause(ctx))
				return
			}
			var refused *api.Error
			if errors.As(err, &refused) && !refused.Code.Temporary() && refused.Code != api.CodeOutcomeUnknown {
				yield(Event{}, refused)
				return
			}
			if sleep(ctx, waits.NextBackOff()) != nil {
				yield(Event{}, context.Cause(ctx))
				return
			}
		}
	}
}

// follow reads one stream until it breaks; stopped says that the reader wants no more. It moves cursor along.
func (c *caller) follow(ctx context.Context, endpoint string, cursor *string, emit func(Event) bool) (stopped bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(streamSilence, cancel)
	defer silence.Stop()
	r := call{method: http.MethodGet, path: "/fleet/events"}
	if *cursor == FromNow {
		r.query = url.Values{"from": {FromNow}}
	} else {
		r.lastEventID = *cursor
	}
	resp, _, err := c.send(ctx, endpoint, r, nil, "text/event-stream")
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // a broken refusal is judged by its status
		return false, problem(resp, raw)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxAnswer)
	var id, kind string
	var data strings.Builder
	for lines.Scan() {
		silence.Reset(streamSilence)
		line := lines.Text()
		if line == "" {
			if data.Len() > 0 {
				e := Event{ID: id, Kind: kind}
				if err := json.Unmarshal([]byte(data.String()), &e.Event); err != nil {
					return false, fmt.Errorf("reading event %s: %w", id, err)
				}
				if !emit(e) {
					return true, nil
				}
			}
			if id != "" {
				*cursor = id
			}
			kind = ""
			data.Reset()
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			if data.Len() > 0 {
				data.WriteByte('\n')
			}
			data.WriteString(value)
		}
	}
	return false, lines.Err()
}
