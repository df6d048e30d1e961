package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	defaultTimeout = 60 * time.Second
	dialTimeout    = 5 * time.Second
	tryTimeout     = 20 * time.Second // after it a silent replica is given up for the next one
	nobodyTimeout  = 4 * time.Second  // while every endpoint refuses connections, nobody is there to wait for
	maxRetryAfter  = 30 * time.Second
	maxAnswer      = 16 << 20
)

// caller carries requests to whichever endpoint answers.
type caller struct {
	endpoints []string
	token     string
	userAgent string
	timeout   time.Duration
	http      *http.Client
	current   atomic.Int64 // the endpoint that answered last
}

func newCaller(cfg Config, defaultURL string) (*caller, error) {
	c := &caller{token: cfg.Token, userAgent: cfg.UserAgent, timeout: cfg.Timeout}
	if c.timeout < 0 {
		return nil, errors.New("the timeout must not be negative; 0 is 60 s")
	}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.userAgent == "" {
		c.userAgent = "fluxvm-client"
	}
	if strings.ContainsFunc(c.token, func(r rune) bool { return r <= 0x20 || r > 0x7e }) {
		return nil, errors.New("the token has blanks or characters that are not ASCII; copy it again")
	}
	for _, raw := range cfg.Endpoints {
		endpoint, err := checkEndpoint(raw)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(c.endpoints, endpoint) {
			c.endpoints = append(c.endpoints, endpoint)
		}
	}
	if len(c.endpoints) == 0 {
		c.endpoints = []string{defaultURL}
	}
	var err error
	c.http, err = cfg.httpClient(defaultURL == DefaultHostURL)
	return c, err
}

// call is one request and the rules for its tries.
type call struct {
	method  string
	path    string // escaped
	query   url.Values
	body    any           // sent as JSON; nil: no body
	raw     []byte        // sent as it is, in place of body
	key     string        // idempotency key
	once    bool          // never sent again when an earlier try may have been carried out
	hold    time.Duration // how long the server may rightly take beyond the usual
	patient bool          // a replica that stops leading meanwhile is no reason to stop waiting
	out     any           // decoded from JSON; a *[]byte takes the bytes as they are; nil: ignored

	lastEventID string // resumes an event stream
}

// newKey gives the key that all tries of one POST carry.
func newKey(given string) string {
	if given != "" {
		return given
	}
	return uuid.NewString()
}

// outcome is what one try tells about the request.
type outcome int

const (
	final      outcome = iota // an answer that no retry changes
	notApplied                // nothing was changed; any try may follow
	unknown                   // it may have been carried out
)

// do sends the call until an answer is final, it may not be sent again, or time is up. It gives the headers of
// the answer.
func (c *caller) do(ctx context.Context, r call) (http.Header, error) {
	raw := r.raw
	if r.body != nil {
		var err error
		if raw, err = json.Marshal(r.body); err != nil {
			return nil, fmt.Errorf("encoding %s %s: %w", r.method, r.path, err)
		}
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.timeout+r.hold)
	defer cancel()
	waits := newBackoff()
	first := c.current.Load()
	var tried []string
	var wasUnknown bool
	var said *api.Error // by the last replica that answered
	for i := 0; ; i++ {
		at := (first + int64(i)) % int64(len(c.endpoints))
		endpoint := c.endpoints[at]
		if !slices.Contains(tried, endpoint) {
			tried = append(tried, endpoint)
		}
		header, what, err := c.try(ctx, endpoint, r, raw)
		if what == final {
			c.current.Store(at)
			if r.method == http.MethodDelete && wasUnknown && IsNotFound(err) {
				return header, nil // the try whose answer was lost did it
			}
			return header, err
		}
		wasUnknown = wasUnknown || what == unknown && r.method != http.MethodGet
		var refused *api.Error
		if errors.As(err, &refused) {
			said = refused
		}
		failed := func() error {
			if refused != nil && refused.Code == api.CodeOutcomeUnknown {
				return refused
			}
			if said != nil && !wasUnknown {
				return said // that others are silent matters less than what one says
			}
			return &UnreachableError{Request: r.method + " " + r.path, Tried: tried, Unknown: wasUnknown, Key: r.key, Err: err}
		}
		if what == unknown && r.once || isHopeless(err) && len(tried) == len(c.endpoints) ||
			what == notApplied && time.Since(started) > c.timeout && !r.patient || // hold is for an answer that takes long, not for refusals
			said == nil && what == notApplied && len(tried) == len(c.endpoints) && time.Since(started) > nobodyTimeout {
			return header, failed()
		}
		var wait time.Duration
		if roundDone := (i+1)%len(c.endpoints) == 0; roundDone || refused != nil && refused.Code == api.CodeRateLimited {
			wait = waits.NextBackOff()
			if refused != nil {
				wait = max(wait, retryAfter(refused))
			}
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
			return header, failed()
		}
		if err := sleep(ctx, wait); err != nil {
			return header, failed()
		}
	}
}

