package provider

import (
	"context"
	"maps"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

type vmsDataModel struct {
	Tenant   types.String  `tfsdk:"tenant"`
	Node     types.String  `tfsdk:"node"`
	Pool     types.String  `tfsdk:"pool"`
	Selector types.Map     `tfsdk:"selector"`
	VMs      []vmDataModel `tfsdk:"vms"`
}

type vmDataModel struct {
	ID          types.String      `tfsdk:"id"`
	Name        types.String      `tfsdk:"name"`
	Tenant      types.String      `tfsdk:"tenant"`
	Node        types.String      `tfsdk:"node"`
	Backend     types.String      `tfsdk:"backend"`
	Image       types.String      `tfsdk:"image"`
	GuestOS     types.String      `tfsdk:"guest_os"`
	VCPUs       types.Int64       `tfsdk:"vcpus"`
	MemoryMiB   types.Int64       `tfsdk:"memory_mib"`
	DiskSizeGiB types.Int64       `tfsdk:"disk_size_gib"`
	State       types.String      `tfsdk:"state"`
	Reason      types.String      `tfsdk:"reason"`
	Labels      map[string]string `tfsdk:"labels"`
	IP          types.String      `tfsdk:"ip"`
	WarmPool    types.String      `tfsdk:"warm_pool"`
	WarmState   types.String      `tfsdk:"warm_state"`
	ClaimedFrom types.String      `tfsdk:"claimed_from"`
	CreatedAt   types.String      `tfsdk:"created_at"`
	ReadyAt     types.String      `tfsdk:"ready_at"`
	ExpiresAt   types.String      `tfsdk:"expires_at"`
}

func newVMsData() datasource.DataSource {
	return &shower[vmsDataModel]{view: view[vmsDataModel]{noun: "vms", read: readVMs, schema: schema.Schema{
		MarkdownDescription: "Virtual machines as they stand at this moment, the spares of pools with them: an operator sees all, a tenant its own.",
		Attributes: map[string]schema.Attribute{
			"tenant":   filterText("Only this tenant's. Otherwise those of the provider's tenant, if it has one.", tenantNameRule()),
			"node":     filterText("Only those on this host.", nodeRule()),
			"pool":     filterText("Only those of this pool.", nameRule(api.MaxPoolName)),
			"selector": filterLabels("Only those with all of these labels."),
			"vms": showList("The VMs.", map[string]schema.Attribute{
				"id":            showText("Its id."),
				"name":          showText("Its name."),
				"tenant":        showText("Whose it is; null: the operator's."),
				"node":          showText("Its host."),
				"backend":       showText("What runs it."),
				"image":         showText("What it booted from."),
				"guest_os":      showText("Its guest operating system."),
				"vcpus":         showNumber("Its vCPUs."),
				"memory_mib":    showNumber("Its memory in MiB."),
				"disk_size_gib": showNumber("Its disk in GiB; 0: the image's own."),
				"state":         showText("`placed`, `booting`, `running`, `deleting`, `stopped`, `paused`, `failed`, `unknown` or `lost`."),
				"reason":        showText("Why it is in that state, where there is something to say."),
				"labels":        showMap("Its labels."),
				"ip":            showText("Its address, where the host knows it."),
				"warm_pool":     showText("The pool that it waits in."),
				"warm_state":    showText("`booting` or `ready`, while it waits in a pool."),
				"claimed_from":  showText("The pool that it was taken from."),
				"created_at":    showText("When it was made."),
				"ready_at":      showText("When its guest agent first answered."),
				"expires_at":    showText("When its time to live ends."),
			}),
		},
	}}}
}

func readVMs(ctx context.Context, o op, m *vmsDataModel) error {
	m.VMs = []vmDataModel{}
	filter := client.Filter{Tenant: m.Tenant.ValueString(), Node: m.Node.ValueString(), Pool: m.Pool.ValueString(), Labels: stringMap(ctx, m.Selector, o.diags)}
	for vm, err := range o.VMs(ctx, filter) {
		if err != nil {
			return err
		}
		labels := map[string]string{}
		maps.Copy(labels, vm.Labels)
		m.VMs = append(m.VMs, vmDataModel{
			ID: types.StringValue(vm.ID), Name: types.StringValue(vm.Name), Tenant: types.StringPointerValue(vm.Tenant), Node: textOrNull(vm.Node), Backend: textOrNull(vm.Backend),
			Image: textOrNull(vm.Image), GuestOS: textOrNull(vm.GuestOS), VCPUs: types.Int64Value(int64(vm.VCPUs)), MemoryMiB: types.Int64Value(vm.MemoryMiB),
			DiskSizeGiB: types.Int64Value(vm.DiskSizeGiB), State: types.StringValue(string(vm.State)), Reason: textOrNull(vm.Reason), Labels: labels, IP: textOrNull(vm.IP),
			WarmPool: textOrNull(vm.WarmPool), WarmState: textOrNull(vm.WarmState), ClaimedFrom: textOrNull(vm.ClaimedFrom),
			CreatedAt: timeOrNull(vm.CreatedAt), ReadyAt: timeOrNull(vm.ReadyAt), ExpiresAt: timeOrNull(vm.ExpiresAt),
		})
	}
	return nil
}
