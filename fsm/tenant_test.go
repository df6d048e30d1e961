package fsm

import (
	"fmt"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// tenantFleet has the tenant acme, which leases host own, the free host n1, image img of 1 vCPU and 256 MiB, acme's
// pool ci with the ready spares a and b on own, and the shared pool p with the ready spare s on n1.
func tenantFleet(t *testing.T) *fleet {
	t.Helper()
	f := newFleet(t)
	f.node("n1")
	f.node("own")
	f.image("img")
	f.tenant("acme")
	f.leased("l", "acme", "own")
	f.pool("ci", "acme", "img", 2)
	f.pool("p", "", "img", 1)
	f.ready("ci", "own", "a", "b")
	f.ready("p", "n1", "s")
	return f
}

func (f *fleet) quota(tenant string, q api.QuotaPatch) {
	f.t.Helper()
	f.do(KindPatchTenant, PatchTenant{Name: tenant, Patch: api.TenantPatch{Quota: q}})
}

func (f *fleet) macImage(name string) {
	f.t.Helper()
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: name, Path: "/m/" + name, GuestOS: api.GuestMacOS, VCPUs: 4, MemoryMiB: 4096, HasAgent: true}})
}

func TestTenantIsMadeChangedAndGoesWhenItHoldsNothing(t *testing.T) {
	f := newFleet(t)
	row := f.do(KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: "acme", Quota: api.Quota{MaxVMs: new(int64(0)), MaxVCPUs: new(int64(4))}, DefaultTTLSeconds: new(int64(60)), MaxTTLSeconds: new(int64(600))}}).Value.(*Tenant)
	if *row.Quota.MaxVMs != 0 || row.Quota.MaxPools != nil || *row.DefaultTTL != 60 || row.Version != f.index {
		t.Errorf("got %+v, want null and 0 told apart", row)
	}
	f.refused(api.CodeNameTaken, "", KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: "acme"}})
	f.refused(api.CodeInvalid, "default_ttl_seconds", KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: "beta", DefaultTTLSeconds: new(int64(2)), MaxTTLSeconds: new(int64(1))}})
	f.refused(api.CodeInvalid, "default_ttl_seconds", KindPatchTenant, PatchTenant{Name: "acme", Patch: api.TenantPatch{MaxTTLSeconds: api.Some(int64(59))}})
	f.refused(api.CodeConflict, "", KindPatchTenant, PatchTenant{Name: "acme", IfMatch: 1})
	f.refused(api.CodeNotFound, "", KindPatchTenant, PatchTenant{Name: "absent"})
	row = f.do(KindPatchTenant, PatchTenant{Name: "acme", IfMatch: row.Version, Patch: api.TenantPatch{Quota: api.QuotaPatch{MaxVMs: api.Null[int64](), MaxLeases: api.Some(int64(1))}, DefaultTTLSeconds: api.Null[int64]()}}).Value.(*Tenant)
	if row.Quota.MaxVMs != nil || *row.Quota.MaxVCPUs != 4 || *row.Quota.MaxLeases != 1 || row.DefaultTTL != nil || *row.MaxTTL != 600 {
		t.Errorf("got %+v, want only what was given changed", row)
	}
	f.do(KindCreateKey, CreateKey{Key: Key{ID: "k", Tenant: "acme", Role: api.RoleTenant, Hash: "h"}})
	f.do(KindDeleteTenant, DeleteTenant{Name: "acme"})
	if f.view().Key("k") != nil {
		t.Error("a key outlived its tenant")
	}
	f.refused(api.CodeNotFound, "", KindDeleteTenant, DeleteTenant{Name: "acme"})
}

