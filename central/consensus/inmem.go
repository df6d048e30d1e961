package consensus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/hashicorp/raft"
)

// Network is the cluster ports and the disks of several replicas in memory, so that a whole cluster can run in one
// test, with virtual time if need be. A replica's cluster address on it is its name. A replica that is closed and
// opened again under its name finds its disk as it was.
type Network struct {
	mu       sync.Mutex
	disks    map[string]*disk
	ports    map[string]*raft.InmemTransport
	https    map[string]*queue
	pipes    map[*pipe]bool
	cut      map[[2]string]bool
	isolated map[string]bool
}

// NewNetwork makes a network without replicas.
func NewNetwork() *Network {
	return &Network{
		disks:    make(map[string]*disk),
		ports:    make(map[string]*raft.InmemTransport),
		https:    make(map[string]*queue),
		pipes:    make(map[*pipe]bool),
		cut:      make(map[[2]string]bool),
		isolated: make(map[string]bool),
	}
}

// Cut loses everything between two replicas until Heal.
func (w *Network) Cut(a, b string) { w.change(func() { w.cut[pair(a, b)] = true }) }

// Heal undoes Cut.
func (w *Network) Heal(a, b string) { w.change(func() { delete(w.cut, pair(a, b)) }) }

// Isolate loses everything between a replica and all others until Rejoin.
func (w *Network) Isolate(name string) { w.change(func() { w.isolated[name] = true }) }

// Rejoin undoes Isolate.
func (w *Network) Rejoin(name string) { w.change(func() { delete(w.isolated, name) }) }

// Connected says whether messages between two replicas get through.
func (w *Network) Connected(a, b string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.connected(a, b)
}

// Wipe empties the disk of a replica that is not running.
func (w *Network) Wipe(name string) { w.change(func() { delete(w.disks, name) }) }

// Forget makes a replica that is not running one that never ran: its disk is empty, and no other has met it.
func (w *Network) Forget(name string) {
	w.change(func() {
		delete(w.disks, name)
		for _, d := range w.disks {
			d.peers.mu.Lock()
			delete(d.peers.met, name)
			d.peers.mu.Unlock()
		}
	})
}

func (w *Network) connected(a, b string) bool {
	return !w.cut[pair(a, b)] && !w.isolated[a] && !w.isolated[b]
}

func pair(a, b string) [2]string {
	if a > b {
		a, b = b, a
	}
	return [2]string{a, b}
}

// change alters the wiring and makes the transports follow it.
func (w *Network) change(alter func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	alter()
	for a, from := range w.ports {
		for b, to := range w.ports {
			if a == b {
				continue
			}
			if w.connected(a, b) {
				from.Connect(raft.ServerAddress(b), to)
			} else {
				from.Disconnect(raft.ServerAddress(b))
			}
		}
	}
	for p := range w.pipes {
		if !w.connected(p.from, p.to) {
			_ = p.Conn.Close()
			delete(w.pipes, p)
		}
	}
}

// HTTP is the listener of a replica's HTTP server on its cluster port, as Mux.HTTP is. Closing it lets the name
// listen again.
func (w *Network) HTTP(name string) net.Listener {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := newQueue(address(name))
	w.https[name] = q
	return q
}

// DialHTTP gives what connects from one replica to the HTTP server of another, as Mux.DialHTTP does.
func (w *Network) DialHTTP(from string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, addr string) (net.Conn, error) {
		to := addr
		if host, _, err := net.SplitHostPort(addr); err == nil {
			to = host
		}
		w.mu.Lock()
		server, connected := w.https[to], w.connected(from, to)
		w.mu.Unlock()
		if server == nil || !connected {
			return nil, fmt.Errorf("dialing the cluster port of %s: no route", to)
		}
		near, far := net.Pipe()
		if err := server.offer(ctx, far); err != nil {
			return nil, errors.Join(fmt.Errorf("dialing the cluster port of %s: %w", to, err), near.Close())
		}
		p := &pipe{near, w, from, to}
		w.change(func() { w.pipes[p] = true })
		return p, nil
	}
}

// pipe is the dialer's end of an HTTP connection; closing it ends the other one.
type pipe struct {
	net.Conn
	network  *Network
	from, to string
}

func (p *pipe) Close() error {
	p.network.mu.Lock()
	delete(p.network.pipes, p)
	p.network.mu.Unlock()
	return p.Conn.Close()
}

// memoryTransport replicates the way the real one does, without pipelines.
type memoryTransport struct {
	*raft.InmemTransport
	detach func()
}

func (memoryTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

func (t memoryTransport) Close() error {
	t.detach()
	return t.InmemTransport.Close()
}

func (w *Network) attach(name string) memoryTransport {
	_, port := raft.NewInmemTransport(raft.ServerAddress(name))
	w.change(func() { w.ports[name] = port })
	return memoryTransport{port, func() {
		w.change(func() {
			if w.ports[name] != port {
				return
			}
			delete(w.ports, name)
			for _, other := range w.ports {
				other.Disconnect(raft.ServerAddress(name))
			}
		})
	}}
}

func (w *Network) disk(name string) *disk {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.disks[name]
	if d == nil {
		store := raft.NewInmemStore()
		d = &disk{
			logs: store, stable: store, snapshots: &memorySnapshots{}, identity: &identity{}, peers: &peers{met: map[string]bool{}},
			usage: func() (int64, int64) { return 0, 0 },
			close: func() error { return nil },
		}
		w.disks[name] = d
	}
	return d
}

// memorySnapshots keeps the newest complete snapshots. Raft's own in-memory store shows one that is still being
// written.
type memorySnapshots struct {
	mu    sync.Mutex
	taken []*memorySink // newest first
	made  int
}

type memorySink struct {
	store *memorySnapshots
	meta  raft.SnapshotMeta
	body  bytes.Buffer
}

func (s *memorySnapshots) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return &memorySink{store: s, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%d-%d-%d", term, index, s.made),
		Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
	}}, nil
}

func (s *memorySnapshots) List() ([]*raft.SnapshotMeta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var metas []*raft.SnapshotMeta
	for _, sink := range s.taken {
		meta := sink.meta
		metas = append(metas, &meta)
	}
	return metas, nil
}

func (s *memorySnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sink := range s.taken {
		if sink.meta.ID == id {
			meta := sink.meta
			return &meta, io.NopCloser(bytes.NewReader(sink.body.Bytes())), nil
		}
	}
	return nil, nil, errors.New("no such snapshot")
}

func (s *memorySink) Write(p []byte) (int, error) { return s.body.Write(p) }
func (s *memorySink) ID() string                  { return s.meta.ID }
func (s *memorySink) Cancel() error               { return nil }

func (s *memorySink) Close() error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.meta.Size = int64(s.body.Len())
	s.store.taken = append([]*memorySink{s}, s.store.taken...)
	if len(s.store.taken) > snapshotsKept {
		s.store.taken = s.store.taken[:snapshotsKept]
	}
	return nil
}
