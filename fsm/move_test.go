package fsm

import (
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestRefusedVMMovesToTheNextCandidateAndItsKeyFollows(t *testing.T) {
	f := newFleet(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		f.node(n)
	}
	f.image("img")
	l := Launch{Name: "build", Image: "img"}
	f.launched("x", "k", l, "n1")
	first := f.vm("x").Order
	for i, want := range []string{"n2", "n3"} {
		moved := f.do(KindMoveVM, MoveVM{ID: "x", From: f.vm("x").Node, Refusal: "full", Candidates: []string{"n1", "n2", "n3"}}).Value.(Moved)
		if v := f.vm("x"); moved.VM != v || v.Node != want || len(v.Tried) != i+1 || v.Order <= first || v.Told != 0 {
			t.Errorf("got %+v, want it on %s", v, want)
		}
	}
	if op := f.launched("y", "k", l, "n1"); op.Ref != "x" || op.Node != "n3" {
		t.Errorf("got %+v, want a repeat to find x on n3", op)
	}
	for _, n := range []string{"n1", "n2"} {
		if u := f.view().Use(n); u != (Use{Node: n}) {
			t.Errorf("got %+v, want nothing left where it was refused", u)
		}
	}
}

func TestVMThatNoHostTakesEndsAndFreesItsKeyAndName(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	l := Launch{Name: "build", Image: "img"}
	f.launched("x", "k", l, "n1")
	moved := f.do(KindMoveVM, MoveVM{ID: "x", From: "n1", Refusal: "host under memory pressure", Candidates: []string{"n1"}, Reasons: map[string]int{api.WhyPressure: 1}}).Value.(Moved)
	if moved.VM != nil || moved.Ended == nil || moved.Ended.Code != api.CodeNoCapacity || moved.Ended.Reasons[api.WhyPressure] != 1 {
		t.Fatalf("got %+v, want the end with reasons", moved)
	}
	if f.view().VM("x") != nil || f.view().Operation("", "k") != nil || f.view().Use("n1").VMs != 0 || f.activities("central", "end", "failed") != 1 {
		t.Error("something of the VM is left, or its end is not in the activity log")
	}
	if op := f.launched("y", "k", l, "n1"); op.Ref != "y" {
		t.Errorf("got %+v, want the key to name a new launch", op)
	}
}

func TestMoveThatComesLateChangesNothing(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.node("n2")
	f.image("img")
	f.launched("x", "", Launch{Name: "build", Image: "img"}, "n1")
	late := MoveVM{ID: "x", From: "n2", Candidates: []string{"n2"}}
	for what, prepare := range map[string]func(){
		"from another host":       func() {},
		"after a confirmation":    func() { late.From = "n1"; f.report("x", api.StateBooting) },
		"after a deletion":        func() { f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"x"}}) },
		"of a VM that never was":  func() { late.ID = "absent" },
		"of one that is not told": func() { late.ID = "x" },
	} {
		prepare()
		before := f.view()
		f.do(KindMoveVM, late)
		if changed := difference(t, before, f.view()); changed != "" {
			t.Errorf("a move %s changed %s", what, changed)
		}
	}
}

func TestMoveKeepsTheBackendThatWasAsked(t *testing.T) {
	f := newFleet(t)
	for i, backends := range [][]string{{"qemu", "sim"}, {"sim"}, {"sim", "qemu"}} {
		n := host([]string{"n1", "n2", "n3"}[i], false)
		n.Backends = backends
		f.do(KindRegisterNode, RegisterNode{Operator: true, Node: n})
	}
	f.image("img")
	f.launched("asked", "", Launch{Name: "a", Image: "img", Backend: "qemu"}, "n1")
	f.launched("auto", "", Launch{Name: "b", Image: "img", Backend: api.BackendAuto}, "n1")
	for id, want := range map[string][2]string{"asked": {"n3", "qemu"}, "auto": {"n2", "sim"}} {
		if v := f.vm(id); v.Backend != "qemu" {
			t.Errorf("got %+v, want qemu on n1", v)
		}
		f.do(KindMoveVM, MoveVM{ID: id, From: "n1", Candidates: []string{"n2", "n3"}})
		if v := f.vm(id); v.Node != want[0] || v.Backend != want[1] {
			t.Errorf("VM %s is on %s with %s, want %v", id, v.Node, v.Backend, want)
		}
	}
}

