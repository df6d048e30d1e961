package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure   = (*poolResource)(nil)
	_ resource.ResourceWithImportState = (*poolResource)(nil)
	_ resource.ResourceWithIdentity    = (*poolResource)(nil)
	_ resource.ResourceWithModifyPlan  = (*poolResource)(nil)
)

func newPoolResource() resource.Resource { return &poolResource{} }

type poolResource struct{ client *client.Client }

type poolModel struct {
	Name         types.String   `tfsdk:"name"`
	Tenant       types.String   `tfsdk:"tenant"`
	Image        types.String   `tfsdk:"image"`
	VCPUs        types.Int64    `tfsdk:"vcpus"`
	MemoryMiB    types.Int64    `tfsdk:"memory_mib"`
	DiskSizeGiB  types.Int64    `tfsdk:"disk_size_gib"`
	MinReady     types.Int64    `tfsdk:"min_ready"`
	MaxTotal     types.Int64    `tfsdk:"max_total"`
	NodeSelector types.Map      `tfsdk:"node_selector"`
	Nodes        types.Set      `tfsdk:"nodes"`
	Readiness    types.String   `tfsdk:"readiness"`
	WaitReady    types.Bool     `tfsdk:"wait_ready"`
	Owner        types.String   `tfsdk:"owner"`
	GuestOS      types.String   `tfsdk:"guest_os"`
	CreatedAt    types.String   `tfsdk:"created_at"`
	Timeouts     timeouts.Value `tfsdk:"timeouts"`
}

// poolFields are where a refusal may point.
var poolFields = [...]string{"name", "tenant", "image", "vcpus", "memory_mib", "disk_size_gib", "min_ready", "max_total", "node_selector", "nodes", "readiness"}

func (r *poolResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_pool"
}

func (r *poolResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = nameIdentity()
}

// fixedSize is a number that is the image's unless given, and that only a new object can change.
func fixedSize(text string, most int64) schema.Int64Attribute {
	return schema.Int64Attribute{
		Optional: true, Computed: true,
		MarkdownDescription: text + ". Otherwise the image's. Another number makes a new object.",
		Validators:          []validator.Int64{int64validator.Between(1, most)},
		PlanModifiers:       []planmodifier.Int64{int64planmodifier.UseStateForUnknown(), int64planmodifier.RequiresReplaceIfConfigured()},
	}
}

// fixedByFleet is a string that the fleet sets once.
func fixedByFleet(text string) schema.StringAttribute {
	return schema.StringAttribute{
		Computed:            true,
		MarkdownDescription: text,
		PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
	}
}

func (r *poolResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A warm pool: VMs of one image, booted and idle, so that a launch takes one that already runs. " +
			"How many are ready at the moment is in the data source of the same name.",
		Attributes: map[string]schema.Attribute{
			"name": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "1-40 characters of a-z, 0-9 and -. Another name makes a new pool.",
				Validators:          []validator.String{nameRule(api.MaxPoolName)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"tenant": fixedTenant("pool"),
			"image": schema.StringAttribute{
				Required:            true,
				MarkdownDescription: "Name of a catalog image. Another image makes a new pool.",
				Validators:          []validator.String{poolImageRule()},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"vcpus":         fixedSize("vCPUs of each VM", api.MaxVCPUs),
			"memory_mib":    fixedSize("Memory of each VM in MiB", api.MaxMemoryMiB),
			"disk_size_gib": fixedSize("Disk of each VM in GiB", api.MaxDiskGiB),
			"min_ready": schema.Int64Attribute{
				Optional: true, Computed: true,
				MarkdownDescription: "How many VMs to keep ready (1). 0 pauses the pool.",
				Default:             int64default.StaticInt64(1),
				Validators:          []validator.Int64{int64validator.Between(0, api.MaxMinReady)},
			},
			"max_total": schema.Int64Attribute{
				Optional: true, Computed: true,
				MarkdownDescription: "At most so many VMs, ready ones and taken ones that still run. Left out, the fleet derives it from " +
					"`min_ready`: four times as many, and at least four more.",
				Validators: []validator.Int64{int64validator.Between(0, api.MaxMaxTotal)},
			},
			"node_selector": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Only hosts with all of these labels.",
				Validators:          []validator.Map{selectorRule()},
			},
			"nodes": schema.SetAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Only these hosts.",
				Validators:          []validator.Set{setvalidator.ValueStringsAre(nodeRule())},
			},
			"readiness": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "When a VM counts as ready: `agent` (the guest agent answered; default where the image has one) or `running`.",
				Validators:          []validator.String{stringvalidator.OneOf(api.ReadinessAgent, api.ReadinessRunning)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown(), stringplanmodifier.RequiresReplaceIfConfigured()},
			},
			"wait_ready": schema.BoolAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Whether an apply waits until `min_ready` VMs are ready (true). When the time is up it goes on with a warning.",
				Default:             booldefault.StaticBool(true),
			},
			"owner":      fixedByFleet("The tenant, or `operator` for a shared pool."),
			"guest_os":   fixedByFleet("The image's guest operating system."),
			"created_at": fixedByFleet("When it was made."),
			"timeouts":   timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

