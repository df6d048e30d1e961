package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	diskMiB       = 256
	snapshots     = "300,600,5s" // entries between snapshots, entries kept, how often that is looked at
	comeUp        = 2 * time.Minute
	stopPatience  = 30 * time.Second
	operatorToken = "fvx_op_chaos-campaign-operator-token"
)

// place is where a replica runs: a namespace, a disk, and a member of the cluster or none.
type place struct {
	i         int
	disk      string // a mount
	clockFile string
	daemon    *daemon

	mu     sync.Mutex
	member string // name; empty: none
	joins  bool   // it starts as one that joins
}

func (p *place) name() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.member
}

func (p *place) url() string { return "http://" + net.JoinHostPort(replicaIP(p.i), apiPort) }

func (p *place) target() target {
	return target{name: p.name(), url: p.url(), run: p.daemon.run()}
}

// host is a sim node.
type host struct {
	i      int
	name   string
	daemon *daemon
}

func (h *host) target() target {
	return target{name: h.name, url: "http://" + net.JoinHostPort(hostIP(h.i), hostPort), run: h.daemon.run()}
}

// fleet is the processes of a campaign.
type fleet struct {
	cfg    Config
	rec    *record
	call   *caller
	dir    string
	tokens string // file
	places []*place
	hosts  []*host
	links  *links
	ports  []net.Listener
	serves sync.WaitGroup
	admin  *client.Client

	writes  *writes // these three watch and use the fleet, and faults tell them what they do
	truth   *truth
	clients *clients

	mu    sync.Mutex
	names int // replicas named so far
}

func newFleet(cfg Config, rec *record) (*fleet, error) {
	f := &fleet{cfg: cfg, rec: rec, call: newCaller(rec), dir: cfg.Dir, tokens: filepath.Join(cfg.Dir, "operator-token")}
	if err := os.WriteFile(f.tokens, []byte(operatorToken), 0o600); err != nil {
		return nil, fmt.Errorf("writing the operator token: %w", err)
	}
	var ips, aliases, endpoints []string
	for i := range cfg.Replicas + 1 { // one more, for those that join
		ips, aliases = append(ips, replicaIP(i)), append(aliases, replicaAlias(i))
		p := &place{i: i, disk: filepath.Join(cfg.Dir, replicaNet(i)), clockFile: filepath.Join(cfg.Dir, "clock-"+replicaNet(i))}
		p.daemon = &daemon{log: filepath.Join(cfg.Dir, replicaNet(i)+".log"), rec: rec, argv: func() ([]string, []string) { return f.replicaArgs(p) }}
		f.places = append(f.places, p)
		endpoints = append(endpoints, "http://"+net.JoinHostPort(replicaIP(i), apiPort))
	}
	for i := range cfg.Hosts {
		h := &host{i: i, name: fmt.Sprintf("node-%d", i+1)}
		h.daemon = &daemon{name: h.name, log: filepath.Join(cfg.Dir, h.name+".log"), rec: rec, argv: func() ([]string, []string) { return f.hostArgs(h, endpoints), nil }}
		f.hosts = append(f.hosts, h)
	}
	f.links = newLinks(ips, aliases)
	var err error
	f.admin, err = client.New(client.Config{Endpoints: endpoints, Token: operatorToken, Timeout: time.Minute})
	return f, err
}

func (f *fleet) newName() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names++
	return fmt.Sprintf("central-%d", f.names)
}

func (f *fleet) replicaArgs(p *place) (args, env []string) {
	address := net.JoinHostPort(replicaIP(p.i), clusterPort)
	args = []string{"nsenter", "--net=/run/netns/" + replicaNet(p.i), f.cfg.Agent, "central", "--name", p.name(), "--listen", net.JoinHostPort(replicaIP(p.i), apiPort), "--url", p.url(),
		"--cluster-listen", address, "--advertise", net.JoinHostPort(replicaAlias(p.i), clusterPort), "--data", filepath.Join(p.disk, "data"), "--operator-token-file", f.tokens, "--insecure", "--log-level", "info"}
	p.mu.Lock()
	joins := p.joins
	p.mu.Unlock()
	if joins {
		var urls []string
		for _, other := range f.members() {
			if other != p {
				urls = append(urls, other.url())
			}
		}
		args = append(args, "--join", strings.Join(urls, ","), "--join-token-file", filepath.Join(f.dir, "join-token"))
	} else {
		var initial []string
		for i := range f.cfg.Replicas {
			initial = append(initial, fmt.Sprintf("central-%d=%s", i+1, net.JoinHostPort(replicaAlias(i), clusterPort)))
		}
		args = append(args, "--bootstrap", "--initial", strings.Join(initial, ","))
	}
	return args, []string{"FLUXVM_CHAOS_CLOCK=" + p.clockFile, "FLUXVM_CHAOS_SNAPSHOTS=" + snapshots}
}

func (f *fleet) hostArgs(h *host, central []string) []string {
	return []string{"nsenter", "--net=/run/netns/" + hostNet(h.i), f.cfg.Agent, "node", "--name", h.name, "--listen", net.JoinHostPort(hostIP(h.i), hostPort), "--advertise-url", "http://" + net.JoinHostPort(hostIP(h.i), hostPort),
		"--data", filepath.Join(f.dir, h.name), "--backend", "sim", "--central", strings.Join(central, ","), "--join-token-file", f.tokens, "--admin-token-file", f.tokens, "--heartbeat-secs", "2", "--insecure", "--log-level", "info"}
}