func TestTenantThatHoldsSomethingStays(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme")
	for what, c := range map[string]struct{ hold, release func() }{
		"a VM":   {func() { f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "n1") }, func() { f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"x"}}); f.report("x", api.StateGone) }},
		"a pool": {func() { f.pool("ci", "acme", "img", 1) }, func() { f.do(KindDeletePool, DeletePool{Name: "ci"}) }},
		"a lease": {func() { f.leased("l", "acme", "n1") }, func() {
			f.do(KindEndLease, EndLease{ID: "l"})
			f.do(KindAdvanceLease, AdvanceLease{ID: "l"})
			f.refused(api.CodeConflict, "", KindDeleteTenant, DeleteTenant{Name: "acme"}) // its scrub is not confirmed
			f.do(KindReportScrub, ReportScrub{ID: "l", Node: "n1", Order: f.view().Lease("l").Scrubs[0].Order})
		}},
	} {
		c.hold()
		if r := f.send(KindDeleteTenant, nil, DeleteTenant{Name: "acme"}); r.Err == nil || r.Err.Code != api.CodeConflict {
			t.Errorf("with %s: got %+v, want a conflict", what, r)
		}
		c.release()
	}
	f.do(KindDeleteTenant, DeleteTenant{Name: "acme"})
	f.refused(api.CodeInvalid, "tenant", KindLaunchVM, LaunchVM{ID: "y", Launch: Launch{Tenant: "acme", Name: "y", Image: "img"}, Candidates: []string{"n1"}})
	f.refused(api.CodeInvalid, "tenant", KindCreatePool, CreatePool{Tenant: "acme", Request: api.PoolRequest{Name: "q", Image: "img"}})
	f.refused(api.CodeInvalid, "tenant", KindCreateLease, CreateLease{ID: "l2", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS})
}

func TestQuotaOfEachKindIsHeldOnALaunch(t *testing.T) {
	for field, q := range map[string]api.QuotaPatch{
		"max_vms":          {MaxVMs: api.Some(int64(1))},
		"max_vcpus":        {MaxVCPUs: api.Some(int64(7))},
		"max_memory_mib":   {MaxMemoryMiB: api.Some(int64(8191))},
		"max_macos_guests": {MaxMacOSGuests: api.Some(int64(1))},
	} {
		f := newFleet(t)
		f.mac("m1")
		f.macImage("mac")
		f.tenant("acme")
		f.policy(api.PolicyPatch{RequireLeaseForMacOS: api.Some(false)})
		f.quota("acme", q)
		f.launched("a", "", Launch{Tenant: "acme", Name: "a", Image: "mac"}, "m1")
		f.refused(api.CodeQuotaExceeded, field, KindLaunchVM, LaunchVM{ID: "b", Launch: Launch{Tenant: "acme", Name: "b", Image: "mac"}, Candidates: []string{"m1"}})
		f.launched("o", "", Launch{Name: "b", Image: "mac"}, "m1") // the operator has no quota
		f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a"}})
		f.report("o", api.StateFailed)
		f.launched("b", "", Launch{Tenant: "acme", Name: "b", Image: "mac"}, "m1") // free once the deletion is acknowledged
	}
}

func TestQuotaIsReservedFromPlacementOnWhateverBecomesOfTheVM(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.node("n2")
	f.image("img")
	f.tenant("acme")
	f.quota("acme", api.QuotaPatch{MaxVMs: api.Some(int64(1))})
	over := func(when string) {
		t.Helper()
		if r := f.launch("y", "", Launch{Tenant: "acme", Name: "y", Image: "img"}, "n1"); r.Err == nil || r.Err.Code != api.CodeQuotaExceeded {
			t.Errorf("%s: got %+v, want quota_exceeded", when, r)
		}
	}
	f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "n1")
	over("placed")
	f.do(KindMoveVM, MoveVM{ID: "x", From: "n1", Candidates: []string{"n2"}})
	over("moved")
	for _, s := range []api.VMState{api.StateRunning, api.StateStopped, api.StateFailed} {
		f.report("x", s)
		over(string(s))
	}
	f.report("x", api.StateRunning)
	f.health("n2", api.NodeUnreachable)
	over("unknown")
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: "x", Node: "n2", State: api.StateGone}}})
	f.launched("y", "", Launch{Tenant: "acme", Name: "y", Image: "img"}, "n1")
}

