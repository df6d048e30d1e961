//go:build linux || darwin

package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

// unixAccepter stands in for vsock where a test cannot be sure of it: the same sessions over a socket of the host.
type unixAccepter struct{ net.Listener }

func (u unixAccepter) accept() (hostConn, error) {
	conn, err := u.Accept()
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

func TestEveryConnectionIsASessionAndAllEndWithTheAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- serveVsock(ctx, unixAccepter{l}, &guest.Server{}) }()
	var clients []*guest.Client
	for range 3 { // the first is left open: the daemon it belongs to has hung
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c := guest.Attach(conn)
		defer c.Close()
		within, done := context.WithTimeout(ctx, time.Minute)
		if _, err := c.Ping(within); err != nil {
			t.Fatal(err)
		}
		done()
		clients = append(clients, c)
	}
	if err := clients[1].Close(); err != nil {
		t.Fatal(err)
	}
	within, done := context.WithTimeout(ctx, time.Minute)
	defer done()
	if got, err := clients[0].Exec(within, guest.ExecRequest{Argv: []string{"echo", "x"}}); err != nil || string(got.Stdout) != "x\n" {
		t.Errorf("got %+v and %v on a connection beside one that has ended", got, err)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the agent does not end")
	}
}

func TestOnlyTheHostIsServedOnVsock(t *testing.T) {
	for cid, want := range map[uint32]bool{hostCID: true, hypervisorCID: true, 1: false, 3: false, unix.VMADDR_CID_ANY: false} {
		if got := fromHost(&unix.SockaddrVM{CID: cid}); got != want {
			t.Errorf("%d: got %v", cid, got)
		}
	}
	if fromHost(&unix.SockaddrUnix{}) || fromHost(nil) {
		t.Error("something that is no vsock address is taken for the host")
	}
}

func TestVsockListenerEndsWhenClosed(t *testing.T) {
	l, err := listenVsock(guest.VsockPort)
	if err != nil {
		t.Skipf("this kernel has no vsock: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := l.accept()
		got <- err
	}()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err == nil {
			t.Error("a closed listener gave a connection")
		}
	case <-time.After(time.Minute):
		t.Fatal("accept waits on")
	}
}
