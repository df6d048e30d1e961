package consensus

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// held inspects a directory into a new state.
func held(t *testing.T, dir string) (*Found, *list) {
	t.Helper()
	state := &list{}
	found, err := Inspect(dir, state, func(uint64, any) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return found, state
}

// withSnapshot is single with a snapshot in the middle.
func withSnapshot(t *testing.T, dir string) {
	t.Helper()
	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", true)
	if err := r.node.Bootstrap([]Server{{"solo", r.mux.Advertise()}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the only member to lead", r.node.IsLeader)
	if err := errors.Join(r.propose("init:cluster-1"), r.propose("one")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.node.Snapshot(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := r.propose("two"); err != nil {
		t.Fatal(err)
	}
	r.close()
}

func TestInspectReadsAllAndChangesNothing(t *testing.T) {
	dir := t.TempDir()
	withSnapshot(t, dir)
	before := listing(t, dir)
	found, state := held(t, dir)
	if got, want := state.all(), []string{"init:cluster-1", "one", "two"}; !slices.Equal(got, want) {
		t.Errorf("the state: %q, want %q", got, want)
	}
	if found.Name != "solo" || found.ClusterID != "cluster-1" || len(found.Members) != 1 || !found.Members[0].Voter || found.First != 1 || found.Last < 5 ||
		len(found.Snapshots) != 1 || found.Snapshots[0] >= found.Last || found.Term == 0 || found.SeenTerm < found.Term || found.LogBytes == 0 || len(found.Faults) != 0 {
		t.Errorf("found %+v", found)
	}
	if diff := cmp.Diff(before, listing(t, dir)); diff != "" {
		t.Errorf("files (-before +after):\n%s", diff)
	}
	if r, err := openReplica(t, "solo", dir, "127.0.0.1:0", false); err != nil {
		t.Errorf("starting afterwards: %v", err)
	} else if _, err := Inspect(dir, &list{}, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("while it runs: %v, want that another process uses it", err)
	} else {
		r.close()
	}
}

func TestInspectNamesWhatIsWrong(t *testing.T) {
	snapshot := func(t *testing.T, dir, file string) string {
		t.Helper()
		found, err := filepath.Glob(filepath.Join(dir, "raft", "snapshots", "*", file))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v, %v", found, err)
		}
		return found[0]
	}
	for name, c := range map[string]struct {
		harm func(t *testing.T, dir string) error
		want string
	}{
		"a changed snapshot": {func(t *testing.T, dir string) error {
			return os.WriteFile(snapshot(t, dir, "state.bin"), []byte("{}"), 0o600)
		}, "cannot be used"},
		"a snapshot unnamed": {func(t *testing.T, dir string) error { return os.Remove(snapshot(t, dir, "meta.json")) }, "no description"},
		"an identity swapped": {func(t *testing.T, dir string) error {
			return (&identity{path: filepath.Join(dir, "identity.json")}).mark("solo", "cluster-2")
		}, "cluster-2"},
		"a trimmed log without its snapshot": {func(t *testing.T, dir string) error {
			store, err := openBolt(filepath.Join(dir, "raft", "raft.db"))
			if err != nil {
				return err
			}
			return errors.Join(store.DeleteRange(1, 2), store.Close(), os.RemoveAll(filepath.Join(dir, "raft", "snapshots")))
		}, "entries 1 to 2 are neither"},
		"a hole in the log": {func(t *testing.T, dir string) error {
			store, err := openBolt(filepath.Join(dir, "raft", "raft.db"))
			if err != nil {
				return err
			}
			return errors.Join(store.DeleteRange(3, 3), store.Close())
		}, "entry 3 of the log cannot be read"},
		"a term forgotten": {func(t *testing.T, dir string) error {
			store, err := openBolt(filepath.Join(dir, "raft", "raft.db"))
			if err != nil {
				return err
			}
			return errors.Join(store.SetUint64(keyTerm(), 1), store.Close())
		}, "has seen 1"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			withSnapshot(t, dir)
			if err := c.harm(t, dir); err != nil {
				t.Fatal(err)
			}
			found, _ := held(t, dir)
			if !strings.Contains(strings.Join(found.Faults, "; "), c.want) {
				t.Errorf("faults %q, want one with %q", found.Faults, c.want)
			}
		})
	}
	for name, dir := range map[string]string{"an empty directory": t.TempDir(), "no directory": "/nonexistent"} {
		var refused *ExitError
		if _, err := Inspect(dir, &list{}, nil); !errors.As(err, &refused) || refused.Code != ExitConfig {
			t.Errorf("%s: %v, want exit code %d", name, err, ExitConfig)
		}
	}
}

// threeOnDisk fills three replicas on files, with c behind the others, and stops all.
func threeOnDisk(t *testing.T) (dirs map[string]string, servers []Server) {
	t.Helper()
	dirs = map[string]string{}
	for _, name := range threeNames {
		dirs[name] = t.TempDir()
		ln := listen(t, "127.0.0.1:0")
		servers = append(servers, Server{name, ln.Addr().String()})
		if err := ln.Close(); err != nil {
			t.Fatal(err)
		}
	}
	run := map[string]*replica{}
	for _, s := range servers {
		run[s.Name] = mustOpenReplica(t, s.Name, dirs[s.Name], s.Addr, true)
		if err := run[s.Name].node.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(command string) {
		t.Helper()
		eventually(t, command+" to be committed", func() bool {
			for _, r := range run {
				if r.node.IsLeader() && r.propose(command) == nil {
					return true
				}
			}
			return false
		})
	}
	commit("init:cluster-1")
	commit("shared")
	for _, r := range run {
		eventually(t, "all to have it", func() bool { return r.state.has("shared") })
	}
	run["c"].close()
	delete(run, "c")
	commit("acknowledged")
	for _, r := range run {
		eventually(t, "both to have it", func() bool { return r.state.has("acknowledged") })
	}
	for _, r := range run {
		r.close()
	}
	return dirs, servers
}

// recoverOn makes the named servers the cluster, on what one of them holds, with one more command's worth of state.
func recoverOn(t *testing.T, dir string, servers []Server) {
	t.Helper()
	found, state := held(t, dir)
	if len(found.Faults) > 0 {
		t.Fatalf("faults: %q", found.Faults)
	}
	view, err := state.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := Recover(dir, found, servers, func(w io.Writer) error { _, err := view.WriteTo(w); return err }); err != nil {
		t.Fatal(err)
	}
	if after, again := held(t, dir); len(after.Faults) > 0 || after.LastIndex() <= found.LastIndex() || after.Term <= found.Term || !slices.Equal(again.all(), state.all()) {
		t.Errorf("after the recovery: %+v with %q", after, again.all())
	}
}

func TestRecoverLetsOneSurvivorGoOn(t *testing.T) {
	dirs, servers := threeOnDisk(t)
	recoverOn(t, dirs["a"], servers[:1])
	a := mustOpenReplica(t, "a", dirs["a"], servers[0].Addr, false)
	eventually(t, "it to lead alone", a.node.IsLeader)
	if err := a.propose("later"); err != nil {
		t.Fatal(err)
	}
	if got, want := a.state.all(), []string{"init:cluster-1", "shared", "acknowledged", "later"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if m := a.node.Members(); len(m) != 1 {
		t.Errorf("members: %v", m)
	}
}

// Each survivor may be the one to go on: the one that is behind makes the other forget what it alone knew.
func TestRecoverBringsTheOtherSurvivorsToOneState(t *testing.T) {
	for _, from := range []string{"a", "c"} {
		t.Run(from, func(t *testing.T) {
			dirs, servers := threeOnDisk(t)
			set := []Server{servers[0], servers[2]} // b is lost
			recoverOn(t, dirs[from], set)
			run := map[string]*replica{}
			for _, s := range set {
				run[s.Name] = mustOpenReplica(t, s.Name, dirs[s.Name], s.Addr, false)
			}
			eventually(t, "a commit by the two", func() bool {
				for _, r := range run {
					if r.node.IsLeader() && r.propose("later") == nil {
						return true
					}
				}
				return false
			})
			want := []string{"init:cluster-1", "shared", "acknowledged", "later"}
			if from == "c" {
				want = []string{"init:cluster-1", "shared", "later"}
			}
			for name, r := range run {
				eventually(t, name+" to have the one state", func() bool { return slices.Equal(r.state.all(), want) })
				if m := r.node.Members(); len(m) != 2 {
					t.Errorf("members seen by %s: %v", name, m)
				}
			}
		})
	}
}

func TestRecoverIsRefusedOnceTheLogHasMovedOn(t *testing.T) {
	dir := t.TempDir()
	single(t, dir)
	found, _ := held(t, dir)
	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", false)
	eventually(t, "it to lead", r.node.IsLeader)
	if err := r.propose("three"); err != nil {
		t.Fatal(err)
	}
	if err := Recover(dir, found, []Server{{"solo", "127.0.0.1:1"}}, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("while it runs: %v", err)
	}
	r.close()
	if err := Recover(dir, found, []Server{{"solo", "127.0.0.1:1"}}, nil); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("after it ran: %v", err)
	}
}

func TestCompactGivesSpaceBackAndKeepsAll(t *testing.T) {
	dir := t.TempDir()
	single(t, dir)
	store, err := openBolt(filepath.Join(dir, "raft", "raft.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(store.Set([]byte("k"), make([]byte, 3<<20)), store.Set([]byte("k"), nil), store.Close()); err != nil {
		t.Fatal(err)
	}
	_, before := held(t, dir)
	took, left, err := Compact(dir)
	if err != nil {
		t.Fatal(err)
	}
	if left >= took/2 {
		t.Errorf("it had %d bytes and has %d", took, left)
	}
	found, after := held(t, dir)
	if len(found.Faults) > 0 || !slices.Equal(before.all(), after.all()) {
		t.Errorf("faults %q; %d commands, want %d", found.Faults, len(after.all()), len(before.all()))
	}
	r := mustOpenReplica(t, "solo", dir, "127.0.0.1:0", false)
	eventually(t, "it to lead on the compacted file", r.node.IsLeader)
	if err := r.propose("later"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Compact(dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("while it runs: %v", err)
	}
}
