package client

import (
	"context"
	"iter"
	"net/http"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	tenantsPath      = "/fleet/tenants"
	operatorKeysPath = "/fleet/operator-keys"
	policyPath       = "/fleet/policy"
	pricesPath       = "/fleet/prices"
)

// Tenants lists those the token may see.
func (c *Client) Tenants(ctx context.Context) iter.Seq2[api.Tenant, error] {
	return pages[api.Tenant](ctx, c.caller, tenantsPath, nil)
}

// Tenant finds one by name.
func (c *Client) Tenant(ctx context.Context, name string) (api.Tenant, error) {
	return get[api.Tenant](ctx, c.caller, at(tenantsPath, name))
}

// CreateTenant adds one. An empty key is a random one.
func (c *Client) CreateTenant(ctx context.Context, req api.TenantRequest, key string) (api.Tenant, error) {
	return post[api.Tenant](ctx, c.caller, tenantsPath, key, req)
}

// PatchTenant changes limits and policy; only the fields that are set are sent.
func (c *Client) PatchTenant(ctx context.Context, name string, p api.TenantPatch) (api.Tenant, error) {
	return patch[api.Tenant](ctx, c.caller, at(tenantsPath, name), p)
}

// DeleteTenant removes one that owns nothing any more.
func (c *Client) DeleteTenant(ctx context.Context, name string) error {
	return remove(ctx, c.caller, at(tenantsPath, name))
}

// TenantUsage shows what a tenant holds now beside its quota.
func (c *Client) TenantUsage(ctx context.Context, name string) (api.TenantUsage, error) {
	return get[api.TenantUsage](ctx, c.caller, at(tenantsPath, name, "usage"))
}

// TenantKeys lists a tenant's keys, without their secrets.
func (c *Client) TenantKeys(ctx context.Context, tenant string) iter.Seq2[api.Key, error] {
	return pages[api.Key](ctx, c.caller, at(tenantsPath, tenant, "keys"), nil)
}

// CreateTenantKey makes a key with role tenant or viewer. Its secret is shown only in this answer, since the fleet keeps
// none: a repeat under the idempotency key that made it is refused with api.CodeConflict (409). When the answer was lost,
// revoke that key and make one under another idempotency key. An empty idempotency key is a random one.
func (c *Client) CreateTenantKey(ctx context.Context, tenant string, req api.KeyRequest, key string) (api.Key, error) {
	return post[api.Key](ctx, c.caller, at(tenantsPath, tenant, "keys"), key, req)
}

// RevokeTenantKey ends a key at once.
func (c *Client) RevokeTenantKey(ctx context.Context, tenant, id string) error {
	return remove(ctx, c.caller, at(at(tenantsPath, tenant, "keys"), id))
}

// OperatorKeys lists the operator's keys, without their secrets.
func (c *Client) OperatorKeys(ctx context.Context) iter.Seq2[api.Key, error] {
	return pages[api.Key](ctx, c.caller, operatorKeysPath, nil)
}

// CreateOperatorKey makes a key with role operator or viewer; its secret is as that of CreateTenantKey.
func (c *Client) CreateOperatorKey(ctx context.Context, req api.KeyRequest, key string) (api.Key, error) {
	return post[api.Key](ctx, c.caller, operatorKeysPath, key, req)
}

// RevokeOperatorKey ends a key at once.
func (c *Client) RevokeOperatorKey(ctx context.Context, id string) error {
	return remove(ctx, c.caller, at(operatorKeysPath, id))
}

// Policy shows what the operator allows.
func (c *Client) Policy(ctx context.Context) (api.Policy, error) {
	return get[api.Policy](ctx, c.caller, policyPath)
}

// PatchPolicy changes it; only the fields that are set are sent, and null puts a field back to its default.
func (c *Client) PatchPolicy(ctx context.Context, p api.PolicyPatch) (api.Policy, error) {
	return patch[api.Policy](ctx, c.caller, policyPath, p)
}

// Prices shows what stretches that begin now are charged.
func (c *Client) Prices(ctx context.Context) (api.Prices, error) {
	return get[api.Prices](ctx, c.caller, pricesPath)
}

// PutPrices replaces all prices; a nil list is an empty one. Stretches that are open keep the rate they began with.
func (c *Client) PutPrices(ctx context.Context, p api.Prices) (api.Prices, error) {
	p.Version = 0 // the server's to say
	p.VM, p.Lease, p.Pool = append([]api.VMPrice{}, p.VM...), append([]api.LeasePrice{}, p.Lease...), append([]api.VMPrice{}, p.Pool...)
	var raw []byte
	if _, err := c.caller.do(ctx, call{method: http.MethodPut, path: pricesPath, body: p, out: &raw}); err != nil {
		return api.Prices{}, err
	}
	if len(raw) == 0 {
		return c.Prices(ctx)
	}
	return decoded[api.Prices](pricesPath, raw)
}
