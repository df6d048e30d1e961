package vz

import (
	"errors"
	"io"
	"os"

	"github.com/fluxvm/fluxvm/node/machine"
)

const (
	// consoleKeep is how much of the console the file holds after it was cut, in bytes; it is cut at twice that.
	consoleKeep = 256 << 10

	logTail = 4 << 10
)

// keepConsole writes what the guest's serial port says to a bounded file until the port is closed. A guest that floods
// its console waits for this, and costs no disk.
func keepConsole(from io.Reader, path string) error {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if err := appendConsole(path, buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return nil
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
	if err := os.WriteFile(path+".new", tail(path, consoleKeep), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// tail is the end of the file, at most limit bytes; empty when it cannot be read.
func tail(path string, limit int64) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	raw, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-limit), limit))
	if err != nil {
		return nil
	}
	return raw
}

// LastConsole is what the guest of a machine that has ended wrote last, and what its helper said where that is all there
// is.
func (d *Driver) LastConsole(_ machine.Spec, dir string, limit int) ([]byte, error) {
	text := tail(at(dir, consoleFile), int64(limit))
	if said := tail(at(dir, logFile), logTail); len(text) == 0 && len(said) > 0 {
		text = append([]byte("helper: "), said...)
	}
	return text, nil
}
