//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// portSilence is how long the port waits for word of its host before it looks by itself.
const portSilence = time.Second

// hostPort is the virtio-serial port. While no host is there each read of it ends at once; so after one that did it waits
// until the kernel tells of a change, for guests are many and a daemon may be away for long.
type hostPort struct {
	*os.File
	silence time.Duration
	changes int  // epoll's, which tells of each change once
	alone   bool // the last read found no host
}

// openHostPort opens the device.
func openHostPort(path string) (*hostPort, error) {
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0) // without O_NONBLOCK a read could not be interrupted
	if err != nil {
		return nil, err
	}
	p, err := watchPort(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

func watchPort(f *os.File) (*hostPort, error) {
	changes, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watching the host's port: %w", err)
	}
	raw, err := f.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) {
			failed = unix.EpollCtl(changes, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET})
		})
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching the host's port: %w", err), unix.Close(changes))
	}
	return &hostPort{File: f, silence: portSilence, changes: changes}, nil
}

// Read is the file's, and io.EOF says that no host is there. Only one caller may read.
func (p *hostPort) Read(b []byte) (int, error) {
	if p.alone {
		_, _ = unix.EpollWait(p.changes, make([]unix.EpollEvent, 1), int(p.silence.Milliseconds())) // whatever it was, the read tells
	}
	n, err := p.File.Read(b)
	p.alone = errors.Is(err, io.EOF)
	return n, err
}

// Close ends the watching as well. Nobody reads any more.
func (p *hostPort) Close() error { return errors.Join(p.File.Close(), unix.Close(p.changes)) }
