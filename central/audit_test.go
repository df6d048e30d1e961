package central

import (
	"slices"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// audit lets everything come to rest and holds replicas and nodes to what must be true of any history.
func (r *rig) audit() {
	r.t.Helper()
	for _, name := range r.names {
		r.network.Rejoin(name)
		r.heal(name)
		if r.member(name) == nil {
			r.start(name)
		}
	}
	r.leader()
	r.sameState()
	r.nodesAgree()
	r.ordersMakeSense()
}

// sameState waits until all replicas are at one index with nothing left to order, and compares their states.
func (r *rig) sameState() {
	r.t.Helper()
	var hashes []string
	r.eventually("all replicas at one index with nothing open", 2*time.Minute, func() bool {
		hashes = nil
		var index uint64
		for i, name := range r.names {
			view := r.member(name).state.View()
			for row := range view.Open() {
				if n := r.node(row.Node); n != nil && !n.away() {
					return false
				}
			}
			if i > 0 && view.Index() != index {
				return false
			}
			index = view.Index()
			hash, err := view.Hash()
			if err != nil {
				r.t.Fatal(err)
			}
			hashes = append(hashes, hash)
		}
		return true
	})
	if len(slices.Compact(hashes)) != 1 {
		r.t.Errorf("equal index, and the state hashes are %v", hashes)
	}
	for _, name := range r.names {
		if err := r.member(name).state.View().Check(); err != nil {
			r.t.Errorf("state of %s: %v", name, err)
		}
	}
}

func (n *modelNode) away() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.silent || n.closed || n.failBoots
}

// nodesAgree compares what the nodes have with the rows.
func (r *rig) nodesAgree() {
	r.t.Helper()
	view := r.member(r.leader()).state.View()
	for name, n := range r.nodes {
		if n.away() {
			continue
		}
		rows := map[string]string{}
		for row := range view.VMsOn(name) {
			if row.Live() && row.State != api.StateFailed {
				rows[row.ID] = row.Name
			}
		}
		n.mu.Lock()
		for id, m := range n.vms {
			if m.State == api.StateFailed {
				continue
			}
			if rows[id] != m.Name {
				r.t.Errorf("node %s has VM %s called %q, its row says %q", name, id, m.Name, rows[id])
			}
			delete(rows, id)
		}
		n.mu.Unlock()
		for id, vm := range rows {
			r.t.Errorf("VM %s (%s) should be on node %s and is not", id, vm, name)
		}
	}
}

// ordersMakeSense holds the orders that the nodes carried out to what a VM's life may be.
func (r *rig) ordersMakeSense() {
	r.t.Helper()
	madeOn, names := map[string]string{}, map[string]string{}
	for name, n := range r.nodes {
		var epoch, term uint64
		for _, o := range n.log() {
			if o.op == "expire" || o.outcome == "stale" {
				continue
			}
			if o.epoch < epoch || o.epoch == epoch && o.term < term {
				r.t.Errorf("node %s carried out %s of %s under %d.%d after one under %d.%d", name, o.op, o.id, o.epoch, o.term, epoch, term)
			}
			epoch, term = o.epoch, o.term
			switch {
			case o.op == "POST" && o.outcome == "done":
				if other, twice := madeOn[o.id]; twice && !r.moved[o.id] {
					r.t.Errorf("VM %s was made on %s and on %s", o.id, other, name)
				}
				madeOn[o.id] = name
			case o.op == "PATCH" && o.outcome == "done":
				if other := names[o.id]; other != "" && other != o.name {
					r.t.Errorf("VM %s was handed over as %s and as %s", o.id, other, o.name)
				}
				names[o.id] = o.name
			}
		}
	}
}
