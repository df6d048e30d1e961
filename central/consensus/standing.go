package consensus

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// Standing is what a replica's disk says of its part in a cluster.
type Standing struct {
	Blank     bool   // it holds no log, vote or snapshot
	ClusterID string // empty before it has applied the cluster's first command
	peers     *peers
}

// HasMet says whether the named replica has ever voted for this one or stored what it sent.
func (s Standing) HasMet(name string) bool { return s.peers != nil && s.peers.has(name) }

// Look reads a replica's standing before it is opened. A disk that Open would refuse is refused here, too.
func Look(cfg Config) (s Standing, err error) {
	if err := cfg.fill(); err != nil {
		return s, err
	}
	var d *disk
	if cfg.Network != nil {
		d = cfg.Network.disk(cfg.Name)
	} else if d, err = openDisk(cfg.DataDir, cfg.Name, true, cfg.Logger.Named("snapshots")); err != nil {
		return s, err
	}
	hasState, err := raft.HasExistingState(d.logs, d.stable, d.snapshots)
	if err = errors.Join(err, d.close()); err != nil {
		return s, fmt.Errorf("reading the raft store: %w", err)
	}
	return Standing{Blank: !hasState, ClusterID: d.identity.ClusterID, peers: d.peers}, nil
}

// Standing is that of a replica that runs.
func (n *Node) Standing() Standing {
	// What is on its disk it applies only once a leader has said how far it counts.
	return Standing{Blank: n.raft.LastIndex() == 0, ClusterID: cmp.Or(n.cfg.FSM.ClusterID(), n.marked), peers: n.disk.peers}
}

// peers are the replicas that ever voted for this one or stored what it sent. A name is on disk before raft may count
// the vote or the copy.
type peers struct {
	path string // empty in memory

	mu  sync.Mutex
	met map[string]bool
}

func readPeers(path string) (*peers, error) {
	p := &peers{path: path, met: map[string]bool{}}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	var names []string
	if err == nil {
		err = json.Unmarshal(raw, &names)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which replicas were met: %w", err)
	}
	for _, n := range names {
		p.met[n] = true
	}
	return p, nil
}

func (p *peers) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met[name]
}

func (p *peers) note(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.met[name] {
		return nil
	}
	next := append(slices.Sorted(maps.Keys(p.met)), name)
	if p.path != "" {
		raw, err := json.Marshal(next)
		if err == nil {
			err = writeSynced(p.path, append(raw, '\n'))
		}
		if err != nil {
			return fmt.Errorf("noting that %s was met: %w", name, err)
		}
	}
	p.met[name] = true
	return nil
}
