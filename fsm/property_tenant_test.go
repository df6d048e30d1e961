package fsm

import (
	"encoding/json"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What can happen to the model's tenants, keys, policy and prices.

// modelKey is what the holder of a key was told.
type modelKey struct {
	tenant  string
	expires api.Time
	revoked bool
}

func (m *model) limit(values ...int64) *int64 {
	if rapid.IntRange(0, 4).Draw(m.r, "limited") < 3 {
		return nil
	}
	return new(rapid.SampledFrom(values).Draw(m.r, "limit"))
}

func (m *model) createTenant(*rapid.T) {
	c := CreateTenant{Request: api.TenantRequest{Name: m.pick([]string{"acme", "beta", "gamma"}, "tenant"), DefaultTTLSeconds: m.limit(600, 7200), MaxTTLSeconds: m.limit(600, 3600, 7200),
		Quota: api.Quota{MaxVMs: m.limit(0, 1, 4), MaxVCPUs: m.limit(0, 4, 8), MaxMemoryMiB: m.limit(0, 2048, 8192), MaxMacOSGuests: m.limit(0, 1, 2), MaxLeases: m.limit(0, 1, 2), MaxPools: m.limit(0, 1, 2)}}}
	before, r, op, applied := m.keyed(KindCreateTenant, "", c, c)
	if !applied {
		return
	}
	m.kept(r, KindCreateTenant, op, c, c.Request.Name)
	if (r.Err != nil && r.Err.Code == api.CodeNameTaken) != (before.Tenant(c.Request.Name) != nil) {
		m.r.Fatalf("got %+v for tenant %s", r, c.Request.Name)
	}
}

func (m *model) optional(values ...int64) (o api.Optional[int64]) {
	switch n := rapid.IntRange(0, 5).Draw(m.r, "changed"); {
	case n == 4:
		o = api.Some(rapid.SampledFrom(values).Draw(m.r, "limit"))
	case n == 5:
		o = api.Null[int64]()
	}
	return o
}

// policyFor is the policy as it holds for a tenant, read field by field.
func policyFor(v View, tenant string) api.Policy {
	p := v.Policy()
	t := v.Tenant(tenant)
	if t == nil {
		return p
	}
	if own := t.Policy.AllowSharedPoolClaims; own != nil {
		p.AllowSharedPoolClaims = *own
	}
	if own := t.Policy.RequireLeaseForMacOS; own != nil {
		p.RequireLeaseForMacOS = *own
	}
	if own := t.Policy.IsolateTenantNetworks; own != nil {
		p.IsolateTenantNetworks = *own
	}
	if own := t.Policy.MinLeaseHours; own != nil {
		p.MinLeaseHours = *own
	}
	return p
}

func (m *model) flag(what string) (o api.Optional[bool]) {
	switch n := rapid.IntRange(0, 5).Draw(m.r, what); {
	case n > 3:
		o = api.Some(n == 5)
	case n == 3:
		o = api.Null[bool]()
	}
	return o
}

func (m *model) policyPatch() api.TenantPolicyPatch {
	if !m.chance(3, "policy too") {
		return api.TenantPolicyPatch{}
	}
	return api.TenantPolicyPatch{AllowSharedPoolClaims: m.flag("shared"), RequireLeaseForMacOS: m.flag("macOS"), IsolateTenantNetworks: m.flag("isolate"), MinLeaseHours: m.optional(0, 1, 30)}
}

// sameAs holds a field to its patch.
func sameAs[V comparable](was, is *V, patch api.Optional[V]) bool {
	switch {
	case patch.Null:
		return is == nil
	case patch.Set:
		return is != nil && *is == patch.V
	}
	return is == was
}

// patchTenant also lowers limits below what is held.
func (m *model) patchTenant(*rapid.T) {
	c := PatchTenant{Name: m.pick([]string{"acme", "acme", "beta", "gamma"}, "tenant"), Patch: api.TenantPatch{DefaultTTLSeconds: m.optional(600, 7200), MaxTTLSeconds: m.optional(600, 3600, 7200),
		Quota: api.QuotaPatch{MaxVMs: m.optional(0, 1, 2, 4, 8), MaxVCPUs: m.optional(0, 4, 8, 20), MaxMemoryMiB: m.optional(0, 2048, 8192, 30_000), MaxMacOSGuests: m.optional(0, 1, 2, 4), MaxLeases: m.optional(0, 1, 2, 3), MaxPools: m.optional(0, 1, 2)}, Policy: m.policyPatch()}}
	if m.chance(5, "a version of the past") {
		c.IfMatch = 1
	}
	before, r := m.send(KindPatchTenant, c)
	if r.Err != nil {
		return
	}
	was, is := before.Tenant(c.Name), m.f.view().Tenant(c.Name)
	want := was.Quota
	for _, l := range [...]struct {
		have  **int64
		patch api.Optional[int64]
	}{{&want.MaxVMs, c.Patch.Quota.MaxVMs}, {&want.MaxVCPUs, c.Patch.Quota.MaxVCPUs}, {&want.MaxMemoryMiB, c.Patch.Quota.MaxMemoryMiB}, {&want.MaxMacOSGuests, c.Patch.Quota.MaxMacOSGuests}, {&want.MaxLeases, c.Patch.Quota.MaxLeases}, {&want.MaxPools, c.Patch.Quota.MaxPools}} {
		if l.patch.Set {
			*l.have = &l.patch.V
			if l.patch.Null {
				*l.have = nil
			}
		}
	}
	if digest(want) != digest(is.Quota) {
		m.r.Fatalf("patch %+v of %s made %s, want %s", c, digest(was.Quota), digest(is.Quota), digest(want))
	}
	if p, a, b := c.Patch.Policy, was.Policy, is.Policy; !sameAs(a.AllowSharedPoolClaims, b.AllowSharedPoolClaims, p.AllowSharedPoolClaims) || !sameAs(a.RequireLeaseForMacOS, b.RequireLeaseForMacOS, p.RequireLeaseForMacOS) ||
		!sameAs(a.IsolateTenantNetworks, b.IsolateTenantNetworks, p.IsolateTenantNetworks) || !sameAs(a.MinLeaseHours, b.MinLeaseHours, p.MinLeaseHours) {
		m.r.Fatalf("patch %+v of %s made %s", p, digest(a), digest(b))
	}
	if policyFor(m.f.view(), c.Name) != m.f.view().Policy() {
		m.saw("policy of its own")
	}
	if exceeded(recount(m.f.view(), c.Name), is.Quota) != "" {
		m.saw("quota lowered below use")
	}
}

func (m *model) deleteTenant(*rapid.T) {
	c := DeleteTenant{Name: m.pick([]string{"gamma", "gamma", "beta", "acme"}, "tenant")}
	before, r := m.send(KindDeleteTenant, c)
	h := recount(before, c.Name)
	holds := h.VMs+h.Leases+h.Pools > 0
	switch {
	case before.Tenant(c.Name) == nil:
		if r.Err == nil || r.Err.Code != api.CodeNotFound {
			m.r.Fatalf("got %+v for tenant %s, which is not there", r, c.Name)
		}
		return
	case holds != (r.Err != nil):
		m.r.Fatalf("got %+v for tenant %s, which holds %+v", r, c.Name, h)
	case holds:
		return
	}
	m.saw("tenant deleted")
	for _, k := range m.keys {
		k.revoked = k.revoked || k.tenant == c.Name
	}
}

func (m *model) createKey(*rapid.T) {
	c := CreateKey{Key: Key{ID: m.next("key"), Tenant: m.pick(modelTenants, "tenant"), Hash: m.next("secret"), Role: m.pick([]string{api.RoleViewer, api.RoleTenant, api.RoleOperator}, "role")}}
	if m.chance(2, "expires") {
		c.Key.ExpiresAt = m.f.view().Meta().Now + rapid.SampledFrom([]api.Time{5_000, 3_600_000, 30 * 3_600_000}).Draw(m.r, "for")
	}
	before, r, op, applied := m.keyed(KindCreateKey, c.Key.Tenant, c, c)
	if applied {
		m.keyMade(before, r, op, c)
	}
}

func (m *model) keyMade(before View, r Result, op *Op, c CreateKey) {
	m.kept(r, KindCreateKey, op, c, c.Key.ID)
	right := c.Key.Role == api.RoleViewer || (c.Key.Role == api.RoleOperator) == (c.Key.Tenant == "")
	if (r.Err == nil) != (right && (c.Key.Tenant == "" || before.Tenant(c.Key.Tenant) != nil)) {
		m.r.Fatalf("got %+v for key %+v", r, c.Key)
	}
	if r.Err == nil {
		m.keys[c.Key.ID] = &modelKey{tenant: c.Key.Tenant, expires: c.Key.ExpiresAt}
	}
}

func (m *model) anyKey(which func(*modelKey) bool) (string, *modelKey) {
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(m.keys)) {
		if which(m.keys[id]) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return "", nil
	}
	id := m.pick(ids, "key")
	return id, m.keys[id]
}

