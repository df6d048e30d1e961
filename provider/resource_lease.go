package provider

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/terraform-plugin-framework-timeouts/resource/timeouts"
	"github.com/hashicorp/terraform-plugin-framework-validators/int64validator"
	"github.com/hashicorp/terraform-plugin-framework-validators/mapvalidator"
	"github.com/hashicorp/terraform-plugin-framework-validators/resourcevalidator"
	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/path"
	"github.com/hashicorp/terraform-plugin-framework/resource"
	"github.com/hashicorp/terraform-plugin-framework/resource/identityschema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/booldefault"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/listplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

var (
	_ resource.ResourceWithConfigure        = (*leaseResource)(nil)
	_ resource.ResourceWithConfigValidators = (*leaseResource)(nil)
	_ resource.ResourceWithImportState      = (*leaseResource)(nil)
	_ resource.ResourceWithIdentity         = (*leaseResource)(nil)
	_ resource.ResourceWithModifyPlan       = (*leaseResource)(nil)
)

func newLeaseResource() resource.Resource { return &leaseResource{} }

type leaseResource struct{ client *client.Client }

type leaseModel struct {
	ID           types.String   `tfsdk:"id"`
	Tenant       types.String   `tfsdk:"tenant"`
	Node         types.String   `tfsdk:"node"`
	NodeSelector types.Map      `tfsdk:"node_selector"`
	NodeCount    types.Int64    `tfsdk:"node_count"`
	Duration     types.String   `tfsdk:"duration"`
	EndsAt       types.String   `tfsdk:"ends_at"`
	AutoRenew    types.Bool     `tfsdk:"auto_renew"`
	Drain        types.Bool     `tfsdk:"drain"`
	Nodes        types.List     `tfsdk:"nodes"`
	State        types.String   `tfsdk:"state"`
	Reason       types.String   `tfsdk:"reason"`
	StartsAt     types.String   `tfsdk:"starts_at"`
	EarliestEnd  types.String   `tfsdk:"earliest_end"`
	CreatedAt    types.String   `tfsdk:"created_at"`
	Timeouts     timeouts.Value `tfsdk:"timeouts"`
}

// leaseFields are where a refusal may point.
var leaseFields = [...]string{"tenant", "node", "node_selector", "node_count", "duration", "ends_at", "auto_renew", "drain"}

func (r *leaseResource) Metadata(_ context.Context, _ resource.MetadataRequest, resp *resource.MetadataResponse) {
	resp.TypeName = "fluxvm_lease"
}

func (r *leaseResource) IdentitySchema(_ context.Context, _ resource.IdentitySchemaRequest, resp *resource.IdentitySchemaResponse) {
	resp.IdentitySchema = identityschema.Schema{Attributes: map[string]identityschema.Attribute{
		"id": identityschema.StringAttribute{RequiredForImport: true, Description: "The lease's id."},
	}}
}

