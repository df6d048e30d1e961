package central

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// throughClients carries what a replica that joins sends to the API of the others.
type throughClients struct{ rig *rig }

func (c throughClients) RoundTrip(req *http.Request) (*http.Response, error) {
	to := c.rig.member(req.URL.Host)
	if to == nil {
		return nil, errors.New("connection refused")
	}
	return direct{to.public}.RoundTrip(req)
}

func (r *rig) joinToken(pattern string) string {
	r.t.Helper()
	return into[api.JoinToken](r.t, r.call(r.leader(), "POST", "/fleet/join-tokens", body{"kind": "replica", "name_pattern": pattern})).Token
}

// joinAs starts a replica that wants to become a member, which the rig counts among its own.
func (r *rig) joinAs(name, token string) *member {
	r.t.Helper()
	via := slices.Clone(r.names)
	m := r.startAs(name, func(c *Config) {
		c.Bootstrap, c.Initial, c.JoinToken = false, nil, token
		for _, n := range via {
			c.Join = append(c.Join, "http://"+n)
		}
		c.JoinVia = &http.Client{Transport: throughClients{r}}
	})
	if !slices.Contains(r.names, name) {
		r.names = append(r.names, name)
	}
	return m
}

// forget takes a replica that has ended out of the rig.
func (r *rig) forget(name string) {
	r.mu.Lock()
	delete(r.members, name)
	r.mu.Unlock()
	r.names = slices.DeleteFunc(r.names, func(n string) bool { return n == name })
}

func (r *rig) replica(name string) (found api.Replica) {
	r.t.Helper()
	for _, one := range into[api.Cluster](r.t, r.call(r.leader(), "GET", "/fleet/cluster", nil)).Replicas {
		if one.Name == name {
			found = one
		}
	}
	return found
}

// refused waits for the end of a replica that must not run, and gives its words.
func (r *rig) refused(m *member, code int) string {
	r.t.Helper()
	var refusal *consensus.ExitError
	select {
	case err := <-m.done:
		if !errors.As(err, &refusal) || refusal.Code != code {
			r.t.Fatalf("replica %s ended with %v, want exit code %d", m.name, err, code)
		}
	case <-time.After(time.Minute):
		r.t.Fatalf("replica %s runs on", m.name)
	}
	return refusal.Message
}

func TestReplicaJoinsByTokenAndVotesOnceCaughtUp(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.image("tiny")
		token := r.joinToken("central-*")
		r.joinAs("central-4", token)
		r.eventually("central-4 to vote", time.Minute, func() bool {
			one := r.replica("central-4")
			return one.Role == "voter" && one.Healthy && one.AppliedIndex > 0
		})
		r.serving()
		if m := r.joinAs("central-5", token); !strings.Contains(r.refused(m, consensus.ExitConfig), "used up") {
			t.Error("a token let two replicas in")
		}
		r.forget("central-5")
		got := r.call("central-4", "POST", "/fleet/vms", body{"image": "tiny"})
		if got.status != http.StatusCreated {
			t.Errorf("a launch through the new replica: %s", got)
		}
	})
}

func TestJoinTokensAreHeldToKindAndName(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		node := into[api.JoinToken](t, r.call(r.leader(), "POST", "/fleet/join-tokens", body{"kind": "node"})).Token
		for token, want := range map[string]string{node: "join token is unknown", r.joinToken("other-*"): "names like other-*", "fvj_guess": "join token is unknown"} {
			if said := r.refused(r.joinAs("central-4", token), consensus.ExitConfig); !strings.Contains(said, want) {
				t.Errorf("got %q, want %q in it", said, want)
			}
			r.forget("central-4")
		}
		if r.replica("central-4").Name != "" {
			t.Error("a refused replica is a member")
		}
	})
}

func TestJoiningIsRepeatedUnderOneTokenUntilItIsDone(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		token := r.joinToken("*")
		m := r.joinAs("central-4", token)
		r.eventually("it to be let in", time.Minute, func() bool { return r.replica("central-4").Name != "" })
		m.cancel() // it dies before it has anything on its disk
		<-m.done
		r.network.Wipe("central-4")
		r.forget("central-4")
		r.joinAs("central-4", token)
		r.eventually("central-4 to vote", time.Minute, func() bool { return r.replica("central-4").Role == "voter" })
		r.serving()
	})
}

func TestDeadReplicaIsReplaced(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		dead := r.follower()
		r.crash(dead)
		r.forget(dead)
		r.network.Wipe(dead)
		if got := r.call(r.leader(), "DELETE", "/fleet/cluster/replicas/"+dead, nil); got.status != http.StatusNoContent {
			t.Fatalf("removing a dead replica: %s", got)
		}
		if got := r.call(r.leader(), "DELETE", "/fleet/cluster/replicas/"+dead, nil); got.status != http.StatusNotFound {
			t.Errorf("removing it again: %s", got)
		}
		r.joinAs(dead, r.joinToken(dead)) // under its old name, with an empty disk
		r.eventually("it to vote", time.Minute, func() bool { return r.replica(dead).Role == "voter" })
		r.serving()
		r.crash(r.follower())
		r.image("tiny") // two of three still decide
	})
}

