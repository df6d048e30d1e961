package consensus

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// transport is what raft needs and also looks for behind the Transport interface: without the last two it runs
// without pre-vote and leaves connections open.
type transport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// netTransport is raft's own, but heartbeats go through raft's main loop like every other request. Handled
// beside it they can change the term under a leader that is busy appending, which then writes entries of the old
// term as if they were of the new one. The price: heartbeats wait behind a slow disk, so timeouts are generous.
type netTransport struct {
	*raft.NetworkTransport
	patience time.Duration // for what the successor of a leader is told
}

var (
	_ transport = netTransport{}
	_ transport = memoryTransport{}
	_ transport = (*ackedTransport)(nil)
)

func newTransport(mux *Mux, patience time.Duration, logger hclog.Logger) netTransport {
	return netTransport{patience: patience, NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          mux.raft,
		Logger:          logger,
		MaxPool:         3,
		MaxRPCsInFlight: 1, // pipelining can leave one follower behind for good
		Timeout:         storeLimit,
	})}
}

func (netTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// TimeoutNow gives up early. A leader takes no writes until its successor has answered or this has ended, and there is no
// other way out of a transfer to one that is cut off: the watchdog would end the process. What arrives late makes a
// follower stand for election, which it may at any time.
func (t netTransport) TimeoutNow(id raft.ServerID, target raft.ServerAddress, request *raft.TimeoutNowRequest, answer *raft.TimeoutNowResponse) error {
	var late raft.TimeoutNowResponse
	done := make(chan error, 1)
	go func() { done <- t.NetworkTransport.TimeoutNow(id, target, request, &late) }() // it ends by the transport's own limit
	select {
	case err := <-done:
		*answer = late
		return err
	case <-time.After(t.patience):
		return fmt.Errorf("%s did not answer within %s", id, t.patience)
	}
}

// Close also closes the idle connections, which raft forgets.
func (t netTransport) Close() error {
	err := t.NetworkTransport.Close()
	t.CloseStreams()
	return err
}

// ackedTransport notes which follower still answered to which term, and to a request sent since when. Raft's
// VerifyLeader counts any answer that comes in, also one to a request sent long before: after a pause the answers
// that lie in the socket would make a deposed leader serve reads.
//
// It also writes down which replicas have ever voted for this one or stored what it sent, before raft may count on
// it: one of those that comes back with an empty disk must not start anew.
type ackedTransport struct {
	transport
	met func(name string) error

	mu    sync.Mutex
	round uint64 // rises with every verification
	acks  map[raft.ServerID]ack
}

type ack struct{ term, round uint64 }

func (t *ackedTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, answer *raft.AppendEntriesResponse) error {
	t.mu.Lock()
	sent := t.round
	t.mu.Unlock()
	if err := t.transport.AppendEntries(id, target, request, answer); err != nil {
		return err
	}
	if answer.Success {
		if err := t.met(string(id)); err != nil {
			return err
		}
	}
	if answer.Term == request.Term {
		t.mu.Lock()
		if last := t.acks[id]; request.Term > last.term || request.Term == last.term && sent > last.round {
			t.acks[id] = ack{request.Term, sent}
		}
		t.mu.Unlock()
	}
	return nil
}

func (t *ackedTransport) RequestVote(id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, answer *raft.RequestVoteResponse) error {
	if err := t.transport.RequestVote(id, target, request, answer); err != nil || !answer.Granted {
		return err
	}
	return t.met(string(id))
}

func (t *ackedTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, request *raft.InstallSnapshotRequest, answer *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := t.transport.InstallSnapshot(id, target, request, answer, data); err != nil || !answer.Success {
		return err
	}
	return t.met(string(id))
}

// next begins a verification: only answers to requests sent from here on count for it.
func (t *ackedTransport) next() (round uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round++
	return t.round
}

func (t *ackedTransport) acked(id raft.ServerID, term, round uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.acks[id]
	return last.term == term && last.round >= round
}
