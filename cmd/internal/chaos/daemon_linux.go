package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const restartAfter = time.Second // as a service manager would

// daemon keeps a process running, and notes how it ends.
type daemon struct {
	name string
	log  string                      // file of what it writes
	argv func() (args, env []string) // called with the lock held: it asks no daemon
	rec  *record

	mu       sync.Mutex
	wanted   bool
	leaving  bool // it may end by itself: it was removed
	cmd      *exec.Cmd
	starts   int
	finished chan struct{} // closed when the process is not kept any more; nil: it is not
	left     chan struct{} // closed when a removed one has ended
}

// start runs the process and keeps it running.
func (d *daemon) start() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = true
	if d.finished == nil {
		d.finished = make(chan struct{})
		go d.keep(d.finished)
	}
}

func (d *daemon) keep(finished chan struct{}) {
	defer close(finished)
	for {
		d.mu.Lock()
		if !d.wanted {
			d.finished = nil
			d.mu.Unlock()
			return
		}
		cmd, err := d.spawn()
		d.mu.Unlock()
		if err == nil {
			err = cmd.Wait()
		}
		d.mu.Lock()
		d.cmd = nil
		surprise := d.wanted
		d.mu.Unlock()
		if surprise && d.ended(err) {
			continue
		}
	}
}

// spawn is called with the lock held.
func (d *daemon) spawn() (*exec.Cmd, error) {
	out, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a log: %w", err)
	}
	defer out.Close()
	args, env := d.argv()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for the campaign
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", d.name, err)
	}
	d.cmd = cmd
	d.starts++
	return cmd, nil
}

// ended judges a process that ended by itself and says whether it is started again.
func (d *daemon) ended(err error) bool {
	code := -1
	var exit *exec.ExitError
	if err == nil {
		code = 0
	} else if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	d.rec.with(func() { d.rec.exits[code]++ })
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.leaving:
		d.wanted = false
		close(d.left)
		return false
	case code == 78 || code == 79:
		d.wanted = false
		d.rec.broken(checkProcess, "%s ended with %d, which asks for an operator: %s", d.name, code, d.lastWords())
		return false
	case code != 1 && code != 70: // those a service manager cures
		d.rec.broken(checkProcess, "%s ended with %d (%v): %s", d.name, code, err, d.lastWords())
	default:
		d.rec.log("%s ended with %d and is started again: %s", d.name, code, d.lastWords())
	}
	time.Sleep(restartAfter)
	return true
}

// lastWords are the end of its log, or what a panic says.
func (d *daemon) lastWords() string {
	raw, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	if at := bytes.LastIndex(raw, []byte("panic: ")); at >= 0 {
		return string(raw[at:min(len(raw), at+2000)])
	}
	return string(bytes.TrimSpace(raw[max(0, len(raw)-400):]))
}

// signal sends a signal to the process, if it runs.
func (d *daemon) signal(sig syscall.Signal) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd != nil && d.cmd.Process.Signal(sig) == nil
}

// end stops keeping the process and ends it: by the signal, and if that takes longer than patience for good.
func (d *daemon) end(sig syscall.Signal, patience time.Duration) {
	d.mu.Lock()
	d.wanted = false
	finished := d.finished
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(sig) // one that has just ended needs none
		_ = d.cmd.Process.Signal(syscall.SIGCONT)
	}
	d.mu.Unlock()
	if finished == nil {
		return
	}
	select {
	case <-finished:
		return
	case <-time.After(patience):
	}
	if sig != syscall.SIGKILL {
		d.rec.broken(checkProcess, "%s did not end within %s of being asked to: %s", d.name, patience, d.lastWords())
	}
	d.signal(syscall.SIGKILL)
	<-finished
}

// leaves says that the process is to end by itself; the channel is closed when it has.
func (d *daemon) leaves() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving, d.left = true, make(chan struct{})
	return d.left
}

// stays takes leaves back, for a new process of the same place.
func (d *daemon) stays() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = false
}

// run names the present start.
func (d *daemon) run() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Sprintf("%s#%d", d.name, d.starts)
}

func (d *daemon) pid() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cmd == nil {
		return 0
	}
	return d.cmd.Process.Pid
}
