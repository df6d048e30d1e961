package consensus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// The first byte a dialer sends names the protocol of its connection. None starts an HTTP request or a TLS
// handshake, so a stray client is recognised.
const (
	protocolRaft byte = 1
	protocolHTTP byte = 2
)

const (
	firstByteLimit = 5 * time.Second // for the handshake and the first byte, and then for someone to accept
	maxUnsorted    = 256             // connections that have not said yet what they are
)

// MuxConfig says what a cluster port is.
type MuxConfig struct {
	// Listener is the open port. The Mux closes it. Required.
	Listener net.Listener
	// Advertise is the address others dial to reach it. Empty means the listener's own.
	Advertise string
	// TLS secures both directions: as a server it presents Certificates and asks clients for theirs as
	// ClientAuth says, as a client it trusts RootCAs. Nil means no TLS.
	TLS *tls.Config
	// DialTLS, where it is set, gives the client's side for an address instead.
	DialTLS func(addr string) *tls.Config
	// Member says whether who is at the other end may speak Raft. It is asked of each connection with TLS when it comes in,
	// and by Sift. Nil means whoever TLS has let in. HTTP is its server's business.
	Member func(*tls.ConnectionState) error
	// Logger is where refused connections are logged. Nil means nowhere.
	Logger hclog.Logger
}

// Mux lets Raft and HTTP between replicas share one port.
type Mux struct {
	cfg  MuxConfig
	raft *raftLayer
	http *queue

	unsorted  chan struct{}
	life      context.Context
	end       context.CancelFunc
	tasks     sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// NewMux starts to accept connections. Close ends it.
func NewMux(cfg MuxConfig) (*Mux, error) {
	if cfg.Listener == nil {
		return nil, errors.New("opening the cluster port: no listener given")
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Advertise == "" {
		cfg.Advertise = cfg.Listener.Addr().String()
	}
	host, _, err := net.SplitHostPort(cfg.Advertise)
	if err != nil {
		return nil, fmt.Errorf("opening the cluster port: %w: give --advertise as HOST:PORT", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return nil, fmt.Errorf("opening the cluster port: nobody can dial %s: give --advertise an address that other replicas reach", cfg.Advertise)
	}
	m := &Mux{cfg: cfg, unsorted: make(chan struct{}, maxUnsorted)}
	m.life, m.end = context.WithCancel(context.Background())
	m.http = newQueue(address(cfg.Advertise))
	m.raft = &raftLayer{queue: newQueue(address(cfg.Advertise)), mux: m, open: make(map[*raftConn]bool)}
	m.tasks.Go(m.accept)
	return m, nil
}

// Advertise is the address that others dial.
func (m *Mux) Advertise() string { return m.cfg.Advertise }

// HTTP is the listener of the replica-to-replica HTTP server.
func (m *Mux) HTTP() net.Listener { return m.http }

// DialHTTP connects to the HTTP server behind another replica's cluster port; it fits http.Transport.DialContext.
func (m *Mux) DialHTTP(ctx context.Context, _, addr string) (net.Conn, error) {
	return m.dial(ctx, addr, protocolHTTP)
}

// Close stops accepting and ends every Raft connection. HTTP connections that were accepted belong to their
// server.
func (m *Mux) Close() error {
	m.closeOnce.Do(func() {
		m.end()
		m.closeErr = errors.Join(m.cfg.Listener.Close(), m.raft.Close(), m.http.Close())
		m.tasks.Wait()
	})
	return m.closeErr
}

// Sift closes the Raft connections whose other end may not speak Raft any more.
func (m *Mux) Sift() {
	for _, c := range m.raft.accepted() {
		if err := m.member(c.Conn); err != nil {
			_ = c.Close()
			m.cfg.Logger.Warn("cluster port closed a connection whose other end may not use it any more", "from", c.RemoteAddr(), "error", err)
		}
	}
}

func (m *Mux) member(conn net.Conn) error {
	secured, ok := conn.(*tls.Conn)
	if !ok || m.cfg.Member == nil {
		return nil
	}
	state := secured.ConnectionState()
	return m.cfg.Member(&state)
}

func (m *Mux) accept() {
	pause := 5 * time.Millisecond
	for {
		conn, err := m.cfg.Listener.Accept()
		if m.life.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil {
			m.cfg.Logger.Warn("cluster port could not accept", "error", err)
			select {
			case <-m.life.Done():
				return
			case <-time.After(pause):
			}
			pause = min(2*pause, time.Second)
			continue
		}
		pause = 5 * time.Millisecond
		select {
		case m.unsorted <- struct{}{}:
			m.tasks.Go(func() {
				m.sort(conn)
				<-m.unsorted
			})
		default:
			_ = conn.Close()
			m.cfg.Logger.Warn("cluster port is crowded, connection refused", "from", conn.RemoteAddr())
		}
	}
}

// sort hands a new connection to whom it is for.
func (m *Mux) sort(conn net.Conn) {
	ctx, cancel := context.WithTimeout(m.life, firstByteLimit)
	defer cancel()
	plain := conn
	unwatch := context.AfterFunc(ctx, func() { _ = plain.Close() })
	conn, first, err := m.greet(ctx, plain)
	if err != nil {
		_ = conn.Close()
		if m.life.Err() == nil {
			m.cfg.Logger.Warn("cluster port dropped a connection", "from", conn.RemoteAddr(), "error", err)
		}
		return
	}
	if !unwatch() {
		return // too late, it is closed
	}
	switch first {
	case protocolRaft:
		if err = m.member(conn); err == nil {
			err = m.raft.offer(ctx, m.raft.track(conn))
		}
	case protocolHTTP:
		err = m.http.offer(ctx, conn)
	default:
		err = fmt.Errorf("it speaks neither Raft nor HTTP between replicas (first byte %#x)", first)
	}
	if err == nil {
		return
	}
	_ = conn.Close() // what was offered and not taken is closed already
	if m.life.Err() == nil {
		m.cfg.Logger.Warn("cluster port dropped a connection", "from", conn.RemoteAddr(), "error", err)
	}
}

// greet and dial are the two places where a connection is secured.
func (m *Mux) greet(ctx context.Context, conn net.Conn) (net.Conn, byte, error) {
	if m.cfg.TLS != nil {
		secured := tls.Server(conn, m.cfg.TLS)
		if err := secured.HandshakeContext(ctx); err != nil {
			return conn, 0, err
		}
		conn = secured
	}
	var first [1]byte
	_, err := conn.Read(first[:])
	return conn, first[0], err
}

func (m *Mux) dial(ctx context.Context, addr string, protocol byte) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, firstByteLimit)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	unwatch := context.AfterFunc(ctx, func() { _ = conn.Close() })
	secured := conn
	if m.cfg.TLS != nil {
		conf := m.clientTLS(addr)
		client := tls.Client(conn, conf)
		err = client.HandshakeContext(ctx)
		secured = client
	}
	if err == nil {
		_, err = secured.Write([]byte{protocol})
	}
	if !unwatch() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("dialing the cluster port of %s: %w", addr, err)
	}
	return secured, nil
}

