//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

// answersWithin is how long a host that reads slowly may hold up the agent's end.
const answersWithin = time.Second

// Addresses on vsock of what is outside the guest: the host's programs, and what holds the guest itself.
const (
	hostCID       = 2
	hypervisorCID = 0
)

func server(o guest.Owner) *guest.Server { return &guest.Server{Poweroff: poweroff, Owner: o} }

// interrupt ends reading. Answers under way still go out; that to the wish to power off is one.
func interrupt(port interface {
	SetWriteDeadline(time.Time) error
	SetReadDeadline(time.Time) error
}) {
	_ = port.SetWriteDeadline(time.Now().Add(answersWithin))
	_ = port.SetReadDeadline(time.Unix(1, 0))
}

// hostConn is one connection of a host.
type hostConn interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
	SetReadDeadline(time.Time) error
}

// accepter gives the connections of hosts, and an error once it is closed.
type accepter interface {
	accept() (hostConn, error)
	Close() error
}

// serveVsock answers every host that connects until ctx ends. Each connection is a session of its own: a daemon that
// comes back need not wait until the guest has noticed that the one before it is gone.
func serveVsock(ctx context.Context, l accepter, s *guest.Server) error {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case err != nil:
			return fmt.Errorf("waiting for the host on vsock: %w", err)
		}
		sessions.Go(func() {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { interrupt(conn) })
			defer stop()
			_ = s.Serve(ctx, untilGone{conn}) // its end is the host's doing
		})
	}
}

var errHostGone = errors.New("the host has gone")

// untilGone makes the end of a connection an error. On the virtio-serial port an end of file only says that no host is
// there yet; a connection does not come back.
type untilGone struct{ hostConn }

func (u untilGone) Read(b []byte) (int, error) {
	n, err := u.hostConn.Read(b)
	if errors.Is(err, io.EOF) {
		err = errHostGone
	}
	return n, err
}

// vsockListener is a socket of the kernel, which the net package does not know.
type vsockListener struct {
	file *os.File
	raw  syscall.RawConn
}

// listenVsock fails where the kernel has no vsock.
func listenVsock(port uint32) (*vsockListener, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("making a vsock socket: %w", err)
	}
	unix.CloseOnExec(fd)
	err = unix.SetNonblock(fd, true)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port})
	}
	if err == nil {
		err = unix.Listen(fd, 8)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listening on vsock port %d: %w", port, err)
	}
	l := &vsockListener{file: os.NewFile(uintptr(fd), "vsock")}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		_ = l.file.Close()
		return nil, fmt.Errorf("listening on vsock port %d: %w", port, err)
	}
	return l, nil
}

func (l *vsockListener) Close() error { return l.file.Close() }

// accept waits for the host. Programs of the guest, which may reach its own sockets as well, are turned away: what the
// agent runs, it runs as root.
func (l *vsockListener) accept() (hostConn, error) {
	for {
		var fd int
		var from unix.Sockaddr
		var err error
		waited := l.raw.Read(func(listening uintptr) bool {
			fd, from, err = unix.Accept(int(listening))
			return !errors.Is(err, unix.EAGAIN)
		})
		switch {
		case waited != nil:
			return nil, waited
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return nil, err
		}
		if !fromHost(from) {
			_ = unix.Close(fd)
			continue
		}
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
			return nil, err
		}
		return os.NewFile(uintptr(fd), "host"), nil
	}
}

func fromHost(from unix.Sockaddr) bool {
	vm, ok := from.(*unix.SockaddrVM)
	return ok && (vm.CID == hostCID || vm.CID == hypervisorCID)
}
