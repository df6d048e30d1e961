package provider

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/resourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/boolplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/mapplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/stringplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure        = (*vmResource)(nil)
	_ resource.ResourceWithConfigValidators = (*vmResource)(nil)
	_ resource.ResourceWithImportState      = (*vmResource)(nil)
	_ resource.ResourceWithIdentity         = (*vmResource)(nil)
	_ resource.ResourceWithModifyPlan       = (*vmResource)(nil)
)

func newVMResource() resource.Resource { return &vmResource{} }

type vmResource struct{ client *client.Client }

type vmModel struct {
	ID           types.String   `tfsdk:"id"`
	Name         types.String   `tfsdk:"name"`
	Tenant       types.String   `tfsdk:"tenant"`
	Pool         types.String   `tfsdk:"pool"`
	Image        types.String   `tfsdk:"image"`
	VCPUs        types.Int64    `tfsdk:"vcpus"`
	MemoryMiB    types.Int64    `tfsdk:"memory_mib"`
	DiskSizeGiB  types.Int64    `tfsdk:"disk_size_gib"`
	Node         types.String   `tfsdk:"node"`
	NodeSelector types.Map      `tfsdk:"node_selector"`
	Labels       types.Map      `tfsdk:"labels"`
	TTLSeconds   types.Int64    `tfsdk:"ttl_seconds"`
	WaitReady    types.Bool     `tfsdk:"wait_ready"`
	Warm         types.Bool     `tfsdk:"warm"`
	ColdReason   types.String   `tfsdk:"cold_reason"`
	ClaimMS      types.Int64    `tfsdk:"claim_ms"`
	IP           types.String   `tfsdk:"ip"`
	Backend      types.String   `tfsdk:"backend"`
	GuestOS      types.String   `tfsdk:"guest_os"`
	CreatedAt    types.String   `tfsdk:"created_at"`
	ExpiresAt    types.String   `tfsdk:"expires_at"`
	Timeouts     timeouts.Value `tfsdk:"timeouts"`
}

// vmFields are where a refusal may point.
var vmFields = [...]string{"name", "tenant", "pool", "image", "vcpus", "memory_mib", "disk_size_gib", "node", "node_selector", "labels", "ttl_seconds"}

func (r *vmResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_vm"
}

func (r *vmResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"id": identityschema.StringAttribute{RequiredForImport: true, Description: "The VM's id, or at import its name (TENANT/NAME for an operator)."},
	}}
}

// fixedChoice is a string that the fleet chooses unless given, and that only a new VM can change.
func fixedChoice(text string, rule validator.String) schema.StringAttribute {
	return schema.StringAttribute{
		Optional: true, Computed: true,
		MarkdownDescription: text,
		Validators:          []validator.String{rule},
		PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown(), stringplanmodifier.RequiresReplaceIfConfigured()},
	}
}

// fixedTenant is whose a new object is.
func fixedTenant(what string) schema.StringAttribute {
	return fixedChoice(fmt.Sprintf("Whose %[1]s it is, for an operator that acts for a tenant. Otherwise the provider's tenant or the token's; null is the operator's own. "+
		"Another tenant makes a new %[1]s.", what), nameRule(api.MaxPoolName))
}

