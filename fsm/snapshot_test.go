package fsm

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestDamagedOrCutSnapshotIsRefused(t *testing.T) {
	whole := wholeSnapshot(t)
	s := restored(t, whole)
	before := s.View()
	refuse := func(what string, at int, raw []byte) {
		t.Helper()
		if err := s.Restore(bytes.NewReader(raw)); err == nil {
			t.Fatalf("a snapshot %s at byte %d was restored", what, at)
		}
		if difference(t, before, s.View()) != "" || s.View().Index() != before.Index() {
			t.Fatalf("a snapshot %s at byte %d changed the state", what, at)
		}
	}
	for at := 0; at < len(whole); at += 37 { // no divisor of 8: each bit has its turn
		damaged := bytes.Clone(whole)
		damaged[at] ^= 1 << (at % 8)
		refuse("damaged", at, damaged)
	}
	for at := 0; at < len(whole); at += 397 {
		refuse("cut", at, whole[:at])
	}
	refuse("that ends without its last newline", len(whole)-1, whole[:len(whole)-1])
	refuse("with more after it", len(whole), append(bytes.Clone(whole), '\n'))
	lines := bytes.SplitAfter(whole, []byte("\n"))
	for i := 1; i < len(lines)-2; i += 3 {
		refuse("that lacks the row", i, bytes.Join(append(append([][]byte(nil), lines[:i]...), lines[i+1:]...), nil))
	}
}

func TestSnapshotOfALaterReleaseIsRefused(t *testing.T) {
	f := newFleet(t)
	raw := f.snapshot()
	for _, later := range []string{"fluxvm-snapshot-2", "something"} {
		err := f.state.Restore(bytes.NewReader(bytes.Replace(raw, []byte(snapshotFormat), []byte(later), 1)))
		if err == nil || !strings.Contains(err.Error(), snapshotFormat) {
			t.Errorf("got %v for %s, want a refusal that names the form", err, later)
		}
	}
	withTable := bytes.Replace(raw, []byte(`{"t":"activity"`), []byte(`{"t":"warehouse"`), 1)
	if err := f.state.Restore(bytes.NewReader(withTable)); !errors.Is(err, ErrUpgrade) {
		t.Errorf("got %v for a table that is not known, want ErrUpgrade", err)
	}
}

func TestRestoreReplacesEverythingAndTellsReaders(t *testing.T) {
	f := newFleet(t)
	f.node("old")
	reader := f.view()
	s := f.state
	if err := s.Restore(bytes.NewReader(wholeSnapshot(t))); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reader.Abandoned():
	default:
		t.Error("a reader of the old state was not told")
	}
	if reader.Node("old") == nil || s.View().Node("old") != nil || s.View().Node("studio-1") == nil {
		t.Error("a view changed, or the restored state holds old rows")
	}
	select {
	case <-s.View().Abandoned():
		t.Error("a reader of the new state was told to go")
	default:
	}
}

func TestWritingASnapshotReportsWhatTheWriterSays(t *testing.T) {
	f := newFleet(t)
	full := errors.New("disk full")
	for _, room := range []int{0, 10, len(f.snapshot()) - 3} {
		if _, err := f.view().WriteTo(&smallDisk{room, full}); !errors.Is(err, full) {
			t.Errorf("got %v with room for %d bytes, want %v", err, room, full)
		}
	}
}

type smallDisk struct {
	room int
	full error
}

func (d *smallDisk) Write(p []byte) (int, error) {
	if len(p) > d.room {
		return d.room, d.full
	}
	d.room -= len(p)
	return len(p), nil
}

var _ io.Writer = (*smallDisk)(nil)

func TestHashIsEqualForEqualStatesAndElseNot(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	one, err1 := f.view().Hash()
	two, err2 := restored(t, f.snapshot()).View().Hash()
	f.node("n2")
	three, err3 := f.view().Hash()
	if err := errors.Join(err1, err2, err3); err != nil || one != two || one == three {
		t.Errorf("got %s, %s, %s (%v)", one, two, three, err)
	}
}

func TestSnapshotInTheMiddleOfALogLeadsToTheSameBytes(t *testing.T) {
	var log [][]byte
	for _, c := range script() {
		log = append(log, c.read(t).Bytes)
	}
	want := wholeSnapshot(t)
	for cut := range log {
		s := New()
		for i, raw := range log {
			if i == cut && i > 0 {
				s = restored(t, snapshot(t, s.View()))
			}
			if _, err := s.Apply(uint64(i+1), raw); err != nil {
				t.Fatal(err)
			}
		}
		if got := snapshot(t, s.View()); !bytes.Equal(got, want) {
			t.Errorf("with a snapshot after %d commands the log led to other bytes", cut)
		}
	}
}

func TestSnapshotIsOfOneMomentWhileCommandsGoOn(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	view, want := f.view(), f.snapshot()
	f.node("n2")
	if !bytes.Equal(snapshot(t, view), want) {
		t.Error("a view changed with a later command")
	}
}
