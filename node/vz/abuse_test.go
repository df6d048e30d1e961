package vz

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// shortly is between two looks, and for what is to be given up.
const shortly = 5 * time.Millisecond

// eventually polls until ok says yes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx := within(t)
	for !ok() {
		if !pause(ctx, shortly) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// mustLive fails the test unless a helper lives in the directory or not, as wanted.
func mustLive(t *testing.T, dir string, want bool) {
	t.Helper()
	if lives, err := helperLives(dir); lives != want || err != nil {
		t.Errorf("a helper lives: %v (%v), want %v", lives, err, want)
	}
}

// hasHelper says whether the process has started a helper, where the kernel tells. It starts others, too: the Go runtime
// tries out what the kernel can do.
func hasHelper(pid int) bool {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range lists {
		raw, _ := os.ReadFile(path)
		for _, child := range strings.Fields(string(raw)) {
			if line, _ := os.ReadFile("/proc/" + child + "/cmdline"); strings.Contains(string(line), helperArg) {
				return true
			}
		}
	}
	return false
}

func TestADaemonKilledWhileItsHelperStartsLeavesAVMThatIsTakenOver(t *testing.T) {
	dir, image := machineDir(t), testImage(t, "slow")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command(self, daemonArg, dir, image)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the helper to be on its way", func() bool { return hasHelper(daemon.Process.Pid) || helperPID(dir) != 0 })
	if err := errors.Join(daemon.Process.Kill(), reaped(daemon)); err != nil {
		t.Fatal(err)
	}
	// Whether or not the helper has run one instruction: it lives, and the next daemon waits for it.
	adopted := make(chan machine.Machine, 1)
	next, ctx := newDriver(t), within(t)
	go func() {
		m, err := next.Adopt(ctx, testSpec(image), dir)
		if err != nil {
			t.Errorf("got %v", err)
		}
		adopted <- m
	}()
	eventually(t, "the helper to be there", func() bool { return helperPID(dir) != 0 })
	mustLive(t, dir, true)
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := <-adopted
	if m == nil {
		return
	}
	defer m.Release()
	if err := m.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Error(err)
	}
}

// A daemon whose start of a helper races another's start has lost before it starts a process.
func TestOneOfManyStartsOfAVMGetsAHelper(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	img, err := openImage(spec.Image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(prepare(spec, img, dir), writeFile(at(dir, planFile), planOf(spec, img))); err != nil {
		t.Fatal(err)
	}
	const starts = 8
	var all sync.WaitGroup
	results := make(chan error, starts)
	for range starts {
		all.Go(func() {
			_, err := d.launch(within(t), dir)
			results <- err
		})
	}
	all.Wait()
	started := 0
	for range starts {
		if err := <-results; err == nil {
			started++
		} else if !errors.Is(err, errLocked) {
			t.Errorf("got %v", err)
		}
	}
	if started != 1 {
		t.Errorf("%d helpers hold one VM", started)
	}
}

func TestWhatAnEarlierHelperLeftHarmsNobody(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	spec := testSpec(testImage(t, ""))
	// A socket on which nobody listens, and a process id that is another process's by now.
	innocent := exec.Command("sleep", "600")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(innocent.Process.Kill(), reaped(innocent)); err != nil {
			t.Error(err)
		}
	}()
	t.Chdir(dir)
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketFile})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	if err := errors.Join(stale.Close(), os.WriteFile(lockFile, fmt.Appendln(nil, innocent.Process.Pid), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Adopt(within(t), spec, dir); !errors.Is(err, machine.ErrGone) {
		t.Errorf("got %v, want the machine to be gone", err)
	}
	lock, err := holdForHelper(dir)
	if err != nil {
		t.Fatal(err)
	}
	if pid := helperPID(dir); pid != 0 {
		t.Errorf("while a helper is on its way its lock names process %d", pid)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	m := boot(t, d, spec, dir)
	if err := m.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	if err := innocent.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the other process has ended: %v", err)
	}
}

func TestAGuestThatNeverAcceptsAStreamHoldsNobody(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "mute")), dir)
	ctx, cancel := context.WithTimeout(t.Context(), shortly)
	defer cancel()
	if err := m.Ping(ctx); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("got %v", err)
	}
	if err := m.Pause(within(t)); err != nil { // others are served meanwhile
		t.Error(err)
	}
	m.Release() // from here on nobody kills a helper that stays
	if err := order(within(t), dir, request{Op: opStop}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the helper to leave by itself", func() bool { lives, err := helperLives(dir); return err == nil && !lives })
	if end, ok := readEnd(dir); !ok || end.Error != nil {
		t.Errorf("got %+v, want word of a clean end", end)
	}
}

