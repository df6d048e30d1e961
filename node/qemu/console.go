//go:build linux

package qemu

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
)

const (
	// consoleKeep is how much of the console console.log holds after it was cut, in bytes; it is cut at twice that.
	consoleKeep = 256 << 10

	// consoleChunk is how much is fetched from QEMU at once, in bytes.
	consoleChunk = 64 << 10

	logTail = 4 << 10
)

// console brings what the guest has written from QEMU's ring to a bounded file.
type console struct {
	path string
	mu   sync.Mutex
}

// drain empties the ring into the file. The ring keeps the newest, so nobody has to be quick.
func (c *console) drain(ctx context.Context, monitor *qmp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for fetched := 0; fetched < 2*consoleRing; { // a guest that writes on and on does not keep us here
		var chunk string
		arguments := map[string]any{"device": consoleDevice, "size": consoleChunk, "format": "base64"}
		if err := monitor.execute(ctx, "ringbuf-read", arguments, &chunk); err != nil {
			return fmt.Errorf("reading the console: %w", err)
		}
		raw, err := base64.StdEncoding.DecodeString(chunk)
		if err != nil {
			return fmt.Errorf("reading the console: %w", err)
		}
		if len(raw) == 0 {
			return nil
		}
		if err := c.append(raw); err != nil {
			return fmt.Errorf("keeping the console: %w", err)
		}
		fetched += len(raw)
	}
	return nil
}

func (c *console) append(raw []byte) error {
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	info, errStat := f.Stat()
	if errClose := f.Close(); err != nil || errStat != nil || errClose != nil {
		return fmt.Errorf("writing %s: %w", c.path, firstOf(err, errStat, errClose))
	}
	if info.Size() <= 2*consoleKeep {
		return nil
	}
	if err := os.WriteFile(c.path+".new", []byte(process.Tail(c.path, consoleKeep)), 0o600); err != nil {
		return err
	}
	return os.Rename(c.path+".new", c.path)
}

// LastConsole is what the guest of a machine that has ended wrote last, and what QEMU said where that is all there is.
func (e *Engine) LastConsole(_ machine.Spec, dir string, limit int) ([]byte, error) {
	text := process.Tail(filepath.Join(dir, consoleFile), int64(limit))
	if said := process.Tail(filepath.Join(dir, logFile), logTail); text == "" && said != "" {
		text = "QEMU: " + said
	}
	return []byte(text), nil
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