func TestQuotaIsHeldOnEachOtherPath(t *testing.T) {
	f := tenantFleet(t)
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
	f.quota("acme", api.QuotaPatch{MaxVMs: api.Some(int64(2)), MaxLeases: api.Some(int64(1)), MaxPools: api.Some(int64(1))})
	if h := f.view().Holding("acme"); h != (api.Holding{VMs: 2, VCPUs: 2, MemoryMiB: 512, Leases: 1, Pools: 1}) {
		t.Fatalf("got %+v, want the spares of its own pool counted and no shared one", h)
	}
	// An own spare counts already, a shared one from the claim on.
	if op := f.launched("x", "", Launch{Tenant: "acme", Name: "x", Pool: "ci"}); op.Ref != "a" {
		t.Errorf("got %+v, want the claim of an own spare to take nothing more", op)
	}
	f.refused(api.CodeQuotaExceeded, "max_vms", KindLaunchVM, LaunchVM{ID: "y", Launch: Launch{Tenant: "acme", Name: "y", Pool: "p"}, Candidates: []string{"n1"}})
	if !f.vm("s").Warm {
		t.Error("a refused claim took the spare")
	}
	// Filling stops.
	f.do(KindPatchPool, PatchPool{Name: "ci", Patch: api.PoolPatch{MinReady: api.Some(5)}})
	placed := f.do(KindFillPool, FillPool{Pool: "ci", Spares: []Spare{{ID: "c", Name: "warm-c", Candidates: []string{"own"}}}}).Value.([]string)
	if room := f.view().QuotaRoom(f.view().Pool("ci"), 3); len(placed) != 0 || room != 0 {
		t.Errorf("placed %v with room for %d, want none", placed, room)
	}
	f.refused(api.CodeQuotaExceeded, "max_pools", KindCreatePool, CreatePool{Tenant: "acme", Request: api.PoolRequest{Name: "q", Image: "img"}})
	f.refused(api.CodeQuotaExceeded, "max_leases", KindCreateLease, CreateLease{ID: "l2", Tenant: "acme", Candidates: []string{"n1"}, DurationMS: hourMS})
	// One more fits after a limit is raised, and just one.
	f.quota("acme", api.QuotaPatch{MaxVMs: api.Some(int64(3))})
	if room := f.view().QuotaRoom(f.view().Pool("ci"), 3); room != 1 {
		t.Errorf("got room for %d, want 1", room)
	}
	placed = f.do(KindFillPool, FillPool{Pool: "ci", Spares: []Spare{{ID: "c", Name: "warm-c", Candidates: []string{"own"}}, {ID: "d", Name: "warm-d", Candidates: []string{"own"}}}}).Value.([]string)
	if fmt.Sprint(placed) != "[c]" {
		t.Errorf("placed %v, want c", placed)
	}
}

func TestLoweredQuotaKeepsWhatRuns(t *testing.T) {
	f := tenantFleet(t)
	f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img", VCPUs: 2}, "own")
	f.report("x", api.StateRunning)
	zero := api.Some(int64(0))
	f.quota("acme", api.QuotaPatch{MaxVMs: zero, MaxVCPUs: zero, MaxMemoryMiB: zero, MaxLeases: zero, MaxPools: zero})
	for _, id := range []string{"x", "a", "b"} {
		if !f.vm(id).Live() {
			t.Errorf("a lower quota ended %s", id)
		}
	}
	if op := f.launched("y", "", Launch{Tenant: "acme", Name: "y", Pool: "ci"}); op.Ref != "a" {
		t.Errorf("got %+v, want an own spare handed out: it counts already", op)
	}
	f.do(KindFailHandOver, FailHandOver{ID: "a", NewID: "new", Candidates: []string{"own"}}) // goes on: it takes nothing more
	if v := f.vm("new"); v.Name != "y" || f.view().Lease("l").State != api.LeaseActive {
		t.Errorf("got %+v", v)
	}
	f.do(KindPatchVM, PatchVM{ID: "x", Patch: api.VMPatch{Name: api.Some("renamed"), TTLSeconds: api.Some(int64(60))}})
	f.do(KindPatchPool, PatchPool{Name: "ci", Patch: api.PoolPatch{MinReady: api.Some(3)}})
}

