package provider

import (
	"context"
	"encoding/json"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral"
	"github.com/hashicorp/terraform-plugin-framework/ephemeral/schema"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ ephemeral.EphemeralResourceWithConfigure = (*tenantKeyEphemeral)(nil)
	_ ephemeral.EphemeralResourceWithClose     = (*tenantKeyEphemeral)(nil)
)

// ephemeralKeyLife bounds the life of a key that a run did not come to revoke.
const ephemeralKeyLife = "1d"

func newTenantKeyEphemeral() ephemeral.EphemeralResource { return &tenantKeyEphemeral{} }

type tenantKeyEphemeral struct{ client *client.Client }

type tenantKeyEphemeralModel struct {
	Tenant    types.String `tfsdk:"tenant"`
	Role      types.String `tfsdk:"role"`
	ExpiresIn types.String `tfsdk:"expires_in"`
	ID        types.String `tfsdk:"id"`
	Secret    types.String `tfsdk:"secret"`
	ExpiresAt types.String `tfsdk:"expires_at"`
}

// openKey is what Close needs to know; none of it is secret.
type openKey struct {
	Tenant string `json:"tenant"`
	ID     string `json:"id"`
}

const openKeyName = "key"

func (e *tenantKeyEphemeral) Metadata(_ context.Context, _ ephemeral.MetadataRequest, resp *ephemeral.MetadataResponse) {
	resp.TypeName = "fluxvm_tenant_key"
}

func (e *tenantKeyEphemeral) Schema(_ context.Context, _ ephemeral.SchemaRequest, resp *ephemeral.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "An API key of a tenant for this run alone: each plan and each apply makes one, and revokes it when it ends. Its secret is in no state and no plan. " +
			"Give it to a provider block, to a write-only argument or to another ephemeral resource.",
		Attributes: map[string]schema.Attribute{
			"tenant": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "Whose key it is. Write `fluxvm_tenant.LABEL.id` for a tenant that the same apply makes.",
				Validators:          []validator.String{tenantNameRule()},
			},
			"role": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "`tenant` (default) or `viewer`, which may only read.",
				Validators:          []validator.String{stringvalidator.OneOf(api.RoleTenant, api.RoleViewer)},
			},
			"expires_in": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "When it expires even if the run is killed and cannot revoke it (`" + ephemeralKeyLife + "`). Give more than the run takes.",
				Validators:          []validator.String{durationRule()},
			},
			"id":         schema.StringAttribute{Computed: true, MarkdownDescription: "The key's id, which is no secret."},
			"secret":     schema.StringAttribute{Computed: true, Sensitive: true, MarkdownDescription: "The secret: what `token` of the provider takes."},
			"expires_at": schema.StringAttribute{Computed: true, MarkdownDescription: "When it expires."},
		},
	}
}

func (e *tenantKeyEphemeral) Configure(_ context.Context, req ephemeral.ConfigureRequest, resp *ephemeral.ConfigureResponse) {
	e.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (e *tenantKeyEphemeral) Open(ctx context.Context, req ephemeral.OpenRequest, resp *ephemeral.OpenResponse) {
	var m tenantKeyEphemeralModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	if m.Role.IsNull() {
		m.Role = types.StringValue(api.RoleTenant)
	}
	if m.ExpiresIn.IsNull() {
		m.ExpiresIn = types.StringValue(ephemeralKeyLife)
	}
	key, err := makeKey(ctx, op{e.client, &resp.Diagnostics}, m.Tenant.ValueString(), m.Role.ValueString(), m.ExpiresIn)
	if client.IsNotFound(err) {
		resp.Diagnostics.AddAttributeError(path.Root("tenant"), "Making the key failed",
			explain(err)+"\nFor a tenant that this configuration makes write fluxvm_tenant.LABEL.id: a name is known before there is such a tenant.")
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Making the key failed", err, "tenant", "role", "expires_in")
		return
	}
	m.ID, m.Secret, m.ExpiresAt = types.StringValue(key.ID), types.StringValue(key.Secret), timeOrNull(key.ExpiresAt)
	open, err := json.Marshal(openKey{m.Tenant.ValueString(), key.ID})
	if err != nil {
		addError(&resp.Diagnostics, "Keeping the key's id failed", err)
	}
	resp.Diagnostics.Append(resp.Private.SetKey(ctx, openKeyName, open)...)
	resp.Diagnostics.Append(resp.Result.Set(ctx, m)...)
}

func (e *tenantKeyEphemeral) Close(ctx context.Context, req ephemeral.CloseRequest, resp *ephemeral.CloseResponse) {
	raw, diags := req.Private.GetKey(ctx, openKeyName)
	resp.Diagnostics.Append(diags...)
	var open openKey
	if resp.Diagnostics.HasError() || len(raw) == 0 {
		return
	}
	if err := json.Unmarshal(raw, &open); err != nil {
		addError(&resp.Diagnostics, "Reading which key to revoke failed", err)
		return
	}
	if err := e.client.RevokeTenantKey(ctx, open.Tenant, open.ID); errUnlessGone(err) != nil {
		addError(&resp.Diagnostics, "Revoking the key "+open.ID+" failed", err)
	}
}
