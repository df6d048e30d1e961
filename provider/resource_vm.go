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
	"github.com/hashicorp/terraform-plugin-framework-validators/stringvalidator"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
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
	CloudInit    *cloudInit     `tfsdk:"cloud_init"`
	CloudInitNo  types.Int64    `tfsdk:"cloud_init_version"`
	Claim        *guestClaim    `tfsdk:"claim"`
	ClaimNo      types.Int64    `tfsdk:"claim_version"`
	Network      *vmNetwork     `tfsdk:"network"`
	Apple        *vmApple       `tfsdk:"apple"`
	ExtraDisks   []extraDisk    `tfsdk:"extra_disks"`
	Balloon      *balloonDevice `tfsdk:"balloon"`
	Security     types.String   `tfsdk:"security_profile"`
	Reschedule   types.Bool     `tfsdk:"reschedulable"`
	CapacityWait types.Int64    `tfsdk:"wait_for_capacity_seconds"`
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

func newVMResource() resource.Resource {
	return &managed[vmModel, api.VM]{kind: kind[vmModel, api.VM]{
		noun: "VM", identity: []string{"id"}, schema: vmSchema, plan: planVM, find: findVM, importID: vmImportID, drift: (*vmModel).refreshTTL, take: (*vmModel).take,
		validators: []resource.ConfigValidator{resourcevalidator.AtLeastOneOf(path.MatchRoot("pool"), path.MatchRoot("image"))},
		create: func(ctx context.Context, o op, m, config *vmModel) (api.VM, error) {
			answer, _, err := o.Launch(ctx, api.LaunchRequest{
				Name: m.Name.ValueString(), Tenant: m.Tenant.ValueString(), Pool: m.Pool.ValueString(), Image: m.Image.ValueString(),
				VCPUs: int(m.VCPUs.ValueInt64()), MemoryMiB: m.MemoryMiB.ValueInt64(), DiskSizeGiB: m.DiskSizeGiB.ValueInt64(),
				TTLSeconds: m.TTLSeconds.ValueInt64(), Node: m.Node.ValueString(), CloudInit: config.CloudInit.wire(), Claim: config.Claim.wire(),
				NodeSelector: stringMap(ctx, m.NodeSelector, o.diags), Labels: stringMap(ctx, m.Labels, o.diags),
				Backend: m.Backend.ValueString(), Network: m.Network.wire(), Apple: m.Apple.wire(), ExtraDisks: extraDisks(m.ExtraDisks), Balloon: m.Balloon.wire(),
				SecurityProfile: m.Security.ValueString(), Reschedulable: m.Reschedule.ValueBool(), WaitForCapacitySecs: m.CapacityWait.ValueInt64(),
			}, client.LaunchOptions{Key: uuid.NewString()})
			m.ClaimMS = types.Int64PointerValue(answer.ClaimMS)
			return answer.VM, err
		},
		read: func(ctx context.Context, o op, m *vmModel) (api.VM, error) {
			vm, err := o.VM(ctx, m.ID.ValueString())
			if err == nil && vm.State == api.StateFailed {
				o.diags.AddWarning(fmt.Sprintf("VM %q has failed", vm.Name), orDefault(vm.Reason, "The host gave no reason.")+
					" It is kept as it is; replace it with terraform apply -replace=ADDRESS.")
			}
			return vm, err
		},
		update: func(ctx context.Context, o op, plan, state *vmModel) (*api.VM, error) {
			return send(vmPatch(ctx, o, plan, state), func(p api.VMPatch) (api.VM, error) { return o.PatchVM(ctx, state.ID.ValueString(), p) })
		},
		remove: removeVM,
		gone: func(m *vmModel, vm *api.VM) string {
			switch {
			case vm == nil:
				return whyGone(m, "", time.Now())
			case ended(vm.State):
				return whyGone(m, vm.State, time.Now())
			}
			return ""
		},
		settle: func(ctx context.Context, o op, m, config *vmModel, vm api.VM) (api.VM, bool) {
			if !m.WaitReady.ValueBool() || config == nil { // no change makes a VM boot
				return vm, true
			}
			return waitVMReady(ctx, o, vm)
		},
	}}
}

