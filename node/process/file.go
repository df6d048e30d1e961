//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// DialIn connects to a socket in the directory, however long the directory's path is.
func DialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name))
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", filepath.Join(dir, name), errors.Unwrap(err))
	}
	return conn, nil
}

// ListenIn listens on a socket in the directory, however long the directory's path is.
func ListenIn(dir, name string) (*net.UnixListener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name)})
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", filepath.Join(dir, name), err)
	}
	l.SetUnlinkOnClose(false) // by then the path means another directory
	return l, nil
}

// Tail is the end of the file, at most limit bytes; empty when it cannot be read.
func Tail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	raw, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-limit), limit))
	if err != nil {
		return ""
	}
	return string(raw)
}

// LastLine is the last line of the text that is not blank.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}
