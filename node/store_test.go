package node

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestTheStoreHoldsEverythingOverAReopen(t *testing.T) {
	dir := t.TempDir()
	s, err := openStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	rec := record{Spec: api.MachineRequest{ID: "a", Name: "n", Labels: map[string]string{"k": "v"}}, Wanted: api.StateRunning, Boots: 2, Booted: 1, Failed: "f",
		Agent: true, CreatedAt: 7, Deadline: deadlineIn(mark{Boot: "b", At: time.Hour}, time.Minute), Orders: []string{"x"}}
	grave := tombstone{Last: api.ReportedVM{ID: "g", State: api.StateGone, Reason: "expired"}, Ended: mark{Boot: "b", At: 5}, EndedAt: 9}
	if err := s.put("a", rec); err != nil {
		t.Fatal(err)
	}
	if err := s.put("g", rec); err != nil {
		t.Fatal(err)
	}
	if err := s.bury("g", grave); err != nil {
		t.Fatal(err)
	}
	if err := s.putFence(fence{Epoch: 3, Term: 4}); err != nil {
		t.Fatal(err)
	}
	if _, err := openStore(dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second daemon on the directory: got %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if s, err = openStore(dir); err != nil {
		t.Fatal(err)
	}
	defer s.close()
	vms, gone, seen, err := s.load()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]record{"a": rec}, vms); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]tombstone{"g": grave}, gone); diff != "" {
		t.Error(diff)
	}
	if seen != (fence{Epoch: 3, Term: 4}) {
		t.Errorf("got fence %+v", seen)
	}
	if err := s.forget([]string{"g"}); err != nil {
		t.Fatal(err)
	}
	if _, gone, _, _ := s.load(); len(gone) != 0 {
		t.Errorf("got %v, want no tombstone", gone)
	}
}

func TestWritesAtOnceAllLand(t *testing.T) {
	s, err := openStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	var wait sync.WaitGroup
	for i := range 200 {
		wait.Go(func() {
			if err := s.put(strconv.Itoa(i), record{Boots: uint64(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	vms, _, _, err := s.load()
	if err != nil || len(vms) != 200 {
		t.Fatalf("got %d records, %v", len(vms), err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if err := s.put("late", record{}); err == nil {
		t.Error("a write after close was taken")
	}
}
