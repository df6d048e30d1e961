//go:build linux

package procbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

const (
	// stopWithin is how long a box may take to shut down where the caller sets no end.
	stopWithin = time.Minute

	killWithin = 30 * time.Second
)

// What it is beyond a machine.Machine.
var _ interface {
	machine.Claimer
	machine.Renewer
} = (*box)(nil)

// errReleased is what a box that was let go of answers.
var errReleased = errors.New("the box was released; adopt it again")

// box is one that runs.
type box struct {
	process.Agent
	spec  machine.Spec
	dir   string
	log   hclog.Logger
	proc  *process.Process
	group *process.Group

	released chan struct{} // closed by Release
	done     chan struct{} // closed when process 1 has ended
	work     sync.WaitGroup
	once     sync.Once

	turning sync.Mutex // held while the box is halted or let go on

	mu       sync.Mutex
	paused   bool
	stopping bool
	err      error
}

func (d *Driver) attach(spec machine.Spec, dir string, proc *process.Process, group *process.Group) *box {
	b := &box{
		spec: spec, dir: dir, log: d.log.With("vm", spec.ID, "pid", proc.PID), proc: proc, group: group,
		released: make(chan struct{}), done: make(chan struct{}), paused: group.Frozen(),
	}
	b.Dial, b.Awake = process.Dialer(dir, agentSocket), b.awake
	b.work.Go(b.watch)
	return b
}

// watch waits for the box's end and records the reason.
func (b *box) watch() {
	select {
	case <-b.released:
		return
	case <-b.proc.Ended:
	}
	how := b.proc.Collect()
	b.Agent.Close()
	b.proc.Close()
	starved := b.group.OutOfMemory()
	if err := b.group.Remove(filepath.Join(b.dir, groupFile)); err != nil {
		b.log.Warn("the box's control group stays", "error", err)
	}
	last := process.LastLine(process.Tail(filepath.Join(b.dir, consoleFile), 4<<10))
	b.mu.Lock()
	switch {
	case b.stopping || last == guest.BoxEnded:
	case starved:
		b.err = fmt.Errorf("the box used up its %d MiB; give it more memory_mib", b.spec.MemoryMiB)
	case how == "":
		b.err = fmt.Errorf("the box ended; its console ends with %q", last)
	default:
		b.err = fmt.Errorf("the box %s; its console ends with %q", how, last)
	}
	b.mu.Unlock()
	close(b.done)
}

// Done is closed when the box has ended; never after Release.
func (b *box) Done() <-chan struct{} { return b.done }

// Err says why the box ended.
func (b *box) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// IP is empty: the box has a loopback only.
func (b *box) IP() string { return "" }

// PID is that of process 1, 0 once it has ended.
func (b *box) PID() int {
	select {
	case <-b.done:
		return 0
	default:
		return b.proc.PID
	}
}

// PIDs are those of all processes of the box: they are in its namespace of process ids.
func (b *box) PIDs() ([]int, error) {
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", b.proc.PID))
	if err != nil {
		return nil, fmt.Errorf("looking for the box's processes: %w", err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("looking for the box's processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if in, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid)); err == nil && in == space {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// awake refuses at once what a halted box could only time out on.
func (b *box) awake() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.paused {
		return fmt.Errorf("%w: the box is paused; resume it first", machine.ErrNoAgent)
	}
	select {
	case <-b.done:
		return fmt.Errorf("%w: the box has ended", machine.ErrNoAgent)
	default:
		return nil
	}
}

// Pause halts the processes of the box.
func (b *box) Pause(ctx context.Context) error { return b.turn(ctx, true) }

// Resume lets them go on.
func (b *box) Resume(ctx context.Context) error { return b.turn(ctx, false) }

func (b *box) turn(ctx context.Context, pause bool) error {
	b.turning.Lock()
	defer b.turning.Unlock()
	select {
	case <-b.released:
		return errReleased
	case <-b.done:
		return errors.New("the box has ended")
	default:
	}
	if err := b.group.Freeze(ctx, pause); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = pause
	return nil
}

// Console is the end of what process 1 and the agent have said.
func (b *box) Console(limit int) ([]byte, error) {
	return []byte(process.Tail(filepath.Join(b.dir, consoleFile), int64(max(0, limit)))), nil
}

// Stop ends the box.
func (b *box) Stop(ctx context.Context, force bool) error {
	select {
	case <-b.done:
		return nil
	case <-b.released:
		return errReleased
	default:
	}
	b.mu.Lock()
	b.stopping = true
	b.mu.Unlock()
	if !force {
		ctx, cancel := context.WithTimeout(ctx, stopWithin)
		defer cancel()
		_ = b.Resume(ctx) // a halted box hears nothing
		if err := b.Agent.Poweroff(ctx); err == nil {
			select {
			case <-b.done:
				return nil
			case <-b.released:
				return errReleased
			case <-ctx.Done():
				b.log.Info("the box did not shut down in time; ending it")
			}
		}
	}
	if err := b.proc.Kill(); err != nil { // with process 1 the kernel ends all of the box
		return fmt.Errorf("stopping a box: %w", err)
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
	defer cancel()
	_ = b.Resume(wait) // what is halted does not end
	select {
	case <-b.done:
		return nil
	case <-b.released:
		return errReleased
	case <-wait.Done():
		return fmt.Errorf("stopping a box: process %d does not end", b.proc.PID)
	}
}

// Release lets go of the box, which goes on.
func (b *box) Release() {
	b.once.Do(func() {
		select {
		case <-b.done:
		default:
			close(b.released)
		}
		b.work.Wait()
		b.Agent.Close()
		b.proc.Close()
	})
}
