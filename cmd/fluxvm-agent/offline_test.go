package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// process is a part of a fleet that a test runs by itself.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	out  bytes.Buffer // read after its end only
	done chan struct{}
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(agent, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its state says how it ended
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
	return p
}

// end asks the process to end and gives its exit code.
func (p *process) end() int {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	return p.wait()
}

func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.t.Fatal("the process does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// three is a control plane of three processes with one simulated host.
type three struct {
	dir, token string
	api        map[string]string // URL of a replica by its name
	args       map[string][]string
	run        map[string]*process
}

func startThree(ctx context.Context, t *testing.T, more ...string) *three {
	t.Helper()
	return startThreeIn(ctx, t, t.TempDir(), more...)
}

func startThreeIn(ctx context.Context, t *testing.T, dir string, more ...string) *three {
	t.Helper()
	k := &three{dir: dir, token: "fvx_op_of_this_test", api: map[string]string{}, args: map[string][]string{}, run: map[string]*process{}}
	tokenFile := filepath.Join(k.dir, "token")
	if err := os.WriteFile(tokenFile, []byte(k.token), 0o600); err != nil {
		t.Fatal(err)
	}
	free := func() string {
		addr, err := freePort("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return addr
	}
	var initial, urls []string
	for _, name := range []string{"c1", "c2", "c3"} {
		listen, cluster := free(), free()
		k.api[name] = "http://" + listen
		urls = append(urls, k.api[name])
		initial = append(initial, name+"="+cluster)
		k.args[name] = append([]string{"central", "--name", name, "--listen", listen, "--cluster-listen", cluster, "--data", k.data(name),
			"--operator-token-file", tokenFile, "--election-timeout", "1s"}, more...)
	}
	for name, args := range k.args {
		k.run[name] = startProcess(t, append([]string{args[0], "--bootstrap", "--initial", strings.Join(initial, ",")}, args[1:]...)...)
	}
	k.run["node"] = startProcess(t, "node", "--name", "n1", "--listen", free(), "--data", filepath.Join(k.dir, "n1"), "--backend", "sim",
		"--central", strings.Join(urls, ","), "--join-token-file", tokenFile, "--admin-token-file", tokenFile, "--heartbeat-secs", "1")
	k.await(ctx, t, "c1", "c2", "c3")
	return k
}

func (k *three) data(name string) string { return filepath.Join(k.dir, name) }

func (k *three) client(t *testing.T, names ...string) *client.Client {
	t.Helper()
	var urls []string
	for _, name := range names {
		urls = append(urls, k.api[name])
	}
	c, err := client.New(client.Config{Endpoints: urls, Token: k.token})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// await waits until the replicas are ready and the host serves.
func (k *three) await(ctx context.Context, t *testing.T, names ...string) {
	t.Helper()
	c := k.client(t, names...)
	eventually(ctx, t, "the replicas to be ready and the host healthy", func() bool {
		for _, name := range names {
			resp, err := http.Get(k.api[name] + "/readyz")
			if err != nil {
				return false
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				return false
			}
		}
		n, err := c.Node(ctx, "n1")
		return err == nil && n.State == api.NodeHealthy
	})
}

// offlineCommand runs a command on stopped data.
func offlineCommand(t *testing.T, input string, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(agent, append([]string{"central"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	raw, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(raw)
}

// line is the one of a report that begins with a word.
func line(report, word string) string {
	for l := range strings.Lines(report) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(l), word+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func TestTheLastReplicaIsCheckedCompactedAndRecovered(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	k := startThree(ctx, t)
	c := k.client(t, "c1", "c2", "c3")
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?boot_ms=20&agent_ms=20", HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	launch := func(c *client.Client, name string) api.VM {
		t.Helper()
		got, _, err := c.Launch(ctx, api.LaunchRequest{Name: name, Image: "tiny"}, client.LaunchOptions{Key: name, WaitReady: true})
		if err != nil {
			t.Fatalf("launching %s: %v", name, err)
		}
		return got.VM
	}
	kept := launch(c, "kept")
	before, err := c.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if code := k.run["c1"].end(); code != 0 {
		t.Errorf("c1 ended with %d: %s", code, &k.run["c1"].out)
	}
	late := launch(c, "late") // which c1 does not hear of
	code, report := offlineCommand(t, "", "check", "--data", k.data("c2"))
	if code != 1 || !strings.Contains(report, "another process") {
		t.Errorf("checking one that runs: %d %s", code, report)
	}
	k.run["c2"].end()
	k.run["c3"].end()
	sums := map[string]string{}
	for _, name := range []string{"c1", "c2", "c3"} {
		code, report := offlineCommand(t, "", "check", "--data", k.data(name))
		if code != 0 || !strings.Contains(report, "holds replica "+name+" of cluster "+before.ID) || !strings.Contains(report, "All is well") {
			t.Errorf("checking %s: %d %s", name, code, report)
		}
		index := line(report, "state")
		if other, known := sums[index]; known && other != line(report, "sum") {
			t.Errorf("%s has another sum at the same index: %s", name, report)
		}
		sums[index] = line(report, "sum")
	}
	if code, report := offlineCommand(t, "", "compact", "--data", k.data("c1")); code != 0 || !strings.Contains(report, "KiB now") {
		t.Errorf("compacting: %d %s", code, report)
	}

	for _, name := range []string{"c2", "c3"} { // a fire
		if err := os.RemoveAll(k.data(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, typed := range []string{"", "yes\n", "c1\n"} {
		code, report := offlineCommand(t, typed, "recover", "--data", k.data("c1"))
		if code != 1 || !strings.Contains(report, "nothing was changed") || !strings.Contains(report, "May be lost") || !strings.Contains(report, "Left out: c2, c3") {
			t.Errorf("recovering with %q typed: %d %s", typed, code, report)
		}
	}
	for peers, want := range map[string]string{"c2": "must name c1", "c1,c9": `no replica "c9"`, "c1,c1": "twice", "c1=": "NAME=CLUSTERADDR"} {
		if code, report := offlineCommand(t, "", "recover", "--data", k.data("c1"), "--yes", "--peers", peers); code != 1 || !strings.Contains(report, want) {
			t.Errorf("--peers %s: %d %s", peers, code, report)
		}
	}
	if code, report := offlineCommand(t, before.ID+"\n", "recover", "--data", k.data("c1")); code != 0 {
		t.Fatalf("recovering: %d %s", code, report)
	}
	if code, report := offlineCommand(t, "", "check", "--data", k.data("c1")); code != 0 {
		t.Errorf("checking what was recovered: %d %s", code, report)
	}
	k.run["c1"] = startProcess(t, k.args["c1"]...)
	k.await(ctx, t, "c1")
	c = k.client(t, "c1")
	after, err := c.Cluster(ctx)
	if err != nil || after.ID != before.ID || after.Epoch <= before.Epoch || len(after.Replicas) != 1 {
		t.Errorf("the recovered cluster: %+v, %v; it was %+v", after, err, before)
	}
	eventually(ctx, t, "both VMs to be known and running", func() bool {
		for _, id := range []string{kept.ID, late.ID} {
			if vm, err := c.VM(ctx, id); err != nil || vm.State != api.StateRunning {
				return false
			}
		}
		return true
	})
	launch(c, "after") // the host takes orders of the new epoch
	if code := k.run["c1"].end(); code != 0 {
		t.Errorf("it ended with %d: %s", code, &k.run["c1"].out)
	}
}

func TestCheckOfDamagedDataNamesTheWayOut(t *testing.T) {
	dir := t.TempDir()
	p := startProcess(t, "central", "--bootstrap", "--name", "solo", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0", "--data", dir, "--election-timeout", "1s")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	eventually(ctx, t, "a cluster", func() bool { _, err := os.Stat(filepath.Join(dir, "identity.json")); return err == nil })
	p.end()
	store := filepath.Join(dir, "raft", "raft.db")
	if err := os.Truncate(store, int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check"}, {"recover", "--yes"}, {"compact"}} {
		if code, report := offlineCommand(t, "", append(args, "--data", dir)...); code != 78 || !strings.Contains(report, "damaged") || !strings.Contains(report, "join again") {
			t.Errorf("%v: %d %s", args, code, report)
		}
	}
	if code, report := offlineCommand(t, "", "check", "--data", t.TempDir()); code != 78 || !strings.Contains(report, "holds no replica") {
		t.Errorf("an empty directory: %d %s", code, report)
	}
}
