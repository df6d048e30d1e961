package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// cluster is three replicas in memory inside a synctest bubble.
type cluster struct {
	t       *testing.T
	network *Network
	nodes   map[string]*Node
	states  map[string]*list
	mu      sync.Mutex
	exits   map[string]string
}

var threeNames = []string{"a", "b", "c"}

func newCluster(t *testing.T, names ...string) *cluster {
	c := &cluster{t: t, network: NewNetwork(), nodes: map[string]*Node{}, states: map[string]*list{}, exits: map[string]string{}}
	var servers []Server
	for _, name := range names {
		servers = append(servers, Server{name, name})
	}
	for _, name := range names {
		c.open(name, true)
		if err := c.nodes[name].Bootstrap(servers); err != nil {
			t.Fatalf("bootstrapping %s: %v", name, err)
		}
	}
	t.Cleanup(c.close)
	return c
}

func (c *cluster) config(name string, create bool) Config {
	return Config{
		Name: name, Network: c.network, FSM: c.states[name], Create: create,
		SnapshotThreshold: 50, TrailingLogs: 10,
		Exit: func(code int, message string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.exits[name] = fmt.Sprintf("%d %s", code, message)
		},
	}
}

func (c *cluster) open(name string, create bool) {
	c.t.Helper()
	c.states[name] = &list{}
	n, err := Open(c.config(name, create))
	if err != nil {
		c.t.Fatalf("opening %s: %v", name, err)
	}
	c.nodes[name] = n
}

func (c *cluster) stop(name string) {
	c.t.Helper()
	if err := c.nodes[name].Close(); err != nil {
		c.t.Errorf("closing %s: %v", name, err)
	}
	delete(c.nodes, name)
}

// crash ends a replica that gets no word out any more.
func (c *cluster) crash(name string) {
	c.network.Isolate(name)
	c.stop(name)
	c.network.Rejoin(name)
}

func (c *cluster) close() {
	for name := range c.nodes {
		c.stop(name)
	}
}

// leader waits until one replica can commit, and gives its name.
func (c *cluster) leader() string {
	c.t.Helper()
	var leader string
	eventually(c.t, "a leader that commits", func() bool {
		for name, n := range c.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			err := n.Barrier(ctx)
			cancel()
			if err == nil {
				leader = name
				return true
			}
		}
		return false
	})
	return leader
}

func (c *cluster) propose(name, command string) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	result, _, err := c.nodes[name].Propose(ctx, []byte(command))
	return result, err
}

func (c *cluster) mustPropose(name, command string) any {
	c.t.Helper()
	result, err := c.propose(name, command)
	if err != nil {
		c.t.Fatalf("proposing %q on %s: %v", command, name, err)
	}
	return result
}

func (c *cluster) others(name string) []string {
	return slices.DeleteFunc(slices.Clone(threeNames), func(n string) bool { return n == name })
}

// eventually polls. Inside a bubble the time it waits is virtual.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

func hasCode(err error, code api.Code) bool { return errors.Is(err, &api.Error{Code: code}) }

func TestThreeReplicasElectProposeAndFailOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, threeNames...)
		first := c.leader()
		if got := c.mustPropose(first, "init:cluster-1"); got != 1 {
			t.Errorf("first result: got %v, want 1", got)
		}
		c.mustPropose(first, "one")
		term := c.nodes[first].Term()

		c.crash(first)
		second := c.leader()
		c.mustPropose(second, "two")
		if now := c.nodes[second].Term(); now <= term {
			t.Errorf("term after fail-over: got %d, want more than %d", now, term)
		}

		c.open(first, false)
		eventually(t, "the restarted replica to catch up", func() bool { return c.states[first].has("two") })
		if n := c.nodes[first]; n.AppliedIndex() < n.LastIndexAtStart() {
			t.Errorf("applied %d is below what was there at start, %d", n.AppliedIndex(), n.LastIndexAtStart())
		}
		want := []string{"init:cluster-1", "one", "two"}
		for name, state := range c.states {
			eventually(t, name+" to hold all", func() bool { return slices.Equal(state.all(), want) })
		}
	})
}

func TestNetworkCarriesHTTPAlongTheSameWires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := NewNetwork()
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.Host)
		})}
		served, port := make(chan struct{}), w.HTTP("b")
		go func() { defer close(served); _ = server.Serve(port) }()
		transport := &http.Transport{DialContext: w.DialHTTP("a")}
		client := &http.Client{Transport: transport}
		ask := func() (string, error) {
			response, err := client.Get("http://b/")
			if err != nil {
				return "", err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			return string(body), err
		}
		if got, err := ask(); err != nil || got != "b" {
			t.Errorf("connected: got %q, %v", got, err)
		}
		w.Cut("a", "b")
		if got, err := ask(); err == nil {
			t.Errorf("cut: got %q, want no answer", got)
		}
		w.Heal("b", "a")
		if got, err := ask(); err != nil || got != "b" {
			t.Errorf("healed: got %q, %v", got, err)
		}
		transport.CloseIdleConnections()
		_ = server.Close()
		<-served
	})
}
