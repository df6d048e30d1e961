package central

import (
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	missingFor  = 3 * time.Second  // a row's VM may be gone when two lists lack it, this far apart: its host is asked
	strangerFor = 10 * time.Minute // a VM of this cluster without a row is removed after that; one that is elsewhere as soon as it is certain
)

// observe compares what a node lists with the rows placed on it and says what is news, and which of the node's
// VMs belong to nobody. now is this process's clock; a beat's missing and strangers remember earlier looks.
func observe(view fsm.View, node string, b *beat, now time.Time) (news []fsm.VMReport, strangers []string) {
	if !believed(view, node, b) {
		return nil, nil
	}
	for row := range view.VMsOn(node) {
		if one, ok := observeRow(view, row, b, now); ok {
			news = append(news, one)
		}
	}
	for id := range b.missing {
		if row := view.VM(id); row == nil || row.Node != node {
			delete(b.missing, id)
		}
	}
	return news, adrift(view, node, b, now)
}

// believed says whether what a node lists is news at all.
func believed(view fsm.View, node string, b *beat) bool {
	n := view.Node(node)
	switch {
	case b == nil || b.vms == nil:
		return false
	case n == nil:
		return true
	case n.State == api.NodeUnreachable || n.State == api.NodeLost:
		return false // what it said before its silence is no news, and once it is back it is healthy first
	}
	return n.BootID == b.report.BootID // else that it has booted comes first: it says when what ran there ended
}

// observeRow is observe of one row of the node.
func observeRow(view fsm.View, row *fsm.VM, b *beat, now time.Time) (news fsm.VMReport, ok bool) {
	if row.Move == fsm.MoveEnded {
		return news, false // an older list may still have it
	}
	vm := b.vms[row.ID]
	if vm == nil {
		return fsm.VMReport{ID: row.ID, Node: row.Node, State: api.StateGone, Reason: "its node no longer has it"}, gone(row, b, now)
	}
	if vm.State == api.StateGone && row.Reschedulable && row.State != api.StateDeleting && !goneAgain(row, b, now) {
		return news, false
	}
	delete(b.missing, row.ID)
	news, ok = differs(row, vm)
	if !ok || row.State == api.StateLost && news.State != api.StateGone && !view.MayReturn(row) {
		return news, false
	}
	if news.Node = row.Node; news.State == api.StateGone {
		news.EndedMS = b.sinceEnd(vm, now).Milliseconds()
	}
	return news, true
}

// gone says that the VM of a row seems not to be on its node: it was there, and two lists that are well apart lack it.
func gone(row *fsm.VM, b *beat, now time.Time) bool {
	if row.Told == 0 || row.State == api.StatePlaced {
		return false // the node may not have been told of it yet
	}
	since, known := b.missing[row.ID]
	if !known {
		b.missing[row.ID] = b.at
		return false
	}
	return b.at.After(since) && now.Sub(since) >= missingFor
}

// goneAgain says that the end of a VM that may move is of its present stay on the node: the list may be from before it came
// back there, and still tell of the end of its last stay. A list that was heard well after this was first seen is not.
func goneAgain(row *fsm.VM, b *beat, now time.Time) bool {
	since, known := b.missing[row.ID]
	if !known {
		b.missing[row.ID] = now
		return false
	}
	return b.at.Sub(since) >= missingFor
}

// differs says what a node shows of a VM that its row does not.
func differs(row *fsm.VM, vm *api.ReportedVM) (fsm.VMReport, bool) {
	out := fsm.VMReport{ID: row.ID, State: vm.State, Agent: vm.Agent, CanClaim: vm.CanClaim, IP: vm.IP, Reason: vm.Reason}
	switch {
	case vm.State == api.StateGone:
		return out, row.Told != 0 || row.State == api.StateDeleting
	case row.State == api.StateDeleting || row.Told == 0:
		return out, false
	}
	switch vm.State {
	case api.StateBooting, api.StateRunning, api.StateStopped, api.StatePaused, api.StateFailed:
	default: // no news that a row would take: it would be news again at every look
		return out, false
	}
	changed := row.State != vm.State || vm.IP != "" && row.IP != vm.IP ||
		vm.Agent && row.ReadyAt == 0 && vm.State == api.StateRunning || vm.CanClaim && !row.CanClaim && vm.State == api.StateRunning || row.State == vm.State && row.Reason != vm.Reason && vm.Reason != ""
	return out, changed
}

// isElsewhere says of a VM's row on another node that the VM is there for certain: after a restore that is known only once
// that node's list is merged.
func isElsewhere(view fsm.View, row *fsm.VM) bool {
	if row == nil {
		return false
	}
	n := view.Node(row.Node)
	return n != nil && !n.Adopting
}

// adrift lists VMs of this cluster on the node that no row places there, seen for long enough.
func adrift(view fsm.View, node string, b *beat, now time.Time) (out []string) {
	cluster := view.Meta().ClusterID
	for id, vm := range b.vms {
		row := view.VM(id)
		if vm.Cluster != cluster || vm.State == api.StateGone || row != nil && row.Node == node {
			delete(b.strangers, id)
			continue
		}
		patience := strangerFor
		if isElsewhere(view, row) {
			patience = missingFor
		}
		since, known := b.strangers[id]
		if !known {
			b.strangers[id] = b.at
		} else if now.Sub(since) >= patience && b.at.After(since) {
			out = append(out, id)
		}
	}
	return out
}
