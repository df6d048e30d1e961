package fsm

import (
	"maps"
	"slices"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Plan is what a launch would lead to: a spare to claim, or a host for a new VM.
type Plan struct {
	Claim      *VM    // nil: boot normally
	Pool       *Pool  // the pool of Claim, or the one the launch named
	Node       *Node  // nil with no Claim: nothing fits
	ColdReason string // why it is no claim
	Missed     *Pool  // the pool that would have answered it, had it had a spare that may be handed out
	Image      *Image
	VCPUs      int
	MemoryMiB  int64
	DiskGiB    int64
	GuestOS    string
	Need       Need
	TTL        int64 // seconds; 0: none
}

// Resolve settles image and size of a launch, or refuses it, before anyone looks for a host.
func (v View) Resolve(l *Launch) (Plan, error) {
	p := Plan{VCPUs: l.VCPUs, MemoryMiB: l.MemoryMiB, DiskGiB: l.DiskGiB}
	if l.Tenant != "" && v.Tenant(l.Tenant) == nil {
		return p, api.Invalid("tenant", "there is no tenant of that name; fluxctl fleet tenants lists them")
	}
	if l.Pool != "" {
		p.Pool = v.Pool(l.Pool)
		if p.Pool == nil || !v.Usable(p.Pool, l.Tenant) {
			return p, api.NotFound("pool", l.Pool)
		}
		if err := v.matchesNamed(p.Pool, l); err != nil {
			return p, err
		}
		p.Image = v.Image(p.Pool.Image)
		p.VCPUs, p.MemoryMiB, p.DiskGiB, p.GuestOS = p.Pool.VCPUs, p.Pool.MemoryMiB, p.Pool.DiskGiB, p.Pool.GuestOS
	} else {
		p.Image = v.Image(l.Image)
	}
	if p.Image == nil {
		return p, api.Invalid("image", "there is no such image in the catalog; fluxctl fleet images lists them, fluxctl fleet image-add adds one")
	}
	if p.VCPUs == 0 {
		p.VCPUs = p.Image.VCPUs
	}
	if p.MemoryMiB == 0 {
		p.MemoryMiB = p.Image.MemoryMiB
	}
	if p.DiskGiB == 0 {
		p.DiskGiB = p.Image.DiskSizeGiB
	}
	p.GuestOS = p.Image.GuestOS
	if l.GuestOS != "" && l.GuestOS != p.GuestOS {
		return p, api.Invalid("apple.guest_os", "image %s is %s; leave apple.guest_os out or give that", p.Image.Name, p.GuestOS)
	}
	if l.Claim != nil && !p.Image.HasAgent {
		return p, api.Invalid("claim", "image %s has no guest agent, which would give the claim to the guest; leave claim out", p.Image.Name)
	}
	return p, v.allow(&p, l)
}

// allow holds a launch to policy and limits of its tenant, and says what host it needs.
func (v View) allow(p *Plan, l *Launch) (err error) {
	p.Need = Need{Tenant: l.Tenant, Leased: v.MacOSNeedsLease(l.Tenant, p.GuestOS), GuestOS: p.GuestOS, Backend: l.Backend, VCPUs: p.VCPUs, MemoryMiB: p.MemoryMiB, Claim: l.Claim != nil}
	if p.Need.Leased && !v.leasesMac(l.Tenant) {
		return api.Errorf(api.CodePolicyDenied, "macOS guests of a tenant run on Macs that it leases, and tenant %s leases none; lease one, or ask the operator to turn require_lease_for_macos off", l.Tenant)
	}
	p.TTL, err = v.ttlFor(l.Tenant, l.TTLSeconds)
	return err
}

// matchesNamed refuses a launch whose image or size contradicts the pool that it names.
func (v View) matchesNamed(p *Pool, l *Launch) error {
	if l.Image != "" {
		if i := v.Image(l.Image); i == nil || i.Name != p.Image {
			return api.Invalid("image", "pool %s boots image %s; leave image out, or leave pool out", p.Name, p.Image)
		}
	}
	if field := differs(p, l); field != "" {
		return api.Invalid(field, "%s is not what pool %s has; leave it out, or leave pool out", field, p.Name)
	}
	return nil
}

// differs names the first size field in which a launch differs from a pool.
func differs(p *Pool, l *Launch) string {
	switch {
	case l.VCPUs != 0 && l.VCPUs != p.VCPUs:
		return "vcpus"
	case l.MemoryMiB != 0 && l.MemoryMiB != p.MemoryMiB:
		return "memory_mib"
	case l.DiskGiB != 0 && l.DiskGiB != p.DiskGiB:
		return "disk_size_gib"
	case l.GuestOS != "" && l.GuestOS != p.GuestOS:
		return "apple.guest_os"
	}
	return ""
}

// Plan decides a launch on this state: which spare it takes, or which of the candidates a new VM goes to.
// It is a pure function, used by Apply and by dry runs alike.
func (v View) Plan(l *Launch, candidates, noHandOut []string) (Plan, error) {
	p, err := v.Resolve(l)
	if err != nil {
		return p, err
	}
	if l.Name != "" && v.VMNamed(l.Tenant, l.Name) != nil {
		return p, nameTaken(l.Name)
	}
	claim, pool, why := v.spareFor(&p, l, noHandOut)
	if claim != nil {
		p.Claim, p.Pool, p.Node = claim, pool, v.Node(claim.Node)
		if claim.Tenant == l.Tenant { // it counts already
			return p, nil
		}
		return p, v.mayHold(l.Tenant, holds(claim.GuestOS, claim.VCPUs, claim.MemoryMiB)) // its size need not be the image's
	}
	p.ColdReason, p.Missed = why, pool
	if err := v.mayHold(l.Tenant, holds(p.GuestOS, p.VCPUs, p.MemoryMiB)); err != nil {
		return p, err
	}
	t := tx{View: v}
	p.Node = t.firstFit(candidates, nil, p.Need)
	return p, nil
}

// spareFor finds the oldest ready spare that answers the launch, in the caller's own pools first, or says why none.
func (v View) spareFor(plan *Plan, l *Launch, noHandOut []string) (*VM, *Pool, string) {
	if l.ColdField != "" {
		return nil, nil, l.ColdField
	}
	pools, why := v.poolsFor(plan, l)
	if len(pools) == 0 {
		return nil, nil, why
	}
	why = "pool_empty"
	var best *VM
	var from *Pool
	for _, p := range pools {
		if best != nil && p.Tenant != from.Tenant { // own pools come first
			break
		}
		for s := range v.Spares(p.Name) {
			if s.WarmState() != "ready" {
				break
			}
			if (p.StaleUse == "never" || l.Image != "") && s.Image != p.Image || slices.Contains(noHandOut, s.Node) {
				continue
			}
			if reason := v.elsewhere(s, l); reason != "" {
				why = reason
				continue
			}
			if best == nil || s.SpareSince < best.SpareSince || s.SpareSince == best.SpareSince && s.ID < best.ID {
				best, from = s, p
			}
			break
		}
	}
	if best == nil {
		from = pools[0]
	}
	return best, from, why
}

// elsewhere names the field of the launch that rules a ready spare out.
func (v View) elsewhere(s *VM, l *Launch) string {
	n := v.Node(s.Node)
	switch {
	case n == nil || n.State != api.NodeHealthy || !n.Rename || n.Draining:
		return "pool_empty"
	case s.Tenant == "" && n.Lease != "", s.Tenant != "" && !v.Leases(s.Tenant, n): // it is about to go
		return "pool_empty"
	case l.Node != "" && l.Node != s.Node:
		return "node"
	case len(l.Selector) > 0 && !api.Matches(l.Selector, n.Labels):
		return "nodeSelector"
	case l.Backend != "" && l.Backend != api.BackendAuto && l.Backend != s.Backend:
		return "backend"
	case (l.Claim != nil || v.rotates(s)) && !(s.CanClaim && n.Claim):
		return "claim"
	}
	return ""
}

func (v View) rotates(s *VM) bool {
	p := v.Pool(s.Pool)
	return p != nil && p.RotateIdentity
}

// rotating is the claim, which may be none, with a new identity for the guest.
func (c *Claim) rotating() *Claim {
	out := Claim{RotateIdentity: true}
	if c != nil {
		out = *c
		out.RotateIdentity = true
	}
	return &out
}

// asked is the claim as the launch brought it, nil for none: a VM that boots for it has nothing to rotate, and must not
// end because its guest cannot.
func (c *Claim) asked() *Claim {
	if c == nil || !c.RotateIdentity {
		return c
	}
	out := *c
	out.RotateIdentity = false
	if out.Hostname == "" && len(out.Env)+len(out.Files)+len(out.Secrets) == 0 {
		return nil
	}
	return &out
}

// poolsFor lists the pools that a launch may be answered from: its tenant's own, then shared ones.
func (v View) poolsFor(plan *Plan, l *Launch) (pools []*Pool, why string) {
	if plan.Pool != nil {
		return []*Pool{plan.Pool}, ""
	}
	why = "no_pool"
	var shared []*Pool
	for p := range v.Pools("") {
		if p.Image != plan.Image.Name || !v.Usable(p, l.Tenant) {
			continue
		}
		switch field := differs(p, l); {
		case field != "":
			why = field
		case p.Tenant == l.Tenant:
			pools = append(pools, p)
		default:
			shared = append(shared, p)
		}
	}
	return append(pools, shared...), why
}

// HandOuts are the pools whose spares may answer a launch that Resolve let through.
func (v View) HandOuts(plan *Plan, l *Launch) []*Pool {
	if l.ColdField != "" {
		return nil
	}
	pools, _ := v.poolsFor(plan, l)
	return pools
}

// launchVM claims a spare or places a new VM. Its value is the *Operation; its Ref is the VM.
func (t *tx) launchVM(c LaunchVM) (any, error) {
	l := &c.Launch
	plan, err := t.Plan(l, c.Candidates, c.NoHandOut)
	if err != nil {
		return nil, err
	}
	l.TTLSeconds = plan.TTL
	op := Operation{Ref: c.ID, Name: l.Name, Image: plan.Image.Name, ColdReason: plan.ColdReason}
	if c.Keep {
		op.GuestOS, op.VCPUs, op.MemoryMiB, op.DiskGiB = plan.GuestOS, plan.VCPUs, plan.MemoryMiB, plan.DiskGiB
		if s := plan.Claim; s != nil { // its size need not be the image's any more
			op.GuestOS, op.VCPUs, op.MemoryMiB, op.DiskGiB = s.GuestOS, s.VCPUs, s.MemoryMiB, s.DiskGiB
		}
	}
	if plan.Claim != nil {
		op.Ref, op.Node, op.Warm, op.Pool, op.ColdReason = plan.Claim.ID, plan.Claim.Node, true, plan.Pool.Name, ""
	} else if plan.Node == nil {
		return nil, noCapacity(t.nowFull(c.Reasons, c.Candidates, plan.Need))
	} else {
		op.Node = plan.Node.Name
	}
	done, err := t.remember(op)
	if err != nil {
		return nil, err
	}
	if plan.Claim != nil {
		t.claim(plan, l)
	} else if row, err := t.bootNew(plan, c.ID, l, plan.ColdReason, t.deadline(l)); err != nil {
		return nil, err
	} else {
		if c.Keep && l.Resched && l.Claim != nil {
			t.keepClaim(row, l.Claim)
		}
		if plan.Missed != nil {
			t.missed(plan.Missed.Name)
		}
	}
	t.log(t.env.Actor, "POST /fleet/vms", l.Name, l.Tenant, "ok", "vm_id", done.Ref, "node", done.Node, "pool", done.Pool)
	return done, nil
}

// nowFull adds to the counted reasons what keeps each candidate from it since it was named.
func (v View) nowFull(reasons map[string]int, candidates []string, need Need) map[string]int {
	out := map[string]int{}
	maps.Copy(out, reasons)
	for _, name := range candidates {
		if n := v.Node(name); n != nil {
			if why := v.Fit(n, need); why != "" {
				out[why]++
			}
		}
	}
	return out
}

// noCapacity is the refusal of a launch that fits nowhere; reasons count the hosts.
func noCapacity(reasons map[string]int) *api.Error {
	e := api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes can take the VM now; ask for less, or make room on a host")
	e.Reasons = reasons
	if e.Reasons == nil {
		e.Reasons = map[string]int{}
	}
	return e
}

// claim turns a ready spare into the launch's VM. Its node has to be told.
func (t *tx) claim(plan Plan, l *Launch) {
	row := *plan.Claim
	row.Name, row.Tenant, row.Labels = l.Name, l.Tenant, l.Labels
	row.Warm, row.ClaimedFrom, row.ClaimedAt = false, plan.Pool.Name, t.now
	row.Reason, row.ExpiresAt = "", t.deadline(l)
	asked := *l
	row.Claim, asked.Claim = l.Claim, nil // the row has it
	if plan.Pool.RotateIdentity {
		row.Claim = row.Claim.rotating()
	}
	row.HandOver, row.Order, row.Launch = true, t.index, &asked
	t.bindKey(&row)
	t.putVM(plan.Claim, &row)
	p := *plan.Pool
	p.LastClaimAt = t.now
	t.putPool(&p, true)
	t.claimed(p.Name)
}

// deadline is when a launch of this moment expires; zero without a TTL.
func (t *tx) deadline(l *Launch) api.Time {
	if l.TTLSeconds <= 0 {
		return 0
	}
	return t.now + api.Time(l.TTLSeconds*1000)
}

// bindKey notes under which operation the VM was asked for, so that the key can follow or be freed.
func (t *tx) bindKey(row *VM) {
	row.Scope, row.Key = "", ""
	if t.env.Op != nil {
		row.Scope, row.Key = t.env.Op.Scope, t.env.Op.Key
	}
}

// bootNew places a new VM for the launch on the plan's node.
func (t *tx) bootNew(plan Plan, id string, l *Launch, coldReason string, deadline api.Time) (*VM, error) {
	if t.VM(id) != nil {
		return nil, api.Errorf(api.CodeConflict, "there is a VM with the id %s already", id)
	}
	row := &VM{ID: id, Name: l.Name, Tenant: l.Tenant, Backend: plan.Node.Backend(l.Backend), Image: plan.Image.Name, ImagePath: plan.Image.Path, GuestOS: plan.GuestOS,
		VCPUs: plan.VCPUs, MemoryMiB: plan.MemoryMiB, DiskGiB: plan.DiskGiB, NoAgent: !plan.Image.HasAgent, Labels: maps.Clone(l.Labels), CreatedAt: t.now,
		ExpiresAt: deadline, Pool: l.Pool, ColdReason: coldReason, Reschedulable: l.Resched, Boot: l.Boot}
	asked := *l
	row.Claim, asked.Boot, asked.Claim = l.Claim, nil, nil // the row has them
	row.Launch = &asked
	t.bindKey(row)
	t.place(row, plan.Node)
	t.putVM(nil, row)
	return row, nil
}

// moveVM gives a VM that its host refused to the next candidate, or ends it. Its value is the *VM, or a refusal in
// Ended when there is no host left.
func (t *tx) moveVM(c MoveVM) (any, error) {
	have := t.VM(c.ID)
	if have == nil || have.Node != c.From || have.State != api.StatePlaced || have.Told != 0 {
		return Moved{VM: have}, nil // it has moved on, or its end was asked for
	}
	row, backend := *have, ""
	if have.Launch != nil { // a spare takes any
		backend = have.Launch.Backend
	}
	row.Tried = append(slices.Clone(have.Tried), c.From)
	row.TriedFor = make([]string, len(row.Tried)) // rows from before they were kept have none
	copy(row.TriedFor, have.TriedFor)
	row.TriedFor[len(row.TriedFor)-1] = c.Why
	need := Need{Tenant: row.Tenant, GuestOS: row.GuestOS, Backend: backend, VCPUs: row.VCPUs, MemoryMiB: row.MemoryMiB,
		Claim:  row.Claim != nil,
		Leased: row.Warm && row.Tenant != "" || t.MacOSNeedsLease(row.Tenant, row.GuestOS)}
	node := t.firstFit(c.Candidates, row.Tried, need)
	if node != nil {
		row.Backend = node.Backend(backend)
		t.place(&row, node)
		t.putVM(have, &row)
		t.follow(&row)
		return Moved{VM: &row}, nil
	}
	if c.Keep && have.Again {
		return Moved{VM: t.park(have, c.Refusal)}, nil
	}
	return Moved{Ended: t.giveUp(have, c)}, nil
}

// Moved is what became of a VM that a host refused, or whose hand-over failed.
type Moved struct {
	VM    *VM        // as it is now; nil when it is gone
	Ended *api.Error // it fits nowhere and is gone
}

// giveUp removes a VM that no host takes. Its key is free again, for the request came to nothing.
func (t *tx) giveUp(v *VM, c MoveVM) *api.Error {
	refusal, reasons := c.Refusal, c.Reasons
	t.putVM(v, nil)
	if v.Warm {
		t.spareFailed(v.Pool, waitFor(c.Why), or(refusal, "no host takes the VM"))
		return noCapacity(reasons)
	}
	t.forget(v)
	t.log("central", "end", v.Name, v.Tenant, "failed", "vm_id", v.ID, "reason", refusal)
	e := noCapacity(reasons)
	if refusal != "" {
		e.Detail = "no healthy, uncordoned nodes take the VM; the last one said: " + refusal
	}
	return e
}

// waitFor is what a pool waits for when the last host refused a spare for that reason.
func waitFor(why string) string {
	switch why {
	case api.WhyImage:
		return api.WaitImage
	case api.WhyPressure:
		return api.WaitPressure
	case api.WhyMacOSLimit:
		return api.WaitMacOSLimit
	}
	return api.WaitNoCapacity
}

// failHandOver ends a claimed spare that its node could not hand over and goes on with the launch as a new VM,
// under the same key and in the same entry, so that the launch's reservation never counts twice. Value: Moved.
func (t *tx) failHandOver(c FailHandOver) (any, error) {
	have := t.VM(c.ID)
	if have == nil || !have.HandOver || have.Launch == nil {
		return Moved{VM: have}, nil // confirmed or ended meanwhile
	}
	l := *have.Launch
	l.Name, l.Labels, l.Claim = have.Name, have.Labels, have.Claim.asked() // a PATCH may have come since
	pool := have.ClaimedFrom
	spare := *have
	spare.Tenant, spare.ClaimedFrom, spare.ClaimedAt, spare.ExpiresAt = "", "", 0, 0
	if p := t.claimedFrom(have); p != nil {
		spare.Tenant = p.Tenant
		t.amend(pool, have.ClaimedAt, func(s *ClaimStat) { s.Claims = max(s.Claims-1, 0) })
	}
	spare.Warm = spare.Tenant == "" // a shared pool's spare is its cost again, until it is gone
	spare.Scope, spare.Key = "", ""
	t.endedAt = have.ClaimedAt // whoever claimed it never had it, and pays nothing
	spare.end(t.index, "its node could not hand it over: "+c.Refusal)
	t.putVM(have, &spare)
	t.endedAt = 0
	t.log("warm-pool", "hand-over", l.Name, l.Tenant, "failed", "pool", pool, "vm_id", have.ID, "reason", c.Refusal)
	same := l // what it has counts already, and its deadline stands, whatever image and limits say by now
	same.VCPUs, same.MemoryMiB, same.DiskGiB, same.GuestOS, same.TTLSeconds = have.VCPUs, have.MemoryMiB, have.DiskGiB, have.GuestOS, 0
	plan, err := t.Resolve(&same)
	if err == nil {
		plan.Node = t.firstFit(c.Candidates, nil, plan.Need)
	}
	if err != nil || plan.Node == nil {
		t.forget(have)
		return Moved{Ended: noCapacity(c.Reasons)}, nil
	}
	t.env.Op = nil
	if have.Key != "" { // it follows to the new VM
		t.env.Op = &Op{Scope: have.Scope, Key: have.Key}
	}
	row, err := t.bootNew(plan, c.NewID, &l, "rename_failed", have.ExpiresAt)
	if err != nil {
		return nil, err
	}
	if op := t.operationOf(have); op != nil {
		moved := *op
		moved.Ref, moved.Node, moved.Warm, moved.Pool, moved.ColdReason, moved.ClaimMS = row.ID, row.Node, false, "", "rename_failed", 0
		t.operations.put(&moved)
	}
	return Moved{VM: row}, nil
}
