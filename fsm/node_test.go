package fsm

import (
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func (f *fleet) token(id, kind, pattern string, uses int) {
	f.t.Helper()
	f.do(KindCreateJoinToken, CreateJoinToken{Token: JoinToken{ID: id, Hash: "hash-" + id, Kind: kind, NamePattern: pattern, UsesLeft: uses, ExpiresAt: f.now + 3_600_000}})
}

func TestJoinTokenLetsInAsManyAsItSaysAndThenIsGone(t *testing.T) {
	f := newFleet(t)
	f.token("t", "node", "studio-*", 2)
	join := func(name string) RegisterNode { return RegisterNode{TokenHash: "hash-t", Node: host(name, false)} }
	f.refused(api.CodeForbidden, "", KindRegisterNode, join("mini-1"))
	for _, name := range []string{"studio-1", "studio-2"} {
		f.do(KindRegisterNode, join(name))
	}
	if f.view().JoinTokenByHash("hash-t") != nil {
		t.Error("a token that is used up is still there")
	}
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, join("studio-3"))
}

func TestJoinTokenExpiresInFSMTimeAndIsForItsKindOnly(t *testing.T) {
	f := newFleet(t)
	f.token("t", "node", "*", 5)
	f.token("r", "replica", "*", 5)
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{TokenHash: "hash-r", Node: host("n1", false)})
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{TokenHash: "made-up", Node: host("n1", false)})
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{Node: host("n1", false)})
	f.do(KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: host("n1", false)})
	f.now += 3_600_000
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: host("n2", false)})
	f.now -= 3_600_000 // a clock that goes back brings no token back
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: host("n2", false)})
}

func TestReimagedHostIsRefusedUntilItsNodeIsDeleted(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.token("t", "node", "*", 5)
	other := host("n1", false)
	other.UUID = "another"
	f.refused(api.CodeConflict, "", KindRegisterNode, RegisterNode{Operator: true, Node: other})
	f.refused(api.CodeConflict, "", KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: other})
	f.do(KindDeleteNode, DeleteNode{Name: "n1"})
	f.do(KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: other})
	if n := f.view().Node("n1"); n.UUID != "another" || f.view().JoinTokenByHash("hash-t").UsesLeft != 4 {
		t.Errorf("got %+v", n)
	}
}

func TestNodeSpeaksForItselfByItsCredential(t *testing.T) {
	f := newFleet(t)
	f.token("t", "node", "*", 5)
	n := host("n1", false)
	n.CredentialHash = "secret"
	f.do(KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: n})
	f.do(KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: n}) // the answer was lost: no second use
	if left := f.view().JoinTokenByHash("hash-t").UsesLeft; left != 4 {
		t.Errorf("got %d uses left, want 4", left)
	}
	n.BootID = "b2"
	f.do(KindRegisterNode, RegisterNode{Node: n})
	if f.view().Node("n1").BootID != "b2" || f.activities("node/n1", "reboot", "ok") != 1 {
		t.Errorf("got %+v, want its reboot noted", f.view().Node("n1"))
	}
	n.CredentialHash = "guess"
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{Node: n})
	f.refused(api.CodeConflict, "", KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: n}) // a token is no way to another's name
}

func TestReportOfFactsChangesNoIntent(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: new(true), Reason: new("repair")})
	facts := host("n1", false)
	facts.State, facts.VCPUsTotal = api.NodeLost, 32
	if f.view().Node("n1").SameFacts(&facts) {
		t.Error("more vCPUs are said to be the same facts")
	}
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: facts})
	if n := f.view().Node("n1"); n.VCPUsTotal != 32 || !n.Cordoned || n.Reason != "repair" || n.State != api.NodeHealthy || !n.SameFacts(&facts) {
		t.Errorf("got %+v", n)
	}
}

func TestChangedOvercommitRecountsMacOSGuests(t *testing.T) {
	f := newFleet(t)
	f.mac("m1")
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mac", Path: "/m", GuestOS: api.GuestMacOS, VCPUs: 4, MemoryMiB: 4096}})
	f.launched("a", "", Launch{Name: "a", Image: "mac"}, "m1")
	facts := host("m1", true)
	facts.CPUOvercommit = 2
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: facts})
	if u := f.view().Use("m1"); u.VCPUs != 8 {
		t.Errorf("got %+v, want 4 vCPUs at an overcommit of 2", u)
	}
}

func TestUncordonEndsADrainAndItsReason(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.do(KindPatchNode, PatchNode{Name: "n1", Draining: new(true), Reason: new("repair")})
	if n := f.view().Node("n1"); !n.Cordoned || !n.Draining || n.Reason != "repair" {
		t.Errorf("got %+v, want a drained node cordoned", n)
	}
	f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: new(false)})
	if n := f.view().Node("n1"); n.Cordoned || n.Draining || n.Reason != "" {
		t.Errorf("got %+v, want it free", n)
	}
	f.refused(api.CodeNotFound, "", KindPatchNode, PatchNode{Name: "absent"})
}

