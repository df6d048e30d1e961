package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// outcome is what one try tells of a request.
type outcome int

const (
	done       outcome = iota // it was carried out
	refused                   // decided, and nothing changed
	notApplied                // it never got that far
	unknown                   // it may have been carried out, or may yet be
)

// target is where a request goes: a replica as started the latest time, or a host.
type target struct {
	name, url string
	run       string // name and start
}

// answer is what came of one try.
type answer struct {
	what   outcome
	status int
	code   api.Code
	header http.Header
	body   []byte
	err    error
	index  uint64 // of the state that it shows; 0: none said
}

// request is one request of a client. It is sent once: histories are about tries.
type request struct {
	token, method, path, key string
	body                     any
	timeout                  time.Duration
}

// caller sends requests.
type caller struct {
	http *http.Client
	rec  *record
}

func newCaller(rec *record) *caller {
	return &caller{rec: rec, http: &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: time.Second}).DialContext, MaxIdleConnsPerHost: 16, IdleConnTimeout: 5 * time.Second}}}
}

const maxAnswer = 32 << 20

// once sends the request and waits for an answer.
func (c *caller) once(ctx context.Context, to target, q request) (a answer) {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	var body io.Reader
	if q.body != nil {
		raw, err := json.Marshal(q.body)
		if err != nil {
			return answer{what: refused, err: err}
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, to.url+q.path, body)
	if err != nil {
		return answer{what: refused, err: err}
	}
	req.Header.Set("Authorization", "Bearer "+q.token)
	req.Header.Set("Content-Type", "application/json")
	if q.key != "" {
		req.Header.Set(api.HeaderIdempotencyKey, q.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return answer{what: notApplied, err: err}
		}
		return answer{what: unknown, err: err}
	}
	defer resp.Body.Close()
	a = answer{status: resp.StatusCode, header: resp.Header, what: done}
	if a.body, a.err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); a.err != nil {
		a.what = unknown
		return a
	}
	a.index, _ = strconv.ParseUint(resp.Header.Get(api.HeaderIndex), 10, 64) // not every answer has one
	if resp.StatusCode >= 300 {
		a.refusal(c.rec, to, q)
	}
	return a
}

// refusal reads what kind of no it is.
func (a *answer) refusal(rec *record, to target, q request) {
	var e api.Error
	if json.Unmarshal(a.body, &e) != nil || !e.Code.Known() {
		rec.broken(checkAnswer, "%s %s at %s was answered with %d and no problem of the closed list: %.200s", q.method, q.path, to.run, a.status, a.body)
		a.what = unknown
		return
	}
	a.code, a.err = e.Code, &e
	switch {
	case e.Code == api.CodeInternal:
		rec.broken(checkAnswer, "%s %s at %s failed inside the server: %s", q.method, q.path, to.run, e.Detail)
		a.what = unknown
	case e.Code == api.CodeOutcomeUnknown, e.Outcome == api.OutcomeUnknown:
		a.what = unknown
	case e.Code == api.CodeNotLeader, e.Code == api.CodeUnavailable, e.Code == api.CodeStorageFull, e.Code == api.CodeRateLimited:
		a.what = notApplied
	default:
		a.what = refused
	}
}

// read takes the answer's body apart.
func (a *answer) read(into any) error { return json.Unmarshal(a.body, into) }

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
