package consensus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Config says what a Node runs on.
type Config struct {
	// Name is the replica's name, its identity in the cluster for as long as it lives. Required.
	Name string
	// DataDir holds identity.json and the directory raft. Not used with Network.
	DataDir string
	// Mux is the cluster port. Exactly one of Mux and Network is set; the caller closes it after the Node.
	Mux *Mux
	// Network runs the replica in memory, its cluster port and its disk included.
	Network *Network
	// FSM is the replicated state. Required.
	FSM FSM
	// Create allows an empty data directory. Set it only when the operator asked for a new replica (--bootstrap,
	// --join): a member that lost its disk must not come back with its votes forgotten.
	Create bool
	// ElectionTimeout is how long a follower waits for the leader, and a leader for a majority. 0 means 2 s.
	ElectionTimeout time.Duration
	// SnapshotThreshold is how many log entries make a snapshot worth while. 0 means 8,192.
	SnapshotThreshold uint64
	// TrailingLogs is how many entries are kept behind a snapshot for followers that lag. 0 means 20,000.
	TrailingLogs uint64
	// SnapshotInterval is how often the threshold is looked at. 0 means 30 s.
	SnapshotInterval time.Duration
	// Logger is where the Node and raft log. Nil means nowhere.
	Logger hclog.Logger
	// Exit ends the process; it is called at most once, when the replica can do no good any more, from any
	// goroutine, raft's own included: it must not wait for Close. Nil logs the message and calls os.Exit.
	Exit func(code int, message string)
}

func (c *Config) fill() error {
	switch {
	case c.Name == "":
		return errors.New("opening consensus: a replica needs a name")
	case c.FSM == nil:
		return errors.New("opening consensus: no state machine given")
	case (c.Mux == nil) == (c.Network == nil):
		return errors.New("opening consensus: give either a cluster port or an in-memory network")
	case c.Mux != nil && c.DataDir == "":
		return errors.New("opening consensus: no data directory given")
	}
	if c.ElectionTimeout == 0 {
		c.ElectionTimeout = 2 * time.Second
	}
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = 8192
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 20000
	}
	if c.SnapshotInterval == 0 {
		c.SnapshotInterval = 30 * time.Second
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Exit == nil {
		logger := c.Logger
		c.Exit = func(code int, message string) {
			logger.Error("replica ends", "reason", message, "exit_code", code)
			os.Exit(code)
		}
	}
	return nil
}

func (c *Config) raft(notify chan<- bool) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(c.Name)
	conf.ProtocolVersion = 3
	conf.HeartbeatTimeout = c.ElectionTimeout
	conf.ElectionTimeout = c.ElectionTimeout
	conf.LeaderLeaseTimeout = c.ElectionTimeout
	conf.MaxAppendEntries = 64
	conf.BatchApplyCh = false // else the enqueue timeout says nothing about what was enqueued
	conf.ShutdownOnRemove = true
	conf.TrailingLogs = c.TrailingLogs
	conf.SnapshotThreshold = c.SnapshotThreshold
	conf.SnapshotInterval = c.SnapshotInterval
	conf.NoLegacyTelemetry = true
	conf.NotifyCh = notify
	conf.Logger = c.Logger.Named("raft")
	return conf
}

// Node is one replica's hold on the log. Make it with Open.
type Node struct {
	cfg     Config
	raft    *raft.Raft
	disk    *disk
	trans   *ackedTransport
	machine *machine
	atStart uint64
	marked  string // the cluster that the data directory belonged to at the start

	slots     chan struct{} // one for each goroutine that waits on a raft future
	abandoned atomic.Int64  // operations, ever, whose caller stopped waiting
	handing   atomic.Bool   // an operation was refused because leadership is being handed over

	leadership leadership
	reads      reads
	exitOnce   sync.Once

	life      context.Context // ends first: operations are refused from here on
	end       context.CancelFunc
	stopped   chan struct{}  // closed when raft is down
	tasks     sync.WaitGroup // verify loop and watchdog
	drain     sync.WaitGroup // the goroutine that listens to raft; it outlives raft
	closeOnce sync.Once
	closeErr  error
}

// Open starts the replica on what its disk holds. It never starts a cluster: a new replica waits until Bootstrap
// is called here, or until the leader of a running cluster adds it. An *ExitError says that the data directory
// must not be used as it is, and what to do.
func Open(cfg Config) (*Node, error) {
	return open(cfg, func(t transport) transport { return t })
}

// open lets a test put faults into the transport.
func open(cfg Config, through func(transport) transport) (*Node, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, slots: make(chan struct{}, maxWaiting), stopped: make(chan struct{})}
	n.life, n.end = context.WithCancel(context.Background())
	n.leadership.changed = make(chan struct{})
	n.leadership.unreachable = make(map[raft.ServerID]bool)
	if err := n.start(through); err != nil {
		n.end()
		if n.trans != nil {
			err = errors.Join(err, n.trans.Close())
		}
		if n.disk != nil {
			err = errors.Join(err, n.disk.close())
		}
		return nil, err
	}
	return n, nil
}

