//go:build linux

package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const testID = "0c1d2e3f-0000-4000-8000-000000000001"

// standIn starts a process that looks like the machine's QEMU: its id on the command line, in its directory.
func standIn(t *testing.T, dir, id string) int {
	t.Helper()
	cmd := exec.Command("sh", "-c", "while :; do sleep 1000; done", "-uuid", id)
	cmd.Dir = dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// note writes the machine's process id as a daemon would, changed where a test wants it wrong.
func note(t *testing.T, dir string, pid int, change func(*identity)) {
	t.Helper()
	who, err := identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&who)
	}
	if err := who.write(filepath.Join(dir, pidFile)); err != nil {
		t.Fatal(err)
	}
}

const pidFile, logFile = "qemu.pid", "qemu.log"

func found(t *testing.T, dir, id string) int {
	t.Helper()
	p, err := Find(Mark{Note: filepath.Join(dir, pidFile), Log: filepath.Join(dir, logFile), Ours: func(pid int) bool {
		return HasArgument(pid, "-uuid", id) && WorksIn(pid, dir)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return 0
	}
	p.Close()
	return p.PID
}

func TestProcessIsFoundOnlyWhenAllOfItsIdentityFits(t *testing.T) {
	dir := t.TempDir()
	pid := standIn(t, dir, testID)
	note(t, dir, pid, nil)
	if got := found(t, dir, testID); got != pid {
		t.Errorf("got process %d, want %d", got, pid)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if got := found(t, link, testID); got != pid {
		t.Errorf("through a link: got process %d, want %d", got, pid)
	}
	tests := map[string]struct {
		id     string
		change func(*identity)
	}{
		"another machine":    {"0c1d2e3f-0000-4000-8000-000000000002", nil},
		"another start":      {testID, func(i *identity) { i.start++ }},
		"another boot":       {testID, func(i *identity) { i.boot = "earlier" }},
		"our own process":    {testID, func(i *identity) { i.pid = os.Getpid() }},
		"no process at all":  {testID, func(i *identity) { i.pid = 1 << 22 }},
		"the host's process": {testID, func(i *identity) { i.pid = 2 }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			note(t, dir, pid, tt.change)
			if got := found(t, dir, tt.id); got != 0 {
				t.Errorf("process %d was taken for the machine's", got)
			}
		})
	}
	other := t.TempDir()
	note(t, other, pid, nil)
	if got := found(t, other, testID); got != 0 {
		t.Errorf("process %d was taken for that of another directory", got)
	}
}

func TestProcessThatWasNeverNotedIsFoundByItsTraces(t *testing.T) {
	dir := t.TempDir()
	pid := standIn(t, dir, testID)
	if got := found(t, dir, testID); got != 0 {
		t.Errorf("got process %d without a start, want none", got)
	}
	for _, damaged := range []string{"", "12", "0 0 x"} {
		if err := os.WriteFile(filepath.Join(dir, pidFile), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, logFile), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := found(t, dir, testID); got != pid {
			t.Errorf("with a note of %q: got process %d, want %d", damaged, got, pid)
		}
	}
}

func TestEndOfAProcessIsSeenAndTold(t *testing.T) {
	for want, script := range map[string]string{"ended with code 3": "read x; exit 3", "was killed by signal killed": "read x; kill -KILL $$"} {
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("sh", "-c", script)
		cmd.Stdin = in
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = in.Close()
		p, err := Open(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Process.Release()
		select {
		case <-p.Ended:
			t.Error("a living process is said to have ended")
		default:
		}
		_ = out.Close()
		if !p.EndsWithin(time.Minute) {
			t.Fatal("the process does not end")
		}
		if got := p.Collect(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if err := p.Kill(); err != nil {
			t.Errorf("killing what has ended: %v", err)
		}
		p.Close()
		p.Close()
	}
}
