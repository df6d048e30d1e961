package consensus

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
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