func (r *leaseResource) Schema(ctx context.Context, _ resource.SchemaRequest, resp *resource.SchemaResponse) {
	now := func(text string) schema.StringAttribute {
		return schema.StringAttribute{Computed: true, MarkdownDescription: text}
	}
	resp.Schema = schema.Schema{
		MarkdownDescription: "Whole hosts for one tenant, for a time. To destroy a lease is to end it: the tenant's VMs on the hosts are deleted and the hosts scrubbed, which is waited for. " +
			"A lease that its minimum term still holds goes on until then and is billed until then; it is dropped from the state with a warning. " +
			"A lease that has ended by itself is planned anew.\n\n" +
			"Let the tenant's pools and VMs depend on the lease (`depends_on`), so that they are destroyed before it.",
		Attributes: map[string]schema.Attribute{
			"id":     fixedByFleet("The lease's id."),
			"tenant": fixedChoice("Who gets the hosts. Otherwise the provider's tenant or the token's. Another tenant makes a new lease.", tenantNameRule()),
			"node": fixedChoice("The host. Either this or `node_selector`; with a selector for one host it shows which that is. Another host makes a new lease.",
				nodeRule()),
			"node_selector": schema.MapAttribute{
				Optional: true, Computed: true, ElementType: types.StringType,
				MarkdownDescription: "Hosts with all of these labels. When it changes, hosts that have the new labels too are kept; otherwise there is a new lease. " +
					"An import cannot know it: it is empty then, and takes any that the hosts match.",
				Validators: []validator.Map{mapvalidator.SizeAtLeast(1), selectorRule()},
			},
			"node_count": schema.Int64Attribute{
				Optional: true, Computed: true,
				MarkdownDescription: "How many hosts `node_selector` asks for (1). Another number makes a new lease.",
				Default:             int64default.StaticInt64(1),
				Validators:          []validator.Int64{int64validator.Between(1, 64), int64validator.AlsoRequires(path.MatchRoot("node_selector"))},
				PlanModifiers:       []planmodifier.Int64{int64planmodifier.RequiresReplace()},
			},
			"duration": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "How long it lasts, such as `90m` or `7d`. Either this or `ends_at`. Another length moves the end of the lease that exists, though not to before " +
					"`earliest_end`. With `auto_renew` a longer one makes the present term longer and a shorter one changes nothing; a renewal is for the length that the lease began with.",
				Validators:    []validator.String{durationRule()},
				PlanModifiers: []planmodifier.String{keepLength{}},
			},
			"ends_at": schema.StringAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "When it ends, such as `2027-01-31T00:00:00Z`. Another time moves the end of the lease that exists, though not to before `earliest_end`.",
				Validators:          []validator.String{timeRule()},
			},
			"auto_renew": schema.BoolAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Whether it goes on for the same time again at its end (false).",
				Default:             booldefault.StaticBool(false),
			},
			"drain": schema.BoolAttribute{
				Optional: true, Computed: true,
				MarkdownDescription: "Whether it may wait until the VMs of others are off the hosts (false); otherwise it fails at once where there are any. It is asked only when the lease is made.",
				Default:             booldefault.StaticBool(false),
			},
			"nodes": schema.ListAttribute{
				Computed: true, ElementType: types.StringType,
				MarkdownDescription: "Its hosts.",
				PlanModifiers:       []planmodifier.List{listplanmodifier.UseStateForUnknown()},
			},
			"state":        now("`pending` or `active`."),
			"reason":       now("Why it is in that state, where there is something to say."),
			"starts_at":    now("When it became active."),
			"earliest_end": now("The end of its minimum term."),
			"created_at":   fixedByFleet("When it was made."),
			"timeouts":     timeouts.Attributes(ctx, timeouts.Opts{Create: true, Update: true, Delete: true}),
		},
	}
}

func (r *leaseResource) ConfigValidators(context.Context) []resource.ConfigValidator {
	return []resource.ConfigValidator{
		resourcevalidator.ExactlyOneOf(path.MatchRoot("node"), path.MatchRoot("node_selector")),
		resourcevalidator.ExactlyOneOf(path.MatchRoot("duration"), path.MatchRoot("ends_at")),
	}
}

func (r *leaseResource) Configure(_ context.Context, req resource.ConfigureRequest, resp *resource.ConfigureResponse) {
	r.client = clientOf(req.ProviderData, &resp.Diagnostics)
}

func (r *leaseResource) ImportState(ctx context.Context, req resource.ImportStateRequest, resp *resource.ImportStateResponse) {
	resource.ImportStatePassthroughWithIdentity(ctx, path.Root("id"), path.Root("id"), req, resp)
}