func TestClaimOfASharedSpareCountsWhatTheSpareHas(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img") // of 256 MiB
	f.tenant("acme")
	f.quota("acme", api.QuotaPatch{MaxMemoryMiB: api.Some(int64(2048))})
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "big", Image: "img", MinReady: new(1), MemoryMiB: 4096}})
	f.ready("big", "n1", "s")
	f.refused(api.CodeQuotaExceeded, "max_memory_mib", KindLaunchVM, LaunchVM{ID: "x", Launch: Launch{Tenant: "acme", Name: "x", Image: "img"}, Candidates: []string{"n1"}})
}

func TestRaisedQuotaMakesWaitingPoolsTryAgain(t *testing.T) {
	f := tenantFleet(t)
	f.do(KindFillPool, FillPool{Pool: "ci", Wait: &Wait{Reason: api.WaitQuota, Error: "over quota"}})
	f.quota("acme", api.QuotaPatch{MaxVMs: api.Some(int64(9))})
	if p := f.view().Pool("ci"); p.WaitReason != "" || p.BackoffUntil != 0 {
		t.Errorf("got %+v, want it to try at once", p)
	}
}

func TestTTLIsTheDefaultOrTheMaximumAndNeverAbove(t *testing.T) {
	null := (*int64)(nil)
	for _, c := range []struct {
		def, longest *int64
		asked        int64
		want         int64 // 0: none, -1: refused
	}{
		{null, null, 0, 0}, {null, null, 9_999, 9_999},
		{new(int64(60)), null, 0, 60}, {new(int64(60)), null, 9_999, 9_999},
		{null, new(int64(600)), 0, 600}, {null, new(int64(600)), 600, 600}, {null, new(int64(600)), 601, -1},
		{new(int64(60)), new(int64(600)), 0, 60},
	} {
		f := newFleet(t)
		f.node("n1")
		f.image("img")
		f.do(KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: "acme", DefaultTTLSeconds: c.def, MaxTTLSeconds: c.longest}})
		l := Launch{Tenant: "acme", Name: "x", Image: "img", TTLSeconds: c.asked}
		if c.want < 0 {
			f.refused(api.CodePolicyDenied, "ttl_seconds", KindLaunchVM, LaunchVM{ID: "x", Launch: l, Candidates: []string{"n1"}})
			continue
		}
		f.launched("x", "", l, "n1")
		want := api.Time(0)
		if c.want != 0 {
			want = f.view().Meta().Now + api.Time(c.want)*1000
		}
		if got := f.vm("x").ExpiresAt; got != want {
			t.Errorf("%+v: expires at %s, want %s", c, got, want)
		}
	}
}

func TestTTLOfAPatchIsHeldToTheMaximumToo(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme")
	f.launched("x", "", Launch{Tenant: "acme", Name: "x", Image: "img"}, "n1")
	f.do(KindPatchTenant, PatchTenant{Name: "acme", Patch: api.TenantPatch{MaxTTLSeconds: api.Some(int64(600))}})
	if f.vm("x").ExpiresAt != 0 {
		t.Error("a later maximum gave a VM a deadline")
	}
	f.refused(api.CodePolicyDenied, "ttl_seconds", KindPatchVM, PatchVM{ID: "x", Patch: api.VMPatch{TTLSeconds: api.Some(int64(601))}})
	f.refused(api.CodePolicyDenied, "", KindPatchVM, PatchVM{ID: "x", Patch: api.VMPatch{TTLSeconds: api.Null[int64]()}})
	f.do(KindPatchVM, PatchVM{ID: "x", Patch: api.VMPatch{TTLSeconds: api.Some(int64(600))}})
	if got := f.vm("x").ExpiresAt - f.view().Meta().Now; got != 600_000 {
		t.Errorf("got %d ms, want 600 s", got)
	}
}

