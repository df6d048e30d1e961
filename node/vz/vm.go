package vz

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

const (
	// askWithin bounds how long a guest may take to agree to its shutdown.
	askWithin = 10 * time.Second

	// stopWithin is how long a guest may take to shut down where the caller sets no end.
	stopWithin = 2 * time.Minute

	// plugWithin is how long the framework may take to stop a guest before its helper is killed.
	plugWithin = 15 * time.Second
)

// What it is beyond a machine.Machine.
var _ interface {
	machine.Ballooner
	machine.Claimer
	machine.Renewer
	machine.Saver
} = (*vm)(nil)

// errReleased is what a VM that was let go of answers.
var errReleased = errors.New("the VM was released; adopt it again")

// vm is one running VM, as the daemon sees it.
type vm struct {
	process.Agent
	driver *Driver
	spec   machine.Spec
	log    hclog.Logger
	dir    string
	pid    int
	line   net.Conn // the helper tells on it when the guest has ended
	lease  leases

	released chan struct{} // closed by Release
	done     chan struct{} // closed when the helper has ended
	work     sync.WaitGroup
	once     sync.Once

	mu       sync.Mutex
	paused   bool
	stopping bool
	err      error
}

// attach begins to watch the machine that the helper of the directory holds.
func (d *Driver) attach(ctx context.Context, spec machine.Spec, dir string, pid int) (*vm, error) {
	line, now, err := ask(ctx, dir, request{Op: opWatch})
	if err != nil {
		return nil, err
	}
	m := &vm{
		driver: d, spec: spec, log: d.log.With("vm", spec.ID, "pid", pid), dir: dir, pid: pid, line: line, paused: now.Paused,
		lease: leases{path: d.cfg.Leases, mac: macOf(spec.ID)}, released: make(chan struct{}), done: make(chan struct{}),
	}
	m.Awake, m.Dial = m.awake, func(ctx context.Context) (net.Conn, error) {
		conn, _, err := ask(ctx, dir, request{Op: opConnect, Port: guest.VsockPort})
		return conn, err
	}
	m.work.Go(m.watch)
	return m, nil
}

// watch waits for the machine's end and records the reason.
func (m *vm) watch() {
	var end answer
	err := readLine(m.line, &end)
	select {
	case <-m.released:
		return
	default:
	}
	if err != nil || !end.Ended { // it died, or was killed; perhaps after its guest had ended
		var ok bool
		if end, ok = readEnd(m.dir); !ok {
			end = answer{Error: &FrameworkError{Text: "the process that held the VM was killed"}}
		}
	}
	m.awaitHelper()
	m.Agent.Close()
	_ = m.line.Close()
	m.mu.Lock()
	if !m.stopping {
		m.err = m.reason(end)
	}
	m.mu.Unlock()
	close(m.done)
}

// awaitHelper gives the helper a moment to leave by itself, ends it if it does not, and reaps it.
func (m *vm) awaitHelper() {
	ctx, cancel := context.WithTimeout(context.Background(), plugWithin)
	defer cancel()
	for {
		lives, err := helperLives(m.dir)
		if err == nil && !lives {
			break
		}
		if !pause(ctx, 5*time.Millisecond) {
			m.log.Warn("the VM's helper stays after its guest; ending it")
			break
		}
	}
	if err := endHelper(m.dir); err != nil {
		m.log.Error("the VM's helper cannot be ended", "error", err)
		return
	}
	// The lock goes a moment before the process does. Only our own child is waited for.
	reap(m.pid, 0)
}

// reason says why the machine ended, nil for a guest that shut itself down.
func (m *vm) reason(end answer) error {
	if end.Error == nil {
		return nil
	}
	err := explained(end.Error)
	if said := process.LastLine(process.Tail(at(m.dir, logFile), logTail)); said != "" && said != end.Error.Error() {
		err = fmt.Errorf("%w; the helper said: %s", err, said)
	}
	return err
}

// Done is closed when the machine has ended; never after Release.
func (m *vm) Done() <-chan struct{} { return m.done }

// Err says why the machine ended.
func (m *vm) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// IP is what the Mac's NAT gave the guest, as far as it noted it under the guest's address.
func (m *vm) IP() string {
	if !hasNetwork(m.spec.Network) {
		return ""
	}
	return m.lease.ip()
}

// PID is the helper's, 0 once it has ended. The guest's memory is another process's, which the framework keeps.
func (m *vm) PID() int {
	select {
	case <-m.done:
		return 0
	default:
		return m.pid
	}
}

// Pause halts the guest's processors.
func (m *vm) Pause(ctx context.Context) error { return m.turn(ctx, opPause, true) }

// Resume lets them go on.
func (m *vm) Resume(ctx context.Context) error { return m.turn(ctx, opResume, false) }

func (m *vm) turn(ctx context.Context, op string, paused bool) error {
	if err := m.order(ctx, request{Op: op}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = paused
	return nil
}

// order gives the helper an order, and tells a VM that was let go of from one that has ended.
func (m *vm) order(ctx context.Context, req request) error {
	select {
	case <-m.released:
		return errReleased
	case <-m.done:
		return errors.New("the VM has ended")
	default:
	}
	return explained(order(ctx, m.dir, req))
}

// Balloon is not known: the framework tells the target only.
func (m *vm) Balloon(context.Context) (int64, error) { return -1, nil }

// SetBalloon moves the device's target. The framework counts what the guest keeps.
func (m *vm) SetBalloon(ctx context.Context, mib int64) error {
	return m.order(ctx, request{Op: opMemory, MiB: uint64(max(0, m.spec.MemoryMiB-mib))})
}

// Console is the end of what the guest has written to its serial port.
func (m *vm) Console(limit int) ([]byte, error) {
	return []byte(process.Tail(at(m.dir, consoleFile), int64(max(0, limit)))), nil
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
		m.askGuest(ctx)
		select {
		case <-m.done:
			return nil
		case <-m.released:
			return errReleased
		case <-ctx.Done():
			m.log.Info("the guest did not shut down in time; ending it")
		}
	}
	return m.pull(ctx)
}

// pull ends the guest by the framework, and where that does not help by the end of its helper.
func (m *vm) pull(ctx context.Context) error {
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), plugWithin)
	defer cancel()
	err := m.order(short, request{Op: opStop})
	if err == nil {
		select {
		case <-m.done:
			return nil
		case <-m.released:
			return errReleased
		case <-short.Done():
		}
	}
	m.log.Debug("the guest is ended with its helper", "error", err)
	if err := endHelper(m.dir); err != nil {
		return fmt.Errorf("stopping a VM: %w", err)
	}
	select {
	case <-m.done:
		return nil
	case <-m.released:
		return errReleased
	}
}

// askGuest begins the guest's shutdown: through its agent, and where that does not agree by the power button.
func (m *vm) askGuest(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	if err := m.Resume(ctx); err != nil { // a paused guest hears nothing
		m.log.Debug("the guest cannot be resumed for its shutdown", "error", err)
	}
	if !m.spec.NoAgent && m.Agent.Poweroff(ctx) == nil {
		return
	}
	if err := m.order(context.WithoutCancel(ctx), request{Op: opAsk}); err != nil {
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
		_ = m.line.Close()
		m.work.Wait()
		m.Agent.Close()
	})
}

// awake refuses at once what a halted guest could only time out on.
func (m *vm) awake() error {
	select {
	case <-m.done:
		return fmt.Errorf("%w: the VM has ended", machine.ErrNoAgent)
	case <-m.released:
		return errReleased
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.paused {
		return fmt.Errorf("%w: the VM is paused; resume it first", machine.ErrNoAgent)
	}
	return nil
}
