package consensus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestOutcomesAreToldApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newCluster(t, "a").nodes["a"]
		for _, c := range []struct {
			err         error
			write, read api.Code
		}{
			{raft.ErrNotLeader, api.CodeNotLeader, api.CodeNotLeader},
			{raft.ErrLeadershipTransferInProgress, api.CodeNotLeader, api.CodeNotLeader},
			{raft.ErrEnqueueTimeout, api.CodeUnavailable, api.CodeUnavailable},
			{errBusy, api.CodeUnavailable, api.CodeUnavailable},
			{errClosed, api.CodeUnavailable, api.CodeUnavailable},
			{raft.ErrLeadershipLost, api.CodeOutcomeUnknown, api.CodeNotLeader},
			{raft.ErrRaftShutdown, api.CodeOutcomeUnknown, api.CodeUnavailable},
			{raft.ErrAbortedByRestore, api.CodeOutcomeUnknown, api.CodeUnavailable},
			{fmt.Errorf("%w: %w", errGaveUp, context.DeadlineExceeded), api.CodeOutcomeUnknown, api.CodeUnavailable},
			{errors.New("no space left on device"), api.CodeOutcomeUnknown, api.CodeUnavailable},
		} {
			write, read := n.writeError(c.err), n.readError(c.err)
			if !hasCode(write, c.write) {
				t.Errorf("writing, %v: got %v, want %s", c.err, write, c.write)
			}
			if !hasCode(read, c.read) {
				t.Errorf("reading, %v: got %v, want %s", c.err, read, c.read)
			}
			var problem *api.Error
			if errors.As(write, &problem); (problem.Outcome == api.OutcomeUnknown) != (c.write == api.CodeOutcomeUnknown) {
				t.Errorf("writing, %v: outcome %q does not fit %s", c.err, problem.Outcome, c.write)
			}
		}
		if n.writeError(nil) != nil || n.readError(nil) != nil {
			t.Error("no error became one")
		}
	})
}

func TestFollowerNamesTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		follower := c.others(leader)[0]
		eventually(t, "the follower to know the leader", func() bool { name, addr := c.nodes[follower].Leader(); return name == leader && addr == leader })
		_, err := c.propose(follower, "x")
		if !hasCode(err, api.CodeNotLeader) || !strings.Contains(err.Error(), leader+" does") {
			t.Errorf("proposing on a follower: got %v, want not_leader that names %s", err, leader)
		}
		if err := c.nodes[follower].VerifyRead(t.Context()); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("verified read on a follower: got %v, want not_leader", err)
		}
		if err := c.nodes[follower].Barrier(t.Context()); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("barrier on a follower: got %v, want not_leader", err)
		}
	})
}

func TestWriteOfADeposedLeaderIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		old := c.leader()
		c.network.Isolate(old)
		if _, err := c.propose(old, "lost"); !hasCode(err, api.CodeOutcomeUnknown) {
			t.Errorf("proposing without a majority: got %v, want outcome_unknown", err)
		}
		eventually(t, "the isolated leader to step down", func() bool { return !c.nodes[old].IsLeader() })
		if _, err := c.propose(old, "refused"); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("proposing after stepping down: got %v, want not_leader", err)
		}
		now := c.leader()
		c.mustPropose(now, "kept")
		c.network.Rejoin(old)
		eventually(t, "the old leader to follow", func() bool { return c.states[old].has("kept") })
		if c.states[old].has("lost") {
			t.Error("a write that never reached a majority was applied")
		}
	})
}

func TestCallerThatStopsWaitingIsCountedAndTheWriteStillLands(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		n, state := c.nodes["a"], c.states["a"]
		block := make(chan struct{})
		state.mu.Lock()
		state.block = block
		state.mu.Unlock()

		if _, err := c.propose("a", "slow"); !hasCode(err, api.CodeOutcomeUnknown) {
			t.Errorf("got %v, want outcome_unknown", err)
		}
		if got := n.Status(); got.Abandoned != 1 || got.Waiting != 1 {
			t.Errorf("abandoned %d, waiting %d, want 1 and 1", got.Abandoned, got.Waiting)
		}
		state.mu.Lock()
		state.block = nil
		state.mu.Unlock()
		close(block)
		eventually(t, "the write to land", func() bool { return state.has("slow") && n.Status().Waiting == 0 })
	})
}

func TestWaitersAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		state := c.states["a"]
		block := make(chan struct{})
		state.mu.Lock()
		state.block = block
		state.mu.Unlock()

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		results := make(chan error, maxWaiting)
		for range maxWaiting {
			go func() {
				_, _, err := c.nodes["a"].Propose(ctx, []byte("x"))
				results <- err
			}()
		}
		synctest.Wait()
		if _, err := c.propose("a", "one too many"); !hasCode(err, api.CodeUnavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		state.mu.Lock()
		state.block = nil
		state.mu.Unlock()
		close(block)
		failed := 0
		for range maxWaiting {
			if err := <-results; err != nil {
				failed++
			}
		}
		if got := len(state.all()); got != maxWaiting-failed {
			t.Errorf("applied %d, want the %d that were acknowledged", got, maxWaiting-failed)
		}
		if state.has("one too many") {
			t.Error("a refused command was applied")
		}
	})
}

func TestCommandsAreNotEndless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		if _, err := c.propose("a", strings.Repeat("x", maxCommand+1)); !hasCode(err, api.CodeTooLarge) {
			t.Errorf("got %v, want too_large", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, _, err := c.nodes["a"].Propose(ended, []byte("x")); !hasCode(err, api.CodeUnavailable) {
			t.Errorf("with an ended context: got %v, want unavailable", err)
		}
	})
}

func TestClosedReplicaRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		n := c.nodes["a"]
		c.stop("a")
		if err := n.Close(); err != nil {
			t.Errorf("closing again: %v", err)
		}
		if _, _, err := n.Propose(t.Context(), []byte("x")); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("proposing: got %v, want not_leader", err)
		}
		if err := n.VerifyRead(t.Context()); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("reading: got %v, want not_leader", err)
		}
		if now, _ := n.Leadership(); now != (Leadership{}) {
			t.Errorf("leadership after close: got %+v, want none", now)
		}
	})
}
