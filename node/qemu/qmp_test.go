//go:build linux

package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}}, "capabilities": ["oob"]}}`

// monitor is QEMU's end of a connection: it reads commands and writes whatever lines a test wants.
type monitor struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Scanner
}

func (m *monitor) say(format string, args ...any) {
	if _, err := fmt.Fprintf(m.conn, format+"\r\n", args...); err != nil {
		m.t.Logf("the monitor cannot say %q: %v", format, err)
	}
}

// hear is the next command.
func (m *monitor) hear() (command string, id uint64) {
	if !m.in.Scan() {
		return "", 0
	}
	var c struct {
		Execute string
		ID      uint64
	}
	if err := json.Unmarshal(m.in.Bytes(), &c); err != nil {
		m.t.Errorf("the command %q is no JSON: %v", m.in.Text(), err)
	}
	return c.Execute, c.ID
}

// scripted runs the script as a monitor and returns the other end of its connection.
func scripted(t *testing.T, script func(*monitor)) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		script(&monitor{t, theirs, bufio.NewScanner(theirs)})
	}()
	t.Cleanup(func() {
		_ = ours.Close()
		_ = theirs.Close()
		<-ended
	})
	return ours
}

// opened is a connection that has left negotiation; rest goes on from there.
func opened(t *testing.T, timeout time.Duration, events func(qmpEvent), rest func(*monitor)) *qmp {
	t.Helper()
	q, err := openQMP(t.Context(), scripted(t, func(m *monitor) {
		m.say(greeting)
		command, id := m.hear()
		if command != "qmp_capabilities" {
			t.Errorf("the first command is %q, want qmp_capabilities", command)
		}
		m.say(`{"return": {}, "id": %d}`, id)
		rest(m)
	}), timeout, events)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.close)
	return q
}

func unexpected(t *testing.T) func(qmpEvent) {
	return func(e qmpEvent) { t.Errorf("unexpected event %s", e.Name) }
}

func TestAnswersMeetTheirCommandsInAnyOrder(t *testing.T) {
	q := opened(t, time.Minute, unexpected(t), func(m *monitor) {
		ids := map[string]uint64{}
		for range 2 {
			command, id := m.hear()
			ids[command] = id
		}
		m.say(`{"return": {"status": "for no one"}, "id": 999}`)
		m.say(`{"return": {"status": "second"}, "id": %d}`, ids["query-b"])
		m.say(`{"return": {"status": "first"}, "id": %d}`, ids["query-a"])
	})
	got := make(chan string, 2)
	for _, command := range []string{"query-a", "query-b"} {
		go func() {
			var answer struct{ Status string }
			if err := q.execute(t.Context(), command, nil, &answer); err != nil {
				t.Error(err)
			}
			got <- command + " " + answer.Status
		}()
	}
	all := map[string]bool{<-got: true, <-got: true}
	if diff := cmp.Diff(map[string]bool{"query-a first": true, "query-b second": true}, all); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEventsBetweenAnswersAreTold(t *testing.T) {
	events := make(chan qmpEvent, 2)
	q := opened(t, time.Minute, func(e qmpEvent) { events <- e }, func(m *monitor) {
		_, id := m.hear()
		m.say(`{"event": "STOP", "timestamp": {"seconds": 1}}`)
		m.say(`{"return": {}, "id": %d}`, id)
		m.say(`{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}`)
	})
	if err := q.execute(t.Context(), "stop", nil, nil); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Name != "STOP" {
		t.Errorf("got %s, want STOP", e.Name)
	}
	if e := <-events; e.Name != "SHUTDOWN" || !strings.Contains(string(e.Data), "guest-reset") {
		t.Errorf("got %s %s, want SHUTDOWN with its reason", e.Name, e.Data)
	}
}

func TestRefusalNamesTheCommandAndTheReason(t *testing.T) {
	q := opened(t, time.Minute, unexpected(t), func(m *monitor) {
		_, id := m.hear()
		m.say(`{"error": {"class": "DeviceNotFound", "desc": "Device 'con0' not found"}, "id": %d}`, id)
	})
	err := q.execute(t.Context(), "ringbuf-read", map[string]any{"device": "con0"}, nil)
	var refusal *qmpError
	if !errors.As(err, &refusal) || refusal.Class != "DeviceNotFound" || !strings.HasPrefix(err.Error(), "ringbuf-read: ") {
		t.Errorf("got %v, want QEMU's refusal", err)
	}
}

func TestCommandEndsAtItsDeadlineAndTheNextIsNotConfused(t *testing.T) {
	next := make(chan struct{})
	q := opened(t, 50*time.Millisecond, unexpected(t), func(m *monitor) {
		_, late := m.hear()
		<-next
		m.say(`{"return": {"status": "late"}, "id": %d}`, late)
		_, id := m.hear()
		m.say(`{"return": {"status": "right"}, "id": %d}`, id)
	})
	if err := q.execute(context.Background(), "query-slow", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the deadline", err)
	}
	q.timeout = time.Minute
	close(next)
	var answer struct{ Status string }
	if err := q.execute(t.Context(), "query-status", nil, &answer); err != nil || answer.Status != "right" {
		t.Errorf("got %q and %v, want the answer to this command", answer.Status, err)
	}
}

func TestCommandsEndWhenQEMUGoes(t *testing.T) {
	q := opened(t, time.Minute, unexpected(t), func(m *monitor) {
		m.hear()
		_ = m.conn.Close()
	})
	if err := q.execute(t.Context(), "query-status", nil, nil); !errors.Is(err, errQMPClosed) {
		t.Errorf("got %v, want errQMPClosed", err)
	}
	<-q.done
	if err := q.execute(t.Context(), "query-status", nil, nil); !errors.Is(err, errQMPClosed) {
		t.Errorf("got %v afterwards, want errQMPClosed", err)
	}
}

func TestWhatIsNoMonitorIsRefused(t *testing.T) {
	tests := map[string]func(*monitor){
		"says nothing":         func(m *monitor) { m.in.Scan() },
		"hangs up":             func(m *monitor) { _ = m.conn.Close() },
		"speaks another way":   func(m *monitor) { m.say("220 mail ready") },
		"does not greet":       func(m *monitor) { m.say(`{"return": {}}`) },
		"never negotiates":     func(m *monitor) { m.say(greeting); m.hear() },
		"refuses to negotiate": func(m *monitor) { m.say(greeting); _, id := m.hear(); m.say(`{"error": {"desc": "no"}, "id": %d}`, id) },
		"turns to rubbish":     func(m *monitor) { m.say(greeting); m.hear(); m.say("rubbish") },
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			q, err := openQMP(t.Context(), scripted(t, script), 100*time.Millisecond, unexpected(t))
			if err == nil {
				q.close()
				t.Error("it was taken for a monitor")
			}
		})
	}
}

func FuzzQMP(f *testing.F) {
	f.Add(`{"return": {"status": "running"}, "id": 2}`)
	f.Add(`{"event": "SHUTDOWN", "data": 7}`)
	f.Add(`{"error": null, "id": 2}` + "\n" + `{"id": -1}`)
	f.Fuzz(func(t *testing.T, said string) {
		ours, theirs := net.Pipe()
		go func() {
			in := bufio.NewScanner(theirs)
			fmt.Fprintln(theirs, greeting)
			in.Scan()
			fmt.Fprintln(theirs, `{"return": {}, "id": 1}`)
			in.Scan()
			fmt.Fprintln(theirs, said)
			_ = theirs.Close()
		}()
		q, err := openQMP(context.Background(), ours, time.Minute, func(qmpEvent) {})
		if err != nil {
			t.Fatal(err)
		}
		defer q.close()
		var answer struct{ Status string }
		_ = q.execute(context.Background(), "query-status", nil, &answer)
	})
}
