package central

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/central/console"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

// DefaultPoolInterval is how often the pool reconciler looks when nothing wakes it.
const DefaultPoolInterval = 5 * time.Second

// Config says what a replica runs on.
type Config struct {
	// Name is the replica's identity in the cluster for as long as it lives. Required.
	Name string
	// Listener is where the fleet API is served. Run closes it. Required.
	Listener net.Listener
	// URL is where clients and nodes reach the API. Empty means http:// and the listener's address.
	URL string
	// Cluster is the open cluster port, ClusterAddr the address at which other replicas dial it (empty: its own).
	// Run closes it. Required.
	Cluster     net.Listener
	ClusterAddr string
	// DataDir holds the log, snapshots, the identity file and a generated operator token. Required.
	DataDir string
	// Bootstrap starts a cluster of Initial, or of this replica alone. Where there is state it changes nothing.
	Bootstrap bool
	Initial   []consensus.Server
	// Join are API addresses of a running cluster that a replica without state becomes a member of, by JoinToken. Where
	// there is state it changes nothing. JoinVia carries the request; nil means a client of its own.
	Join      []string
	JoinToken string
	JoinVia   *http.Client
	// OperatorToken is the first operator's, taken by the first leader. Empty: it makes one and writes it to
	// DataDir/operator-token.
	OperatorToken string
	// PoolInterval is how often pools are looked at when nothing wakes the reconciler. 0 means 5 s.
	PoolInterval time.Duration
	// NoReconcile turns the background reconcilers off.
	NoReconcile bool
	// DiskReserve is the room in bytes on the disk of DataDir below which the replica takes in nothing new. 0 means 128 MiB.
	DiskReserve uint64
	// ElectionTimeout is raft's. 0 means 2 s.
	ElectionTimeout time.Duration
	// SnapshotThreshold is how many log entries make a snapshot worth while, TrailingLogs how many are kept behind it,
	// SnapshotInterval how often that is looked at. 0 means 8,192, 20,000 and 30 s.
	SnapshotThreshold, TrailingLogs uint64
	SnapshotInterval                time.Duration
	// Version is what the cluster's status shows.
	Version string
	// Wall is the clock, with its monotonic part. Nil means time.Now.
	Wall func() time.Time
	// Network runs the replica in memory, for tests: no listeners, no disk. Handler and PeerHandler are then served by
	// the caller, and Peers and Nodes carry its requests to other replicas (by cluster address) and to node daemons.
	Network      *consensus.Network
	Peers, Nodes http.RoundTripper
	// TLS is this replica's certificate and what it trusts, for both ports and for what it dials. Nil means no TLS.
	TLS *certs.Source
	// RequireClientCert makes callers of the API show a certificate, beside their token.
	RequireClientCert bool
	// NodeCA signs the certificates of nodes that ask for one. Nil: nodes bring their own.
	NodeCA *certs.Authority
	// NodeNetworks, where there are any, are the only ones in which nodes are dialed.
	NodeNetworks []netip.Prefix
	// Insecure lets nodes be spoken to without TLS beyond this host although this replica has TLS.
	Insecure bool
	// Logger is where the replica logs. Nil means nowhere.
	Logger hclog.Logger
	// Exit ends the process when it can do no good any more. Nil logs and calls os.Exit.
	Exit func(code int, message string)

	// For tests: the commands of another release, and a disk as full as wanted.
	newest, baseline fsm.Kind
	free             func() (uint64, error)
}

