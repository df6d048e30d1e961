package fsm

import (
	"bytes"
	"fmt"
	"math"
	"testing"
)

func events(index uint64, n int) (out []Event) {
	for i := range n {
		out = append(out, Event{Index: index, N: i})
	}
	return out
}

func TestStreamResumesAfterTheEventItSawLast(t *testing.T) {
	r := newRing()
	r.add(events(3, 2))
	r.add(events(5, 3))
	for _, c := range []struct {
		index uint64
		n     int
		limit int
		want  string
	}{
		{0, 0, 9, "3.0 3.1 5.0 5.1 5.2"},
		{3, 0, 9, "3.1 5.0 5.1 5.2"},
		{3, 1, 2, "5.0 5.1"},
		{4, 7, 9, "5.0 5.1 5.2"},
		{5, 2, 9, ""},
		{3, math.MaxInt, 9, "5.0 5.1 5.2"},
		{9, 0, 9, ""},
	} {
		got, more, ok := r.After(c.index, c.n, c.limit)
		if text := idsOf(got); text != c.want || !ok || more == nil {
			t.Errorf("after %d.%d, %d at most: got %q (%t), want %q", c.index, c.n, c.limit, text, ok, c.want)
		}
	}
}

func idsOf(events []Event) (text string) {
	for i, e := range events {
		if i > 0 {
			text += " "
		}
		text += fmt.Sprintf("%d.%d", e.Index, e.N)
	}
	return text
}

func TestStreamIsToldWhenMoreComes(t *testing.T) {
	r := newRing()
	_, more, _ := r.After(0, 0, 1)
	r.add(nil)
	select {
	case <-more:
		t.Error("woken by nothing")
	default:
	}
	r.add(events(1, 1))
	<-more
	_, more, _ = r.After(1, 0, 1)
	r.reset(9)
	<-more
}

func TestStreamThatIsTooFarBehindHasToListAnew(t *testing.T) {
	r := newRing()
	index := uint64(0)
	for len(r.events) <= ringSize+ringSize/4-3 { // the next add cuts, inside an index of three events
		index++
		r.add(events(index, 3))
	}
	r.add(events(index+1, 3))
	r.add(events(index+2, 3))
	if r.floor == 0 {
		t.Fatal("nothing was cut")
	}
	oldest := r.events[0]
	for _, c := range []struct {
		index uint64
		n     int
		ok    bool
	}{{r.floor - 1, 2, false}, {r.floor, r.floorN - 1, false}, {r.floor, r.floorN, true}, {r.floor, math.MaxInt, true}, {r.floor + 1, 0, true}} {
		got, _, ok := r.After(c.index, c.n, 1)
		if ok != c.ok {
			t.Errorf("after %d.%d with %d.%d as the oldest: got %v (%t), want %t", c.index, c.n, oldest.Index, oldest.N, got, ok, c.ok)
		}
		if ok && c.n == r.floorN && c.index == r.floor && (got[0].Index != oldest.Index || got[0].N != oldest.N) {
			t.Errorf("after %d.%d: got %d.%d, want %d.%d with none left out", c.index, c.n, got[0].Index, got[0].N, oldest.Index, oldest.N)
		}
	}
}

func TestRestoreForgetsEventsUpToItsIndex(t *testing.T) {
	f := poolFleet(t)
	raw := f.snapshot()
	other := New()
	if err := other.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := other.Events().After(f.index, 0, 9); ok {
		t.Error("a stream resumes within the index of the snapshot, where events may be missing")
	}
	if got, _, ok := other.Events().After(f.index, math.MaxInt, 9); !ok || len(got) != 0 {
		t.Errorf("got %v (%t), want a stream to begin after the snapshot", got, ok)
	}
}

func TestEventsShowEachChangeOnceAndWhoMaySeeIt(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme")
	f.leased("l", "acme", "n1")
	f.pool("p", "acme", "img", 1)
	f.ready("p", "n1", "a")
	index := f.index
	f.launched("x", "", Launch{Tenant: "acme", Name: "build", Image: "img"})
	f.refused("name_taken", "", KindLaunchVM, LaunchVM{ID: "y", Launch: Launch{Tenant: "acme", Name: "build", Image: "img"}})
	f.report("a", "gone") // waits for the hand-over
	f.report("a", "running")
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	f.report("a", "gone")
	got, _, ok := f.state.Events().After(index, math.MaxInt, 99)
	if !ok {
		t.Fatal("events are missing")
	}
	var text []string
	for _, e := range got {
		text = append(text, fmt.Sprintf("%d %s %s %s", e.Index-index, e.Kind, e.Action, e.Tenant))
	}
	want := []string{"1 vm changed acme", "1 pool changed acme", "5 vm changed acme", "6 vm deleted acme"}
	if fmt.Sprint(text) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", text, want)
	}
}

func TestWatchWakesOnAChangeOfItsTable(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	view := f.view()
	node, pool := view.Watch(EventNode), view.Watch(EventPool)
	f.node("n1")
	<-node
	select {
	case <-pool:
		t.Error("a node's change woke a watcher of pools")
	default:
	}
}
