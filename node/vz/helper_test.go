package vz

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

// The helper of these tests is this test program, started anew with the framework below. So a helper is a process of
// its own here as it is on a Mac: it can be killed, and it outlives the driver that started it.

const (
	helperArg = "vz-test-helper"
	daemonArg = "vz-test-daemon" // DIR IMAGE: start a VM there and wait to be killed
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == helperArg {
		if err := RunHelper(fakeFramework{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 4 && os.Args[1] == daemonArg {
		fmt.Println(startAndWait(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// startAndWait is a daemon that starts one VM. It says so and never ends by itself.
func startAndWait(dir, image string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	d, err := New(Config{Helper: []string{self, helperArg}, Limits: testLimits()})
	if err != nil {
		return err
	}
	m, err := d.Start(context.Background(), testSpec(image), dir)
	if err != nil {
		return err
	}
	fmt.Println(m.PID())
	select {}
}

// fakeFramework makes guests whose behaviour the plan's kernel command line chooses. They hold a real guest agent, and
// keep the rules of the framework: no pause of a guest that is paused, no state saved of one that runs.
type fakeFramework struct{}

func (fakeFramework) Identifier(kind BootKind) ([]byte, error) {
	return fmt.Appendf(nil, "%s %d", kind, time.Now().UnixNano()), nil
}

func (fakeFramework) New(p Plan, serial *os.File) (Guest, error) {
	if _, err := os.Stat(p.Boot.Identifier); err != nil {
		return nil, err
	}
	for _, d := range p.Disks {
		if !filepath.IsAbs(d) || !isFile(d) {
			return nil, fmt.Errorf("disk %q is none", d)
		}
	}
	return &fakeGuest{plan: p, serial: serial, ended: make(chan error, 1)}, nil
}

type fakeGuest struct {
	plan   Plan
	serial io.Writer
	ended  chan error
	once   sync.Once

	mu      sync.Mutex
	running bool
	paused  bool
	memory  uint64
}

func (g *fakeGuest) says(word string) bool { return strings.Contains(g.plan.Boot.Cmdline, word) }

func (g *fakeGuest) end(why error) { g.once.Do(func() { g.ended <- why }) }

func (g *fakeGuest) Start() error {
	switch {
	case g.says("fail=limit"):
		return &FrameworkError{Domain: errorDomain, Code: codeLimitExceeded, Text: "The number of virtual machines exceeds the limit."}
	case g.says("fail=die"):
		os.Exit(3)
	case g.says("fail=hang"):
		select {}
	case g.says("slow"):
		for began := time.Now(); !isFile("go"); time.Sleep(time.Millisecond) { // another process, which nothing of the test's can wake
			if time.Since(began) > time.Minute {
				os.Exit(3)
			}
		}
	}
	_, _ = io.WriteString(g.serial, "the guest says hello\n")
	return g.to(false, true, false, false)
}

// to changes the state if it is as the framework asks for.
func (g *fakeGuest) to(fromRunning, running, fromPaused, paused bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running != fromRunning || g.paused != fromPaused {
		return &FrameworkError{Domain: errorDomain, Code: 4, Text: "Invalid virtual machine state transition."}
	}
	g.running, g.paused = running, paused
	return nil
}

func (g *fakeGuest) Pause() error {
	if g.says("flood") {
		if _, err := io.WriteString(g.serial, strings.Repeat("the guest says much\n", 50_000)); err != nil {
			return err
		}
	}
	return g.to(true, true, false, true)
}

func (g *fakeGuest) Resume() error { return g.to(true, true, true, false) }

func (g *fakeGuest) Ask() error {
	if !g.says("deaf") {
		g.end(nil)
	}
	return nil
}

func (g *fakeGuest) Stop() error {
	g.end(nil)
	return nil
}

func (g *fakeGuest) Save(path string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.paused {
		return &FrameworkError{Domain: errorDomain, Code: 11, Text: "only a paused guest can be saved"}
	}
	return os.WriteFile(path, []byte(g.plan.MAC), 0o600)
}

func (g *fakeGuest) Restore(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if string(raw) != g.plan.MAC {
		return &FrameworkError{Domain: errorDomain, Code: 12, Text: "saved under another configuration"}
	}
	_, _ = io.WriteString(g.serial, "the guest goes on\n")
	return g.to(false, true, false, true)
}

func (g *fakeGuest) SetMemory(mib uint64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memory = mib
	return os.WriteFile("memory-told", fmt.Append(nil, mib), 0o600)
}

func (g *fakeGuest) Connect(port uint32) (net.Conn, error) {
	if g.says("mute") {
		select {}
	}
	if port != guest.VsockPort || g.says("no-agent") {
		return nil, &FrameworkError{Domain: posixDomain, Code: int(syscall.ECONNRESET), Text: "Connection reset by peer"}
	}
	ours, theirs := net.Pipe()
	go func() {
		defer theirs.Close()
		server := guest.Server{Poweroff: func() error { g.end(nil); return nil }}
		_ = server.Serve(context.Background(), noEOF{theirs})
	}()
	return ours, nil
}

// noEOF makes the end of the stream an error, which ends the agent's session.
type noEOF struct{ net.Conn }

func (c noEOF) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF {
		err = net.ErrClosed
	}
	return n, err
}

func (g *fakeGuest) Ended() <-chan error { return g.ended }

// testImage is a Linux image that boots a kernel, with the words on its command line.
func testImage(t *testing.T, words string) string {
	t.Helper()
	dir := t.TempDir()
	kernel := make([]byte, 64)
	copy(kernel[56:], "ARM\x64")
	for name, raw := range map[string][]byte{
		"vmlinuz": kernel, "initrd": []byte("x"), diskFile: append([]byte("boot"), make([]byte, 3<<20)...), "image.json": fmt.Appendf(nil, `{"cmdline": %q}`, words),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), raw, 0o400); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func testLimits() Limits {
	return Limits{MinVCPUs: 1, MaxVCPUs: 8, MinMemoryMiB: 128, MaxMemoryMiB: 16384}
}

func newDriver(t *testing.T) *Driver {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Helper: []string{self, helperArg}, Limits: testLimits(), Leases: filepath.Join(t.TempDir(), "leases")})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testSpec(image string) machine.Spec {
	return machine.Spec{MachineRequest: api.MachineRequest{ID: "0c1d2e3f-0000-4000-8000-000000000001", Name: "vm", Image: image, VCPUs: 2, MemoryMiB: 512}}
}

// machineDir is deep: its helper's socket has too long a path to be dialled as it is.
func machineDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 20))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := endHelper(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func boot(t *testing.T, d *Driver, spec machine.Spec, dir string) machine.Machine {
	t.Helper()
	if err := d.Check(spec); err != nil {
		t.Fatal(err)
	}
	m, err := d.Start(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m
}

func awaitDone(t *testing.T, m machine.Machine) {
	t.Helper()
	select {
	case <-m.Done():
	case <-time.After(time.Minute):
		t.Fatal("the machine does not end")
	}
}

func TestAVMRunsInItsHelperAndAnswers(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	spec.DiskSizeGiB, spec.ExtraDisks = 1, []api.ExtraDisk{{SizeGiB: 2}}
	m := boot(t, d, spec, dir)
	if err := m.Ping(within(t)); err != nil {
		t.Fatal(err)
	}
	got, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"/bin/sh", "-c", "echo out; exit 7"}})
	if err != nil || got.ExitCode != 7 || got.Stdout != "out\n" {
		t.Errorf("got %+v and %v", got, err)
	}
	if m.PID() <= 1 || m.PID() == os.Getpid() {
		t.Errorf("got pid %d, want the helper's", m.PID())
	}
	for name, size := range map[string]int64{diskFile: 1 << 30, extraDisk(0): 2 << 30} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Size() != size {
			t.Errorf("%s: got %v and %v, want %d bytes", name, info, err, size)
		}
	}
	head := make([]byte, 4)
	if f, err := os.Open(filepath.Join(dir, diskFile)); err != nil {
		t.Error(err)
	} else if _, err := f.Read(head); err != nil || string(head) != "boot" || f.Close() != nil {
		t.Errorf("the disk is no clone of the image's: it begins with %q, %v", head, err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		text, err := m.Console(100)
		if err != nil {
			t.Fatal(err)
		}
		if string(text) == "the guest says hello\n" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the console holds %q", text)
		}
		if !pause(t.Context(), time.Millisecond) {
			t.Fatal(t.Context().Err())
		}
	}
	if err := m.Stop(within(t), false); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if m.Err() != nil || m.PID() != 0 {
		t.Errorf("got %v and pid %d, want a clean end", m.Err(), m.PID())
	}
	if text, err := d.LastConsole(spec, dir, 5); err != nil || string(text) != "ello\n" {
		t.Errorf("got the last words %q and %v", text, err)
	}
	if err := d.Remove(spec, dir); err != nil {
		t.Error(err)
	}
}

func TestAVMOutlivesTheDaemonAndIsTakenOver(t *testing.T) {
	first, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	m := boot(t, first, spec, dir)
	if err := m.Pause(within(t)); err != nil {
		t.Fatal(err)
	}
	pid := m.PID()
	m.Release() // the daemon is gone: nothing of it holds the helper
	if err := m.Pause(within(t)); !errors.Is(err, errReleased) {
		t.Errorf("a machine that was let go of answers %v", err)
	}
	again, err := newDriver(t).Adopt(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if again.PID() != pid {
		t.Errorf("got helper %d, want %d as before", again.PID(), pid)
	}
	if err := again.Ping(within(t)); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("it was paused, and answers %v", err)
	}
	if err := again.Resume(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := again.Ping(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := again.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, again)
	if _, err := newDriver(t).Adopt(within(t), spec, dir); !errors.Is(err, machine.ErrGone) {
		t.Errorf("got %v for a machine that has ended, want %v", err, machine.ErrGone)
	}
}

func TestAVMSurvivesAKilledDaemon(t *testing.T) {
	dir, image := machineDir(t), testImage(t, "")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(self, daemonArg, dir, image)
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	if killed := errors.Join(daemon.Process.Kill(), reaped(daemon)); err != nil || killed != nil {
		t.Fatalf("the daemon started no VM: %v, %v", err, killed)
	}
	m, err := newDriver(t).Adopt(within(t), testSpec(image), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if m.PID() != pid {
		t.Errorf("got helper %d, want %d, which the killed daemon started", m.PID(), pid)
	}
	if err := m.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if err := m.Stop(within(t), false); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
}

func TestNoSignalReachesMoreThanOneProcess(t *testing.T) {
	for _, pid := range []int{-1, 0, 1, -os.Getpid()} {
		if err := signal(pid, 0); err == nil {
			t.Errorf("process id %d is taken", pid)
		}
	}
}

func TestAKilledHelperFailsItsVM(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "")), dir)
	if err := signal(m.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("got %v", err)
	}
	// The same directory starts again, with the disk it had.
	if err := m.Pause(within(t)); err == nil {
		t.Error("a machine that has ended can be paused")
	}
	boot(t, d, testSpec(testImage(t, "")), dir)
}

