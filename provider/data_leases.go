package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var _ datasource.DataSourceWithConfigure = (*leasesData)(nil)

func newLeasesData() datasource.DataSource { return &leasesData{} }

type leasesData struct{ client *client.Client }

type leasesDataModel struct {
	Tenant types.String     `tfsdk:"tenant"`
	Node   types.String     `tfsdk:"node"`
	State  types.String     `tfsdk:"state"`
	Leases []leaseDataModel `tfsdk:"leases"`
}

type leaseDataModel struct {
	ID          types.String `tfsdk:"id"`
	Tenant      types.String `tfsdk:"tenant"`
	Nodes       []string     `tfsdk:"nodes"`
	State       types.String `tfsdk:"state"`
	Reason      types.String `tfsdk:"reason"`
	StartsAt    types.String `tfsdk:"starts_at"`
	EndsAt      types.String `tfsdk:"ends_at"`
	EarliestEnd types.String `tfsdk:"earliest_end"`
	AutoRenew   types.Bool   `tfsdk:"auto_renew"`
	BlockedBy   []string     `tfsdk:"blocked_by"`
}

func (d *leasesData) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "fluxvm_leases"
}

func (d *leasesData) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	text := func(text string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: text}
	}
	filter := func(text string, rule validator.String) schema.StringAttribute {
		return schema.StringAttribute{Optional: true, MarkdownDescription: text, Validators: []validator.String{rule}}
	}
	states := []api.LeaseState{api.LeasePending, api.LeaseActive, api.LeaseEnding, api.LeaseScrubbing, api.LeaseScrubFailed, api.LeaseEnded}
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Leases as they stand at this moment, the ended ones with them: an operator sees all, a tenant its own.",
		Attributes: map[string]schema.Attribute{
			"tenant": filter("Only this tenant's. Otherwise those of the provider's tenant, if it has one.", tenantNameRule()),
			"node":   filter("Only those of this host.", nodeRule()),
			"state":  filter("Only those in this state: `pending`, `active`, `ending`, `scrubbing`, `scrub_failed` or `ended`.", stringvalidator.OneOf(names...)),
			"leases": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "The leases.",
				NestedObject: schema.NestedAttributeObject{Attributes: map[string]schema.Attribute{
					"id":           text("Its id."),
					"tenant":       text("Whose it is."),
					"nodes":        schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Its hosts."},
					"state":        text("Its state."),
					"reason":       text("Why it is in that state, where there is something to say."),
					"starts_at":    text("When it became active."),
					"ends_at":      text("When it ends, or ended."),
					"earliest_end": text("The end of its minimum term."),
					"auto_renew":   schema.BoolAttribute{Computed: true, MarkdownDescription: "Whether it goes on for the same time again at its end."},
					"blocked_by":   schema.ListAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Ids of the VMs that it waits for."},
				}},
			},
		},
	}
}

func (d *leasesData) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (d *leasesData) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m leasesDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	m.Leases = []leaseDataModel{}
	for l, err := range d.client.Leases(ctx, client.Filter{Tenant: m.Tenant.ValueString(), Node: m.Node.ValueString(), State: m.State.ValueString()}) {
		if err != nil {
			addError(&resp.Diagnostics, "Reading the leases failed", err, "tenant", "node", "state")
			return
		}
		m.Leases = append(m.Leases, leaseDataModel{
			ID: types.StringValue(l.ID), Tenant: types.StringValue(l.Tenant), Nodes: append([]string{}, l.Nodes...), State: types.StringValue(string(l.State)), Reason: textOrNull(l.Reason),
			StartsAt: timeOrNull(l.StartsAt), EndsAt: timeOrNull(l.EndsAt), EarliestEnd: timeOrNull(l.EarliestEnd), AutoRenew: types.BoolValue(l.AutoRenew),
			BlockedBy: append([]string{}, l.BlockedBy...),
		})
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}
