//go:build linux

package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// qmpTimeout bounds each command, whatever its context allows: QEMU answers these at once unless it hangs.
	qmpTimeout = 30 * time.Second

	// qmpLine is the longest message of QEMU that is read, in bytes.
	qmpLine = 4 << 20
)

// errQMPClosed is what commands return once the connection has ended.
var errQMPClosed = errors.New("the connection to QEMU's monitor is closed")

// qmpError is QEMU's refusal of a command.
type qmpError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

func (e *qmpError) Error() string { return "QEMU refuses: " + e.Desc }

// qmpEvent is something that QEMU tells unasked.
type qmpEvent struct {
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// qmpMessage is any line from QEMU: greeting, event, answer or refusal.
type qmpMessage struct {
	Greeting json.RawMessage `json:"QMP"`
	qmpEvent
	ID     uint64          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *qmpError       `json:"error"`
}

type qmpCommand struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        uint64 `json:"id"`
}

// qmp is a connection to one QEMU's monitor. Commands may be under way at once; answers are matched by id.
type qmp struct {
	conn    net.Conn
	timeout time.Duration
	events  func(qmpEvent) // called from the reader's goroutine; must not block
	done    chan struct{}  // closed when the reader has ended

	writing sync.Mutex

	mu    sync.Mutex
	last  uint64
	calls map[uint64]chan qmpMessage // nil once the connection has ended
}

// openQMP reads the greeting and leaves negotiation mode. conn is closed when that fails.
func openQMP(ctx context.Context, conn net.Conn, timeout time.Duration, events func(qmpEvent)) (*qmp, error) {
	q := &qmp{conn: conn, timeout: timeout, events: events, done: make(chan struct{}), calls: map[uint64]chan qmpMessage{}}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, qmpLine)
	var greeting qmpMessage
	var err error
	if !lines.Scan() {
		err = errors.Join(errors.New("no greeting came"), lines.Err(), ctx.Err())
	} else if json.Unmarshal(lines.Bytes(), &greeting) != nil || greeting.Greeting == nil {
		err = errors.New("what answers there is no QEMU monitor")
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("opening QEMU's monitor: %w", err)
	}
	go q.read(lines)
	if err := q.execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		q.close()
		return nil, fmt.Errorf("opening QEMU's monitor: %w", err)
	}
	return q, nil
}

// close ends the connection and all commands, and waits for the reader.
func (q *qmp) close() {
	_ = q.conn.Close()
	<-q.done
}

// execute runs one command; into may be nil. An answer that comes after the deadline is dropped.
func (q *qmp) execute(ctx context.Context, command string, arguments, into any) error {
	return q.executeWith(ctx, command, arguments, into, nil)
}

// hand gives QEMU an open file under a name, for a later command to name.
func (q *qmp) hand(ctx context.Context, name string, file *os.File) error {
	return q.executeWith(ctx, "getfd", map[string]any{"fdname": name}, nil, file)
}

func (q *qmp) executeWith(ctx context.Context, command string, arguments, into any, file *os.File) error {
	if err := q.roundTrip(ctx, command, arguments, into, file); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return nil
}

func (q *qmp) roundTrip(ctx context.Context, command string, arguments, into any, file *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, q.timeout)
	defer cancel()
	answer := make(chan qmpMessage, 1)
	q.mu.Lock()
	if q.calls == nil {
		q.mu.Unlock()
		return errQMPClosed
	}
	q.last++
	id := q.last
	q.calls[id] = answer
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(q.calls, id)
		q.mu.Unlock()
	}()
	if err := q.write(ctx, qmpCommand{Execute: command, Arguments: arguments, ID: id}, file); err != nil {
		return err
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return m.Error
		}
		if into == nil {
			return nil
		}
		if err := json.Unmarshal(m.Return, into); err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		return nil
	case <-q.done:
		return errQMPClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write sends one line, and a file with it where there is one. Half a line would spoil all that follows, so then the connection is given up.
func (q *qmp) write(ctx context.Context, c qmpCommand, file *os.File) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return err
	}
	q.writing.Lock()
	defer q.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := q.conn.SetWriteDeadline(deadline); err != nil {
		return errQMPClosed
	}
	raw = append(raw, '\n')
	sent := 0
	if file != nil {
		conn, ok := q.conn.(*net.UnixConn)
		if !ok {
			return errors.New("files can be handed over a unix socket only")
		}
		if sent, _, err = conn.WriteMsgUnix(raw, unix.UnixRights(int(file.Fd())), nil); err != nil {
			_ = q.conn.Close()
			return fmt.Errorf("%w: %v", errQMPClosed, err)
		}
	}
	if _, err := q.conn.Write(raw[sent:]); err != nil {
		_ = q.conn.Close()
		return fmt.Errorf("%w: %v", errQMPClosed, err)
	}
	return nil
}

// read hands out answers and events until the connection ends or says something that is no QMP.
func (q *qmp) read(lines *bufio.Scanner) {
	defer close(q.done)
	for lines.Scan() {
		var m qmpMessage
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			break
		}
		if m.Name != "" {
			q.events(m.qmpEvent)
			continue
		}
		q.mu.Lock()
		if answer := q.calls[m.ID]; answer != nil {
			answer <- m // has room: an id is answered once, for it is forgotten here
			delete(q.calls, m.ID)
		}
		q.mu.Unlock()
	}
	_ = q.conn.Close()
	q.mu.Lock()
	q.calls = nil
	q.mu.Unlock()
}