func (r *vmResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	resp.Schema = schema.Schema{
		MarkdownDescription: "A virtual machine: taken from a warm pool when one matches, else booted. One that its time to live has ended " +
			"is planned anew.",
		Attributes: map[string]schema.Attribute{
			"id": fixedByFleet("The VM's id."),
			"name": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "1-63 characters of a-z, 0-9 and -, unique among the tenant's VMs. Otherwise made from the id.",
				Validators:          []validator.String{nameRule(api.MaxVMName)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.UseStateForUnknown()},
			},
			"tenant": fixedTenant("VM"),
			"pool":   fixedChoice("Warm pool to take it from; it gives image and size. Another pool makes a new VM.", nameRule(api.MaxPoolName)),
			"image": fixedChoice("Catalog image, by name or path. A pool of this image is used when the size matches. Another image makes a new VM.",
				imagePathRule()),
			"vcpus":         fixedSize("vCPUs", api.MaxVCPUs),
			"memory_mib":    fixedSize("Memory in MiB", api.MaxMemoryMiB),
			"disk_size_gib": fixedSize("Disk in GiB", api.MaxDiskGiB),
			"node":          fixedChoice("The host. When given, only this one will do, and another makes a new VM.", nodeRule()),
			"node_selector": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Only hosts with all of these labels. Another selector makes a new VM.",
				Validators:          []validator.Map{selectorRule()},
				PlanModifiers:       []planmodifier.Map{mapplanmodifier.RequiresReplace()},
			},
			"labels": schema.MapAttribute{
				Optional: true, ElementType: types.StringType,
				MarkdownDescription: "Your own labels.",
				Validators:          []validator.Map{labelsRule()},
			},
			"ttl_seconds": schema.Int64Attribute{
				Optional:            true,
				MarkdownDescription: "The fleet deletes the VM after so many seconds. A change counts from the moment of the change; left out, there is no limit.",
				Validators:          []validator.Int64{int64validator.Between(1, api.MaxTTLSeconds)},
			},
			"wait_ready": schema.BoolAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Whether an apply waits until the guest agent answers, or for images without one until the VM runs (true). " +
					"When the time is up it goes on with a warning.",
				Default: booldefault.StaticBool(true),
			},
			"warm": schema.BoolAttribute{
				Computed:            true,
				MarkdownDescription: "Whether it came booted from a pool.",
				PlanModifiers:       []planmodifier.Bool{boolplanmodifier.UseStateForUnknown()},
			},
			"cold_reason": fixedByFleet("Why it was booted: `pool_empty`, `no_pool`, `rename_failed`, or what a booted VM cannot have."),
			"claim_ms": schema.Int64Attribute{
				Computed:            true,
				MarkdownDescription: "How long the hand-over from the pool took, in milliseconds. Known only where this resource launched the VM.",
				PlanModifiers:       []planmodifier.Int64{int64planmodifier.UseStateForUnknown()},
			},
			"ip":         fixedByFleet("Its address, where the host knows it."),
			"backend":    fixedByFleet("What runs it."),
			"guest_os":   fixedByFleet("Its guest operating system."),
			"created_at": fixedByFleet("When it was made."),
			"expires_at": fixedByFleet("When its time to live ends."),
			"timeouts":   timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

func (r *vmResource) ConfigValidators(context.Context) []resource.ConfigValidator {
	return []resource.ConfigValidator{resourcevalidator.AtLeastOneOf(path.MatchRoot("pool"), path.MatchRoot("image"))}
}

func (r *vmResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

// vmImportID names a VM for an import. Names are a tenant's own, so an operator gives the tenant with it.
func vmImportID(m vmModel) string {
	if tenant := m.Tenant.ValueString(); tenant != "" {
		return tenant + "/" + m.Name.ValueString()
	}
	return m.Name.ValueString()
}

// find gives the VM of an id, a name, or TENANT/NAME.
func (r *vmResource) find(ctx context.Context, given string) (api.VM, error) {
	vm, err := r.client.VM(ctx, given)
	if !client.IsNotFound(err) {
		return vm, err
	}
	tenant, name, ok := strings.Cut(given, "/")
	if !ok {
		tenant, name = "", given // of the tenant that the provider acts for, or of the only one with that name
	}
	var found []api.VM
	for one, failed := range r.client.VMs(ctx, client.Filter{Tenant: tenant}) {
		if failed != nil {
			return vm, failed
		}
		if one.Name == name && !ended(one.State) {
			found = append(found, one)
		}
	}
	switch len(found) {
	case 0:
		return vm, err
	case 1:
		return found[0], nil
	}
	return vm, api.Errorf(api.CodeConflict, "%d tenants have a VM of that name; import TENANT/%s, or the VM's id", len(found), name)
}

// ImportState takes an id, a name, or TENANT/NAME.
func (r *vmResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughWithIdentity(ctx, path.Root("id"), path.Root("id"), req, resp)
	var given types.String
	resp.Diagnostics.Append(resp.State.GetAttribute(ctx, path.Root("id"), &given)...)
	if resp.Diagnostics.HasError() {
		return
	}
	vm, err := r.find(ctx, given.ValueString())
	if err != nil {
		addError(&resp.Diagnostics, fmt.Sprintf("VM %q cannot be imported", given.ValueString()), err)
		return
	}
	resp.Diagnostics.Append(resp.State.SetAttribute(ctx, path.Root("id"), vm.ID)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), vm.ID)...)
}