func TestGarbageOnTheSocketHarmsNoHelper(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "")), dir)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		conn, err := dial(within(t), dir)
		if err != nil {
			t.Fatal(err)
		}
		raw := make([]byte, rng.IntN(300))
		for i := range raw {
			raw[i] = byte(rng.Uint32())
		}
		if i%2 == 0 {
			raw = append([]byte(`{"op":`), raw...)
		}
		if _, err := conn.Write(append(raw, '\n')); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 {
			defer conn.Close() // half of what they wanted to say, and they stay
			continue
		}
		_ = conn.Close()
	}
	for _, text := range []string{`{"op":"pause","mib":-1}`, `{"op":"memory","mib":"much"}`, `["pause"]`, `"pause"`, `{"op":"connect","port":4294967296}`} {
		conn, err := dial(within(t), dir)
		if err != nil {
			t.Fatal(err)
		}
		_, werr := io.WriteString(conn, text+"\n")
		got, err := io.ReadAll(conn)
		if werr != nil || err != nil || len(got) > 0 {
			t.Errorf("%s is answered with %q, %v, %v; want the end", text, got, werr, err)
		}
		_ = conn.Close()
	}
	if err := m.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if m.Err() != nil {
		t.Error(m.Err())
	}
}

// full makes the directory a small file system and gives what fills it. Only root can.
func full(t *testing.T, dir string) (fill func()) {
	t.Helper()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("this needs root on Linux, to make a file system that can be full")
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=4m", "fluxvm-test", dir).CombinedOutput(); err != nil {
		t.Skipf("no file system can be mounted: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := endHelper(dir); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return func() {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, "ballast"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if err := f.Close(); err != nil || !errors.Is(err, syscall.ENOSPC) && !diskIsFull(dir) {
			t.Fatal(err)
		}
	}
}

func diskIsFull(dir string) bool {
	var s syscall.Statfs_t
	return syscall.Statfs(dir, &s) == nil && s.Bavail == 0
}

