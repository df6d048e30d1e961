package fsm

import (
	"fmt"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestPoolTakesSizeAndReadinessFromItsImage(t *testing.T) {
	f := newFleet(t)
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "full", Path: "/a", VCPUs: 6, MemoryMiB: 16384, DiskSizeGiB: 80, HasAgent: true}})
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mute", Path: "/b"}})
	for _, c := range []struct {
		r    api.PoolRequest
		want Pool
	}{
		{api.PoolRequest{Name: "a", Image: "full"}, Pool{VCPUs: 6, MemoryMiB: 16384, DiskGiB: 80, Readiness: api.ReadinessAgent, MinReady: 1, MaxTotal: 5}},
		{api.PoolRequest{Name: "b", Image: "full", VCPUs: 2, MemoryMiB: 512, DiskSizeGiB: 9, Readiness: api.ReadinessRunning, MinReady: new(0)}, Pool{VCPUs: 2, MemoryMiB: 512, DiskGiB: 9, Readiness: api.ReadinessRunning, MaxTotal: 4}},
		{api.PoolRequest{Name: "c", Image: "mute", MinReady: new(2), MaxTotal: new(3)}, Pool{VCPUs: 1, MemoryMiB: 512, Readiness: api.ReadinessRunning, MinReady: 2, MaxTotal: 3}},
	} {
		p := f.do(KindCreatePool, CreatePool{Request: c.r}).Value.(*Pool)
		got := Pool{VCPUs: p.VCPUs, MemoryMiB: p.MemoryMiB, DiskGiB: p.DiskGiB, Readiness: p.Readiness, MinReady: p.MinReady, MaxTotal: p.MaxTotal}
		if digest(got) != digest(c.want) || p.Owner() != "operator" {
			t.Errorf("pool %s is %+v, want %+v", c.r.Name, got, c.want)
		}
	}
	f.refused(api.CodeInvalid, "readiness", KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "d", Image: "mute", Readiness: api.ReadinessAgent}})
	f.refused(api.CodeInvalid, "image", KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "d", Image: "absent"}})
	f.refused(api.CodeInvalid, "max_total", KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "d", Image: "full", MinReady: new(3), MaxTotal: new(2)}})
	f.tenant("acme")
	f.refused(api.CodeNameTaken, "", KindCreatePool, CreatePool{Tenant: "acme", Request: api.PoolRequest{Name: "a", Image: "full"}})
}

func TestPoolsAreBoundedForATenantAndTheFleet(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	for i := range api.MaxPools {
		tenant := fmt.Sprint("t", i/api.MaxPoolsPerTenant)
		if i%api.MaxPoolsPerTenant == 0 {
			f.tenant(tenant)
		}
		if i == api.MaxPoolsPerTenant {
			f.refused(api.CodeQuotaExceeded, "", KindCreatePool, CreatePool{Tenant: "t0", Request: api.PoolRequest{Name: "ninth", Image: "img"}})
		}
		f.pool(fmt.Sprint("p", i), tenant, "img", 0)
	}
	f.refused(api.CodeQuotaExceeded, "", KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "one-more", Image: "img"}})
	f.do(KindDeletePool, DeletePool{Name: "p0"})
	f.pool("one-more", "", "img", 0)
}

func TestMaxTotalFollowsMinReadyUntilItIsSet(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	f.pool("p", "", "img", 1)
	patch := func(minReady, maxTotal api.Optional[int]) int {
		t.Helper()
		return f.do(KindPatchPool, PatchPool{Name: "p", Patch: api.PoolPatch{MinReady: minReady, MaxTotal: maxTotal}}).Value.(*Pool).MaxTotal
	}
	unset := api.Optional[int]{}
	for minReady, want := range []int{4, 5, 8, 12, 16} {
		if got := patch(api.Some(minReady), unset); got != want {
			t.Errorf("min_ready %d gives max_total %d, want %d", minReady, got, want)
		}
	}
	if got := patch(api.Some(32), unset); got != 100 {
		t.Errorf("min_ready 32 gives max_total %d, want the 100 that are allowed", got)
	}
	f.refused(api.CodeInvalid, "max_total", KindPatchPool, PatchPool{Name: "p", Patch: api.PoolPatch{MaxTotal: api.Some(31)}})
	if got := patch(api.Some(2), api.Some(3)); got != 3 {
		t.Errorf("got max_total %d, want the 3 that were set", got)
	}
	if got := patch(api.Some(1), unset); got != 3 {
		t.Errorf("got max_total %d, want it to stay at what was set", got)
	}
	if got := patch(api.Null[int](), api.Null[int]()); got != 5 || f.view().Pool("p").MinReady != 1 {
		t.Errorf("got max_total %d, want both back at their defaults", got)
	}
}

