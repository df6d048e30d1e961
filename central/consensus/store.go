package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	storeLimit      = 10 * time.Second // a store call that takes longer means a hung disk
	storeSteps      = 5                // in which that is counted
	lockWait        = 5 * time.Second  // for the process before us to let go of the store
	logCacheEntries = 512
	snapshotsKept   = 3
)

// disk is what a replica keeps over a restart.
type disk struct {
	logs      raft.LogStore
	stable    raft.StableStore
	snapshots raft.SnapshotStore
	identity  *identity
	peers     *peers
	dir       string                          // where a snapshot to restore may be spooled; empty in memory
	usage     func() (bytes, freePages int64) // of the log store
	close     func() error
}

// openDisk opens DIR/identity.json and DIR/raft. It makes a new store only when create allows it and the
// directory never was a member's.
func openDisk(dir, name string, create bool, logger hclog.Logger) (*disk, error) {
	id, err := readIdentity(filepath.Join(dir, "identity.json"))
	if err != nil {
		return nil, err
	}
	met, err := readPeers(filepath.Join(dir, "peers.json"))
	if err != nil {
		return nil, err
	}
	raftDir := filepath.Join(dir, "raft")
	path := filepath.Join(raftDir, "raft.db")
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("opening the raft store: %w", err)
	}
	filled := err == nil && info.Size() > 0
	if err := id.check(name, filled, create); err != nil {
		return nil, err
	}
	if filled {
		if err := checkBolt(path); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(raftDir, 0o700); err != nil {
		return nil, fmt.Errorf("making the raft directory: %w", err)
	}
	bolt, err := openBolt(path)
	if err != nil {
		return nil, err
	}
	sweep(dir, logger)
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(raftDir, snapshotsKept, logger)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening snapshots: %w", err), bolt.Close())
	}
	return &disk{
		logs: bolt, stable: bolt, snapshots: snapshots, identity: id, peers: met, dir: dir, close: bolt.Close,
		usage: func() (int64, int64) {
			info, err := os.Stat(path)
			if err != nil {
				return 0, 0
			}
			return info.Size(), int64(bolt.Stats().FreePageN)
		},
	}, nil
}

func openBolt(path string) (store *raftboltdb.BoltStore, err error) {
	before, _ := os.Stat(path) // nil for a new one
	err = recovered(path, func() (err error) {
		// The freelist is rebuilt at open rather than rewritten with every commit.
		store, err = raftboltdb.New(raftboltdb.Options{
			Path:        path,
			BoltOptions: &bbolt.Options{Timeout: lockWait, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
		})
		return err
	})
	// Between opening the file and getting its lock, another process may have put a compacted one in its place.
	if now, _ := os.Stat(path); err == nil && before != nil && (now == nil || !os.SameFile(before, now)) {
		return nil, errors.Join(&ExitError{ExitFault, fmt.Sprintf("%s was replaced while it was opened: start again", path)}, store.Close())
	}
	return store, err
}

// checkBolt reads every page in use. Opening for writing would do the same, but in a goroutine of bolt's own,
// where neither a panic nor the fault that a truncated file raises can be caught.
func checkBolt(path string) error {
	return recovered(path, func() error {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: lockWait})
		if err != nil {
			return err
		}
		defer db.Close()
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		page := db.Info().PageSize
		if info.Size()%int64(page) != 0 {
			return errors.New("it ends within a page")
		}
		return db.View(func(tx *bbolt.Tx) error {
			if info.Size() < tx.Size() { // even where all that is lost is free: bolt takes such pages to be there
				return fmt.Errorf("it has %d bytes and must have %d", info.Size(), tx.Size())
			}
			return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
				var previous, value []byte
				return bucket.ForEach(func(k, v []byte) error {
					if bytes.Compare(k, previous) <= 0 {
						return fmt.Errorf("its %s are out of order", name)
					}
					previous = append(previous[:0], k...)
					value = append(value[:0], v...) // faults if the file does not reach this far
					return nil
				})
			})
		})
	})
}