func TestAFullDiskIsSaidAndEndsNoGuest(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	fill := full(t, dir)
	spec := testSpec(testImage(t, "flood"))
	m := boot(t, d, spec, dir)
	fill()
	if err := m.Pause(within(t)); err != nil { // it writes more to its console than any pipe holds
		t.Fatal(err)
	}
	if err := m.(machine.Saver).Save(within(t), dir, true); !errors.Is(err, &api.Error{Code: api.CodeStorageFull}) {
		t.Errorf("got %v for a state that has no room", err)
	}
	if err := m.Resume(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Ping(within(t)); err != nil {
		t.Error(err)
	}
	if err := m.Stop(within(t), false); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if m.Err() != nil {
		t.Errorf("it was stopped, and ended with %v", m.Err())
	}
	if err := d.Remove(spec, dir); err != nil { // what the next start would take away first
		t.Fatal(err)
	}
	fill()
	if _, err := d.Start(within(t), spec, dir); !errors.Is(err, &api.Error{Code: api.CodeStorageFull}) {
		t.Errorf("got %v for a start without room", err)
	}
	mustLive(t, dir, false)
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	if err := boot(t, d, spec, dir).Ping(within(t)); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestAConsoleThatCannotBeKeptHoldsNoGuest(t *testing.T) {
	in, out := io.Pipe()
	kept := make(chan error, 1)
	go func() { kept <- keepConsole(in, t.TempDir()) }() // a directory takes no text
	for range 100 {
		if _, err := out.Write(make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-kept; err == nil {
		t.Error("nothing tells that the console is lost")
	}
}

// What daemon and helper say to each other, word for word. A helper lives as long as its VM, so daemons of later releases
// speak to it: these words can be added to, and never changed.
var (
	firstRequests = map[request]string{
		{Op: opWatch}:                           `{"op":"watch"}`,
		{Op: opPause}:                           `{"op":"pause"}`,
		{Op: opResume}:                          `{"op":"resume"}`,
		{Op: opAsk}:                             `{"op":"ask"}`,
		{Op: opStop}:                            `{"op":"stop"}`,
		{Op: opSave, Path: "/s/state.vzvmsave"}: `{"op":"save","path":"/s/state.vzvmsave"}`,
		{Op: opMemory, MiB: 384}:                `{"op":"memory","mib":384}`,
		{Op: opConnect, Port: 7799}:             `{"op":"connect","port":7799}`,
	}
	firstAnswers = map[string]answer{
		`{}`:                      {},
		`{"paused":true}`:         {Paused: true},
		`{"ended":true}`:          {Ended: true},
		`{"error":{"text":"no"}}`: {Error: &FrameworkError{Text: "no"}},
		`{"error":{"domain":"VZErrorDomain","code":6,"text":"The limit."},"ended":true}`: {Ended: true, Error: &FrameworkError{Domain: errorDomain, Code: codeLimitExceeded, Text: "The limit."}},
	}
)

func TestTheWordsBetweenDaemonAndHelperStay(t *testing.T) {
	for r, want := range firstRequests {
		if got, err := json.Marshal(r); err != nil || string(got) != want {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	}
	for text, want := range firstAnswers {
		var got answer
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(got)
		if err != nil || string(again) != text || (got.Error == nil) != (want.Error == nil) || got.Error != nil && *got.Error != *want.Error || got.Paused != want.Paused || got.Ended != want.Ended {
			t.Errorf("%s is read as %+v and written as %s (%v)", text, got, again, err)
		}
	}
	names := []string{lockFile, socketFile, endFile, identifierFile, planFile, diskFile, auxiliaryFile, variablesFile}
	if want := []string{"vz.lock", "vz.sock", "vz-end.json", "machine-id", "machine.json", "disk.img", "aux.img", "efi-vars"}; !slices.Equal(names, want) {
		t.Errorf("a VM's files are named %q; VMs that are there have %q", names, want)
	}
}

// olderHelper stands for a helper of the first release, by the words above and nothing of today's code: it can pause and be
// watched, and nothing else.
func olderHelper(t *testing.T, dir string) (ops chan string) {
	t.Helper()
	lock, err := hold(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "vz.sock"})
	if err != nil {
		t.Fatal(err)
	}
	ops = make(chan string, 100)
	var serving sync.WaitGroup
	ended := make(chan struct{})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				line, _ := bufio.NewReader(conn).ReadString('\n')
				line = strings.TrimSuffix(line, "\n")
				ops <- line
				switch line {
				case `{"op":"watch"}`:
					_, _ = io.WriteString(conn, `{"paused":true,"color":"blue"}`+"\n")
					<-ended
					_, _ = io.WriteString(conn, `{"ended":true,"color":"red"}`+"\n")
				case `{"op":"resume"}`:
					_, _ = io.WriteString(conn, "{}\n")
				case `{"op":"stop"}`:
					_, _ = io.WriteString(conn, "{}\n")
					close(ended)
					_ = lock.Close()
				default:
					_, _ = io.WriteString(conn, `{"error":{"text":"this helper knows no such thing"}}`+"\n")
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return ops
}

func TestADaemonTakesTheVMsOfAnOlderHelperOver(t *testing.T) {
	d, dir := newDriver(t), t.TempDir()
	ops := olderHelper(t, dir)
	m, err := d.Adopt(within(t), testSpec(testImage(t, "")), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	if err := m.Ping(within(t)); err == nil || !strings.Contains(err.Error(), "paused") {
		t.Errorf("a paused VM answers %v", err)
	}
	if err := m.Resume(within(t)); err != nil {
		t.Error(err)
	}
	if err := m.(machine.Ballooner).SetBalloon(within(t), 128); err == nil || !strings.Contains(err.Error(), "knows no") {
		t.Errorf("what it does not know is answered with %v", err)
	}
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	awaitDone(t, m)
	if m.Err() != nil {
		t.Error(m.Err())
	}
	close(ops)
	var got []string
	for op := range ops {
		got = append(got, op)
	}
	if want := []string{`{"op":"watch"}`, `{"op":"resume"}`, `{"op":"memory","mib":384}`, `{"op":"stop"}`}; !slices.Equal(got, want) {
		t.Errorf("the helper heard %q, want %q", got, want)
	}
}

func TestAHelperServesADaemonThatKnowsMoreThanItDoes(t *testing.T) {
	d, dir := newDriver(t), machineDir(t)
	m := boot(t, d, testSpec(testImage(t, "")), dir)
	for _, c := range []struct{ says, want string }{
		{`{"op":"watch","since":"2.0"}`, `{}`},
		{`{"op":"pause","why":"lunch"}`, `{}`},
		{`{"op":"watch"}`, `{"paused":true}`},
		{`{"op":"teleport","to":"mars"}`, `{"error":{"text":"this helper knows no \"teleport\": it is of another version than the daemon; restart the VM"}}`},
		{`{"op":"resume"}`, `{}`},
	} {
		conn, err := dial(within(t), dir)
		if err != nil {
			t.Fatal(err)
		}
		_, werr := io.WriteString(conn, c.says+"\n")
		got, err := bufio.NewReader(conn).ReadString('\n')
		if werr != nil || err != nil || got != c.want+"\n" {
			t.Errorf("%s: got %q, %v, %v; want %s", c.says, got, werr, err, c.want)
		}
		_ = conn.Close()
	}
	// The plan of a later daemon, whose program was replaced before it started the helper.
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(at(dir, planFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := clearOld(dir); err != nil {
		t.Fatal(err)
	}
	later := strings.Replace(string(raw), "{", `{"wings":2,`, 1)
	if err := os.WriteFile(at(dir, planFile), []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.launch(within(t), dir); err != nil {
		t.Error(err)
	}
}
