package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const leasesPath = "/fleet/leases"

// Leases lists them; of the filter Tenant, Node and State apply.
func (c *Client) Leases(ctx context.Context, f Filter) iter.Seq2[api.Lease, error] {
	return pages[api.Lease](ctx, c.caller, leasesPath, c.filterQuery(f))
}

// Lease finds one by id.
func (c *Client) Lease(ctx context.Context, id string) (api.Lease, error) {
	return get[api.Lease](ctx, c.caller, at(leasesPath, id))
}

// CreateLease gives hosts to a tenant. The lease is active at once, or pending when Drain was asked for and others'
// VMs are still there. An empty key is a random one.
func (c *Client) CreateLease(ctx context.Context, req api.LeaseRequest, key string) (api.Lease, error) {
	if req.Tenant == "" {
		req.Tenant = c.tenant
	}
	return post[api.Lease](ctx, c.caller, leasesPath, key, req)
}

// PatchLease extends a lease, or turns its renewal on or off.
func (c *Client) PatchLease(ctx context.Context, id string, p api.LeasePatch) (api.Lease, error) {
	return patch[api.Lease](ctx, c.caller, at(leasesPath, id), p)
}

// EndLease asks a lease to end. It gives the lease as it now stands, nil once it is over: a lease ends no earlier
// than its EarliestEnd, and its hosts are free only when they are scrubbed.
func (c *Client) EndLease(ctx context.Context, id string) (*api.Lease, error) {
	var raw []byte
	path := at(leasesPath, id)
	if _, err := c.caller.do(ctx, call{method: http.MethodDelete, path: path, out: &raw}); err != nil || len(raw) == 0 {
		return nil, err
	}
	lease, err := decoded[api.Lease](path, raw)
	if err != nil {
		return nil, err
	}
	return &lease, nil
}

// decoded reads an answer that may have had no body.
func decoded[T any](path string, raw []byte) (out T, err error) {
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, fmt.Errorf("%s: the answer is not what FluxVM answers; check the address: %w", path, err)
	}
	return out, nil
}

// ScrubOptions say how a failed scrub goes on. The zero value tries it again.
type ScrubOptions struct {
	Override bool   `json:"override,omitempty"` // take the host as clean without a scrub
	Reason   string `json:"reason,omitempty"`   // why that is safe
}

// ScrubNode goes on with a host whose scrub after a lease has failed, and gives the host.
func (c *Client) ScrubNode(ctx context.Context, name string, opts ScrubOptions) (api.Node, error) {
	return post[api.Node](ctx, c.caller, at("/fleet/nodes", name, "scrub"), "", opts)
}
