package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// agent is the program under test, built once.
var agent string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "fluxvm-agent-")
	if err != nil {
		panic(err)
	}
	agent = filepath.Join(dir, "fluxvm-agent")
	build := exec.Command("go", "build", "-o", agent, ".")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(code)
}

// eventually polls until ok says yes or the context ends.
func eventually(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited too long for %s", what)
		case <-tick.C:
		}
	}
}

// fleet is a dev fleet of processes.
type fleet struct {
	data string
	dev  *exec.Cmd
	out  bytes.Buffer // read after its end only
	done chan error
}

func startFleet(ctx context.Context, t *testing.T, args ...string) *fleet {
	t.Helper()
	return startFleetIn(ctx, t, t.TempDir(), args...)
}

func startFleetIn(ctx context.Context, t *testing.T, dir string, args ...string) *fleet {
	t.Helper()
	f := &fleet{data: dir, done: make(chan error, 1)}
	f.dev = exec.Command(agent, append([]string{"dev", "--backend", "sim", "--listen", "127.0.0.1:0", "--data", f.data}, args...)...)
	f.dev.Stdout, f.dev.Stderr = &f.out, &f.out
	if err := f.dev.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { f.done <- f.dev.Wait() }()
	t.Cleanup(func() {
		_ = f.dev.Process.Kill() // it has ended already unless the test failed
		for _, pid := range f.pids() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	eventually(ctx, t, "the fleet to be up", func() bool {
		select {
		case err := <-f.done:
			t.Fatalf("dev ended: %v\n%s", err, f.out.String())
		default:
		}
		_, err := os.Stat(filepath.Join(f.data, "env"))
		return err == nil
	})
	return f
}

// pids are those of DATA/pids that are still processes of this fleet.
func (f *fleet) pids() map[string]int {
	out := map[string]int{}
	raw, err := os.ReadFile(filepath.Join(f.data, "pids"))
	if err != nil {
		return out
	}
	for line := range strings.Lines(string(raw)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		// A number that was given anew to a stranger is none of ours.
		if args, err := os.ReadFile(filepath.Join("/proc", text, "cmdline")); err == nil && bytes.Contains(args, []byte(f.data)) {
			out[name] = pid
		}
	}
	return out
}

// env reads DATA/env.
func (f *fleet) env(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(f.data, "env"))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(raw)) {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	t.Fatalf("%s is not in %s", name, raw)
	return ""
}

func (f *fleet) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Endpoints: client.SplitEndpoints(f.env(t, "FLUXVM_REPLICA_URLS")), Token: f.env(t, "FLUXVM_TOKEN")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// interrupt ends dev as ^C does and waits for it.
func (f *fleet) interrupt(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := f.dev.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-f.done:
		if err != nil {
			t.Errorf("dev ended with %v\n%s", err, f.out.String())
		}
	case <-ctx.Done():
		t.Fatal("dev did not end")
	}
}

