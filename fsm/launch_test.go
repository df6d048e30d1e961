package fsm

import (
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// poolFleet has node n1, image img of 1 vCPU and 256 MiB, and the shared pool p with spares a and b, ready in that order.
func poolFleet(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 2)
	f.ready("p", "n1", "a", "b")
	return f
}

func TestClaimTakesOldestReady(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 3)
	f.fill("p", "n1", "a", "b", "c")
	for _, id := range []string{"b", "a"} { // c boots still
		f.report(id, api.StateRunning)
	}
	for i, want := range []string{"b", "a", "cold"} {
		name := []string{"one", "two", "three"}[i]
		op := f.launched("cold", "", Launch{Name: name, Image: "img"}, "n1")
		if op.Ref != want || op.Warm != (want != "cold") {
			t.Errorf("launch %s got %+v, want %s", name, op, want)
		}
	}
	if v := f.vm("cold"); v.ColdReason != "pool_empty" {
		t.Errorf("got cold_reason %q, want pool_empty", v.ColdReason)
	}
}

func TestClaimTakesOldestReadyOfAllMatchingPools(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.pool("p", "", "img", 1)
	f.pool("a", "", "img", 1)
	f.ready("p", "n1", "older")
	f.ready("a", "n1", "newer")
	if op := f.launched("x", "", Launch{Name: "build", Image: "img"}, "n1"); op.Ref != "older" || op.Pool != "p" {
		t.Errorf("got %+v, want the spare of pool p", op)
	}
}

func TestClaimTakesFromOwnPoolsOnly(t *testing.T) {
	f := newFleet(t)
	for _, n := range []string{"n1", "acme-1", "beta-1"} {
		f.node(n)
	}
	f.image("img")
	f.tenant("acme", "beta")
	f.leased("la", "acme", "acme-1")
	f.leased("lb", "beta", "beta-1")
	f.pool("shared", "", "img", 1)
	f.pool("acme-ci", "acme", "img", 1)
	f.pool("beta-ci", "beta", "img", 1)
	f.ready("shared", "n1", "s")
	f.ready("beta-ci", "beta-1", "b")
	f.ready("acme-ci", "acme-1", "a") // the newest
	if op := f.launched("x", "", Launch{Tenant: "acme", Name: "one", Image: "img"}, "n1"); op.Ref != "a" {
		t.Errorf("got %+v for acme, want its own spare although others are older", op)
	}
	if op := f.launched("x", "", Launch{Tenant: "acme", Name: "two", Image: "img"}, "n1"); op.Ref != "x" || op.ColdReason != "pool_empty" {
		t.Errorf("got %+v for acme, want a cold boot and nobody else's spare", op)
	}
	if r := f.launch("y", "", Launch{Tenant: "acme", Name: "three", Pool: "shared"}, "n1"); r.Err == nil || r.Err.Code != api.CodeNotFound {
		t.Errorf("got %+v, want a shared pool hidden from a tenant", r)
	}
	if op := f.launched("z", "", Launch{Name: "four", Image: "img"}, "n1"); op.Ref != "s" {
		t.Errorf("got %+v for the operator, want the shared spare and no tenant's", op)
	}
}

func TestLaunchNamesWhatKeptItFromAWarmVM(t *testing.T) {
	for want, l := range map[string]Launch{
		"no_pool":             {Image: "other"},
		"vcpus":               {Image: "img", VCPUs: 2},
		"memory_mib":          {Image: "img", MemoryMiB: 512},
		"disk_size_gib":       {Image: "img", DiskGiB: 9},
		"cloud_init":          {Image: "img", ColdField: "cloud_init"},
		"extra_disks":         {Pool: "p", ColdField: "extra_disks"},
		"node":                {Image: "img", Node: "n2"},
		"nodeSelector":        {Image: "img", Selector: map[string]string{"zone": "far"}},
		"backend":             {Image: "img", Backend: "qemu"},
		"":                    {Image: "img", VCPUs: 1, MemoryMiB: 256, Node: "n1", Backend: "sim"},
		"by path, as by name": {Image: "sim:?img"},
	} {
		f := poolFleet(t)
		n2 := host("n2", false)
		n2.Labels, n2.Backends = map[string]string{"zone": "far"}, []string{"sim", "qemu"}
		f.do(KindRegisterNode, RegisterNode{Operator: true, Node: n2})
		f.image("other")
		l.Name = "build"
		op := f.launched("x", "", l, "n2")
		if op.Warm {
			if want != "" && want != "by path, as by name" || op.Ref != "a" || f.vm("a").ColdReason != "" {
				t.Errorf("launch %+v got %+v, want cold_reason %q", l, op, want)
			}
			continue
		}
		if op.ColdReason != want || f.vm("x").ColdReason != want || op.Node != "n2" {
			t.Errorf("launch %+v got %+v, want cold_reason %q", l, op, want)
		}
	}
}

