package consensus

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// Found is what a data directory holds whose replica does not run.
type Found struct {
	Name, ClusterID string
	Members         []Member // of the newest membership in log or snapshot, committed or not
	First, Last     uint64   // entries in the log; 0 and 0 for none
	Term            uint64   // of the newest entry or snapshot; the larger one holds more of what was acknowledged
	SeenTerm        uint64   // newest term that the replica took part in
	Snapshots       []uint64 // the indexes they reach, newest first
	LogBytes        int64    // size of the log's file
	LogFreeBytes    int64    // of it free for reuse
	Faults          []string // what is wrong, in words; none of it keeps the rest from being read
}

// LastIndex is that of the newest entry, in the log or only in a snapshot.
func (f *Found) LastIndex() uint64 {
	last := f.Last
	for _, index := range f.Snapshots {
		last = max(last, index)
	}
	return last
}

// NextIndex is that of the state that Recover makes.
func (f *Found) NextIndex() uint64 { return f.LastIndex() + recoverGap }

func (f *Found) fault(format string, args ...any) {
	f.Faults = append(f.Faults, fmt.Sprintf(format, args...))
}

// Inspect reads the data directory of a replica that does not run: identity, store, log and snapshots. It brings the
// state, which must be empty, to what the newest snapshot and the log behind it make, and changes nothing on disk.
// apply is told of each command's result. An error says that the directory cannot be read at all, or is no replica's.
func Inspect(dir string, state FSM, apply func(index uint64, result any) error) (*Found, error) {
	id, err := readIdentity(filepath.Join(dir, "identity.json"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "raft", "raft.db")
	info, err := os.Stat(path)
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("opening the raft store: %w", err)
	case id.Name == "" && err != nil:
		return nil, refuse("%s holds no replica: name the right directory with --data", dir)
	case err != nil || info.Size() == 0:
		return nil, id.check(id.Name, false, false)
	}
	if err := checkBolt(path); err != nil {
		return nil, err
	}
	f := &Found{Name: id.Name, ClusterID: id.ClusterID, LogBytes: info.Size()}
	used, err := boltUse(path)
	if err != nil {
		return nil, err
	}
	f.LogFreeBytes = max(0, f.LogBytes-used)
	err = recovered(path, func() error {
		store, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{ReadOnly: true, Timeout: lockWait}})
		if err != nil {
			return err
		}
		defer store.Close()
		if f.SeenTerm, err = store.GetUint64(keyTerm()); err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
			return err
		}
		from, err := f.snapshots(dir, state)
		if err != nil {
			return err
		}
		return f.replay(store, from, state, apply)
	})
	if err != nil {
		return nil, err
	}
	if at := state.ClusterID(); at != "" && id.ClusterID != "" && at != id.ClusterID {
		f.fault("identity.json is of cluster %s and the state of cluster %s", id.ClusterID, at)
	}
	if f.SeenTerm < f.Term {
		f.fault("the log holds an entry of term %d and the replica says that it has seen %d", f.Term, f.SeenTerm)
	}
	f.ClusterID = cmp.Or(f.ClusterID, state.ClusterID())
	return f, nil
}

// boltUse counts the bytes of the pages that hold something.
func boltUse(path string) (used int64, err error) {
	err = recovered(path, func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
		if err != nil {
			return err
		}
		defer db.Close()
		return db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
				s := b.Stats()
				used += int64(s.BranchAlloc) + int64(s.LeafAlloc)
				return nil
			})
		})
	})
	return used, err
}

// keyTerm is where raft keeps the newest term.
func keyTerm() []byte { return []byte("CurrentTerm") }

// snapshots checks each and restores the newest that is whole. from is the index that the state has then.
func (f *Found) snapshots(dir string, state FSM) (from uint64, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, "raft", "snapshots"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	store, err := raft.NewFileSnapshotStoreWithLogger(filepath.Join(dir, "raft"), len(entries)+1, hclog.NewNullLogger())
	if err != nil {
		return 0, fmt.Errorf("reading snapshots: %w", err)
	}
	metas, err := store.List()
	if err != nil {
		return 0, fmt.Errorf("reading snapshots: %w", err)
	}
	for _, e := range entries {
		known := slices.ContainsFunc(metas, func(m *raft.SnapshotMeta) bool { return m.ID == e.Name() })
		if !known && e.IsDir() && !strings.HasSuffix(e.Name(), ".tmp") {
			f.fault("snapshot %s has no description that can be read", e.Name())
		}
	}
	for _, m := range metas {
		_, body, err := store.Open(m.ID)
		if err == nil && from == 0 {
			if err = state.Restore(body); err == nil {
				from, f.Term, f.Members = m.Index, m.Term, membersOf(m.Configuration)
			}
		} else if err == nil {
			err = body.Close()
		}
		if err != nil {
			f.fault("snapshot %s cannot be used: %v", m.ID, err)
			continue
		}
		f.Snapshots = append(f.Snapshots, m.Index)
	}
	return from, nil
}

