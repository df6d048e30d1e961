//go:build linux

package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A FIFO that nobody has open for writing ends reads as the port does that has no host.
func TestAPortWithoutAHostIsNotReadAgainAndAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "port")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := watchPort(f)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	p.silence = time.Hour
	alone, said := make(chan struct{}), make(chan string, 1)
	go func() {
		b := make([]byte, 16)
		for looks := 0; looks < 10; looks++ {
			n, err := p.Read(b)
			switch {
			case errors.Is(err, io.EOF):
				if looks == 0 {
					close(alone)
				}
				continue
			case err != nil:
				said <- err.Error()
			default:
				said <- string(b[:n])
			}
			return
		}
		said <- "it was read again and again while nobody was there"
	}()
	<-alone
	host, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := host.WriteString("hello"); err != nil && !errors.Is(err, syscall.EPIPE) {
		t.Fatal(err)
	}
	if got := <-said; got != "hello" {
		t.Errorf("got %q, want what the host says", got)
	}
}