func (m *model) deleteKey(*rapid.T) {
	id, k := m.anyKey(func(*modelKey) bool { return true })
	if k == nil {
		m.skip()
	}
	c := DeleteKey{ID: id, Tenant: k.tenant}
	if m.chance(4, "another's") {
		c.Tenant = m.pick(modelTenants, "tenant")
	}
	_, r := m.send(KindDeleteKey, c)
	if (r.Err == nil) != (!k.revoked && c.Tenant == k.tenant) {
		m.r.Fatalf("got %+v for key %s, which is %+v", r, id, k)
	}
	k.revoked = k.revoked || r.Err == nil
}

func (m *model) touchKeys(*rapid.T) {
	id, k := m.anyKey(func(*modelKey) bool { return true })
	if k == nil {
		m.skip()
	}
	before, _ := m.send(KindTouchKeys, TouchKeys{Keys: []KeyUse{{ID: id, At: m.f.now + rapid.SampledFrom([]api.Time{0, -60_000, 60_000}).Draw(m.r, "at")}, {ID: "stranger", At: m.f.now}}})
	was, is := before.Key(id), m.f.view().Key(id)
	if k.revoked != (is == nil) || is != nil && (is.LastUsedAt < was.LastUsedAt || is.LastUsedAt > m.f.view().Meta().Now) {
		m.r.Fatalf("a use made %+v of key %+v", is, was)
	}
}

