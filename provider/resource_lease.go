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
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64default"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/int64planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/listplanmodifier"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/schema/validator"
	"github.com/hashicorp/terraform-plugin-framework/types"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

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

func newLeaseResource() resource.Resource {
	return &managed[leaseModel, api.Lease]{kind: kind[leaseModel, api.Lease]{
		noun: "lease", identity: []string{"id"}, schema: leaseSchema, plan: planLease, drift: (*leaseModel).refreshTerm, take: (*leaseModel).take,
		validators: []resource.ConfigValidator{
			resourcevalidator.ExactlyOneOf(path.MatchRoot("node"), path.MatchRoot("node_selector")),
			resourcevalidator.ExactlyOneOf(path.MatchRoot("duration"), path.MatchRoot("ends_at")),
		},
		create: func(ctx context.Context, o op, m, _ *leaseModel) (api.Lease, error) {
			body := api.LeaseRequest{
				Tenant: m.Tenant.ValueString(), Node: m.Node.ValueString(), NodeSelector: stringMap(ctx, m.NodeSelector, o.diags),
				Duration: m.Duration.ValueString(), AutoRenew: m.AutoRenew.ValueBool(), Drain: m.Drain.ValueBool(),
			}
			if body.NodeSelector != nil {
				body.Count = int(m.NodeCount.ValueInt64())
			}
			if at, ok := instant(m.EndsAt); ok {
				body.EndsAt = at
			}
			return o.CreateLease(ctx, body, uuid.NewString())
		},
		read: readLease, update: updateLease, remove: endLease,
		gone: func(m *leaseModel, l *api.Lease) string {
			if l == nil {
				return whyOver(api.Lease{})
			}
			return whyOver(*l)
		},
		settle: settleLease,
	}}
}

func leaseSchema(ctx context.Context) schema.Schema {
	return schema.Schema{
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
			"auto_renew": boolean("Whether it goes on for the same time again at its end (false).", false),
			"drain":      boolean("Whether it may wait until the VMs of others are off the hosts (false); otherwise it fails at once where there are any. It is asked only when the lease is made.", false),
			"nodes": schema.ListAttribute{
				Computed: true, ElementType: types.StringType,
				MarkdownDescription: "Its hosts.",
				PlanModifiers:       []planmodifier.List{listplanmodifier.UseStateForUnknown()},
			},
			"state":        shown("`pending` or `active`; `ending` or `scrubbing` while its hosts are cleaned after its end."),
			"reason":       shown("Why it is in that state, where there is something to say."),
			"starts_at":    shown("When it became active."),
			"earliest_end": shown("The end of its minimum term."),
			"created_at":   fixedByFleet("When it was made."),
			"timeouts":     allTimeouts(ctx),
		},
	}
}

