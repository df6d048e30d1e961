package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

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

func newLeasesData() datasource.DataSource {
	states := []api.LeaseState{api.LeasePending, api.LeaseActive, api.LeaseEnding, api.LeaseScrubbing, api.LeaseScrubFailed, api.LeaseEnded}
	names := make([]string, len(states))
	for i, s := range states {
		names[i] = string(s)
	}
	return &shower[leasesDataModel]{view: view[leasesDataModel]{noun: "leases", read: readLeases, schema: schema.Schema{
		MarkdownDescription: "Leases as they stand at this moment, the ended ones with them: an operator sees all, a tenant its own.",
		Attributes: map[string]schema.Attribute{
			"tenant": filterText("Only this tenant's. Otherwise those of the provider's tenant, if it has one.", tenantNameRule()),
			"node":   filterText("Only those of this host.", nodeRule()),
			"state":  filterText("Only those in this state: `pending`, `active`, `ending`, `scrubbing`, `scrub_failed` or `ended`.", stringvalidator.OneOf(names...)),
			"leases": showList("The leases.", map[string]schema.Attribute{
				"id":           showText("Its id."),
				"tenant":       showText("Whose it is."),
				"nodes":        showTexts("Its hosts."),
				"state":        showText("Its state."),
				"reason":       showText("Why it is in that state, where there is something to say."),
				"starts_at":    showText("When it became active."),
				"ends_at":      showText("When it ends, or ended."),
				"earliest_end": showText("The end of its minimum term."),
				"auto_renew":   showFlag("Whether it goes on for the same time again at its end."),
				"blocked_by":   showTexts("Ids of the VMs that it waits for."),
			}),
		},
	}}}
}

func readLeases(ctx context.Context, o op, m *leasesDataModel) error {
	m.Leases = []leaseDataModel{}
	for l, err := range o.Leases(ctx, client.Filter{Tenant: m.Tenant.ValueString(), Node: m.Node.ValueString(), State: m.State.ValueString()}) {
		if err != nil {
			return err
		}
		m.Leases = append(m.Leases, leaseDataModel{
			ID: types.StringValue(l.ID), Tenant: types.StringValue(l.Tenant), Nodes: texts(l.Nodes), State: types.StringValue(string(l.State)), Reason: textOrNull(l.Reason),
			StartsAt: timeOrNull(l.StartsAt), EndsAt: timeOrNull(l.EndsAt), EarliestEnd: timeOrNull(l.EarliestEnd), AutoRenew: types.BoolValue(l.AutoRenew), BlockedBy: texts(l.BlockedBy),
		})
	}
	return nil
}
