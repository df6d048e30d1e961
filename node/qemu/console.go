//go:build linux

package qemu

import (
	"context"
	"encoding/base64"
	"fmt"
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
		if err := process.Append(c.path, raw, consoleKeep); err != nil {
			return fmt.Errorf("keeping the console: %w", err)
		}
		fetched += len(raw)
	}
	return nil
}

// LastConsole is what the guest of a machine that has ended wrote last, and what QEMU said where that is all there is.
func (e *Engine) LastConsole(_ machine.Spec, dir string, limit int) ([]byte, error) {
	return process.LastWords(filepath.Join(dir, consoleFile), filepath.Join(dir, logFile), "QEMU", int64(limit)), nil
}
