package fsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestNameIsUniquePerTenantAndFreeOnceItsVMIsDeleted(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme")
	l := Launch{Name: "build", Image: "img"}
	f.launched("a", "", l, "n1")
	f.refused(api.CodeNameTaken, "", KindLaunchVM, LaunchVM{ID: "b", Launch: l, Candidates: []string{"n1"}})
	f.launched("t", "", Launch{Tenant: "acme", Name: "build", Image: "img"}, "n1") // another tenant's may be alike
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	f.launched("b", "", l, "n1")
	if v := f.vm("a"); v.State != api.StateDeleting || v.Name != "build" || f.view().VMNamed("", "build").ID != "b" {
		t.Errorf("got %+v, want it deleting while b has its name", v)
	}
	f.do(KindPatchVM, PatchVM{ID: "b", Patch: api.VMPatch{Name: api.Some("build")}}) // its own name is not taken
}

func TestPatchRenamesLabelsAndCountsTheDeadlineFromNow(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "build", Image: "img", Labels: map[string]string{"gone": "1", "kept": "1"}}, "n1")
	f.launched("b", "", Launch{Name: "other", Image: "img"}, "n1")
	f.report("a", api.StateRunning)
	f.report("b", api.StateRunning)
	f.refused(api.CodeNameTaken, "", KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{Name: api.Some("other")}})
	f.refused(api.CodeConflict, "", KindPatchVM, PatchVM{ID: "a", IfMatch: 1})
	f.refused(api.CodeNotFound, "", KindPatchVM, PatchVM{ID: "absent"})
	v := f.do(KindPatchVM, PatchVM{ID: "a", IfMatch: f.vm("a").Version, Patch: api.VMPatch{Name: api.Some("renamed"), TTLSeconds: api.Some(int64(60)),
		Labels: api.Some(map[string]*string{"gone": nil, "new": new("2")})}}).Value.(*VM)
	if v.Name != "renamed" || v.ExpiresAt != f.view().Meta().Now+60_000 || len(v.Labels) != 2 || v.Labels["new"] != "2" || v.Labels["kept"] != "1" || !v.NeedsOrder() {
		t.Errorf("got %+v", v)
	}
	if f.view().VMNamed("", "build") != nil || f.view().VMNamed("", "renamed") == nil {
		t.Error("the names did not follow")
	}
	if v := f.do(KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{TTLSeconds: api.Null[int64]()}}).Value.(*VM); v.ExpiresAt != 0 {
		t.Errorf("got %+v, want no deadline", v)
	}
	if v := f.do(KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{Labels: api.Some(map[string]*string{})}}).Value.(*VM); len(v.Labels) != 2 {
		t.Errorf("no changes of labels leave %v", v.Labels)
	}
	if v := f.do(KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{Labels: api.Null[map[string]*string]()}}).Value.(*VM); len(v.Labels) != 0 {
		t.Errorf("null labels leave %v", v.Labels)
	}
	many := map[string]*string{"more": new("v")}
	for i := range api.MaxLabels {
		many[fmt.Sprint("k", i)] = new("v")
	}
	f.refused(api.CodeInvalid, "labels", KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{Labels: api.Some(many)}})
}

func TestDueListsDeadlinesEarliestFirst(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	for i, ttl := range []int64{300, 0, 100, 200} {
		f.launched(fmt.Sprint("v", i), "", Launch{Name: fmt.Sprint("n", i), Image: "img", TTLSeconds: ttl}, "n1")
	}
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"v3"}})
	var got []string
	for v := range f.view().Due() {
		got = append(got, v.ID)
	}
	if !slices.Equal(got, []string{"v2", "v0"}) {
		t.Errorf("got %v, want v2 and v0: v1 has no deadline and v3 is being deleted", got)
	}
}

func TestADeletionAsOfALookSparesWhatHasChangedSince(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 2)
	f.ready("p", "n1", "a", "b")
	looked := f.index
	f.launched("x", "", Launch{Name: "build", Pool: "p"}, "n1")
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a", "b"}, AsOf: looked, Reason: "the pool has more than it should"})
	if claimed, spare := f.vm("a"), f.vm("b"); !claimed.Live() || claimed.Name != "build" || spare.Live() {
		t.Errorf("got %+v and %+v, want the claimed one alive and the spare ended", claimed, spare)
	}
}

