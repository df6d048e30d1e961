//go:build linux

package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one process, held by a pidfd: a signal through it can never reach another one with the same id.
type Process struct {
	PID   int
	Ended chan struct{} // closed when the process has ended

	file *os.File
	gone chan struct{} // closed when the watching goroutine has
	once sync.Once
}

// Open begins to watch the process. The caller then checks that it is the one it means.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watching process %d (this needs Linux 5.10): %w", pid, err)
	}
	p := &Process{PID: pid, Ended: make(chan struct{}), file: os.NewFile(uintptr(fd), "pidfd"), gone: make(chan struct{})}
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
			close(p.Ended)
		}
	}()
	return p, nil
}

// Close stops watching. The process goes on.
func (p *Process) Close() {
	p.once.Do(func() {
		_ = p.file.Close()
		<-p.gone
	})
}

// Kill ends the process at once. It is no error that it has ended.
func (p *Process) Kill() error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("killing process %d: %w", p.PID, sent)
	}
	return nil
}

// Collect reaps the ended process if it is our child and says how it ended; empty where only another could know.
func (p *Process) Collect() string {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(p.PID, &status, syscall.WNOHANG, nil)
	switch {
	case err != nil || pid != p.PID:
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

// Mark is how the process of one machine is told from all others.
type Mark struct {
	Note string             // file that says which process it is
	Log  string             // file that is there from the start on
	Ours func(pid int) bool // true for the machine's own process
}

// Find is the process that the mark means; nil when there is none.
func Find(m Mark) (*Process, error) {
	want, err := readIdentity(m.Note)
	if err == nil {
		return openIfOurs(want.pid, m.Ours, &want)
	}
	// Only a daemon that died between the start and the note leaves a log and no note.
	if _, err := os.Stat(m.Log); err != nil {
		return nil, nil
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("looking for the machine's process: %w", err)
	}
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || !m.Ours(pid) {
			continue
		}
		if p, err := openIfOurs(pid, m.Ours, nil); p != nil || err != nil {
			return p, err
		}
	}
	return nil, nil
}

// openIfOurs opens first and checks then, so that what was checked is what is held.
func openIfOurs(pid int, ours func(int) bool, want *identity) (*Process, error) {
	p, err := Open(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: a thread of some other process
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if want != nil {
		got, err := identify(pid)
		if err != nil || got != *want {
			p.Close()
			return nil, nil
		}
	}
	if !ours(pid) {
		p.Close()
		return nil, nil
	}
	return p, nil
}

// HasArgument says whether the process was started with the flag and the value after it. One that has ended was not.
func HasArgument(pid int, flag, value string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	words := strings.Split(string(line), "\x00")
	at := slices.Index(words, flag)
	return at >= 0 && at+1 < len(words) && words[at+1] == value
}

// WorksIn says whether the directory is the process's working directory.
func WorksIn(pid int, dir string) bool {
	here, err := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil {
		return false
	}
	there, err := os.Stat(dir)
	return err == nil && os.SameFile(here, there)
}

// Launch starts the command in a session of its own, by start where that is not nil, and notes which process it is.
// Nobody waits for it through cmd: Collect reaps it, whichever daemon started it.
func Launch(cmd *exec.Cmd, start func() error, note string) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if start == nil {
		start = cmd.Start
	}
	if err := start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	p, err := Open(pid)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	_ = cmd.Process.Release()
	who, err := identify(pid)
	if err == nil {
		err = who.write(note)
	}
	if err != nil {
		_ = p.End()
		p.Close()
		return nil, err
	}
	return p, nil
}

// killWithin is how long the kernel may take to end a process.
const killWithin = 30 * time.Second

// End kills the process and waits until it has ended.
func (p *Process) End() error {
	if err := p.Kill(); err != nil {
		return err
	}
	if !p.EndsWithin(killWithin) {
		return fmt.Errorf("process %d does not end", p.PID)
	}
	_ = p.Collect()
	return nil
}

// EndsWithin waits for the process to end.
func (p *Process) EndsWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.Ended:
		return true
	case <-timer.C:
		return false
	}
}
