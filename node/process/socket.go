//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
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

// Dialer is DialIn for an Agent.
func Dialer(dir, name string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return DialIn(ctx, dir, name) }
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