func TestAGuestThatShutsDownWhileNobodyWatchesIsGone(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	m := boot(t, d, spec, dir)
	m.Release()
	if err := order(within(t), dir, request{Op: opAsk}); err != nil {
		t.Fatal(err)
	}
	for {
		if lives, err := helperLives(dir); err != nil || !lives {
			break
		}
		if !pause(within(t), time.Millisecond) {
			t.Fatal("the helper stays after its guest")
		}
	}
	if end, ok := readEnd(dir); !ok || end.Error != nil {
		t.Errorf("got %+v, want word of a clean end", end)
	}
	if _, err := d.Adopt(within(t), spec, dir); !errors.Is(err, machine.ErrGone) {
		t.Errorf("got %v", err)
	}
}

func TestFailedStartsSayWhyAndLeaveNoHelper(t *testing.T) {
	for words, want := range map[string]string{
		"fail=limit": api.WhyMacOSLimit,
		"fail=die":   "ended before its guest ran",
	} {
		d, dir := newDriver(t), machineDir(t)
		_, err := d.Start(within(t), testSpec(testImage(t, words)), dir)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q in it", words, err, want)
		}
		if lives, err := helperLives(dir); lives || err != nil {
			t.Errorf("%s: a helper is left: %v", words, err)
		}
		var refused *api.Error
		if limit := words == "fail=limit"; errors.As(err, &refused) != limit || limit && (refused.Code != api.CodeHostFull || refused.Reasons[api.WhyMacOSLimit] != 1) {
			t.Errorf("%s: got %+v, want the host's limit as a reason", words, refused)
		}
	}
}

