package fsm

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What the loss of hosts does to the model.

func (m *model) loseNode(*rapid.T) {
	c := LoseNode{Name: m.pick(modelNodes, "node"), Action: "POST /fleet/nodes/{name}/lost", Replace: m.chance(3, "replace")}
	before, r, op, applied := m.keyed(KindLoseNode, "", c, c)
	if !applied {
		return
	}
	m.kept(r, KindLoseNode, op, c, c.Name)
	n := before.Node(c.Name)
	if want := n != nil && n.State != api.NodeHealthy; want != (r.Err == nil) {
		m.r.Fatalf("got %+v for the loss of %+v", r, n)
	}
}

// loseVMs loses a host, as central would after a long silence, and settles some of its VMs; or comes late, or twice.
func (m *model) loseVMs(*rapid.T) {
	node := m.pick(modelNodes, "node")
	if n := m.f.view().Node(node); n == nil {
		m.skip()
	} else if n.State == api.NodeHealthy && !m.chance(4, "late") {
		heard := m.f.now - rapid.SampledFrom([]api.Time{0, 50, 400, 30_000}).Draw(m.r, "silent for")
		m.send(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: node, State: api.NodeSuspect, ConfirmedAt: heard}}})
		m.send(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: node, State: api.NodeUnreachable}}})
		m.send(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: node, State: api.NodeLost}}})
	}
	c := LoseVMs{Node: node, Keep: true}
	for v := range m.f.view().VMs("") {
		if v.Node == node || m.chance(6, "of another host") {
			c.VMs = append(c.VMs, LostVM{ID: v.ID, Candidates: m.candidates()})
		}
	}
	if len(c.VMs) > 2 && m.chance(4, "not all") {
		c.VMs = c.VMs[:2]
	}
	keys := map[string]*asked{}
	for _, lost := range c.VMs {
		keys[lost.ID] = m.keyOf(m.f.vm(lost.ID))
	}
	m.books.lost = node
	before, r := m.send(KindLoseVMs, c)
	m.books.lost = ""
	lost := before.Node(node).State == api.NodeLost
	placed := map[string]bool{}
	for _, id := range r.Value.([]string) {
		placed[id] = true
	}
	for _, one := range c.VMs {
		was, is := before.VM(one.ID), m.f.view().VM(one.ID)
		switch {
		case !lost || was.Node != node || was.HandOver || was.isUntold() && !was.Warm:
			if is != was {
				m.r.Fatalf("VM %+v of a host that is not lost, or that others see to, is %+v", was, is)
			}
		case was.Warm || was.State == api.StateDeleting:
			m.saw("lost spare")
			if is != nil {
				m.r.Fatalf("VM %+v is left as %+v", was, is)
			}
		case placed[one.ID]:
			m.saw("rescheduled")
			m.placed(before, is)
			if !was.Reschedulable || is.Node == node || is.Name != was.Name || is.Tenant != was.Tenant || is.RunningAt != 0 || is.ReadyAt != 0 {
				m.r.Fatalf("VM %+v goes on as %+v", was, is)
			}
			if a := keys[one.ID]; a != nil {
				a.want.Node, a.note = is.Node, " after a move"
			}
		default:
			m.saw("lost VM")
			if is == nil || is.State != api.StateLost || is.Node != node || is.Name != was.Name {
				m.r.Fatalf("VM %+v was lost as %+v", was, is)
			}
		}
	}
}

func (m *model) updateNodes(*rapid.T) {
	var c UpdateNodes
	for range rapid.IntRange(1, 2).Draw(m.r, "hosts") {
		facts := m.facts(m.pick(append(modelNodes, "n3"), "node"))
		facts.BootID = m.pick([]string{"b", "b2", "b3"}, "boot")
		if m.chance(5, "another host") {
			facts.UUID = "u-other"
		}
		if len(c.Nodes) > 0 && c.Nodes[0].Name == facts.Name {
			continue
		}
		c.Nodes = append(c.Nodes, facts)
	}
	before, _ := m.send(KindUpdateNodes, c)
	for v := range m.f.view().VMs("") {
		if was := before.VM(v.ID); was != nil && was.State != v.State {
			m.saw("failed by a reboot")
			if v.State != api.StateFailed || m.f.view().Node(v.Node).BootID == before.Node(v.Node).BootID {
				m.r.Fatalf("facts of hosts made VM %+v of %+v", v, was)
			}
		}
	}
}

// relocateVMs moves VMs off a host, drained or not: asks for their end there, or boots elsewhere what has ended.
func (m *model) relocateVMs(*rapid.T) {
	node := m.pick(modelNodes, "node")
	n := m.f.view().Node(node)
	if n == nil {
		m.skip()
	}
	if !n.Draining && m.chance(2, "drain first") {
		m.send(KindPatchNode, PatchNode{Name: node, Action: "POST /fleet/nodes/{name}/drain", Cordoned: new(true), Draining: new(true), Drain: &DrainHost{}})
	}
	c := RelocateVMs{Node: node, Keep: true}
	for v := range m.f.view().VMs("") {
		if v.Node == node || m.chance(6, "of another host") {
			c.VMs = append(c.VMs, LostVM{ID: v.ID, Candidates: m.candidates()})
		}
	}
	keys := map[string]*asked{}
	for _, one := range c.VMs {
		keys[one.ID] = m.keyOf(m.f.vm(one.ID))
	}
	before, r := m.send(KindRelocateVMs, c)
	placed := r.Value.([]string)
	for _, one := range c.VMs {
		was, is := before.VM(one.ID), m.f.view().VM(one.ID)
		switch {
		case slices.Contains(placed, one.ID):
			m.saw("moved")
			m.placed(before, is)
			if was.Move != MoveEnded || is.Move != "" || is.Name != was.Name || is.RunningAt != 0 {
				m.r.Fatalf("VM %+v, which may still run, was placed as %+v", was, is)
			}
			if a := keys[one.ID]; a != nil {
				a.want.Node, a.note = is.Node, " after a move"
			}
		case is != was:
			m.saw("asked to move")
			if !was.Reschedulable || was.Node != node || is.Node != node || is.Move != MoveEnding || is.State != was.State || !before.Node(node).Draining {
				m.r.Fatalf("VM %+v was asked to move and is %+v", was, is)
			}
		}
	}
}