// ModifyPlan tells a lease that has to be another from one that moves its end, and from one that is only written
// otherwise: that one stays as it is.
func (r *leaseResource) ModifyPlan(ctx context.Context, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	if req.Plan.Raw.IsNull() || req.State.Raw.IsNull() {
		return
	}
	var config, plan, state leaseModel
	resp.Diagnostics.Append(req.Config.Get(ctx, &config)...)
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	if resp.Diagnostics.HasError() {
		return
	}
	plan.Drain = state.Drain
	plan.NodeSelector = r.planSelector(ctx, config, state, resp)
	planTerm(config, &plan, state, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	same := plan.Duration.Equal(state.Duration) && plan.EndsAt.Equal(state.EndsAt) && plan.AutoRenew.Equal(state.AutoRenew) &&
		plan.NodeSelector.Equal(state.NodeSelector) && plan.NodeCount.Equal(state.NodeCount) && plan.Timeouts.Equal(state.Timeouts) &&
		(config.Tenant.IsNull() || config.Tenant.Equal(state.Tenant)) && (config.Node.IsNull() || config.Node.Equal(state.Node))
	if same && len(resp.RequiresReplace) == 0 {
		resp.Plan.Raw = req.State.Raw
		return
	}
	if !state.StartsAt.IsNull() {
		plan.StartsAt, plan.EarliestEnd = state.StartsAt, state.EarliestEnd
	}
	if config.EndsAt.IsNull() {
		plan.EndsAt = types.StringUnknown() // a renewal may come in between
	}
	resp.Diagnostics.Append(resp.Plan.Set(ctx, plan)...)
}

// planSelector keeps hosts that match.
func (r *leaseResource) planSelector(ctx context.Context, config, state leaseModel, resp *resource.ModifyPlanResponse) types.Map {
	if config.NodeSelector.IsNull() || config.NodeSelector.Equal(state.NodeSelector) {
		return state.NodeSelector
	}
	fits := false
	if !config.NodeSelector.IsUnknown() {
		var err error
		if fits, err = r.hostsMatch(ctx, state, stringMap(ctx, config.NodeSelector, &resp.Diagnostics)); err != nil {
			addError(&resp.Diagnostics, "Reading the labels of the lease's hosts failed", err)
		}
	}
	switch {
	case !fits:
		resp.RequiresReplace = append(resp.RequiresReplace, path.Root("node_selector"))
	case !state.NodeSelector.IsNull() && len(state.NodeSelector.Elements()) == 0: // an import
		return state.NodeSelector
	}
	return config.NodeSelector
}

func (r *leaseResource) hostsMatch(ctx context.Context, state leaseModel, selector map[string]string) (bool, error) {
	var names []string
	if diags := state.Nodes.ElementsAs(ctx, &names, false); diags.HasError() {
		return false, errors.New(diags[0].Detail())
	}
	for _, name := range names {
		node, err := r.client.Node(ctx, name)
		if err != nil || !api.Matches(selector, node.Labels) {
			return false, errUnlessGone(err)
		}
	}
	return true, nil
}

// planTerm plans the end: what the configuration says, unless what is there means the same.
func planTerm(config leaseModel, plan *leaseModel, state leaseModel, diags *diag.Diagnostics) {
	plan.Duration, plan.EndsAt = state.Duration, state.EndsAt
	if config.EndsAt.IsNull() {
		if !sameLength(config.Duration, state.Duration) {
			plan.Duration, plan.EndsAt = config.Duration, types.StringUnknown()
		}
		return
	}
	want, known := instant(config.EndsAt)
	have, _ := instant(state.EndsAt)
	earliest, _ := instant(state.EarliestEnd)
	switch {
	case known && want == have:
	case known && want < have && plan.AutoRenew.ValueBool() && state.AutoRenew.ValueBool(): // it was renewed
	case known && want < earliest:
		diags.AddAttributeWarning(path.Root("ends_at"), "The lease ends later", fmt.Sprintf("Its minimum term holds it until %s; it ends at %s. Give a time of %[1]s or later.",
			state.EarliestEnd.ValueString(), state.EndsAt.ValueString()))
	default:
		plan.EndsAt, plan.Duration = config.EndsAt, types.StringUnknown()
	}
}

// take fills the model from the API's lease. What was chosen when it was made stays as it was written.
func (m *leaseModel) take(l api.Lease) {
	imported := m.Nodes.IsNull()
	m.ID, m.Tenant = types.StringValue(l.ID), types.StringValue(l.Tenant)
	nodes := make([]attr.Value, len(l.Nodes))
	for i, name := range l.Nodes {
		nodes[i] = types.StringValue(name)
	}
	m.Nodes, m.NodeCount = types.ListValueMust(types.StringType, nodes), types.Int64Value(int64(len(nodes)))
	if m.Node.IsNull() || m.Node.IsUnknown() {
		m.Node = types.StringNull()
		if len(l.Nodes) == 1 {
			m.Node = types.StringValue(l.Nodes[0])
		}
	}
	switch {
	case imported:
		m.NodeSelector = types.MapValueMust(types.StringType, nil)
	case m.NodeSelector.IsUnknown():
		m.NodeSelector = types.MapNull(types.StringType)
	}
	if m.Drain.IsNull() {
		m.Drain = types.BoolValue(false)
	}
	if m.Duration.IsNull() || m.Duration.IsUnknown() {
		start := l.StartsAt
		if start.IsZero() {
			start = l.CreatedAt
		}
		m.Duration = types.StringValue(lengthText(l.EndsAt.Sub(start)))
	}
	if m.EndsAt.IsNull() || m.EndsAt.IsUnknown() {
		m.EndsAt = timeOrNull(l.EndsAt)
	}
	m.AutoRenew = types.BoolValue(l.AutoRenew)
	m.State, m.Reason = types.StringValue(string(l.State)), textOrNull(l.Reason)
	m.StartsAt, m.EarliestEnd, m.CreatedAt = timeOrNull(l.StartsAt), timeOrNull(l.EarliestEnd), timeOrNull(l.CreatedAt)
}

// refreshTerm finds an end that someone else has moved. A renewal moves it later, and nothing else does so by itself
// once the lease has started.
func (m *leaseModel) refreshTerm(l api.Lease) {
	was, known := instant(m.EndsAt)
	if !known || was == l.EndsAt {
		return
	}
	moved := l.EndsAt.Sub(was)
	if term, ok := length(m.Duration); ok && !m.StartsAt.IsNull() && (moved < 0 || !m.AutoRenew.ValueBool()) {
		m.Duration = types.StringValue(lengthText(max(time.Second, term+moved)))
	}
	m.EndsAt = timeOrNull(l.EndsAt)
}

func (r *leaseResource) Create(ctx context.Context, req resource.CreateRequest, resp *resource.CreateResponse) {
	var m leaseModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Create(ctx, createTimeout)
	resp.Diagnostics.Append(diags...)
	body := api.LeaseRequest{
		Tenant: m.Tenant.ValueString(), Node: m.Node.ValueString(), NodeSelector: stringMap(ctx, m.NodeSelector, &resp.Diagnostics),
		Duration: m.Duration.ValueString(), AutoRenew: m.AutoRenew.ValueBool(), Drain: m.Drain.ValueBool(),
	}
	if body.NodeSelector != nil {
		body.Count = int(m.NodeCount.ValueInt64())
	}
	if at, ok := instant(m.EndsAt); ok {
		body.EndsAt = at
	}
	if resp.Diagnostics.HasError() {
		return
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	lease, err := r.client.CreateLease(within, body, uuid.NewString())
	if err != nil {
		addError(&resp.Diagnostics, "Leasing failed", err, leaseFields[:]...)
		return
	}
	m.take(lease)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
	if resp.Diagnostics.HasError() || lease.State != api.LeasePending {
		return
	}
	lease, ok := r.waitActive(within, lease, "timeouts.create", &resp.Diagnostics)
	if !ok {
		resp.State.RemoveResource(ctx)
		return
	}
	if body.EndsAt.IsZero() {
		m.EndsAt = types.StringNull() // the term runs from the start
	} else if m.Duration = types.StringNull(); lease.State == api.LeaseActive && lease.EndsAt > body.EndsAt && body.EndsAt >= lease.EarliestEnd {
		if lease, err = r.client.PatchLease(within, lease.ID, api.LeasePatch{EndsAt: api.Some(body.EndsAt)}); err != nil {
			addError(&resp.Diagnostics, "Setting the end of the lease failed", err, leaseFields[:]...)
			return
		}
	}
	m.take(lease)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
}

// errLeaseOver ends a wait for a lease that will not come to what is waited for.
var errLeaseOver = errors.New("the lease is over")

// waitActive waits until a pending lease is active, and gives it as last seen. It is false when the lease is over. A
// wait that runs out is a warning.
func (r *leaseResource) waitActive(ctx context.Context, lease api.Lease, setting string, diags *diag.Diagnostics) (api.Lease, bool) {
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		next, err := r.client.Lease(ctx, lease.ID)
		if err != nil {
			return false, err
		}
		if lease = next; over(lease.State) {
			return false, errLeaseOver
		}
		return lease.State == api.LeaseActive, nil
	})
	switch {
	case err == nil:
	case client.IsNotFound(err), errors.Is(err, errLeaseOver):
		diags.AddError("The lease ended before it began", orDefault(lease.Reason, "It was ended outside of this configuration.")+" Apply again to make another.")
		return lease, false
	case outOfTime(ctx, err):
		diags.AddWarning("The lease is not active yet", fmt.Sprintf("It waits until the VMs of others are off %s: %s. It becomes active by itself then; raise %s to wait longer, or end those VMs.",
			strings.Join(lease.Nodes, ", "), orDefault(strings.Join(lease.BlockedBy, ", "), "none is left"), setting))
	default:
		addError(diags, "Waiting for the lease failed", err)
	}
	return lease, true
}

