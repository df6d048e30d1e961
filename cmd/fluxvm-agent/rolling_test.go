package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// load launches and deletes VMs until it is stopped, through clients that know all replicas.
type load struct {
	mu     sync.Mutex
	took   []time.Duration
	failed []string
}

func (l *load) run(over, ctx context.Context, who int, c *client.Client) {
	for n := 0; over.Err() == nil; n++ {
		name := fmt.Sprintf("vm-%d-%d", who, n)
		began := time.Now()
		one, cancel := context.WithTimeout(ctx, time.Minute)
		got, _, err := c.Launch(one, api.LaunchRequest{Name: name, Image: "tiny"}, client.LaunchOptions{Key: name})
		cancel()
		l.mu.Lock()
		l.took = append(l.took, time.Since(began))
		if err != nil {
			l.failed = append(l.failed, name+": "+err.Error())
		}
		l.mu.Unlock()
		if err != nil {
			continue
		}
		one, cancel = context.WithTimeout(ctx, time.Minute)
		if err := c.DeleteVM(one, got.VM.ID); err != nil && !hasCode(err, api.CodeNotFound) { // a repeat finds it gone
			l.mu.Lock()
			l.failed = append(l.failed, "deleting "+name+": "+err.Error())
			l.mu.Unlock()
		}
		cancel()
		wait(over, 20*time.Millisecond) // so that the machine is not the limit
	}
}

// TestARollingRestartFailsNoLaunch restarts all replicas one after the other, ROLLING_ROUNDS times, each once the one
// before has caught up, while clients launch and delete. Each launch is one call of pkg/client, which repeats under its
// key what a replica that ends leaves open.
func TestARollingRestartFailsNoLaunch(t *testing.T) {
	rounds := 1
	if n, err := strconv.Atoi(os.Getenv("ROLLING_ROUNDS")); err == nil {
		rounds = n
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute+time.Duration(rounds)*2*time.Minute)
	defer cancel()
	k := startThree(ctx, t, "--log-level", "warn")
	c := k.client(t, "c1", "c2", "c3")
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?boot_ms=5&agent_ms=5", VCPUs: 1, MemoryMiB: 64, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	over, stop := context.WithCancel(ctx)
	defer stop()
	l := &load{}
	var clients sync.WaitGroup
	for who := range 6 {
		one := k.client(t, "c1", "c2", "c3")
		clients.Go(func() { l.run(over, ctx, who, one) })
	}
	began := time.Now()
	restarts, ofLeaders := 0, 0
	for range rounds {
		for _, name := range []string{"c1", "c2", "c3"} {
			enough := func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.took) >= 20*(restarts+1) }
			eventually(ctx, t, "some launches", enough)
			now, err := c.Cluster(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if restarts++; now.Leader == name {
				ofLeaders++
			}
			if code := k.run[name].end(); code != 0 {
				t.Errorf("%s ended with %d: %s", name, code, &k.run[name].out)
			}
			k.run[name] = startProcess(t, k.args[name]...)
			eventually(ctx, t, name+" to have caught up", func() bool {
				now, err := c.Cluster(ctx)
				if err != nil || now.Leader == "" {
					return false
				}
				for _, r := range now.Replicas {
					if !r.Healthy || r.AppliedIndex+64 < now.Index {
						return false
					}
				}
				return true
			})
			k.await(ctx, t, name)
		}
	}
	stop()
	clients.Wait()
	slices.Sort(l.took)
	t.Logf("%d launches during %d restarts in %s, %d failed; half took less than %s, 99%% less than %s, the longest %s; %d restarts were of the leader", len(l.took), restarts, time.Since(began).Round(time.Second),
		len(l.failed), l.took[len(l.took)/2], l.took[len(l.took)*99/100], l.took[len(l.took)-1], ofLeaders)
	if ofLeaders == 0 {
		t.Error("no leader was restarted under load, so this tests little")
	}
	for i, f := range l.failed {
		if i < 10 {
			t.Error(f)
		}
	}
}
