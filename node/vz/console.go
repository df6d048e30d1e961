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
			if err := appendConsole(path, buffer[:n]); err != nil && lost == nil {
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

func appendConsole(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return err
	}
	if info.Size() <= 2*consoleKeep {
		return nil
	}
	if err := os.WriteFile(path+".new", []byte(process.Tail(path, consoleKeep)), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// LastConsole is what the guest of a machine that has ended wrote last, and what its helper said where that is all there
// is.
func (d *Driver) LastConsole(_ machine.Spec, dir string, limit int) ([]byte, error) {
	text := process.Tail(at(dir, consoleFile), int64(limit))
	if said := process.Tail(at(dir, logFile), logTail); text == "" && said != "" {
		text = "helper: " + said
	}
	return []byte(text), nil
}