// ModifyPlan says that a new time to live moves the deadline.
func (r *vmResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() {
		return
	}
	var plan, state types.Int64
	resp.Diagnostics.Append(req.Plan.GetAttribute(ctx, path.Root("ttl_seconds"), &plan)...)
	resp.Diagnostics.Append(req.State.GetAttribute(ctx, path.Root("ttl_seconds"), &state)...)
	if !plan.Equal(state) {
		resp.Diagnostics.Append(resp.Plan.SetAttribute(ctx, path.Root("expires_at"), types.StringUnknown())...)
	}
}

// take fills the model from the API's VM. What was chosen at launch stays as it was written: the fleet may know
// it by another name (a path for a catalog name).
func (m *vmModel) take(vm api.VM) {
	m.ID = types.StringValue(vm.ID)
	m.Name = types.StringValue(vm.Name)
	m.Tenant = types.StringPointerValue(vm.Tenant)
	if m.Pool.IsNull() || m.Pool.IsUnknown() {
		m.Pool = textOrNull(vm.Pool)
	}
	if m.Image.IsNull() || m.Image.IsUnknown() {
		m.Image = textOrNull(vm.Image)
	}
	m.VCPUs = types.Int64Value(int64(vm.VCPUs))
	m.MemoryMiB = types.Int64Value(vm.MemoryMiB)
	m.DiskSizeGiB = types.Int64Value(vm.DiskSizeGiB)
	m.Node = textOrNull(vm.Node)
	own := maps.Clone(vm.Labels)
	maps.DeleteFunc(own, func(k, _ string) bool { return strings.HasPrefix(k, api.LabelPrefix) })
	m.Labels = mapValue(own, m.Labels)
	if m.WaitReady.IsNull() || m.WaitReady.IsUnknown() { // an import
		m.WaitReady = types.BoolValue(true)
	}
	m.Warm = types.BoolValue(vm.ClaimedFrom != "")
	m.ColdReason = textOrNull(vm.ColdReason)
	if m.ClaimMS.IsUnknown() {
		m.ClaimMS = types.Int64Null()
	}
	m.IP = textOrNull(vm.IP)
	m.Backend = textOrNull(vm.Backend)
	m.GuestOS = textOrNull(vm.GuestOS)
	m.CreatedAt = timeOrNull(vm.CreatedAt)
	m.ExpiresAt = timeOrNull(vm.ExpiresAt)
}

// refreshTTL finds a time to live that someone else has set, moved or taken off. The fleet keeps the deadline
// only, so one that moved is shown as the whole time from the VM's start.
func (m *vmModel) refreshTTL(vm api.VM) {
	switch {
	case vm.ExpiresAt.IsZero():
		m.TTLSeconds = types.Int64Null()
	case !m.ExpiresAt.Equal(timeOrNull(vm.ExpiresAt)):
		start := vm.CreatedAt
		if !vm.ClaimedAt.IsZero() {
			start = vm.ClaimedAt
		}
		secs := (vm.ExpiresAt.Sub(start) + time.Second - 1) / time.Second
		m.TTLSeconds = types.Int64Value(max(1, int64(secs)))
	}
}

