package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure   = (*tenantKeyResource)(nil)
	_ resource.ResourceWithImportState = (*tenantKeyResource)(nil)
	_ resource.ResourceWithIdentity    = (*tenantKeyResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*tenantKeyResource)(nil)
)

func newTenantKeyResource() resource.Resource { return &tenantKeyResource{} }

type tenantKeyResource struct{ client *client.Client }

type tenantKeyModel struct {
	ID          types.String   `tfsdk:"id"`
	Tenant      types.String   `tfsdk:"tenant"`
	Role        types.String   `tfsdk:"role"`
	ExpiresIn   types.String   `tfsdk:"expires_in"`
	StoreSecret types.Bool     `tfsdk:"store_secret"`
	Secret      types.String   `tfsdk:"secret"`
	ExpiresAt   types.String   `tfsdk:"expires_at"`
	CreatedAt   types.String   `tfsdk:"created_at"`
	Timeouts    timeouts.Value `tfsdk:"timeouts"`
}

// keyFields are where a refusal may point.
var keyFields = [...]string{"tenant", "role", "expires_in"}

func (r *tenantKeyResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_tenant_key"
}

func (r *tenantKeyResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"tenant": identityschema.StringAttribute{RequiredForImport: true, Description: "The tenant's name."},
		"id":     identityschema.StringAttribute{RequiredForImport: true, Description: "The key's id."},
	}}
}

func (r *tenantKeyResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "An API key of a tenant. The fleet shows a key's secret once, when it makes the key, and keeps only its hash. " +
			"There are three ways to have it:\n\n" +
			"- For one run, use the ephemeral resource of the same name: the secret is in no state and no plan, and the key is revoked when the run ends.\n" +
			"- For a key that lasts and whose secret must not be in the state, make it with `fluxctl fleet key-create TENANT > FILE` and import it " +
			"here: Terraform then shows when it is gone, and revokes it on destroy.\n" +
			"- With `store_secret = true` the secret is in `secret`, and so in the state. Use a state backend that encrypts and that few can read.\n\n" +
			"A key whose time is up, or that was revoked, is planned anew.",
		Attributes: map[string]schema.Attribute{
			"id": fixedByFleet("The key's id, which is no secret."),
			"tenant": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "Whose key it is. Another tenant makes a new key.",
				Validators:          []validator.String{tenantNameRule()},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"role": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "`tenant` (default) or `viewer`, which may only read. Another role makes a new key.",
				Default:             stringdefault.StaticString(api.RoleTenant),
				Validators:          []validator.String{stringvalidator.OneOf(api.RoleTenant, api.RoleViewer)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"expires_in": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "How long it is good for, such as `12h` or `30d`. Left out, it does not expire. Another length makes a new key.",
				Validators:          []validator.String{durationRule()},
				PlanModifiers:       []planmodifier.String{keepLength{}, stringplanmodifier.RequiresReplace()},
			},
			"store_secret": schema.BoolAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Whether the secret is kept in the state (false). Turning it on makes a new key, as the secret of one that exists is nowhere; turning it off takes the secret out of the state.",
				Default:             booldefault.StaticBool(false),
			},
			"secret": schema.StringAttribute{
				Computed: true, Sensitive: true,
				MarkdownDescription: "The secret, with `store_secret`; otherwise null.",
			},
			"expires_at": fixedByFleet("When it expires."),
			"created_at": fixedByFleet("When it was made."),
			"timeouts":   timeouts.Attributes(ctx, timeouts.Opts{Create: true, Delete: true}),
		},
	}
}

func (r *tenantKeyResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

// ImportState takes TENANT/ID.
func (r *tenantKeyResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	tenant, id, ok := strings.Cut(req.ID, "/")
	if req.ID == "" {
		var t, i types.String
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("tenant"), &t)...)
		resp.Diagnostics.Append(req.Identity.GetAttribute(ctx, path.Root("id"), &i)...)
		tenant, id, ok = t.ValueString(), i.ValueString(), true
	}
	if !ok || tenant == "" || id == "" {
		resp.Diagnostics.AddError("A key is imported by TENANT/ID", "fluxctl fleet keys TENANT lists the ids of a tenant's keys.")
		return
	}
	m := tenantKeyModel{ID: types.StringValue(id), Tenant: types.StringValue(tenant)}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), m.ID)...)
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("tenant"), m.Tenant)...)
	resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
}

// identity is what a response keeps of an object's identity.
type identity interface {
	SetAttribute(ctx context.Context, at path.Path, value any) diag.Diagnostics
}

func (m *tenantKeyModel) identify(ctx context.Context, to identity) diag.Diagnostics {
	diags := to.SetAttribute(ctx, path.Root("tenant"), m.Tenant)
	return append(diags, to.SetAttribute(ctx, path.Root("id"), m.ID)...)
}