func (r *poolResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (r *poolResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughWithIdentity(ctx, path.Root("name"), path.Root("name"), req, resp)
}

// derivedMaxTotal is what the fleet takes for max_total while it is not set.
func derivedMaxTotal(minReady int64) int64 { return min(api.MaxMaxTotal, max(4*minReady, minReady+4)) }

// ModifyPlan keeps a derived max_total out of plans until it changes. A max_total that was set and no longer is,
// here or by someone else, differs from the derived one and is planned back.
func (r *poolResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() {
		return
	}
	var config, plan, state poolModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() || !config.MaxTotal.IsNull() {
		return
	}
	next := types.Int64Unknown()
	if !plan.MinReady.IsUnknown() && derivedMaxTotal(plan.MinReady.ValueInt64()) == state.MaxTotal.ValueInt64() {
		next = state.MaxTotal
	}
	resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("max_total"), next)...)
}

// take fills the model from the API's pool.
func (m *poolModel) take(p api.Pool) {
	m.Name = types.StringValue(p.Name)
	m.Tenant = types.StringPointerValue(p.Tenant)
	m.Image = types.StringValue(p.Image)
	m.VCPUs = types.Int64Value(int64(p.Size.VCPUs))
	m.MemoryMiB = types.Int64Value(p.Size.MemoryMiB)
	m.DiskSizeGiB = types.Int64Value(p.Size.DiskSizeGiB)
	m.MinReady = types.Int64Value(int64(p.MinReady))
	m.MaxTotal = types.Int64Value(int64(p.MaxTotal))
	m.NodeSelector = mapValue(p.NodeSelector, m.NodeSelector)
	m.Nodes = setValue(p.Nodes, m.Nodes)
	m.Readiness = textOrNull(p.Readiness)
	m.Owner = textOrNull(p.Owner)
	m.GuestOS = textOrNull(p.GuestOS)
	m.CreatedAt = timeOrNull(p.CreatedAt)
	if m.WaitReady.IsNull() || m.WaitReady.IsUnknown() { // an import
		m.WaitReady = types.BoolValue(true)
	}
}

func (r *poolResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m poolModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	body := api.PoolRequest{
		Name: m.Name.ValueString(), Tenant: m.Tenant.ValueString(), Image: m.Image.ValueString(), MinReady: intPointer(m.MinReady), MaxTotal: intPointer(m.MaxTotal),
		VCPUs: int(m.VCPUs.ValueInt64()), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskSizeGiB: m.DiskSizeGiB.ValueInt64(),
		NodeSelector: stringMap(ctx, m.NodeSelector, &resp.Diagnostics), Nodes: stringSet(ctx, m.Nodes, &resp.Diagnostics),
		Readiness: m.Readiness.ValueString(),
	}
	if resp.Diagnostics.HasError() {
		return
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pool, err := r.client.CreatePool(within, body, uuid.NewString())
	if isTaken(err) {
		addTaken(&resp.Diagnostics, "fluxvm_pool", body.Name, err)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Creating the pool failed", err, poolFields[:]...)
		return
	}
	m.take(pool)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
	if !resp.Diagnostics.HasError() && m.WaitReady.ValueBool() {
		r.waitReady(within, pool.Name, &resp.Diagnostics)
	}
}

func (r *poolResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m poolModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	pool, err := r.client.Pool(ctx, m.Name.ValueString())
	if client.IsNotFound(err) {
		addGone(&resp.Diagnostics, fmt.Sprintf("Pool %q", m.Name.ValueString()),
			"The fleet has no such pool, or it is another tenant's; it was deleted outside of this configuration.")
		resp.State.RemoveResource(ctx)
		keepIdentity(ctx, resp, "name", m.Name)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Reading the pool failed", err)
		return
	}
	m.take(pool)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), m.Name)...)
}