func TestSharedPoolsAreHiddenUnlessPolicyLetsTenants(t *testing.T) {
	on, off := api.Some(true), api.Some(false)
	for _, c := range []struct {
		policy       api.PolicyPatch
		linux, macOS bool
	}{
		{api.PolicyPatch{}, false, false},
		{api.PolicyPatch{AllowSharedPoolClaims: on}, true, false},
		{api.PolicyPatch{AllowSharedPoolClaims: on, RequireLeaseForMacOS: off}, true, true},
		{api.PolicyPatch{AllowSharedPoolClaims: on, RequireLeaseForMacOS: off, IsolateTenantNetworks: on}, false, false},
		{api.PolicyPatch{RequireLeaseForMacOS: off}, false, false},
	} {
		f := newFleet(t)
		f.node("n1")
		f.mac("m1")
		f.mac("m2")
		f.image("img")
		f.macImage("mac")
		f.tenant("acme")
		f.leased("l", "acme", "m2") // so that its macOS guests have a host
		f.pool("p", "", "img", 1)
		f.pool("m", "", "mac", 1)
		f.ready("p", "n1", "s")
		f.ready("m", "m1", "sm")
		f.policy(c.policy)
		for pool, want := range map[string]bool{"p": c.linux, "m": c.macOS} {
			if got := f.view().Usable(f.view().Pool(pool), "acme"); got != want || !f.view().Usable(f.view().Pool(pool), "") {
				t.Errorf("%+v: pool %s usable %t, want %t", c.policy, pool, got, want)
			}
			r := f.launch("x"+pool, "", Launch{Tenant: "acme", Name: "by-name-" + pool, Pool: pool}, "m2")
			if want != (r.Err == nil) || r.Err != nil && r.Err.Code != api.CodeNotFound {
				t.Errorf("%+v: naming pool %s gave %+v", c.policy, pool, r)
			}
			if r.Err == nil && (!r.Value.(*Operation).Warm || f.vm(map[string]string{"p": "s", "m": "sm"}[pool]).Tenant != "acme") {
				t.Errorf("%+v: got %+v, want the shared spare to be acme's", c.policy, r.Value)
			}
		}
		if op := f.launched("z", "", Launch{Tenant: "acme", Name: "z", Image: "img"}, "n1"); op.Warm || (op.ColdReason == "no_pool") == c.linux {
			t.Errorf("%+v: got %+v", c.policy, op)
		}
	}
}

func TestOwnPoolsComeBeforeSharedOnes(t *testing.T) {
	f := tenantFleet(t)
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true)})
	f.do(KindDeletePool, DeletePool{Name: "p"})
	f.pool("a-shared", "", "img", 1) // first in the order of names
	f.ready("a-shared", "n1", "s2")
	f.do(KindDeleteVMs, DeleteVMs{IDs: []string{"a", "b"}})
	f.ready("ci", "own", "younger")
	for i, want := range []string{"younger", "s2"} {
		if op := f.launched("x", "", Launch{Tenant: "acme", Name: fmt.Sprint("n", i), Image: "img"}); op.Ref != want {
			t.Errorf("got %+v, want %s", op, want)
		}
	}
}

func TestMacOSGuestsOfATenantRunOnMacsThatItLeases(t *testing.T) {
	f := newFleet(t)
	f.mac("m1")
	f.mac("m2")
	f.node("n1")
	f.macImage("mac")
	f.tenant("acme")
	launch := LaunchVM{ID: "x", Launch: Launch{Tenant: "acme", Name: "x", Image: "mac"}, Candidates: []string{"m1", "m2"}}
	f.refused(api.CodePolicyDenied, "", KindLaunchVM, launch)
	f.leased("linux", "acme", "n1")
	f.refused(api.CodePolicyDenied, "", KindLaunchVM, launch) // no Mac
	f.leased("l", "acme", "m2")
	if op := f.done(f.send(KindLaunchVM, nil, launch)).Value.(*Operation); op.Node != "m2" {
		t.Errorf("got %+v, want it on the leased Mac although another is preferred", op)
	}
	f.do(KindMoveVM, MoveVM{ID: "x", From: "m2", Candidates: []string{"m1"}})
	if f.view().VM("x") != nil {
		t.Errorf("got %+v, want no move off the leased Macs", f.view().VM("x"))
	}
	f.policy(api.PolicyPatch{RequireLeaseForMacOS: api.Some(false)})
	launch.Launch.Name = "free"
	if op := f.done(f.send(KindLaunchVM, nil, launch)).Value.(*Operation); op.Node != "m1" {
		t.Errorf("got %+v, want the first candidate once policy lets it", op)
	}
	f.policy(api.PolicyPatch{RequireLeaseForMacOS: api.Null[bool]()})
	if !f.vm("x").Live() {
		t.Error("a policy ended what ran")
	}
}

