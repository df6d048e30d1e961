package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// encoded is a command as the leader would put it into the log after those that f has seen.
func (f *fleet) encoded(kind Kind, op *Op, body any) []byte {
	f.t.Helper()
	f.now += 10
	raw, err := Encode(Envelope{Kind: kind, Now: f.now, Term: 1, Actor: "operator", Op: op}, body)
	if err != nil {
		f.t.Fatal(err)
	}
	return raw
}

// entries puts commands behind those that the state has.
func (f *fleet) entries(raw ...[]byte) (out []Entry) {
	for i, r := range raw {
		out = append(out, Entry{f.index + uint64(i) + 1, r})
	}
	return out
}

// A batch holds a request, its repeat, another one under its key, one that is refused after it has written, and one of
// a later release: what comes before that is carried out as it would be alone, and nothing after it.
func TestABatchEndsAtWhatIsNotUnderstood(t *testing.T) {
	f := poolFleet(t)
	before := f.view()
	alone := restored(t, f.snapshot())
	launch := LaunchVM{ID: "new", Launch: Launch{Name: "build", Image: "img"}, Candidates: []string{"n1"}}
	key := &Op{Key: "k", Digest: "d"}
	batch := f.entries(
		f.encoded(KindLaunchVM, key, launch), // takes spare a
		f.encoded(KindLaunchVM, key, launch),
		f.encoded(KindLaunchVM, &Op{Key: "k", Digest: "other"}, launch),
		f.encoded(KindFailHandOver, nil, FailHandOver{ID: "a", NewID: "b", Candidates: []string{"n1"}}), // b is there
		f.encoded(KindLaunchVM, nil, LaunchVM{ID: "cold", Launch: Launch{Name: "cold", Image: "img", ColdField: "disk"}, Candidates: []string{"n1"}}),
		[]byte("\x01"+`{"v":1,"kind":999,"now":null,"body":{}}`),
		f.encoded(KindDeleteVMs, nil, DeleteVMs{IDs: []string{"a"}}),
	)
	const understood = 5
	got, err := f.state.ApplyAll(batch)
	if !errors.Is(err, ErrUpgrade) || len(got) != understood {
		t.Fatalf("got %d results and %v, want %d and ErrUpgrade", len(got), err, understood)
	}
	var want []Result
	for _, e := range batch[:understood] {
		r, err := alone.Apply(e.Index, e.Command)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, r)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !got[1].Replayed || got[2].Err == nil || got[2].Err.Code != api.CodeKeyReused || got[3].Err == nil || got[4].Err != nil {
		t.Errorf("got %+v, want a repeat, key_reused, a refusal and a VM", got[1:])
	}
	after := f.view()
	if err := after.Check(); err != nil || after.Index() != batch[understood-1].Index || !bytes.Equal(snapshot(t, after), snapshot(t, alone.View())) {
		t.Errorf("the state is at %d, unlike that of the same commands one by one: %v", after.Index(), err)
	}
	told, _, ok1 := f.state.Events().After(f.index, math.MaxInt, ringSize)
	toldAlone, _, ok2 := alone.Events().After(f.index, math.MaxInt, ringSize)
	if !ok1 || !ok2 || len(told) == 0 || !reflect.DeepEqual(told, toldAlone) {
		t.Errorf("a batch told of %d changes and its commands one by one of %d", len(told), len(toldAlone))
	}
	nodes, ok1 := f.state.Touched(f.index)
	nodesAlone, ok2 := alone.Touched(f.index)
	if !ok1 || !ok2 || len(nodes) == 0 || !reflect.DeepEqual(nodes, nodesAlone) {
		t.Errorf("a batch touched %v and its commands one by one %v", nodes, nodesAlone)
	}
	for kind, want := range map[string]bool{EventVM: true, EventPool: true, "": true, EventNode: false, EventLease: false, "image": false} {
		select {
		case <-before.Watch(kind):
			if !want {
				t.Errorf("whoever waits for a change of kind %q was woken by others", kind)
			}
		default:
			if want {
				t.Errorf("whoever waits for a change of kind %q was not woken", kind)
			}
		}
	}
}

// Readers check whole views, keep some and wait for changes while batches are applied and, in the end, a snapshot
// takes the place of everything. The race detector looks on.
func TestViewsHoldWhileTheStateGoesOn(t *testing.T) {
	f := poolFleet(t)
	kept, want := f.view(), f.snapshot()
	const batches, each = 40, 8
	finished := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-finished:
					return
				default:
				}
				v := f.state.View()
				if err := v.Check(); err != nil {
					t.Errorf("at index %d: %v", v.Index(), err)
					return
				}
				for a := range v.Activities(0) {
					if a.Seq > v.Meta().ActivitySeq {
						t.Errorf("at index %d there is an entry of the future", v.Index())
						return
					}
				}
			}
		})
	}
	for i := range 4 { // each waits for a VM, and then for the state to be replaced
		readers.Go(func() {
			name, limit := fmt.Sprint("vm-", (i+1)*batches/4-1, "-0"), time.After(time.Minute)
			for v := kept; v.Abandoned() == kept.Abandoned(); v = f.state.View() {
				changed := v.Watch(EventVM)
				if v.VMNamed("", name) != nil {
					changed = nil
				}
				select {
				case <-changed:
				case <-v.Abandoned():
				case <-limit:
					t.Errorf("nobody was told of %s, or of the restore", name)
					return
				}
			}
		})
	}
	snapshotted := f.snapshot()
	for b := range batches {
		var raw [][]byte
		for i := range each {
			name := fmt.Sprint("vm-", b, "-", i)
			raw = append(raw, f.encoded(KindLaunchVM, nil, LaunchVM{ID: name, Launch: Launch{Name: name, Image: "img"}, Candidates: []string{"n1"}}))
			if i > 0 {
				raw = append(raw, f.encoded(KindDeleteVMs, nil, DeleteVMs{IDs: []string{name}}), f.encoded(KindReportVMs, nil, ReportVMs{Reports: []VMReport{{ID: name, Node: "n1", State: api.StateGone}}}))
			}
		}
		if _, err := f.state.ApplyAll(f.entries(raw...)); err != nil {
			t.Fatal(err)
		}
		f.index += uint64(len(raw))
	}
	if err := f.state.Restore(bytes.NewReader(snapshotted)); err != nil {
		t.Fatal(err)
	}
	close(finished)
	readers.Wait()
	if !bytes.Equal(snapshot(t, kept), want) {
		t.Error("a view that was kept has changed")
	}
}