func TestDeletionLastsUntilTheNodeHasConfirmedIt(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	f.report("a", api.StateRunning)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a", "absent"}, Action: "DELETE /fleet/vms/{id}"})
	f.refused(api.CodeNotFound, "", KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	f.report("a", api.StateRunning) // it knows no better yet
	if v := f.vm("a"); v.State != api.StateDeleting || !v.NeedsOrder() || f.view().Use("n1").MemoryMiB != 256 {
		t.Errorf("got %+v, want it deleting and counted", v)
	}
	f.report("a", api.StateGone)
	if f.view().VM("a") != nil || f.view().Use("n1").VMs != 0 {
		t.Error("it is still there")
	}
	if n := f.activities("operator", "DELETE /fleet/vms/{id}", "ok"); n != 1 {
		t.Errorf("got %d entries, want 1", n)
	}
}

func TestNewsOfAVMThatIsElsewhereIsIgnored(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.node("n2")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	f.do(KindMoveVM, MoveVM{ID: "a", From: "n1", Candidates: []string{"n2"}})
	before := f.view()
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", Told: 99, State: api.StateRunning}, {ID: "a", Node: "n1", State: api.StateGone}, {ID: "absent", Node: "n1", State: api.StateRunning}}})
	if changed := difference(t, before, f.view()); changed != "" {
		t.Errorf("it changed %s", changed)
	}
}

func TestOrderThatNeverWasIsNotConfirmed(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", Told: 999}}})
	if v := f.vm("a"); v.Told != 0 || !v.NeedsOrder() {
		t.Errorf("got %+v, want its node to be told", v)
	}
}

func TestNodeSaysOnlyWhatStatesItSees(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	for _, s := range []api.VMState{api.StateBooting, api.StateRunning, api.StatePaused, api.StateStopped, api.StateFailed} {
		if f.report("a", s); f.vm("a").State != s {
			t.Errorf("got %s, want %s", f.vm("a").State, s)
		}
	}
	for _, s := range []api.VMState{api.StatePlaced, api.StateDeleting, api.StateUnknown, api.StateLost, "nonsense"} {
		if f.report("a", s); f.vm("a").State != api.StateFailed {
			t.Errorf("a node made it %s", f.vm("a").State)
		}
	}
}

func TestRunningAndReadyTimesAreThoseOfTheFirstReport(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	f.report("a", api.StateRunning)
	running, ready := f.vm("a").RunningAt, f.vm("a").ReadyAt
	f.pass(60_000)
	f.report("a", api.StateRunning)
	if v := f.vm("a"); v.RunningAt != running || v.ReadyAt != ready || running == 0 || ready == 0 {
		t.Errorf("got %+v, want the times of the first report", v)
	}
}

func TestVersionMovesOnlyWithWhatShows(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	f.report("a", api.StateRunning)
	version := f.vm("a").Version
	f.report("a", api.StateRunning)
	if got := f.vm("a").Version; got != version {
		t.Errorf("a report without news made version %d of %d", got, version)
	}
	f.report("a", api.StatePaused)
	if got := f.vm("a").Version; got != f.index {
		t.Errorf("got version %d, want %d", got, f.index)
	}
}

func TestOpenListsWhatNodesMustBeTold(t *testing.T) {
	f := poolFleet(t)
	open := func() (ids []string) {
		for v := range f.view().Open() {
			ids = append(ids, v.ID)
		}
		return ids
	}
	if got := open(); len(got) != 0 {
		t.Errorf("got %v, want nothing open", got)
	}
	f.launched("x", "", Launch{Name: "build", Pool: "p"})
	if got := open(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got %v, want the hand-over of a", got)
	}
	f.report("a", api.StateRunning)
	f.health("n1", api.NodeUnreachable)
	f.do(KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{Name: api.Some("later")}})
	if got := open(); len(got) != 0 {
		t.Errorf("got %v, want nothing: its node is silent", got)
	}
	f.health("n1", api.NodeHealthy)
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", State: api.StateRunning}}})
	if got := open(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got %v, want a renamed now that its node is back", got)
	}
}