func newBackoff() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier, b.RandomizationFactor = 100*time.Millisecond, 2*time.Second, 2, 0.3
	b.Reset()
	return b
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// try sends the call once to one endpoint.
func (c *caller) try(ctx context.Context, endpoint string, r call, raw []byte) (http.Header, outcome, error) {
	tryCtx, cancel := context.WithTimeout(ctx, tryTimeout+r.hold)
	defer cancel()
	resp, notSent, err := c.send(tryCtx, endpoint, r, raw, "application/json")
	if err != nil {
		if errors.Is(context.Cause(ctx), context.Canceled) {
			err = fmt.Errorf("%w: %w", context.Canceled, err)
		}
		if notSent {
			return nil, notApplied, err
		}
		return nil, unknown, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return resp.Header, unknown, fmt.Errorf("reading the answer: %w", err)
	}
	if len(answer) > maxAnswer {
		return resp.Header, final, fmt.Errorf("%s %s: the answer has more than %d MiB; ask for less at a time", r.method, r.path, maxAnswer>>20)
	}
	switch {
	case resp.StatusCode >= 400:
		e := problem(resp, answer)
		switch e.Code {
		case api.CodeNotLeader, api.CodeUnavailable, api.CodeRateLimited:
			if e.Outcome == api.OutcomeUnknown {
				return resp.Header, unknown, e
			}
			return resp.Header, notApplied, e
		case api.CodeOutcomeUnknown:
			return resp.Header, unknown, e
		}
		return resp.Header, final, e
	case resp.StatusCode >= 300:
		return resp.Header, final, fmt.Errorf("%s %s: %s sends elsewhere (%s), which is not followed; give the address of FluxVM itself",
			r.method, r.path, endpoint, resp.Status)
	}
	switch out := r.out.(type) {
	case nil:
	case *[]byte:
		*out = answer
	default:
		if err := json.Unmarshal(answer, out); err != nil {
			return resp.Header, final, fmt.Errorf("%s %s: the answer of %s is not what FluxVM answers; check the address: %w", r.method, r.path, endpoint, err)
		}
	}
	return resp.Header, final, nil
}

// send gives the open answer. notSent says that the request certainly never left.
func (c *caller) send(ctx context.Context, endpoint string, r call, raw []byte, accept string) (resp *http.Response, notSent bool, err error) {
	target := endpoint + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	var body io.Reader
	if raw != nil {
		body = bytes.NewReader(raw)
	}
	var wrote, handshakeFailed atomic.Bool // net/http calls these from goroutines of its own
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaders:     func() { wrote.Store(true) },
		TLSHandshakeDone: func(_ tls.ConnectionState, err error) { handshakeFailed.Store(err != nil) },
	})
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, true, fmt.Errorf("making the request: %w", err)
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", c.userAgent)
	switch {
	case r.raw != nil:
		req.Header.Set("Content-Type", "application/octet-stream")
	case raw != nil:
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if r.key != "" {
		req.Header.Set(api.HeaderIdempotencyKey, r.key)
	}
	if r.lastEventID != "" {
		req.Header.Set("Last-Event-ID", r.lastEventID)
	}
	if r.once {
		req.GetBody = nil // net/http itself sends a request with a key again when the connection breaks
	}
	resp, err = c.http.Do(req)
	if err != nil {
		var op *net.OpError
		noConnection := errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") || handshakeFailed.Load()
		notSent = noConnection && !wrote.Load()
		var wrapped *url.Error // its text repeats method and URL
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, notSent, remedied(err)
	}
	return resp, false, nil
}

// isHopeless says that the same endpoint will fail the same way whenever it is tried.
func isHopeless(err error) bool {
	var cert *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	var op *net.OpError
	return errors.As(err, &cert) || errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &op) && op.Op == "remote error" // it refused our certificate
}
