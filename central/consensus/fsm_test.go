package consensus

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

// list is a real state machine as small as can be: commands are appended, "init:ID" sets the cluster id, and the
// result is the number of commands so far.
type list struct {
	mu      sync.Mutex
	cluster string
	items   []string
	block   chan struct{} // Apply waits for it if not nil
}

func (l *list) Apply(entries []Entry) (results []any) {
	for _, e := range entries {
		results = append(results, l.add(e.Command))
	}
	return results
}

func (l *list) add(command []byte) any {
	l.mu.Lock()
	block := l.block
	l.mu.Unlock()
	if block != nil {
		<-block
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := strings.CutPrefix(string(command), "init:"); ok {
		l.cluster = id
	}
	l.items = append(l.items, string(command))
	return len(l.items)
}

type listSnapshot struct {
	Cluster string
	Items   []string
}

func (s listSnapshot) WriteTo(w io.Writer) (int64, error) {
	raw, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	return io.Copy(w, bytes.NewReader(raw))
}

func (l *list) Snapshot() (io.WriterTo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return listSnapshot{l.cluster, slices.Clone(l.items)}, nil
}

func (l *list) Restore(r io.ReadCloser) error {
	var s listSnapshot
	if err := json.NewDecoder(r).Decode(&s); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cluster, l.items = s.Cluster, s.Items
	return nil
}

func (l *list) ClusterID() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cluster
}

func (l *list) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.items)
}

func (l *list) has(item string) bool { return slices.Contains(l.all(), item) }

// Raft puts changes of the members among the commands, and wants a result for each entry.
func TestABatchGivesEachEntryItsResult(t *testing.T) {
	const command, change = raft.LogCommand, raft.LogConfiguration
	for name, batch := range map[string][]raft.LogType{
		"commands alone":         {command, command},
		"a change alone":         {change},
		"a change first":         {change, command, command},
		"changes among commands": {command, change, command, change, change, command},
	} {
		t.Run(name, func(t *testing.T) {
			state := &list{}
			m := machine{fsm: state, name: "a", identity: &identity{}, exit: func(_ int, message string) { t.Error(message) }}
			var logs []*raft.Log
			var want []any
			commands := 0
			for i, kind := range batch {
				l := &raft.Log{Index: uint64(10 + i), Type: kind, Data: []byte("init:c")}
				logs, want = append(logs, l), append(want, nil)
				if kind == command {
					commands++
					want[i] = commands
				}
			}
			if got := m.ApplyBatch(logs); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			if got, last := m.applied.Load(), logs[len(logs)-1].Index; got != last || len(state.all()) != commands {
				t.Errorf("%d commands are applied up to %d, want %d up to %d", len(state.all()), got, commands, last)
			}
			if marked := m.identity.ClusterID == "c"; marked != (commands > 0) {
				t.Errorf("after %d commands the directory is marked as of cluster %q", commands, m.identity.ClusterID)
			}
		})
	}
}

func TestSameSnapshotThriceWithinAMinuteIsALoop(t *testing.T) {
	var r repeats
	now := testStart
	at := func(n int) (looping bool) { return r.note(7, 2, now.Add(seconds(n))) }
	if at(0) || at(30) {
		t.Fatal("two installs were called a loop")
	}
	if !at(60) {
		t.Fatal("three installs within a minute were not called a loop")
	}
	if at(120) {
		t.Fatal("installs over more than a minute were called a loop")
	}
	if r.note(8, 2, now.Add(seconds(121))) || r.note(7, 2, now.Add(seconds(122))) {
		t.Fatal("installs of different snapshots were called a loop")
	}
}
