package consensus

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Leadership is this replica's role. Leader in another Term is a loss and a gain in between.
type Leadership struct {
	Leader bool
	Term   uint64 // the term led; 0 when not leader
}

// leadership keeps the latest role only: who listens too slowly misses steps but never the end.
type leadership struct {
	mu          sync.Mutex
	now         Leadership
	changed     chan struct{}
	unreachable map[raft.ServerID]bool // by the leader's heartbeats
}

// Leadership gives the role as last seen and a channel that is closed when it changes. Callers loop: act on the
// role, wait for the channel, ask again.
func (n *Node) Leadership() (now Leadership, changed <-chan struct{}) {
	l := &n.leadership
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.changed
}

// leading asks raft. The term is read on both sides of the state so that the two belong together.
func (n *Node) leading() (term uint64, leading bool) {
	for {
		term = n.raft.CurrentTerm()
		leading = n.raft.State() == raft.Leader
		if n.raft.CurrentTerm() == term {
			return term, leading
		}
	}
}

// listen takes what raft tells about itself. Raft stands still while it cannot tell, so this does nothing but
// store, and goes on until raft is down.
func (n *Node) listen(notify <-chan bool) {
	seen := make(chan raft.Observation, 64)
	observer := raft.NewObserver(seen, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.FailedHeartbeatObservation, raft.ResumedHeartbeatObservation:
			return true
		}
		return false
	})
	n.raft.RegisterObserver(observer)
	defer n.raft.DeregisterObserver(observer)
	for {
		select {
		case <-notify:
			n.publish()
		case o := <-seen:
			n.leadership.mu.Lock()
			switch peer := o.Data.(type) {
			case raft.FailedHeartbeatObservation:
				n.leadership.unreachable[peer.PeerID] = true
			case raft.ResumedHeartbeatObservation:
				delete(n.leadership.unreachable, peer.PeerID)
			}
			n.leadership.mu.Unlock()
		case <-n.stopped:
			n.publish()
			return
		}
	}
}

func (n *Node) publish() {
	var now Leadership
	if term, leading := n.leading(); leading {
		now = Leadership{Leader: true, Term: term}
	}
	l := &n.leadership
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unreachable = make(map[raft.ServerID]bool) // what an earlier term saw says nothing about this one
	if now == l.now {
		return
	}
	l.now = now
	close(l.changed)
	l.changed = make(chan struct{})
}

// IsLeader says whether this replica leads as far as it knows. Only VerifyRead and Propose make sure.
func (n *Node) IsLeader() bool {
	_, leading := n.leading()
	return leading
}

// Leader is the name and cluster address of the leader as far as this replica knows; empty when it knows none.
func (n *Node) Leader() (name, addr string) {
	address, id := n.raft.LeaderWithID()
	return string(id), string(address)
}

// Term is the newest term this replica has seen.
func (n *Node) Term() uint64 { return n.raft.CurrentTerm() }

// AppliedIndex is the index of the newest entry that the FSM's state includes. It counts commands and changes of
// membership only, so that it is the same on every replica that holds the same state.
func (n *Node) AppliedIndex() uint64 { return n.machine.applied.Load() }

// LastIndexAtStart is the AppliedIndex at which this replica has again all that it had stored before it started.
func (n *Node) LastIndexAtStart() uint64 { return n.atStart }

// LastContact is the time since this replica heard from a leader: 0 while it leads, and not ok if it never did.
func (n *Node) LastContact() (ago time.Duration, ok bool) {
	if n.IsLeader() {
		return 0, true
	}
	last := n.raft.LastContact()
	if last.IsZero() {
		return 0, false
	}
	return time.Since(last), true
}

// Status is what an operator may want to know about a replica's log.
type Status struct {
	State         string // Leader, Follower, Candidate or Shutdown
	Term          uint64
	LastIndex     uint64 // newest entry stored, committed or not
	CommitIndex   uint64
	AppliedIndex  uint64
	SnapshotIndex uint64 // newest snapshot on disk, 0 for none
	Waiting       int    // operations that wait for raft, abandoned ones included; at most 1,024
	Abandoned     int64  // operations, ever, whose caller stopped waiting
	LogBytes      int64  // size of the log file, which never shrinks by itself
	LogFreePages  int64  // pages of it that are free for reuse
}

// Status gathers the numbers; they need not be from one moment.
func (n *Node) Status() Status {
	s := Status{
		State:        n.raft.State().String(),
		Term:         n.raft.CurrentTerm(),
		LastIndex:    n.raft.LastIndex(),
		CommitIndex:  n.raft.CommitIndex(),
		AppliedIndex: n.AppliedIndex(),
		Waiting:      len(n.slots),
		Abandoned:    n.abandoned.Load(),
	}
	if taken, err := n.disk.snapshots.List(); err == nil && len(taken) > 0 {
		s.SnapshotIndex = taken[0].Index
	}
	s.LogBytes, s.LogFreePages = n.disk.usage()
	return s
}