// Replica is one member of the control plane. Make it with New, run it with Run.
type Replica struct {
	cfg     Config
	logger  hclog.Logger
	wall    func() time.Time
	state   *fsm.State
	clock   *leaderClock
	fleet   *fleet
	calls   *nodeCaller
	hosts   *hosts
	encoded encodedVMs
	metrics *metrics
	console *console.Handler
	used    keyUses
	limits  limits
	disk    storage
	log     *consensus.Node // set by Run before opened is closed
	opened  chan struct{}
	stored  atomic.Int64 // index up to which the log was there before this process; -1 until it is known
	peers   *http.Client // to other replicas, over their cluster ports
	reign   atomic.Pointer[reign]
	stands  atomic.Pointer[func() consensus.Standing]
	closing chan struct{}                             // closed when the replica ends, so that streams do
	queries map[string][]string                       // query parameters of each route, by method and path
	members atomic.Pointer[func() []consensus.Member] // nil until the log is open
	port    *consensus.Mux                            // nil in memory; set by Run
	vouched atomic.Pointer[map[string]bool]           // names that other members count as members
	known   atomic.Pointer[[]string]                  // URLs of all replicas, as far as they have answered
}

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Replica, error) {
	switch {
	case cfg.Name == "":
		return nil, errors.New("a replica needs a name: give --name")
	case cfg.Network != nil:
		if cfg.Listener != nil || cfg.Cluster != nil || cfg.Peers == nil || cfg.Nodes == nil {
			return nil, errors.New("a replica in memory takes Peers and Nodes and no listeners")
		}
	case cfg.Listener == nil || cfg.Cluster == nil:
		return nil, errors.New("a replica needs an API listener and a cluster port")
	case cfg.DataDir == "":
		return nil, errors.New("a replica needs a data directory: give --data")
	}
	if cfg.URL == "" && cfg.Listener != nil {
		cfg.URL = "http://" + cfg.Listener.Addr().String()
		if cfg.TLS != nil {
			cfg.URL = "https://" + cfg.Listener.Addr().String()
		}
	}
	if cfg.PoolInterval == 0 {
		cfg.PoolInterval = DefaultPoolInterval
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.Exit == nil {
		logger := cfg.Logger
		cfg.Exit = func(code int, message string) {
			logger.Error("the replica ends", "reason", message, "exit_code", code)
			os.Exit(code)
		}
	}
	if cfg.newest == 0 {
		cfg.newest, cfg.baseline = fsm.Newest, fsm.Baseline
	}
	if cfg.free == nil && cfg.Network == nil {
		cfg.free = freeBytes(cfg.DataDir)
	}
	if cfg.DiskReserve == 0 {
		cfg.DiskReserve = DefaultDiskReserve
	}
	r := &Replica{cfg: cfg, logger: cfg.Logger, wall: cfg.Wall, state: fsm.NewKnowing(cfg.newest), clock: &leaderClock{wall: cfg.Wall},
		fleet: newFleet(cfg.Wall()), opened: make(chan struct{}), closing: make(chan struct{}),
		disk: storage{reserve: cfg.DiskReserve, free: cfg.free, logger: cfg.Logger}}
	if cfg.Nodes == nil {
		r.cfg.Nodes = r.nodeTransport()
	}
	r.calls = newNodeCaller(r.cfg.Nodes, cfg.Wall)
	r.hosts = newHosts(r.state, r.fleet, r.calls.lanes)
	var err error
	if r.console, err = console.New(); err != nil {
		return nil, err
	}
	if r.queries, err = api.QueryParameters(); err != nil {
		return nil, err
	}
	r.limits = newLimits(cfg.Wall, cfg.Network != nil)
	r.stored.Store(-1)
	r.metrics = newMetrics(r)
	return r, nil
}

// Run serves until ctx ends, then hands leadership over and stops. An *consensus.ExitError says that the data
// directory must not be used as it is.
func (r *Replica) Run(ctx context.Context) (err error) {
	conf := consensus.Config{Name: r.cfg.Name, DataDir: r.cfg.DataDir, Network: r.cfg.Network, FSM: machine{r}, Create: r.cfg.Bootstrap || len(r.cfg.Join) > 0,
		ElectionTimeout: r.cfg.ElectionTimeout, SnapshotThreshold: r.cfg.SnapshotThreshold, TrailingLogs: r.cfg.TrailingLogs, SnapshotInterval: r.cfg.SnapshotInterval,
		Logger: r.logger, Exit: r.cfg.Exit}
	defer r.followCertificates(ctx)()
	self := r.cfg.Name
	if r.cfg.Network == nil {
		if err := os.MkdirAll(r.cfg.DataDir, 0o700); err != nil {
			return fmt.Errorf("making the data directory: %w", err)
		}
		conf.Mux, err = consensus.NewMux(r.clusterPort())
		if err != nil {
			return err
		}
		defer conf.Mux.Close()
		r.port = conf.Mux
		self = conf.Mux.Advertise()
		r.cfg.Peers = &http.Transport{DialContext: conf.Mux.DialHTTP, MaxIdleConnsPerHost: 32, IdleConnTimeout: 90 * time.Second}
	}
	r.peers = &http.Client{Transport: r.cfg.Peers}
	inner := r.serveInner(conf.Mux)
	defer inner.stop()
	if err := r.enter(ctx, conf, self); err != nil {
		return err
	}
	if r.log, err = consensus.Open(conf); err != nil {
		return err
	}
	stands, members := r.log.Standing, r.log.Members
	r.stands.Store(&stands)
	r.members.Store(&members)
	r.stored.Store(int64(r.log.LastIndexAtStart()))
	if r.cfg.Bootstrap {
		servers := r.cfg.Initial
		if len(servers) == 0 {
			servers = []consensus.Server{{Name: r.cfg.Name, Addr: self}}
		}
		if err := r.log.Bootstrap(servers); err != nil {
			return errors.Join(err, r.log.Close())
		}
	}
	return r.serve(ctx, conf.Mux, inner)
}

// enter makes sure, before the log is opened, that a replica without state may take part: as one of an initial set, or
// as one that the cluster has let in. Until the log is open nobody can get this replica's vote.
func (r *Replica) enter(ctx context.Context, conf consensus.Config, self string) error {
	if !conf.Create {
		return nil
	}
	found, err := consensus.Look(conf)
	if err != nil {
		return err
	}
	stands := func() consensus.Standing { return found }
	r.stands.Store(&stands)
	switch {
	case !found.Blank:
		return nil
	case len(r.cfg.Join) > 0:
		return r.join(ctx, self)
	}
	return r.mayStart(ctx)
}

// inner is the HTTP server behind the cluster port. It runs before the log is open.
type inner struct {
	server *http.Server
	failed chan error
}

func (r *Replica) serveInner(port *consensus.Mux) *inner {
	in := &inner{failed: make(chan error, 1)}
	if port == nil { // the caller serves PeerHandler
		return in
	}
	in.server = r.server(r.PeerHandler())
	go func() { in.failed <- in.server.Serve(port.HTTP()) }()
	return in
}

// stop cuts what is left; its listener is the cluster port's.
func (in *inner) stop() {
	if in.server != nil {
		_ = in.server.Close() // the port is closed by its owner
		<-in.failed
		in.server = nil
	}
}

// serve runs the leadership and, unless in memory, the API, until ctx ends or a server fails.
func (r *Replica) serve(ctx context.Context, port *consensus.Mux, in *inner) error {
	leadCtx, stopLeading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeading()
	var work sync.WaitGroup
	work.Go(func() { r.lead(leadCtx) })
	work.Go(func() { r.followPeers(leadCtx) })
	work.Go(func() { r.fleet.listen(leadCtx, r.wall) })
	var public *http.Server
	failed := make(chan error, 1)
	if port != nil {
		public = r.server(r.Handler())
		work.Go(func() { failed <- public.Serve(r.apiListener()) })
		r.logger.Info("serving", "name", r.cfg.Name, "url", r.cfg.URL, "cluster_addr", port.Advertise())
	}
	close(r.opened)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	case err = <-in.failed:
		in.failed <- err // for stop
	}
	close(r.closing)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if public != nil {
		_ = public.Shutdown(stop) // what does not end in time is cut below
	}
	stopLeading()
	err = errors.Join(err, r.log.Close())
	if public != nil {
		_ = public.Close() // its listener is closed already
	}
	in.stop()
	work.Wait()
	r.calls.close()
	r.peers.CloseIdleConnections()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

func (r *Replica) server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: guard.BodyTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: r.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
}

