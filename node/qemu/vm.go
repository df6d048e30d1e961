//go:build linux

package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
)

const (
	// openWithin is how long QEMU may take from its start until its monitor answers.
	openWithin = 60 * time.Second

	// askWithin bounds how long a guest may take to agree to its shutdown.
	askWithin = 10 * time.Second

	// stopWithin is how long a guest may take to shut down where the caller sets no end.
	stopWithin = 2 * time.Minute

	// killWithin is how long the kernel may take to end a process.
	killWithin = 30 * time.Second

	// lastWordsWithin bounds fetching the console of a VM that is about to go.
	lastWordsWithin = 2 * time.Second
)

// endedUnseen is our own word beside QEMU's reasons for a guest's end.
const endedUnseen = "ended-unseen"

// What it is beyond a machine.Machine.
var _ interface {
	machine.Claimer
	machine.Renewer
} = (*vm)(nil)

// errReleased is what a VM that was let go of answers.
var errReleased = errors.New("the VM was released; adopt it again")

type runState int

const (
	stateRunning runState = iota
	statePaused
	stateEnded // the guest has ended and QEMU holds it
)

// vm is one running VM of either driver.
type vm struct {
	process.Agent
	spec    machine.Spec
	balloon balloonDevice
	log     hclog.Logger
	dir     string
	proc    *process.Process
	monitor *qmp
	console console
	noAgent bool

	shutdown chan string   // why the guest ended, at most one
	released chan struct{} // closed by Release
	done     chan struct{} // closed when the process has ended
	work     sync.WaitGroup
	once     sync.Once

	turning sync.Mutex // held while the guest is halted, let go on, or saved

	mu       sync.Mutex
	state    runState
	stopping bool
	err      error
	stats    bool // the guest was asked to tell of its memory
}

// attach connects to the process's monitor and begins to watch it. It neither ends nor closes proc on failure. feed,
// where there is one, hands a saved state over first.
func (e *Engine) attach(ctx context.Context, spec machine.Spec, dir string, proc *process.Process, feed func(context.Context, *qmp) error) (*vm, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	m := &vm{
		spec: spec, balloon: balloonOf(spec), log: e.log.With("vm", spec.ID, "pid", proc.PID), dir: dir, proc: proc,
		console: console{path: filepath.Join(dir, consoleFile)}, noAgent: spec.NoAgent,
		shutdown: make(chan string, 1), released: make(chan struct{}), done: make(chan struct{}),
	}
	m.Dial, m.Awake = process.Dialer(dir, agentSocket), m.awake
	var err error
	if m.monitor, err = openMonitor(ctx, dir, proc, m.event); err != nil {
		return nil, err
	}
	var status string
	if feed != nil {
		err = feed(ctx, m.monitor)
	}
	if err == nil {
		status, err = runStatus(ctx, m.monitor)
	}
	if err == nil && status == "prelaunch" { // it has let go of root, and waits for the word
		if err = m.monitor.execute(ctx, "cont", nil, nil); err == nil {
			status = "running"
		}
	}
	if err != nil {
		m.monitor.close()
		return nil, err
	}
	switch status {
	case "running":
	case "paused", "finish-migrate", "postmigrate": // the latter two: a daemon ended while it saved the machine
		m.state = statePaused
	default: // its event came before we listened
		m.state = stateEnded
		m.event(qmpEvent{Name: "SHUTDOWN", Data: json.RawMessage(`{"reason":"` + endedUnseen + `"}`)})
	}
	m.work.Go(m.watch)
	return m, nil
}