// over says that the hosts of a lease are not the tenant's any more.
func over(s api.LeaseState) bool { return s != api.LeasePending && s != api.LeaseActive }

func (r *leaseResource) Read(ctx context.Context, req resource.ReadRequest, resp *resource.ReadResponse) {
	var m leaseModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	if resp.Diagnostics.HasError() {
		return
	}
	lease, err := r.client.Lease(ctx, m.ID.ValueString())
	if client.IsNotFound(err) || err == nil && over(lease.State) {
		addGone(&resp.Diagnostics, "Lease "+m.ID.ValueString(), whyOver(lease))
		resp.State.RemoveResource(ctx)
		keepIdentity(ctx, resp, "id", m.ID)
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Reading the lease failed", err)
		return
	}
	m.refreshTerm(lease)
	m.take(lease)
	resp.Diagnostics.Append(resp.State.Set(ctx, m)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), m.ID)...)
}

func whyOver(l api.Lease) string {
	switch l.State {
	case "":
		return "The fleet has no such lease, or it is another tenant's."
	case api.LeaseEnding, api.LeaseScrubbing:
		return fmt.Sprintf("It ended at %s, and its hosts are being cleaned (%s): they can be leased again after that.", l.EndsAt, l.State)
	case api.LeaseScrubFailed:
		return fmt.Sprintf("It ended at %s, and its hosts are not free: %s.", l.EndsAt, orDefault(l.Reason, "a scrub failed"))
	}
	return fmt.Sprintf("It ended at %s.", l.EndsAt)
}

