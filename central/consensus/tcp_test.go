package consensus

import (
	"context"
	"testing"
	"time"
)

// TestThreeReplicasOverTCPFailOver is the real thing on loopback: files, sockets, fsync. A replica "dies" by
// losing its port first, so that nothing it says any more gets out.
func TestThreeReplicasOverTCPFailOver(t *testing.T) {
	dirs, addrs, replicas := map[string]string{}, map[string]string{}, map[string]*replica{}
	var servers []Server
	for _, name := range threeNames {
		dirs[name] = t.TempDir()
		replicas[name] = mustOpenReplica(t, name, dirs[name], "127.0.0.1:0", true)
		addrs[name] = replicas[name].mux.Advertise()
		servers = append(servers, Server{name, addrs[name]})
	}
	for _, name := range threeNames {
		if err := replicas[name].node.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
	leader := func() (name string) {
		eventually(t, "a leader that commits", func() bool {
			for candidate, r := range replicas {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				err := r.node.Barrier(ctx)
				cancel()
				if err == nil {
					name = candidate
					return true
				}
			}
			return false
		})
		return name
	}
	// write repeats what was refused; nothing here is unknown, because nobody dies meanwhile.
	write := func(command string) {
		eventually(t, command+" to be written", func() bool { return replicas[leader()].propose(command) == nil })
	}
	write("init:cluster-1")
	write("one")

	dead := leader()
	_ = replicas[dead].mux.Close()
	replicas[dead].close()
	delete(replicas, dead)
	write("two")
	if err := replicas[leader()].node.VerifyRead(t.Context()); err != nil {
		t.Errorf("verified read after fail-over: %v", err)
	}

	replicas[dead] = mustOpenReplica(t, dead, dirs[dead], addrs[dead], false)
	write("three")
	for name, r := range replicas {
		eventually(t, name+" to hold all", func() bool {
			return r.state.has("init:cluster-1") && r.state.has("one") && r.state.has("two") && r.state.has("three")
		})
		if got := r.node.Status(); got.LogBytes == 0 || got.CommitIndex == 0 {
			t.Errorf("status of %s: got %+v", name, got)
		}
	}
}