func vmSchema(ctx context.Context) schema.Schema {
	return schema.Schema{
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
			"cloud_init":         cloudInitAttribute(),
			"cloud_init_version": versionOf("cloud_init"),
			"claim":              claimAttribute(),
			"claim_version":      versionOf("claim"),
			"network":            networkAttribute(),
			"apple":              appleAttribute(),
			"extra_disks":        extraDisksAttribute(),
			"balloon":            balloonAttribute(),
			"security_profile": schema.StringAttribute{
				Optional:            true,
				MarkdownDescription: "`standard` unless given; `measured`, `confidential-snp` and `confidential-tdx` need a host that has them. Another one makes a new VM.",
				Validators:          []validator.String{stringvalidator.OneOf(api.SecurityProfiles[:]...)},
				PlanModifiers:       []planmodifier.String{stringplanmodifier.RequiresReplace()},
			},
			"reschedulable": schema.BoolAttribute{
				Optional: true, Computed: true, Default: booldefault.StaticBool(false),
				MarkdownDescription: "Whether it boots again elsewhere, from its image, when its host is lost or drained (false). Another value makes a new VM.",
				PlanModifiers:       []planmodifier.Bool{boolplanmodifier.RequiresReplace()},
			},
			"wait_for_capacity_seconds": bounded("How long a create waits for a host that has room; left out, it fails at once and says why no host will do.",
				int64validator.Between(1, api.MaxWaitForCapacitySecs)),
			"ttl_seconds": bounded("The fleet deletes the VM after so many seconds. A change counts from the moment of the change; left out, there is no limit.",
				int64validator.Between(1, api.MaxTTLSeconds)),
			"wait_ready": boolean("Whether an apply waits until the guest agent answers, or for images without one until the VM runs (true). "+
				"When the time is up it goes on with a warning.", true),
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
			"ip": fixedByFleet("Its address, where the host knows it."),
			"backend": fixedChoice("What runs it; the host's own choice unless given. Another one makes a new VM.",
				stringvalidator.OneOf(api.BackendVZ, api.BackendFluxVM, api.BackendQEMU, api.BackendProcbox, api.BackendSim)),
			"guest_os":   fixedByFleet("Its guest operating system."),
			"created_at": fixedByFleet("When it was made."),
			"expires_at": fixedByFleet("When its time to live ends."),
			"timeouts":   allTimeouts(ctx),
		},
	}
}

// vmImportID names a VM for an import. Names are a tenant's own, so an operator gives the tenant with it.
func vmImportID(m *vmModel) string {
	if tenant := m.Tenant.ValueString(); tenant != "" {
		return tenant + "/" + m.Name.ValueString()
	}
	return m.Name.ValueString()
}