func TestPolicyFieldsTakeNullForTheirDefault(t *testing.T) {
	f := newFleet(t)
	if got := f.view().Policy(); got != api.DefaultPolicy() {
		t.Errorf("got %+v, want the default", got)
	}
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true), RequireLeaseForMacOS: api.Some(false), IsolateTenantNetworks: api.Some(true), MinLeaseHours: api.Some(int64(0)), MaxBootsPerNode: api.Some(9)})
	want := api.Policy{AllowSharedPoolClaims: true, IsolateTenantNetworks: true, MaxBootsPerNode: 9, Version: f.index}
	if got := f.view().Policy(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	f.refused(api.CodeConflict, "", KindPatchPolicy, PatchPolicy{IfMatch: 1})
	f.refused(api.CodeInvalid, "max_boots_per_node", KindPatchPolicy, PatchPolicy{Patch: api.PolicyPatch{MaxBootsPerNode: api.Some(0)}})
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Null[bool](), RequireLeaseForMacOS: api.Null[bool](), IsolateTenantNetworks: api.Null[bool](), MinLeaseHours: api.Null[int64](), MaxBootsPerNode: api.Null[int]()})
	got := f.view().Policy()
	got.Version = 0
	if got != api.DefaultPolicy() {
		t.Errorf("got %+v, want the default", got)
	}
}

func TestKeysHaveARoleOfTheirOwnerAndANumber(t *testing.T) {
	f := newFleet(t)
	f.tenant("acme")
	key := func(id, tenant, role string) CreateKey {
		return CreateKey{Key: Key{ID: id, Tenant: tenant, Role: role, Hash: "hash-" + id, LastUsedAt: 7}}
	}
	for _, c := range []CreateKey{key("x", "acme", api.RoleOperator), key("x", "", api.RoleTenant), key("x", "acme", ""), key("x", "acme", "root")} {
		f.refused(api.CodeInvalid, "role", KindCreateKey, c)
	}
	f.refused(api.CodeNotFound, "", KindCreateKey, key("x", "absent", api.RoleViewer))
	for _, c := range []CreateKey{key("t", "acme", api.RoleTenant), key("v", "acme", api.RoleViewer), key("ov", "", api.RoleViewer), key("o", "", api.RoleOperator)} {
		k := f.do(KindCreateKey, c).Value.(*Key)
		if found := f.view().KeyByHash(c.Key.Hash); found != k || k.CreatedAt != f.view().Meta().Now || k.LastUsedAt != 0 {
			t.Errorf("got %+v, found as %+v", k, found)
		}
	}
	f.refused(api.CodeConflict, "", KindCreateKey, key("t", "acme", api.RoleViewer)) // not another's secret under this id
	f.refused(api.CodeNotFound, "", KindDeleteKey, DeleteKey{ID: "o", Tenant: "acme"})
	f.refused(api.CodeNotFound, "", KindDeleteKey, DeleteKey{ID: "t"})
	for i := range maxKeys - 2 {
		f.do(KindCreateKey, key(fmt.Sprint("k", i), "acme", api.RoleTenant))
	}
	f.refused(api.CodeQuotaExceeded, "", KindCreateKey, key("more", "acme", api.RoleTenant))
	f.do(KindCreateKey, key("more-o", "", api.RoleOperator))
	f.do(KindDeleteKey, DeleteKey{ID: "t", Tenant: "acme"})
	f.do(KindCreateKey, key("more", "acme", api.RoleTenant))
	if n := f.activities("operator", "DELETE /fleet/tenants/{name}/keys/{id}", "ok"); n != 1 {
		t.Errorf("got %d entries of the revocation, want 1", n)
	}
}

