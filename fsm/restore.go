package fsm

import (
	"fmt"
	"io"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// PrepareRestore reads a backup as a whole and writes the state that a cluster goes on with: in a newer epoch, so that
// hosts take its orders and none of an older leader's, and with every host waiting to be adopted. What happened after
// the backup is known to the hosts alone: until a host's list is merged nothing is ended, ordered or placed on it.
// epoch and index are the least to use, action what the activity log calls it. Whoever followed the events of the state
// before has to list anew: the index must lie above any that it was given.
func PrepareRestore(r io.Reader, w io.Writer, action string, epoch, index uint64) (Meta, error) {
	state, had, err := read(r)
	if err != nil {
		return Meta{}, err
	}
	t := &tx{View: View{&published{tables: state}}, index: max(had, index)}
	t.meta = t.Meta()
	t.now = t.meta.Now
	if t.meta.ClusterID == "" {
		return Meta{}, fmt.Errorf("it holds the state of no cluster")
	}
	t.meta.Epoch, t.meta.Index = max(t.meta.Epoch+1, epoch), t.index
	var nodes []*Node
	for n := range t.Nodes("") {
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		row := *n
		row.Adopting, row.State = true, api.NodeUnreachable
		t.putNode(&row)
		t.unknownVMs(n.Name)
	}
	t.log("central", action, t.meta.ClusterID, "", "ok")
	t.tables.meta.put(&t.meta)
	if err := t.Check(); err != nil {
		return Meta{}, fmt.Errorf("it contradicts itself: %w", err)
	}
	_, err = t.WriteTo(w)
	return t.meta, err
}

// adoptNode merges a part of a host's list after a restore; Done says that it was the last.
func (t *tx) adoptNode(c AdoptNode) (any, error) {
	have := t.Node(c.Name)
	if have == nil || !have.Adopting {
		return nil, nil // merged already, or forgotten
	}
	for i := range c.Gone { // first: a Mac holds two guests
		t.report(&c.Gone[i])
	}
	owner := ""
	if l := t.Lease(have.Lease); l != nil {
		owner = l.Tenant
	}
	for i := range c.VMs {
		t.adopt(c.Name, owner, &c.VMs[i])
	}
	if !c.Done {
		return nil, nil
	}
	row := *have
	row.Adopting, row.State, row.ConfirmedAt = false, api.NodeHealthy, t.now
	t.putNode(&row)
	t.log("central", "adopt", row.Name, "", "ok")
	return nil, nil
}

// adopt makes a row for a VM that was started after the backup: whose it was went with the log, so it is the
// operator's, or on a leased host the lease's. One that the backup knew as still to be made on another host is where it was found.
func (t *tx) adopt(node, owner string, vm *AdoptedVM) {
	row := VM{ID: vm.ID, Name: vm.Name, Tenant: owner, Node: node, Backend: vm.Backend, GuestOS: vm.GuestOS, VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, State: vm.State,
		Reason: "found on its node after a restore", CreatedAt: t.now, Order: t.index, Told: t.index}
	old := t.VM(vm.ID)
	if old != nil {
		if old.Node == node || old.Told != 0 {
			return
		}
		row = *old
		row.Node, row.State, row.Told, row.Launch = node, vm.State, row.Order, nil
	} else if row.Name == "" || t.VMNamed(owner, row.Name) != nil {
		row.Name = "adopted-" + row.ID[:min(36, len(row.ID))]
	}
	if row.State == api.StateRunning && row.RunningAt == 0 {
		row.RunningAt = t.now
	}
	t.putVM(old, &row)
}
