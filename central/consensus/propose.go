package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	maxWaiting  = 1024
	enqueueWait = 5 * time.Second // how long a command may wait for its place in the log
	maxCommand  = raft.SuggestedMaxDataSize
)

var (
	errBusy   = errors.New("too many operations are waiting for the log")
	errClosed = errors.New("the replica is shutting down")
	errGaveUp = errors.New("gave up waiting")
)

// wait runs f, which blocks on a raft future, and stops waiting when ctx ends. Raft's futures know no context and
// some never come, so f keeps its slot until it returns.
func (n *Node) wait(ctx context.Context, f func() error) error {
	if n.life.Err() != nil || n.raft.State() == raft.Shutdown {
		return errClosed
	}
	select {
	case n.slots <- struct{}{}:
	default:
		return errBusy
	}
	done := make(chan error, 1)
	go func() {
		err := f()
		<-n.slots
		done <- err
	}()
	select {
	case err := <-done:
		if errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			n.handing.Store(true)
		}
		return err
	case <-ctx.Done():
		n.abandoned.Add(1)
		return fmt.Errorf("%w: %w", errGaveUp, context.Cause(ctx))
	}
}

// Propose puts a command into the log and waits until this replica has applied it. It gives the FSM's result and
// the command's index. The error is an *api.Error: not_leader, unavailable or too_large mean that the command
// was not and will not be applied; outcome_unknown means that it may have been or may yet be. The Node keeps the
// command: do not change it afterwards.
func (n *Node) Propose(ctx context.Context, command []byte) (result any, index uint64, err error) {
	if len(command) > maxCommand {
		return nil, 0, api.Errorf(api.CodeTooLarge, "the change takes %d bytes in the log and may take %d: split it", len(command), maxCommand)
	}
	if err := n.ready(ctx); err != nil {
		return nil, 0, err
	}
	var future raft.ApplyFuture
	err = n.wait(ctx, func() error {
		future = n.raft.Apply(command, n.patience(ctx))
		return future.Error()
	})
	if err != nil {
		return nil, 0, n.writeError(err)
	}
	return future.Response(), future.Index(), nil
}

// Barrier returns once the FSM holds everything committed before the call. Only the leader can.
func (n *Node) Barrier(ctx context.Context) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	return n.readError(n.barrier(ctx))
}

// barrier also notes that this term has an entry of its own in the FSM, which is what verified reads need.
func (n *Node) barrier(ctx context.Context) error {
	before, _ := n.leading()
	if err := n.wait(ctx, func() error { return n.raft.Barrier(n.patience(ctx)).Error() }); err != nil {
		return err
	}
	if after, leading := n.leading(); leading && after == before {
		n.reads.term.Store(after)
	}
	return nil
}

// ready refuses early what cannot succeed.
func (n *Node) ready(ctx context.Context) error {
	if ctx.Err() != nil {
		return api.Errorf(api.CodeUnavailable, "the request ended before it was proposed: %v", context.Cause(ctx))
	}
	if _, leading := n.leading(); !leading {
		return n.notLeader()
	}
	return nil
}

// patience leaves half of the caller's time for the commit, so that a crowded leader answers "not applied"
// rather than "unknown".
func (n *Node) patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(min(enqueueWait, time.Until(deadline)/2), time.Millisecond)
	}
	return enqueueWait
}

func (n *Node) notLeader() *api.Error {
	if name, _ := n.Leader(); name != "" && name != n.cfg.Name {
		return api.Errorf(api.CodeNotLeader, "this replica does not lead, %s does: send the request there", name)
	}
	return api.Errorf(api.CodeNotLeader, "no leader is known: wait for an election, or see that a majority of the replicas runs and is connected")
}

// refused gives the error for an operation that certainly never reached the log, else nil.
func (n *Node) refused(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader):
		return n.notLeader()
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return api.Errorf(api.CodeNotLeader, "leadership is being handed over: try again")
	case errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, errBusy), errors.Is(err, errClosed):
		return api.Errorf(api.CodeUnavailable, "nothing was changed, %v: try again", err)
	}
	return nil
}

// writeError is the error for an operation that changes the log. What is not certainly refused may have been
// stored or sent on: lost leadership, a shutdown, a full disk and a caller that stopped waiting are all unknown.
func (n *Node) writeError(err error) error {
	if err == nil {
		return nil
	}
	if e := n.refused(err); e != nil {
		return e
	}
	return api.Errorf(api.CodeOutcomeUnknown, "the change may have been made (%v): ask for its outcome under the same Idempotency-Key", err)
}

// readError is the error for an operation that changes nothing, so that trying again is always right.
func (n *Node) readError(err error) error {
	if err == nil {
		return nil
	}
	if e := n.refused(err); e != nil {
		return e
	}
	if errors.Is(err, raft.ErrLeadershipLost) {
		return n.notLeader()
	}
	return api.Errorf(api.CodeUnavailable, "no majority of the replicas answered (%v): try again", err)
}
