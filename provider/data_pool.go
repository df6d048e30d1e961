package provider

import (
	"context"
	"maps"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

type poolDataModel struct {
	Name           types.String      `tfsdk:"name"`
	Image          types.String      `tfsdk:"image"`
	GuestOS        types.String      `tfsdk:"guest_os"`
	Owner          types.String      `tfsdk:"owner"`
	VCPUs          types.Int64       `tfsdk:"vcpus"`
	MemoryMiB      types.Int64       `tfsdk:"memory_mib"`
	DiskSizeGiB    types.Int64       `tfsdk:"disk_size_gib"`
	MinReady       types.Int64       `tfsdk:"min_ready"`
	MaxTotal       types.Int64       `tfsdk:"max_total"`
	NodeSelector   map[string]string `tfsdk:"node_selector"`
	Nodes          []string          `tfsdk:"nodes"`
	Readiness      types.String      `tfsdk:"readiness"`
	State          types.String      `tfsdk:"state"`
	Ready          types.Int64       `tfsdk:"ready"`
	Booting        types.Int64       `tfsdk:"booting"`
	Stale          types.Int64       `tfsdk:"stale"`
	ClaimedRunning types.Int64       `tfsdk:"claimed_running"`
	Claimed24h     types.Int64       `tfsdk:"claimed_24h"`
	AvgClaimMS     types.Int64       `tfsdk:"avg_claim_ms"`
	WaitReason     types.String      `tfsdk:"wait_reason"`
	LastError      types.String      `tfsdk:"last_error"`
}

type poolsDataModel struct {
	Tenant types.String    `tfsdk:"tenant"`
	Pools  []poolDataModel `tfsdk:"pools"`
}

// poolAttributes are what is shown of a pool, but for its name.
func poolAttributes() map[string]schema.Attribute {
	return map[string]schema.Attribute{
		"image":           showText("Its image."),
		"guest_os":        showText("The image's guest operating system."),
		"owner":           showText("The tenant, or `operator` for a shared pool."),
		"vcpus":           showNumber("vCPUs of each VM."),
		"memory_mib":      showNumber("Memory of each VM in MiB."),
		"disk_size_gib":   showNumber("Disk of each VM in GiB; 0: the image's own."),
		"min_ready":       showNumber("How many VMs it keeps ready."),
		"max_total":       showNumber("At most so many VMs, ready ones and taken ones that still run: what was set, or what the fleet derives from `min_ready`."),
		"node_selector":   showMap("Labels its hosts must have."),
		"nodes":           schema.SetAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Hosts it is held to; none: all that fit."},
		"readiness":       showText("When a VM counts as ready: `agent` or `running`."),
		"state":           showText("`ready`, `filling`, `backing_off` or `paused`."),
		"ready":           showNumber("VMs that can be taken now."),
		"booting":         showNumber("VMs that boot."),
		"stale":           showNumber("VMs of an image that the pool has moved away from."),
		"claimed_running": showNumber("VMs that were taken and still run."),
		"claimed_24h":     showNumber("VMs taken in the last 24 hours."),
		"avg_claim_ms":    showNumber("Average time of a hand-over in milliseconds."),
		"wait_reason":     showText("What holds the pool up: `no_capacity`, `boot_failed`, `max_total` and others."),
		"last_error":      showText("What went wrong last."),
	}
}

func newPoolData() datasource.DataSource {
	attributes := poolAttributes()
	attributes["name"] = schema.StringAttribute{Required: true, MarkdownDescription: "The pool's name.", Validators: []validator.String{nameRule(api.MaxPoolName)}}
	read := func(ctx context.Context, o op, m *poolDataModel) error {
		pool, err := o.Pool(ctx, m.Name.ValueString())
		*m = showPool(pool)
		return err
	}
	return &shower[poolDataModel]{view: view[poolDataModel]{noun: "pool", read: read,
		schema: schema.Schema{MarkdownDescription: "A warm pool as it stands at this moment.", Attributes: attributes}}}
}

func newPoolsData() datasource.DataSource {
	item := poolAttributes()
	item["name"] = showText("Its name.")
	read := func(ctx context.Context, o op, m *poolsDataModel) error {
		m.Pools = []poolDataModel{}
		for pool, err := range o.Pools(ctx, client.Filter{}) {
			if err != nil {
				return err
			}
			if m.Tenant.IsNull() || pool.Owner == m.Tenant.ValueString() {
				m.Pools = append(m.Pools, showPool(pool))
			}
		}
		return nil
	}
	return &shower[poolsDataModel]{view: view[poolsDataModel]{noun: "pools", read: read, schema: schema.Schema{
		MarkdownDescription: "Warm pools as they stand at this moment: an operator sees all, a tenant its own and the shared ones it may use.",
		Attributes: map[string]schema.Attribute{
			"tenant": filterText("Only this tenant's.", tenantNameRule()),
			"pools":  showList("The pools, by name.", item),
		},
	}}}
}

func showPool(p api.Pool) poolDataModel {
	selector := map[string]string{}
	maps.Copy(selector, p.NodeSelector)
	return poolDataModel{
		Name: types.StringValue(p.Name), Image: types.StringValue(p.Image), GuestOS: textOrNull(p.GuestOS), Owner: textOrNull(p.Owner),
		VCPUs: types.Int64Value(int64(p.Size.VCPUs)), MemoryMiB: types.Int64Value(p.Size.MemoryMiB), DiskSizeGiB: types.Int64Value(p.Size.DiskSizeGiB),
		MinReady: types.Int64Value(int64(p.MinReady)), MaxTotal: types.Int64Value(int64(p.MaxTotal)),
		NodeSelector: selector, Nodes: texts(p.Nodes), Readiness: textOrNull(p.Readiness),
		State: types.StringValue(string(p.Status.State)), Ready: types.Int64Value(int64(p.Status.Ready)), Booting: types.Int64Value(int64(p.Status.Booting)),
		Stale: types.Int64Value(int64(p.Status.Stale)), ClaimedRunning: types.Int64Value(int64(p.Status.ClaimedRunning)), Claimed24h: types.Int64Value(p.Status.Claimed24h),
		AvgClaimMS: types.Int64Value(p.Status.AvgClaimMS), WaitReason: types.StringPointerValue(p.Status.WaitReason), LastError: types.StringPointerValue(p.Status.LastError),
	}
}