// planLease tells a lease that has to be another from one that moves its end, and from one that is only written
// otherwise: that one stays as it is. It gives notice of what the minimum term holds.
func planLease(ctx context.Context, o op, req resource.ModifyPlanRequest, resp *resource.ModifyPlanResponse) {
	var config, plan, state leaseModel
	if !req.State.Raw.IsNull() {
		o.diags.Append(req.State.Get(ctx, &state)...)
	}
	if !req.Plan.Raw.IsNull() {
		o.diags.Append(req.Config.Get(ctx, &config)...)
		o.diags.Append(req.Plan.Get(ctx, &plan)...)
	}
	switch {
	case o.diags.HasError():
		return
	case req.State.Raw.IsNull():
		noticeMinimum(ctx, o, config)
		return
	case req.Plan.Raw.IsNull():
		noticeHeld(o, state)
		return
	case leavingHosts(state.State.ValueString()): // it takes no change any more
		o.diags.Append(resp.Plan.Set(ctx, state)...)
		o.diags.Append(resp.Plan.SetAttribute(ctx, path.Root("timeouts"), plan.Timeouts)...)
		return
	}
	plan.Drain = state.Drain
	plan.NodeSelector = planSelector(ctx, o, config, state, resp)
	planTerm(config, &plan, state, &resp.Diagnostics)
	if resp.Diagnostics.HasError() {
		return
	}
	other := len(resp.RequiresReplace) > 0 || !config.Tenant.IsNull() && !config.Tenant.Equal(state.Tenant) || !config.Node.IsNull() && !config.Node.Equal(state.Node) ||
		!plan.NodeCount.Equal(state.NodeCount)
	if other {
		noticeHeld(o, state)
	}
	same := !other && plan.Duration.Equal(state.Duration) && plan.EndsAt.Equal(state.EndsAt) && plan.AutoRenew.Equal(state.AutoRenew) &&
		plan.NodeSelector.Equal(state.NodeSelector) && plan.Timeouts.Equal(state.Timeouts)
	if same {
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

// noticeHeld says what becomes of a lease that is to end inside its minimum term.
func noticeHeld(o op, state leaseModel) {
	if at, ok := instant(state.EarliestEnd); ok && at.Std().After(time.Now()) {
		o.diags.AddWarning("Lease "+state.ID.ValueString()+" is held by its minimum term", fmt.Sprintf("It can be asked to end now, but goes on until %s and is billed until then; "+
			"its hosts are free after that.", state.EarliestEnd.ValueString()))
	}
}

// noticeMinimum says that the hosts which a new lease may get have a minimum term that is longer than it. The apply
// decides: the policy may be another by then.
func noticeMinimum(ctx context.Context, o op, config leaseModel) {
	term, known := length(config.Duration)
	if at, fixed := instant(config.EndsAt); fixed {
		term, known = time.Until(at.Std()), true
	}
	if o.Client == nil || !known || config.Node.IsUnknown() || config.NodeSelector.IsUnknown() {
		return
	}
	policy, err := o.Policy(ctx)
	least := time.Duration(policy.MinLeaseHours) * time.Hour
	if err != nil || term >= least { // a tenant may not read it
		return
	}
	selector, macs := stringMap(ctx, config.NodeSelector, o.diags), []string{}
	for node, err := range o.Nodes(ctx, client.Filter{}) {
		switch {
		case err != nil:
			return
		case config.Node.ValueString() != "" && config.Node.ValueString() != node.Name, !api.Matches(selector, node.Labels):
		case node.Apple == nil: // it may get this one
			return
		default:
			macs = append(macs, node.Name)
		}
	}
	if len(macs) > 0 {
		o.diags.AddWarning("The lease is shorter than the minimum term", fmt.Sprintf("A lease of %s lasts at least %s, as the policy's min_lease_hours asks for; the apply is going to fail. Give a longer duration or a later ends_at.",
			strings.Join(macs, ", "), lengthText(least)))
	}
}

// planSelector keeps hosts that match.
func planSelector(ctx context.Context, o op, config, state leaseModel, resp *resource.ModifyPlanResponse) types.Map {
	if config.NodeSelector.IsNull() || config.NodeSelector.Equal(state.NodeSelector) {
		return state.NodeSelector
	}
	fits := false
	if !config.NodeSelector.IsUnknown() {
		var err error
		if fits, err = hostsMatch(ctx, o, state, stringMap(ctx, config.NodeSelector, &resp.Diagnostics)); err != nil {
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

func hostsMatch(ctx context.Context, o op, state leaseModel, selector map[string]string) (bool, error) {
	var names []string
	if diags := state.Nodes.ElementsAs(ctx, &names, false); diags.HasError() {
		return false, errors.New(diags[0].Detail())
	}
	for _, name := range names {
		node, err := o.Node(ctx, name)
		if err != nil || !api.Matches(selector, node.Labels) {
			return false, errUnlessGone(err)
		}
	}
	return true, nil
}

// planTerm plans the end: what the configuration says, unless what is there means the same.
func planTerm(config leaseModel, plan *leaseModel, state leaseModel, diags *diag.Diagnostics) {
	plan.Duration, plan.EndsAt = state.Duration, state.EndsAt
	have, _ := instant(state.EndsAt)
	earliest, _ := instant(state.EarliestEnd)
	want, known := instant(config.EndsAt)
	tooSoon := func(attribute, least string) {
		diags.AddAttributeWarning(path.Root(attribute), "The lease ends later",
			fmt.Sprintf("Its minimum term holds it until %s; it ends at %s. Give %s.", state.EarliestEnd.ValueString(), state.EndsAt.ValueString(), least))
	}
	if config.EndsAt.IsNull() {
		now, _ := length(config.Duration)
		was, measured := length(state.Duration)
		switch {
		case sameLength(config.Duration, state.Duration):
		case measured && !config.Duration.IsUnknown() && !plan.AutoRenew.ValueBool() && !state.StartsAt.IsNull() && have.Add(now-was) < earliest:
			tooSoon("duration", lengthText(was-have.Sub(earliest))+" or more")
		default:
			plan.Duration, plan.EndsAt = config.Duration, types.StringUnknown()
		}
		return
	}
	switch {
	case known && want == have:
	case known && want < have && plan.AutoRenew.ValueBool() && state.AutoRenew.ValueBool(): // it was renewed
	case known && want < earliest:
		tooSoon("ends_at", "a time of "+state.EarliestEnd.ValueString()+" or later")
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

// settleLease waits until a lease that was just made is active.
func settleLease(ctx context.Context, o op, m, config *leaseModel, lease api.Lease) (api.Lease, bool) {
	if config == nil || lease.State != api.LeasePending {
		return lease, true
	}
	lease, there := waitActive(ctx, o, lease, "timeouts.create")
	until, fixed := instant(config.EndsAt)
	if !there || !fixed {
		m.EndsAt = types.StringNull() // the term runs from the start
		return lease, there
	}
	if m.Duration = types.StringNull(); lease.State == api.LeaseActive && lease.EndsAt > until && until >= lease.EarliestEnd {
		moved, err := o.PatchLease(ctx, lease.ID, api.LeasePatch{EndsAt: api.Some(until)})
		if err != nil {
			addError(o.diags, "Setting the end of the lease failed", err, "ends_at")
			return lease, true
		}
		lease = moved
	}
	return lease, true
}

// errLeaseOver ends a wait for a lease that will not come to what is waited for.
var errLeaseOver = errors.New("the lease is over")

// waitActive waits until a pending lease is active, and gives it as last seen. It is false when the lease is over. A
// wait that runs out is a warning.
func waitActive(ctx context.Context, o op, lease api.Lease, setting string) (api.Lease, bool) {
	err := waitFor(ctx, func(ctx context.Context) (bool, error) {
		next, err := o.Lease(ctx, lease.ID)
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
		o.diags.AddError("The lease ended before it began", orDefault(lease.Reason, "It was ended outside of this configuration.")+" Apply again to make another.")
		return lease, false
	case outOfTime(ctx, err):
		o.diags.AddWarning("The lease is not active yet", fmt.Sprintf("It waits until the VMs of others are off %s: %s. It becomes active by itself then; raise %s to wait longer, or end those VMs.",
			strings.Join(lease.Nodes, ", "), orDefault(strings.Join(lease.BlockedBy, ", "), "none is left"), setting))
	default:
		addError(o.diags, "Waiting for the lease failed", err)
	}
	return lease, true
}

// over says that the hosts of a lease are not the tenant's any more.
func over(s api.LeaseState) bool { return s != api.LeasePending && s != api.LeaseActive }

// leavingHosts says that a lease has ended and its hosts are being cleaned. It stays in the state until they are free: a new
// one could not have them before.
func leavingHosts(s string) bool {
	return s == string(api.LeaseEnding) || s == string(api.LeaseScrubbing)
}

func readLease(ctx context.Context, o op, m *leaseModel) (api.Lease, error) {
	lease, err := o.Lease(ctx, m.ID.ValueString())
	if err == nil && leavingHosts(string(lease.State)) {
		o.diags.AddWarning("Lease "+lease.ID+" has ended", fmt.Sprintf("It ended at %s and is %s: %s can be leased again once that is done, and then Terraform plans it anew.",
			lease.EndsAt, lease.State, strings.Join(lease.Nodes, ", ")))
	}
	return lease, err
}

// whyOver says why a lease leaves the state; nothing for one that stays.
func whyOver(l api.Lease) string {
	switch l.State {
	case "":
		return "The fleet has no such lease, or it is another tenant's."
	case api.LeasePending, api.LeaseActive, api.LeaseEnding, api.LeaseScrubbing:
		return ""
	case api.LeaseScrubFailed:
		return fmt.Sprintf("It ended at %s, and its hosts are not free: %s.", l.EndsAt, orDefault(l.Reason, "a scrub failed"))
	}
	return fmt.Sprintf("It ended at %s.", l.EndsAt)
}

func updateLease(ctx context.Context, o op, plan, state *leaseModel) (*api.Lease, error) {
	lease, err := o.Lease(ctx, state.ID.ValueString())
	if err != nil {
		return nil, err
	}
	if leasePatch(plan, state, lease) != (api.LeasePatch{}) && lease.State == api.LeasePending { // only an active one can be changed
		if lease, _ = waitActive(ctx, o, lease, "timeouts.update"); lease.State != api.LeaseActive {
			return nil, api.Errorf(api.CodeConflict, "only an active lease can be changed; apply again once it is active")
		}
	}
	changed, err := send(leasePatch(plan, state, lease), func(p api.LeasePatch) (api.Lease, error) { return o.PatchLease(ctx, lease.ID, p) })
	if changed == nil {
		changed = &lease
	}
	return changed, err
}

// leasePatch holds only what differs. Another duration moves the end by the difference, from where the end is now.
func leasePatch(plan, state *leaseModel, lease api.Lease) (p api.LeasePatch) {
	patchBool(&p.AutoRenew, plan.AutoRenew, types.BoolValue(lease.AutoRenew))
	if at, given := instant(plan.EndsAt); given {
		if !plan.EndsAt.Equal(state.EndsAt) && at != lease.EndsAt {
			p.EndsAt = api.Some(at)
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

// endLease ends the lease and waits until its hosts are free. What the minimum term holds ends by itself.
func endLease(ctx context.Context, o op, m *leaseModel) error {
	id := m.ID.ValueString()
	lease, err := o.EndLease(ctx, id)
	if err != nil || lease == nil {
		return err
	}
	last := *lease
	err = waitFor(ctx, func(ctx context.Context) (bool, error) {
		switch last.State {
		case api.LeaseEnded:
			return true, nil
		case api.LeaseActive, api.LeaseScrubFailed:
			return false, errLeaseOver
		}
		next, err := o.Lease(ctx, id)
		if err == nil {
			last = next
		}
		return client.IsNotFound(err), errUnlessGone(err)
	})
	hosts := strings.Join(last.Nodes, ", ")
	switch {
	case err == nil:
	case errors.Is(err, errLeaseOver) && last.State == api.LeaseActive:
		o.diags.AddWarning("Lease "+id+" goes on until its minimum term is over", fmt.Sprintf("Its end is asked for: it ends by itself at %s, and is billed until then. "+
			"%s stays the tenant's until then. Terraform drops it from the state.", last.EndsAt, hosts))
	case errors.Is(err, errLeaseOver):
		o.diags.AddWarning("The hosts of lease "+id+" are not free", orDefault(last.Reason, "Their scrub failed.")+" The lease has ended and is billed no more; an operator has to see to the scrub.")
	case outOfTime(ctx, err):
		o.diags.AddWarning("Lease "+id+" is still ending", fmt.Sprintf("It is %s and is billed no more; %s can be leased again once its scrub is confirmed. Raise timeouts.delete to wait longer.", last.State, hosts))
	default:
		return err
	}
	return nil
}