func TestLaunchIsKeptUntilANodeHasTheVM(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("x", "", Launch{Name: "build", Image: "img", Node: "n1", Selector: map[string]string{}, Boot: &Boot{CloudInit: &api.CloudInit{User: "u"}}}, "n1")
	if v := f.vm("x"); v.Launch == nil || v.Launch.Node != "n1" || v.Launch.Boot != nil || v.Boot == nil {
		t.Errorf("got %+v, want what was asked, and what to boot with once", v)
	}
	f.report("x", api.StateBooting)
	if v := f.vm("x"); v.Launch != nil || v.Boot != nil {
		t.Errorf("got %+v, want both dropped: the node has them", v)
	}
}

func TestFailedHandOverGoesOnAsANewVMUnderTheSameKey(t *testing.T) {
	f := poolFleet(t)
	l := Launch{Name: "build", Image: "img", TTLSeconds: 600, Labels: map[string]string{"job": "1"}}
	f.launched("x", "k", l, "n1")
	deadline := f.vm("a").ExpiresAt
	if claims, _, _ := f.view().Claims24h("p"); claims != 1 {
		t.Errorf("got %d claims, want 1", claims)
	}
	moved := f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Refusal: "404", Candidates: []string{"n1"}}).Value.(Moved)
	if v := f.view().VMNamed("", "build"); moved.VM != v || v.ID != "new" || v.ColdReason != "rename_failed" || v.Key != "k" || v.ExpiresAt != deadline || v.Labels["job"] != "1" || v.ClaimedFrom != "" {
		t.Errorf("got %+v and VM %+v, want the launch as VM new", moved, v)
	}
	if v := f.vm("a"); v.Live() || v.Key != "" || v.ClaimedFrom != "" || v.HandOver || !v.NeedsOrder() {
		t.Errorf("got %+v, want the broken spare on its way out", v)
	}
	if r := f.launch("y", "k", l, "n1"); !r.Replayed || *r.Value.(*Operation) != (Operation{Key: "k", Digest: digest(l), At: r.Value.(*Operation).At, Ref: "new", Name: "build", Image: "img", Node: "n1", ColdReason: "rename_failed"}) {
		t.Errorf("got %+v (%+v), want the new VM", r, r.Value)
	}
	if claims, timed, _ := f.view().Claims24h("p"); claims != 0 || timed != 0 {
		t.Errorf("got %d claims and %d timed, want the failed one taken back", claims, timed)
	}
	if f.activities("warm-pool", "hand-over", "failed") != 1 {
		t.Error("the failure is not in the activity log")
	}
	version := f.vm("a").Version
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "again", Candidates: []string{"n1"}})
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", Told: f.vm("a").Told, State: api.StateRunning, Agent: true}}})
	if v := f.vm("a"); v.State != api.StateDeleting || v.Version != version || f.view().VM("again") != nil {
		t.Errorf("a repeated failure or a late report made it %+v", v)
	}
}

func TestFailedHandOverWithoutRoomEndsTheLaunchAndFreesItsKey(t *testing.T) {
	f := poolFleet(t)
	l := Launch{Name: "build", Image: "img"}
	f.launched("x", "k", l)
	moved := f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Refusal: "404", Reasons: map[string]int{api.WhyCPU: 1}}).Value.(Moved)
	if moved.VM != nil || moved.Ended == nil || moved.Ended.Code != api.CodeNoCapacity || f.view().Operation("", "k") != nil || f.view().VMNamed("", "build") != nil {
		t.Fatalf("got %+v, want the end", moved)
	}
	if op := f.launched("y", "k", l); op.Ref != "b" {
		t.Errorf("got %+v, want a repeat to take the next spare and never the broken one", op)
	}
}

