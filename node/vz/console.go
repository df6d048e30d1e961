package vz

import (
	"errors"
	"io"
	"os"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
)

const (
	// consoleKeep is how much of the console the file holds after it was cut, in bytes; it is cut at twice that.
	consoleKeep = 256 << 10

	logTail = 4 << 10
)

// keepConsole writes what the guest's serial port says to a bounded file until the port is closed. A guest that floods its
// console waits for this, and costs no disk. It never waits for room on the disk: what cannot be kept is lost, and the
// error tells of the first time.
func keepConsole(from io.Reader, path string) (lost error) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if err := process.Append(path, buffer[:n], consoleKeep); err != nil && lost == nil {
				lost = err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return lost
			}
			return err
		}
	}
}

// LastConsole is what the guest of a machine that has ended wrote last, and what its helper said where that is all there
// is.
func (d *Driver) LastConsole(_ machine.Spec, dir string, limit int) ([]byte, error) {
	return process.LastWords(at(dir, consoleFile), at(dir, logFile), "helper", int64(limit)), nil
}
