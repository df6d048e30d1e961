package provider

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringdefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

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

func newTenantKeyResource() resource.Resource {
	return &managed[tenantKeyModel, api.Key]{kind: kind[tenantKeyModel, api.Key]{
		noun: "tenant key", identity: []string{"tenant", "id"}, schema: tenantKeySchema, plan: planSecret, take: (*tenantKeyModel).take,
		create: func(ctx context.Context, o op, m, _ *tenantKeyModel) (api.Key, error) {
			return makeKey(ctx, o, m.Tenant.ValueString(), m.Role.ValueString(), m.ExpiresIn)
		},
		read: func(ctx context.Context, o op, m *tenantKeyModel) (api.Key, error) {
			for key, err := range o.TenantKeys(ctx, m.Tenant.ValueString()) {
				if err != nil || key.ID == m.ID.ValueString() {
					return key, err
				}
			}
			return api.Key{}, api.Errorf(api.CodeNotFound, "tenant %s has no such key", m.Tenant.ValueString())
		},
		// An update changes nothing in the fleet: all it can do is to forget the secret.
		update: func(context.Context, op, *tenantKeyModel, *tenantKeyModel) (*api.Key, error) { return nil, nil },
		remove: func(ctx context.Context, o op, m *tenantKeyModel) error {
			return o.RevokeTenantKey(ctx, m.Tenant.ValueString(), m.ID.ValueString())
		},
		gone: func(m *tenantKeyModel, key *api.Key) string {
			switch {
			case key == nil:
				return fmt.Sprintf("Tenant %s has no such key; it was revoked outside of this configuration.", m.Tenant.ValueString())
			case !key.ExpiresAt.IsZero() && !key.ExpiresAt.Std().After(time.Now()):
				return fmt.Sprintf("It expired at %s.", key.ExpiresAt)
			}
			return ""
		},
	}}
}

func tenantKeySchema(ctx context.Context) schema.Schema {
	return schema.Schema{
		MarkdownDescription: "An API key of a tenant. The fleet shows a key's secret once, when it makes the key, and keeps only its hash. " +
			"There are three ways to have it:\n\n" +
			"- For one run, use the ephemeral resource of the same name: the secret is in no state and no plan, and the key is revoked when the run ends.\n" +
			"- For a key that lasts and whose secret must not be in the state, make it with `fluxctl fleet key-create TENANT > FILE` and import it " +
			"here: Terraform then shows when it is gone, and revokes it on destroy.\n" +
			"- With `store_secret = true` the secret is in `secret`, and so in the state. Use a state backend that encrypts and that few can read.\n\n" +
			"A key whose time is up, or that was revoked, is planned anew.",
		Attributes: map[string]schema.Attribute{
			"id":     fixedByFleet("The key's id, which is no secret."),
			"tenant": fixedText("Whose key it is. Another tenant makes a new key.", tenantNameRule()),
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
			"store_secret": boolean("Whether the secret is kept in the state (false). Turning it on makes a new key, as the secret of one that exists is nowhere; "+
				"turning it off takes the secret out of the state.", false),
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

// planSecret says what becomes of the secret: it is there only when it is made.
func planSecret(ctx context.Context, _ op, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
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

func (m *tenantKeyModel) take(k api.Key) {
	m.ID, m.Role = types.StringValue(k.ID), types.StringValue(k.Role)
	m.CreatedAt, m.ExpiresAt = timeOrNull(k.CreatedAt), timeOrNull(k.ExpiresAt)
	if m.ExpiresIn.IsNull() && !k.ExpiresAt.IsZero() { // an import; the fleet counts from a moment before created_at
		m.ExpiresIn = types.StringValue(lengthText((k.ExpiresAt.Sub(k.CreatedAt) + 900*time.Millisecond).Truncate(time.Second)))
	}
	if m.StoreSecret.IsNull() {
		m.StoreSecret = types.BoolValue(false)
	}
	if m.Secret.IsUnknown() { // only the answer to a create has it
		m.Secret = types.StringValue(k.Secret)
	}
}

// makeKey makes a key and gives it with its secret. The secret is in one answer only: when that is lost, the key is
// made again.
func makeKey(ctx context.Context, o op, tenant, role string, expiresIn types.String) (api.Key, error) {
	expires, _ := length(expiresIn) // checked by the schema; none is 0
	body := api.KeyRequest{Role: role, ExpiresInSecs: int64(expires / time.Second)}
	for tries := 1; ; tries++ {
		key, err := o.CreateTenantKey(ctx, tenant, body, uuid.NewString())
		lost := hasCode(err, api.CodeConflict) // the answer to an earlier try of this request
		switch {
		case err == nil && key.Secret != "":
			return key, nil
		case err == nil:
			err = errUnlessGone(o.RevokeTenantKey(ctx, tenant, key.ID))
		case lost && tries < mostKeyTries:
			o.diags.AddWarning("A key was made whose secret is lost", "The answer that held it did not arrive, and the fleet keeps no secrets, so another key was made. "+
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
