package fleettest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/api/apitest"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func TestMain(m *testing.M) {
	if raw := os.Getenv(partEnv); raw != "" {
		if err := play(raw); err != nil {
			fmt.Fprintln(os.Stderr, "a part of the fleet ended:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// eventually polls until ok says yes; after the context has ended it fails the test.
func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited too long: %s: %v", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func (f *Fleet) leader(ctx context.Context, t *testing.T) (leader int) {
	t.Helper()
	eventually(ctx, t, "for a leader", func() bool {
		for i := range f.replicas {
			if f.Leads(i) {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

func TestAFleetServesOverTheLossOfReplicas(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for range 2 {
			if err := f.Stop(); err != nil {
				t.Errorf("stopping the fleet: %v", err)
			}
		}
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := client.New(client.Config{Endpoints: f.URLs(), Token: f.Token, HTTPClient: &http.Client{Transport: apitest.Check(t, transport)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?boot_ms=20&agent_ms=20", HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	one := 1
	if _, err := c.CreatePool(ctx, api.PoolRequest{Name: "p", Image: "tiny", MinReady: &one}, ""); err != nil {
		t.Fatal(err)
	}
	full := func() {
		t.Helper()
		eventually(ctx, t, "for the pool to be full", func() bool {
			s, err := c.PoolStatus(ctx, "p")
			return err == nil && s.State == api.PoolReady
		})
	}
	launch := func(name string, req api.LaunchRequest) api.LaunchAnswer {
		t.Helper()
		req.Name = name
		got, _, err := c.Launch(ctx, req, client.LaunchOptions{Key: "key-" + name, WaitReady: true})
		if err != nil {
			t.Fatalf("launching %s: %v", name, err)
		}
		if got.VM.Name != name || got.VM.State != api.StateRunning || got.VM.ReadyAt == 0 {
			t.Errorf("launching %s: %+v", name, got.VM)
		}
		return got
	}
	full()
	if got := launch("warm", api.LaunchRequest{Pool: "p"}); !got.Warm {
		t.Errorf("from a full pool it booted for %q", got.ColdReason)
	}
	if got := launch("cold", api.LaunchRequest{Image: "tiny", CloudInit: &api.CloudInit{Hostname: "h"}}); got.Warm || got.ColdReason != "cloud_init" {
		t.Errorf("got %+v, want a normal boot", got)
	}
	if err := c.DeleteVM(ctx, "cold"); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "for the deleted VM to be gone", func() bool {
		_, err := c.VM(ctx, "cold")
		return errors.Is(err, &api.Error{Code: api.CodeNotFound})
	})
	follower := (f.leader(ctx, t) + 1) % 3
	if err := f.StopReplica(follower); err != nil {
		t.Errorf("stopping a follower: %v", err)
	}
	full()
	launch("after-a-follower", api.LaunchRequest{Pool: "p"})
	if cluster, err := c.Cluster(ctx); err != nil || len(cluster.Replicas) != 3 || cluster.Leader == f.replicas[follower].name {
		t.Errorf("the cluster: %+v, %v", cluster, err)
	}
}

func TestAFleetGoesOnWhenItsLeaderStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 2, Macs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Stop(); err != nil {
			t.Errorf("stopping the fleet: %v", err)
		}
	}()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	c, err := client.New(client.Config{Endpoints: f.URLs(), Token: f.Token, HTTPClient: &http.Client{Transport: apitest.Check(t, transport)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "mac", Path: "sim:?boot_ms=20&agent_ms=20", GuestOS: api.GuestMacOS, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	before, _, err := c.Launch(ctx, api.LaunchRequest{Name: "a", Image: "mac"}, client.LaunchOptions{Key: "a"})
	if err != nil || before.Node != "node-1" {
		t.Fatalf("launching a macOS guest: %+v, %v; want it on the one Mac", before, err)
	}
	if err := f.StopReplica(f.leader(ctx, t)); err != nil {
		t.Errorf("stopping the leader: %v", err)
	}
	again, replayed, err := c.Launch(ctx, api.LaunchRequest{Name: "a", Image: "mac"}, client.LaunchOptions{Key: "a"})
	if err != nil || !replayed || again.VM.ID != before.VM.ID {
		t.Errorf("the repeat on the next leader: %+v, replayed %t, %v; want VM %s", again, replayed, err, before.VM.ID)
	}
	if _, _, err := c.Launch(ctx, api.LaunchRequest{Name: "b", Image: "mac"}, client.LaunchOptions{}); err != nil {
		t.Errorf("the next launch on the next leader: %v", err)
	}
	_, _, err = c.Launch(ctx, api.LaunchRequest{Name: "c", Image: "mac"}, client.LaunchOptions{})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeNoCapacity || refused.Reasons[api.WhyMacOSLimit] != 1 {
		t.Errorf("a third macOS guest on one Mac: %v, want no_capacity for macos_limit", err)
	}
}

func TestStartSaysWhatIsInItsWay(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := Start(ctx, Config{Dir: t.TempDir(), Listen: "127.0.0.1:not-a-port"}); err == nil {
		t.Error("an address of no sense was listened on")
	}
	ended, stop := context.WithCancel(ctx)
	stop()
	if _, err := Start(ended, Config{Dir: t.TempDir()}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
}
