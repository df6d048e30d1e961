//go:build linux

package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is one QEMU, held by a pidfd: a signal through it can never reach another process with the same id.
type process struct {
	pid   int
	file  *os.File
	ended chan struct{} // closed when the process has ended
	gone  chan struct{} // closed when the watching goroutine has
	once  sync.Once
}

// openProcess begins to watch the process. The caller then checks that it is the one it means.
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching process %d (this needs Linux 5.10): %w", pid, err)
	}
	p := &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{}), gone: make(chan struct{})}
	raw, err := p.file.SyscallConn()
	if err != nil {
		_ = p.file.Close()
		return nil, fmt.Errorf("watching process %d: %w", pid, err)
	}
	go func() {
		defer close(p.gone)
		// A pidfd is readable once its process has ended; the runtime's poller waits for that, not a thread.
		err := raw.Read(func(fd uintptr) bool {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return err == nil && n > 0
		})
		if err == nil {
			close(p.ended)
		}
	}()
	return p, nil
}

// close stops watching. The process goes on.
func (p *process) close() {
	p.once.Do(func() {
		_ = p.file.Close()
		<-p.gone
	})
}

// kill ends the process at once. It is no error that it has ended.
func (p *process) kill() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", p.pid, sent)
	}
	return nil
}

// collect reaps the ended process if it is our child and says how it ended; empty where only another could know.
func (p *process) collect() string {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.pid, &status, syscall.WNOHANG, nil)
	switch {
	case err != nil || pid != p.pid:
		return ""
	case status.Signaled():
		return "was killed by signal " + status.Signal().String()
	}
	return fmt.Sprintf("ended with code %d", status.ExitStatus())
}

// identity names a process beyond its reusable id.
type identity struct {
	pid   int
	start uint64 // clock ticks from boot to its start
	boot  string // of the host
}

func identify(pid int) (identity, error) {
	start, err := startTime(pid)
	if err != nil {
		return identity{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return identity{}, fmt.Errorf("reading the host's boot id: %w", err)
	}
	return identity{pid, start, strings.TrimSpace(string(boot))}, nil
}

func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading when process %d started: %w", pid, err)
	}
	// The second field is the program's name in parentheses and may hold anything; the start is the 22nd.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("reading when process %d started: its stat has too few fields", pid)
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

func (i identity) write(path string) error {
	text := fmt.Sprintf("%d %d %s\n", i.pid, i.start, i.boot)
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return fmt.Errorf("keeping the process id: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keeping the process id: %w", err)
	}
	return nil
}

func readIdentity(path string) (identity, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return identity{}, err
	}
	var i identity
	if _, err := fmt.Sscan(string(raw), &i.pid, &i.start, &i.boot); err != nil || i.pid <= 1 {
		return identity{}, fmt.Errorf("%s is damaged", path)
	}
	return i, nil
}

// findProcess is the QEMU that runs the machine with this id in this directory; nil when there is none.
func findProcess(dir, id string) (*process, error) {
	want, err := readIdentity(filepath.Join(dir, pidFile))
	if err == nil {
		return openIfOurs(want.pid, dir, id, &want)
	}
	// Only a daemon that died between starting QEMU and noting its id leaves a log and no id.
	if _, err := os.Stat(filepath.Join(dir, logFile)); err != nil {
		return nil, nil
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("looking for the machine's process: %w", err)
	}
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !runsMachine(pid, dir, id) {
			continue
		}
		if p, err := openIfOurs(pid, dir, id, nil); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// openIfOurs opens first and checks then, so that what was checked is what is held.
func openIfOurs(pid int, dir, id string, want *identity) (*process, error) {
	p, err := openProcess(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: a thread of some other process
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if want != nil {
		got, err := identify(pid)
		if err != nil || got != *want {
			p.close()
			return nil, nil
		}
	}
	if !runsMachine(pid, dir, id) {
		p.close()
		return nil, nil
	}
	return p, nil
}

// runsMachine says whether the process was started for this machine: it has the id on its command line and works
// in the machine's directory. A process that has ended has neither.
func runsMachine(pid int, dir, id string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	words := strings.Split(string(line), "\x00")
	if at := slices.Index(words, "-uuid"); at < 0 || at+1 >= len(words) || words[at+1] != id {
		return false
	}
	here, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	there, err := os.Stat(dir)
	return err == nil && os.SameFile(here, there)
}
