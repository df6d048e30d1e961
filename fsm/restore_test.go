package fsm

import (
	"bytes"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// play applies a golden sample at its own time.
func (f *fleet) play(t *testing.T, c step) {
	raw := c.read(t).Bytes
	e, err := decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	f.now = e.Now
	f.apply(raw)
}

// prepared is the golden state before any deletion, made ready for a restore.
func prepared(t *testing.T, floor uint64) *State {
	t.Helper()
	f := empty(t)
	for _, c := range script() {
		if c.kind == KindDeleteVMs {
			break
		}
		f.play(t, c)
	}
	var out bytes.Buffer
	if _, err := PrepareRestore(bytes.NewReader(f.snapshot()), &out, "restore", floor, 0); err != nil {
		t.Fatal(err)
	}
	return restored(t, out.Bytes())
}

func TestRestoreRaisesTheEpochAndTrustsNoHost(t *testing.T) {
	for floor, want := range map[uint64]uint64{0: 2, 2: 2, 1_800_000_000: 1_800_000_000} {
		s := prepared(t, floor)
		view := s.View()
		if got := view.Meta().Epoch; got != want {
			t.Errorf("epoch %d with floor %d, want %d", got, floor, want)
		}
		for n := range view.Nodes("") {
			if !n.Adopting || n.State != api.NodeUnreachable {
				t.Errorf("node %s is %s, adopting %v", n.Name, n.State, n.Adopting)
			}
		}
		for v := range view.VMs("") {
			if v.WarmState() == "ready" || v.State == api.StateRunning {
				t.Errorf("VM %s is taken for running", v.ID)
			}
		}
		if err := view.Check(); err != nil {
			t.Error(err)
		}
	}
}

func TestDamagedBackupIsNotPrepared(t *testing.T) {
	f := empty(t)
	for _, c := range script()[:5] {
		f.play(t, c)
	}
	whole := f.snapshot()
	for name, raw := range map[string][]byte{"cut": whole[:len(whole)-3], "changed": bytes.Replace(whole, []byte("ubuntu"), []byte("Ubuntu"), 1), "of no cluster": snapshot(t, New().View())} {
		var out bytes.Buffer
		if _, err := PrepareRestore(bytes.NewReader(raw), &out, "restore", 0, 0); err == nil || out.Len() > 0 {
			t.Errorf("a backup that is %s was prepared: %v", name, err)
		}
	}
}

func TestHostIsAdoptedWithWhatItRuns(t *testing.T) {
	s := prepared(t, 0)
	f := empty(t)
	f.state = s
	f.now = s.View().Meta().Now
	f.index = s.View().Index()
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: "studio-1", State: api.NodeHealthy}}})
	if n := f.view().Node("studio-1"); n.State != api.NodeUnreachable {
		t.Errorf("a host that was not merged is %s", n.State)
	}
	before := 0
	for range f.view().VMs("") {
		before++
	}
	part := AdoptNode{Name: "studio-1", VMs: []AdoptedVM{{ID: "0077", Name: "late", Backend: "vz", GuestOS: "linux", VCPUs: 1, MemoryMiB: 512, State: api.StateRunning}, {ID: "0078", Name: "late", Backend: "vz", GuestOS: "linux", VCPUs: 1, MemoryMiB: 512, State: api.StateStopped}}}
	f.do(KindAdoptNode, part)
	if n := f.view().Node("studio-1"); !n.Adopting {
		t.Error("the host serves again before its whole list is there")
	}
	part.Done = true
	f.do(KindAdoptNode, part) // the first part again: its answer was lost
	view := f.view()
	if n := view.Node("studio-1"); n.Adopting || n.State != api.NodeHealthy {
		t.Errorf("got %+v", n)
	}
	late, other := view.VM("0077"), view.VM("0078")
	if late == nil || late.Name != "late" || late.Tenant != "acme" || late.NeedsOrder() || other == nil || other.Name != "adopted-0078" {
		t.Errorf("got %+v and %+v", late, other)
	}
	after := 0
	for range view.VMs("") {
		after++
	}
	if after != before+2 {
		t.Errorf("%d VMs after %d and two that were found", after, before)
	}
	if err := view.Check(); err != nil {
		t.Error(err)
	}
}
