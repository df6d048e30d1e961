package fsm

import (
	"slices"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// lossFleet has VMs of all sorts on n1, which was last heard at the given time and is lost now, and room on n2.
func lossFleet(t *testing.T) (f *fleet, heard api.Time) {
	f = newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme")
	f.do(KindPutPrices, PutPrices{Prices: api.Prices{Currency: "EUR", VM: []api.VMPrice{{VCPUHourMicros: 3_600_000}}}})
	f.pool("p", "", "img", 2)
	f.ready("p", "n1", "spare", "taken")
	f.launched("x", "k-taken", Launch{Name: "taken", Pool: "p"}, "n1") // takes the spare that was ready first
	for _, id := range []string{"plain", "ending", "stopped"} {
		f.launched(id, "k-"+id, Launch{Tenant: "acme", Name: id, Image: "img"}, "n1")
		f.report(id, api.StateRunning)
	}
	f.report("stopped", api.StateStopped)
	f.launched("mobile", "k-mobile", Launch{Tenant: "acme", Name: "mobile", Image: "img", Resched: true, ColdField: "reschedulable", Boot: &Boot{CloudInit: &api.CloudInit{Hostname: "h"}}}, "n1")
	f.report("mobile", api.StateRunning)
	f.launched("untold", "k-untold", Launch{Name: "untold", Image: "img", ColdField: "balloon"}, "n1")
	heard = f.now
	f.pass(30_000)
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: "n1", State: api.NodeSuspect, ConfirmedAt: heard}}})
	f.pass(300_000)
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: "n1", State: api.NodeUnreachable}}})
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"ending"}})
	f.node("n2")
	f.do(KindLoseNode, LoseNode{Name: "n1", Action: "POST /fleet/nodes/{name}/lost", Reason: "fire"})
	return f, heard
}

// lose settles all that is unsettled on the node.
func (f *fleet) lose(node string, candidates ...string) []string {
	f.t.Helper()
	c := LoseVMs{Node: node}
	for _, id := range f.view().Unsettled(node) {
		c.VMs = append(c.VMs, LostVM{ID: id, Candidates: candidates})
	}
	return f.do(KindLoseVMs, c).Value.([]string)
}

func TestALostHostsVMsAreSettledAndBilledUntilItWasLastHeard(t *testing.T) {
	f, heard := lossFleet(t)
	if got := f.view().Unsettled("n1"); len(got) != 5 {
		t.Errorf("unsettled are %v, want all but the one handed over and the one untold", got)
	}
	if placed := f.lose("n1", "n2"); !slices.Equal(placed, []string{"mobile"}) {
		t.Errorf("placed elsewhere: %v, want the reschedulable one", placed)
	}
	for id, want := range map[string]api.VMState{"plain": api.StateLost, "stopped": api.StateLost, "mobile": api.StatePlaced, "untold": api.StatePlaced} {
		if got := f.vm(id).State; got != want {
			t.Errorf("VM %s is %s, want %s", id, got, want)
		}
	}
	if m := f.vm("mobile"); m.Node != "n2" || !m.NeedsOrder() || m.Boot == nil || m.RunningAt != 0 || f.view().Operation("acme", "k-mobile").Node != "n2" {
		t.Errorf("the reschedulable one goes on as %+v", m)
	}
	if v := f.view(); v.VM("ending") != nil || v.VM("taken") != nil {
		t.Error("a spare, or one whose end was asked for, is still there")
	}
	if v := f.vm("spare"); !v.HandOver || v.Node != "n1" {
		t.Errorf("the launch that waits for its hand-over is %+v", v)
	}
	if h := f.view().Holding("acme"); h.VMs != 1 {
		t.Errorf("acme holds %+v, want the reschedulable one alone", h)
	}
	if u := f.view().Use("n1"); u.MemoryMiB != 2*256 {
		t.Errorf("n1 is said to hold %+v, want what is not settled yet", u)
	}
	for row := range f.view().Ledger(0) {
		if row.EndedAt == 0 && row.VMID != "spare" || row.EndedAt > heard && row.VMID != "stopped" {
			t.Errorf("stretch %+v, want it closed at %s at the latest", row, heard)
		}
	}
	if placed, left := f.lose("n1", "n2"), f.view().Unsettled("n1"); placed != nil || len(left) > 0 {
		t.Errorf("a second time: placed %v, unsettled %v", placed, left)
	}
}