func TestRevokedOrExpiredKeyChangesNothingNotEvenAsARepeat(t *testing.T) {
	f := newFleet(t)
	f.image("img")
	f.node("n1")
	f.tenant("acme")
	expires := f.now + 60_000
	f.do(KindCreateKey, CreateKey{Key: Key{ID: "old", Tenant: "acme", Role: api.RoleTenant, Hash: "h1", ExpiresAt: expires}})
	f.do(KindCreateKey, CreateKey{Key: Key{ID: "good", Tenant: "acme", Role: api.RoleTenant, Hash: "h2"}})
	l := Launch{Tenant: "acme", Name: "x", Image: "img"}
	f.bearer = "old"
	f.launched("x", "k", l, "n1")
	refused := func(why string) {
		t.Helper()
		for what, r := range map[string]Result{"repeat": f.launch("x", "k", l, "n1"), "new": f.launch("y", "", Launch{Tenant: "acme", Name: "y", Image: "img"}, "n1")} {
			if r.Err == nil || r.Err.Code != api.CodeUnauthenticated || r.Replayed {
				t.Errorf("%s, %s: got %+v, want unauthenticated", why, what, r)
			}
		}
	}
	f.now = expires - 11
	if r := f.launch("x", "k", l, "n1"); !r.Replayed {
		t.Errorf("a millisecond before its end: got %+v", r)
	}
	refused("expired")
	f.now -= 3_600_000
	refused("with a clock of the past")
	f.bearer = "good"
	f.launched("x", "k", l, "n1")
	f.do(KindDeleteKey, DeleteKey{ID: "good", Tenant: "acme"})
	refused("revoked")
	f.bearer = "never-was"
	refused("unknown")
}

func TestUsesOfKeysAreNotedForwardOnly(t *testing.T) {
	f := newFleet(t)
	f.do(KindCreateKey, CreateKey{Key: Key{ID: "k", Role: api.RoleViewer, Hash: "h"}})
	use := func(at api.Time) api.Time {
		t.Helper()
		f.do(KindTouchKeys, TouchKeys{Keys: []KeyUse{{ID: "k", At: at}, {ID: "absent", At: at}}})
		return f.view().Key("k").LastUsedAt
	}
	first := f.now
	if got := use(first); got != first {
		t.Errorf("got %s, want %s", got, first)
	}
	if got := use(first - 1); got != first {
		t.Errorf("got %s, want the newer use kept", got)
	}
	if got := use(f.now + 3_600_000); got != f.view().Meta().Now {
		t.Errorf("got %s, want no use of the future", got)
	}
}

func TestPoolOfATenantNamesAndUsesOnlyHostsThatItLeases(t *testing.T) {
	f := tenantFleet(t)
	f.refused(api.CodeInvalid, "nodes", KindCreatePool, CreatePool{Tenant: "acme", Request: api.PoolRequest{Name: "q", Image: "img", Nodes: []string{"own", "n1"}}})
	f.refused(api.CodeInvalid, "nodes", KindPatchPool, PatchPool{Name: "ci", Patch: api.PoolPatch{Nodes: api.Some([]string{"n1"})}})
	f.do(KindPatchPool, PatchPool{Name: "ci", Patch: api.PoolPatch{Nodes: api.Some([]string{"own"}), MinReady: api.Some(5)}})
	fill := FillPool{Pool: "ci", Spares: []Spare{{ID: "c", Name: "warm-c", Candidates: []string{"n1"}}}}
	if placed := f.do(KindFillPool, fill).Value.([]string); len(placed) != 0 {
		t.Errorf("placed %v on a host that nobody leases", placed)
	}
	f.do(KindFillPool, FillPool{Pool: "p", Spares: []Spare{{ID: "d", Name: "warm-d", Candidates: []string{"own"}}}})
	if f.view().VM("d") != nil {
		t.Error("a shared pool has a spare on a leased host")
	}
	f.do(KindEndLease, EndLease{ID: "l"})
	f.do(KindPatchPool, PatchPool{Name: "ci", Patch: api.PoolPatch{MinReady: api.Some(0)}}) // not refused for hosts that were right once
}

