package fleettest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/central"
	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/node"
	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// Config says what fleet to run. The zero value is three replicas and one sim node in Dir.
type Config struct {
	// Dir holds everything. Required; it should be empty or of an earlier run.
	Dir string
	// Replicas of central. 0 means 3.
	Replicas int
	// Nodes, called node-1 and so on, of which the first Macs pose as Macs. Negative means none.
	Nodes, Macs int
	// Drivers makes a node's drivers. Nil means the sim driver on a host of 16 vCPUs and 64 GiB.
	Drivers func() ([]machine.Driver, error)
	// Listen is the first replica's API address; empty means a free port. The others take free ports.
	Listen string
	// PoolInterval and ElectionTimeout are central's. 0 means 5 s and 1 s.
	PoolInterval, ElectionTimeout time.Duration
	// Version is what the replicas say they are.
	Version string
	// Logger is where all of it logs. Nil means nowhere.
	Logger hclog.Logger
}

// Fleet is one that runs.
type Fleet struct {
	Token string // the operator's

	cfg      Config
	replicas []*replica
	nodes    []*host
	stopOnce sync.Once
	stopErr  error
}

type replica struct {
	name, url, clusterAddr, dir string
	*central.Replica
	runner
}

type host struct {
	name, url, dir string
	runner
}

// runner is a part that runs until it is stopped.
type runner struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error // valid after done
}

func (r *runner) start(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		r.err = run(ctx)
	}()
}

func (r *runner) stop() error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	<-r.done
	return r.err
}

// Start runs the fleet and waits until every replica is ready and every node is healthy, or ctx ends.
func Start(ctx context.Context, cfg Config) (*Fleet, error) {
	if cfg.Replicas == 0 {
		cfg.Replicas = 3
	}
	if cfg.Nodes == 0 {
		cfg.Nodes = 1
	}
	if cfg.ElectionTimeout == 0 {
		cfg.ElectionTimeout = time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	f := &Fleet{cfg: cfg}
	if err := f.start(ctx); err != nil {
		return nil, errors.Join(err, f.Stop())
	}
	return f, nil
}

func (f *Fleet) start(ctx context.Context) error {
	token, err := operatorToken(f.cfg.Dir)
	if err != nil {
		return err
	}
	f.Token = token
	if err := f.startReplicas(); err != nil {
		return err
	}
	for _, r := range f.replicas {
		if err := f.await(ctx, r.name+" to be ready", r.done, func() bool { return f.ok(ctx, r.url+"/readyz") }); err != nil {
			return errors.Join(err, r.err)
		}
	}
	for i := 1; i <= f.cfg.Nodes; i++ {
		if err := f.startNode(i); err != nil {
			return err
		}
	}
	for _, n := range f.nodes {
		if err := f.await(ctx, n.name+" to register", n.done, func() bool { return f.ok(ctx, f.replicas[0].url+"/fleet/nodes/"+n.name) }); err != nil {
			return errors.Join(err, n.err)
		}
	}
	return nil
}

// operatorToken reads or makes the token of a fleet's directory.
func operatorToken(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the fleet's directory: %w", err)
	}
	path := filepath.Join(dir, "operator-token")
	raw, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(raw)), nil
	}
	token := central.NewToken("fvx_op_")
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("writing the operator token: %w", err)
	}
	return token, nil
}

func (f *Fleet) startReplicas() (err error) {
	var servers []consensus.Server
	var ports []net.Listener
	defer func() {
		if err != nil {
			for _, port := range ports[len(f.replicas):] { // those that no replica runs on
				port.Close()
			}
		}
	}()
	addrs, err := ClusterAddrs(f.cfg.Dir, f.cfg.Replicas)
	if err != nil {
		return err
	}
	for i, addr := range addrs {
		port, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("opening a cluster port that this fleet has had from its first start: %w", err)
		}
		ports = append(ports, port)
		servers = append(servers, consensus.Server{Name: fmt.Sprintf("central-%d", i+1), Addr: addr})
	}
	for i, s := range servers {
		listen := "127.0.0.1:0"
		if i == 0 && f.cfg.Listen != "" {
			listen = f.cfg.Listen
		}
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("listening on %s: %w", listen, err)
		}
		one := &replica{name: s.Name, url: "http://" + listener.Addr().String(), clusterAddr: s.Addr, dir: filepath.Join(f.cfg.Dir, s.Name)}
		one.Replica, err = central.New(central.Config{Name: s.Name, Listener: listener, Cluster: ports[i], DataDir: one.dir, Bootstrap: true, Initial: servers,
			OperatorToken: f.Token, PoolInterval: f.cfg.PoolInterval, ElectionTimeout: f.cfg.ElectionTimeout, Version: f.cfg.Version, Logger: f.cfg.Logger.Named(s.Name)})
		if err != nil {
			return err
		}
		one.start(one.Replica.Run)
		f.replicas = append(f.replicas, one)
	}
	return nil
}

