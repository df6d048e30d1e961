package consensus

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestReplicaJoinsAsNonvoterThenVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		c.mustPropose("a", "before")
		c.open("b", true)
		if got := c.nodes["b"].Members(); len(got) != 0 {
			t.Errorf("members before joining: got %v, want none", got)
		}
		lead := c.nodes["a"]
		if err := lead.AddNonvoter(t.Context(), "b", "b"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new replica to catch up", func() bool {
			return c.states["b"].has("before") && c.nodes["b"].AppliedIndex() == lead.AppliedIndex()
		})
		want := []Member{{Name: "a", Addr: "a", Voter: true, Leader: true, Reachable: true}, {Name: "b", Addr: "b", Reachable: true}}
		if diff := cmp.Diff(want, c.nodes["b"].Members()); diff != "" {
			t.Errorf("members seen by the nonvoter (-want +got):\n%s", diff)
		}
		if err := lead.Transfer(t.Context(), "b"); !hasCode(err, api.CodeConflict) {
			t.Errorf("transfer to a nonvoter: got %v, want conflict", err)
		}
		if err := lead.AddVoter(t.Context(), "b", "b"); err != nil {
			t.Fatal(err)
		}
		if err := lead.AddNonvoter(t.Context(), "b", "b"); !hasCode(err, api.CodeConflict) {
			t.Errorf("taking the vote away by adding: got %v, want conflict", err)
		}
		if err := lead.AddVoter(t.Context(), "c", "b"); !hasCode(err, api.CodeConflict) {
			t.Errorf("another replica at the same address: got %v, want conflict", err)
		}
		if err := lead.Transfer(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new voter to lead", c.nodes["b"].IsLeader)
		if err := lead.Transfer(t.Context(), "a"); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("transfer on a follower: got %v, want not_leader", err)
		}
	})
}

func TestLastVoterStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, "a")
		c.leader()
		if err := c.nodes["a"].Remove(t.Context(), "a"); !hasCode(err, api.CodeConflict) {
			t.Errorf("got %v, want conflict", err)
		}
		if err := c.nodes["a"].Remove(t.Context(), "nobody"); err != nil {
			t.Errorf("removing who is not there: %v", err)
		}
		if err := c.nodes["a"].Transfer(t.Context(), "nobody"); !hasCode(err, api.CodeNotFound) {
			t.Errorf("transfer to nobody: got %v, want not_found", err)
		}
	})
}

func TestClosingLeaderHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		left := time.Now()
		c.stop(leader)
		next := c.leader()
		if took := time.Since(left); took >= c.nodes[next].cfg.ElectionTimeout {
			t.Errorf("without a leader for %s, want less than an election timeout", took)
		}
	})
}

func TestLeaderSeesWhoIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		lost := c.others(leader)[0]
		reachable := func() bool { m, _ := c.nodes[leader].member(lost); return m.Reachable }
		c.network.Cut(leader, lost)
		eventually(t, "the leader to miss it", func() bool { return !reachable() })
		c.network.Heal(leader, lost)
		eventually(t, "the leader to find it again", reachable)
	})
}

func TestLeadershipIsLatestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		n := c.nodes[leader]
		synctest.Wait()
		led, changed := n.Leadership()
		if !led.Leader || led.Term != n.Term() {
			t.Fatalf("got %+v in term %d", led, n.Term())
		}
		c.network.Isolate(leader)
		<-changed
		if now, _ := n.Leadership(); now != (Leadership{}) {
			t.Errorf("after the loss: got %+v, want none", now)
		}
		c.network.Rejoin(leader)
		c.leader()
	})
}

// fill proposes enough for a snapshot and for the log behind it to be trimmed.
func (c *cluster) fill(leader string) {
	c.t.Helper()
	for i := range 100 {
		c.mustPropose(leader, fmt.Sprint("filler ", i))
	}
	if _, err := c.nodes[leader].Snapshot(c.t.Context(), nil); err != nil {
		c.t.Fatal(err)
	}
}

func TestLateFollowerIsCaughtUpBySnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		late := c.others(leader)[0]
		c.mustPropose(leader, "init:cluster-1")
		eventually(t, "the follower to belong", func() bool { return c.states[late].has("init:cluster-1") })
		c.crash(late)
		c.fill(leader)
		if first, err := c.nodes[leader].disk.logs.FirstIndex(); err != nil || first < 50 {
			t.Fatalf("the leader's log starts at %d (%v), so no snapshot would be needed", first, err)
		}
		c.open(late, false)
		eventually(t, "the late follower to catch up", func() bool {
			return slices.Equal(c.states[late].all(), c.states[leader].all()) && c.nodes[late].AppliedIndex() == c.nodes[leader].AppliedIndex()
		})
		c.mustPropose(leader, "after")
		eventually(t, "it to follow the log again", func() bool { return c.states[late].has("after") })
		if got := c.exit(late); got != "" {
			t.Errorf("it wanted to exit: %s", got)
		}
	})
}

func TestRestoreReplacesTheStateEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		c.mustPropose(leader, "init:cluster-1")
		c.mustPropose(leader, "saved")
		var backup bytes.Buffer
		index, err := c.nodes[leader].Snapshot(t.Context(), &backup)
		if err != nil {
			t.Fatal(err)
		}
		c.mustPropose(leader, "unsaved")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.nodes[c.others(leader)[0]].Restore(ctx, index, bytes.NewReader(backup.Bytes())); !hasCode(err, api.CodeNotLeader) {
			t.Errorf("restoring on a follower: got %v, want not_leader", err)
		}
		if err := c.nodes[leader].Restore(ctx, index, &backup); err != nil {
			t.Fatal(err)
		}
		c.mustPropose(leader, "later")
		want := []string{"init:cluster-1", "saved", "later"}
		for name := range c.nodes {
			eventually(t, name+" to hold what was restored", func() bool { return slices.Equal(c.states[name].all(), want) })
		}
		// The log has no gap that would make a restarted follower ask for the snapshot again.
		follower := c.others(leader)[0]
		c.crash(follower)
		c.open(follower, false)
		eventually(t, "the restarted follower to hold it", func() bool { return slices.Equal(c.states[follower].all(), want) })
	})
}

func TestWipedReplicaDoesNotComeBackByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		leader := c.leader()
		lost := c.others(leader)[0]
		c.stop(lost)
		c.network.Wipe(lost)
		c.states[lost] = &list{}
		n, err := Open(c.config(lost, false))
		if err == nil {
			_ = n.Close()
			t.Fatal("it opened an empty disk")
		}
		if exitCode(err) != ExitConfig {
			t.Errorf("got %v, want exit code %d", err, ExitConfig)
		}
	})
}
