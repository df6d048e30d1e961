package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// policyID is the id of the only policy there is.
const policyID = "policy"

type policyModel struct {
	ID                    types.String   `tfsdk:"id"`
	AllowSharedPoolClaims types.Bool     `tfsdk:"allow_shared_pool_claims"`
	RequireLeaseForMacOS  types.Bool     `tfsdk:"require_lease_for_macos"`
	IsolateTenantNetworks types.Bool     `tfsdk:"isolate_tenant_networks"`
	MinLeaseHours         types.Int64    `tfsdk:"min_lease_hours"`
	MaxBootsPerNode       types.Int64    `tfsdk:"max_boots_per_node"`
	LostAfterSeconds      types.Int64    `tfsdk:"lost_after_seconds"`
	Timeouts              timeouts.Value `tfsdk:"timeouts"`
}

func newPolicyResource() resource.Resource {
	set := func(ctx context.Context, o op, m *policyModel) (api.Policy, error) {
		policy, err := o.Policy(ctx)
		if err != nil {
			return policy, err
		}
		var have policyModel
		have.take(policy)
		if changed, err := send(policyPatch(m, &have), func(p api.PolicyPatch) (api.Policy, error) { return o.PatchPolicy(ctx, p) }); changed != nil {
			return *changed, err
		}
		return policy, nil
	}
	return &managed[policyModel, api.Policy]{kind: kind[policyModel, api.Policy]{
		noun: "policy", identity: []string{"id"}, schema: policySchema, take: (*policyModel).take,
		create: func(ctx context.Context, o op, m, _ *policyModel) (api.Policy, error) { return set(ctx, o, m) },
		read:   func(ctx context.Context, o op, _ *policyModel) (api.Policy, error) { return o.Policy(ctx) },
		update: func(ctx context.Context, o op, plan, _ *policyModel) (*api.Policy, error) {
			policy, err := set(ctx, o, plan)
			return &policy, err
		},
		remove: func(ctx context.Context, o op, _ *policyModel) error {
			_, err := o.PatchPolicy(ctx, api.PolicyPatch{
				AllowSharedPoolClaims: api.Null[bool](), RequireLeaseForMacOS: api.Null[bool](), IsolateTenantNetworks: api.Null[bool](),
				MinLeaseHours: api.Null[int64](), MaxBootsPerNode: api.Null[int](), LostAfterSeconds: api.Null[int64](),
			})
			return err
		},
		find: func(_ context.Context, _ op, given string) (string, error) {
			if given != policyID {
				return "", api.Invalid("", "there is one policy; import it by the id %s", policyID)
			}
			return given, nil
		},
	}}
}

func policySchema(ctx context.Context) schema.Schema {
	usual := api.DefaultPolicy()
	return schema.Schema{
		MarkdownDescription: "What the operator allows. A fleet has one policy, so declare it once; to create it is to set it, and to destroy it puts the defaults back. " +
			"What is left out has its default.",
		Attributes: map[string]schema.Attribute{
			"id":                       fixedByFleet("Always `" + policyID + "`."),
			"allow_shared_pool_claims": boolean("Whether tenants see shared pools and take VMs from them (false). Turn it on only among tenants that trust each other.", usual.AllowSharedPoolClaims),
			"require_lease_for_macos":  boolean("Whether a tenant's macOS guests run only on Macs that it leases (true).", usual.RequireLeaseForMacOS),
			"isolate_tenant_networks":  boolean("Whether tenants are kept off each other's networks, and so off shared pools (false).", usual.IsolateTenantNetworks),
			"min_lease_hours":          number("Minimum term of leases of hosts that can run macOS, in hours (24). It holds for leases made later; 0 is no minimum.", usual.MinLeaseHours, 0, 24*366),
			"max_boots_per_node":       number("How many spares one host starts at a time (4).", int64(usual.MaxBootsPerNode), 1, 1000),
			"lost_after_seconds":       bounded("How long a host is silent before it is lost, at least 300. Left out, only the operator calls a host lost.", int64validator.Between(api.MinLostAfterSeconds, 30*24*3600)),
			"timeouts":                 allTimeouts(ctx),
		},
	}
}

// take fills the model from the API's policy.
func (m *policyModel) take(p api.Policy) {
	m.ID = types.StringValue(policyID)
	m.AllowSharedPoolClaims, m.RequireLeaseForMacOS = types.BoolValue(p.AllowSharedPoolClaims), types.BoolValue(p.RequireLeaseForMacOS)
	m.IsolateTenantNetworks = types.BoolValue(p.IsolateTenantNetworks)
	m.LostAfterSeconds = types.Int64PointerValue(p.LostAfterSeconds)
	m.MinLeaseHours, m.MaxBootsPerNode = types.Int64Value(p.MinLeaseHours), types.Int64Value(int64(p.MaxBootsPerNode))
}

func policyPatch(plan, have *policyModel) (p api.PolicyPatch) {
	patchBool(&p.AllowSharedPoolClaims, plan.AllowSharedPoolClaims, have.AllowSharedPoolClaims)
	patchBool(&p.RequireLeaseForMacOS, plan.RequireLeaseForMacOS, have.RequireLeaseForMacOS)
	patchBool(&p.IsolateTenantNetworks, plan.IsolateTenantNetworks, have.IsolateTenantNetworks)
	patchInt(&p.MinLeaseHours, plan.MinLeaseHours, have.MinLeaseHours)
	patchInt(&p.LostAfterSeconds, plan.LostAfterSeconds, have.LostAfterSeconds)
	patchInt(&p.MaxBootsPerNode, plan.MaxBootsPerNode, have.MaxBootsPerNode)
	return p
}