func TestPatchIsHeldToTheVersionItsCallerSaw(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	f.pool("p", "", "img", 1)
	version := f.view().Pool("p").Version
	patch := PatchPool{Name: "p", IfMatch: version, Patch: api.PoolPatch{MinReady: api.Some(2)}}
	f.do(KindPatchPool, patch)
	f.refused(api.CodeConflict, "", KindPatchPool, patch)
	f.refused(api.CodeConflict, "", KindPatchImage, PatchImage{Name: "img", IfMatch: 999})
	f.refused(api.CodeNotFound, "", KindPatchPool, PatchPool{Name: "absent"})
}

func TestFillStopsAtMinReadyAndAtMaxTotal(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "p", Image: "img", MinReady: new(2), MaxTotal: new(3)}})
	round := 0
	fill := func() int {
		t.Helper()
		c := FillPool{Pool: "p"}
		for range 4 {
			round++
			id := fmt.Sprint("s", round)
			c.Spares = append(c.Spares, Spare{ID: id, Name: "warm-" + id, Candidates: []string{"absent", "n1"}})
		}
		placed := f.do(KindFillPool, c).Value.([]string)
		for _, id := range placed {
			f.report(id, api.StateRunning)
		}
		return len(placed)
	}
	if got := fill(); got != 2 {
		t.Errorf("placed %d, want min_ready", got)
	}
	f.launched("x", "", Launch{Name: "a", Pool: "p"})
	if got := fill(); got != 1 {
		t.Errorf("placed %d, want the claimed one replaced", got)
	}
	f.launched("x", "", Launch{Name: "b", Pool: "p"})
	if got := fill(); got != 0 {
		t.Errorf("placed %d, want none: two are taken and one is ready, of three", got)
	}
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{f.view().VMNamed("", "a").ID}})
	if got := fill(); got != 1 {
		t.Errorf("placed %d, want one: a taken VM ended", got)
	}
}

func TestBackoffDoublesUpToTenMinutesWithOneEntryAStreak(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	fail := func() {
		f.do(KindFillPool, FillPool{Pool: "p", Wait: &Wait{Reason: api.WaitNoCapacity, Error: "no room"}})
	}
	pool := func() *Pool { return f.view().Pool("p") }
	for i, want := range []api.Time{5, 10, 20, 40, 80, 160, 320, 600, 600, 600} {
		fail()
		if got := pool().BackoffUntil - f.view().Meta().Now; got != want*1000 {
			t.Errorf("failure %d makes the pool wait %d ms, want %d s", i+1, got, want)
		}
		until := pool().BackoffUntil
		fail() // of the same wave
		if pool().BackoffUntil != until || pool().Failures != i+1 {
			t.Errorf("a failure during the wait made it %+v", pool())
		}
		spare := FillPool{Pool: "p", Spares: []Spare{{ID: "s", Name: "warm-s", Candidates: []string{"n1"}}}}
		if placed := f.do(KindFillPool, spare).Value.([]string); len(placed) != 0 {
			t.Errorf("placed %v during a wait", placed)
		}
		f.pass(until - f.view().Meta().Now)
	}
	if n := f.activities("warm-pool", "boot", "failed"); n != 1 {
		t.Errorf("got %d entries for one streak, want 1", n)
	}
	f.do(KindPatchPool, PatchPool{Name: "p"})
	if p := pool(); p.Failures != 0 || p.BackoffUntil != 0 || p.LastError != "" || p.WaitReason != "" {
		t.Errorf("got %+v, want a changed pool to try at once", p)
	}
	fail()
	if got := pool().BackoffUntil - f.view().Meta().Now; got != 5000 || f.activities("warm-pool", "boot", "failed") != 2 {
		t.Errorf("got a wait of %d ms, want a new streak of 5 s with an entry of its own", got)
	}
}

func TestReadySpareEndsTheBackoffAndAFailedOneBeginsIt(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 3)
	f.fill("p", "n1", "a", "b", "c")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", Told: f.vm("a").Order, State: api.StateFailed, Reason: "no kernel"}}})
	if p := f.view().Pool("p"); p.Failures != 1 || p.WaitReason != api.WaitBootFailed || p.LastError != "no kernel" {
		t.Errorf("got %+v, want the failed boot noted", p)
	}
	f.report("b", api.StateGone) // while it booted, in the same wait
	if p := f.view().Pool("p"); p.Failures != 1 || f.view().VM("b") != nil {
		t.Errorf("got %+v, want one wait for both", p)
	}
	f.report("c", api.StateRunning)
	if p := f.view().Pool("p"); p.Failures != 0 || p.BackoffUntil != 0 || p.LastError != "" {
		t.Errorf("got %+v, want the failures forgotten: the pool can boot", p)
	}
	f.report("c", api.StateFailed) // it had been ready
	if p := f.view().Pool("p"); p.Failures != 1 || !p.Crashing {
		t.Errorf("got %+v, want a streak begun by the crash", p)
	}
}

