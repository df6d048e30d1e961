package central

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
)

// Inspection is what a replica's data directory holds, and the state that it makes.
type Inspection struct {
	*consensus.Found
	Commands int // of the log, beyond the newest snapshot
	State    fsm.View
	Hash     string // of the state: equal at equal index on every replica
}

// offline is the state of a replica that does not run.
type offline struct{ state *fsm.State }

func (o offline) Apply(entries []consensus.Entry) []any {
	out, _ := applyAll(o.state, entries) // the error is among the results
	return out
}

func (o offline) Snapshot() (io.WriterTo, error) { return o.state.View(), nil }
func (o offline) ClusterID() string              { return o.state.View().Meta().ClusterID }

func (o offline) Restore(r io.ReadCloser) error {
	return errors.Join(o.state.Restore(r), r.Close())
}

// Inspect reads the data directory of a replica that does not run, replays its log, and holds the state to its
// invariants. It changes nothing. What is wrong is among the faults; an error says that nothing can be told, and a
// *consensus.ExitError with ExitUpgrade that this program is too old for the log.
func Inspect(dir string) (*Inspection, error) {
	o := offline{fsm.New()}
	commands := 0
	found, err := consensus.Inspect(dir, o, func(index uint64, result any) error {
		commands++
		if err, failed := result.(error); failed {
			return &consensus.ExitError{Code: ExitUpgrade, Message: err.Error()}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	in := &Inspection{Found: found, Commands: commands, State: o.state.View()}
	if err := in.State.Check(); err != nil {
		in.Faults = append(in.Faults, "the state breaks a rule: "+err.Error())
	}
	if in.Hash, err = in.State.Hash(); err != nil {
		return nil, fmt.Errorf("summing up the state: %w", err)
	}
	return in, nil
}

// Survivors are the servers of a cluster to go on with: those named, as NAME, or as NAME=ADDR at another cluster
// address; without names the inspected replica alone.
func (in *Inspection) Survivors(names []string) (servers []consensus.Server, err error) {
	if len(names) == 0 {
		names = []string{in.Name}
	}
	for _, pair := range names {
		name, addr, moved := strings.Cut(pair, "=")
		at := slices.IndexFunc(in.Members, func(m consensus.Member) bool { return m.Name == name })
		switch {
		case at < 0:
			return nil, fmt.Errorf("--peers %s: the cluster has no replica %q; name those of its members that still have their data", pair, name)
		case moved && addr == "":
			return nil, fmt.Errorf("--peers %s must be NAME or NAME=CLUSTERADDR", pair)
		case slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.Name == name }):
			return nil, fmt.Errorf("--peers names %s twice", name)
		case !moved:
			addr = in.Members[at].Addr
		}
		servers = append(servers, consensus.Server{Name: name, Addr: addr})
	}
	if !slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.Name == in.Name }) {
		return nil, fmt.Errorf("--peers must name %s, whose data the cluster goes on with", in.Name)
	}
	return servers, nil
}

// Recover makes these servers the whole cluster, after a majority is lost for good, with the state that was inspected.
// As after a restore the epoch is newer, and hosts are merged one by one: the lost replicas may have known of VMs that
// this one does not. It gives the new epoch.
func (in *Inspection) Recover(dir string, servers []consensus.Server, now time.Time) (epoch uint64, err error) {
	if len(in.Faults) > 0 || in.State.Meta().ClusterID == "" {
		return 0, &consensus.ExitError{Code: consensus.ExitConfig, Message: "what this replica holds is damaged or holds no cluster yet: recover another one, or restore a backup to a new cluster (fluxctl cluster restore)"}
	}
	spool, err := os.CreateTemp(dir, "restore-*") // a start sweeps away what a crash leaves of it
	if err != nil {
		return 0, fmt.Errorf("keeping the new state: %w", err)
	}
	defer func() { _ = errors.Join(spool.Close(), os.Remove(spool.Name())) }()
	if _, err := in.State.WriteTo(spool); err != nil {
		return 0, fmt.Errorf("keeping the new state: %w", err)
	}
	err = consensus.Recover(dir, in.Found, servers, func(w io.Writer) error {
		if _, err := spool.Seek(0, io.SeekStart); err != nil {
			return err
		}
		meta, err := fsm.PrepareRestore(spool, w, "recover", uint64(max(0, now.Unix())), in.NextIndex())
		epoch = meta.Epoch
		return err
	})
	return epoch, err
}