// recovered runs open and turns what it reports or panics with into words an operator can act on.
func recovered(path string, open func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error: // a fault: its own words are about memory
			err = damaged(path, "it is cut short or overwritten")
		default:
			err = damaged(path, p)
		}
	}()
	err = open()
	var system *fs.PathError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, bolterrors.ErrTimeout):
		return fmt.Errorf("opening %s: another process is using it; end that one first or name another --data", path)
	case errors.As(err, &system):
		return fmt.Errorf("opening the raft store: %w", err)
	}
	return damaged(path, err)
}

func damaged(path string, cause any) *ExitError {
	return refuse("%s is damaged (%v): put it back from a copy of this replica's own disk, or remove this replica from the cluster, empty the data directory and join again", path, cause)
}

// lastCommand is the index of the newest entry the state machine will see, so that a replica can tell when it
// has caught up with what it knew before a restart. No-ops and barriers never reach the state machine.
func (d *disk) lastCommand() (uint64, error) {
	var floor uint64
	taken, err := d.snapshots.List()
	if err != nil {
		return 0, fmt.Errorf("listing snapshots: %w", err)
	}
	if len(taken) > 0 {
		floor = taken[0].Index
	}
	last, err := d.logs.LastIndex()
	if err != nil {
		return 0, fmt.Errorf("reading the log: %w", err)
	}
	for ; last > floor; last-- {
		var entry raft.Log
		if err := d.logs.GetLog(last, &entry); err != nil {
			return 0, damaged("the raft store", fmt.Sprintf("entry %d: %v", last, err))
		}
		if entry.Type == raft.LogCommand || entry.Type == raft.LogConfiguration {
			return last, nil
		}
	}
	return floor, nil
}

// wrapLogs puts the guards and the cache around a log store, in the order raft must see them.
func wrapLogs(logs raft.LogStore, stable raft.StableStore, hung func(operation string), failed func(operation string, err error)) (raft.LogStore, raft.StableStore, error) {
	guard := &guardedStore{logs: logs, stable: stable, limit: storeLimit, hung: hung, failed: failed}
	cache, err := raft.NewLogCache(logCacheEntries, guard)
	return cache, guard, err
}

// guardedStore watches every call to the store below it. A call that takes too long ends the process: a leader
// with a hung disk would otherwise lead for ever, and an error would be a lie, since the write may still land.
// A write that fails ends it, too: what the disk holds then only a fresh start can tell.
//
// It also says that the log has no gaps, so that raft empties it after a snapshot is installed. Leaving old
// entries below a gap makes a follower ask for the same snapshot again and again.
type guardedStore struct {
	logs   raft.LogStore
	stable raft.StableStore
	limit  time.Duration
	hung   func(operation string)
	failed func(operation string, err error)
}

var (
	_ raft.LogStore          = (*guardedStore)(nil)
	_ raft.StableStore       = (*guardedStore)(nil)
	_ raft.MonotonicLogStore = (*guardedStore)(nil)
	_ raft.MonotonicLogStore = (*raft.LogCache)(nil)
)

