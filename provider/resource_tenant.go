package provider

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure      = (*tenantResource)(nil)
	_ resource.ResourceWithImportState    = (*tenantResource)(nil)
	_ resource.ResourceWithIdentity       = (*tenantResource)(nil)
	_ resource.ResourceWithValidateConfig = (*tenantResource)(nil)
)

func newTenantResource() resource.Resource { return &tenantResource{} }

type tenantResource struct{ client *client.Client }

type tenantModel struct {
	ID                types.String   `tfsdk:"id"`
	Name              types.String   `tfsdk:"name"`
	Quota             *quotaModel    `tfsdk:"quota"`
	DefaultTTLSeconds types.Int64    `tfsdk:"default_ttl_seconds"`
	MaxTTLSeconds     types.Int64    `tfsdk:"max_ttl_seconds"`
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

// tenantFields are where a refusal may point.
var tenantFields = [...]string{"name", "default_ttl_seconds", "max_ttl_seconds", "quota.max_vms", "quota.max_vcpus", "quota.max_memory_mib",
	"quota.max_macos_guests", "quota.max_leases", "quota.max_pools"}

func (r *tenantResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_tenant"
}

func (r *tenantResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = nameIdentity()
}

func (r *tenantResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	limit := func(text string) schema.Int64Attribute {
		return schema.Int64Attribute{Optional: true, MarkdownDescription: text, Validators: []validator.Int64{int64validator.AtLeast(0)}}
	}
	ttl := func(text string) schema.Int64Attribute {
		return schema.Int64Attribute{Optional: true, MarkdownDescription: text, Validators: []validator.Int64{int64validator.Between(1, api.MaxTTLSeconds)}}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "One who owns VMs, pools and leases, and how much of them. Only an operator may make tenants. " +
			"A tenant can be removed once it owns nothing; its keys go with it.",
		Attributes: map[string]schema.Attribute{
			"id": fixedByFleet("The name, but known only once the tenant exists. Give it to what is read while planning, such as the ephemeral " +
				"`fluxvm_tenant_key`, so that it waits for the tenant."),
			"name": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "1-40 characters of a-z, 0-9 and -. Another name makes a new tenant.",
				Validators:          []validator.String{tenantNameRule()},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
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
			"created_at":          fixedByFleet("When it was made."),
			"timeouts":            timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

func (r *tenantResource) ValidateConfig(ctx context.Context, req resource.ValidateConfigRequest, resp *resource.ValidateConfigResponse) {
	var usual, most types.Int64
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("default_ttl_seconds"), &usual)...)
	resp.Diagnostics.Append(req.Config.GetAttribute(ctx, path.Root("max_ttl_seconds"), &most)...)
	known := !usual.IsNull() && !usual.IsUnknown() && !most.IsNull() && !most.IsUnknown()
	if known && usual.ValueInt64() > most.ValueInt64() {
		resp.Diagnostics.AddAttributeError(path.Root("default_ttl_seconds"), "This value is not allowed",
			fmt.Sprintf("default_ttl_seconds must not be above max_ttl_seconds (%d).", most.ValueInt64()))
	}
}

func (r *tenantResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (r *tenantResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughWithIdentity(ctx, path.Root("name"), path.Root("name"), req, resp)
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
	m.CreatedAt = timeOrNull(t.CreatedAt)
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

func (r *tenantResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m tenantModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tenant, err := r.client.CreateTenant(ctx, api.TenantRequest{
		Name: m.Name.ValueString(), Quota: m.Quota.limits(),
		DefaultTTLSeconds: m.DefaultTTLSeconds.ValueInt64Pointer(), MaxTTLSeconds: m.MaxTTLSeconds.ValueInt64Pointer(),
	}, uuid.NewString())
	if isTaken(err) {
		addTaken(&resp.Diagnostics, "fluxvm_tenant", m.Name.ValueString(), err)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Creating the tenant failed", err, tenantFields[:]...)
		return
	}
	m.take(tenant)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
}

func (r *tenantResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m tenantModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	tenant, err := r.client.Tenant(ctx, m.Name.ValueString())
	if client.IsNotFound(err) {
		addGone(&resp.Diagnostics, fmt.Sprintf("Tenant %q", m.Name.ValueString()), "The fleet has no such tenant; it was removed outside of this configuration.")
		resp.State.RemoveResource(ctx)
		keepIdentity(ctx, resp, "name", m.Name)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Reading the tenant failed", err)
		return
	}
	m.take(tenant)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
}

func (r *tenantResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state tenantModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := plan.Timeouts.Update(ctx, updateTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if patch := tenantPatch(plan, state); patch != (api.TenantPatch{}) {
		tenant, err := r.client.PatchTenant(ctx, state.Name.ValueString(), patch)
		if err != nil {
			addError(&resp.Diagnostics, "Changing the tenant failed", err, tenantFields[:]...)
			return
		}
		plan.take(tenant)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), plan.Name)...)
}

// tenantPatch holds only what differs; null takes a limit off.
func tenantPatch(plan, state tenantModel) api.TenantPatch {
	now, was := plan.Quota.limits(), state.Quota.limits()
	return api.TenantPatch{
		Quota: api.QuotaPatch{
			MaxVMs: limitPatch(now.MaxVMs, was.MaxVMs), MaxVCPUs: limitPatch(now.MaxVCPUs, was.MaxVCPUs), MaxMemoryMiB: limitPatch(now.MaxMemoryMiB, was.MaxMemoryMiB),
			MaxMacOSGuests: limitPatch(now.MaxMacOSGuests, was.MaxMacOSGuests), MaxLeases: limitPatch(now.MaxLeases, was.MaxLeases), MaxPools: limitPatch(now.MaxPools, was.MaxPools),
		},
		DefaultTTLSeconds: limitPatch(plan.DefaultTTLSeconds.ValueInt64Pointer(), state.DefaultTTLSeconds.ValueInt64Pointer()),
		MaxTTLSeconds:     limitPatch(plan.MaxTTLSeconds.ValueInt64Pointer(), state.MaxTTLSeconds.ValueInt64Pointer()),
	}
}

func limitPatch(now, was *int64) api.Optional[int64] {
	switch {
	case now == nil && was == nil, now != nil && was != nil && *now == *was:
		return api.Optional[int64]{}
	case now == nil:
		return api.Null[int64]()
	}
	return api.Some(*now)
}

func (r *tenantResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m tenantModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var refused error
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		err := r.client.DeleteTenant(ctx, m.Name.ValueString())
		if !errors.Is(err, &api.Error{Code: api.CodeConflict}) {
			return err == nil || client.IsNotFound(err), errUnlessGone(err)
		}
		refused = err
		leaving, failed := r.leaving(ctx, m.Name.ValueString())
		if failed == nil && !leaving {
			failed = refused
		}
		return false, failed
	})
	if refused != nil && outOfTime(ctx, err) {
		err = refused
	}
	if err != nil {
		addError(&resp.Diagnostics, "Removing the tenant failed", err)
	}
}

func errUnlessGone(err error) error {
	if client.IsNotFound(err) {
		return nil
	}
	return err
}

// leaving says whether all that a tenant still holds is on its way out, so that waiting helps: spares of a pool that was
// deleted, a lease whose hosts are being scrubbed.
func (r *tenantResource) leaving(ctx context.Context, name string) (bool, error) {
	usage, err := r.client.TenantUsage(ctx, name)
	if err != nil || usage.Used.Pools > 0 {
		return client.IsNotFound(err), errUnlessGone(err)
	}
	for vm, err := range r.client.VMs(ctx, client.Filter{Tenant: name}) {
		if err != nil || !ended(vm.State) {
			return false, err
		}
	}
	for lease, err := range r.client.Leases(ctx, client.Filter{Tenant: name}) {
		if err != nil || lease.State == api.LeasePending || lease.State == api.LeaseActive || lease.State == api.LeaseScrubFailed {
			return false, err
		}
	}
	return true, nil
}
