package client

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Client speaks to the fleet API.
type Client struct {
	caller *caller
	tenant string
}

// New makes a client. It sends nothing yet.
func New(cfg Config) (*Client, error) {
	c, err := newCaller(cfg, DefaultFleetURL)
	if err != nil {
		return nil, err
	}
	return &Client{caller: c, tenant: cfg.Tenant}, nil
}

// Endpoints are the base URLs that the client tries.
func (c *Client) Endpoints() []string { return slices.Clone(c.caller.endpoints) }

// Filter narrows a list. The zero value lists everything the token may see.
type Filter struct {
	Tenant   string            // empty: the client's tenant, if it acts for one
	Node     string            // on this node
	Pool     string            // of this pool
	State    string            // in this state
	Labels   map[string]string // carrying all of these
	PageSize int               // items asked for at a time; 0: the server's choice
	Stale    bool              // any replica may answer from what it has
}

func (c *Client) filterQuery(f Filter) url.Values {
	q := url.Values{}
	if f.Tenant == "" {
		f.Tenant = c.tenant
	}
	for k, v := range map[string]string{"tenant": f.Tenant, "node": f.Node, "pool": f.Pool, "state": f.State} {
		if v != "" {
			q.Set(k, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(f.Labels)) {
		q.Add("label", k+"="+f.Labels[k])
	}
	if f.PageSize > 0 {
		q.Set("limit", strconv.Itoa(f.PageSize))
	}
	if f.Stale {
		q.Set("stale", "true")
	}
	return q
}

// pages reads a list page by page; the error, if any, comes last.
func pages[T any](ctx context.Context, c *caller, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		q := maps.Clone(query)
		if q == nil {
			q = url.Values{}
		}
		for {
			var page api.List[T]
			if _, err := c.do(ctx, call{method: http.MethodGet, path: path, query: q, out: &page}); err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.NextCursor == nil || *page.NextCursor == "" {
				return
			}
			q.Set("cursor", *page.NextCursor)
		}
	}
}

// All collects a list, or gives its error.
func All[T any](items iter.Seq2[T, error]) ([]T, error) {
	out := []T{}
	for item, err := range items {
		if err != nil {
			return nil, err
		}
		out = append(out, item)
	}
	return out, nil
}

func get[T any](ctx context.Context, c *caller, path string) (T, error) {
	var out T
	_, err := c.do(ctx, call{method: http.MethodGet, path: path, out: &out})
	return out, err
}

func patch[T any](ctx context.Context, c *caller, path string, body any) (T, error) {
	var out T
	_, err := c.do(ctx, call{method: http.MethodPatch, path: path, body: body, out: &out})
	return out, err
}

// post sends under a key, empty for a random one.
func post[T any](ctx context.Context, c *caller, path, key string, body any) (T, error) {
	var out T
	_, err := c.do(ctx, call{method: http.MethodPost, path: path, body: body, key: newKey(key), out: &out})
	return out, err
}

func remove(ctx context.Context, c *caller, path string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: path})
	return err
}

// at makes a path from a prefix and a name that must stay one segment.
func at(prefix, name string, rest ...string) string {
	out := prefix + "/" + url.PathEscape(name)
	if name == "." || name == ".." || name == "" {
		out = prefix + "/%00" // no such name can be; the server answers 404 rather than another route
	}
	for _, r := range rest {
		out += "/" + r
	}
	return out
}

// readyHold is how long an answer that waits for a guest may take.
const readyHold = 10 * time.Minute

// LaunchOptions change how Launch asks, not what for.
type LaunchOptions struct {
	Key       string // idempotency key; empty: a random one
	WaitReady bool   // the answer waits until the guest agent speaks
}

// Launch starts a VM, warm from a pool when one matches. Replayed says that the answer is that of an earlier
// launch with the same key.
func (c *Client) Launch(ctx context.Context, req api.LaunchRequest, opts LaunchOptions) (answer api.LaunchAnswer, replayed bool, err error) {
	r := call{method: http.MethodPost, path: "/fleet/vms", body: c.launchBody(req), key: newKey(opts.Key), out: &answer}
	if opts.WaitReady {
		r.query = url.Values{"wait": {"ready"}}
	}
	if opts.WaitReady || len(req.Claim.SecretNames()) > 0 { // secrets are answered for once the guest has them
		r.hold = readyHold
	}
	if room := time.Duration(req.WaitForCapacitySecs) * time.Second; room > 0 {
		r.hold, r.patient = r.hold+room, true
	}
	header, err := c.caller.do(ctx, r)
	return answer, header.Get(api.HeaderReplayed) == "true", err
}

