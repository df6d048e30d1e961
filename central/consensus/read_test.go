package consensus

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestDeposedLeaderServesNoVerifiedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		old := c.leader()
		if err := c.nodes[old].VerifyRead(t.Context()); err != nil {
			t.Fatalf("verified read on the leader: %v", err)
		}
		c.network.Isolate(old)
		if !c.nodes[old].IsLeader() {
			t.Fatal("the isolated leader knew at once, so this tests nothing")
		}
		if err := c.nodes[old].VerifyRead(t.Context()); err == nil {
			t.Error("a leader without a majority served a verified read")
		} else if !hasCode(err, api.CodeNotLeader) && !hasCode(err, api.CodeUnavailable) {
			t.Errorf("got %v, want not_leader or unavailable", err)
		}
		c.network.Rejoin(old)
	})
}

// heldTransport keeps back answers that have already come in, as a stopped process does.
type heldTransport struct {
	transport
	hold *atomic.Pointer[chan struct{}]
}

func (h heldTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, answer *raft.AppendEntriesResponse) error {
	err := h.transport.AppendEntries(id, target, request, answer)
	if release := h.hold.Load(); release != nil {
		<-*release
	}
	return err
}

func TestAnswersFromBeforeTheReadDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		for _, name := range threeNames {
			c.stop(name)
		}
		var hold atomic.Pointer[chan struct{}]
		for _, name := range threeNames {
			c.states[name] = &list{}
			n, err := open(c.config(name, false), func(inner transport) transport { return heldTransport{inner, &hold} })
			if err != nil {
				t.Fatal(err)
			}
			c.nodes[name] = n
		}
		leader := c.leader()
		release := make(chan struct{})
		hold.Store(&release)
		<-time.After(time.Second) // by now every sender has an answer that is kept back
		c.network.Isolate(leader)
		hold.Store(nil)
		if !c.nodes[leader].IsLeader() {
			t.Fatal("the leader stepped down, so this tests nothing")
		}
		result := make(chan error, 1)
		go func() { result <- c.nodes[leader].VerifyRead(t.Context()) }()
		synctest.Wait()
		close(release)
		if err := <-result; err == nil {
			t.Error("a read was verified by answers from before it")
		}
		c.network.Rejoin(leader)
	})
}

func TestNewLeaderReadsWhatTheOldOneAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		old := c.leader()
		c.mustPropose(old, "acknowledged")
		c.crash(old)
		eventually(t, "a verified read", func() bool {
			for _, name := range c.others(old) {
				if c.nodes[name].VerifyRead(t.Context()) != nil {
					continue
				}
				if !c.states[name].has("acknowledged") {
					t.Errorf("%s served a verified read without an acknowledged write", name)
				}
				return true
			}
			return false
		})
	})
}

func TestVerifiedReadEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		c.network.Isolate(leader)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		start := time.Now()
		if err := c.nodes[leader].VerifyRead(ctx); !hasCode(err, api.CodeUnavailable) {
			t.Errorf("got %v, want unavailable", err)
		}
		if took := time.Since(start); took != 10*time.Millisecond {
			t.Errorf("took %s, want the context's 10ms", took)
		}
		c.network.Rejoin(leader)
	})
}

func TestVerifiedReadsShareRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		var hold atomic.Pointer[chan struct{}]
		for _, name := range threeNames {
			c.stop(name)
			c.states[name] = &list{}
			n, err := open(c.config(name, false), func(inner transport) transport { return heldTransport{inner, &hold} })
			if err != nil {
				t.Fatal(err)
			}
			c.nodes[name] = n
		}
		n := c.nodes[c.leader()]
		const readers = 500
		before := n.trans.next()
		release := make(chan struct{})
		hold.Store(&release)
		answers := make(chan error, readers)
		for range readers {
			go func() { answers <- n.VerifyRead(t.Context()) }()
		}
		synctest.Wait() // the first round is under way, and the rest wait for the next
		hold.Store(nil)
		close(release)
		for range readers {
			if err := <-answers; err != nil {
				t.Fatal(err)
			}
		}
		if rounds := n.trans.next() - before - 1; rounds < 1 || rounds > 5 {
			t.Errorf("%d readers at once took %d rounds with the followers, want one or a few", readers, rounds)
		}
		if got := n.Status(); got.Waiting != 0 || got.Abandoned != 0 {
			t.Errorf("after the reads: waiting %d, abandoned %d, want none", got.Waiting, got.Abandoned)
		}
	})
}