// watch calls hung once an operation has taken longer than the limit. It counts in steps, each of which has to pass while
// this process runs: one that was stopped, on a host that was put to sleep or moved, finds all its timers due at once, and
// nothing wrong with its disk.
func (s *guardedStore) watch(operation string) (done func()) {
	var mu sync.Mutex
	var timer *time.Timer
	over, left := false, storeSteps
	step := func() {
		mu.Lock()
		defer mu.Unlock()
		switch left--; {
		case over:
		case left == 0:
			s.hung(operation)
		default:
			timer.Reset(s.limit / storeSteps)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(s.limit/storeSteps, step)
	return func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		timer.Stop()
	}
}

// wrote passes the error of a write on, after it was reported.
func (s *guardedStore) wrote(operation string, err error) error {
	if err != nil {
		s.failed(operation, err)
	}
	return err
}

func (s *guardedStore) IsMonotonic() bool { return true }

func (s *guardedStore) FirstIndex() (uint64, error) {
	defer s.watch("reading the log")()
	return s.logs.FirstIndex()
}

func (s *guardedStore) LastIndex() (uint64, error) {
	defer s.watch("reading the log")()
	return s.logs.LastIndex()
}

func (s *guardedStore) GetLog(index uint64, log *raft.Log) error {
	defer s.watch("reading the log")()
	return s.logs.GetLog(index, log)
}

func (s *guardedStore) StoreLog(log *raft.Log) error {
	defer s.watch("writing the log")()
	return s.wrote("writing the log", s.logs.StoreLog(log))
}

func (s *guardedStore) StoreLogs(logs []*raft.Log) error {
	defer s.watch("writing the log")()
	return s.wrote("writing the log", s.logs.StoreLogs(logs))
}

func (s *guardedStore) DeleteRange(min, max uint64) error {
	defer s.watch("trimming the log")()
	return s.wrote("trimming the log", s.logs.DeleteRange(min, max))
}

func (s *guardedStore) Set(key, value []byte) error {
	defer s.watch("writing term and vote")()
	return s.wrote("writing term and vote", s.stable.Set(key, value))
}

func (s *guardedStore) Get(key []byte) ([]byte, error) {
	defer s.watch("reading term and vote")()
	return s.stable.Get(key)
}

func (s *guardedStore) SetUint64(key []byte, value uint64) error {
	defer s.watch("writing term and vote")()
	return s.wrote("writing term and vote", s.stable.SetUint64(key, value))
}

func (s *guardedStore) GetUint64(key []byte) (uint64, error) {
	defer s.watch("reading term and vote")()
	return s.stable.GetUint64(key)
}

// taggedSnapshots lets the state machine know which snapshot it is given: raft passes only the bytes. It also reports a
// disk that is too full for a snapshot: raft would go on with a log that grows.
type taggedSnapshots struct {
	raft.SnapshotStore
	failed func(operation string, err error)
}

func (s taggedSnapshots) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, conf, confIndex, trans)
	if err = s.wrote(err); err != nil {
		return nil, err
	}
	return reportingSink{sink, s}, nil
}

func (s taggedSnapshots) wrote(err error) error {
	if isFull(err) {
		s.failed("writing a snapshot", err)
	}
	return err
}

type reportingSink struct {
	raft.SnapshotSink
	store taggedSnapshots
}

func (s reportingSink) Write(p []byte) (int, error) {
	n, err := s.SnapshotSink.Write(p)
	return n, s.store.wrote(err)
}

func (s reportingSink) Close() error { return s.store.wrote(s.SnapshotSink.Close()) }

// isFull says that there was no room. The store below gives some errors on as words only.
func isFull(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || strings.Contains(err.Error(), syscall.ENOSPC.Error()))
}

// writeFault is what a replica says that ends because a write failed.
func writeFault(operation string, err error) string {
	if isFull(err) {
		return fmt.Sprintf("%s failed, the disk is full (%v): make room on the disk that holds the data directory, then start again", operation, err)
	}
	return fmt.Sprintf("%s failed (%v): look at the disk that holds the data directory; starting again to see what it holds", operation, err)
}

// sweep removes what a crash left of unfinished snapshots and restores: on a full disk they would keep it full.
func sweep(dir string, logger hclog.Logger) {
	for _, pattern := range []string{filepath.Join(dir, "restore-*"), filepath.Join(dir, "raft", "snapshots", "*.tmp")} {
		left, _ := filepath.Glob(pattern) // the pattern is well formed
		for _, path := range left {
			if err := os.RemoveAll(path); err != nil {
				logger.Warn("could not remove what a crash has left", "path", path, "error", err)
			}
		}
	}
}

type taggedReader struct {
	io.ReadCloser
	meta *raft.SnapshotMeta
}

func (s taggedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, body, err := s.SnapshotStore.Open(id)
	if err != nil {
		return nil, nil, err
	}
	return meta, &taggedReader{body, meta}, nil
}
