package provider

import (
	"context"

	"github.com/hashicorp/terraform-plugin-framework/datasource"
	"github.com/hashicorp/terraform-plugin-framework/datasource/schema"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var _ datasource.DataSourceWithConfigure = (*poolData)(nil)

func newPoolData() datasource.DataSource { return &poolData{} }

type poolData struct{ client *client.Client }

type poolDataModel struct {
	Name           types.String `tfsdk:"name"`
	Image          types.String `tfsdk:"image"`
	GuestOS        types.String `tfsdk:"guest_os"`
	Owner          types.String `tfsdk:"owner"`
	VCPUs          types.Int64  `tfsdk:"vcpus"`
	MemoryMiB      types.Int64  `tfsdk:"memory_mib"`
	DiskSizeGiB    types.Int64  `tfsdk:"disk_size_gib"`
	MinReady       types.Int64  `tfsdk:"min_ready"`
	MaxTotal       types.Int64  `tfsdk:"max_total"`
	NodeSelector   types.Map    `tfsdk:"node_selector"`
	Nodes          types.Set    `tfsdk:"nodes"`
	Readiness      types.String `tfsdk:"readiness"`
	State          types.String `tfsdk:"state"`
	Ready          types.Int64  `tfsdk:"ready"`
	Booting        types.Int64  `tfsdk:"booting"`
	ClaimedRunning types.Int64  `tfsdk:"claimed_running"`
	Claimed24h     types.Int64  `tfsdk:"claimed_24h"`
	AvgClaimMS     types.Int64  `tfsdk:"avg_claim_ms"`
	WaitReason     types.String `tfsdk:"wait_reason"`
	LastError      types.String `tfsdk:"last_error"`
}

func (d *poolData) Metadata(_ context.Context, _ datasource.MetadataRequest, resp *datasource.MetadataResponse) {
	resp.TypeName = "fluxvm_pool"
}

func (d *poolData) Schema(_ context.Context, _ datasource.SchemaRequest, resp *datasource.SchemaResponse) {
	number := func(text string) schema.Int64Attribute {
		return schema.Int64Attribute{Computed: true, MarkdownDescription: text}
	}
	text := func(text string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: text}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "A warm pool as it stands at this moment.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "The pool's name.",
				Validators:          []validator.String{nameRule(api.MaxPoolName)},
			},
			"image":           text("Its image."),
			"guest_os":        text("The image's guest operating system."),
			"owner":           text("The tenant, or `operator` for a shared pool."),
			"vcpus":           number("vCPUs of each VM."),
			"memory_mib":      number("Memory of each VM in MiB."),
			"disk_size_gib":   number("Disk of each VM in GiB; 0: the image's own."),
			"min_ready":       number("How many VMs it keeps ready."),
			"max_total":       number("At most so many VMs, ready ones and taken ones that still run."),
			"node_selector":   schema.MapAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Labels its hosts must have."},
			"nodes":           schema.SetAttribute{Computed: true, ElementType: types.StringType, MarkdownDescription: "Hosts it is held to."},
			"readiness":       text("When a VM counts as ready: `agent` or `running`."),
			"state":           text("`ready`, `filling`, `backing_off` or `paused`."),
			"ready":           number("VMs that can be taken now."),
			"booting":         number("VMs that boot."),
			"claimed_running": number("VMs that were taken and still run."),
			"claimed_24h":     number("VMs taken in the last 24 hours."),
			"avg_claim_ms":    number("Average time of a hand-over in milliseconds."),
			"wait_reason":     text("What holds the pool up: `no_capacity`, `boot_failed`, `max_total` and others."),
			"last_error":      text("What went wrong last."),
		},
	}
}

func (d *poolData) Configure(_ context.Context, req datasource.ConfigureRequest, resp *datasource.ConfigureResponse) {
	d.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (d *poolData) Read(ctx context.Context, req datasource.ReadRequest, resp *datasource.ReadResponse) {
	var m poolDataModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	p, err := d.client.Pool(ctx, m.Name.ValueString())
	if err != nil {
		addError(&resp.Diagnostics, "Reading the pool failed", err, "name")
		return
	}
	none := poolDataModel{NodeSelector: types.MapNull(types.StringType), Nodes: types.SetNull(types.StringType)}
	resp.Diagnostics.Append(resp.State.Set(ctx, poolDataModel{
		Name: types.StringValue(p.Name), Image: types.StringValue(p.Image), GuestOS: textOrNull(p.GuestOS), Owner: textOrNull(p.Owner),
		VCPUs: types.Int64Value(int64(p.Size.VCPUs)), MemoryMiB: types.Int64Value(p.Size.MemoryMiB), DiskSizeGiB: types.Int64Value(p.Size.DiskSizeGiB),
		MinReady: types.Int64Value(int64(p.MinReady)), MaxTotal: types.Int64Value(int64(p.MaxTotal)),
		NodeSelector: mapValue(p.NodeSelector, none.NodeSelector), Nodes: setValue(p.Nodes, none.Nodes), Readiness: textOrNull(p.Readiness),
		State: types.StringValue(string(p.Status.State)), Ready: types.Int64Value(int64(p.Status.Ready)), Booting: types.Int64Value(int64(p.Status.Booting)),
		ClaimedRunning: types.Int64Value(int64(p.Status.ClaimedRunning)), Claimed24h: types.Int64Value(p.Status.Claimed24h),
		AvgClaimMS: types.Int64Value(p.Status.AvgClaimMS), WaitReason: types.StringPointerValue(p.Status.WaitReason),
		LastError: types.StringPointerValue(p.Status.LastError),
	})...)
}
