package fsm

import (
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func (f *fleet) poolWith(name string, change func(*api.PoolRequest)) {
	f.t.Helper()
	min := 2
	r := api.PoolRequest{Name: name, Image: "img", MinReady: &min}
	change(&r)
	f.do(KindCreatePool, CreatePool{Request: r})
}

func TestCrashesOfReadySparesBackOffUntilAHandOver(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	for i, wait := range []api.Time{5_000, 10_000, 20_000} {
		id := string(rune('a' + i))
		f.pass(max(f.view().Pool("p").BackoffUntil-f.view().Meta().Now, 0) + 1)
		f.ready("p", "n1", id)
		if p := f.view().Pool("p"); p.WaitReason != "" {
			t.Errorf("with a ready spare it waits for %s", p.WaitReason)
		}
		f.report(id, api.StateFailed)
		p := f.view().Pool("p")
		if got := p.BackoffUntil - f.view().Meta().Now; got != wait || p.Failures != i+1 || p.WaitReason != api.WaitBootFailed {
			t.Errorf("crash %d: waits %d ms with %d failures for %q, want %d", i+1, got, p.Failures, p.WaitReason, wait)
		}
		f.do(KindDeleteVMs, DeleteVMs{IDs: []string{id}})
	}
	f.pass(21_000)
	f.ready("p", "n1", "good")
	f.launched("x", "k", Launch{Name: "build", Pool: "p"}, "n1")
	v := f.vm("good")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "good", Node: "n1", Told: v.Order, State: api.StateRunning, ClaimMS: new(int64(9))}}})
	if p := f.view().Pool("p"); p.Failures != 0 || p.Crashing {
		t.Errorf("after a hand-over: %+v", p)
	}
}

func TestAStreakOfFailuresIsOverAfterHalfAnHour(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	f.ready("p", "n1", "a")
	f.report("a", api.StateFailed)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	f.pass(streakEndsMS + 6_000)
	f.ready("p", "n1", "b")
	f.report("b", api.StateFailed)
	if p := f.view().Pool("p"); p.Failures != 1 {
		t.Errorf("%d failures, want a new streak", p.Failures)
	}
}

func TestRoomEndsABackOffThatWaitsForItAndNoOther(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	spare := []Spare{{ID: "a", Name: "warm-p-a", Candidates: []string{"n1"}}}
	f.do(KindFillPool, FillPool{Pool: "p", Wait: &Wait{Reason: api.WaitNoCapacity, Reasons: map[string]int{api.WhyCordoned: 1}, Error: "no host can take another VM"}})
	if placed := f.do(KindFillPool, FillPool{Pool: "p", Spares: spare}).Value.([]string); len(placed) != 0 {
		t.Error("a spare was placed while the pool backs off")
	}
	if placed := f.do(KindFillPool, FillPool{Pool: "p", Spares: spare, Room: true}).Value.([]string); len(placed) != 1 {
		t.Error("with room again no spare was placed")
	}
	f.report("a", api.StateFailed)
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	spare[0].ID = "b"
	if placed := f.do(KindFillPool, FillPool{Pool: "p", Spares: spare, Room: true}).Value.([]string); len(placed) != 0 {
		t.Error("room ended the wait after a failed boot")
	}
}

func TestTheLastFailedSpareIsKeptForItsTime(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.poolWith("p", func(r *api.PoolRequest) { r.KeepFailedSeconds = 60 })
	kept := func() string {
		if v := f.view().KeptFailed(f.view().Pool("p"), f.view().Meta().Now); v != nil {
			return v.ID
		}
		return ""
	}
	f.fill("p", "n1", "a", "b")
	f.report("a", api.StateFailed)
	if kept() != "a" {
		t.Errorf("kept %q, want a", kept())
	}
	f.pass(1_000)
	f.do(KindFillPool, FillPool{Pool: "p", Failed: []FailedSpare{{ID: "b", Reason: "its agent is mute"}}}) // it runs, and its node sees no fault
	if v := f.vm("b"); kept() != "b" || v.Reason != "its agent is mute" || v.WarmState() != "failed" {
		t.Errorf("kept %q, want b: %+v", kept(), v)
	}
	if c := f.view().Count(f.view().Pool("p")); c.Failed != 2 || c.Ready+c.Booting != 0 {
		t.Errorf("failed spares count as %+v", c)
	}
	f.report("b", api.StateRunning) // too late
	if v := f.vm("b"); v.SpareSince != 0 {
		t.Error("a spare that was taken for failed became ready")
	}
	f.pass(60_000)
	if kept() != "" {
		t.Errorf("kept %q after its time", kept())
	}
}

