package consensus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// fullDisk refuses writes while it is full, as a file system does. In words only, or as an error that can be told.
type fullDisk struct {
	raft.LogStore
	raft.StableStore
	raft.SnapshotStore
	logs, snapshots atomic.Pointer[error]
}

func (d *fullDisk) StoreLog(log *raft.Log) error { return d.StoreLogs([]*raft.Log{log}) }

func (d *fullDisk) StoreLogs(logs []*raft.Log) error {
	if err := d.logs.Load(); err != nil {
		return *err
	}
	return d.LogStore.StoreLogs(logs)
}

func (d *fullDisk) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := d.SnapshotStore.Create(version, index, term, conf, confIndex, trans)
	return fullSink{sink, d}, err
}

type fullSink struct {
	raft.SnapshotSink
	disk *fullDisk
}

func (s fullSink) Write(p []byte) (int, error) {
	if err := s.disk.snapshots.Load(); err != nil {
		return 0, *err
	}
	return s.SnapshotSink.Write(p)
}

// fillable puts a disk that can be filled under a replica that is not running yet.
func (c *cluster) fillable(name string) *fullDisk {
	d := c.network.disk(name)
	full := &fullDisk{LogStore: d.logs, StableStore: d.stable, SnapshotStore: d.snapshots}
	d.logs, d.snapshots = full, full
	return full
}

func TestAFullDiskEndsTheReplicaAndTheOthersGoOn(t *testing.T) {
	for name, cause := range map[string]error{
		"told":             &os.PathError{Op: "write", Path: "raft.db", Err: syscall.ENOSPC},
		"in words only":    errors.New("file sync error: no space left on device"),
		"quota":            fmt.Errorf("write: %w", syscall.EDQUOT),
		"another fault":    &os.PathError{Op: "write", Path: "raft.db", Err: syscall.EIO},
		"snapshot is full": &os.PathError{Op: "write", Path: "state.bin", Err: syscall.ENOSPC},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				disks := map[string]*fullDisk{}
				var servers []Server
				for _, name := range threeNames {
					disks[name] = c.fillable(name)
					servers = append(servers, Server{name, name})
				}
				for _, name := range threeNames {
					c.open(name, true)
					if err := c.nodes[name].Bootstrap(servers); err != nil {
						t.Fatal(err)
					}
				}
				leader := c.leader()
				c.mustPropose(leader, "before")
				what := "writing the log failed"
				if name == "snapshot is full" {
					disks[leader].snapshots.Store(&cause)
					if _, err := c.nodes[leader].Snapshot(t.Context(), nil); err == nil {
						t.Fatal("a snapshot was taken, so this tests nothing")
					}
					what = "writing a snapshot failed"
				} else {
					disks[leader].logs.Store(&cause)
					_, _ = c.propose(leader, "unlucky") // may be in the log of a follower
				}
				eventually(t, "the replica to end", func() bool { return c.exit(leader) != "" })
				said := c.exit(leader)
				if full := strings.Contains(said, "make room"); !strings.HasPrefix(said, "70 "+what) || full == (name == "another fault") {
					t.Errorf("it ended with %q", said)
				}
				c.crash(leader)
				next := c.leader()
				c.mustPropose(next, "after")
				disks[leader].logs.Store(nil)
				disks[leader].snapshots.Store(nil)
				c.open(leader, false)
				eventually(t, "it to catch up once there is room", func() bool { return c.states[leader].has("before") && c.states[leader].has("after") })
			})
		})
	}
}

func TestWhatACrashLeftOfSnapshotsIsRemoved(t *testing.T) {
	dir := t.TempDir()
	single(t, dir)
	for _, left := range []string{"restore-123", "raft/snapshots/2-9-17.tmp/state.bin"} {
		path := filepath.Join(dir, left)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("half"), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	disk, err := openDisk(dir, "solo", false, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := disk.close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range listing(t, dir) {
		if strings.Contains(name, "restore-") || strings.Contains(name, ".tmp") {
			t.Errorf("%s is still there", name)
		}
	}
}
