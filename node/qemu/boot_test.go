//go:build linux

package qemu

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// bootWithin is long because emulated guests share the machine with every other test.
const bootWithin = 3 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testImage is an image to boot, or skips the test loudly.
func testImage(t *testing.T) string {
	t.Helper()
	path := os.Getenv("FLUXVM_TEST_IMAGE")
	if path == "" {
		path = filepath.Join("..", "..", "build", "images", "tiny")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		t.Skip("SKIPPED: no guest is booted with -short")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("SKIPPED, no guest was booted: there is no qemu-system-x86_64; get it with: apt-get install qemu-system-x86")
	}
	if _, err := openImage(path); err != nil {
		t.Skipf("SKIPPED, no guest was booted: %v; make it with: scripts/guest-image build/images/tiny", err)
	}
	return path
}

func testDriver(t *testing.T) *Driver {
	t.Helper()
	d, err := New(Config{Logger: hclog.New(&hclog.LoggerOptions{Output: testLog{t}, Level: hclog.Debug})})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func testSpec(image string) machine.Spec {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return machine.Spec{MachineRequest: api.MachineRequest{
		ID: fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), Name: "tiny-1", Image: image, MemoryMiB: 160,
	}}
}

// started boots the machine and sees to its end, whatever the test makes of it.
func started(t *testing.T, d *Driver, spec machine.Spec, dir string) machine.Machine {
	t.Helper()
	m, err := d.Start(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Release()
		if err := d.Remove(spec, dir); err != nil {
			t.Error(err)
		}
	})
	return m
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootWithin)
	t.Cleanup(cancel)
	return ctx
}

// awaitAgent returns once the guest agent has answered.
func awaitAgent(t *testing.T, m machine.Machine) {
	t.Helper()
	ctx := within(t)
	for {
		err := m.Ping(ctx)
		if err == nil {
			return
		}
		if !errors.Is(err, machine.ErrNoAgent) {
			t.Fatal(err)
		}
		select {
		case <-m.Done():
			t.Fatalf("the VM has ended: %v", m.Err())
		case <-ctx.Done():
			console, _ := m.Console(4096)
			t.Fatalf("no agent answered: %v; console:\n%s", err, console)
		default:
		}
	}
}

func shell(t *testing.T, m machine.Machine, script string) string {
	t.Helper()
	got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"sh", "-c", script}})
	if err != nil || got.ExitCode != 0 {
		t.Fatalf("running %q: %+v, %v", script, got, err)
	}
	return strings.TrimSpace(got.Stdout)
}

func TestGuestLivesThroughItsWholeLife(t *testing.T) {
	image := testImage(t)
	d := testDriver(t)
	if err := d.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	spec := testSpec(image)
	spec.VCPUs, spec.DiskSizeGiB = 2, 1
	// Deeper than a socket's path may be long.
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep", 20), spec.ID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Check(spec); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	m := started(t, d, spec, dir)
	t.Logf("started after %v", time.Since(begin))
	awaitAgent(t, m)
	t.Logf("agent answers after %v", time.Since(begin))

	if got := shell(t, m, "hostname; nproc; cat /sys/block/vda/size"); got != "tiny-1\n2\n2097152" {
		t.Errorf("got %q, want the VM's name, processors and disk", got)
	}
	timedOut, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"sleep", "1000"}, TimeoutSecs: 1})
	if err != nil || !timedOut.TimedOut {
		t.Errorf("got %+v and %v, want a command that timed out", timedOut, err)
	}
	orphan := shell(t, m, "(sh -c 'exit 7' &) ; sleep 0.5; ps -o stat | grep -c ^Z || true")
	if orphan != "0" {
		t.Errorf("%s dead processes were not reaped", orphan)
	}

	if err := m.Pause(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Ping(within(t)); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("a paused guest: got %v, want ErrNoAgent", err)
	}
	if err := m.Resume(within(t)); err != nil {
		t.Fatal(err)
	}
	shell(t, m, "echo kept > /run/kept; echo said on the console > /dev/console")

	pid := m.PID()
	m.Release()
	m.Release()
	if err := m.Pause(within(t)); !errors.Is(err, errReleased) {
		t.Errorf("a released VM: got %v, want errReleased", err)
	}
	m, err = testDriver(t).Adopt(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	if m.PID() != pid {
		t.Errorf("adopted process %d, want %d", m.PID(), pid)
	}
	awaitAgent(t, m)
	if got := shell(t, m, "cat /run/kept"); got != "kept" {
		t.Errorf("got %q, want what the guest held before", got)
	}
	if console, err := m.Console(1 << 20); err != nil || !strings.Contains(string(console), "said on the console") {
		t.Errorf("the console says %q, %v", console, err)
	}

	if err := m.Stop(within(t), false); err != nil {
		t.Fatal(err)
	}
	<-m.Done()
	if err := m.Err(); err != nil {
		t.Errorf("after a clean stop: %v", err)
	}
	if _, err := startTime(pid); err == nil {
		t.Errorf("process %d is still there", pid)
	}
	if console, err := m.Console(1 << 20); err != nil || !strings.Contains(string(console), "Power down") {
		t.Errorf("after the end the console says %q, %v", console, err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Errorf("stopping again: %v", err)
	}
	if _, err := d.Adopt(within(t), spec, dir); !errors.Is(err, machine.ErrGone) {
		t.Errorf("adopting what has ended: got %v, want ErrGone", err)
	}
}