func (r *vmResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m vmModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	body := api.LaunchRequest{
		Name: m.Name.ValueString(), Tenant: m.Tenant.ValueString(), Pool: m.Pool.ValueString(), Image: m.Image.ValueString(),
		VCPUs: int(m.VCPUs.ValueInt64()), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskSizeGiB: m.DiskSizeGiB.ValueInt64(),
		TTLSeconds: m.TTLSeconds.ValueInt64(), Node: m.Node.ValueString(),
		NodeSelector: stringMap(ctx, m.NodeSelector, &resp.Diagnostics), Labels: stringMap(ctx, m.Labels, &resp.Diagnostics),
	}
	if resp.Diagnostics.HasError() {
		return
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	answer, _, err := r.client.Launch(within, body, client.LaunchOptions{Key: uuid.NewString()})
	if isTaken(err) {
		addTaken(&resp.Diagnostics, "fluxvm_vm", vmImportID(m), err)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Launching the VM failed", err, vmFields[:]...)
		return
	}
	if answer.ClaimMS != nil {
		m.ClaimMS = types.Int64Value(*answer.ClaimMS)
	}
	m.take(answer.VM)
	m.Warm = types.BoolValue(answer.Warm)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
	if resp.Diagnostics.HasError() || !m.WaitReady.ValueBool() {
		return
	}
	vm, ok := r.waitReady(within, answer.VM, &resp.Diagnostics)
	if !ok {
		resp.State.RemoveResource(ctx)
		return
	}
	m.take(vm)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// errVMEnded ends a wait for a VM that will never be ready.
var errVMEnded = errors.New("the VM ended")

// waitReady waits until the guest agent answers, and gives the VM as last seen. It is false when there is no VM
// any more. A wait that runs out is a warning; a VM that failed is an error.
func (r *vmResource) waitReady(ctx context.Context, vm api.VM, diags *diag.Diagnostics) (api.VM, bool) {
	agentless := false
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		if ended(vm.State) || vm.State == api.StateFailed {
			return false, errVMEnded
		}
		if !vm.ReadyAt.IsZero() || vm.State == api.StateRunning && agentless {
			return true, nil
		}
		if vm.State == api.StateRunning {
			image, err := r.client.Image(ctx, vm.Image)
			agentless = client.IsNotFound(err) || err == nil && !image.HasAgent
			if agentless {
				return true, nil
			}
		}
		next, err := r.client.VM(ctx, vm.ID)
		if err == nil {
			vm = next
		}
		return false, err
	})
	what := fmt.Sprintf("VM %q", vm.Name)
	switch {
	case err == nil:
	case client.IsNotFound(err), errors.Is(err, errVMEnded) && ended(vm.State):
		diags.AddError(what+" ended before it was ready", "It was deleted, or ttl_seconds is shorter than it takes to boot. Raise ttl_seconds or leave it out.")
		return vm, false
	case errors.Is(err, errVMEnded):
		diags.AddError(what+" failed on "+vm.Node, fmt.Sprintf("%s\nCorrect the cause; the next apply replaces it.", orDefault(vm.Reason, "The host gave no reason.")))
	case outOfTime(ctx, err):
		diags.AddWarning(what+" is not ready yet", fmt.Sprintf("It is %s on %s and boots on. Raise timeouts.create to wait longer, or set wait_ready = false.", vm.State, vm.Node))
	default:
		addError(diags, "Waiting for "+what+" failed", err)
	}
	return vm, true
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// ended says that nothing is left of a VM that a configuration could manage.
func ended(s api.VMState) bool {
	return s == api.StateDeleting || s == api.StateGone || s == api.StateLost
}

func (r *vmResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m vmModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	vm, err := r.client.VM(ctx, m.ID.ValueString())
	if client.IsNotFound(err) || err == nil && ended(vm.State) {
		addGone(&resp.Diagnostics, fmt.Sprintf("VM %q", m.Name.ValueString()), whyGone(m, vm.State, time.Now()))
		resp.State.RemoveResource(ctx)
		keepIdentity(ctx, resp, "id", m.ID)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Reading the VM failed", err)
		return
	}
	if vm.State == api.StateFailed {
		resp.Diagnostics.AddWarning(fmt.Sprintf("VM %q has failed", vm.Name), orDefault(vm.Reason, "The host gave no reason.")+
			" It is kept as it is; replace it with terraform apply -replace=ADDRESS.")
	}
	m.refreshTTL(vm)
	m.take(vm)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
}

// whyGone tells a deadline that was known from a deletion.
func whyGone(m vmModel, state api.VMState, now time.Time) string {
	if state == api.StateLost {
		return fmt.Sprintf("Its host %s is lost.", m.Node.ValueString())
	}
	if at, err := time.Parse(time.RFC3339, m.ExpiresAt.ValueString()); err == nil && !at.After(now) {
		return fmt.Sprintf("Its time to live ended at %s.", m.ExpiresAt.ValueString())
	}
	return "The fleet has no such VM; it was deleted outside of this configuration."
}

func (r *vmResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state vmModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := plan.Timeouts.Update(ctx, updateTimeout)
	resp.Diagnostics.Append(diags...)
	patch, changed := vmPatch(ctx, plan, state, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if changed {
		vm, err := r.client.PatchVM(ctx, state.ID.ValueString(), patch)
		if isTaken(err) {
			addTaken(&resp.Diagnostics, "fluxvm_vm", vmImportID(plan), err)
			return
		}
		if err != nil {
			addError(&resp.Diagnostics, "Changing the VM failed", err, vmFields[:]...)
			return
		}
		plan.take(vm)
	}
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), plan.ID)...)
}

