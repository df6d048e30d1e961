package central

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	orderTimeout = 4 * time.Second  // an order that a node carries out at once
	endTimeout   = 10 * time.Second // the end of a VM, which the node answers once it is gone
	answerCap    = 16 << 20         // an exec's two streams of 1 MiB grow when they are written as JSON
)

// nodeCaller speaks to the daemons of nodes: no redirects, bounded answers, a deadline on everything.
type nodeCaller struct {
	client *http.Client
	lanes  *lanes
}

func newNodeCaller(transport http.RoundTripper, wall func() time.Time) *nodeCaller {
	return &nodeCaller{&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, newLanes(wall)}
}

func (c *nodeCaller) close() { c.client.CloseIdleConnections() }

// notSent is a failure that is known to have had no effect: nothing reached the node.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// errNoRoute is an answer in words that no daemon of ours uses: it is too old to know the route.
var errNoRoute = errors.New("the node's daemon is too old for it")

// call sends one request to a node and decodes a 2xx answer into out. An answer of the node is an *api.Error;
// notSent says that nothing reached it; of any other error the outcome is unknown.
func (c *nodeCaller) call(ctx context.Context, url, credential, method, path, token string, body, out any) error {
	leave, err := c.lanes.enter(ctx, url, method, path)
	if err != nil {
		return err
	}
	err = c.send(ctx, url, credential, method, path, token, body, out)
	leave(err)
	return err
}

func (c *nodeCaller) send(ctx context.Context, url, credential, method, path, token string, body, out any) error {
	var reader io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return notSent{fmt.Errorf("encoding an order: %w", err)}
		}
		reader = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url+path, reader)
	if err != nil {
		return notSent{fmt.Errorf("making an order: %w", err)}
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(api.HeaderDefer, "0")
	if token != "" {
		req.Header.Set(api.HeaderFencing, token)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			return notSent{err}
		}
		return err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerCap))
	if err != nil {
		return fmt.Errorf("reading the node's answer: %w", err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		if heard, ok := out.(interface{ hear(http.Header) }); ok {
			heard.hear(resp.Header)
		}
		if out == nil || len(raw) == 0 {
			return nil
		}
		if err := json.Unmarshal(raw, out); err != nil {
			return fmt.Errorf("the node's answer cannot be read: %w", err)
		}
		return nil
	}
	var problem api.Error
	if json.Unmarshal(raw, &problem) == nil && problem.Code.Known() {
		return &problem
	}
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed || resp.StatusCode == http.StatusNotImplemented {
		return fmt.Errorf("%w: %s %s", errNoRoute, method, path)
	}
	return fmt.Errorf("the node answered %s without a code", resp.Status)
}

// text fetches a plain-text answer.
func (c *nodeCaller) text(ctx context.Context, url, credential, path string) ([]byte, error) {
	leave, err := c.lanes.enter(ctx, url, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	raw, err := c.fetch(ctx, url, credential, path)
	leave(err)
	return raw, err
}

func (c *nodeCaller) fetch(ctx context.Context, url, credential, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking a node: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerCap))
	if err != nil {
		return nil, err
	}
	var problem api.Error
	if resp.StatusCode != http.StatusOK {
		if json.Unmarshal(raw, &problem) == nil && problem.Code.Known() {
			return nil, &problem
		}
		return nil, fmt.Errorf("the node answered %s without a code", resp.Status)
	}
	return raw, nil
}