func (m *Mux) clientTLS(addr string) *tls.Config {
	if m.cfg.DialTLS != nil {
		return m.cfg.DialTLS(addr)
	}
	conf := m.cfg.TLS
	if conf.ServerName == "" {
		conf = conf.Clone()
		conf.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return conf
}

// address is an advertised address; it need not be an IP.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// queue is a listener fed by hand.
type queue struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newQueue(addr net.Addr) *queue {
	return &queue{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

func (q *queue) Addr() net.Addr { return q.addr }

func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// offer passes the connection on, or closes it if nobody takes it.
func (q *queue) offer(ctx context.Context, conn net.Conn) error {
	select {
	case q.conns <- conn:
		return nil
	case <-q.closed:
	case <-ctx.Done():
	}
	return errors.Join(errors.New("nobody accepts it here"), conn.Close())
}

// raftLayer is the cluster port as raft wants it. Raft never closes the connections it accepted, so closing the
// layer does.
type raftLayer struct {
	*queue
	mux *Mux

	mu   sync.Mutex
	open map[*raftConn]bool // nil once closed
}

var _ raft.StreamLayer = (*raftLayer)(nil)

type raftConn struct {
	net.Conn
	layer *raftLayer
}

func (l *raftLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.mux.life, timeout)
	defer cancel()
	return l.mux.dial(ctx, string(addr), protocolRaft)
}

func (l *raftLayer) track(conn net.Conn) net.Conn {
	c := &raftConn{conn, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		_ = conn.Close()
	} else {
		l.open[c] = true
	}
	return c
}

func (l *raftLayer) accepted() (out []*raftConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		out = append(out, c)
	}
	return out
}

func (c *raftConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.open, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}

func (l *raftLayer) Close() error {
	_ = l.queue.Close()
	l.mu.Lock()
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
	return nil
}