func TestAStartThatIsGivenUpLeavesNoHelper(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for helperPID(dir) == 0 && pause(ctx, time.Millisecond) {
		}
		cancel()
	}()
	if _, err := d.Start(ctx, testSpec(testImage(t, "fail=hang")), dir); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if lives, err := helperLives(dir); lives || err != nil {
		t.Errorf("a helper is left: %v", err)
	}
}

func TestAGuestThatDoesNotHearIsEnded(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "deaf no-agent")), dir)
	if err := m.Ping(within(t)); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := m.Stop(ctx, false); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
}

func TestAHungHelperIsEndedWithItsGuest(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	m := boot(t, d, spec, dir)
	if err := signal(m.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m.Release()
	if err := d.Remove(spec, dir); err != nil {
		t.Fatal(err)
	}
	if lives, err := helperLives(dir); lives || err != nil {
		t.Errorf("a helper is left: %v", err)
	}
}

func TestASavedVMGoesOnInTheSamePlace(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	m := boot(t, d, spec, dir)
	identifier, err := os.ReadFile(filepath.Join(dir, identifierFile))
	if err != nil {
		t.Fatal(err)
	}
	saved := t.TempDir()
	if err := m.(machine.Saver).Save(within(t), saved, false); !errors.Is(err, &api.Error{Code: api.CodeInvalid}) {
		t.Errorf("a copy is not refused: %v", err)
	}
	if err := m.Ping(within(t)); err != nil {
		t.Errorf("the refused copy has halted the guest: %v", err)
	}
	if err := m.(machine.Saver).Save(within(t), saved, true); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	again, err := d.Restore(within(t), spec, dir, saved)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Release()
	if err := again.Ping(within(t)); err != nil {
		t.Errorf("it does not go on: %v", err)
	}
	if now, err := os.ReadFile(filepath.Join(dir, identifierFile)); err != nil || !bytes.Equal(now, identifier) {
		t.Errorf("its machine identifier has changed: %v", err)
	}
	if err := again.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Restore(within(t), spec, dir, t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v where nothing is saved", err)
	}
	if err := d.CopySaved(saved, t.TempDir()); !errors.Is(err, &api.Error{Code: api.CodeInvalid}) {
		t.Errorf("got %v for a copy", err)
	}
}

func TestBalloonTellsATargetAndNeverAnActualSize(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "")), dir)
	if err := m.(machine.Ballooner).SetBalloon(within(t), 128); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "memory-told")); err != nil || string(raw) != "384" {
		t.Errorf("the framework was told to leave %q (%v), want 384 of 512", raw, err)
	}
	if actual, err := m.(machine.Ballooner).Balloon(within(t)); err != nil || actual >= 0 {
		t.Errorf("got an actual size of %d (%v); it cannot be told", actual, err)
	}
	if f := d.Features(); f.BalloonReclaims || !f.Balloon || !f.Survives {
		t.Errorf("got %+v", f)
	}
}

func TestAFloodedConsoleIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), consoleFile)
	line := strings.Repeat("x", 99) + "\n"
	if err := keepConsole(strings.NewReader(strings.Repeat(line, 20_000)+"the end\n"), path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() > 2*consoleKeep {
		t.Errorf("got %v and %v", info, err)
	}
	if got := process.Tail(path, 8); got != "the end\n" {
		t.Errorf("got %q", got)
	}
}

func TestWhatIsNoRequestHarmsNoHelper(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "")), dir)
	for _, text := range []string{"", "\n", "{", "null\n", strings.Repeat("x", 2*longestLine)} {
		conn, err := dial(within(t), dir)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, text)
		_ = conn.Close()
	}
	if err := order(within(t), dir, request{Op: "dance"}); err == nil || !strings.Contains(err.Error(), "dance") {
		t.Errorf("got %v", err)
	}
	if err := m.Ping(within(t)); err != nil {
		t.Error(err)
	}
}
