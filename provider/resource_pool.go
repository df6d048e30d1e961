package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/resourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/setvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
)

type poolModel struct {
	Name         types.String   `tfsdk:"name"`
	NamePrefix   types.String   `tfsdk:"name_prefix"`
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

func newPoolResource() resource.Resource {
	return &managed[poolModel, api.Pool]{kind: kind[poolModel, api.Pool]{
		noun: "pool", identity: []string{"name"}, schema: poolSchema, take: (*poolModel).take,
		validators: []resource.ConfigValidator{resourcevalidator.ExactlyOneOf(path.MatchRoot("name"), path.MatchRoot("name_prefix"))},
		create: func(ctx context.Context, o op, m, _ *poolModel) (api.Pool, error) {
			if m.Name.IsUnknown() {
				m.Name = types.StringValue(madeName(m.NamePrefix.ValueString()))
			}
			return o.CreatePool(ctx, api.PoolRequest{
				Name: m.Name.ValueString(), Tenant: m.Tenant.ValueString(), Image: m.Image.ValueString(), MinReady: intPointer(m.MinReady), MaxTotal: intPointer(m.MaxTotal),
				VCPUs: int(m.VCPUs.ValueInt64()), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskSizeGiB: m.DiskSizeGiB.ValueInt64(),
				NodeSelector: stringMap(ctx, m.NodeSelector, o.diags), Nodes: stringSet(ctx, m.Nodes, o.diags), Readiness: m.Readiness.ValueString(),
			}, uuid.NewString())
		},
		read: func(ctx context.Context, o op, m *poolModel) (api.Pool, error) {
			return o.Pool(ctx, m.Name.ValueString())
		},
		update: func(ctx context.Context, o op, plan, state *poolModel) (*api.Pool, error) {
			return send(poolPatch(ctx, o, plan, state), func(p api.PoolPatch) (api.Pool, error) { return o.PatchPool(ctx, state.Name.ValueString(), p) })
		},
		remove: func(ctx context.Context, o op, m *poolModel) error { return o.DeletePool(ctx, m.Name.ValueString()) },
		settle: func(ctx context.Context, o op, m, config *poolModel, pool api.Pool) (api.Pool, bool) {
			if !m.WaitReady.ValueBool() {
				return pool, true
			}
			if config == nil {
				return waitPoolReady(ctx, o, pool, "timeouts.update"), true
			}
			return waitPoolReady(ctx, o, pool, "timeouts.create"), true
		},
	}}
}

func poolSchema(ctx context.Context) schema.Schema {
	return schema.Schema{
		MarkdownDescription: "A warm pool: VMs of one image, booted and idle, so that a launch takes one that already runs. " +
			"How many are ready at the moment is in the data source of the same name.",
		Attributes: map[string]schema.Attribute{
			"name": fixedChoice("1-40 characters of a-z, 0-9 and -. Either this or `name_prefix`. Another name makes a new pool.", nameRule(api.MaxPoolName)),
			"name_prefix": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "What the name begins with; the rest is made. With it and `create_before_destroy` a pool of another image is there before the old one goes.",
				Validators:          []validator.String{nameRule(api.MaxPoolName - madeLength)},
				PlanModifiers:       []planmodifier.String{prefixOfName{}},
			},
			"tenant":        fixedTenant("pool"),
			"image":         fixedText("Name of a catalog image. Another image makes a new pool.", poolImageRule()),
			"vcpus":         fixedSize("vCPUs of each VM", api.MaxVCPUs),
			"memory_mib":    fixedSize("Memory of each VM in MiB", api.MaxMemoryMiB),
			"disk_size_gib": fixedSize("Disk of each VM in GiB", api.MaxDiskGiB),
			"min_ready":     number("How many VMs to keep ready (1). 0 pauses the pool.", 1, 0, api.MaxMinReady),
			"max_total": bounded("At most so many VMs, ready ones and taken ones that still run. Left out, the fleet derives it from `min_ready`; "+
				"the data source shows what it takes.", int64validator.Between(0, api.MaxMaxTotal)),
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
			"wait_ready": boolean("Whether an apply waits until `min_ready` VMs are ready (true). When the time is up it goes on with a warning.", true),
			"owner":      fixedByFleet("The tenant, or `operator` for a shared pool."),
			"guest_os":   fixedByFleet("The image's guest operating system."),
			"created_at": fixedByFleet("When it was made."),
			"timeouts":   allTimeouts(ctx),
		},
	}
}

// madeLength is how many characters are made for a name_prefix.
const madeLength = 10

// madeName gives a name that begins with prefix and that nothing else has.
func madeName(prefix string) string {
	return prefix + strings.ReplaceAll(uuid.NewString(), "-", "")[:madeLength]
}