func TestVoterThatLostItsDataDoesNotRejoinUnremoved(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		lost := r.follower()
		r.crash(lost)
		r.network.Wipe(lost)
		said := r.refused(r.joinAs(lost, r.joinToken("*")), consensus.ExitConfig)
		if !strings.Contains(said, "fluxctl cluster remove "+lost) {
			t.Errorf("got %q", said)
		}
		r.forget(lost)
	})
}

func TestWipedInitialReplicaMustNotVoteAnew(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		lost := r.follower()
		r.crash(lost)
		r.network.Wipe(lost)
		said := r.refused(r.startAs(lost, func(*Config) {}), consensus.ExitConfig) // its unit still says --bootstrap --initial
		for _, want := range []string{"must not vote again", "fluxctl cluster remove " + lost, "--join"} {
			if !strings.Contains(said, want) {
				t.Errorf("got %q, want %q in it", said, want)
			}
		}
		r.forget(lost)
	})
}

func TestInitialReplicaThatStartsLateTakesPart(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		// As if it had never been up: its disk is empty and nobody has met it.
		late := r.follower()
		r.crash(late)
		r.network.Forget(late)
		r.start(late)
		r.serving()
	})
}

func TestRemovedReplicaEndsThoughNobodyToldIt(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		gone := r.follower()
		r.end(gone)
		exits := make(chan string, 8)
		watched := func(c *Config) {
			c.Exit = func(code int, message string) {
				if code == consensus.ExitConfig {
					exits <- message
				}
			}
		}
		r.startAs(gone, watched)
		r.serving()
		r.network.Isolate(gone)
		r.leader()
		other := r.follower()
		if other == gone {
			other = r.names[3-slices.Index(r.names, gone)-slices.Index(r.names, r.leader())]
		}
		if got := r.call(r.leader(), "DELETE", "/fleet/cluster/replicas/"+other, nil); got.status != http.StatusConflict {
			t.Errorf("removing one of three while another does not answer: %s", got)
		}
		if got := r.call(r.leader(), "DELETE", "/fleet/cluster/replicas/"+gone, nil); got.status != http.StatusNoContent {
			t.Fatalf("removing: %s", got)
		}
		r.network.Rejoin(gone)
		select {
		case said := <-exits:
			if !strings.Contains(said, "removed from the cluster") {
				t.Errorf("got %q", said)
			}
		case <-time.After(2 * time.Minute):
			t.Error("it runs on")
		}
		r.end(gone)
		r.forget(gone)
	})
}

func TestLeaderIsRemovedByItsSuccessor(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		old := r.leader()
		r.end(old)
		r.startAs(old, func(c *Config) { c.Exit = func(int, string) {} })
		r.serving()
		if got := r.call(r.leader(), "POST", "/fleet/cluster/transfer", body{"to": old}); got.status != http.StatusNoContent {
			t.Fatalf("handing over: %s", got)
		}
		r.eventually(old+" to lead", 30*time.Second, func() bool { return r.leader() == old })
		if got := r.call(old, "DELETE", "/fleet/cluster/replicas/"+old, nil); got.code() != api.CodeNotLeader {
			t.Fatalf("the leader removed itself: %s", got)
		}
		next := r.newLeader(old)
		if got := r.insist("DELETE", "/fleet/cluster/replicas/"+old, nil, "remove"); got.status != http.StatusNoContent {
			t.Fatalf("removing it: %s", got)
		}
		if r.leader() != next || r.replica(old).Name != "" {
			t.Error("the old leader is still there")
		}
		r.end(old)
		r.forget(old)
	})
}

func TestBackupIsWholeAndCurrent(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.image("tiny")
		r.applied()
		got := r.call(r.follower(), "POST", "/fleet/cluster/snapshot", nil)
		head, err := api.ReadBackup(bytes.NewReader(got.body))
		if err != nil {
			t.Fatal(err)
		}
		state := fsm.New()
		if err := state.Restore(bytes.NewReader(got.body)); err != nil {
			t.Fatal(err)
		}
		if state.View().Image("tiny") == nil || head.Index != state.View().Index() {
			t.Errorf("the backup as of %d lacks what was acknowledged", head.Index)
		}
		for name, damaged := range map[string][]byte{"cut": got.body[:len(got.body)-70], "cut in its sum": got.body[:len(got.body)-2], "changed": bytes.Replace(got.body, []byte("tiny"), []byte("tinY"), 1)} {
			if _, err := api.ReadBackup(bytes.NewReader(damaged)); err == nil {
				t.Errorf("a backup that was %s passes", name)
			}
			if err := fsm.New().Restore(bytes.NewReader(damaged)); err == nil {
				t.Errorf("a backup that was %s restores", name)
			}
		}
	})
}