func TestSparesOnHostsThatMayNotServeStayThere(t *testing.T) {
	old := host("n1", false)
	old.Rename = false
	for what, prepare := range map[string]func(f *fleet) []string{
		"the leader says so":     func(*fleet) []string { return []string{"n1"} },
		"a draining host":        func(f *fleet) []string { f.do(KindPatchNode, PatchNode{Name: "n1", Draining: new(true)}); return nil },
		"a suspect host":         func(f *fleet) []string { f.health("n1", api.NodeSuspect); return nil },
		"a host that can rename": func(f *fleet) []string { f.do(KindRegisterNode, RegisterNode{Operator: true, Node: old}); return nil },
	} {
		f := poolFleet(t)
		f.node("n2")
		noHandOut := prepare(f)
		r := f.do(KindLaunchVM, LaunchVM{ID: "x", Launch: Launch{Name: "build", Pool: "p"}, Candidates: []string{"n2"}, NoHandOut: noHandOut})
		if op := r.Value.(*Operation); op.Ref != "x" || op.ColdReason != "pool_empty" {
			t.Errorf("%s: got %+v, want a cold boot", what, op)
		}
	}
}

func TestCordonedHostStillHandsOutItsSpares(t *testing.T) {
	f := poolFleet(t)
	f.do(KindPatchNode, PatchNode{Name: "n1", Cordoned: new(true)})
	if op := f.launched("x", "", Launch{Name: "build", Pool: "p"}); op.Ref != "a" {
		t.Errorf("got %+v, want spare a: a cordon only keeps new VMs away", op)
	}
}

func TestNamedPoolRefusesWhatItDoesNotHave(t *testing.T) {
	f := poolFleet(t)
	f.image("other")
	for field, l := range map[string]Launch{
		"image":          {Image: "other"},
		"vcpus":          {VCPUs: 2},
		"memory_mib":     {MemoryMiB: 512},
		"disk_size_gib":  {DiskGiB: 9},
		"apple.guest_os": {GuestOS: api.GuestMacOS},
	} {
		l.Name, l.Pool = "build", "p"
		f.refused(api.CodeInvalid, field, KindLaunchVM, LaunchVM{ID: "x", Launch: l, Candidates: []string{"n1"}})
	}
	f.refused(api.CodeNotFound, "", KindLaunchVM, LaunchVM{ID: "x", Launch: Launch{Name: "build", Pool: "absent"}})
	f.refused(api.CodeInvalid, "image", KindLaunchVM, LaunchVM{ID: "x", Launch: Launch{Name: "build", Image: "absent"}})
	f.refused(api.CodeInvalid, "apple.guest_os", KindLaunchVM, LaunchVM{ID: "x", Launch: Launch{Name: "build", Image: "img", GuestOS: api.GuestMacOS}})
	if op := f.launched("x", "", Launch{Name: "build", Pool: "p", Image: "sim:?img", VCPUs: 1, MemoryMiB: 256, GuestOS: api.GuestLinux}); op.Ref != "a" {
		t.Errorf("got %+v, want spare a: what was named is what the pool has", op)
	}
}

func TestNamedPoolWithNothingReadyBootsItsImageAndSizeOutsideMaxTotal(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "p", Image: "img", MinReady: new(0), MaxTotal: new(0), VCPUs: 3, MemoryMiB: 999}})
	op := f.launched("x", "", Launch{Name: "build", Pool: "p"}, "n1")
	v := f.vm("x")
	if op.Warm || op.Pool != "" || op.ColdReason != "pool_empty" || v.VCPUs != 3 || v.MemoryMiB != 999 || v.Image != "img" || v.Pool != "p" || v.ClaimedFrom != "" {
		t.Errorf("got %+v and %+v, want a cold boot of what the pool has", op, v)
	}
	if c := f.view().Count(f.view().Pool("p")); c.Total() != 0 {
		t.Errorf("got %+v, want a cold VM not to count for the pool", c)
	}
}

