package consensus

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

func TestHealthOfALeader(t *testing.T) {
	late := errors.New("too late")
	type step struct {
		after   int // seconds
		applied uint64
		handing bool
		due     bool
		err     error
		fault   string
	}
	for name, steps := range map[string][]step{
		"progress needs no probe": {
			{after: 0, applied: 1}, {after: 9, applied: 2}, {after: 18, applied: 3}, {after: 27, applied: 4},
		},
		"an idle leader is probed every ten seconds": {
			{after: 0, applied: 1}, {after: 9, applied: 1}, {after: 10, applied: 1, due: true}, {after: 19, applied: 1}, {after: 20, applied: 1, due: true},
		},
		"three misses in a row are a fault": {
			{after: 0}, {after: 10, due: true, err: late}, {after: 20, due: true, err: late}, {after: 30, due: true, err: late, fault: "could not commit 3 times"},
		},
		"a success forgives misses": {
			{after: 0}, {after: 10, due: true, err: late}, {after: 20, due: true, err: late}, {after: 30, due: true}, {after: 40, due: true, err: late}, {after: 50, due: true, err: late},
		},
		"progress forgives misses": {
			{after: 0}, {after: 10, due: true, err: late}, {after: 20, due: true, err: late}, {after: 25, applied: 9}, {after: 35, applied: 9, due: true, err: late},
		},
		"a transfer may take a while": {
			{after: 0}, {after: 1, handing: true, due: true, err: raft.ErrLeadershipTransferInProgress},
			{after: 3, due: true, err: raft.ErrLeadershipTransferInProgress}, {after: 5, due: true, err: raft.ErrLeadershipTransferInProgress}, {after: 7, due: true}, {after: 8},
		},
		"a transfer that does not end is a fault": {
			{after: 0}, {after: 1, handing: true, due: true, err: raft.ErrLeadershipTransferInProgress},
			{after: 3, due: true, err: raft.ErrLeadershipTransferInProgress}, {after: 5, due: true, err: raft.ErrLeadershipTransferInProgress},
			{after: 7, due: true, err: raft.ErrLeadershipTransferInProgress, fault: "transfer of leadership"},
		},
		"a process that was stopped during a transfer has not seen it last": {
			{after: 0}, {after: 1, handing: true, due: true, err: raft.ErrLeadershipTransferInProgress},
			{after: 61, due: true, err: raft.ErrLeadershipTransferInProgress}, {after: 63, due: true},
		},
		"losing leadership is no fault": {
			{after: 0}, {after: 10, due: true, err: late}, {after: 20, due: true, err: late}, {after: 30, due: true, err: raft.ErrLeadershipLost},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var h health
			for i, s := range steps {
				now := testStart.Add(seconds(s.after))
				if got := h.due(now, 5, s.applied, s.handing); got != s.due {
					t.Fatalf("step %d: due is %t, want %t", i, got, s.due)
				}
				if !s.due {
					continue
				}
				fault := h.note(now, s.err)
				if (fault == "") != (s.fault == "") || !strings.Contains(fault, s.fault) {
					t.Fatalf("step %d: fault %q, want %q", i, fault, s.fault)
				}
			}
			if h.due(testStart.Add(time.Hour), 6, 0, false) || h.misses != 0 {
				t.Error("a new term did not start afresh")
			}
		})
	}
}

func (c *cluster) exit(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exits[name]
}

func TestLeaderWhoseStateHangsExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		block := make(chan struct{})
		c.states["a"].mu.Lock()
		c.states["a"].block = block
		c.states["a"].mu.Unlock()
		if _, err := c.propose("a", "x"); err == nil {
			t.Fatal("the command was applied, so this tests nothing")
		}
		eventually(t, "the watchdog", func() bool { return strings.HasPrefix(c.exit("a"), "70 as leader it could not commit") })
		close(block)
	})
}

// stuckTransport accepts a transfer and never answers.
type stuckTransport struct {
	transport
	release chan struct{}
}

func (s stuckTransport) TimeoutNow(raft.ServerID, raft.ServerAddress, *raft.TimeoutNowRequest, *raft.TimeoutNowResponse) error {
	<-s.release
	return errors.New("released")
}

func TestLeaderStuckInATransferExits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		release := make(chan struct{})
		for _, name := range threeNames {
			c.stop(name)
		}
		for _, name := range threeNames {
			c.states[name] = &list{}
			conf := c.config(name, false)
			n, err := open(conf, func(inner transport) transport { return stuckTransport{inner, release} })
			if err != nil {
				t.Fatal(err)
			}
			c.nodes[name] = n
		}
		leader := c.leader()
		if err := c.nodes[leader].Transfer(t.Context(), ""); err == nil {
			t.Fatal("the transfer went through, so this tests nothing")
		}
		if _, err := c.propose(leader, "x"); err == nil {
			t.Fatal("the leader takes writes, so this tests nothing")
		}
		eventually(t, "the watchdog", func() bool { return strings.HasPrefix(c.exit(leader), "70 a transfer of leadership") })
		close(release)
	})
}

// slowStore hangs when told to.
type slowStore struct {
	raft.LogStore
	hang chan struct{}
}

func (s slowStore) StoreLogs(logs []*raft.Log) error {
	<-s.hang
	return s.LogStore.StoreLogs(logs)
}

func TestHungDiskExitsAndTheWriteIsNotDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := raft.NewInmemStore()
		slow := slowStore{store, make(chan struct{})}
		hung := make(chan string, 1)
		logs, _, err := wrapLogs(slow, store, func(operation string) { hung <- operation }, nil)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() { result <- logs.StoreLogs([]*raft.Log{{Index: 1}}) }()
		start := time.Now()
		if got := <-hung; got != "writing the log" {
			t.Errorf("reported %q, want the operation that hangs", got)
		}
		if took := time.Since(start); took != storeLimit {
			t.Errorf("reported after %s, want %s", took, storeLimit)
		}
		select {
		case err := <-result:
			t.Errorf("the hanging write was answered: %v", err)
		default:
		}
		close(slow.hang)
		if err := <-result; err != nil {
			t.Errorf("once the disk came back: %v", err)
		}
	})
}

func TestQuickStoreCallsRaiseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := raft.NewInmemStore()
		logs, stable, err := wrapLogs(store, store, func(operation string) { t.Errorf("reported %q", operation) }, func(string, error) {})
		if err != nil {
			t.Fatal(err)
		}
		var entry raft.Log
		if err := errors.Join(
			logs.StoreLog(&raft.Log{Index: 1}), logs.StoreLogs([]*raft.Log{{Index: 2}}), logs.GetLog(2, &entry),
			logs.DeleteRange(1, 1), stable.Set([]byte("k"), []byte("v")), stable.SetUint64([]byte("n"), 1),
		); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if monotonic, ok := logs.(raft.MonotonicLogStore); !ok || !monotonic.IsMonotonic() {
			t.Error("the outermost log store does not say that it has no gaps")
		}
	})
}

func TestRemovedReplicasEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		follower := c.others(leader)[0]
		if err := c.nodes[leader].Remove(t.Context(), follower); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * removedAfter)
		got := c.exit(follower)
		// Raft tells a follower of its removal once and does not repeat it when that goes amiss.
		if _, untold := c.nodes[follower].member(follower); !untold && (!strings.HasPrefix(got, "78 ") || !strings.Contains(got, "was removed")) {
			t.Errorf("the removed follower: got exit %q", got)
		}
		if err := c.nodes[leader].Remove(t.Context(), leader); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the leader that removed itself to end", func() bool { return strings.HasPrefix(c.exit(leader), "78 ") })
	})
}