// bear has a key that stays good for a while authorise what comes, or none.
func (m *model) bear() {
	m.f.bearer = ""
	if !m.chance(5, "with a key") {
		return
	}
	now := max(m.f.now, m.f.view().Meta().Now)
	m.f.bearer, _ = m.anyKey(func(k *modelKey) bool { return !k.revoked && (k.expires == 0 || k.expires > now+26*hourMS) })
}

// badKey repeats some command of the past under a key that is good no longer.
func (m *model) badKey(*rapid.T) {
	m.f.now += 10
	now := max(m.f.now, m.f.view().Meta().Now)
	id, k := m.anyKey(func(k *modelKey) bool { return k.revoked || k.expires != 0 && k.expires <= now })
	if k == nil {
		m.skip()
	}
	e, err := decode(rapid.SampledFrom(m.f.log).Draw(m.r, "command"))
	if err != nil {
		m.r.Fatal(err)
	}
	e.Now, e.Token = m.f.now, id
	raw, err := json.Marshal(e)
	if err != nil {
		m.r.Fatal(err)
	}
	m.saw(map[bool]string{true: "revoked key", false: "expired key"}[k.revoked])
	if r := m.f.apply(append([]byte{format}, raw...)); r.Err == nil || r.Err.Code != api.CodeUnauthenticated {
		m.r.Fatalf("got %+v for %s under key %s, which is %+v", r, kindName(e.Kind), id, k)
	}
}

