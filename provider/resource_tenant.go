package provider

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

type tenantModel struct {
	ID                types.String   `tfsdk:"id"`
	Name              types.String   `tfsdk:"name"`
	Quota             *quotaModel    `tfsdk:"quota"`
	DefaultTTLSeconds types.Int64    `tfsdk:"default_ttl_seconds"`
	MaxTTLSeconds     types.Int64    `tfsdk:"max_ttl_seconds"`
	Policy            *ownPolicy     `tfsdk:"policy"`
	CreatedAt         types.String   `tfsdk:"created_at"`
	Timeouts          timeouts.Value `tfsdk:"timeouts"`
}

// quotaModel keeps null, no limit, apart from 0, none at all.
type quotaModel struct {
	MaxVMs         types.Int64 `tfsdk:"max_vms"`
	MaxVCPUs       types.Int64 `tfsdk:"max_vcpus"`
	MaxMemoryMiB   types.Int64 `tfsdk:"max_memory_mib"`
	MaxMacOSGuests types.Int64 `tfsdk:"max_macos_guests"`
	MaxLeases      types.Int64 `tfsdk:"max_leases"`
	MaxPools       types.Int64 `tfsdk:"max_pools"`
}

// ownPolicy holds null where the fleet's policy holds.
type ownPolicy struct {
	AllowSharedPoolClaims types.Bool  `tfsdk:"allow_shared_pool_claims"`
	RequireLeaseForMacOS  types.Bool  `tfsdk:"require_lease_for_macos"`
	IsolateTenantNetworks types.Bool  `tfsdk:"isolate_tenant_networks"`
	MinLeaseHours         types.Int64 `tfsdk:"min_lease_hours"`
}

func newTenantResource() resource.Resource {
	return &managed[tenantModel, api.Tenant]{kind: kind[tenantModel, api.Tenant]{
		noun: "tenant", identity: []string{"name"}, schema: tenantSchema, validate: checkTenantTTLs, take: (*tenantModel).take,
		create: func(ctx context.Context, o op, m, _ *tenantModel) (api.Tenant, error) {
			return o.CreateTenant(ctx, api.TenantRequest{
				Name: m.Name.ValueString(), Quota: m.Quota.limits(), Policy: m.Policy.settings(),
				DefaultTTLSeconds: m.DefaultTTLSeconds.ValueInt64Pointer(), MaxTTLSeconds: m.MaxTTLSeconds.ValueInt64Pointer(),
			}, uuid.NewString())
		},
		read: func(ctx context.Context, o op, m *tenantModel) (api.Tenant, error) {
			return o.Tenant(ctx, m.Name.ValueString())
		},
		update: func(ctx context.Context, o op, plan, state *tenantModel) (*api.Tenant, error) {
			return send(tenantPatch(plan, state), func(p api.TenantPatch) (api.Tenant, error) { return o.PatchTenant(ctx, state.Name.ValueString(), p) })
		},
		remove: removeTenant,
	}}
}