func TestSpareThatNoHostTakesMakesThePoolBackOff(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	f.fill("p", "n1", "a")
	moved := f.do(KindMoveVM, MoveVM{ID: "a", From: "n1", Refusal: "host under memory pressure"}).Value.(Moved)
	if p := f.view().Pool("p"); moved.Ended == nil || f.view().VM("a") != nil || p.WaitReason != api.WaitNoCapacity || p.LastError != "host under memory pressure" || p.Failures != 1 {
		t.Errorf("got %+v and pool %+v", moved, p)
	}
}

func TestWaitWithoutAnErrorIsNoFailure(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	f.pool("p", "", "img", 1)
	version := f.view().Pool("p").Version
	f.do(KindFillPool, FillPool{Pool: "p", Wait: &Wait{Reason: api.WaitMaxTotal}})
	p := f.view().Pool("p")
	if p.WaitReason != api.WaitMaxTotal || p.Failures != 0 || p.BackoffUntil != 0 || p.Version == version {
		t.Errorf("got %+v, want the reason to show and no backoff", p)
	}
	version = p.Version
	f.do(KindFillPool, FillPool{Pool: "p", Wait: &Wait{Reason: api.WaitMaxTotal}})
	if got := f.view().Pool("p").Version; got != version {
		t.Errorf("the same reason again made version %d of %d", got, version)
	}
	f.do(KindFillPool, FillPool{Pool: "p", Wait: &Wait{}})
	if p := f.view().Pool("p"); p.WaitReason != "" {
		t.Errorf("got %+v, want it to wait no longer", p)
	}
}

func TestReadinessSaysWhenASpareIsReady(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "agent", Image: "img"}})
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "run", Image: "img", Readiness: api.ReadinessRunning}})
	f.fill("agent", "n1", "a")
	f.fill("run", "n1", "r")
	for _, id := range []string{"a", "r"} {
		f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: id, Node: "n1", Told: f.vm(id).Order, State: api.StateRunning}}})
	}
	if a, r := f.vm("a").WarmState(), f.vm("r").WarmState(); a != "booting" || r != "ready" {
		t.Errorf("without an agent: %s and %s, want booting and ready", a, r)
	}
	f.report("a", api.StateRunning)
	if a := f.vm("a").WarmState(); a != "ready" {
		t.Errorf("with an agent: %s, want ready", a)
	}
}

func TestDeletedPoolEndsItsSparesAndKeepsTakenVMs(t *testing.T) {
	f := poolFleet(t)
	f.do(KindPatchPool, PatchPool{Name: "p", Patch: api.PoolPatch{MinReady: api.Some(3)}})
	f.fill("p", "n1", "c") // boots still
	f.launched("x", "", Launch{Name: "build", Pool: "p"})
	f.report("a", api.StateRunning)
	taken := f.vm("a")
	f.do(KindDeletePool, DeletePool{Name: "p"})
	for _, id := range []string{"b", "c"} {
		if v := f.vm(id); v.Live() || !v.NeedsOrder() {
			t.Errorf("got %+v, want the spare on its way out", v)
		}
		f.report(id, api.StateGone)
		if f.view().VM(id) != nil {
			t.Errorf("spare %s is still there", id)
		}
	}
	if f.vm("a") != taken || f.view().Pool("p") != nil {
		t.Errorf("got %+v, want the taken VM as it was", f.vm("a"))
	}
	f.pool("p", "", "img", 1)
	if claims, _, _ := f.view().Claims24h("p"); claims != 0 {
		t.Errorf("a later pool of the name begins with %d claims", claims)
	}
	f.refused(api.CodeNotFound, "", KindDeletePool, DeletePool{Name: "absent"})
}

