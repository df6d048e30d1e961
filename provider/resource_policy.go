package provider

import (
	"context"
	"time"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure   = (*policyResource)(nil)
	_ resource.ResourceWithImportState = (*policyResource)(nil)
	_ resource.ResourceWithIdentity    = (*policyResource)(nil)
)

// policyID is the id of the only policy there is.
const policyID = "policy"

func newPolicyResource() resource.Resource { return &policyResource{} }

type policyResource struct{ client *client.Client }

type policyModel struct {
	ID                    types.String   `tfsdk:"id"`
	AllowSharedPoolClaims types.Bool     `tfsdk:"allow_shared_pool_claims"`
	RequireLeaseForMacOS  types.Bool     `tfsdk:"require_lease_for_macos"`
	IsolateTenantNetworks types.Bool     `tfsdk:"isolate_tenant_networks"`
	MinLeaseHours         types.Int64    `tfsdk:"min_lease_hours"`
	MaxBootsPerNode       types.Int64    `tfsdk:"max_boots_per_node"`
	Timeouts              timeouts.Value `tfsdk:"timeouts"`
}

// policyFields are where a refusal may point.
var policyFields = [...]string{"allow_shared_pool_claims", "require_lease_for_macos", "isolate_tenant_networks", "min_lease_hours", "max_boots_per_node"}

func (r *policyResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_policy"
}

func (r *policyResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"id": identityschema.StringAttribute{RequiredForImport: true, Description: "Always `" + policyID + "`."},
	}}
}

func (r *policyResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	usual := api.DefaultPolicy()
	flag := func(text string, byDefault bool) schema.BoolAttribute {
		return schema.BoolAttribute{Optional: true, Computed: true, MarkdownDescription: text, Default: booldefault.StaticBool(byDefault)}
	}
	number := func(text string, byDefault, least, most int64) schema.Int64Attribute {
		return schema.Int64Attribute{Optional: true, Computed: true, MarkdownDescription: text, Default: int64default.StaticInt64(byDefault),
			Validators: []validator.Int64{int64validator.Between(least, most)}}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "What the operator allows. A fleet has one policy, so declare it once; to create it is to set it, and to destroy it puts the defaults back. " +
			"What is left out has its default.",
		Attributes: map[string]schema.Attribute{
			"id":                       fixedByFleet("Always `" + policyID + "`."),
			"allow_shared_pool_claims": flag("Whether tenants see shared pools and take VMs from them (false). Turn it on only among tenants that trust each other.", usual.AllowSharedPoolClaims),
			"require_lease_for_macos":  flag("Whether a tenant's macOS guests run only on Macs that it leases (true).", usual.RequireLeaseForMacOS),
			"isolate_tenant_networks":  flag("Whether tenants are kept off each other's networks, and so off shared pools (false).", usual.IsolateTenantNetworks),
			"min_lease_hours":          number("Minimum term of leases of hosts that can run macOS, in hours (24). It holds for leases made later; 0 is no minimum.", usual.MinLeaseHours, 0, 24*366),
			"max_boots_per_node":       number("How many spares one host starts at a time (4).", int64(usual.MaxBootsPerNode), 1, 1000),
			"timeouts":                 timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

func (r *policyResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (r *policyResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughWithIdentity(ctx, path.Root("id"), path.Root("id"), req, resp)
	var given types.String
	resp.Diagnostics.Append(resp.State.GetAttribute(ctx, path.Root("id"), &given)...)
	if !resp.Diagnostics.HasError() && given.ValueString() != policyID {
		resp.Diagnostics.AddError("There is one policy", "Import it by the id "+policyID+".")
	}
}

// take fills the model from the API's policy.
func (m *policyModel) take(p api.Policy) {
	m.ID = types.StringValue(policyID)
	m.AllowSharedPoolClaims, m.RequireLeaseForMacOS = types.BoolValue(p.AllowSharedPoolClaims), types.BoolValue(p.RequireLeaseForMacOS)
	m.IsolateTenantNetworks = types.BoolValue(p.IsolateTenantNetworks)
	m.MinLeaseHours, m.MaxBootsPerNode = types.Int64Value(p.MinLeaseHours), types.Int64Value(int64(p.MaxBootsPerNode))
}

// set changes what differs from the policy as it stands.
func (r *policyResource) set(ctx context.Context, m *policyModel, limit time.Duration, diags *diag.Diagnostics) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	policy, err := r.client.Policy(ctx)
	if err != nil {
		addError(diags, "Reading the policy failed", err)
		return
	}
	if patch := policyPatch(*m, policy); patch != (api.PolicyPatch{}) {
		if policy, err = r.client.PatchPolicy(ctx, patch); err != nil {
			addError(diags, "Setting the policy failed", err, policyFields[:]...)
			return
		}
	}
	m.take(policy)
}

func policyPatch(m policyModel, have api.Policy) (p api.PolicyPatch) {
	setIf(&p.AllowSharedPoolClaims, m.AllowSharedPoolClaims.ValueBool(), have.AllowSharedPoolClaims)
	setIf(&p.RequireLeaseForMacOS, m.RequireLeaseForMacOS.ValueBool(), have.RequireLeaseForMacOS)
	setIf(&p.IsolateTenantNetworks, m.IsolateTenantNetworks.ValueBool(), have.IsolateTenantNetworks)
	setIf(&p.MinLeaseHours, m.MinLeaseHours.ValueInt64(), have.MinLeaseHours)
	setIf(&p.MaxBootsPerNode, int(m.MaxBootsPerNode.ValueInt64()), have.MaxBootsPerNode)
	return p
}

// setIf sets a field of a patch that differs.
func setIf[V comparable](field *api.Optional[V], want, have V) {
	if want != have {
		*field = api.Some(want)
	}
}

func (r *policyResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m policyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	if r.set(ctx, &m, limit, &resp.Diagnostics); resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
}

func (r *policyResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m policyModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	policy, err := r.client.Policy(ctx)
	if err != nil {
		addError(&resp.Diagnostics, "Reading the policy failed", err)
		return
	}
	m.take(policy)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
}

func (r *policyResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var m policyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Update(ctx, updateTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	if r.set(ctx, &m, limit, &resp.Diagnostics); resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
}

// Delete puts the defaults back.
func (r *policyResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m policyModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_, err := r.client.PatchPolicy(ctx, api.PolicyPatch{
		AllowSharedPoolClaims: api.Null[bool](), RequireLeaseForMacOS: api.Null[bool](), IsolateTenantNetworks: api.Null[bool](),
		MinLeaseHours: api.Null[int64](), MaxBootsPerNode: api.Null[int](),
	})
	if err != nil {
		addError(&resp.Diagnostics, "Putting the policy's defaults back failed", err)
	}
}
