package consensus

import (
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Entry is one committed command.
type Entry struct {
	Index   uint64
	Command []byte
}

// FSM is the replicated state. Its methods are called one at a time; what Snapshot returns is written while
// later commands are applied, so it must be a view that no longer changes.
type FSM interface {
	// Apply changes the state by committed commands, in order, and gives a result for each. It is deterministic: the
	// same commands give the same state and results on every replica, however they are put together. Indexes rise but
	// have gaps; there is one entry at least. A result goes to whoever proposed the command, on the replica that proposed it.
	Apply(entries []Entry) (results []any)
	// Snapshot gives a frozen view of the state. Nothing is applied until it returns, so it must be quick.
	Snapshot() (io.WriterTo, error)
	// Restore replaces the whole state by what a snapshot wrote. It must verify all of it before it changes
	// anything: an error leaves the state as it was. Start, not only a late follower, calls it.
	Restore(r io.ReadCloser) error
	// ClusterID is the id of the cluster that the state belongs to, empty until a command or a snapshot has
	// set it. It is asked for after each Apply until it is there, and after each Restore; the data directory
	// is marked as this cluster's before the result of that command is handed out.
	ClusterID() string
}

const (
	sameSnapshotTimes  = 3
	sameSnapshotWithin = time.Minute
)

// machine adapts an FSM to raft.
type machine struct {
	fsm      FSM
	name     string
	identity *identity
	exit     func(code int, message string)

	applied   atomic.Uint64 // newest index that the FSM's state includes
	running   atomic.Bool   // false while Open restores
	clusterID string
	refusal   error // why the state found on disk must not be used here
	repeated  repeats
}

var _ raft.BatchingFSM = (*machine)(nil)

func (m *machine) Apply(entry *raft.Log) any { return m.ApplyBatch([]*raft.Log{entry})[0] }

// ApplyBatch takes commands and changes of the members, and gives as many results.
func (m *machine) ApplyBatch(logs []*raft.Log) []any {
	entries := make([]Entry, 0, len(logs))
	for _, l := range logs {
		if l.Type == raft.LogCommand {
			entries = append(entries, Entry{l.Index, l.Data})
		}
	}
	var results []any
	if len(entries) > 0 {
		results = m.fsm.Apply(entries)
	}
	if m.clusterID == "" {
		if err := m.belong(false); err != nil {
			m.exit(exitCode(err), err.Error())
		}
	}
	m.applied.Store(logs[len(logs)-1].Index)
	out := make([]any, len(logs))
	for i, l := range logs {
		if l.Type == raft.LogCommand {
			out[i], results = results[0], results[1:]
		}
	}
	return out
}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	view, err := m.fsm.Snapshot()
	if err != nil {
		return nil, err
	}
	return frozen{view}, nil
}

func (m *machine) Restore(r io.ReadCloser) error {
	if err := m.fsm.Restore(r); err != nil {
		return err
	}
	// A snapshot that arrives while running came from the leader or an operator's restore, and may bring the
	// id of the cluster it was taken from. One found on disk must match the directory it was found in.
	if err := m.belong(m.running.Load()); err != nil {
		m.refusal = err // raft would only say that it could not restore
		return err
	}
	wrapper, ok := r.(raft.ReadCloserWrapper)
	if !ok {
		return nil
	}
	if tagged, ok := wrapper.WrappedReadCloser().(*taggedReader); ok {
		m.applied.Store(tagged.meta.Index)
		if m.running.Load() && m.repeated.note(tagged.meta.Index, tagged.meta.Term, time.Now()) {
			m.exit(ExitFault, fmt.Sprintf("the same snapshot (index %d) was installed %d times within %s: starting again to leave the loop", tagged.meta.Index, sameSnapshotTimes, sameSnapshotWithin))
		}
	}
	return nil
}

// belong marks the data directory as part of the cluster whose state it holds.
func (m *machine) belong(mayChange bool) error {
	id := m.fsm.ClusterID()
	if id == "" || id == m.clusterID {
		return nil
	}
	if known := m.identity.ClusterID; known != "" && known != id && !mayChange {
		return refuse("this data directory belongs to cluster %s but its raft store holds cluster %s: put the two that belong together back in place", known, id)
	}
	if err := m.identity.mark(m.name, id); err != nil {
		return err
	}
	m.clusterID = id
	return nil
}

// frozen writes one view of the state into a snapshot.
type frozen struct{ view io.WriterTo }

func (f frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := f.view.WriteTo(sink); err != nil {
		_ = sink.Cancel() // the write error is the one that matters
		return fmt.Errorf("writing snapshot: %w", err)
	}
	return sink.Close()
}

func (frozen) Release() {}

// repeats notices a snapshot that is installed over and over.
type repeats struct {
	index, term uint64
	at          []time.Time
}

func (r *repeats) note(index, term uint64, now time.Time) (looping bool) {
	if index != r.index || term != r.term {
		r.index, r.term, r.at = index, term, nil
	}
	r.at = append(r.at, now)
	if len(r.at) > sameSnapshotTimes {
		r.at = r.at[1:]
	}
	return len(r.at) == sameSnapshotTimes && now.Sub(r.at[0]) <= sameSnapshotWithin
}
