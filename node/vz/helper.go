package vz

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

const (
	// restLinger is how long the helper waits for the last of the guest's console.
	restLinger = 500 * time.Millisecond

	// tellWithin bounds telling one watcher that the guest has ended.
	tellWithin = 5 * time.Second

	// connectWithin is how long a guest may take to accept a stream. The framework sets no end.
	connectWithin = 30 * time.Second
)

// at is a file of a machine's directory.
func at(dir, name string) string { return filepath.Join(dir, name) }

// Files that a helper inherits, beyond the standard ones.
const (
	readyFD = 3 // where it tells, in one line, whether its guest runs
	lockFD  = 4 // the lock of its VM, held
)

// RunHelper holds the VM of the working directory, which the driver has prepared, until its guest has ended. It is the whole
// work of a process that the driver started. Ending the process ends the guest.
func RunHelper(fw Framework) error {
	ready, lock := os.NewFile(readyFD, "ready"), os.NewFile(lockFD, lockFile)
	defer lock.Close()
	h := &helper{ended: make(chan struct{})}
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	if err != nil {
		err = fmt.Errorf("noting the helper (only the node daemon starts one): %w", err)
	} else if h.dir, err = os.Getwd(); err == nil {
		err = h.start(fw)
	}
	if told := writeLine(ready, answer{Error: asFrameworkError(err)}); told != nil && err == nil {
		// The daemon has died meanwhile. The next one finds the VM.
		_, _ = fmt.Fprintln(os.Stderr, "nobody waits for the VM any more:", told)
	}
	_ = ready.Close()
	if err != nil {
		return h.leave(err)
	}
	h.serving.Go(h.serve)
	err = <-h.guest.Ended()
	return h.leave(err)
}

// helper is the process that holds one guest.
type helper struct {
	dir    string
	guest  Guest
	socket *net.UnixListener
	serial *os.File // our end of what the guest writes to
	taken  *os.File // where it comes out

	serving sync.WaitGroup
	console sync.WaitGroup
	ended   chan struct{} // closed when the guest has ended

	mu     sync.Mutex // held while the guest is changed
	paused bool
	why    answer // once ended is closed
}

func (h *helper) start(fw Framework) error {
	p, err := readPlan(h.dir)
	if err != nil {
		return fmt.Errorf("reading the plan: %w", err)
	}
	p = p.below(h.dir)
	if err := makeIdentifier(fw, p.Boot); err != nil {
		return err
	}
	if p.Boot.Variables != "" {
		_, err := os.Stat(p.Boot.Variables)
		p.Boot.NewVariables = errors.Is(err, fs.ErrNotExist)
	}
	if h.taken, h.serial, err = os.Pipe(); err != nil {
		return err
	}
	h.console.Go(func() {
		if err := keepConsole(h.taken, at(h.dir, consoleFile)); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "the console is lost:", err)
		}
	})
	if h.guest, err = fw.New(p, h.serial); err != nil {
		return err
	}
	if p.Restore == "" {
		err = h.guest.Start()
	} else if err = h.guest.Restore(p.Restore); err == nil {
		err = h.guest.Resume()
	}
	if err != nil {
		return err
	}
	// The name is relative: a socket's address has room for little.
	if h.socket, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socketFile}); err != nil {
		return fmt.Errorf("listening for the daemon: %w", err)
	}
	return nil
}