// machine is the state as the log applies to it.
type machine struct{ r *Replica }

// Apply carries out commands. One that this replica is too old for ends the process: to skip it would part its state
// from the others'.
func (m machine) Apply(entries []consensus.Entry) []any {
	stored := m.r.stored.Load()
	replayed := func(e consensus.Entry) bool { return stored < 0 || e.Index <= uint64(stored) }
	if i := slices.IndexFunc(entries, func(e consensus.Entry) bool { return !replayed(e) }); i > 0 { // time counts from there on
		out := m.Apply(entries[:i])
		if err, failed := out[i-1].(error); failed {
			return append(out, slices.Repeat([]any{err}, len(entries)-i)...)
		}
		return append(out, m.Apply(entries[i:])...)
	}
	out, err := applyAll(m.r.state, entries)
	if err != nil {
		m.r.cfg.Exit(ExitUpgrade, err.Error())
		return out
	}
	m.r.metrics.commands.Add(float64(len(entries)))
	m.r.clock.committed(m.r.state.View().Meta().Now, replayed(entries[0]))
	return out
}

// applyAll gives as many results as there are entries; from the one on that was not understood they are the error.
func applyAll(state *fsm.State, entries []consensus.Entry) ([]any, error) {
	in := make([]fsm.Entry, len(entries))
	for i, e := range entries {
		in[i] = fsm.Entry(e)
	}
	results, err := state.ApplyAll(in)
	out := make([]any, len(entries))
	for i := range out {
		if out[i] = err; i < len(results) {
			out[i] = results[i]
		}
	}
	return out, err
}