// up starts everything and waits until it serves. The links between replicas last as long as whole.
func (f *fleet) up(ctx, whole context.Context) error {
	if err := layNetwork(len(f.places), len(f.hosts)); err != nil {
		return err
	}
	for _, p := range f.places {
		if err := os.MkdirAll(p.disk, 0o700); err != nil {
			return fmt.Errorf("making a place for a disk: %w", err)
		}
		if err := mountDisk(p.disk, diskMiB); err != nil {
			return err
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(replicaAlias(p.i), clusterPort))
		if err != nil {
			return fmt.Errorf("listening for a replica: %w", err)
		}
		f.ports = append(f.ports, listener)
		f.serves.Go(func() {
			f.links.serve(whole, listener, p.i, net.JoinHostPort(replicaIP(p.i), clusterPort))
		})
	}
	for _, p := range f.places[:f.cfg.Replicas] {
		p.member = f.newName()
		p.daemon.name = p.member
		p.daemon.start()
	}
	for _, h := range f.hosts {
		h.daemon.start()
	}
	if why := f.await(ctx, comeUp); why != "" {
		return fmt.Errorf("the fleet did not come up: %s; its logs are in %s", why, f.dir)
	}
	return nil
}

// down ends everything. Machines are times in the hosts' memory, so nothing is left.
func (f *fleet) down() {
	var all sync.WaitGroup
	for _, h := range f.hosts {
		all.Go(func() { h.daemon.end(syscall.SIGTERM, stopPatience) })
	}
	all.Wait()
	for _, p := range f.places {
		all.Go(func() { p.daemon.end(syscall.SIGTERM, stopPatience) })
	}
	all.Wait()
	for _, l := range f.ports {
		_ = l.Close() // serve ends with it
	}
	f.links.close()
	f.serves.Wait()
	for _, p := range f.places {
		_ = syscall.Unmount(p.disk, syscall.MNT_DETACH) // it ends with the namespace in any case
	}
}

// members are the places that are part of the cluster.
func (f *fleet) members() (all []*place) {
	for _, p := range f.places {
		if p.name() != "" {
			all = append(all, p)
		}
	}
	return all
}

func (f *fleet) placeOf(name string) *place {
	for _, p := range f.places {
		if name != "" && p.name() == name {
			return p
		}
	}
	return nil
}

// any is a replica by chance.
func (f *fleet) any(rng *rand.Rand) target {
	all := f.members()
	return all[rng.IntN(len(all))].target()
}

// cluster asks the replicas in turn who leads, until one knows.
func (f *fleet) cluster(ctx context.Context) (out api.Cluster, err error) {
	err = errors.New("there is no replica to ask")
	for _, p := range f.members() {
		a := f.call.once(ctx, p.target(), request{token: operatorToken, method: "GET", path: "/fleet/cluster", timeout: 3 * time.Second})
		if a.what != done {
			err = a.err
			continue
		}
		if err = a.read(&out); err == nil && out.Leader != "" {
			f.rec.with(func() { f.rec.leaders[out.Term] = out.Leader })
			return out, nil
		}
	}
	return out, err
}

// leader is the place of the present leader, nil while there is none.
func (f *fleet) leader(ctx context.Context) *place {
	if k, err := f.cluster(ctx); err == nil {
		return f.placeOf(k.Leader)
	}
	return nil
}

// missing says what does not serve; empty when all does.
func (f *fleet) missing(ctx context.Context) string {
	k, err := f.cluster(ctx)
	if err != nil {
		return fmt.Sprintf("no replica tells of the cluster: %v", err)
	}
	var names []string
	for _, p := range f.members() {
		names = append(names, p.name())
		a := f.call.once(ctx, p.target(), request{token: operatorToken, method: "GET", path: "/readyz", timeout: 3 * time.Second})
		if a.what != done {
			return fmt.Sprintf("%s is not ready: %v", p.name(), a.err)
		}
	}
	for _, r := range k.Replicas {
		if !slices.Contains(names, r.Name) {
			return r.Name + " is still a member"
		}
		if r.Role == "nonvoter" || !r.Healthy {
			return fmt.Sprintf("%s is %s, healthy %t", r.Name, r.Role, r.Healthy)
		}
	}
	if len(k.Replicas) != len(names) {
		return fmt.Sprintf("%d of %d replicas are members", len(k.Replicas), len(names))
	}
	return ""
}

// hostless names a host that is not healthy; empty when all are.
func (f *fleet) hostless(ctx context.Context) string {
	seen := 0
	for n, err := range f.admin.Nodes(ctx, client.Filter{}) {
		switch {
		case err != nil:
			return err.Error()
		case n.State != api.NodeHealthy:
			return fmt.Sprintf("%s is %s: %s", n.Name, n.State, n.Reason)
		}
		seen++
	}
	if seen != len(f.hosts) {
		return fmt.Sprintf("%d of %d hosts are there", seen, len(f.hosts))
	}
	return ""
}

// await waits until replicas and hosts serve, and says what does not.
func (f *fleet) await(ctx context.Context, patience time.Duration) string {
	return until(ctx, patience, func() string {
		if why := f.missing(ctx); why != "" {
			return why
		}
		return f.hostless(ctx)
	})
}

// until asks again and again until the answer is empty or the time is over, and gives the last one.
func until(ctx context.Context, patience time.Duration, ask func() string) string {
	deadline := time.Now().Add(patience)
	for {
		why := ask()
		if why == "" {
			return ""
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return why
		}
		pause(ctx, 100*time.Millisecond)
	}
}
