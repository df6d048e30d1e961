package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// port is a virtio-serial port as a guest sees it: reads end with io.EOF while no host is there, and writes wait
// for one.
type port struct {
	mu   sync.Mutex
	cond *sync.Cond
	host net.Conn // the guest's side of a pipe to the host, nil without one
	shut bool
}

var errShut = errors.New("the port is closed")

func newPort(t *testing.T) *port {
	p := &port{}
	p.cond = sync.NewCond(&p.mu)
	t.Cleanup(p.close)
	return p
}

// attach connects a new host, in place of an earlier one, and returns its end of the stream.
func (p *port) attach() net.Conn {
	outside, inside := net.Pipe()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.host != nil {
		_ = p.host.Close()
	}
	p.host = inside
	p.cond.Broadcast()
	return outside
}

func (p *port) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = true
	if p.host != nil {
		_ = p.host.Close()
	}
	p.cond.Broadcast()
}

func (p *port) gone(host net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.host == host {
		p.host = nil
	}
}

func (p *port) Read(b []byte) (int, error) {
	p.mu.Lock()
	host, shut := p.host, p.shut
	p.mu.Unlock()
	if shut {
		return 0, errShut
	}
	if host == nil {
		return 0, io.EOF
	}
	n, err := host.Read(b)
	if err != nil {
		p.gone(host)
		return n, io.EOF
	}
	return n, nil
}

func (p *port) Write(b []byte) (int, error) {
	for done := 0; ; {
		p.mu.Lock()
		for p.host == nil && !p.shut {
			p.cond.Wait()
		}
		host, shut := p.host, p.shut
		p.mu.Unlock()
		if shut {
			return done, errShut
		}
		n, err := host.Write(b[done:])
		if done += n; done == len(b) {
			return done, nil
		}
		if err != nil {
			p.gone(host)
		}
	}
}

// serve runs an agent on the port until the test ends or stop is called.
func serve(t *testing.T, p *port, s *Server) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, p) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			p.mu.Lock()
			if p.host != nil {
				_ = p.host.SetReadDeadline(time.Unix(1, 0))
			}
			p.mu.Unlock()
			p.close()
			if err := <-ended; err != nil {
				t.Errorf("serving: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// client attaches a host to the port until the test ends.
func client(t *testing.T, p *port) *Client {
	t.Helper()
	c := Attach(p.attach())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// soon is a context that ends long after any of these tests should have.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