func (n *Node) start(through func(transport) transport) (err error) {
	cfg := &n.cfg
	if cfg.Network != nil {
		n.disk = cfg.Network.disk(cfg.Name)
	} else if n.disk, err = openDisk(cfg.DataDir, cfg.Name, cfg.Create, cfg.Logger.Named("snapshots")); err != nil {
		return err
	}
	hasState, err := raft.HasExistingState(n.disk.logs, n.disk.stable, n.disk.snapshots)
	if err != nil {
		return fmt.Errorf("reading the raft store: %w", err)
	}
	if err := n.disk.identity.check(cfg.Name, hasState, cfg.Create); err != nil {
		return err
	}
	n.marked = n.disk.identity.ClusterID
	if n.atStart, err = n.disk.lastCommand(); err != nil {
		return err
	}
	failed := func(operation string, err error) { n.exit(ExitFault, writeFault(operation, err)) }
	logs, stable, err := wrapLogs(n.disk.logs, n.disk.stable, func(operation string) {
		n.exit(ExitFault, fmt.Sprintf("%s took longer than %s: look at the disk that holds the data directory", operation, storeLimit))
	}, failed)
	if err != nil {
		return fmt.Errorf("opening the raft store: %w", err)
	}
	n.machine = &machine{fsm: cfg.FSM, name: cfg.Name, identity: n.disk.identity, exit: n.exit}
	var inner transport
	if cfg.Network != nil {
		inner = cfg.Network.attach(cfg.Name)
	} else {
		inner = newTransport(cfg.Mux, cfg.ElectionTimeout, cfg.Logger.Named("transport"))
	}
	n.trans = &ackedTransport{transport: through(inner), met: n.disk.peers.note, acks: make(map[raft.ServerID]ack)}

	// Room for a gain and a loss even while the listener is busy; raft itself waits for room.
	notify := make(chan bool, 8)
	conf := cfg.raft(notify)
	if err := raft.ValidateConfig(conf); err != nil {
		return fmt.Errorf("opening consensus: %w", err)
	}
	err = recovered("the raft directory", func() (err error) {
		n.raft, err = raft.NewRaft(conf, n.machine, logs, stable, taggedSnapshots{n.disk.snapshots, failed}, n.trans)
		return err
	})
	if n.machine.refusal != nil {
		return n.machine.refusal
	}
	if err != nil {
		return err
	}
	n.machine.running.Store(true)
	n.drain.Go(func() { n.listen(notify) })
	n.tasks.Go(n.watch)
	return nil
}

func (n *Node) exit(code int, message string) {
	n.exitOnce.Do(func() { n.cfg.Exit(code, message) })
}

// Bootstrap starts a new cluster of these servers, which must include this one. Every server of the set may call
// it with the same list. Where there is state already it changes nothing.
func (n *Node) Bootstrap(servers []Server) error {
	var conf raft.Configuration
	for _, s := range servers {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.Name), Address: raft.ServerAddress(s.Addr)})
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeLimit)
	defer cancel()
	err := n.wait(ctx, func() error { return n.raft.BootstrapCluster(conf).Error() })
	switch {
	case err == nil, errors.Is(err, raft.ErrCantBootstrap):
		return nil
	case errors.Is(err, raft.ErrNotVoter):
		return fmt.Errorf("starting the cluster: replica %q is not in the initial set: add it there or correct --name", n.cfg.Name)
	}
	return fmt.Errorf("starting the cluster: %w", err)
}

// Close stops the replica. A leader that can reach another voter hands leadership over first. Operations still
// waiting are given a moment to end. It may be called more than once; every call waits for the first.
func (n *Node) Close() error {
	n.closeOnce.Do(func() { n.closeErr = n.shutdown() })
	return n.closeErr
}

func (n *Node) shutdown() error {
	patience := 2 * n.cfg.ElectionTimeout
	if _, leading := n.leading(); leading && n.hasSuccessor() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		if err := n.Transfer(ctx, ""); err != nil {
			n.cfg.Logger.Warn("leadership was not handed over", "error", err)
		}
		cancel()
	}
	n.reads.close()
	n.end()
	n.tasks.Wait()

	// A future that raft has not answered when it stops is never answered. While it runs, every one is: a leader
	// without a majority steps down after an election timeout.
	timeout := time.After(patience)
wait:
	for range cap(n.slots) {
		select {
		case n.slots <- struct{}{}:
		case <-timeout:
			break wait
		}
	}

	down := make(chan error, 1)
	go func() { down <- n.raft.Shutdown().Error() }()
	select {
	case err := <-down:
		close(n.stopped)
		n.drain.Wait()
		// Raft closes the transport only if it was this call that stopped it.
		return errors.Join(err, n.trans.Close(), n.disk.close())
	case <-time.After(storeLimit):
		// It still uses disk and listener, so they stay open: only the end of the process frees them.
		return fmt.Errorf("closing the replica: raft did not stop within %s", storeLimit)
	}
}