func TestRollMovesLaterSparesAndMayKeepStaleOnesBack(t *testing.T) {
	f := poolFleet(t)
	f.image("new")
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mute", Path: "/m"}})
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "mac", Path: "/m", GuestOS: api.GuestMacOS, HasAgent: true}})
	for _, image := range []string{"absent", "mute", "mac"} {
		f.refused(api.CodeInvalid, "image", KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Image: image}})
	}
	f.do(KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Image: "new"}})
	if c := f.view().Count(f.view().Pool("p")); c.Stale != 2 || c.Ready != 2 || f.view().Pool("p").MaxUnavailable != 1 {
		t.Errorf("got %+v, want two ready and stale", c)
	}
	if op := f.launched("x", "", Launch{Name: "one", Pool: "p"}); op.Ref != "a" {
		t.Errorf("got %+v, want a stale spare handed out", op)
	}
	f.do(KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Image: "new", StaleUse: "never", MaxUnavailable: new(2)}})
	if op := f.launched("x", "", Launch{Name: "two", Pool: "p"}, "n1"); op.Ref != "x" {
		t.Errorf("got %+v, want the stale spare kept back", op)
	}
	f.ready("p", "n1", "c")
	if op := f.launched("y", "", Launch{Name: "three", Pool: "p"}); op.Ref != "c" || f.vm("c").Image != "new" {
		t.Errorf("got %+v, want the spare of the new image", op)
	}
}

func TestImageOfAPoolCannotBeDeleted(t *testing.T) {
	f := poolFleet(t)
	f.refused(api.CodeConflict, "", KindDeleteImage, DeleteImage{Name: "img"})
	f.do(KindDeletePool, DeletePool{Name: "p"})
	f.do(KindDeleteImage, DeleteImage{Name: "img"})
	if f.vm("a").Image != "img" {
		t.Error("a VM forgot its image")
	}
	f.refused(api.CodeNotFound, "", KindDeleteImage, DeleteImage{Name: "img"})
	f.refused(api.CodeNotFound, "", KindPatchImage, PatchImage{Name: "img"})
}

func TestClaims24hCountsTheLastDayAndTimesWhatWasConfirmed(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "p", Image: "img", MinReady: new(4), MaxTotal: new(100)}})
	f.pool("p2", "", "img", 0) // the next in the order of keys
	claim := func(id string, ms *int64) {
		t.Helper()
		f.ready("p", "n1", id)
		f.launched("x", "", Launch{Name: "vm-" + id, Pool: "p"})
		f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: id, Node: "n1", Told: f.vm(id).Order, ClaimMS: ms}}})
	}
	want := func(claims, timed, sum int64) {
		t.Helper()
		if c, n, s := f.view().Claims24h("p"); c != claims || n != timed || s != sum {
			t.Errorf("got %d claims, %d timed, %d ms; want %d, %d, %d", c, n, s, claims, timed, sum)
		}
	}
	f.now += 60_000 - f.now%60_000 // the beginning of a minute
	claim("a", new(int64(900)))
	claim("b", new(int64(700)))
	f.pass(3_600_000)
	claim("c", nil)
	want(3, 2, 1600)
	f.pass(23*3_600_000 - 60_000)
	want(3, 2, 1600)
	f.pass(60_000)
	want(1, 0, 0)
	claim("d", new(int64(1)))
	want(2, 1, 1)
	stats := 0
	for range f.view().claims.each(byID, "") {
		stats++
	}
	if stats != 2 {
		t.Errorf("%d minutes are kept, want 2: those of more than a day ago go", stats)
	}
	f.pass(48 * 3_600_000)
	want(0, 0, 0)
}

// The name was another tenant's when the request was let in.
func TestAPoolIsChangedByTheOneItBelongsToWhenTheChangeCommits(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	f.image("img-2")
	f.tenant("acme", "beta")
	f.pool("ci", "acme", "img", 0)
	f.do(KindDeletePool, DeletePool{Name: "ci", Tenant: "acme"})
	f.pool("ci", "beta", "img", 0)
	had := f.view().Pool("ci")
	f.refused(api.CodeNotFound, "", KindPatchPool, PatchPool{Name: "ci", Tenant: "acme", Patch: api.PoolPatch{MinReady: api.Some(3)}})
	f.refused(api.CodeNotFound, "", KindRollPool, RollPool{Name: "ci", Tenant: "acme", Roll: api.RollRequest{Image: "img-2"}})
	f.refused(api.CodeNotFound, "", KindDeletePool, DeletePool{Name: "ci", Tenant: "acme"})
	if f.view().Pool("ci") != had {
		t.Errorf("got %+v", f.view().Pool("ci"))
	}
	for _, tenant := range []string{"beta", ""} {
		f.do(KindPatchPool, PatchPool{Name: "ci", Tenant: tenant, Patch: api.PoolPatch{MinReady: api.Some(1)}})
		f.do(KindRollPool, RollPool{Name: "ci", Tenant: tenant, Roll: api.RollRequest{Image: "img-2"}})
	}
	f.do(KindDeletePool, DeletePool{Name: "ci", Tenant: "beta"})
}