func tenantSchema(ctx context.Context) schema.Schema {
	limit := func(text string) schema.Int64Attribute { return bounded(text, int64validator.AtLeast(0)) }
	ttl := func(text string) schema.Int64Attribute {
		return bounded(text, int64validator.Between(1, api.MaxTTLSeconds))
	}
	flag := func(text string) schema.BoolAttribute {
		return schema.BoolAttribute{Optional: true, MarkdownDescription: text}
	}
	return schema.Schema{
		MarkdownDescription: "One who owns VMs, pools and leases, and how much of them. Only an operator may make tenants. " +
			"A tenant can be removed once it owns nothing; its keys go with it.",
		Attributes: map[string]schema.Attribute{
			"id": fixedByFleet("The name, but known only once the tenant exists. Give it to what is read while planning, such as the ephemeral " +
				"`fluxvm_tenant_key`, so that it waits for the tenant."),
			"name": fixedText("1-40 characters of a-z, 0-9 and -. Another name makes a new tenant.", tenantNameRule()),
			"quota": schema.SingleNestedAttribute{
				Optional: true,
				MarkdownDescription: "How much it may hold at once. A limit that is left out or null is no limit; 0 is none at all. " +
					"A limit below what the tenant has takes nothing away and only refuses more.",
				Attributes: map[string]schema.Attribute{
					"max_vms":          limit("VMs, the spares of its pools with them."),
					"max_vcpus":        limit("vCPUs of its VMs together."),
					"max_memory_mib":   limit("Memory of its VMs together, in MiB."),
					"max_macos_guests": limit("VMs with macOS."),
					"max_leases":       limit("Leases."),
					"max_pools":        limit("Warm pools."),
				},
			},
			"default_ttl_seconds": ttl("Time to live of VMs that are launched without one. Left out, they have no limit or `max_ttl_seconds`."),
			"max_ttl_seconds":     ttl("The longest time to live that a VM may have. Left out, there is no limit."),
			"policy": schema.SingleNestedAttribute{
				Optional: true,
				MarkdownDescription: "Where its policy differs from the fleet's (see `fluxvm_policy`). What is left out or null is as in the fleet, whatever that becomes. " +
					"What runs already stays.",
				Attributes: map[string]schema.Attribute{
					"allow_shared_pool_claims": flag("Whether it may take VMs from shared pools."),
					"require_lease_for_macos":  flag("Whether its macOS guests run only on hosts that it leases."),
					"isolate_tenant_networks":  flag("Whether it is kept off others' networks, and so off shared pools."),
					"min_lease_hours":          bounded("Minimum term, in hours, of its later leases of hosts that can run macOS guests.", int64validator.Between(0, 24*366)),
				},
			},
			"created_at": fixedByFleet("When it was made."),
			"timeouts":   allTimeouts(ctx),
		},
	}
}

func checkTenantTTLs(ctx context.Context, config tfsdk.Config, diags *diag.Diagnostics) {
	var usual, most types.Int64
	diags.Append(config.GetAttribute(ctx, path.Root("default_ttl_seconds"), &usual)...)
	diags.Append(config.GetAttribute(ctx, path.Root("max_ttl_seconds"), &most)...)
	known := !usual.IsNull() && !usual.IsUnknown() && !most.IsNull() && !most.IsUnknown()
	if known && usual.ValueInt64() > most.ValueInt64() {
		diags.AddAttributeError(path.Root("default_ttl_seconds"), "This value is not allowed",
			fmt.Sprintf("default_ttl_seconds must not be above max_ttl_seconds (%d).", most.ValueInt64()))
	}
}

// take fills the model from the API's tenant. The API does not tell a quota without limits from none, so that stays as
// it was written.
func (m *tenantModel) take(t api.Tenant) {
	m.ID, m.Name = types.StringValue(t.Name), types.StringValue(t.Name)
	if q := t.Quota; m.Quota != nil || q != (api.Quota{}) {
		m.Quota = &quotaModel{
			MaxVMs: types.Int64PointerValue(q.MaxVMs), MaxVCPUs: types.Int64PointerValue(q.MaxVCPUs), MaxMemoryMiB: types.Int64PointerValue(q.MaxMemoryMiB),
			MaxMacOSGuests: types.Int64PointerValue(q.MaxMacOSGuests), MaxLeases: types.Int64PointerValue(q.MaxLeases), MaxPools: types.Int64PointerValue(q.MaxPools),
		}
	}
	m.DefaultTTLSeconds, m.MaxTTLSeconds = types.Int64PointerValue(t.DefaultTTLSeconds), types.Int64PointerValue(t.MaxTTLSeconds)
	if p := t.Policy; m.Policy != nil || p != (api.TenantPolicy{}) {
		m.Policy = &ownPolicy{AllowSharedPoolClaims: types.BoolPointerValue(p.AllowSharedPoolClaims), RequireLeaseForMacOS: types.BoolPointerValue(p.RequireLeaseForMacOS),
			IsolateTenantNetworks: types.BoolPointerValue(p.IsolateTenantNetworks), MinLeaseHours: types.Int64PointerValue(p.MinLeaseHours)}
	}
	m.CreatedAt = timeOrNull(t.CreatedAt)
}

// settings gives the policy as the API takes it; without one it is the fleet's.
func (p *ownPolicy) settings() api.TenantPolicy {
	if p == nil {
		return api.TenantPolicy{}
	}
	return api.TenantPolicy{AllowSharedPoolClaims: p.AllowSharedPoolClaims.ValueBoolPointer(), RequireLeaseForMacOS: p.RequireLeaseForMacOS.ValueBoolPointer(),
		IsolateTenantNetworks: p.IsolateTenantNetworks.ValueBoolPointer(), MinLeaseHours: p.MinLeaseHours.ValueInt64Pointer()}
}