// openMonitor dials until QEMU listens, which it does a moment after its start.
func openMonitor(ctx context.Context, dir string, proc *process.Process, event func(qmpEvent)) (*qmp, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := process.DialIn(ctx, dir, monitorSocket)
		if err == nil {
			return openQMP(ctx, conn, qmpTimeout, event)
		}
		select {
		case <-tick.C:
		case <-proc.Ended:
			return nil, errors.New("QEMU ended before its guest ran")
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

// event notes why the guest ended. It is called from the monitor's reader.
func (m *vm) event(e qmpEvent) {
	if e.Name != "SHUTDOWN" {
		return
	}
	var data struct{ Reason string }
	_ = json.Unmarshal(e.Data, &data) // without a reason it has still ended
	select {
	case m.shutdown <- data.Reason:
	default:
	}
}

// watch waits for the machine's end, sees its last words home, and records the reason.
func (m *vm) watch() {
	why := ""
	select {
	case <-m.released:
		return
	case <-m.proc.Ended:
		select {
		case why = <-m.shutdown:
		default:
		}
	case why = <-m.shutdown:
		m.lastWords()
		if err := m.proc.Kill(); err != nil {
			m.log.Error("QEMU cannot be ended after its guest", "error", err)
		}
		select {
		case <-m.proc.Ended:
		case <-m.released:
			return
		}
	}
	m.conclude(why)
}

// lastWords saves the console as far as QEMU still gives it.
func (m *vm) lastWords() {
	ctx, cancel := context.WithTimeout(context.Background(), lastWordsWithin)
	defer cancel()
	if err := m.console.drain(ctx, m.monitor); err != nil && !errors.Is(err, errQMPClosed) {
		m.log.Debug("the end of the console is lost", "error", err)
	}
}

func (m *vm) conclude(why string) {
	how := m.proc.Collect()
	m.monitor.close()
	m.Agent.Close()
	m.proc.Close()
	if group, err := process.OpenGroup(filepath.Join(m.dir, groupFile)); err == nil {
		if err := group.Remove(filepath.Join(m.dir, groupFile)); err != nil {
			m.log.Warn("the VM's control group stays", "error", err)
		}
	}
	m.mu.Lock()
	if !m.stopping {
		m.err = m.reason(why, how)
	}
	m.state = stateEnded
	m.mu.Unlock()
	close(m.done)
}

// reason says why the machine ended, nil for a guest that shut itself down.
func (m *vm) reason(why, how string) error {
	if why == "guest-shutdown" {
		return nil
	}
	console := process.Tail(m.console.path, logTail)
	if _, panic, found := strings.Cut(console, "Kernel panic - "); found && why != "" {
		first, _, _ := strings.Cut(panic, "\n")
		return fmt.Errorf("the guest's kernel panicked: %s", strings.TrimSpace(first))
	}
	switch {
	case why == "guest-reset":
		return errors.New("the guest restarted itself, which ends a flux-vm VM")
	case why == endedUnseen:
		return fmt.Errorf("the guest ended at once; the console ends with %q", process.LastLine(console))
	case why != "":
		return fmt.Errorf("the guest ended: %s", why)
	case how == "":
		how = "ended"
	}
	if said := process.LastLine(process.Tail(filepath.Join(m.dir, logFile), logTail)); said != "" {
		return fmt.Errorf("QEMU %s: %s", how, said)
	}
	return fmt.Errorf("QEMU %s; the console ends with %q", how, process.LastLine(console))
}

// Done is closed when the machine has ended; never after Release.
func (m *vm) Done() <-chan struct{} { return m.done }

// Err says why the machine ended.
func (m *vm) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// IP is empty: what the guest has is an address of its own user network, which the host cannot reach.
func (m *vm) IP() string { return "" }

// PID is QEMU's, 0 once it has ended.
func (m *vm) PID() int {
	select {
	case <-m.done:
		return 0
	default:
		return m.proc.PID
	}
}

// awake refuses at once what a halted guest could only time out on.
func (m *vm) awake() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch m.state {
	case statePaused:
		return fmt.Errorf("%w: the VM is paused; resume it first", machine.ErrNoAgent)
	case stateEnded:
		return fmt.Errorf("%w: the VM has ended", machine.ErrNoAgent)
	}
	return nil
}

func (m *vm) hasEnded() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state == stateEnded
}

// Pause halts the guest's processors.
func (m *vm) Pause(ctx context.Context) error { return m.turn(ctx, "stop", statePaused) }

// Resume lets them go on.
func (m *vm) Resume(ctx context.Context) error { return m.turn(ctx, "cont", stateRunning) }

func (m *vm) turn(ctx context.Context, command string, to runState) error {
	m.turning.Lock()
	defer m.turning.Unlock()
	return m.turnNow(ctx, command, to)
}

func (m *vm) turnNow(ctx context.Context, command string, to runState) error {
	if err := m.monitor.execute(ctx, command, nil, nil); err != nil {
		return m.failed(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state != stateEnded {
		m.state = to
	}
	return nil
}

// failed tells a VM that was let go of from one that has ended.
func (m *vm) failed(err error) error {
	select {
	case <-m.released:
		return errReleased
	case <-m.done:
		return errors.New("the VM has ended")
	default:
		return err
	}
}

// Console is the end of what the guest has written to its serial console.
func (m *vm) Console(limit int) ([]byte, error) {
	select {
	case <-m.done:
	case <-m.released:
	default:
		m.lastWords()
	}
	m.console.mu.Lock()
	defer m.console.mu.Unlock()
	return []byte(process.Tail(m.console.path, int64(max(0, limit)))), nil
}

// Stop ends the machine.
func (m *vm) Stop(ctx context.Context, force bool) error {
	select {
	case <-m.done:
		return nil
	case <-m.released:
		return errReleased
	default:
	}
	m.mu.Lock()
	m.stopping = true
	m.mu.Unlock()
	if !force {
		ctx, cancel := context.WithTimeout(ctx, stopWithin)
		defer cancel()
		m.ask(ctx)
		select {
		case <-m.done:
			return nil
		case <-m.released:
			return errReleased
		case <-ctx.Done():
			m.log.Info("the guest did not shut down in time; ending it")
		}
	}
	m.lastWords()
	if err := m.proc.Kill(); err != nil {
		return fmt.Errorf("stopping a VM: %w", err)
	}
	timer := time.NewTimer(killWithin)
	defer timer.Stop()
	select {
	case <-m.done:
		return nil
	case <-m.released:
		return errReleased
	case <-timer.C:
		return fmt.Errorf("stopping a VM: process %d does not end", m.proc.PID)
	}
}

// ask begins the guest's shutdown: through its agent, and where that does not agree by the power button.
func (m *vm) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := m.Resume(ctx); err != nil { // a paused guest hears nothing
		m.log.Debug("the guest cannot be resumed for its shutdown", "error", err)
	}
	if !m.noAgent && m.Agent.Poweroff(ctx) == nil {
		return
	}
	if err := m.monitor.execute(context.WithoutCancel(ctx), "system_powerdown", nil, nil); err != nil {
		m.log.Debug("the guest has no power button", "error", err)
	}
}

// Release lets go of the machine, which goes on.
func (m *vm) Release() {
	m.once.Do(func() {
		select {
		case <-m.done:
		default:
			close(m.released)
		}
		m.work.Wait()
		m.monitor.close()
		m.Agent.Close()
		m.proc.Close()
	})
}