func TestATenantsOwnPolicyGoesBeforeTheFleets(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.mac("m1")
	f.mac("m2")
	f.image("img")
	f.macImage("mac")
	f.tenant("acme")
	row := f.do(KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: "beta", Policy: api.TenantPolicy{AllowSharedPoolClaims: new(true), RequireLeaseForMacOS: new(false), MinLeaseHours: new(int64(2))}}}).Value.(*Tenant)
	f.pool("p", "", "img", 1)
	f.pool("m", "", "mac", 1)
	usable := func(tenant string) (out [2]bool) {
		for i, pool := range []string{"p", "m"} {
			out[i] = f.view().Usable(f.view().Pool(pool), tenant)
		}
		return out
	}
	if got := usable("beta"); got != [2]bool{true, true} {
		t.Errorf("beta may use %v, want both pools", got)
	}
	if got := usable("acme"); got != [2]bool{} {
		t.Errorf("acme may use %v, want none", got)
	}
	launch := LaunchVM{ID: "x", Launch: Launch{Tenant: "acme", Name: "x", Image: "mac"}, Candidates: []string{"m1"}}
	f.refused(api.CodePolicyDenied, "", KindLaunchVM, launch)
	launch.Launch.Tenant = "beta"
	f.do(KindLaunchVM, launch)
	lease := CreateLease{ID: "l", Tenant: "acme", Candidates: []string{"m2"}, DurationMS: 2 * hourMS}
	f.refused(api.CodeInvalid, "duration", KindCreateLease, lease)
	lease.Tenant = "beta"
	if l := f.do(KindCreateLease, lease).Value.(*Lease); l.EarliestEnd != l.StartsAt+2*hourMS {
		t.Errorf("got %+v, want beta's own minimum", l)
	}
	patch := func(p api.TenantPolicyPatch) {
		t.Helper()
		row = f.do(KindPatchTenant, PatchTenant{Name: "beta", Patch: api.TenantPatch{Policy: p}}).Value.(*Tenant)
	}
	patch(api.TenantPolicyPatch{IsolateTenantNetworks: api.Some(true)})
	if got := usable("beta"); got != [2]bool{} || row.Policy.MinLeaseHours == nil || !*row.Policy.AllowSharedPoolClaims {
		t.Errorf("beta, with a network of its own, may use %v; its policy is %s", got, digest(row.Policy))
	}
	patch(api.TenantPolicyPatch{IsolateTenantNetworks: api.Null[bool](), RequireLeaseForMacOS: api.Null[bool](), MinLeaseHours: api.Null[int64]()})
	if got := usable("beta"); got != [2]bool{true, false} {
		t.Errorf("beta may use %v, want what is not its own to be the fleet's", got)
	}
	f.policy(api.PolicyPatch{AllowSharedPoolClaims: api.Some(true), MaxBootsPerNode: api.Some(9)})
	patch(api.TenantPolicyPatch{AllowSharedPoolClaims: api.Some(false)})
	if a, b := usable("acme"), usable("beta"); a != [2]bool{true, false} || b != [2]bool{} {
		t.Errorf("acme may use %v and beta %v, want beta kept from what others may", a, b)
	}
	if got := f.view().PolicyOf("beta"); got.MaxBootsPerNode != 9 || got.MinLeaseHours != 24 {
		t.Errorf("got %+v, want the rest to be the fleet's", got)
	}
	f.state = restored(t, f.snapshot())
	if got := usable("beta"); got != [2]bool{} {
		t.Errorf("after a restore beta may use %v", got)
	}
}