// limits gives the quota as the API takes it; without one there are no limits.
func (q *quotaModel) limits() api.Quota {
	if q == nil {
		return api.Quota{}
	}
	return api.Quota{
		MaxVMs: q.MaxVMs.ValueInt64Pointer(), MaxVCPUs: q.MaxVCPUs.ValueInt64Pointer(), MaxMemoryMiB: q.MaxMemoryMiB.ValueInt64Pointer(),
		MaxMacOSGuests: q.MaxMacOSGuests.ValueInt64Pointer(), MaxLeases: q.MaxLeases.ValueInt64Pointer(), MaxPools: q.MaxPools.ValueInt64Pointer(),
	}
}

// tenantPatch holds only what differs; null takes a limit off, or makes a setting the fleet's.
func tenantPatch(plan, state *tenantModel) (p api.TenantPatch) {
	now, was := plan.Quota, state.Quota
	if now == nil {
		now = &quotaModel{}
	}
	if was == nil {
		was = &quotaModel{}
	}
	patchInt(&p.Quota.MaxVMs, now.MaxVMs, was.MaxVMs)
	patchInt(&p.Quota.MaxVCPUs, now.MaxVCPUs, was.MaxVCPUs)
	patchInt(&p.Quota.MaxMemoryMiB, now.MaxMemoryMiB, was.MaxMemoryMiB)
	patchInt(&p.Quota.MaxMacOSGuests, now.MaxMacOSGuests, was.MaxMacOSGuests)
	patchInt(&p.Quota.MaxLeases, now.MaxLeases, was.MaxLeases)
	patchInt(&p.Quota.MaxPools, now.MaxPools, was.MaxPools)
	patchInt(&p.DefaultTTLSeconds, plan.DefaultTTLSeconds, state.DefaultTTLSeconds)
	patchInt(&p.MaxTTLSeconds, plan.MaxTTLSeconds, state.MaxTTLSeconds)
	is, old := plan.Policy, state.Policy
	if is == nil {
		is = &ownPolicy{}
	}
	if old == nil {
		old = &ownPolicy{}
	}
	patchBool(&p.Policy.AllowSharedPoolClaims, is.AllowSharedPoolClaims, old.AllowSharedPoolClaims)
	patchBool(&p.Policy.RequireLeaseForMacOS, is.RequireLeaseForMacOS, old.RequireLeaseForMacOS)
	patchBool(&p.Policy.IsolateTenantNetworks, is.IsolateTenantNetworks, old.IsolateTenantNetworks)
	patchInt(&p.Policy.MinLeaseHours, is.MinLeaseHours, old.MinLeaseHours)
	return p
}

// removeTenant waits while what the tenant still holds is on its way out.
func removeTenant(ctx context.Context, o op, m *tenantModel) error {
	var refused error
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		err := o.DeleteTenant(ctx, m.Name.ValueString())
		if !hasCode(err, api.CodeConflict) {
			return err == nil || client.IsNotFound(err), errUnlessGone(err)
		}
		refused = err
		leaving, failed := leaving(ctx, o.Client, m.Name.ValueString())
		if failed == nil && !leaving {
			failed = refused
		}
		return false, failed
	})
	if refused != nil && outOfTime(ctx, err) {
		return refused
	}
	return err
}

// leaving says whether all that a tenant still holds is on its way out, so that waiting helps: spares of a pool that was
// deleted, a lease whose hosts are being scrubbed.
func leaving(ctx context.Context, c *client.Client, name string) (bool, error) {
	usage, err := c.TenantUsage(ctx, name)
	if err != nil || usage.Used.Pools > 0 {
		return client.IsNotFound(err), errUnlessGone(err)
	}
	for vm, err := range c.VMs(ctx, client.Filter{Tenant: name}) {
		if err != nil || !ended(vm.State) {
			return false, err
		}
	}
	for lease, err := range c.Leases(ctx, client.Filter{Tenant: name}) {
		if err != nil || lease.State == api.LeasePending || lease.State == api.LeaseActive || lease.State == api.LeaseScrubFailed {
			return false, err
		}
	}
	return true, nil
}
