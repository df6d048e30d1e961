package fsm

import (
	"maps"
	"slices"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// putVM is the one way a VM row changes: it keeps Use in step, gives the row a version and makes the event.
// old is nil for a new row; row is nil for a removal. A change of what only orders need does not show.
func (t *tx) putVM(old, row *VM) {
	t.use(old, -1)
	t.use(row, +1)
	t.account(old, row)
	switch {
	case row == nil:
		t.vms.remove(old)
		t.event(EventVM, ActionDeleted, old.Tenant, old)
	case old == nil:
		row.Version = t.index
		t.vms.put(row)
		t.event(EventVM, ActionCreated, row.Tenant, row)
	default:
		if shows(old, row) {
			row.Version = t.index
			t.event(EventVM, ActionChanged, row.Tenant, row)
		}
		t.vms.put(row)
	}
}

// shows says whether a reader can see the difference.
func shows(a, b *VM) bool {
	return a.Name != b.Name || a.Tenant != b.Tenant || a.Node != b.Node || a.Backend != b.Backend || a.State != b.State || a.Reason != b.Reason ||
		a.ReadyAt != b.ReadyAt || a.ExpiresAt != b.ExpiresAt || a.IP != b.IP || a.Warm != b.Warm || a.SpareSince != b.SpareSince || a.FailedAt != b.FailedAt ||
		a.ClaimedFrom != b.ClaimedFrom || a.ColdReason != b.ColdReason || (a.Claim == nil) != (b.Claim == nil) || !maps.Equal(a.Labels, b.Labels)
}

// use adds a row to what its node and its tenant hold, or takes it away.
func (t *tx) use(v *VM, sign int) {
	if v == nil {
		return
	}
	t.hold(v, int64(sign))
	u := t.Use(v.Node)
	overcommit := 1
	if n := t.Node(v.Node); n != nil {
		overcommit = max(n.CPUOvercommit, 1)
	}
	addUse(&u, v, sign, overcommit)
	if u.VMs == 0 {
		t.uses.remove(&u)
		return
	}
	t.uses.put(&u)
}

// holding is what a tenant's VMs count for in its quota. It is derived from them in the same change, never stored in a
// snapshot, and recounted by Check.
type holding struct {
	tenant string
	api.Holding
}

func (t *tx) hold(v *VM, sign int64) {
	if v.counts() {
		h := holding{tenant: v.Tenant}
		if have := t.holdings.find(byID, text(v.Tenant)); have != nil {
			h = *have
		}
		h.add(v, sign)
		if h.VMs == 0 {
			t.holdings.remove(&h)
			return
		}
		t.holdings.put(&h)
	}
}

// counts says that the VM counts in its tenant's quota.
func (v *VM) counts() bool { return v.Live() && v.State != api.StateLost }

func (h *holding) add(v *VM, sign int64) {
	one := holds(v.GuestOS, v.VCPUs, v.MemoryMiB)
	h.VMs += sign
	h.VCPUs += sign * one.VCPUs
	h.MemoryMiB += sign * one.MemoryMiB
	h.MacOSGuests += sign * one.MacOSGuests
}

// recount adds up anew what a node holds, for its overcommit weighs macOS guests.
func (t *tx) recount(n *Node) {
	u := Use{Node: n.Name}
	for v := range t.VMsOn(n.Name) {
		addUse(&u, v, +1, max(n.CPUOvercommit, 1))
	}
	if u.VMs > 0 {
		t.uses.put(&u)
	}
}

func addUse(u *Use, v *VM, sign, overcommit int) {
	u.VMs += sign
	if v.isMacOS() {
		u.MacOS += sign
	}
	if v.isBooting() {
		u.Booting += sign
	}
	if v.takesMemory() {
		weight := v.VCPUs
		if v.GuestOS == api.GuestMacOS {
			weight *= overcommit
		}
		u.VCPUs += sign * weight
		u.MemoryMiB += int64(sign) * v.MemoryMiB
	}
}

// endVM asks for the end of a VM: its name is free at once, its row goes when the node has confirmed.
func (t *tx) endVM(v *VM, reason string) {
	if !v.Live() {
		return
	}
	row := *v
	row.end(t.index, reason)
	t.putVM(v, &row)
}

// deleteVMs asks for the end of VMs. Its value is nil; absent ones are no failure unless one alone was named.
func (t *tx) deleteVMs(c DeleteVMs) (any, error) {
	for _, id := range c.IDs {
		v := t.VM(id)
		if v == nil || !v.Live() {
			if len(c.IDs) == 1 {
				return nil, api.NotFound("VM", id)
			}
			continue
		}
		if c.AsOf != 0 && v.Version > c.AsOf {
			continue // it was claimed, or given more time, since whoever asks looked
		}
		if err := checkVersion("VM", v.Version, c.IfMatch); err != nil {
			return nil, err
		}
		t.endVM(v, c.Reason)
		if c.Action != "" {
			t.log(t.env.Actor, c.Action, v.Name, v.Tenant, "ok", "vm_id", v.ID, "reason", c.Reason)
		}
	}
	return nil, nil
}

// patchVM renames, labels or gives another deadline. Its value is the *VM.
func (t *tx) patchVM(c PatchVM) (any, error) {
	have := t.VM(c.ID)
	if have == nil || !have.Live() {
		return nil, api.NotFound("VM", c.ID)
	}
	if err := checkVersion("VM", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := *have
	if c.Patch.Name.Set && c.Patch.Name.V != have.Name {
		if t.VMNamed(have.Tenant, c.Patch.Name.V) != nil {
			return nil, nameTaken(c.Patch.Name.V)
		}
		row.Name = c.Patch.Name.V
	}
	if c.Patch.Labels.Null {
		row.Labels = nil
	}
	if len(c.Patch.Labels.V) > 0 {
		row.Labels = maps.Clone(have.Labels)
		if row.Labels == nil {
			row.Labels = map[string]string{}
		}
		for _, k := range slices.Sorted(maps.Keys(c.Patch.Labels.V)) {
			if v := c.Patch.Labels.V[k]; v != nil {
				row.Labels[k] = *v
			} else {
				delete(row.Labels, k)
			}
		}
		if len(row.Labels) > api.MaxLabels {
			return nil, api.Invalid("labels", "a VM may have %d labels at most", api.MaxLabels)
		}
	}
	if c.Patch.TTLSeconds.Set {
		if err := t.setTTL(&row, c.Patch.TTLSeconds); err != nil {
			return nil, err
		}
	}
	row.Order = t.index
	t.putVM(have, &row)
	t.log(t.env.Actor, "PATCH /fleet/vms/{id}", row.Name, row.Tenant, "ok", "vm_id", row.ID)
	return &row, nil
}

// setTTL gives a VM another time to live, within what its tenant may.
func (t *tx) setTTL(row *VM, ttl api.Optional[int64]) error {
	row.ExpiresAt = 0
	if ttl.Null {
		if o := t.Tenant(row.Tenant); o != nil && o.MaxTTL != nil {
			return api.Errorf(api.CodePolicyDenied, "tenant %s may not keep a VM without limit; give a ttl_seconds of at most %d", row.Tenant, *o.MaxTTL)
		}
		return nil
	}
	seconds, err := t.ttlFor(row.Tenant, ttl.V)
	if err != nil {
		return err
	}
	row.ExpiresAt = t.now + api.Time(seconds*1000)
	return nil
}

func nameTaken(name string) *api.Error {
	return api.Errorf(api.CodeNameTaken, "there is a VM %s already; choose another name or delete that one", name)
}

// reportVMs records what nodes confirmed and showed.
func (t *tx) reportVMs(c ReportVMs) (any, error) {
	for i := range c.Reports {
		t.report(&c.Reports[i])
	}
	return nil, nil
}

func (t *tx) report(r *VMReport) {
	have := t.VM(r.ID)
	if have == nil || have.Node != r.Node {
		return
	}
	if r.State == api.StateGone {
		t.ended(have, r)
		return
	}
	if have.State == api.StateLost && !t.MayReturn(have) || have.Move == MoveEnded {
		return
	}
	row := *have
	// An order that never was cannot be confirmed; while a claim can be given, only one that gave it counts.
	if r.Told > row.Told && r.Told <= row.Order && (row.Claim == nil || row.ReadyAt == 0 || r.Claimed) {
		row.Told, row.Again = r.Told, false
		if !row.Reschedulable {
			row.Boot = nil
		}
	}
	if r.Claimed && row.Told >= row.Order {
		row.Claim = nil
	}
	if row.HandOver && row.Told >= row.Order && row.Claim == nil {
		row.HandOver, row.Launch = false, nil
		if r.ClaimMS != nil {
			t.handedOver(&row, *r.ClaimMS)
		}
	}
	if row.Told != 0 && !row.HandOver && !row.Reschedulable {
		row.Launch = nil
	}
	if r.IP != "" {
		row.IP = r.IP
	}
	if row.State != api.StateDeleting && r.State != "" {
		t.observe(&row, r)
	}
	t.putVM(have, &row)
	t.spareNews(have, &row)
}

// observe takes over what the node says of a VM that is wanted. The other states are not the node's to say.
func (t *tx) observe(row *VM, r *VMReport) {
	switch r.State {
	case api.StateBooting, api.StateRunning, api.StateStopped, api.StatePaused, api.StateFailed:
		row.State, row.Reason = r.State, r.Reason
	default:
		return
	}
	if p := t.Pool(row.Pool); row.Warm && r.State == api.StateFailed && row.FailedAt == 0 && p != nil && p.KeepFailed > 0 {
		row.FailedAt = t.now
	}
	if r.State == api.StateRunning {
		if row.RunningAt == 0 {
			row.RunningAt = t.now
		}
		if r.Agent && row.ReadyAt == 0 {
			row.ReadyAt = t.now
			if row.Claim != nil { // now it can be given
				row.Order = t.index
			}
		}
		row.CanClaim = row.CanClaim || r.Agent && r.CanClaim
	}
	if !row.Warm || row.SpareSince != 0 || row.FailedAt != 0 {
		return
	}
	if p := t.Pool(row.Pool); p != nil && row.State == api.StateRunning && (row.ReadyAt != 0 || p.Readiness == api.ReadinessRunning) {
		row.SpareSince = t.now
	}
}

// spareNews tells the pool of a spare that became ready or failed.
func (t *tx) spareNews(old, row *VM) {
	switch {
	case !row.Warm:
	case old.SpareSince == 0 && row.SpareSince != 0:
		t.spareReady(row.Pool)
	case row.State != api.StateFailed || old.State == api.StateFailed:
	case row.SpareSince != 0:
		t.spareCrashed(row, or(row.Reason, "nothing more is known"))
	default:
		t.spareFailed(row.Pool, api.WaitBootFailed, or(row.Reason, "the VM failed to boot"))
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// handedOver adds a confirmed hand-over to the pool's statistics and the operation's answer.
func (t *tx) handedOver(v *VM, ms int64) {
	if p := t.claimedFrom(v); p != nil {
		if p.Crashing { // a spare that lived to be used
			row := *p
			row.tryAgain()
			t.putPool(&row, true)
		}
		t.amend(v.ClaimedFrom, v.ClaimedAt, func(s *ClaimStat) { s.Timed++; s.SumMS += ms })
	}
	if op := t.operationOf(v); op != nil {
		row := *op
		row.ClaimMS = ms
		t.operations.put(&row)
	}
}

// ended removes a VM that its node no longer has. One that is being handed over stays: its node will say that it
// cannot, and its launch goes on as a new VM rather than end unseen. One that moves boots elsewhere.
func (t *tx) ended(v *VM, r *VMReport) {
	t.endedAt = t.now - api.Time(max(r.EndedMS, 0))
	defer func() { t.endedAt = 0 }()
	switch {
	case v.HandOver:
		return
	case v.Move != "":
		t.movedOff(v)
		return
	}
	t.putVM(v, nil)
	if v.State == api.StateDeleting {
		return
	}
	if v.Warm {
		if v.SpareSince == 0 {
			t.spareFailed(v.Pool, api.WaitBootFailed, or(r.Reason, "the VM went from its node while it booted"))
		}
		t.log("warm-pool", "replace", v.Name, v.Tenant, "ok", "pool", v.Pool, "vm_id", v.ID, "reason", or(r.Reason, "gone from its node"))
		return
	}
	t.log("central", "end", v.Name, v.Tenant, "ok", "vm_id", v.ID, "reason", or(r.Reason, "gone from its node"))
}
