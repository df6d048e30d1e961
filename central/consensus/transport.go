package consensus

import (
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
type netTransport struct{ *raft.NetworkTransport }

var (
	_ transport = netTransport{}
	_ transport = memoryTransport{}
)

func newTransport(mux *Mux, logger hclog.Logger) netTransport {
	return netTransport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:          mux.raft,
		Logger:          logger,
		MaxPool:         3,
		MaxRPCsInFlight: 1, // pipelining can leave one follower behind for good
		Timeout:         storeLimit,
	})}
}

func (netTransport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close also closes the idle connections, which raft forgets.
func (t netTransport) Close() error {
	err := t.NetworkTransport.Close()
	t.CloseStreams()
	return err
}