// vmPatch holds only what differs.
func vmPatch(ctx context.Context, plan, state vmModel, diags *diag.Diagnostics) (p api.VMPatch, changed bool) {
	if !plan.Name.Equal(state.Name) {
		p.Name, changed = api.Some(plan.Name.ValueString()), true
	}
	if !plan.TTLSeconds.Equal(state.TTLSeconds) {
		p.TTLSeconds, changed = api.Null[int64](), true
		if !plan.TTLSeconds.IsNull() {
			p.TTLSeconds = api.Some(plan.TTLSeconds.ValueInt64())
		}
	}
	was, now := stringMap(ctx, state.Labels, diags), stringMap(ctx, plan.Labels, diags)
	labels := map[string]*string{}
	for k, v := range now {
		if old, ok := was[k]; !ok || old != v {
			labels[k] = &v
		}
	}
	for k := range was {
		if _, ok := now[k]; !ok {
			labels[k] = nil
		}
	}
	if len(labels) > 0 {
		p.Labels, changed = labels, true
	}
	return p, changed
}

func (r *vmResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m vmModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := r.client.DeleteVM(within, m.ID.ValueString())
	if err != nil && !client.IsNotFound(err) {
		addError(&resp.Diagnostics, "Deleting the VM failed", err)
		return
	}
	err = waitFor(within, func(ctx context.Context) (bool, error) {
		vm, err := r.client.VM(ctx, m.ID.ValueString())
		if client.IsNotFound(err) || err == nil && (vm.State == api.StateGone || vm.State == api.StateLost) {
			return true, nil
		}
		return false, err
	})
	switch {
	case err == nil:
	case outOfTime(within, err):
		resp.Diagnostics.AddWarning(fmt.Sprintf("VM %q is still being deleted", m.Name.ValueString()),
			fmt.Sprintf("The fleet has accepted the deletion and goes on with it; its host is %s. Raise timeouts.delete to wait longer.", m.Node.ValueString()))
	default:
		addError(&resp.Diagnostics, "Waiting for the VM's deletion failed", err)
	}
}
