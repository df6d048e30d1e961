package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/hashicorp/raft"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Server names a replica and the cluster address that others dial.
type Server struct{ Name, Addr string }

// Member is a replica as the newest membership has it, committed or not.
type Member struct {
	Name, Addr string
	Voter      bool
	Leader     bool
	Reachable  bool // false if the leader's last heartbeat to it failed; only the leader can know
}

// Members lists the cluster in the order in which the replicas joined; empty before a replica belongs to one.
func (n *Node) Members() []Member {
	_, leader := n.raft.LeaderWithID()
	n.leadership.mu.Lock()
	defer n.leadership.mu.Unlock()
	var members []Member
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		members = append(members, Member{
			Name:      string(s.ID),
			Addr:      string(s.Address),
			Voter:     s.Suffrage == raft.Voter,
			Leader:    s.ID == leader,
			Reachable: !n.leadership.unreachable[s.ID],
		})
	}
	return members
}

func (n *Node) member(name string) (Member, bool) {
	for _, m := range n.Members() {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

func (n *Node) hasSuccessor() bool {
	for _, m := range n.Members() {
		if m.Voter && m.Reachable && m.Name != n.cfg.Name {
			return true
		}
	}
	return false
}

// AddNonvoter lets a replica follow the log without a vote. Add a new replica this way, wait until it has caught
// up, then make it a voter: a voter counts for the majority at once, however far behind it is.
func (n *Node) AddNonvoter(ctx context.Context, name, addr string) error {
	if m, ok := n.member(name); ok && m.Voter {
		return api.Errorf(api.CodeConflict, "replica %q has a vote already: remove it first to make it a nonvoter", name)
	}
	return n.change(ctx, name, addr, func() raft.IndexFuture {
		return n.raft.AddNonvoter(raft.ServerID(name), raft.ServerAddress(addr), 0, n.patience(ctx))
	})
}

// AddVoter gives a replica a vote, adding it if need be, or changes the address of one.
func (n *Node) AddVoter(ctx context.Context, name, addr string) error {
	return n.change(ctx, name, addr, func() raft.IndexFuture {
		return n.raft.AddVoter(raft.ServerID(name), raft.ServerAddress(addr), 0, n.patience(ctx))
	})
}

// Remove takes a replica out of the cluster; one that is no member is already out. A leader that removes itself
// stops leading once that is committed, and its process ends. Another replica ends a minute later if it heard of
// its removal; raft tells it only once, so one that did not hear stays, without a leader, until it asks.
func (n *Node) Remove(ctx context.Context, name string) error {
	m, ok := n.member(name)
	if !ok {
		return n.ready(ctx)
	}
	others := 0
	for _, other := range n.Members() {
		if other.Voter && other.Name != name {
			others++
		}
	}
	if m.Voter && others == 0 {
		return api.Errorf(api.CodeConflict, "replica %q is the only one with a vote: add another voter first", name)
	}
	return n.change(ctx, name, "", func() raft.IndexFuture {
		return n.raft.RemoveServer(raft.ServerID(name), 0, n.patience(ctx))
	})
}

func (n *Node) change(ctx context.Context, name, addr string, start func() raft.IndexFuture) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	for _, m := range n.Members() {
		if m.Addr == addr && m.Name != name {
			return api.Errorf(api.CodeConflict, "address %s is replica %q's: give %q its own --advertise", addr, m.Name, name)
		}
	}
	return n.writeError(n.wait(ctx, func() error { return start().Error() }))
}

// Transfer hands leadership to the named voter, or with an empty name to the one that lacks least. Writes are
// refused meanwhile, for at most two election timeouts.
func (n *Node) Transfer(ctx context.Context, name string) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	start := n.raft.LeadershipTransfer
	if name != "" {
		m, ok := n.member(name)
		switch {
		case !ok:
			return api.Errorf(api.CodeNotFound, "no replica %q in this cluster", name)
		case name == n.cfg.Name:
			return nil
		case !m.Voter:
			return api.Errorf(api.CodeConflict, "replica %q has no vote and cannot lead: make it a voter first", name)
		}
		start = func() raft.Future {
			return n.raft.LeadershipTransferToServer(raft.ServerID(name), raft.ServerAddress(m.Addr))
		}
	}
	n.handing.Store(true) // the watchdog sees to it that this ends
	if err := n.wait(ctx, func() error { return start().Error() }); err != nil {
		return api.Errorf(api.CodeUnavailable, "leadership was not handed over: %v", err)
	}
	return nil
}

// Snapshot saves the state on this replica now, which also trims the log, and if w is given writes the FSM's
// bytes to it as a backup. It gives the index the snapshot reaches.
func (n *Node) Snapshot(ctx context.Context, w io.Writer) (index uint64, err error) {
	if err := n.wait(ctx, func() error { return n.raft.Snapshot().Error() }); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return 0, api.Errorf(api.CodeUnavailable, "no snapshot was taken: %v", err)
	}
	taken, err := n.disk.snapshots.List()
	if err != nil {
		return 0, fmt.Errorf("listing snapshots: %w", err)
	}
	if len(taken) == 0 {
		return 0, api.Errorf(api.CodeUnavailable, "there is no state to save yet: wait until the cluster has started")
	}
	if w == nil {
		return taken[0].Index, nil
	}
	meta, body, err := n.disk.snapshots.Open(taken[0].ID)
	if err != nil {
		return 0, fmt.Errorf("opening snapshot: %w", err)
	}
	if _, err := io.Copy(w, body); err != nil {
		return 0, errors.Join(fmt.Errorf("reading snapshot: %w", err), body.Close())
	}
	return meta.Index, body.Close()
}

// Restore replaces the state of the whole cluster by what Snapshot wrote, read from r. Only the leader can. The
// caller has verified the bytes with the FSM's own rules: raft ends the process if the FSM refuses them here.
func (n *Node) Restore(ctx context.Context, index uint64, r io.Reader) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	// Raft stands still while it reads, so it must not read from a client.
	spool, err := os.CreateTemp(n.disk.dir, "restore-*")
	if err != nil {
		return fmt.Errorf("keeping the backup: %w", err)
	}
	drop := func() { _ = errors.Join(spool.Close(), os.Remove(spool.Name())) }
	size, err := io.Copy(spool, r)
	if err == nil {
		_, err = spool.Seek(0, io.SeekStart)
	}
	if err != nil {
		drop()
		return fmt.Errorf("keeping the backup: %w", err)
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: index, Term: n.Term(), Size: size}
	err = n.wait(ctx, func() error {
		defer drop() // here, because raft may read on after the caller has given up
		return n.raft.Restore(meta, spool, n.patience(ctx))
	})
	if errors.Is(err, errBusy) || errors.Is(err, errClosed) {
		drop()
		return n.writeError(err)
	}
	if err != nil {
		// Even "not leader" and "timed out" may come from the no-op that raft commits after the restore.
		return api.Errorf(api.CodeOutcomeUnknown, "the cluster may have been restored (%v): look at its state before trying again", err)
	}
	return nil
}