func (m *model) patchPolicy(*rapid.T) {
	c := PatchPolicy{Patch: api.PolicyPatch{AllowSharedPoolClaims: m.flag("shared"), RequireLeaseForMacOS: m.flag("macOS"), IsolateTenantNetworks: m.flag("isolate"), MinLeaseHours: m.optional(0, 1, 24, 30)}}
	if m.chance(3, "boots") {
		c.Patch.MaxBootsPerNode = api.Some(rapid.IntRange(0, 3).Draw(m.r, "boots"))
	}
	before, r := m.send(KindPatchPolicy, c)
	if c.Patch.MaxBootsPerNode.Set && c.Patch.MaxBootsPerNode.V < 1 {
		if r.Err == nil || r.Err.Field != "max_boots_per_node" {
			m.r.Fatalf("got %+v for a policy without boots", r)
		}
		return
	}
	was, is := before.Policy(), m.f.view().Policy()
	for _, f := range [...]struct {
		patch       api.Optional[bool]
		was, is, or bool
	}{{c.Patch.AllowSharedPoolClaims, was.AllowSharedPoolClaims, is.AllowSharedPoolClaims, false}, {c.Patch.RequireLeaseForMacOS, was.RequireLeaseForMacOS, is.RequireLeaseForMacOS, true},
		{c.Patch.IsolateTenantNetworks, was.IsolateTenantNetworks, is.IsolateTenantNetworks, false}} {
		if want := map[bool]bool{true: f.patch.V, false: f.was}[f.patch.Set]; !f.patch.Null && f.is != want || f.patch.Null && f.is != f.or {
			m.r.Fatalf("patch %+v made %+v of %+v", c.Patch, is, was)
		}
	}
}

func (m *model) putPrices(*rapid.T) {
	price := func() api.VMPrice {
		return api.VMPrice{GuestOS: m.pick([]string{"", api.GuestLinux, api.GuestMacOS}, "guest"), VCPUHourMicros: rapid.Int64Range(0, 1<<42).Draw(m.r, "vcpu"), GiBHourMicros: rapid.Int64Range(0, 1<<20).Draw(m.r, "gib"), OnLeased: m.chance(3, "on leased")}
	}
	p := api.Prices{Currency: "EUR"}
	for range rapid.IntRange(0, 3).Draw(m.r, "VM prices") {
		p.VM = append(p.VM, price())
	}
	if m.chance(2, "pool price") {
		p.Pool = append(p.Pool, price())
	}
	for range rapid.IntRange(0, 2).Draw(m.r, "lease prices") {
		p.Lease = append(p.Lease, api.LeasePrice{Label: m.pick([]string{"", "name=mac-1", "mac", "mac=no", "zone"}, "label"), HourMicros: rapid.Int64Range(0, 1<<42).Draw(m.r, "hour")})
	}
	before, _ := m.send(KindPutPrices, PutPrices{Prices: p})
	if got := m.f.view().Prices(); len(got.VM) != len(p.VM) || got.Version != m.f.index {
		m.r.Fatalf("got %+v, want %+v", got, p)
	}
	for row := range before.Ledger(0) {
		if m.f.view().ledger.find(byID, number("", row.Seq)) != row {
			m.r.Fatalf("new prices changed row %+v", row)
		}
	}
}

func (m *model) adjust(*rapid.T) {
	c := AdjustLedger{Request: api.AdjustmentRequest{Tenant: m.pick([]string{"acme", "beta", "gamma"}, "tenant"), AmountMicros: rapid.Int64Range(-1<<60, 1<<60).Draw(m.r, "amount"), Reason: m.next("reason")}}
	if before, r, op, applied := m.keyed(KindAdjustLedger, "", c, c); applied {
		m.adjusted(before, r, op, c)
	}
}