func TestClaimHandsOverNameTenantLabelsAndDeadline(t *testing.T) {
	f := poolFleet(t)
	f.launched("x", "k", Launch{Name: "build", Image: "img", TTLSeconds: 60, Labels: map[string]string{"job": "1"}})
	v := f.vm("a")
	now := f.view().Meta().Now
	if v.Name != "build" || v.Labels["job"] != "1" || v.ExpiresAt != now+60_000 || v.ClaimedAt != now || v.ClaimedFrom != "p" || v.Warm || !v.HandOver || !v.Ephemeral() {
		t.Errorf("got %+v, want the launch's VM, waiting for its node", v)
	}
	if f.view().VMNamed("", "warm-p-a") != nil || f.view().Pool("p").LastClaimAt != now {
		t.Error("the spare's name is still held, or the claim not noted")
	}
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", Told: v.Order - 1, State: api.StateRunning}}})
	if !f.vm("a").HandOver {
		t.Error("an older order's confirmation ended the hand-over")
	}
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "a", Node: "n1", Told: v.Order, ClaimMS: new(int64(870))}}})
	if v := f.vm("a"); v.HandOver || v.Launch != nil || v.NeedsOrder() {
		t.Errorf("got %+v, want the hand-over confirmed", v)
	}
	if op := f.view().Operation("", "k"); op.ClaimMS != 870 {
		t.Errorf("got %+v, want claim_ms 870", op)
	}
	if f.launched("x", "", Launch{Name: "forever", Image: "img"}); f.vm("b").ExpiresAt != 0 || f.vm("b").Ephemeral() {
		t.Errorf("got %+v, want no deadline without a TTL", f.vm("b"))
	}
}

func TestLaunchThatFitsNowhereIsRefusedWithReasonsAndLeavesItsKeyFree(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	op := &Op{Key: "k", Digest: "d"}
	c := LaunchVM{ID: "x", Launch: Launch{Name: "build", Image: "img", MemoryMiB: 1 << 20}, Candidates: []string{"absent"}, Reasons: map[string]int{api.WhyMemory: 1}}
	r := f.send(KindLaunchVM, op, c)
	if r.Err == nil || r.Err.Code != api.CodeNoCapacity || r.Err.Reasons[api.WhyMemory] != 1 {
		t.Fatalf("got %+v, want no_capacity with reasons", r)
	}
	c.Launch.MemoryMiB, c.Candidates = 512, []string{"absent", "n1"}
	if r := f.send(KindLaunchVM, op, c); r.Err != nil || r.Replayed {
		t.Errorf("got %+v, want the launch carried out under the same key", r)
	}
}

func TestLaunchWhoseHostsFilledUpCountsThemInTheReasons(t *testing.T) {
	f := newFleet(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		f.node(n)
	}
	f.image("img")
	yes := true
	f.do(KindPatchNode, PatchNode{Name: "n2", Cordoned: &yes, By: "operator"})
	c := LaunchVM{ID: "x", Launch: Launch{Name: "build", Image: "img", MemoryMiB: 1 << 20}, Candidates: []string{"n1", "n2"}, Reasons: map[string]int{api.WhyMemory: 1}}
	r := f.send(KindLaunchVM, nil, c)
	if r.Err == nil || r.Err.Reasons[api.WhyMemory] != 2 || r.Err.Reasons[api.WhyCordoned] != 1 {
		t.Fatalf("got %+v, want the three hosts counted", r.Err)
	}
}

func TestPlanSaysWhatALaunchWouldDoAndChangesNothing(t *testing.T) {
	f := poolFleet(t)
	before := f.view()
	warm, err := before.Plan(&Launch{Name: "build", Image: "img"}, nil, nil)
	if err != nil || warm.Claim == nil || warm.Claim.ID != "a" || warm.Node.Name != "n1" {
		t.Errorf("got %+v (%v), want a claim of a", warm, err)
	}
	cold, err := before.Plan(&Launch{Name: "build", Image: "img", VCPUs: 2}, []string{"absent", "n1"}, nil)
	if err != nil || cold.Claim != nil || cold.Node.Name != "n1" || cold.ColdReason != "vcpus" {
		t.Errorf("got %+v (%v), want n1", cold, err)
	}
	none, err := before.Plan(&Launch{Name: "build", Image: "img", VCPUs: 2}, nil, nil)
	if err != nil || none.Node != nil {
		t.Errorf("got %+v (%v), want no node", none, err)
	}
	if changed := difference(t, before, f.view()); changed != "" {
		t.Error(changed)
	}
}