// DryRun says where a launch would go, and why not elsewhere. It changes nothing.
func (c *Client) DryRun(ctx context.Context, req api.LaunchRequest) (api.DryRunAnswer, error) {
	var out api.DryRunAnswer
	_, err := c.caller.do(ctx, call{method: http.MethodPost, path: "/fleet/vms", query: url.Values{"dry_run": {"true"}},
		body: c.launchBody(req), key: newKey(""), out: &out})
	return out, err
}

func (c *Client) launchBody(req api.LaunchRequest) api.LaunchRequest {
	if req.Tenant == "" {
		req.Tenant = c.tenant
	}
	return req
}

// VMs lists virtual machines.
func (c *Client) VMs(ctx context.Context, f Filter) iter.Seq2[api.VM, error] {
	return pages[api.VM](ctx, c.caller, "/fleet/vms", c.filterQuery(f))
}

// VM finds one by id or name.
func (c *Client) VM(ctx context.Context, id string) (api.VM, error) {
	return get[api.VM](ctx, c.caller, at("/fleet/vms", id))
}

// PatchVM changes name, labels or time to live.
func (c *Client) PatchVM(ctx context.Context, id string, p api.VMPatch) (api.VM, error) {
	return patch[api.VM](ctx, c.caller, at("/fleet/vms", id), p)
}

// DeleteVM ends a VM. Use the id where another VM could take the name.
func (c *Client) DeleteVM(ctx context.Context, id string) error {
	return remove(ctx, c.caller, at("/fleet/vms", id))
}

// Exec runs a command in the guest. It is never run twice: all tries carry one key, by which the VM's node knows a
// repeat and answers it as the first.
func (c *Client) Exec(ctx context.Context, id string, req api.ExecRequest) (api.ExecAnswer, error) {
	return runExec(ctx, c.caller, at("/fleet/vms", id, "exec"), req, newKey(""))
}

func runExec(ctx context.Context, c *caller, path string, req api.ExecRequest, key string) (api.ExecAnswer, error) {
	var out api.ExecAnswer
	secs := req.TimeoutSecs
	if secs == 0 {
		secs = 60
	}
	_, err := c.do(ctx, call{method: http.MethodPost, path: path, body: req, key: key, once: key == "", hold: time.Duration(secs) * time.Second, out: &out})
	return out, err
}

// VMConsole gives what the guest wrote to its serial console.
func (c *Client) VMConsole(ctx context.Context, id string) ([]byte, error) {
	return get[[]byte](ctx, c.caller, at("/fleet/vms", id, "console"))
}

// Pools lists warm pools; of the filter Tenant applies.
func (c *Client) Pools(ctx context.Context, f Filter) iter.Seq2[api.Pool, error] {
	return pages[api.Pool](ctx, c.caller, "/fleet/pools", c.filterQuery(f))
}

// Pool finds one by name, with its status and spares.
func (c *Client) Pool(ctx context.Context, name string) (api.Pool, error) {
	return get[api.Pool](ctx, c.caller, at("/fleet/pools", name))
}

// PoolStatus gives a pool's counts.
func (c *Client) PoolStatus(ctx context.Context, name string) (api.PoolStatus, error) {
	return get[api.PoolStatus](ctx, c.caller, at("/fleet/pools", name, "status"))
}

// CreatePool makes a pool. An empty key is a random one.
func (c *Client) CreatePool(ctx context.Context, req api.PoolRequest, key string) (api.Pool, error) {
	if req.Tenant == "" {
		req.Tenant = c.tenant
	}
	return post[api.Pool](ctx, c.caller, "/fleet/pools", key, req)
}

// PatchPool changes what a pool keeps and where.
func (c *Client) PatchPool(ctx context.Context, name string, p api.PoolPatch) (api.Pool, error) {
	return patch[api.Pool](ctx, c.caller, at("/fleet/pools", name), p)
}

// RollPool moves a pool to another image, a few spares at a time.
func (c *Client) RollPool(ctx context.Context, name string, req api.RollRequest) (api.Pool, error) {
	return post[api.Pool](ctx, c.caller, at("/fleet/pools", name, "roll"), "", req)
}

// DeletePool removes a pool and its spares; VMs taken from it keep running.
func (c *Client) DeletePool(ctx context.Context, name string) error {
	return remove(ctx, c.caller, at("/fleet/pools", name))
}
