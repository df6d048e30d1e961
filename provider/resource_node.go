package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/tfsdk"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

type nodeModel struct {
	Name     types.String   `tfsdk:"name"`
	Cordoned types.Bool     `tfsdk:"cordoned"`
	Reason   types.String   `tfsdk:"reason"`
	Timeouts timeouts.Value `tfsdk:"timeouts"`
}

func newNodeResource() resource.Resource {
	return &managed[nodeModel, api.Node]{kind: kind[nodeModel, api.Node]{
		noun: "node", identity: []string{"name"}, schema: nodeSchema, validate: checkReason, take: (*nodeModel).take,
		create: func(ctx context.Context, o op, m, _ *nodeModel) (api.Node, error) {
			node, err := o.Node(ctx, m.Name.ValueString())
			if err != nil {
				return node, err
			}
			var have nodeModel
			have.take(node)
			if changed, err := patchNode(ctx, o, m, &have); changed != nil {
				return *changed, err
			}
			return node, nil
		},
		read: func(ctx context.Context, o op, m *nodeModel) (api.Node, error) {
			return o.Node(ctx, m.Name.ValueString())
		},
		update: func(ctx context.Context, o op, plan, state *nodeModel) (*api.Node, error) {
			return patchNode(ctx, o, plan, state)
		},
		// The host stays: it takes VMs again.
		remove: func(ctx context.Context, o op, m *nodeModel) error {
			_, err := patchNode(ctx, o, &nodeModel{Name: m.Name, Cordoned: types.BoolValue(false)}, m)
			return err
		},
	}}
}

func nodeSchema(ctx context.Context) schema.Schema {
	return schema.Schema{
		MarkdownDescription: "Whether a host takes new VMs. The host itself is there once its daemon has joined the fleet; to create this resource is to set what is below, " +
			"and to destroy it lets new VMs on the host again. What changes by itself is in the data source `fluxvm_nodes`.",
		Attributes: map[string]schema.Attribute{
			"name": fixedText("The host's name. Another name is another host.", nodeRule()),
			"cordoned": schema.BoolAttribute{
				Required:            true,
				MarkdownDescription: "Whether new VMs go elsewhere. Those on the host stay. Turning it off ends a drain, too.",
			},
			"reason": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "Why it is cordoned, for people to read.",
				Validators:          []validator.String{stringvalidator.LengthBetween(1, 500)},
			},
			"timeouts": allTimeouts(ctx),
		},
	}
}

func checkReason(ctx context.Context, config tfsdk.Config, diags *diag.Diagnostics) {
	var cordoned types.Bool
	var reason types.String
	diags.Append(config.GetAttribute(ctx, path.Root("cordoned"), &cordoned)...)
	diags.Append(config.GetAttribute(ctx, path.Root("reason"), &reason)...)
	if !reason.IsNull() && !cordoned.IsNull() && !cordoned.IsUnknown() && !cordoned.ValueBool() {
		diags.AddAttributeError(path.Root("reason"), "This value is not allowed", "A host that is not cordoned has no reason for it: leave reason out, or set cordoned = true.")
	}
}

func (m *nodeModel) take(n api.Node) {
	m.Name, m.Cordoned, m.Reason = types.StringValue(n.Name), types.BoolValue(n.Cordoned), textOrNull(n.Reason)
}

// patchNode sends what differs. The fleet keeps no reason of a host that is not cordoned.
func patchNode(ctx context.Context, o op, plan, state *nodeModel) (*api.Node, error) {
	var p api.NodePatch
	patchBool(&p.Cordoned, plan.Cordoned, state.Cordoned)
	patchText(&p.Reason, plan.Reason, state.Reason)
	return send(p, func(p api.NodePatch) (api.Node, error) { return o.PatchNode(ctx, plan.Name.ValueString(), p) })
}
