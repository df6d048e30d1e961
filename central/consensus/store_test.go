package consensus

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// replica is one real replica: files, TCP on loopback.
type replica struct {
	node  *Node
	mux   *Mux
	state *list
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func openReplica(t *testing.T, name, dir, addr string, create bool) (*replica, error) {
	t.Helper()
	mux, err := NewMux(MuxConfig{Listener: listen(t, addr)})
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{mux: mux, state: &list{}}
	r.node, err = Open(Config{
		Name: name, DataDir: dir, Mux: mux, FSM: r.state, Create: create, ElectionTimeout: 300 * time.Millisecond,
		Exit: func(code int, message string) { t.Errorf("%s wanted to exit: %d %s", name, code, message) },
	})
	if err != nil {
		if err := mux.Close(); err != nil {
			t.Errorf("closing mux: %v", err)
		}
		return nil, err
	}
	t.Cleanup(r.close)
	return r, nil
}

func mustOpenReplica(t *testing.T, name, dir, addr string, create bool) *replica {
	t.Helper()
	r, err := openReplica(t, name, dir, addr, create)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *replica) close() {
	_ = r.node.Close()
	_ = r.mux.Close()
}

func (r *replica) propose(command string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, _, err := r.node.Propose(ctx, []byte(command))
	return err
}

// single starts, fills and stops a one-member cluster in dir.
func single(t *testing.T, dir string, more ...string) {
	t.Helper()
	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", true)
	if err := r.node.Bootstrap([]Server{{"solo", r.mux.Advertise()}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the only member to lead", r.node.IsLeader)
	for _, command := range append([]string{"init:cluster-1", "one", "two"}, more...) {
		if err := r.propose(command); err != nil {
			t.Fatal(err)
		}
	}
	r.close()
}

func TestRestartKeepsState(t *testing.T) {
	dir := t.TempDir()
	single(t, dir)

	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", false)
	if err := r.node.Bootstrap([]Server{{"solo", r.mux.Advertise()}}); err != nil {
		t.Errorf("bootstrap on existing state: %v, want it to change nothing", err)
	}
	eventually(t, "the state to be replayed", func() bool { return r.node.AppliedIndex() >= r.node.LastIndexAtStart() })
	if got, want := r.state.all(), []string{"init:cluster-1", "one", "two"}; !slices.Equal(got, want) {
		t.Errorf("after restart: got %q, want %q", got, want)
	}
}

func TestRestartFromSnapshotKeepsState(t *testing.T) {
	dir := t.TempDir()
	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", true)
	if err := r.node.Bootstrap([]Server{{"solo", r.mux.Advertise()}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the only member to lead", r.node.IsLeader)
	if err := errors.Join(r.propose("init:cluster-1"), r.propose("one")); err != nil {
		t.Fatal(err)
	}
	var backup strings.Builder
	index, err := r.node.Snapshot(t.Context(), &backup)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"Cluster":"cluster-1","Items":["init:cluster-1","one"]}`; backup.String() != want {
		t.Errorf("backup: got %s, want %s", backup.String(), want)
	}
	if err := r.propose("two"); err != nil {
		t.Fatal(err)
	}
	r.close()

	r = mustOpenReplica(t, "solo", dir, "127.0.0.1:0", false)
	if got := r.node.AppliedIndex(); got < index {
		t.Errorf("applied index right after open: got %d, want at least the snapshot's %d", got, index)
	}
	eventually(t, "the state to be replayed", func() bool { return r.state.has("two") })
}

// wantRefusal opens the directory and expects to be told, with exit code 78, something that contains each word.
func wantRefusal(t *testing.T, name, dir string, create bool, words ...string) {
	t.Helper()
	before := listing(t, dir)
	_, err := openReplica(t, name, dir, "127.0.0.1:0", create)
	var refusal *ExitError
	if !errors.As(err, &refusal) {
		t.Fatalf("got %v, want an exit error", err)
	}
	if refusal.Code != ExitConfig {
		t.Errorf("exit code: got %d, want %d", refusal.Code, ExitConfig)
	}
	for _, word := range words {
		if !strings.Contains(refusal.Message, word) {
			t.Errorf("message %q does not say %q", refusal.Message, word)
		}
	}
	if after := listing(t, dir); !slices.Equal(before, after) {
		t.Errorf("the refused directory changed from %q to %q", before, after)
	}
}

func listing(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestDirectoryOfAnotherReplicaIsRefused(t *testing.T) {
	dir := t.TempDir()
	single(t, dir)
	wantRefusal(t, "other", dir, true, `replica "solo"`, "--name solo")
}

func TestEmptyDirectoryNeedsPermission(t *testing.T) {
	wantRefusal(t, "solo", t.TempDir(), false, "--bootstrap", "--join")
}

func TestLostRaftStoreIsRefused(t *testing.T) {
	for name, lose := range map[string]func(raftDir string) error{
		"directory removed": os.RemoveAll,
		"store removed":     func(raftDir string) error { return os.Remove(filepath.Join(raftDir, "raft.db")) },
		"store emptied":     func(raftDir string) error { return os.Truncate(filepath.Join(raftDir, "raft.db"), 0) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			single(t, dir)
			if err := lose(filepath.Join(dir, "raft")); err != nil {
				t.Fatal(err)
			}
			wantRefusal(t, "solo", dir, true, "missing or empty", "join again")
		})
	}
}

func TestStoreWithoutStateIsRefused(t *testing.T) {
	dir, fresh := t.TempDir(), t.TempDir()
	single(t, dir)
	r := mustOpenReplica(t, "solo", fresh, "127.0.0.1:0", true)
	r.close()
	if err := os.Rename(filepath.Join(fresh, "raft", "raft.db"), filepath.Join(dir, "raft", "raft.db")); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "solo", dir, true, "missing or empty", "join again")
}

func TestStoreOfAnotherClusterIsRefused(t *testing.T) {
	dir := t.TempDir()
	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", true)
	if err := r.node.Bootstrap([]Server{{"solo", r.mux.Advertise()}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the only member to lead", r.node.IsLeader)
	if err := r.propose("init:cluster-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.node.Snapshot(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	r.close()
	path := filepath.Join(dir, "identity.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(raw), "cluster-1", "cluster-2")), 0o600); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, "solo", dir, false, "cluster-1", "cluster-2")
}

func TestDamagedFilesAreRefused(t *testing.T) {
	half := func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		page := int64(os.Getpagesize())
		return os.Truncate(path, max(1, info.Size()/2/page*page))
	}
	for name, damage := range map[string]func(dir string) error{
		"identity truncated": func(dir string) error { return half(filepath.Join(dir, "identity.json")) },
		"store halved":       func(dir string) error { return half(filepath.Join(dir, "raft", "raft.db")) },
		"store cut within a page": func(dir string) error {
			path := filepath.Join(dir, "raft", "raft.db")
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			return os.Truncate(path, info.Size()-100)
		},
		"store cut to one page": func(dir string) error {
			return os.Truncate(filepath.Join(dir, "raft", "raft.db"), int64(os.Getpagesize()))
		},
		"store cut to its meta pages": func(dir string) error {
			return os.Truncate(filepath.Join(dir, "raft", "raft.db"), 2*int64(os.Getpagesize()))
		},
		"store overwritten": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "raft", "raft.db"), make([]byte, 64<<10), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			large := strings.Repeat("x", 200<<10) // so that every half of the file is in use
			single(t, dir, large, large, large)
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			wantRefusal(t, "solo", dir, true, "is damaged", "join again")
		})
	}
}

func TestStoreThatLostOnlyFreePagesIsDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "raft.db")
	store, err := openBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	key, large := []byte("k"), make([]byte, 300<<10)
	if err := store.Set(key, large); err != nil {
		t.Fatal(err)
	}
	for range 4 { // by then all that is in use lies at the beginning of the file
		if err := store.Set(key, []byte("small")); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkBolt(path); err != nil {
		t.Fatalf("whole: %v", err)
	}
	if err := os.Truncate(path, 40*int64(os.Getpagesize())); err != nil {
		t.Fatal(err)
	}
	if err := checkBolt(path); err == nil || !strings.Contains(err.Error(), "must have") {
		t.Errorf("cut through free pages: got %v, want damaged: bolt would write past the end of what is there", err)
	}
}