func (m *model) adjusted(before View, r Result, op *Op, c AdjustLedger) {
	if (r.Err == nil) != (before.Tenant(c.Request.Tenant) != nil) {
		m.r.Fatalf("got %+v for an adjustment of %s", r, c.Request.Tenant)
	}
	if r.Err != nil {
		return
	}
	row := r.Value.(*LedgerRow)
	m.kept(r, KindAdjustLedger, op, c, digest(row.Seq))
	if row.Amount != c.Request.AmountMicros || row.EndReason != c.Request.Reason || row.Tenant != c.Request.Tenant || row.StartedAt != row.EndedAt || row.CostUntil(0) != row.Amount {
		m.r.Fatalf("adjustment %+v made %+v", c, row)
	}
}

// recount adds up what a tenant holds from all rows, without any index.
func recount(v View, tenant string) (h api.Holding) {
	for vm := range v.VMs("") {
		if vm.Tenant != tenant || vm.State == api.StateDeleting || vm.State == api.StateLost {
			continue
		}
		h.VMs, h.VCPUs, h.MemoryMiB = h.VMs+1, h.VCPUs+int64(vm.VCPUs), h.MemoryMiB+vm.MemoryMiB
		if vm.GuestOS == api.GuestMacOS {
			h.MacOSGuests++
		}
	}
	for l := range v.AllLeases("") {
		if l.Tenant == tenant && l.State != api.LeaseEnded {
			h.Leases++
		}
	}
	for p := range v.Pools("") {
		if p.Tenant == tenant {
			h.Pools++
		}
	}
	return h
}

// limits pairs what is held with its limits, in one order.
func limits(h api.Holding, q api.Quota) [6]struct {
	held  int64
	limit *int64
} {
	return [...]struct {
		held  int64
		limit *int64
	}{{h.VMs, q.MaxVMs}, {h.VCPUs, q.MaxVCPUs}, {h.MemoryMiB, q.MaxMemoryMiB}, {h.MacOSGuests, q.MaxMacOSGuests}, {h.Leases, q.MaxLeases}, {h.Pools, q.MaxPools}}
}

var limitNames = [...]string{"max_vms", "max_vcpus", "max_memory_mib", "max_macos_guests", "max_leases", "max_pools"}

// exceeded names the first limit that a holding breaks.
func exceeded(h api.Holding, q api.Quota) string {
	for i, l := range limits(h, q) {
		if l.limit != nil && l.held > *l.limit {
			return limitNames[i]
		}
	}
	return ""
}

func plus(a, b api.Holding) api.Holding {
	return api.Holding{VMs: a.VMs + b.VMs, VCPUs: a.VCPUs + b.VCPUs, MemoryMiB: a.MemoryMiB + b.MemoryMiB, MacOSGuests: a.MacOSGuests + b.MacOSGuests, Leases: a.Leases + b.Leases, Pools: a.Pools + b.Pools}
}

// mayHaveMore says whether more of a kind fits in a tenant's quota: what breaks already for another reason does not count.
func mayHaveMore(v View, tenant string, more api.Holding) bool {
	t := v.Tenant(tenant)
	if t == nil {
		return true
	}
	have := limits(plus(recount(v, tenant), more), t.Quota)
	for i, l := range limits(more, t.Quota) {
		if l.held > 0 && l.limit != nil && have[i].held > *l.limit {
			return false
		}
	}
	return true
}

// auditQuota holds every tenant's use to a recount, and to growing only within its quota.
func (m *model) auditQuota(before, after View) {
	for t := range after.Tenants("") {
		was, is := recount(before, t.Name), recount(after, t.Name)
		if got := after.Holding(t.Name); got != is {
			m.r.Fatalf("tenant %s is said to hold %+v and holds %+v", t.Name, got, is)
		}
		old := limits(was, t.Quota)
		for i, l := range limits(is, t.Quota) {
			if l.limit != nil && l.held > *l.limit && l.held > old[i].held {
				m.r.Fatalf("tenant %s went from %d to %d, and %s is %d", t.Name, old[i].held, l.held, limitNames[i], *l.limit)
			}
		}
	}
}