// ModifyPlan says what becomes of the secret: it is there only when it is made.
func (r *tenantKeyResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() {
		return
	}
	var plan, state tenantKeyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if !req.State.Raw.IsNull() {
		resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	}
	if resp.Diagnostics.HasError() || plan.StoreSecret.IsUnknown() {
		return
	}
	secret := types.StringNull()
	switch stores := plan.StoreSecret.ValueBool(); {
	case req.State.Raw.IsNull() && stores:
		secret = types.StringUnknown()
	case req.State.Raw.IsNull():
		resp.Diagnostics.AddAttributeWarning(path.Root("store_secret"), "Nobody will know the secret of this key",
			"It is shown only when the key is made, and store_secret is false, so that it does not get into the state. Use the ephemeral resource "+
				"fluxvm_tenant_key for a key that this run uses; make one that lasts with fluxctl fleet key-create and import it; or set store_secret = true.")
	case stores && state.Secret.IsNull():
		resp.RequiresReplace = append(resp.RequiresReplace, path.Root("store_secret"))
		secret = types.StringUnknown()
	case stores:
		secret = state.Secret
	}
	resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("secret"), secret)...)
}

// take fills the model from the API's key, but for the secret.
func (m *tenantKeyModel) take(k api.Key) {
	m.ID, m.Role = types.StringValue(k.ID), types.StringValue(k.Role)
	m.CreatedAt, m.ExpiresAt = timeOrNull(k.CreatedAt), timeOrNull(k.ExpiresAt)
	if m.ExpiresIn.IsNull() && !k.ExpiresAt.IsZero() { // an import; the fleet counts from a moment before created_at
		m.ExpiresIn = types.StringValue(lengthText((k.ExpiresAt.Sub(k.CreatedAt) + 900*time.Millisecond).Truncate(time.Second)))
	}
	if m.StoreSecret.IsNull() {
		m.StoreSecret = types.BoolValue(false)
	}
}

// makeKey makes a key and gives it with its secret. The secret is in one answer only: when that is lost, the key is
// made again.
func makeKey(ctx context.Context, c *client.Client, tenant, role string, expiresIn types.String, diags *diag.Diagnostics) (api.Key, error) {
	expires, _ := length(expiresIn) // checked by the schema; none is 0
	body := api.KeyRequest{Role: role, ExpiresInSecs: int64(expires / time.Second)}
	for tries := 1; ; tries++ {
		key, err := c.CreateTenantKey(ctx, tenant, body, uuid.NewString())
		lost := errors.Is(err, &api.Error{Code: api.CodeConflict}) // the answer to an earlier try of this request
		switch {
		case err == nil && key.Secret != "":
			return key, nil
		case err == nil:
			err = errUnlessGone(c.RevokeTenantKey(ctx, tenant, key.ID))
		case lost && tries < mostKeyTries:
			diags.AddWarning("A key was made whose secret is lost", "The answer that held it did not arrive, and the fleet keeps no secrets, so another key was made. "+
				"Revoke the lost one: fluxctl fleet keys "+tenant+" shows it as never used.")
			err = nil
		}
		if err != nil {
			return key, err
		}
	}
}

// mostKeyTries bounds how many keys are made for one that arrives.
const mostKeyTries = 3

func (r *tenantKeyResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m tenantKeyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	key, err := makeKey(ctx, r.client, m.Tenant.ValueString(), m.Role.ValueString(), m.ExpiresIn, &resp.Diagnostics)
	if err != nil {
		addError(&resp.Diagnostics, "Making the key failed", err, keyFields[:]...)
		return
	}
	m.take(key)
	m.Secret = types.StringNull()
	if m.StoreSecret.ValueBool() {
		m.Secret = types.StringValue(key.Secret)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
}

func (r *tenantKeyResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m tenantKeyModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	var found *api.Key
	for key, err := range r.client.TenantKeys(ctx, m.Tenant.ValueString()) {
		if errUnlessGone(err) != nil {
			addError(&resp.Diagnostics, "Reading the key failed", err)
			return
		}
		if key.ID == m.ID.ValueString() {
			found = &key
		}
	}
	why := ""
	switch {
	case found == nil:
		why = fmt.Sprintf("Tenant %s has no such key; it was revoked outside of this configuration.", m.Tenant.ValueString())
	case !found.ExpiresAt.IsZero() && !found.ExpiresAt.Std().After(time.Now()):
		why = fmt.Sprintf("It expired at %s.", found.ExpiresAt)
	}
	if why != "" {
		addGone(&resp.Diagnostics, "Key "+m.ID.ValueString(), why)
		resp.State.RemoveResource(ctx)
		resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
		return
	}
	m.take(*found)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(m.identify(ctx, resp.Identity)...)
}

// Update changes nothing in the fleet: all it can do is to forget the secret.
func (r *tenantKeyResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan tenantKeyModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	if resp.Diagnostics.HasError() {
		return
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(plan.identify(ctx, resp.Identity)...)
}

func (r *tenantKeyResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m tenantKeyModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := r.client.RevokeTenantKey(ctx, m.Tenant.ValueString(), m.ID.ValueString()); errUnlessGone(err) != nil {
		addError(&resp.Diagnostics, "Revoking the key failed", err)
	}
}