func TestAFleetOfProcessesOutlivesItsLeader(t *testing.T) {
	if _, err := os.Stat("/proc/self/cmdline"); err != nil {
		t.Skip("whose process a number is can be told by /proc alone")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	f := startFleet(ctx, t, "--processes", "--replicas", "3", "--nodes", "2")
	c := f.client(t)
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?boot_ms=20&agent_ms=20", HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	two := 2
	if _, err := c.CreatePool(ctx, api.PoolRequest{Name: "p", Image: "tiny", MinReady: &two}, ""); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the pool to be full", func() bool {
		s, err := c.PoolStatus(ctx, "p")
		return err == nil && s.State == api.PoolReady
	})
	first, _, err := c.Launch(ctx, api.LaunchRequest{Name: "a", Pool: "p"}, client.LaunchOptions{Key: "a"})
	if err != nil || !first.Warm {
		t.Fatalf("launching: %+v, %v; want a warm VM", first, err)
	}
	before := f.pids()
	if len(before) != 5 {
		t.Fatalf("processes: %v, want three replicas and two nodes", before)
	}
	cluster, err := c.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	leader := strings.Replace(cluster.Leader, "central-", "replica-", 1)
	if err := syscall.Kill(before[leader], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again, replayed, err := c.Launch(ctx, api.LaunchRequest{Name: "a", Pool: "p"}, client.LaunchOptions{Key: "a"})
	if err != nil || !replayed || again.VM.ID != first.VM.ID || again.Node != first.Node || !again.Warm {
		t.Errorf("the repeat after the leader's death: %+v, replayed %t, %v; want VM %s", again, replayed, err, first.VM.ID)
	}
	second, _, err := c.Launch(ctx, api.LaunchRequest{Name: "b", Image: "tiny"}, client.LaunchOptions{Key: "b"})
	if err != nil || second.VM.ID == first.VM.ID {
		t.Errorf("a launch on the next leader: %+v, %v", second, err)
	}
	eventually(ctx, t, "the killed replica to be back", func() bool {
		now := f.pids()
		cluster, err := c.Cluster(ctx)
		if err != nil || now[leader] == 0 || now[leader] == before[leader] {
			return false
		}
		for _, one := range cluster.Replicas {
			if !one.Healthy {
				return false
			}
		}
		return true
	})
	names := map[string]int{}
	for vm, err := range c.VMs(ctx, client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		names[vm.Name]++
	}
	if names["a"] != 1 || names["b"] != 1 {
		t.Errorf("VMs: %v, want a and b once", names)
	}
	f.interrupt(ctx, t)
	eventually(ctx, t, "all processes to be gone", func() bool { return len(f.pids()) == 0 })
}

func TestAFleetInOneProcessEndsCleanly(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	f := startFleet(ctx, t, "--replicas", "1")
	c := f.client(t)
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:"}, ""); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Launch(ctx, api.LaunchRequest{Name: "a", Image: "tiny"}, client.LaunchOptions{}); err != nil {
		t.Fatal(err)
	}
	f.interrupt(ctx, t)
	if _, err := c.Cluster(ctx); err == nil {
		t.Error("something still answers")
	}
}

func TestAFleetComesUpAgainOnItsDirectory(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	for i, mode := range []string{"--processes=false", "--processes=true", "--processes=false"} {
		f := startFleetIn(ctx, t, dir, mode)
		c := f.client(t)
		if i == 0 {
			if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:"}, ""); err != nil {
				t.Fatal(err)
			}
		}
		eventually(ctx, t, "a launch on what the first run left", func() bool {
			_, _, err := c.Launch(ctx, api.LaunchRequest{Image: "tiny"}, client.LaunchOptions{})
			return err == nil
		})
		f.interrupt(ctx, t)
		if err := os.Remove(filepath.Join(dir, "env")); err != nil { // so that the next run is waited for
			t.Fatal(err)
		}
	}
	other := exec.CommandContext(ctx, agent, "dev", "--backend", "sim", "--replicas", "1", "--data", dir)
	if out, err := other.CombinedOutput(); err == nil || !strings.Contains(string(out), "fleet of 3 replicas") {
		t.Errorf("another number of replicas: %v %s", err, out)
	}
}

func TestDevRefusesWhatItCannotRun(t *testing.T) {
	for name, args := range map[string][]string{
		"--replicas must be":      {"--replicas", "0"},
		"--nodes must be":         {"--nodes", "101"},
		"--macs must not be more": {"--nodes", "1", "--macs", "2", "--backend", "sim"},
		"only a simulated node":   {"--macs", "1", "--backend", "flux-vm"},
		"listen":                  {"--backend", "sim", "--listen", "127.0.0.1:99999"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := exec.CommandContext(ctx, agent, append([]string{"dev", "--data", t.TempDir()}, args...)...).CombinedOutput()
		cancel()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), name) {
			t.Errorf("%v: %v %s, want exit 1 and %q", args, err, out, name)
		}
	}
}
