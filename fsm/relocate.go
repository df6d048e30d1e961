package fsm

import "github.com/fluxvm/fluxvm/pkg/api"

// How far a VM is that moves off a host that is drained. It has ended there before another host is told of it, so that
// it never runs twice.
const (
	MoveEnding = "ending" // its host is to end it
	MoveEnded  = "ended"  // its host has, and it waits for another
)

const (
	reasonMoves = "its node is draining: it is ended there and boots elsewhere"
	reasonMoved = "it has ended on its node, which was drained, and boots elsewhere as soon as a host has room"

	reasonParked = "it is to boot anew, and no host takes it now"
)

// MayMove says that a drain boots the VM elsewhere. One that is stopped or has failed is left to whoever made it.
func (v *VM) MayMove() bool {
	return v.Reschedulable && !v.HandOver && (v.State == api.StateBooting || v.State == api.StateRunning || v.State == api.StatePaused)
}

// relocateVMs asks for the end of VMs on a host that is drained where others have room for them, and boots those that
// have ended there on the first candidate that fits. Its value is the ids that were placed elsewhere.
func (t *tx) relocateVMs(c RelocateVMs) (any, error) {
	var placed []string
	n := t.Node(c.Node)
	for _, one := range c.VMs {
		v := t.VM(one.ID)
		switch {
		case n == nil || n.Adopting || v == nil || v.Node != c.Node || !v.Live():
		case v.Move == MoveEnded:
			if t.reschedule(v, one.Candidates, c.Keep) {
				placed = append(placed, v.ID)
			}
		case v.Move == "" && n.Draining && v.MayMove() && t.firstFit(one.Candidates, nil, t.needElsewhere(v)) != nil:
			row := *v
			row.Move, row.Reason, row.Order = MoveEnding, reasonMoves, t.index
			t.putVM(v, &row)
			t.log("central", "drain", v.Name, v.Tenant, "ok", "vm_id", v.ID, "reason", reasonMoves)
		}
	}
	return placed, nil
}

// movedOff keeps the row of a VM that has ended on the host that it moves off. It takes nothing there any more, and
// still counts for its tenant.
func (t *tx) movedOff(v *VM) {
	if v.Move == MoveEnded {
		return
	}
	row := *v
	row.Move, row.State, row.Reason, row.Down, row.IP = MoveEnded, api.StateStopped, reasonMoved, true, ""
	t.putVM(v, &row)
}

// park keeps a VM that was to boot anew and that no host takes: it waits for one like any that has ended on its host.
func (t *tx) park(v *VM, refusal string) *VM {
	row := *v
	row.Move, row.State, row.Reason, row.Down, row.Tried, row.TriedFor = MoveEnded, api.StateStopped, reasonParked, true, nil, nil
	if refusal != "" {
		row.Reason += "; the last one said: " + refusal
	}
	t.putVM(v, &row)
	return &row
}

// needElsewhere is what a VM that boots anew needs of its next host.
func (v View) needElsewhere(vm *VM) Need {
	need := Need{Tenant: vm.Tenant, Leased: v.MacOSNeedsLease(vm.Tenant, vm.GuestOS), GuestOS: vm.GuestOS, VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, Claim: vm.Claim != nil}
	if vm.Launch != nil {
		need.Backend, need.Claim = vm.Launch.Backend, need.Claim || vm.Launch.Claim != nil
	}
	return need
}

// claimAgain is what the guest of a VM that boots anew is to be given: what it waits for still, or what the launch asked
// for. Secrets are nowhere but in the first guest, so those that it had are not among them.
func (l *Launch) claimAgain(waits *Claim) *Claim {
	if waits != nil || l.Claim == nil {
		return waits
	}
	again := *l.Claim
	again.Secrets = nil
	return &again
}

// keepClaim keeps the claim of a VM that may boot anew, when its guest has to be given it once more.
func (t *tx) keepClaim(v *VM, claim *Claim) {
	row, launch := *v, *v.Launch
	launch.Claim, row.Launch = claim, &launch
	t.putVM(v, &row)
}