func TestARollShowsUntilAllIsNewAndCanBeAborted(t *testing.T) {
	f := poolFleet(t)
	f.image("next")
	f.refused(api.CodeConflict, "", KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Abort: true}})
	f.do(KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Image: "next", StaleUse: "never"}})
	if p := f.view().Pool("p"); p.RollFrom != "img" || f.view().Rolled(p) {
		t.Errorf("rolling: %+v", p)
	}
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
	f.ready("p", "n1", "c")
	f.do(KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Abort: true}})
	p := f.view().Pool("p")
	if p.Image != "img" || p.RollFrom != "next" || p.StaleUse != "" || f.view().Count(p).Stale != 1 {
		t.Errorf("aborted: %+v with %+v", p, f.view().Count(p))
	}
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"c"}})
	f.ready("p", "n1", "d")
	f.do(KindFillPool, FillPool{Pool: "p"})
	if p := f.view().Pool("p"); p.RollFrom != "" {
		t.Errorf("all spares are of %s again, and it still rolls: %+v", p.Image, p)
	}
}

func TestAPoolWhoseImageLosesItsAgentIsNotStuck(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	f.fill("p", "n1", "a")
	v := f.vm("a")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: v.Node, Told: v.Order, State: api.StateRunning}}})
	f.do(KindPatchImage, PatchImage{Name: "img", Patch: api.ImagePatch{HasAgent: api.Some(false)}})
	if p, v := f.view().Pool("p"), f.vm("a"); p.Readiness != api.ReadinessRunning || v.WarmState() != "ready" {
		t.Errorf("readiness is %s, and the running spare %s", p.Readiness, v.WarmState())
	}
}

func TestLaunchesThatMatchAndBootNormallyAreCounted(t *testing.T) {
	f := poolFleet(t)
	for i, l := range []Launch{{Image: "img"}, {Pool: "p"}, {Image: "img"}, {Pool: "p"}, {Image: "img", ColdField: "cloud_init"}, {Image: "img", VCPUs: 3}} {
		l.Name = string(rune('a' + i))
		f.launched("cold-"+l.Name, "", l, "n1")
	}
	claims, _, _ := f.view().Claims24h("p")
	if cold := f.view().Cold24h("p"); claims != 2 || cold != 2 {
		t.Errorf("%d claims and %d cold starts, want 2 and 2", claims, cold)
	}
}

func TestRotatingPoolsGiveEachTakenVMANewIdentity(t *testing.T) {
	f := newFleet(t)
	n := host("n1", false)
	n.Claim = true
	f.do(KindRegisterNode, RegisterNode{Node: n, Operator: true})
	f.image("img")
	f.refused(api.CodeInvalid, "rotate_identity", KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "q", Image: "img", Readiness: api.ReadinessRunning, RotateIdentity: true}})
	f.poolWith("p", func(r *api.PoolRequest) { r.RotateIdentity = true })
	f.ready("p", "n1", "old")
	if op := f.launched("cold", "", Launch{Name: "a", Image: "img"}, "n1"); op.Warm || op.ColdReason != "claim" {
		t.Errorf("with an agent that cannot: %+v", op)
	}
	v := f.vm("old")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "old", Node: v.Node, Told: v.Order, State: api.StateRunning, Agent: true, CanClaim: true}}})
	f.launched("x", "", Launch{Name: "b", Image: "img"}, "n1")
	if v := f.vm("old"); v.Claim == nil || !v.Claim.RotateIdentity || !v.HandOver {
		t.Errorf("taken: %+v", v)
	}
	f.do(KindFailHandOver, FailHandOver{ID: "old", NewID: "new", Candidates: []string{"n1"}, Refusal: "not now"})
	if v := f.vm("new"); v.Name != "b" || v.Claim != nil {
		t.Errorf("the VM that boots in its place: %+v, want one that nobody rotates", v)
	}
	f.ready("p", "n1", "next")
	v = f.vm("next")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "next", Node: v.Node, Told: v.Order, State: api.StateRunning, Agent: true, CanClaim: true}}})
	f.launched("y", "", Launch{Name: "c", Image: "img", Claim: &Claim{Hostname: "c"}}, "n1")
	f.do(KindFailHandOver, FailHandOver{ID: "next", NewID: "other", Candidates: []string{"n1"}, Refusal: "not now"})
	if v := f.vm("other"); v.Claim == nil || v.Claim.Hostname != "c" || v.Claim.RotateIdentity {
		t.Errorf("with a claim of the launch's: %+v, want that alone", v.Claim)
	}
}