func (f *Fleet) startNode(i int) error {
	name := fmt.Sprintf("node-%d", i)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for %s: %w", name, err)
	}
	cfg := node.Config{Name: name, Listener: listener, DataDir: filepath.Join(f.cfg.Dir, name), Labels: map[string]string{api.LabelDevNode: name},
		Central: f.URLs(), JoinToken: f.Token, AdminTokens: []string{f.Token}, StopMachines: true, Logger: f.cfg.Logger.Named(name)}
	if f.cfg.Drivers == nil {
		cfg.Drivers = []machine.Driver{sim.New(sim.Config{Mac: i <= f.cfg.Macs})}
		cfg.VCPUsTotal, cfg.MemoryMiBTotal = sim.VCPUs, sim.MemoryMiB
	} else if cfg.Drivers, err = f.cfg.Drivers(); err != nil {
		return err
	}
	daemon, err := node.New(cfg)
	if err != nil {
		return err
	}
	one := &host{name: name, url: "http://" + listener.Addr().String(), dir: cfg.DataDir}
	one.start(daemon.Run)
	f.nodes = append(f.nodes, one)
	return nil
}

// ok says whether a GET by the operator answers 200.
func (f *Fleet) ok(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	req.Header.Set("Authorization", "Bearer "+f.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// await polls until probe says yes; it gives up when ctx ends or what it waits for has stopped.
func (f *Fleet) await(ctx context.Context, what string, stopped <-chan struct{}, probe func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !probe() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-stopped:
			return fmt.Errorf("waiting for %s: it stopped", what)
		case <-tick.C:
		}
	}
	return nil
}

// URLs are the replicas' API addresses.
func (f *Fleet) URLs() (urls []string) {
	for _, r := range f.replicas {
		urls = append(urls, r.url)
	}
	return urls
}

// NodeURLs are the nodes' own APIs, in the order of their numbers.
func (f *Fleet) NodeURLs() (urls []string) {
	for _, n := range f.nodes {
		urls = append(urls, n.url)
	}
	return urls
}

// StopReplica ends one replica, counted from 0, as a clean stop of its process would.
func (f *Fleet) StopReplica(i int) error { return f.replicas[i].stop() }

// Leads says whether replica i thinks that it leads and is ready.
func (f *Fleet) Leads(i int) bool { return f.replicas[i].Leads() }

// Ended is closed when a replica or node has ended, whoever ended it; err then says which and why.
func (f *Fleet) Ended() (ended <-chan struct{}, err func() error) {
	out := make(chan struct{})
	var once sync.Once
	var why error
	watch := func(name string, r *runner) {
		<-r.done
		once.Do(func() {
			why = fmt.Errorf("%s ended: %w", name, errors.Join(r.err, errors.New("it was not asked to")))
			close(out)
		})
	}
	for _, r := range f.replicas {
		go watch(r.name, &r.runner)
	}
	for _, n := range f.nodes {
		go watch(n.name, &n.runner)
	}
	return out, func() error { return why }
}

// Stop ends the nodes with their VMs, then the replicas. It may be called more than once.
func (f *Fleet) Stop() error {
	f.stopOnce.Do(func() {
		var errs []error
		for _, n := range f.nodes {
			errs = append(errs, n.stop())
		}
		var all sync.WaitGroup
		var mu sync.Mutex
		for _, r := range f.replicas {
			all.Go(func() {
				err := r.stop()
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		all.Wait()
		f.stopErr = errors.Join(errs...)
	})
	return f.stopErr
}
