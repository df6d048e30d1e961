package chaos

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// links carry what replicas say to each other. Each replica dials the others at addresses of the campaign, which knows
// by the caller's address whose link it is and dials on from that caller's address.
type links struct {
	mu    sync.Mutex
	byIP  map[string]int // the caller's place by its address
	alias []string       // of each place: where others reach it, and as whom it reaches others
	state map[[2]int]*link
	stops sync.WaitGroup
}

// link is one direction of dialling, from one replica to another.
type link struct {
	delay time.Duration // of everything, either way
	reset bool          // no connection lasts
	conns map[net.Conn]bool
}

func newLinks(ips, aliases []string) *links {
	l := &links{byIP: map[string]int{}, alias: aliases, state: map[[2]int]*link{}}
	for i, ip := range ips {
		l.byIP[ip] = i
	}
	return l
}

// of gives the link; the lock is held.
func (l *links) of(from, to int) *link {
	k := [2]int{from, to}
	if l.state[k] == nil {
		l.state[k] = &link{conns: map[net.Conn]bool{}}
	}
	return l.state[k]
}

// slow sets the delay of a link.
func (l *links) slow(from, to int, by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(from, to).delay = by
}

// cut ends the link's connections by a reset; while on, later ones as well.
func (l *links) cut(from, to int, on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	one := l.of(from, to)
	one.reset = on
	for c := range one.conns {
		abort(c)
	}
}

func abort(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a reset, not an end
	}
	_ = c.Close()
}

// serve takes what is dialled at place to and passes it on to its real address, until the listener closes.
func (l *links) serve(ctx context.Context, listener net.Listener, to int, address string) {
	for {
		in, err := listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			pause(ctx, 10*time.Millisecond)
			continue
		}
		host, _, _ := net.SplitHostPort(in.RemoteAddr().String())
		from, known := l.byIP[host]
		if !known {
			abort(in)
			continue
		}
		l.stops.Go(func() { l.carry(ctx, in, from, to, address) })
	}
}

func (l *links) carry(ctx context.Context, in net.Conn, from, to int, address string) {
	dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(l.alias[from])}}
	out, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		abort(in)
		return
	}
	l.mu.Lock()
	one := l.of(from, to)
	dead := one.reset || ctx.Err() != nil
	one.conns[in], one.conns[out] = true, true
	l.mu.Unlock()
	if dead {
		abort(in)
		abort(out)
	}
	var both sync.WaitGroup
	both.Go(func() { l.pump(out, in, from, to) })
	both.Go(func() { l.pump(in, out, from, to) })
	both.Wait()
	l.mu.Lock()
	delete(one.conns, in)
	delete(one.conns, out)
	l.mu.Unlock()
}

// parcel is what was read at once, and when it may arrive.
type parcel struct {
	due time.Time
	raw []byte
}

// pump carries one direction of one connection. When it ends, both ends are closed.
func (l *links) pump(to, from net.Conn, a, b int) {
	way := make(chan parcel, 64)
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range way {
			if wait := time.Until(p.due); wait > 0 {
				time.Sleep(wait)
			}
			if _, err := to.Write(p.raw); err != nil {
				_ = from.Close() // ends the reading
			}
		}
	})
	for {
		raw := make([]byte, 32<<10)
		n, err := from.Read(raw)
		if n > 0 {
			l.mu.Lock()
			late := l.of(a, b).delay
			l.mu.Unlock()
			way <- parcel{time.Now().Add(late), raw[:n]}
		}
		if err != nil {
			close(way)
			writer.Wait()
			if !errors.Is(err, io.EOF) {
				abort(to)
			}
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// close ends every connection and waits for them. The listeners are closed already.
func (l *links) close() {
	l.mu.Lock()
	for _, one := range l.state {
		for c := range one.conns {
			abort(c)
		}
	}
	l.mu.Unlock()
	l.stops.Wait()
}