func TestFailedHandOverKeepsWhatWasPatchedMeanwhile(t *testing.T) {
	f := poolFleet(t)
	f.launched("x", "", Launch{Name: "build", Image: "img", TTLSeconds: 60})
	f.do(KindPatchVM, PatchVM{ID: "a", Patch: api.VMPatch{Name: api.Some("renamed"), TTLSeconds: api.Null[int64](), Labels: api.Some(map[string]*string{"k": new("v")})}})
	f.launched("other", "", Launch{Name: "build", Image: "img", VCPUs: 2}, "n1") // takes the freed name
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Candidates: []string{"n1"}})
	if v := f.vm("new"); v.Name != "renamed" || v.ExpiresAt != 0 || v.Labels["k"] != "v" || f.view().VMNamed("", "build").ID != "other" {
		t.Errorf("got %+v, want it as it was patched", v)
	}
}

func TestFailedHandOverKeepsSizeAndDeadlineWhateverChangedMeanwhile(t *testing.T) {
	f := tenantFleet(t)
	f.quota("acme", api.QuotaPatch{MaxVCPUs: api.Some(int64(2)), MaxMemoryMiB: api.Some(int64(512))}) // the two spares
	f.launched("x", "", Launch{Tenant: "acme", Name: "build", Image: "img", TTLSeconds: 9_999})
	deadline := f.vm("a").ExpiresAt
	f.do(KindPatchImage, PatchImage{Name: "img", Patch: api.ImagePatch{VCPUs: api.Some(8), MemoryMiB: api.Some(int64(8192))}})
	f.do(KindPatchTenant, PatchTenant{Name: "acme", Patch: api.TenantPatch{MaxTTLSeconds: api.Some(int64(60))}})
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Candidates: []string{"own"}})
	if v := f.vm("new"); v.VCPUs != 1 || v.MemoryMiB != 256 || v.ExpiresAt != deadline {
		t.Errorf("got %+v, want what was claimed: it counts already", v)
	}
}

func TestSpareThatIsGoneDuringItsHandOverLosesNoLaunch(t *testing.T) {
	f := poolFleet(t)
	f.launched("x", "k", Launch{Name: "build", Image: "img"})
	f.report("b", api.StateGone) // an idle one only goes
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", State: api.StateGone}}})
	if f.view().VM("b") != nil || !f.vm("a").HandOver {
		t.Fatalf("got %+v, want the claim to wait for the hand-over's outcome", f.view().VM("a"))
	}
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Refusal: "404", Candidates: []string{"n1"}})
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", State: api.StateGone}}})
	if v := f.view().VMNamed("", "build"); v == nil || v.ID != "new" || f.view().VM("a") != nil {
		t.Errorf("got %+v, want the launch as VM new and the spare gone", v)
	}
}

func TestFailedHandOverDoesNotGiveTheSpareToALaterPoolOfTheSameName(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme", "beta")
	f.leased("l", "acme", "n1")
	f.pool("p", "acme", "img", 1)
	f.ready("p", "n1", "a")
	f.launched("x", "", Launch{Tenant: "acme", Name: "secret", Image: "img"})
	f.do(KindDeletePool, DeletePool{Name: "p"})
	f.pool("p", "beta", "img", 1)
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Candidates: []string{"n1"}})
	if v := f.vm("a"); v.Tenant == "beta" {
		t.Errorf("got %+v, want it hidden from beta", v)
	}
	if claims, _, _ := f.view().Claims24h("p"); claims != 0 {
		t.Errorf("got %d claims of the new pool, want none", claims)
	}
}
