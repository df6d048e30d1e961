package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const ledgerPath = "/fleet/ledger"

// maxPage is the most items that a list gives at a time.
const maxPage = "500"

// LedgerFilter narrows the ledger. The zero value lists every row that the token may see.
type LedgerFilter struct {
	Tenant  string   // empty: the client's tenant, if it acts for one
	Kind    string   // api.LedgerVM, LedgerLease, LedgerPool or LedgerAdjustment
	VMID    string   // of this VM
	LeaseID string   // of this lease
	From    api.Time // rows that run at or after it; 0: from the beginning
	To      api.Time // rows that began before it; 0: up to now
}

// Ledger lists billed stretches in the order of their ids.
func (c *Client) Ledger(ctx context.Context, f LedgerFilter) iter.Seq2[api.LedgerRow, error] {
	if f.Tenant == "" {
		f.Tenant = c.tenant
	}
	q := given("tenant", f.Tenant, "kind", f.Kind, "vm_id", f.VMID, "lease_id", f.LeaseID, "from", f.From.String(), "to", f.To.String(), "limit", maxPage)
	return pages[api.LedgerRow](ctx, c.caller, ledgerPath, q)
}

// Adjust gives or takes money with a reason. An empty key is a random one.
func (c *Client) Adjust(ctx context.Context, req api.AdjustmentRequest, key string) (api.LedgerRow, error) {
	return post[api.LedgerRow](ctx, c.caller, ledgerPath, key, req)
}

// UsageQuery says what Usage sums up.
type UsageQuery struct {
	Tenant  string   // empty: the client's tenant, if it acts for one, else all that the token may see
	From    api.Time // 0: from the beginning of this month (UTC)
	To      api.Time // 0: up to now
	GroupBy []string // of tenant, pool and day; empty: by tenant
}

// Usage sums up the stretches of a period.
func (c *Client) Usage(ctx context.Context, u UsageQuery) (api.Usage, error) {
	var out api.Usage
	if u.Tenant == "" {
		u.Tenant = c.tenant
	}
	q := given("tenant", u.Tenant, "from", u.From.String(), "to", u.To.String(), "group_by", strings.Join(u.GroupBy, ","))
	_, err := c.caller.do(ctx, call{method: http.MethodGet, path: "/fleet/usage", query: q, out: &out})
	return out, err
}

// ActivityFilter narrows the activity log. The zero value lists everything that the token may see.
type ActivityFilter struct {
	Tenant string // empty: the client's tenant, if it acts for one
	Actor  string // such as warm-pool, lease or a tenant
	Action string // such as POST /fleet/vms
	Target string // the object's name
}

// Activity lists who did what, with what result, the latest first.
func (c *Client) Activity(ctx context.Context, f ActivityFilter) iter.Seq2[api.Activity, error] {
	if f.Tenant == "" {
		f.Tenant = c.tenant
	}
	return pages[api.Activity](ctx, c.caller, "/fleet/activity", given("tenant", f.Tenant, "actor", f.Actor, "action", f.Action, "target", f.Target))
}

// given makes a query of names and values, without the empty ones.
func given(pairs ...string) url.Values {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	return q
}
