package provider

import (
	"context"
	"maps"

	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

type nodesDataModel struct {
	State    types.String    `tfsdk:"state"`
	Selector types.Map       `tfsdk:"selector"`
	Nodes    []nodeDataModel `tfsdk:"nodes"`
}

type nodeDataModel struct {
	Name           types.String      `tfsdk:"name"`
	State          types.String      `tfsdk:"state"`
	Reason         types.String      `tfsdk:"reason"`
	Cordoned       types.Bool        `tfsdk:"cordoned"`
	Draining       types.Bool        `tfsdk:"draining"`
	Lease          types.String      `tfsdk:"lease"`
	Labels         map[string]string `tfsdk:"labels"`
	Backends       []string          `tfsdk:"backends"`
	Mac            types.Bool        `tfsdk:"mac"`
	VMCount        types.Int64       `tfsdk:"vm_count"`
	VCPUsTotal     types.Int64       `tfsdk:"vcpus_total"`
	MemoryMiBTotal types.Int64       `tfsdk:"memory_mib_total"`
	FreeVCPUs      types.Int64       `tfsdk:"free_vcpus"`
	FreeMemoryMiB  types.Int64       `tfsdk:"free_memory_mib"`
	FreeMacOS      types.Int64       `tfsdk:"free_macos_guests"`
	PressureLevel  types.String      `tfsdk:"host_pressure_level"`
	LastSeenAt     types.String      `tfsdk:"last_seen_at"`
}

func newNodesData() datasource.DataSource {
	return &shower[nodesDataModel]{view: view[nodesDataModel]{noun: "nodes", read: readNodes, schema: schema.Schema{
		MarkdownDescription: "Hosts as they stand at this moment: an operator sees all, a tenant those that it leases.",
		Attributes: map[string]schema.Attribute{
			"state": filterText("Only those in this state: `healthy`, `suspect`, `unreachable` or `lost`.",
				stringvalidator.OneOf(string(api.NodeHealthy), string(api.NodeSuspect), string(api.NodeUnreachable), string(api.NodeLost))),
			"selector": filterLabels("Only those with all of these labels."),
			"nodes": showList("The hosts, by name.", map[string]schema.Attribute{
				"name":                showText("Its name."),
				"state":               showText("`healthy`, `suspect` (silent for a while: nothing new goes there), `unreachable` or `lost`."),
				"reason":              showText("Why it is cordoned, where someone said so."),
				"cordoned":            showFlag("Whether new VMs go elsewhere."),
				"draining":            showFlag("Whether VMs that may go are being removed from it."),
				"lease":               showText("Id of the lease that holds it."),
				"labels":              showMap("Its labels."),
				"backends":            showTexts("What it runs VMs with; the first is what `auto` means there."),
				"mac":                 showFlag("Whether it is a Mac."),
				"vm_count":            showNumber("VMs on it."),
				"vcpus_total":         showNumber("Its processors."),
				"memory_mib_total":    showNumber("Its memory in MiB."),
				"free_vcpus":          showNumber("vCPUs that may still be given out."),
				"free_memory_mib":     showNumber("Memory in MiB that may still be given out."),
				"free_macos_guests":   showNumber("macOS guests that may still be started."),
				"host_pressure_level": showText("Memory pressure: `normal`, `warn` or `critical`; null where the host has no such level."),
				"last_seen_at":        showText("When it was last heard."),
			}),
		},
	}}}
}

func readNodes(ctx context.Context, o op, m *nodesDataModel) error {
	m.Nodes = []nodeDataModel{}
	selector := stringMap(ctx, m.Selector, o.diags)
	for n, err := range o.Nodes(ctx, client.Filter{}) {
		if err != nil {
			return err
		}
		if !m.State.IsNull() && string(n.State) != m.State.ValueString() || !api.Matches(selector, n.Labels) {
			continue
		}
		labels := map[string]string{}
		maps.Copy(labels, n.Labels)
		m.Nodes = append(m.Nodes, nodeDataModel{
			Name: types.StringValue(n.Name), State: types.StringValue(string(n.State)), Reason: textOrNull(n.Reason), Cordoned: types.BoolValue(n.Cordoned), Draining: types.BoolValue(n.Draining),
			Lease: types.StringPointerValue(n.Lease), Labels: labels, Backends: texts(n.Backends), Mac: types.BoolValue(n.Apple != nil), VMCount: types.Int64Value(int64(n.VMCount)),
			VCPUsTotal: types.Int64Value(int64(n.VCPUsTotal)), MemoryMiBTotal: types.Int64Value(n.MemoryMiBTotal), FreeVCPUs: types.Int64Value(int64(n.FreeVCPUs)),
			FreeMemoryMiB: types.Int64Value(n.FreeMemoryMiB), FreeMacOS: types.Int64Value(int64(n.FreeMacOS)), PressureLevel: types.StringPointerValue(n.Density.HostPressureLevel),
			LastSeenAt: timeOrNull(n.LastSeenAt),
		})
	}
	return nil
}
