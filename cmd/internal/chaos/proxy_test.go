package chaos

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// TestLinksDelayAndReset: a delayed link carries everything in order, later; a cut one carries nothing until it is mended.
func TestLinksDelayAndReset(t *testing.T) {
	real, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newLinks([]string{"127.0.0.1"}, []string{"127.0.0.1"})
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() { l.serve(ctx, port, 0, real.Addr().String()) })
	serving.Go(func() {
		for {
			c, err := real.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { _, _ = io.Copy(c, c); _ = c.Close() }) // an echo
		}
	})
	defer func() {
		cancel()
		_, _ = port.Close(), real.Close()
		l.close()
		serving.Wait()
	}()
	echo := func(c net.Conn, text string) (string, error) {
		if _, err := io.WriteString(c, text); err != nil {
			return "", err
		}
		got := make([]byte, len(text))
		_, err := io.ReadFull(c, got)
		return string(got), err
	}
	dial := func() net.Conn {
		c, err := net.Dial("tcp", port.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	c := dial()
	if got, err := echo(c, "one"); got != "one" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	const late = 60 * time.Millisecond
	l.slow(0, 0, late)
	began := time.Now()
	if got, err := echo(c, "two"); got != "two" || err != nil || time.Since(began) < 2*late {
		t.Errorf("got %q, %v after %s, want it delayed there and back", got, err, time.Since(began))
	}
	l.slow(0, 0, 0)
	l.cut(0, 0, true)
	if got, err := echo(c, "three"); err == nil {
		t.Errorf("a cut link carried %q", got)
	}
	if c, err := net.Dial("tcp", port.Addr().String()); err == nil { // it may be reset before it is there
		defer c.Close()
		if got, err := echo(c, "four"); err == nil {
			t.Errorf("a cut link took a new connection and carried %q", got)
		}
	}
	l.cut(0, 0, false)
	if got, err := echo(dial(), "five"); got != "five" || err != nil {
		t.Errorf("a mended link: got %q, %v", got, err)
	}
}