// findVM gives the id of the VM of an id, a name, or TENANT/NAME.
func findVM(ctx context.Context, o op, given string) (string, error) {
	vm, err := o.VM(ctx, given)
	if !client.IsNotFound(err) {
		return vm.ID, err
	}
	tenant, name, ok := strings.Cut(given, "/")
	if !ok {
		tenant, name = "", given // of the tenant that the provider acts for, or of the only one with that name
	}
	var found []string
	for one, failed := range o.VMs(ctx, client.Filter{Tenant: tenant}) {
		if failed != nil {
			return "", failed
		}
		if one.Name == name && !ended(one.State) {
			found = append(found, one.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", err
	case 1:
		return found[0], nil
	}
	return "", api.Errorf(api.CodeConflict, "%d tenants have a VM of that name; import TENANT/%s, or the VM's id", len(found), name)
}

// planVM says that a new time to live moves the deadline, and that a VM which is there is past what it is made with.
func planVM(ctx context.Context, o op, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() {
		return
	}
	changes := func(attribute string) (bool, types.Int64) {
		var plan, state types.Int64
		o.diags.Append(req.Plan.GetAttribute(ctx, path.Root(attribute), &plan)...)
		o.diags.Append(req.State.GetAttribute(ctx, path.Root(attribute), &state)...)
		return !plan.Equal(state), state
	}
	if moves, _ := changes("ttl_seconds"); moves {
		o.diags.Append(resp.Plan.SetAttribute(ctx, path.Root("expires_at"), types.StringUnknown())...)
	}
	for _, argument := range []string{"cloud_init", "claim"} {
		if differs, was := changes(argument + "_version"); differs && was.IsNull() {
			o.diags.AddAttributeWarning(path.Root(argument), "The VM has booted already",
				argument+" is for a VM that is being made, so this one does not get it. Make another with terraform apply -replace=ADDRESS, if it has to have it.")
		}
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
	m.IP = textOrNull(vm.IP)
	m.Backend = textOrNull(vm.Backend)
	m.Reschedule = types.BoolValue(vm.Reschedulable)
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

// errVMEnded ends a wait for a VM that will never be ready.
var errVMEnded = errors.New("the VM ended")

// waitVMReady waits until the guest agent answers, and gives the VM as last seen. It is false when there is no VM
// any more. A wait that runs out is a warning; a VM that failed is an error.
func waitVMReady(ctx context.Context, o op, vm api.VM) (api.VM, bool) {
	agentless := false
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		if ended(vm.State) || vm.State == api.StateFailed {
			return false, errVMEnded
		}
		if !vm.ReadyAt.IsZero() || vm.State == api.StateRunning && agentless {
			return true, nil
		}
		if vm.State == api.StateRunning {
			image, err := o.Image(ctx, vm.Image)
			agentless = client.IsNotFound(err) || err == nil && !image.HasAgent
			if agentless {
				return true, nil
			}
		}
		next, err := o.VM(ctx, vm.ID)
		if err == nil {
			vm = next
		}
		return false, err
	})
	what := fmt.Sprintf("VM %q", vm.Name)
	switch {
	case err == nil:
	case client.IsNotFound(err), errors.Is(err, errVMEnded) && ended(vm.State):
		o.diags.AddError(what+" ended before it was ready", "It was deleted, or ttl_seconds is shorter than it takes to boot. Raise ttl_seconds or leave it out.")
		return vm, false
	case errors.Is(err, errVMEnded):
		o.diags.AddError(what+" failed on "+vm.Node, fmt.Sprintf("%s\nCorrect the cause; the next apply replaces it.", orDefault(vm.Reason, "The host gave no reason.")))
	case outOfTime(ctx, err):
		o.diags.AddWarning(what+" is not ready yet", fmt.Sprintf("It is %s on %s and boots on. Raise timeouts.create to wait longer, or set wait_ready = false.", vm.State, vm.Node))
	default:
		addError(o.diags, "Waiting for "+what+" failed", err)
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

// whyGone tells a deadline that was known from a deletion.
func whyGone(m *vmModel, state api.VMState, now time.Time) string {
	if state == api.StateLost {
		return fmt.Sprintf("Its host %s is lost.", m.Node.ValueString())
	}
	if at, err := time.Parse(time.RFC3339, m.ExpiresAt.ValueString()); err == nil && !at.After(now) {
		return fmt.Sprintf("Its time to live ended at %s.", m.ExpiresAt.ValueString())
	}
	return "The fleet has no such VM; it was deleted outside of this configuration."
}

// vmPatch holds only what differs.
func vmPatch(ctx context.Context, o op, plan, state *vmModel) (p api.VMPatch) {
	patchText(&p.Name, plan.Name, state.Name)
	patchInt(&p.TTLSeconds, plan.TTLSeconds, state.TTLSeconds)
	was, now := stringMap(ctx, state.Labels, o.diags), stringMap(ctx, plan.Labels, o.diags)
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
		p.Labels = api.Some(labels)
	}
	return p
}

// removeVM waits until the host has confirmed the end, so that name, quota and host are free.
func removeVM(ctx context.Context, o op, m *vmModel) error {
	if err := o.DeleteVM(ctx, m.ID.ValueString()); err != nil {
		return err
	}
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		vm, err := o.VM(ctx, m.ID.ValueString())
		if client.IsNotFound(err) || err == nil && (vm.State == api.StateGone || vm.State == api.StateLost) {
			return true, nil
		}
		return false, err
	})
	if outOfTime(ctx, err) {
		o.diags.AddWarning(fmt.Sprintf("VM %q is still being deleted", m.Name.ValueString()),
			fmt.Sprintf("The fleet has accepted the deletion and goes on with it; its host is %s. Raise timeouts.delete to wait longer.", m.Node.ValueString()))
		return nil
	}
	return err
}
