package fsm

import "sync"

// touchedSize is how many changes of hosts a replica remembers.
const touchedSize = 16_384

// touched remembers which hosts changed when, so that whoever keeps something of every host need not look at all of them
// again. It may name one that is as it was.
type touched struct {
	mu    sync.Mutex
	list  []touch // in order
	floor uint64  // everything after this index is here
}

type touch struct {
	index uint64
	node  string
}

// add is called before the change can be seen: what a view shows has been told.
func (c *touched) add(index uint64, nodes []string) {
	if len(nodes) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range nodes {
		c.list = append(c.list, touch{index, n})
	}
	if over := len(c.list) - touchedSize; over > touchedSize/4 { // cut now and then, not every time
		c.floor = c.list[over-1].index
		c.list = append([]touch(nil), c.list[over:]...)
	}
}

// reset forgets everything up to the index: what led to it is not known change by change.
func (c *touched) reset(index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.floor = nil, index
}

// Touched gives the hosts whose rows, use or lease changed after the index, some of them more than once. ok is false when
// that is not known any more. It says nothing of a state that a restore has replaced since (View.Abandoned).
func (s *State) Touched(after uint64) (nodes []string, ok bool) {
	c := &s.touched
	c.mu.Lock()
	defer c.mu.Unlock()
	if after < c.floor {
		return nil, false
	}
	for i := len(c.list) - 1; i >= 0 && c.list[i].index > after; i-- {
		nodes = append(nodes, c.list[i].node)
	}
	return nodes, true
}

// touched are the hosts whose rows, use or lease the command changed.
func (j *journal) touched() (nodes []string) {
	for _, c := range *j {
		row := c.row
		if row == nil {
			row = c.old
		}
		switch r := row.(type) {
		case *Node:
			nodes = append(nodes, r.Name)
		case *Use:
			nodes = append(nodes, r.Node)
		case *Lease: // it keeps its hosts
			nodes = append(nodes, r.Nodes...)
		}
	}
	return nodes
}