// makeIdentifier gives the VM the machine identifier that it keeps: two guests that run under one do not behave. An empty
// file is what a Mac that lost its power may leave.
func makeIdentifier(fw Framework, b Boot) error {
	switch info, err := os.Stat(b.Identifier); {
	case err == nil && info.Size() > 0:
		return nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	raw, err := fw.Identifier(b.Kind)
	if err != nil {
		return fmt.Errorf("making a machine identifier: %w", err)
	}
	if err := os.WriteFile(b.Identifier+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(b.Identifier+".new", b.Identifier)
}

// leave writes down why the guest ended, tells those who watch, and lets go of everything.
func (h *helper) leave(why error) error {
	h.mu.Lock()
	h.why = answer{Ended: true, Error: asFrameworkError(why)}
	h.mu.Unlock()
	if h.serial != nil {
		_ = h.serial.Close()
		_ = h.taken.SetReadDeadline(time.Now().Add(restLinger))
		h.console.Wait()
		_ = h.taken.Close()
	}
	var err error
	if h.dir != "" {
		err = writeFile(at(h.dir, endFile), h.why)
	}
	close(h.ended)
	if h.socket != nil {
		_ = h.socket.Close()
	}
	h.serving.Wait()
	return errors.Join(why, err)
}

func (h *helper) serve() {
	for {
		conn, err := h.socket.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of file descriptors, say: they come back
			continue
		}
		h.serving.Go(func() { h.answer(conn) })
	}
}

// answer carries out one request. Whoever connects has as long as the guest lives.
func (h *helper) answer(conn net.Conn) {
	defer conn.Close()
	asked := make(chan struct{})
	unhook := h.whenEnded(asked, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	var req request
	err := readLine(conn, &req)
	close(asked)
	unhook()
	if err != nil {
		return
	}
	switch req.Op {
	case opWatch:
		h.watch(conn)
	case opConnect:
		h.connect(conn, req.Port)
	default:
		_ = writeLine(conn, answer{Error: asFrameworkError(h.carryOut(req))})
	}
}

// whenEnded does the work once the guest has ended, unless over is closed first. The function it gives waits for that.
func (h *helper) whenEnded(over <-chan struct{}, work func()) (wait func()) {
	var w sync.WaitGroup
	w.Go(func() {
		select {
		case <-h.ended:
			work()
		case <-over:
		}
	})
	return w.Wait
}

func (h *helper) carryOut(req request) error {
	if req.Op == opStop { // also while something else hangs
		return h.guest.Stop()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch req.Op {
	case opPause:
		return h.turn(true, h.guest.Pause)
	case opResume:
		return h.turn(false, h.guest.Resume)
	case opAsk:
		return h.guest.Ask()
	case opSave:
		return h.guest.Save(req.Path)
	case opMemory:
		return h.guest.SetMemory(req.MiB)
	}
	return fmt.Errorf("this helper knows no %q: it is of another version than the daemon; restart the VM", req.Op)
}

// turn pauses or resumes a guest that is not so already.
func (h *helper) turn(paused bool, do func() error) error {
	if h.paused == paused {
		return nil
	}
	err := do()
	if err == nil {
		h.paused = paused
	}
	return err
}

// watch tells how the guest is, and later that it has ended.
func (h *helper) watch(conn net.Conn) {
	h.mu.Lock()
	now := answer{Paused: h.paused}
	h.mu.Unlock()
	if writeLine(conn, now) != nil {
		return
	}
	left := make(chan struct{})
	h.serving.Go(func() { // the watcher says nothing more: a read ends when it has gone
		defer close(left)
		var one [1]byte
		_, _ = conn.Read(one[:])
	})
	select {
	case <-left:
	case <-h.ended:
		_ = conn.SetWriteDeadline(time.Now().Add(tellWithin))
		_ = writeLine(conn, h.why)
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		<-left
	}
}

// connect makes the connection a stream to a port of the guest.
func (h *helper) connect(conn net.Conn, port uint32) {
	to, err := h.reach(port)
	if werr := writeLine(conn, answer{Error: asFrameworkError(err)}); err != nil || werr != nil {
		if to != nil {
			_ = to.Close()
		}
		return
	}
	over := make(chan struct{})
	wait := h.whenEnded(over, func() { _, _ = to.Close(), conn.Close() })
	splice(conn, to)
	close(over)
	wait()
}

// reach connects to the guest's port. The framework may say nothing for as long as the guest is without a driver, and
// nothing at all once it has ended; so its answer is waited for aside, and what comes too late is closed.
func (h *helper) reach(port uint32) (net.Conn, error) {
	type reached struct {
		conn net.Conn
		err  error
	}
	answered, late := make(chan reached), make(chan struct{})
	defer close(late)
	go func() {
		conn, err := h.guest.Connect(port)
		select {
		case answered <- reached{conn, err}:
		case <-late:
			if err == nil {
				_ = conn.Close()
			}
		}
	}()
	timer := time.NewTimer(connectWithin)
	defer timer.Stop()
	select {
	case r := <-answered:
		return r.conn, r.err
	case <-h.ended:
		return nil, errors.New("the guest has ended")
	case <-timer.C:
		return nil, fmt.Errorf("the guest does not answer on its port %d", port)
	}
}

// splice carries bytes both ways until either end has closed.
func splice(a, b net.Conn) {
	var both sync.WaitGroup
	carry := func(to, from net.Conn) {
		defer both.Done()
		_, _ = io.Copy(to, from)
		_, _ = a.Close(), b.Close()
	}
	both.Add(2)
	go carry(a, b)
	go carry(b, a)
	both.Wait()
}

// awaitReady reads what the helper tells. No line at all: it has died.
func awaitReady(ctx context.Context, ready *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var a answer
	if err := readLine(ready, &a); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("the helper ended before its guest ran: %w", err)
	}
	return a.err()
}
