package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

type usageDataModel struct {
	From    types.String     `tfsdk:"from"`
	To      types.String     `tfsdk:"to"`
	GroupBy types.Set        `tfsdk:"group_by"`
	Items   []usageItemModel `tfsdk:"items"`
	Total   *usageSumModel   `tfsdk:"total"`
}

type usageSumModel struct {
	VMSeconds    types.Int64 `tfsdk:"vm_seconds"`
	VCPUSeconds  types.Int64 `tfsdk:"vcpu_seconds"`
	GiBSeconds   types.Int64 `tfsdk:"gib_seconds"`
	LeaseSeconds types.Int64 `tfsdk:"lease_seconds"`
	AmountMicros types.Int64 `tfsdk:"amount_micros"`
}

type usageItemModel struct {
	Tenant types.String `tfsdk:"tenant"`
	Pool   types.String `tfsdk:"pool"`
	Day    types.String `tfsdk:"day"`
	usageSumModel
}

func newUsageData() datasource.DataSource {
	sums := func(more map[string]schema.Attribute) map[string]schema.Attribute {
		for name, text := range map[string]string{
			"vm_seconds": "Seconds of VMs.", "vcpu_seconds": "Seconds of vCPUs.", "gib_seconds": "Seconds of GiB of memory.", "lease_seconds": "Seconds of leased hosts.",
			"amount_micros": "What that costs, in millionths of the currency of the fleet's prices.",
		} {
			more[name] = schema.Int64Attribute{Computed: true, MarkdownDescription: text}
		}
		return more
	}
	return &shower[usageDataModel]{view: view[usageDataModel]{noun: "usage", read: readUsage, schema: schema.Schema{
		MarkdownDescription: "What was used in a span of time, and what it costs: an operator sees all, a tenant its own. What runs counts up to now, so a span " +
			"that is not over reads differently each time.",
		Attributes: map[string]schema.Attribute{
			"from": filterText("The beginning, such as `2027-01-01T00:00:00Z`. Otherwise that of this month (UTC).", timeRule()),
			"to":   filterText("The end, not included. Otherwise now.", timeRule()),
			"group_by": schema.SetAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "What to sum up by: `tenant` (default), `pool` and `day` (UTC).",
				Validators:          []validator.Set{setvalidator.SizeAtLeast(1), setvalidator.ValueStringsAre(stringvalidator.OneOf("tenant", "pool", "day"))},
			},
			"items": schema.ListNestedAttribute{
				Computed:            true,
				MarkdownDescription: "The sums, in the order of day, tenant and pool.",
				NestedObject: schema.NestedAttributeObject{Attributes: sums(map[string]schema.Attribute{
					"tenant": showText("The tenant; null for the operator, or where it is not grouped by."),
					"pool":   showText("The pool; null for what is of none, or where it is not grouped by."),
					"day":    showText("The day as YYYY-MM-DD; null where it is not grouped by."),
				})},
			},
			"total": schema.SingleNestedAttribute{
				Computed:            true,
				MarkdownDescription: "All of it together.",
				Attributes:          sums(map[string]schema.Attribute{}),
			},
		},
	}}}
}

func readUsage(ctx context.Context, o op, m *usageDataModel) error {
	query := client.UsageQuery{GroupBy: stringSet(ctx, m.GroupBy, o.diags)}
	if at, ok := instant(m.From); ok {
		query.From = at
	}
	if at, ok := instant(m.To); ok {
		query.To = at
	}
	usage, err := o.Usage(ctx, query)
	m.Items = []usageItemModel{}
	for _, item := range usage.Items {
		m.Items = append(m.Items, usageItemModel{
			Tenant: types.StringPointerValue(item.Tenant), Pool: textOrNull(item.Pool), Day: textOrNull(item.Day), usageSumModel: usageSum(item),
		})
	}
	total := usageSum(usage.Total)
	m.Total = &total
	return err
}

func usageSum(u api.UsageItem) usageSumModel {
	return usageSumModel{
		VMSeconds: types.Int64Value(u.VMSeconds), VCPUSeconds: types.Int64Value(u.VCPUSeconds), GiBSeconds: types.Int64Value(u.GiBSeconds),
		LeaseSeconds: types.Int64Value(u.LeaseSeconds), AmountMicros: types.Int64Value(u.AmountMicros),
	}
}
