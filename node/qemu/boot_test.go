//go:build linux

package qemu

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// bootWithin is long because emulated guests share the machine with every other test.
const bootWithin = 3 * time.Minute

// daemonEnv makes this program a daemon that starts the VM described there and then does nothing more.
const daemonEnv = "FLUXVM_TEST_DAEMON"

func TestMain(m *testing.M) {
	if described := os.Getenv(daemonEnv); described != "" {
		if err := daemon(described); err != nil {
			fmt.Println(err)
		}
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// daemon starts the VM, says so, and waits to be killed.
func daemon(described string) error {
	var start struct {
		Spec machine.Spec
		Dir  string
	}
	if err := json.Unmarshal([]byte(described), &start); err != nil {
		return err
	}
	e, err := New(Config{})
	if err != nil {
		return err
	}
	if _, err := e.FluxVM().Start(context.Background(), start.Spec, start.Dir); err != nil {
		return err
	}
	fmt.Println("started")
	select {}
}

// testImage is an image to boot, or skips the test loudly.
func testImage(t testing.TB) string {
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

func testDriver(t testing.TB) *FluxVM {
	t.Helper()
	return testEngine(t).FluxVM()
}

func testEngine(t testing.TB) *Engine {
	t.Helper()
	e, err := New(Config{Logger: hclog.New(&hclog.LoggerOptions{Output: testLog{t}, Level: hclog.Debug})})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

type testLog struct{ t testing.TB }

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
func started(t testing.TB, d machine.Driver, spec machine.Spec, dir string) machine.Machine {
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

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bootWithin)
	t.Cleanup(cancel)
	return ctx
}

// awaitAgent returns once the guest agent has answered.
func awaitAgent(t testing.TB, m machine.Machine) {
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

func shell(t testing.TB, m machine.Machine, script string) string {
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
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
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

func TestGuestOutlivesADaemonThatIsKilledAndItsPanicIsTold(t *testing.T) {
	spec, dir := testSpec(testImage(t)), t.TempDir()
	described, err := json.Marshal(map[string]any{"Spec": spec, "Dir": dir})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), daemonEnv+"="+string(described))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if said != "started\n" {
		t.Fatalf("the daemon said %q, %v", said, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	d := testDriver(t)
	m, err := d.Adopt(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Release()
		if err := d.Remove(spec, dir); err != nil {
			t.Error(err)
		}
	})
	awaitAgent(t, m)
	if _, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"sh", "-c", "sleep 0.2; echo c > /proc/sysrq-trigger"}, Detach: true}); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "kernel panicked: not syncing: sysrq triggered crash") {
		t.Errorf("got %v, want the panic's reason", err)
	}
}

func TestGuestThatEndsWhileNoDaemonRunsLeavesItsLastWords(t *testing.T) {
	spec, dir := testSpec(testImage(t)), t.TempDir()
	d := testDriver(t)
	m := started(t, d, spec, dir)
	awaitAgent(t, m)
	pid := m.PID()
	shell(t, m, "(sleep 0.3; echo my last words > /dev/console; poweroff) >/dev/null 2>&1 &")
	m.Release()
	ctx := within(t)
	for {
		m, err := d.Adopt(ctx, spec, dir)
		if errors.Is(err, machine.ErrGone) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	if console := process.Tail(filepath.Join(dir, consoleFile), consoleKeep); !strings.Contains(console, "my last words") {
		t.Errorf("the console ends with %q", process.LastLine(console))
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		t.Errorf("process %d is still there", pid)
	}
}

func TestForwardedPortReachesTheGuestAndAFloodedConsoleStaysBounded(t *testing.T) {
	spec, dir := testSpec(testImage(t)), t.TempDir()
	host, err := net.Listen("tcp", "127.0.0.1:0") // a free port, and below a listener that the guest must not reach
	if err != nil {
		t.Fatal(err)
	}
	port := host.Addr().(*net.TCPAddr).Port
	_ = host.Close()
	spec.Network = &api.Network{Mode: "nat", Forwards: []api.PortForward{{HostPort: port, GuestPort: 7}}}
	d := testDriver(t)
	m := started(t, d, spec, dir)
	awaitAgent(t, m)
	if _, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"nc", "-ll", "-p", "7", "-e", "hostname"}, Detach: true}); err != nil {
		t.Fatal(err)
	}
	shell(t, m, "until ip addr show eth0 | grep -q 'inet 10.0.2.15'; do sleep 0.1; done; until netstat -ltn | grep -q :7; do sleep 0.1; done")
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(bootWithin))
	if said, err := bufio.NewReader(conn).ReadString('\n'); said != spec.Name+"\n" {
		t.Errorf("got %q and %v through the forwarded port", said, err)
	}

	host, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	reached, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"nc", "-w", "2", "10.0.2.2", fmt.Sprint(host.Addr().(*net.TCPAddr).Port)}, Stdin: "x"})
	if err != nil || reached.ExitCode == 0 {
		t.Errorf("the guest reached the host: %+v, %v", reached, err)
	}

	shell(t, m, "yes 'a line that says nothing new at all' | head -c 600000 > /dev/console; echo last line > /dev/console")
	for range 4 {
		if _, err := m.Console(100); err != nil {
			t.Fatal(err)
		}
	}
	console, err := m.Console(100)
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(console)), "last line") {
		t.Errorf("the console ends with %q, %v", console, err)
	}
	if info, err := os.Stat(filepath.Join(dir, consoleFile)); err != nil || info.Size() > 2*consoleKeep {
		t.Errorf("console.log is %v, %v; want %d bytes at most", info.Size(), err, 2*consoleKeep)
	}

	process, err := os.FindProcess(m.PID())
	if err != nil {
		t.Fatal(err)
	}
	_ = process.Kill() // as the kernel would when it is out of memory
	awaitDone(t, m)
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "killed by signal") {
		t.Errorf("got %v, want that QEMU was killed", err)
	}
	if m.PID() != 0 {
		t.Errorf("process %d after the end, want none", m.PID())
	}
}

func awaitDone(t *testing.T, m machine.Machine) {
	t.Helper()
	select {
	case <-m.Done():
	case <-within(t).Done():
		t.Fatal("the VM does not end")
	}
}