func TestADrainKeepsItsBeginningAndTakesAnotherDeadline(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	drain := func(how DrainHost) *Drain {
		f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: new(true), Draining: new(true), By: "ann", Drain: &how})
		return f.view().Node("n1").Drain
	}
	first := drain(DrainHost{})
	if first == nil || first.By != "ann" || first.StartedAt != f.now || first.Deadline != 0 || first.Forced(f.now) {
		t.Fatalf("got %+v", first)
	}
	began := f.now
	f.now += 5000
	if next := drain(DrainHost{DeadlineSeconds: 10, Force: true}); next.StartedAt != began || next.Deadline != f.now+10_000 || next.Forced(f.now) || !next.Forced(f.now+10_000) {
		t.Errorf("got %+v, want the same beginning and a deadline in ten seconds", next)
	}
	if now := drain(DrainHost{Force: true}); !now.Forced(f.now) {
		t.Errorf("force without a deadline: %+v, want it to hold at once", now)
	}
	if n := f.view().Node("n1"); n.CordonedBy != "ann" {
		t.Errorf("cordoned by %q", n.CordonedBy)
	}
	f.do(KindPatchNode, PatchNode{Name: "n1", Draining: new(false)})
	if n := f.view().Node("n1"); n.Drain != nil || !n.Cordoned {
		t.Errorf("got %+v, want the drain over and the node cordoned", n)
	}
}

func TestNodeThatHoldsVMsCannotBeDeleted(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.launched("a", "", Launch{Name: "a", Image: "img"}, "n1")
	f.refused(api.CodeConflict, "", KindDeleteNode, DeleteNode{Name: "n1"})
	f.refused(api.CodeConflict, "", KindDeleteNode, DeleteNode{Name: "n1", Force: true}) // it would run on unbilled
	f.report("a", api.StateGone)
	f.do(KindDeleteNode, DeleteNode{Name: "n1"})
	f.refused(api.CodeNotFound, "", KindDeleteNode, DeleteNode{Name: "n1"})
}

func TestUnreachableNodeMakesItsVMsUnknownUntilItIsBack(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	states := map[string]api.VMState{"running": api.StateRunning, "booting": api.StateBooting, "paused": api.StatePaused, "stopped": api.StateStopped, "failed": api.StateFailed}
	for id, state := range states {
		f.launched(id, "", Launch{Name: id, Image: "img"}, "n1")
		f.report(id, state)
	}
	f.launched("placed", "", Launch{Name: "placed", Image: "img"}, "n1")
	use := f.view().Use("n1")
	f.health("n1", api.NodeSuspect)
	if f.vm("running").State != api.StateRunning {
		t.Error("a suspect node changed its VMs")
	}
	f.health("n1", api.NodeUnreachable)
	confirmed := f.view().Node("n1").ConfirmedAt
	for id, want := range map[string]api.VMState{"running": api.StateUnknown, "booting": api.StateUnknown, "paused": api.StateUnknown, "stopped": api.StateStopped, "failed": api.StateFailed, "placed": api.StatePlaced} {
		if got := f.vm(id).State; got != want {
			t.Errorf("VM %s is %s, want %s", id, got, want)
		}
	}
	if u := f.view().Use("n1"); u.MemoryMiB != use.MemoryMiB || u.VMs != use.VMs {
		t.Errorf("got %+v, want unknown VMs counted as before: %+v", u, use)
	}
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: "n1", State: api.NodeHealthy, ConfirmedAt: confirmed - 1}, {Name: "absent", State: api.NodeLost}}})
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "running", Node: "n1", State: api.StateRunning}}})
	if n := f.view().Node("n1"); n.State != api.NodeHealthy || n.ConfirmedAt != confirmed || f.vm("running").State != api.StateRunning || f.vm("running").Reason != "" {
		t.Errorf("got %+v and %+v, want both back", n, f.vm("running"))
	}
}

func TestSparesOfAnUnreachableNodeAreReadyAgainInTheirOldOrder(t *testing.T) {
	f := poolFleet(t)
	f.health("n1", api.NodeUnreachable)
	if c := f.view().Count(f.view().Pool("p")); c.Ready != 0 || c.Failed != 2 {
		t.Errorf("got %+v, want none ready", c)
	}
	f.health("n1", api.NodeHealthy)
	f.report("b", api.StateRunning)
	f.report("a", api.StateRunning)
	if op := f.launched("x", "", Launch{Name: "build", Pool: "p"}); op.Ref != "a" {
		t.Errorf("got %+v, want a, which was ready first", op)
	}
}