// replay reads the whole log and applies what lies behind the index that the state has.
func (f *Found) replay(store *raftboltdb.BoltStore, from uint64, state FSM, apply func(uint64, any) error) (err error) {
	if f.First, err = store.FirstIndex(); err != nil {
		return err
	}
	if f.Last, err = store.LastIndex(); err != nil {
		return err
	}
	if f.Last == 0 {
		return nil
	}
	if f.First > from+1 {
		f.fault("entries %d to %d are neither in the log nor in a snapshot that can be read", from+1, f.First-1)
		return nil
	}
	term := uint64(0)
	for index := f.First; index <= f.Last; index++ {
		var entry raft.Log
		if err := store.GetLog(index, &entry); err != nil {
			f.fault("entry %d of the log cannot be read: %v", index, err)
			return nil
		}
		if entry.Index != index || entry.Term < term {
			f.fault("entry %d of the log says that it is entry %d of term %d, after one of term %d", index, entry.Index, entry.Term, term)
			return nil
		}
		if term = entry.Term; index <= from {
			continue
		}
		f.Term = max(f.Term, term)
		switch entry.Type {
		case raft.LogCommand:
			if err := apply(index, state.Apply([]Entry{{index, entry.Data}})[0]); err != nil {
				return err
			}
		case raft.LogConfiguration:
			f.Members = membersOf(raft.DecodeConfiguration(entry.Data))
		}
	}
	return nil
}

func membersOf(conf raft.Configuration) (members []Member) {
	for _, s := range conf.Servers {
		members = append(members, Member{Name: string(s.ID), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return members
}

// recoverGap lifts the new state above any index that a replica can have. Raft does not cope with a follower whose log is
// longer than the snapshot it is sent: it would be sent that again and again.
const recoverGap = 1 << 32

// Recover makes these servers the whole cluster, on a replica that does not run and is one of them, after a majority is
// lost for good. What write gives becomes the state, as a snapshot that is newer than anything any replica has: those
// of the set that still have their data take it over. found is what Inspect has just said. A crash in between leaves
// either the old cluster or the new one.
func Recover(dir string, found *Found, servers []Server, write func(io.Writer) error) error {
	disk, err := openDisk(dir, found.Name, false, hclog.NewNullLogger())
	if err != nil {
		return err
	}
	return errors.Join(disk.recover(found, servers, write), disk.close())
}

func (d *disk) recover(found *Found, servers []Server, write func(io.Writer) error) error {
	last, err := d.logs.LastIndex()
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	if last != found.Last {
		return errors.New("the data directory has changed since it was looked at: see that the replica is stopped, and try again")
	}
	var conf raft.Configuration
	for _, s := range servers {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(s.Name), Address: raft.ServerAddress(s.Addr)})
	}
	index, term := found.NextIndex(), max(found.Term, found.SeenTerm)+1
	if err := d.stable.SetUint64(keyTerm(), term); err != nil {
		return fmt.Errorf("writing the term: %w", err)
	}
	_, names := raft.NewInmemTransport("")
	sink, err := d.snapshots.Create(raft.SnapshotVersionMax, index, term, conf, index, names)
	if err != nil {
		return fmt.Errorf("making the new state: %w", err)
	}
	if err := write(sink); err != nil {
		return errors.Join(fmt.Errorf("writing the new state: %w", err), sink.Cancel())
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("writing the new state: %w", err)
	}
	if found.Last != 0 {
		if err := d.logs.DeleteRange(found.First, found.Last); err != nil {
			return fmt.Errorf("emptying the log, which the new state replaces: %w", err)
		}
	}
	return nil
}

// Compact rewrites the log's file of a replica that does not run without the free space in it, and gives its size in
// bytes before and after. A crash leaves the old file or the new one.
func Compact(dir string) (before, after int64, err error) {
	path := filepath.Join(dir, "raft", "raft.db")
	if err := checkBolt(path); err != nil {
		return 0, 0, err
	}
	next := path + ".compact"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, 0, fmt.Errorf("removing what an earlier try has left: %w", err)
	}
	err = recovered(path, func() error {
		src, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
		if err != nil {
			return err
		}
		defer src.Close() // only now may a replica start on the new file
		if before, err = copyBolt(src, path, next); err != nil {
			return errors.Join(fmt.Errorf("writing %s: %w", next, err), os.Remove(next))
		}
		if err := os.Rename(next, path); err != nil {
			return err
		}
		return syncDir(filepath.Dir(path))
	})
	if err != nil {
		return 0, 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, 0, fmt.Errorf("looking at the result: %w", err)
	}
	return before, info.Size(), nil
}

func copyBolt(src *bbolt.DB, path, next string) (before int64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	dst, err := bbolt.Open(next, 0o600, &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return 0, err
	}
	err = bbolt.Compact(dst, src, 1<<20)
	if err = errors.Join(err, dst.Close()); err != nil {
		return 0, err
	}
	return info.Size(), checkBolt(next)
}