func (r *poolResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var config, plan, state poolModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := plan.Timeouts.Update(ctx, updateTimeout)
	resp.Diagnostics.Append(diags...)
	patch, changed := poolPatch(ctx, config, plan, state, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if changed {
		pool, err := r.client.PatchPool(within, state.Name.ValueString(), patch)
		if err != nil {
			addError(&resp.Diagnostics, "Changing the pool failed", err, poolFields[:]...)
			return
		}
		plan.take(pool)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("name"), plan.Name)...)
	if changed && !resp.Diagnostics.HasError() && plan.WaitReady.ValueBool() {
		r.waitReady(within, plan.Name.ValueString(), &resp.Diagnostics)
	}
}

// poolPatch holds only what differs; null where the configuration leaves a field to the fleet.
func poolPatch(ctx context.Context, config, plan, state poolModel, diags *diag.Diagnostics) (p api.PoolPatch, changed bool) {
	if !plan.MinReady.Equal(state.MinReady) {
		p.MinReady, changed = api.Some(int(plan.MinReady.ValueInt64())), true
	}
	if n := intPointer(config.MaxTotal); n == nil {
		// The fleet moves a derived limit along by itself; one that was set has to be taken off.
		if state.MaxTotal.ValueInt64() != derivedMaxTotal(state.MinReady.ValueInt64()) {
			p.MaxTotal, changed = api.Null[int](), true
		}
	} else if !plan.MaxTotal.Equal(state.MaxTotal) {
		p.MaxTotal, changed = api.Some(*n), true
	}
	if !plan.NodeSelector.Equal(state.NodeSelector) {
		p.NodeSelector, changed = api.Null[map[string]string](), true
		if selector := stringMap(ctx, plan.NodeSelector, diags); len(selector) > 0 {
			p.NodeSelector = api.Some(selector)
		}
	}
	if !plan.Nodes.Equal(state.Nodes) {
		p.Nodes, changed = api.Null[[]string](), true
		if nodes := stringSet(ctx, plan.Nodes, diags); len(nodes) > 0 {
			p.Nodes = api.Some(nodes)
		}
	}
	return p, changed
}

func (r *poolResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m poolModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := r.client.DeletePool(ctx, m.Name.ValueString()); err != nil && !client.IsNotFound(err) {
		addError(&resp.Diagnostics, "Deleting the pool failed", err)
	}
}

// errPoolStuck ends a wait that more time would not help.
var errPoolStuck = errors.New("the pool waits")

// waitReady waits until the pool is full. A pool that cannot fill at the moment, or not in time, is a warning: it
// goes on trying by itself. An image that does not boot is an error.
func (r *poolResource) waitReady(ctx context.Context, name string, diags *diag.Diagnostics) {
	var last api.PoolStatus
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		pool, err := r.client.Pool(ctx, name)
		if err != nil {
			return false, err
		}
		last = pool.Status
		switch {
		case pool.MinReady == 0, last.Ready >= pool.MinReady:
			return true, nil
		case last.State == api.PoolBackingOff, last.WaitReason != nil && last.Booting == 0:
			return false, errPoolStuck
		}
		return false, nil
	})
	switch {
	case err == nil:
	case errors.Is(err, errPoolStuck):
		text := poolTrouble(last)
		if last.WaitReason != nil && slices.Contains([]string{api.WaitBootFailed, api.WaitImage}, *last.WaitReason) {
			diags.AddError(fmt.Sprintf("Pool %q cannot boot its VMs", name), text+"\nCorrect the image; the pool exists and goes on trying.")
			return
		}
		diags.AddWarning(fmt.Sprintf("Pool %q is not full", name), text+"\nThe pool exists and goes on trying.")
	case outOfTime(ctx, err):
		diags.AddWarning(fmt.Sprintf("Pool %q is not full yet", name),
			poolTrouble(last)+"\nThe pool exists and goes on filling. Raise timeouts.create or timeouts.update to wait longer, or set wait_ready = false.")
	default:
		addError(diags, "Waiting for the pool failed", err)
	}
}

// poolTrouble says how full a pool is and what holds it up.
func poolTrouble(s api.PoolStatus) string {
	text := fmt.Sprintf("%d ready, %d booting.", s.Ready, s.Booting)
	if s.WaitReason != nil {
		text += fmt.Sprintf(" It waits: %s.", *s.WaitReason)
	}
	if s.LastError != nil {
		text += " Last error: " + *s.LastError + "."
	}
	if !s.BackoffUntil.IsZero() {
		text += " Next try: " + s.BackoffUntil.String() + "."
	}
	if why := reasonsText(s.Reasons); why != "" {
		text += " " + why
	}
	return text
}