// ExitUpgrade is the exit code of a replica that is too old for the log.
const ExitUpgrade = 79

func (m machine) Snapshot() (io.WriterTo, error) { return m.r.state.View(), nil }

func (m machine) Restore(rc io.ReadCloser) error {
	defer rc.Close()
	if err := m.r.state.Restore(rc); err != nil {
		if errors.Is(err, fsm.ErrUpgrade) { // raft would only offer it again and again
			m.r.cfg.Exit(ExitUpgrade, err.Error())
		}
		return err
	}
	m.r.clock.committed(m.r.state.View().Meta().Now, true)
	return nil
}

func (m machine) ClusterID() string { return m.r.state.View().Meta().ClusterID }

// initCluster names a new cluster and its first operator. Each leader of a cluster without a name tries.
func (r *Replica) initCluster(ctx context.Context, g *reign) error {
	if r.state.View().Meta().ClusterID != "" {
		return nil
	}
	token := r.cfg.OperatorToken
	if token == "" {
		var err error
		if token, err = r.ownOperatorToken(); err != nil {
			return err
		}
	}
	_, err := g.propose(ctx, fsm.KindInitCluster, actorCentral, nil, fsm.InitCluster{ClusterID: uuid.NewString(), Epoch: 1, OperatorHash: hashToken(token)})
	return err
}

// ownOperatorToken reads the token that this replica made, or makes it.
func (r *Replica) ownOperatorToken() (string, error) {
	path := filepath.Join(r.cfg.DataDir, "operator-token")
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("reading the operator token: %w", err)
	}
	token := NewToken("fvx_op_")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("writing the operator token: %w", err)
	}
	r.logger.Info("made the first operator token", "file", path)
	return token, nil
}

// NewToken makes a secret of 32 random bytes with a prefix that says what it is.
func NewToken(prefix string) string {
	raw := make([]byte, 32)
	rand.Read(raw) // never fails
	return prefix + base64.RawURLEncoding.EncodeToString(raw)
}

// hashToken is how secrets are kept. They are random, so a plain hash does.
func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Leads says whether this replica leads and is ready to serve.
func (r *Replica) Leads() bool { return r.reign.Load() != nil }