func TestMacTakesTwoMacOSGuestsAtMost(t *testing.T) {
	f := newFleet(t)
	f.mac("m1")
	f.node("n1")
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mac", Path: "/m", GuestOS: api.GuestMacOS, VCPUs: 4, MemoryMiB: 4096, HasAgent: true}})
	launch := func(id string) Result { return f.launch(id, "", Launch{Name: id, Image: "mac"}, "n1", "m1") }
	for _, id := range []string{"a", "b"} {
		if r := launch(id); r.Err != nil || f.vm(id).Node != "m1" {
			t.Fatalf("got %+v, want %s on the Mac", r, id)
		}
	}
	if u := f.view().Use("m1"); u.VCPUs != 64 || u.MacOS != 2 {
		t.Errorf("got %+v, want macOS guests to count without overcommit", u)
	}
	for _, state := range []api.VMState{api.StateBooting, api.StateRunning, api.StatePaused} {
		f.report("a", state)
		if r := launch("c"); r.Err == nil || r.Err.Code != api.CodeNoCapacity {
			t.Errorf("while a is %s: got %+v, want no room for a third", state, r)
		}
	}
	f.health("m1", api.NodeUnreachable)
	if f.vm("a").State != api.StateUnknown || f.view().Use("m1").MacOS != 2 {
		t.Errorf("got %+v, want unknown guests counted", f.view().Use("m1"))
	}
	f.health("m1", api.NodeHealthy)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	if r := launch("c"); r.Err == nil {
		t.Error("a guest that is being deleted does not count")
	}
	f.report("a", api.StateGone)
	if r := launch("c"); r.Err != nil {
		t.Errorf("got %+v, want room again", r)
	}
}

func TestDeletingAFailedGuestTakesNoPlaceAgain(t *testing.T) {
	f := newFleet(t)
	f.mac("m1")
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mac", Path: "/m", GuestOS: api.GuestMacOS, VCPUs: 1, MemoryMiB: 4096}})
	f.launched("a", "", Launch{Name: "a", Image: "mac"}, "m1")
	f.report("a", api.StateFailed)
	f.launched("b", "", Launch{Name: "b", Image: "mac"}, "m1")
	f.launched("c", "", Launch{Name: "c", Image: "mac"}, "m1")
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	if u := f.view().Use("m1"); u.MacOS != 2 || u.MemoryMiB != 8192 || u.VMs != 3 {
		t.Errorf("got %+v, want two guests and three rows", u)
	}
}

func TestFitNamesWhyAHostCannotTakeAVM(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.mac("m1")
	n, m := *f.view().Node("n1"), *f.view().Node("m1")
	cordoned, draining, suspect := n, n, n
	cordoned.Cordoned, draining.Draining, suspect.State = true, true, api.NodeSuspect
	for _, c := range []struct {
		node    Node
		guest   string
		backend string
		vcpus   int
		memory  int64
		want    string
	}{
		{node: n, vcpus: 128, memory: 65536},
		{node: n, vcpus: 129, want: api.WhyCPU},
		{node: n, memory: 65537, want: api.WhyMemory},
		{node: n, backend: "vz", want: api.WhyBackend},
		{node: n, backend: "sim"},
		{node: n, guest: api.GuestMacOS, want: api.WhyBackend},
		{node: m, guest: api.GuestMacOS, vcpus: 16},
		{node: m, guest: api.GuestMacOS, vcpus: 17, want: api.WhyCPU},
		{node: cordoned, want: api.WhyCordoned},
		{node: draining, want: api.WhyCordoned},
		{node: suspect, want: api.WhyUnhealthy},
	} {
		if got := f.view().Fit(&c.node, Need{GuestOS: c.guest, Backend: c.backend, VCPUs: c.vcpus, MemoryMiB: c.memory}); got != c.want {
			t.Errorf("%+v: got %q, want %q", c, got, c.want)
		}
	}
}