func TestALostVMReturnsWithItsHostWhereQuotaHasRoom(t *testing.T) {
	f, _ := lossFleet(t)
	f.lose("n1")
	for _, id := range []string{"plain", "mobile"} {
		if v := f.vm(id); v.State != api.StateLost {
			t.Fatalf("got %+v, want it lost", v)
		}
	}
	back := func(id string) api.VMState {
		f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: id, Node: "n1", State: api.StateRunning}}})
		return f.vm(id).State
	}
	if got := back("plain"); got != api.StateLost {
		t.Errorf("%s before its host is healthy", got)
	}
	f.do(KindPatchTenant, PatchTenant{Name: "acme", Patch: api.TenantPatch{Quota: api.QuotaPatch{MaxVMs: api.Some(int64(1))}}})
	f.health("n1", api.NodeHealthy)
	if a, b := back("plain"), back("mobile"); a != api.StateRunning || b != api.StateLost || f.view().MayReturn(f.vm("mobile")) {
		t.Errorf("with room for one: %s and %s", a, b)
	}
	open := 0
	for row := range f.view().Ledger(0) {
		if row.VMID == "plain" && row.EndedAt == 0 {
			open++
		}
	}
	if open != 1 {
		t.Errorf("%d open stretches of the one that is back", open)
	}
	if placed := f.do(KindLoseVMs, LoseVMs{Node: "n1", VMs: []LostVM{{ID: "plain"}}}).Value.([]string); placed != nil || f.vm("plain").State != api.StateRunning {
		t.Error("a late command lost a VM of a host that is back")
	}
}

func TestALostMacOSGuestStaysLostWhileTwoOthersRunThere(t *testing.T) {
	f := newFleet(t)
	f.mac("m1")
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mac", Path: "/m", GuestOS: api.GuestMacOS, VCPUs: 1, MemoryMiB: 1024}})
	f.launched("old", "", Launch{Name: "old", Image: "mac"}, "m1")
	f.report("old", api.StateRunning)
	f.health("m1", api.NodeLost)
	f.lose("m1")
	f.health("m1", api.NodeHealthy)
	for _, id := range []string{"a", "b"} {
		f.launched(id, "", Launch{Name: id, Image: "mac"}, "m1")
	}
	f.report("old", api.StateRunning)
	if got := f.vm("old").State; got != api.StateLost {
		t.Errorf("a third macOS guest counts as %s", got)
	}
}

func TestOnlyASilentHostIsLostAndItsDeletionEndsWhatWasLost(t *testing.T) {
	f, _ := lossFleet(t)
	f.refused(api.CodeConflict, "", KindLoseNode, LoseNode{Name: "n2"})
	f.refused(api.CodeNotFound, "", KindLoseNode, LoseNode{Name: "absent"})
	f.refused(api.CodeConflict, "", KindDeleteNode, DeleteNode{Name: "n1"}) // VMs are not settled
	f.lose("n1")
	f.do(KindMoveVM, MoveVM{ID: "untold", From: "n1", Candidates: []string{"n2"}})
	f.do(KindFailHandOver, FailHandOver{ID: "spare", NewID: "cold", Candidates: []string{"n2"}})
	f.lose("n1")
	f.do(KindDeleteNode, DeleteNode{Name: "n1"})
	for v := range f.view().VMs("") {
		if v.Node != "n2" {
			t.Errorf("VM %+v is left", v)
		}
	}
}

func TestAReplacedHostLetsTheNextOfItsNameInByToken(t *testing.T) {
	f := newFleet(t)
	f.token("t", "node", "*", 5)
	old := host("n1", false)
	old.CredentialHash = "old"
	f.do(KindRegisterNode, RegisterNode{TokenHash: "hash-t", Node: old})
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: host("n2", false)})
	remade := host("n1", false)
	remade.UUID, remade.CredentialHash = "u-new", "new"
	join := RegisterNode{TokenHash: "hash-t", Node: remade}
	f.refused(api.CodeConflict, "", KindRegisterNode, join)
	f.refused(api.CodeConflict, "", KindLoseNode, LoseNode{Name: "n1", Replace: true}) // it is healthy
	f.health("n1", api.NodeSuspect)
	f.do(KindLoseNode, LoseNode{Name: "n1", Replace: true})
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{Node: old})
	f.refused(api.CodeUnauthenticated, "", KindRegisterNode, RegisterNode{Node: remade})
	renamed := join
	renamed.Node.UUID = "u-n2"
	f.refused(api.CodeConflict, "", KindRegisterNode, renamed)
	f.do(KindRegisterNode, join)
	if n := f.view().Node("n1"); n.UUID != "u-new" || n.CredentialHash != "new" || n.State != api.NodeLost {
		t.Errorf("got %+v, want the new one, lost until its list is there", n)
	}
	f.do(KindRegisterNode, RegisterNode{Node: remade})
}

