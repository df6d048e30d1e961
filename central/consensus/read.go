package consensus

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// reads lets many verified reads share one round of heartbeats.
type reads struct {
	term atomic.Uint64 // newest term in which a barrier passed: the FSM holds all that earlier leaders acknowledged

	mu      sync.Mutex
	waiting []chan error
	running bool
	closed  bool
}

// close refuses what comes later; what waits still gets its answer.
func (r *reads) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

// VerifyRead returns nil if the FSM on this replica held, at some moment during the call, every write that any
// replica had acknowledged before the call. It asks a majority whether this replica still leads; a call waits for
// a round that begins after it, and calls that wait together share one. The error is an *api.Error: not_leader
// or unavailable.
func (n *Node) VerifyRead(ctx context.Context) error {
	if err := n.ready(ctx); err != nil {
		return err
	}
	answer := make(chan error, 1)
	r := &n.reads
	r.mu.Lock()
	if r.closed || len(r.waiting) >= maxWaiting {
		closed := r.closed
		r.mu.Unlock()
		if closed {
			return n.readError(errClosed)
		}
		return n.readError(errBusy)
	}
	r.waiting = append(r.waiting, answer)
	if !r.running {
		r.running = true
		n.tasks.Go(n.verifyWaiting)
	}
	r.mu.Unlock()
	select {
	case err := <-answer:
		return n.readError(err)
	case <-ctx.Done():
		return n.readError(context.Cause(ctx))
	}
}

func (n *Node) verifyWaiting() {
	r := &n.reads
	for {
		r.mu.Lock()
		batch := r.waiting
		r.waiting = nil
		if len(batch) == 0 {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		err := n.verify()
		for _, answer := range batch {
			answer <- err
		}
	}
}

// verify is one round. A leader applies a write before it acknowledges it, so its FSM holds all writes of its
// own term; a barrier in that term adds those of earlier ones; a majority says that there is no later term.
func (n *Node) verify() error {
	ctx, cancel := context.WithTimeout(n.life, 2*n.cfg.ElectionTimeout)
	defer cancel()
	term, leading := n.leading()
	if !leading {
		return raft.ErrNotLeader
	}
	if n.reads.term.Load() != term {
		return n.barrier(ctx) // itself a round with a majority, and it begins here
	}
	for round := n.trans.next(); ; {
		if err := n.wait(ctx, func() error { return n.raft.VerifyLeader().Error() }); err != nil {
			return err
		}
		if now, leading := n.leading(); !leading || now != term {
			return raft.ErrNotLeader
		}
		if n.majority(term, round) {
			return nil
		}
		// Each turn of this loop used up an answer that was under way before the round began.
	}
}

// majority says whether enough voters answered to this term in this round.
func (n *Node) majority(term, round uint64) bool {
	voters, acks := 0, 0
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == raft.ServerID(n.cfg.Name) || n.trans.acked(s.ID, term, round) {
			acks++
		}
	}
	return acks > voters/2
}