// prefixOf is the prefix that a name was made from; empty for one that people chose.
func prefixOf(name string) string {
	at := len(name) - madeLength
	if at < 1 || strings.Trim(name[at:], "0123456789abcdef") != "" {
		return ""
	}
	return name[:at]
}

// prefixOfName keeps a pool whose name begins as the configuration wants.
type prefixOfName struct{}

func (prefixOfName) Description(context.Context) string { return "another prefix makes a new object" }
func (prefixOfName) MarkdownDescription(context.Context) string {
	return "another prefix makes a new object"
}

func (prefixOfName) PlanModifyString(ctx context.Context, req planmodifier.StringRequest, resp *planmodifier.StringResponse) {
	if req.ConfigValue.IsNull() {
		resp.PlanValue = req.StateValue
		return
	}
	var name types.String
	if !req.State.Raw.IsNull() {
		resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("name"), &name)...)
	}
	resp.RequiresReplace = !name.IsNull() && !strings.HasPrefix(name.ValueString(), req.ConfigValue.ValueString())
}

func (m *poolModel) take(p api.Pool) {
	m.Name = types.StringValue(p.Name)
	m.Tenant = types.StringPointerValue(p.Tenant)
	m.Image = types.StringValue(p.Image)
	m.VCPUs = types.Int64Value(int64(p.Size.VCPUs))
	m.MemoryMiB = types.Int64Value(p.Size.MemoryMiB)
	m.DiskSizeGiB = types.Int64Value(p.Size.DiskSizeGiB)
	m.MinReady = types.Int64Value(int64(p.MinReady))
	m.MaxTotal = types.Int64Null()
	if p.MaxTotalSet {
		m.MaxTotal = types.Int64Value(int64(p.MaxTotal))
	}
	m.NodeSelector = mapValue(p.NodeSelector, m.NodeSelector)
	m.Nodes = setValue(p.Nodes, m.Nodes)
	m.Readiness = textOrNull(p.Readiness)
	m.Owner = textOrNull(p.Owner)
	m.GuestOS = textOrNull(p.GuestOS)
	m.CreatedAt = timeOrNull(p.CreatedAt)
	if m.WaitReady.IsNull() { // an import
		m.WaitReady, m.NamePrefix = types.BoolValue(true), textOrNull(prefixOf(p.Name))
	}
}

// poolPatch holds only what differs; null where the configuration leaves a field to the fleet.
func poolPatch(ctx context.Context, o op, plan, state *poolModel) (p api.PoolPatch) {
	patchInt(&p.MinReady, plan.MinReady, state.MinReady)
	patchInt(&p.MaxTotal, plan.MaxTotal, state.MaxTotal)
	selector, nodes := stringMap(ctx, plan.NodeSelector, o.diags), stringSet(ctx, plan.Nodes, o.diags)
	patchWhole(&p.NodeSelector, plan.NodeSelector, state.NodeSelector, selector, len(selector))
	patchWhole(&p.Nodes, plan.Nodes, state.Nodes, nodes, len(nodes))
	return p
}

// errPoolStuck ends a wait that more time would not help.
var errPoolStuck = errors.New("the pool waits")

// waitPoolReady waits until the pool is full, and gives it as last seen. A pool that cannot fill at the moment, or not
// in time, is a warning: it goes on trying by itself. An image that does not boot is an error.
func waitPoolReady(ctx context.Context, o op, pool api.Pool, setting string) api.Pool {
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		next, err := o.Pool(ctx, pool.Name)
		if err != nil {
			return false, err
		}
		switch pool = next; {
		case pool.MinReady == 0, pool.Status.Ready >= pool.MinReady:
			return true, nil
		case pool.Status.State == api.PoolBackingOff, pool.Status.WaitReason != nil && pool.Status.Booting == 0:
			return false, errPoolStuck
		}
		return false, nil
	})
	what, text := fmt.Sprintf("Pool %q ", pool.Name), poolTrouble(pool.Status)
	switch {
	case err == nil:
	case errors.Is(err, errPoolStuck) && slices.Contains([]string{api.WaitBootFailed, api.WaitImage}, *orEmpty(pool.Status.WaitReason)):
		o.diags.AddError(what+"cannot boot its VMs", text+"\nCorrect the image; the pool exists and goes on trying.")
	case errors.Is(err, errPoolStuck):
		o.diags.AddWarning(what+"is not full", text+"\nThe pool exists and goes on trying.")
	case outOfTime(ctx, err):
		o.diags.AddWarning(what+"is not full yet", text+"\nThe pool exists and goes on filling. Raise "+setting+" to wait longer, or set wait_ready = false.")
	default:
		addError(o.diags, "Waiting for the pool failed", err)
	}
	return pool
}

func orEmpty(s *string) *string {
	if s == nil {
		return new("")
	}
	return s
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