func TestARenamedHostIsToldItsName(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	renamed := host("n1", false)
	renamed.Name = "n9"
	r := f.send(KindRegisterNode, nil, RegisterNode{Operator: true, Node: renamed})
	if r.Err == nil || r.Err.Code != api.CodeConflict || !strings.Contains(r.Err.Detail, "--name n1") {
		t.Errorf("got %+v, want a conflict that names n1", r.Err)
	}
}

func TestARebootFailsWhatRanAndBillsItUntilTheHostWasHeard(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	for _, id := range []string{"run", "stop"} {
		f.launched(id, "", Launch{Name: id, Image: "img"}, "n1")
		f.report(id, api.StateRunning)
	}
	f.report("stop", api.StateStopped)
	heard := f.now
	f.pass(60_000)
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: "n1", State: api.NodeSuspect, ConfirmedAt: heard}}})
	facts := host("n1", false)
	facts.BootID = "b2"
	stranger := host("n1", false)
	stranger.UUID, stranger.VCPUsTotal = "other", 1
	f.do(KindUpdateNodes, UpdateNodes{Nodes: []Node{facts, stranger, host("absent", false)}})
	if n := f.view().Node("n1"); n.BootID != "b2" || n.VCPUsTotal != 16 || f.activities("node/n1", "reboot", "ok") != 1 {
		t.Errorf("got %+v, want the new boot and nothing of the other host", n)
	}
	if a, b := f.vm("run"), f.vm("stop"); a.State != api.StateFailed || a.Reason != "its host rebooted" || b.State != api.StateStopped {
		t.Errorf("got %+v and %+v", a, b)
	}
	for row := range f.view().Ledger(0) {
		if row.EndedAt == 0 || row.EndedAt > heard {
			t.Errorf("stretch %+v, want it closed at %s at the latest", row, heard)
		}
	}
}

func TestExpiredJoinTokensGoWithTheNextOne(t *testing.T) {
	f := newFleet(t)
	f.token("old", "node", "*", 5)
	f.pass(3_600_000)
	f.token("new", "node", "*", 5)
	if v := f.view(); v.JoinTokenByHash("hash-old") != nil || v.JoinTokenByHash("hash-new") == nil {
		t.Error("the expired token is still there, or the new one is not")
	}
}

func TestAFaultIsShownAndGoesWithHealth(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: "n1", State: api.NodeSuspect, Fault: "cloned"}}})
	if n := f.view().Node("n1"); n.Fault != "cloned" {
		t.Errorf("got %+v", n)
	}
	f.health("n1", api.NodeHealthy)
	if n := f.view().Node("n1"); n.Fault != "" {
		t.Errorf("got %+v, want it without fault", n)
	}
}

func TestAVMThatBootsAnewWaitsWhereNoHostTakesItAndALaunchEnds(t *testing.T) {
	for _, c := range []struct{ note, keep, again, waits bool }{{true, true, true, true}, {true, true, false, false}, {false, true, true, false}, {true, false, true, false}} {
		f := newFleet(t)
		for _, n := range []string{"n1", "n2"} {
			f.node(n)
		}
		f.image("img")
		f.launched("x", "k", Launch{Name: "mobile", Image: "img", Resched: true}, "n1")
		if c.again {
			f.report("x", api.StateRunning)
			yes := true
			f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: &yes, Draining: &yes, By: "operator"})
			move := RelocateVMs{Node: "n1", VMs: []LostVM{{ID: "x", Candidates: []string{"n2"}}}, Keep: c.note}
			f.do(KindRelocateVMs, move)
			f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "x", Node: "n1", State: api.StateGone}}})
			f.do(KindRelocateVMs, move)
		}
		f.do(KindMoveVM, MoveVM{ID: "x", From: f.vm("x").Node, Refusal: "full", Why: api.WhyMemory, Keep: c.keep})
		v := f.view().VM("x")
		if (v != nil) != c.waits {
			t.Fatalf("%+v: it is %+v", c, v)
		}
		if v == nil {
			continue
		}
		if v.State != api.StateStopped || v.Move != MoveEnded || !v.NeedsOrder() || f.view().Use("n2").MemoryMiB != 0 || f.view().Operation("", "k") == nil {
			t.Errorf("it is %+v, on a host with %+v", v, f.view().Use("n2"))
		}
		if f.do(KindRelocateVMs, RelocateVMs{Node: "n2", VMs: []LostVM{{ID: "x", Candidates: []string{"n2"}}}, Keep: true}); f.vm("x").State != api.StatePlaced || !f.vm("x").Again {
			t.Errorf("once there is room: %+v", f.vm("x"))
		}
		if f.report("x", api.StateRunning); f.vm("x").Again || f.vm("x").State != api.StateRunning {
			t.Errorf("once it runs: %+v", f.vm("x"))
		}
	}
}