func (r *leaseResource) Update(ctx context.Context, req resource.UpdateRequest, resp *resource.UpdateResponse) {
	var plan, state leaseModel
	resp.Diagnostics.Append(req.Plan.Get(ctx, &plan)...)
	resp.Diagnostics.Append(req.State.Get(ctx, &state)...)
	limit, diags := plan.Timeouts.Update(ctx, updateTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	lease, err := r.client.Lease(ctx, state.ID.ValueString())
	if err != nil {
		addError(&resp.Diagnostics, "Reading the lease failed", err)
		return
	}
	patch := leasePatch(plan, state, lease)
	if patch != (api.LeasePatch{}) {
		if lease.State == api.LeasePending { // only an active one can be changed
			var ok bool
			if lease, ok = r.waitActive(ctx, lease, "timeouts.update", &resp.Diagnostics); !ok || lease.State != api.LeaseActive {
				resp.Diagnostics.AddError("Changing the lease failed", "Only an active lease can be changed. Apply again once it is active.")
				return
			}
			patch = leasePatch(plan, state, lease)
		}
		if lease, err = r.client.PatchLease(ctx, state.ID.ValueString(), patch); err != nil {
			addError(&resp.Diagnostics, "Changing the lease failed", err, leaseFields[:]...)
			return
		}
	}
	plan.take(lease)
	resp.Diagnostics.Append(resp.State.Set(ctx, plan)...)
	resp.Diagnostics.Append(resp.Identity.SetAttribute(ctx, path.Root("id"), plan.ID)...)
}

// leasePatch holds only what differs. Another duration moves the end by the difference, from where the end is now.
func leasePatch(plan, state leaseModel, lease api.Lease) (p api.LeasePatch) {
	setIf(&p.AutoRenew, plan.AutoRenew.ValueBool(), lease.AutoRenew)
	if at, given := instant(plan.EndsAt); given {
		if !plan.EndsAt.Equal(state.EndsAt) {
			setIf(&p.EndsAt, at, lease.EndsAt)
		}
		return p
	}
	now, okNow := length(plan.Duration)
	was, okWas := length(state.Duration)
	if okNow && okWas && (now > was || now < was && !lease.AutoRenew) {
		p.EndsAt = api.Some(lease.EndsAt.Add(now - was))
	}
	return p
}

// Delete ends the lease and waits until its hosts are free. What the minimum term holds ends by itself.
func (r *leaseResource) Delete(ctx context.Context, req resource.DeleteRequest, resp *resource.DeleteResponse) {
	var m leaseModel
	resp.Diagnostics.Append(req.State.Get(ctx, &m)...)
	limit, diags := m.Timeouts.Delete(ctx, deleteTimeout)
	resp.Diagnostics.Append(diags...)
	if resp.Diagnostics.HasError() {
		return
	}
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	id := m.ID.ValueString()
	lease, err := r.client.EndLease(within, id)
	if client.IsNotFound(err) || err == nil && lease == nil {
		return
	}
	if err != nil {
		addError(&resp.Diagnostics, "Ending the lease failed", err)
		return
	}
	last := *lease
	err = waitFor(within, func(ctx context.Context) (bool, error) {
		switch last.State {
		case api.LeaseEnded:
			return true, nil
		case api.LeaseActive, api.LeaseScrubFailed:
			return false, errLeaseOver
		}
		next, err := r.client.Lease(ctx, id)
		if err == nil {
			last = next
		}
		return client.IsNotFound(err), errUnlessGone(err)
	})
	hosts := strings.Join(last.Nodes, ", ")
	switch {
	case err == nil:
	case errors.Is(err, errLeaseOver) && last.State == api.LeaseActive:
		resp.Diagnostics.AddWarning("Lease "+id+" goes on until its minimum term is over", fmt.Sprintf("Its end is asked for: it ends by itself at %s, and is billed until then. "+
			"%s stays the tenant's until then. Terraform drops it from the state.", last.EndsAt, hosts))
	case errors.Is(err, errLeaseOver):
		resp.Diagnostics.AddWarning("The hosts of lease "+id+" are not free", orDefault(last.Reason, "Their scrub failed.")+" The lease has ended and is billed no more; an operator has to see to the scrub.")
	case outOfTime(within, err):
		resp.Diagnostics.AddWarning("Lease "+id+" is still ending", fmt.Sprintf("It is %s and is billed no more; %s can be leased again once its scrub is confirmed. Raise timeouts.delete to wait longer.", last.State, hosts))
	default:
		addError(&resp.Diagnostics, "Waiting for the lease's end failed", err)
	}
}
