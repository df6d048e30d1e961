package fsm

import (
	"slices"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const reasonLost = "its node is lost"

// loseNode takes the operator's word that a silent host will not be back as it was. With Replace the host's identity
// is void, too: the next one that joins under its name takes it over. Its value is the *Node.
func (t *tx) loseNode(c LoseNode) (any, error) {
	have := t.Node(c.Name)
	if have == nil {
		return nil, api.NotFound("node", c.Name)
	}
	if have.State == api.NodeHealthy {
		return nil, api.Errorf(api.CodeConflict, "node %s is healthy, so its VMs are not lost; stop its daemon and wait 30 s, or drain it", c.Name)
	}
	if _, err := t.remember(Operation{Ref: c.Name}); err != nil {
		return nil, err
	}
	row := *have
	row.State, row.Fault = api.NodeLost, ""
	if c.Reason != "" {
		row.Reason = c.Reason
	}
	if c.Replace {
		row.UUID, row.CredentialHash = "", ""
	}
	t.putNode(&row)
	t.log(t.env.Actor, c.Action, row.Name, "", "ok", "reason", c.Reason)
	return &row, nil
}

// Unsettled are a lost host's VMs that loseVMs has not dealt with yet: none stays as it was when the host fell silent.
// Those that the host was not told of yet, and launches whose hand-over is open, go on elsewhere by their own orders.
func (v View) Unsettled(node string) (ids []string) {
	for vm := range v.VMsOn(node) {
		if !vm.HandOver && (vm.Warm || vm.State != api.StateLost && !vm.isUntold()) {
			ids = append(ids, vm.ID)
		}
	}
	return ids
}

// isUntold says that no node has confirmed the VM since it was placed.
func (v *VM) isUntold() bool { return v.State == api.StatePlaced && v.Told == 0 }

// loseVMs settles VMs of a lost host: spares and those that were to end go, reschedulable ones boot elsewhere, the
// others are lost, until the host is back with them. Bills end when the host was last heard. Its value is the ids that
// were placed elsewhere.
func (t *tx) loseVMs(c LoseVMs) (any, error) {
	n := t.Node(c.Node)
	if n == nil || n.State != api.NodeLost {
		return []string(nil), nil // it is back
	}
	t.endedAt = max(n.ConfirmedAt, 1)
	defer func() { t.endedAt = 0 }()
	var placed []string
	for _, lost := range c.VMs {
		v := t.VM(lost.ID)
		switch {
		case v == nil || v.Node != c.Node || v.HandOver:
		case v.Warm:
			t.putVM(v, nil)
			if v.Live() {
				t.log("warm-pool", "replace", v.Name, v.Tenant, "ok", "pool", v.Pool, "vm_id", v.ID, "reason", reasonLost)
			}
		case v.State == api.StateDeleting:
			t.putVM(v, nil)
		case v.isUntold():
		case v.Reschedulable && t.reschedule(v, lost.Candidates, c.Keep):
			placed = append(placed, v.ID)
		case v.State != api.StateLost:
			row := *v
			row.State, row.Reason, row.Move, row.Down = api.StateLost, reasonLost, "", false
			t.putVM(v, &row)
			t.log("central", "lost", v.Name, v.Tenant, "ok", "vm_id", v.ID, "node", c.Node)
		}
	}
	return placed, nil
}

// reschedule boots a VM that its host no longer runs, or is lost with, anew on the first candidate that fits.
func (t *tx) reschedule(v *VM, candidates []string, note bool) bool {
	row := *v
	if row.Launch == nil { // from before launches of such VMs were kept
		row.Launch = &Launch{Tenant: v.Tenant, Name: v.Name, Image: v.Image, VCPUs: v.VCPUs, MemoryMiB: v.MemoryMiB, DiskGiB: v.DiskGiB, Resched: true}
	}
	node := t.firstFit(candidates, nil, t.needElsewhere(&row))
	if node == nil || v.State == api.StateLost && t.mayHold(v.Tenant, holds(v.GuestOS, v.VCPUs, v.MemoryMiB)) != nil {
		return false
	}
	row.Reason, row.IP, row.RunningAt, row.ReadyAt, row.Tried, row.TriedFor, row.Down, row.Move = "", "", 0, 0, nil, nil, false, ""
	row.Again = note
	row.Claim = row.Launch.claimAgain(row.Claim)
	row.Backend = node.Backend(row.Launch.Backend)
	t.place(&row, node)
	t.putVM(v, &row)
	t.follow(&row)
	t.log("central", "reschedule", v.Name, v.Tenant, "ok", "vm_id", v.ID, "from", v.Node, "node", node.Name)
	return true
}

// follow makes a repeat of a VM's launch answer with the node that it has now.
func (t *tx) follow(v *VM) {
	if op := t.operationOf(v); op != nil {
		moved := *op
		moved.Node = v.Node
		t.operations.put(&moved)
	}
}

// MayReturn says whether a lost VM may count again, as its host has come back with it: the quota of its tenant may be
// used up since, and no Mac gets a third macOS guest. Until it may, the VM stays lost.
func (v View) MayReturn(vm *VM) bool {
	n := v.Node(vm.Node)
	return n != nil && n.State == api.NodeHealthy && v.mayHold(vm.Tenant, holds(vm.GuestOS, vm.VCPUs, vm.MemoryMiB)) == nil &&
		(vm.GuestOS != api.GuestMacOS || v.Use(vm.Node).MacOS < api.MacOSPerHost)
}

// updateNodes takes over changed facts of hosts that are known by their credentials, many at once.
func (t *tx) updateNodes(c UpdateNodes) (any, error) {
	for i := range c.Nodes {
		facts := &c.Nodes[i]
		if have := t.Node(facts.Name); have != nil && have.UUID == facts.UUID && !have.SameFacts(facts) {
			t.takeFacts(*have, facts)
		}
	}
	return nil, nil
}

// takeFacts stores a known host with new facts. A host that has booted runs none of the VMs that it had: they have
// failed, when it was last heard, or now if nobody noticed.
func (t *tx) takeFacts(row Node, facts *Node) *Node {
	was, silent, heard := row.BootID, row.State != api.NodeHealthy, row.ConfirmedAt
	copyFacts(&row, facts)
	t.putNode(&row)
	if was == "" || was == facts.BootID {
		return &row
	}
	t.log("node/"+row.Name, "reboot", row.Name, "", "ok")
	if silent {
		t.endedAt = max(heard, 1)
		defer func() { t.endedAt = 0 }()
	}
	var ran []*VM
	for v := range t.VMsOn(row.Name) {
		if slices.Contains([]api.VMState{api.StateBooting, api.StateRunning, api.StatePaused, api.StateUnknown}, v.State) {
			ran = append(ran, v)
		}
	}
	for _, v := range ran {
		failed := *v
		failed.State, failed.Reason = api.StateFailed, "its host rebooted"
		t.putVM(v, &failed)
	}
	return &row
}
