package vz

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Daemon and helper speak over connections to the helper's socket, one request each: a line of JSON, answered by one.
// After opConnect the connection is the stream to the guest's port; after opWatch it stays open until the guest has
// ended, which one more line tells.

// What the helper may be asked.
const (
	opWatch   = "watch"
	opPause   = "pause"
	opResume  = "resume"
	opAsk     = "ask"  // press the power button
	opStop    = "stop" // pull the plug
	opSave    = "save"
	opMemory  = "memory"
	opConnect = "connect"
)

// longestLine bounds what either end takes for a message, in bytes.
const longestLine = 64 << 10

type request struct {
	Op   string `json:"op"`
	Path string `json:"path,omitempty"`
	MiB  uint64 `json:"mib,omitempty"`
	Port uint32 `json:"port,omitempty"`
}

type answer struct {
	Error  *FrameworkError `json:"error,omitempty"`
	Paused bool            `json:"paused,omitempty"`
	Ended  bool            `json:"ended,omitempty"` // the guest has; Error then says why, none if it shut down
}

// err is the answer's error as an error.
func (a answer) err() error {
	if a.Error == nil {
		return nil
	}
	return a.Error
}

// readLine reads up to the end of a line and not one byte beyond: what follows may be a stream's.
func readLine(r io.Reader, into any) error {
	var line []byte
	var one [1]byte
	for {
		if _, err := io.ReadFull(r, one[:]); err != nil {
			return err
		}
		if one[0] == '\n' {
			return json.Unmarshal(line, into)
		}
		if line = append(line, one[0]); len(line) > longestLine {
			return fmt.Errorf("a message of more than %d bytes", longestLine)
		}
	}
}

func writeLine(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// longestSocket is what fits into a socket's address on every system, in bytes.
const longestSocket = 100

// dial connects to the helper of a directory, however long its path is: a deep one goes by a link beside it.
func dial(ctx context.Context, dir string) (net.Conn, error) {
	path := filepath.Join(dir, socketFile)
	if len(path) > longestSocket {
		short, err := os.MkdirTemp("", "fvz")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(short)
		if err := os.Symlink(dir, filepath.Join(short, "d")); err != nil {
			return nil, err
		}
		path = filepath.Join(short, "d", socketFile)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connecting to the VM's helper: %w", err)
	}
	return conn, nil
}

// ask sends one request and gives the connection, on which the answer has been read. ctx bounds all of that.
func ask(ctx context.Context, dir string, req request) (net.Conn, answer, error) {
	conn, err := dial(ctx, dir)
	if err != nil {
		return nil, answer{}, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var a answer
	if err = writeLine(conn, req); err == nil {
		err = readLine(conn, &a)
	}
	if err == nil {
		err = a.err()
	}
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		_ = conn.Close()
		return nil, answer{}, err
	}
	return conn, a, nil
}

// order is ask where the answer is all there is.
func order(ctx context.Context, dir string, req request) error {
	conn, _, err := ask(ctx, dir, req)
	if err != nil {
		return err
	}
	return conn.Close()
}
