package consensus

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// wire is one replica's real transport on a real port.
func wire(t *testing.T) (netTransport, raft.ServerAddress) {
	t.Helper()
	mux, err := NewMux(MuxConfig{Listener: listen(t, "127.0.0.1:0")})
	if err != nil {
		t.Fatal(err)
	}
	trans := newTransport(mux, 100*time.Millisecond, hclog.NewNullLogger())
	t.Cleanup(func() {
		if err := errors.Join(trans.Close(), mux.Close()); err != nil {
			t.Error(err)
		}
	})
	return trans, raft.ServerAddress(mux.Advertise())
}

// A heartbeat that is handled beside raft's main loop can change the term under a leader that is busy writing.
func TestHeartbeatsGoThroughRaftsMainLoop(t *testing.T) {
	to, addr := wire(t)
	from, _ := wire(t)
	to.SetHeartbeatHandler(func(rpc raft.RPC) {
		rpc.Respond(nil, errors.New("handled beside the main loop"))
	})
	answered := make(chan error, 1)
	go func() {
		// What raft takes for a heartbeat: a term, a leader, and nothing else.
		beat := &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: 3, Addr: []byte("a"), ID: []byte("a")}, Term: 7, Leader: []byte("a")}
		answered <- from.AppendEntries("b", addr, beat, &raft.AppendEntriesResponse{})
	}()
	select {
	case rpc := <-to.Consumer():
		if beat, ok := rpc.Command.(*raft.AppendEntriesRequest); !ok || beat.Term != 7 {
			t.Errorf("the main loop got %+v", rpc.Command)
		}
		rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil)
		if err := <-answered; err != nil {
			t.Error(err)
		}
	case err := <-answered:
		t.Errorf("the heartbeat did not pass the main loop: %v", err)
	case <-time.After(time.Minute):
		t.Error("the heartbeat got lost")
	}
}

// A leader refuses writes until the successor it chose has answered: one that never does must not cost it its life.
func TestASuccessorThatDoesNotAnswerIsGivenUpSoon(t *testing.T) {
	to, addr := wire(t)
	from, _ := wire(t)
	if err := from.TimeoutNow("b", addr, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{}); err == nil || !strings.Contains(err.Error(), "b did not answer within") {
		t.Errorf("got %v", err)
	}
	late := <-to.Consumer()
	late.Respond(&raft.TimeoutNowResponse{}, nil)
}

// Pipelined replication can leave one follower behind for good.
func TestReplicationIsNotPipelined(t *testing.T) {
	_, addr := wire(t)
	from, _ := wire(t)
	pipe, err := from.AppendEntriesPipeline("b", addr)
	if !errors.Is(err, raft.ErrPipelineReplicationNotSupported) {
		t.Errorf("got %v, want that there are no pipelines", err)
	}
	if pipe != nil {
		_ = pipe.Close()
	}
}

// Raft stands still while it cannot tell of a change, so what it tells is taken whether anybody listens or not.
func TestLeadershipGoesToAndFroWhileNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		for range 24 { // three times the room of raft's channel
			leader := c.leader()
			next := c.others(leader)[0]
			if err := c.nodes[leader].Transfer(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the next to lead", c.nodes[next].IsLeader)
		}
		c.mustPropose(c.leader(), "still alive")
	})
}

// The table of traps in docs/consistency.md names tests that are there.
func TestEachTrapsTestsExist(t *testing.T) {
	page, err := os.ReadFile("../../docs/consistency.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, name := range regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(page), -1) {
		named[name[1]] = true
	}
	if len(named) < 30 {
		t.Fatalf("the page names %d tests; it is read wrongly", len(named))
	}
	for _, dir := range []string{".", "..", "../../fsm", "../../cmd/fluxvm-agent", "../../pkg/client"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no tests in %s: %v", dir, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				delete(named, f[1])
			}
		}
	}
	for name := range named {
		t.Errorf("docs/consistency.md names %s, which is not there", name)
	}
}
