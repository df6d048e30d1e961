package fsm

import (
	"iter"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Tenant finds a tenant by name.
func (v View) Tenant(name string) *Tenant { return v.tenants.find(byID, text(name)) }

// Tenants are in the order of their names, from the given one on.
func (v View) Tenants(start string) iter.Seq[*Tenant] {
	return v.tenants.from(byID, start)
}

// Key finds an API key by its id, KeyByHash by the hash of its secret.
func (v View) Key(id string) *Key { return v.keys.find(byID, text(id)) }

// KeyByHash finds an API key by the hash of its secret.
func (v View) KeyByHash(hash string) *Key { return v.keys.find(keyHash, text(hash)) }

// Keys are a tenant's, or the operators' for an empty name.
func (v View) Keys(tenant string) iter.Seq[*Key] { return v.keys.each(keyTenant, text(tenant)) }

// Policy is what the operator allows.
func (v View) Policy() api.Policy {
	if p := v.policy.find(byID, text("policy")); p != nil {
		return p.Policy
	}
	return api.DefaultPolicy()
}

// Holding sums up what a tenant holds, from its live rows.
func (v View) Holding(tenant string) (h api.Holding) {
	if have := v.holdings.find(byID, text(tenant)); have != nil {
		h = have.Holding
	}
	for l := range v.LiveLeases() {
		if l.Tenant == tenant {
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

// over names the first limit that more would break.
func over(have, more api.Holding, q api.Quota) error {
	for _, l := range [...]struct {
		field      string
		have, more int64
		limit      *int64
	}{
		{"max_vms", have.VMs, more.VMs, q.MaxVMs},
		{"max_vcpus", have.VCPUs, more.VCPUs, q.MaxVCPUs},
		{"max_memory_mib", have.MemoryMiB, more.MemoryMiB, q.MaxMemoryMiB},
		{"max_macos_guests", have.MacOSGuests, more.MacOSGuests, q.MaxMacOSGuests},
		{"max_leases", have.Leases, more.Leases, q.MaxLeases},
		{"max_pools", have.Pools, more.Pools, q.MaxPools},
	} {
		if l.limit != nil && l.more > 0 && l.have+l.more > *l.limit {
			e := api.Errorf(api.CodeQuotaExceeded, "this takes %d and %d are in use of a quota of %d (%s); delete something, or ask the operator for more", l.more, l.have, *l.limit, l.field)
			e.Field = l.field
			return e
		}
	}
	return nil
}

// mayHold refuses what would break a tenant's quota. The operator has none.
func (v View) mayHold(tenant string, more api.Holding) error {
	if tenant == "" {
		return nil
	}
	t := v.Tenant(tenant)
	if t == nil {
		return api.NotFound("tenant", tenant)
	}
	return over(v.Holding(tenant), more, t.Quota)
}

// holds is what one VM of the size counts for.
func holds(guestOS string, vcpus int, memoryMiB int64) api.Holding {
	h := api.Holding{VMs: 1, VCPUs: int64(vcpus), MemoryMiB: memoryMiB}
	if guestOS == api.GuestMacOS {
		h.MacOSGuests = 1
	}
	return h
}

// ttlFor settles a VM's time to live in seconds, 0 for none: the tenant's default where none is asked for, and never
// more than its maximum.
func (v View) ttlFor(tenant string, asked int64) (int64, error) {
	t := v.Tenant(tenant)
	if tenant == "" || t == nil {
		return asked, nil
	}
	if asked == 0 && t.DefaultTTL != nil {
		asked = *t.DefaultTTL
	}
	if t.MaxTTL == nil {
		return asked, nil
	}
	if asked == 0 {
		return *t.MaxTTL, nil
	}
	if asked > *t.MaxTTL {
		e := api.Errorf(api.CodePolicyDenied, "tenant %s may keep a VM for %d s at most; ask for a ttl_seconds of that or less", tenant, *t.MaxTTL)
		e.Field = "ttl_seconds"
		return 0, e
	}
	return asked, nil
}

// PolicyOf is the policy as it holds for a tenant: the fleet's, but where the tenant has its own.
func (v View) PolicyOf(tenant string) api.Policy {
	p := v.Policy()
	if t := v.Tenant(tenant); t != nil {
		p = p.For(t.Policy)
	}
	return p
}

// SharedAllowed says whether the tenant may take VMs of shared pools of the guest OS; for an empty name, whether
// tenants may that have no policy of their own.
func (v View) SharedAllowed(tenant, guestOS string) bool {
	p := v.PolicyOf(tenant)
	return p.AllowSharedPoolClaims && !p.IsolateTenantNetworks && (guestOS != api.GuestMacOS || !p.RequireLeaseForMacOS)
}

// Usable says whether a caller may see the pool and take VMs from it: its own, the operator's from shared ones, and
// shared ones where policy lets tenants.
func (v View) Usable(p *Pool, tenant string) bool {
	return p.Tenant == tenant || p.Tenant == "" && v.SharedAllowed(tenant, p.GuestOS)
}

// MacOSNeedsLease says that macOS guests of the tenant run on its leased hosts only.
func (v View) MacOSNeedsLease(tenant, guestOS string) bool {
	return tenant != "" && guestOS == api.GuestMacOS && v.PolicyOf(tenant).RequireLeaseForMacOS
}

// leasesMac says whether the tenant has an active lease of a Mac.
func (v View) leasesMac(tenant string) bool {
	for l := range v.LiveLeases() {
		if l.Tenant != tenant || l.State != api.LeaseActive {
			continue
		}
		for _, name := range l.Nodes {
			if n := v.Node(name); n != nil && n.Mac {
				return true
			}
		}
	}
	return false
}

// authorised checks again that the key behind a command is still good: what it allowed before its revocation was
// acknowledged must not commit after.
func (t *tx) authorised() error {
	if t.env.Token == "" {
		return nil
	}
	k := t.Key(t.env.Token)
	if k == nil || !k.Good(t.now) {
		return api.Errorf(api.CodeUnauthenticated, "the key was revoked or has expired; use another one")
	}
	return nil
}

// createTenant adds a tenant. Its value is the *Tenant.
func (t *tx) createTenant(c CreateTenant) (any, error) {
	r := c.Request
	if t.Tenant(r.Name) != nil {
		return nil, api.Errorf(api.CodeNameTaken, "there is a tenant %s already; choose another name", r.Name)
	}
	row := &Tenant{Name: r.Name, Quota: r.Quota, DefaultTTL: r.DefaultTTLSeconds, MaxTTL: r.MaxTTLSeconds, Policy: r.Policy, CreatedAt: t.now, Version: t.index}
	if err := row.check(); err != nil {
		return nil, err
	}
	if _, err := t.remember(Operation{Ref: row.Name}); err != nil {
		return nil, err
	}
	t.tenants.put(row)
	t.event(EventTenant, ActionCreated, row.Name, row)
	t.log(t.env.Actor, "POST /fleet/tenants", row.Name, row.Name, "ok")
	return row, nil
}

func (t *Tenant) check() error {
	if t.DefaultTTL != nil && t.MaxTTL != nil && *t.DefaultTTL > *t.MaxTTL {
		return api.Invalid("default_ttl_seconds", "default_ttl_seconds must not be above max_ttl_seconds (%d)", *t.MaxTTL)
	}
	return nil
}

// patchTenant changes limits. Its value is the *Tenant.
func (t *tx) patchTenant(c PatchTenant) (any, error) {
	have := t.Tenant(c.Name)
	if have == nil {
		return nil, api.NotFound("tenant", c.Name)
	}
	if err := checkVersion("tenant", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := *have
	q := c.Patch.Quota
	limit(&row.Quota.MaxVMs, q.MaxVMs)
	limit(&row.Quota.MaxVCPUs, q.MaxVCPUs)
	limit(&row.Quota.MaxMemoryMiB, q.MaxMemoryMiB)
	limit(&row.Quota.MaxMacOSGuests, q.MaxMacOSGuests)
	limit(&row.Quota.MaxLeases, q.MaxLeases)
	limit(&row.Quota.MaxPools, q.MaxPools)
	limit(&row.DefaultTTL, c.Patch.DefaultTTLSeconds)
	limit(&row.MaxTTL, c.Patch.MaxTTLSeconds)
	p := c.Patch.Policy
	limit(&row.Policy.AllowSharedPoolClaims, p.AllowSharedPoolClaims)
	limit(&row.Policy.RequireLeaseForMacOS, p.RequireLeaseForMacOS)
	limit(&row.Policy.IsolateTenantNetworks, p.IsolateTenantNetworks)
	limit(&row.Policy.MinLeaseHours, p.MinLeaseHours)
	if err := row.check(); err != nil {
		return nil, err
	}
	row.Version = t.index
	t.tenants.put(&row)
	t.event(EventTenant, ActionChanged, row.Name, &row)
	t.log(t.env.Actor, "PATCH /fleet/tenants/{name}", row.Name, row.Name, "ok")
	t.tryAgainAll(row.Name)
	return &row, nil
}

func limit[V any](field **V, o api.Optional[V]) {
	switch {
	case !o.Set:
	case o.Null:
		*field = nil
	default:
		n := o.V
		*field = &n
	}
}

// tryAgainAll lets a tenant's pools try at once: what they waited for may have changed.
func (t *tx) tryAgainAll(tenant string) {
	var pools []*Pool
	for p := range t.Pools("") {
		if p.Tenant == tenant && (p.Failures > 0 || p.WaitReason != "") {
			pools = append(pools, p)
		}
	}
	for _, p := range pools {
		row := *p
		row.tryAgain()
		t.putPool(&row, true)
	}
}

// deleteTenant removes a tenant that holds nothing, and its keys. Its ledger stays.
func (t *tx) deleteTenant(c DeleteTenant) (any, error) {
	have := t.Tenant(c.Name)
	if have == nil {
		return nil, api.NotFound("tenant", c.Name)
	}
	if err := checkVersion("tenant", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	if h := t.Holding(c.Name); h.VMs+h.Leases+h.Pools > 0 {
		return nil, api.Errorf(api.CodeConflict, "tenant %s still holds %d VMs, %d leases and %d pools; delete those first", c.Name, h.VMs, h.Leases, h.Pools)
	}
	var keys []*Key
	for k := range t.Keys(c.Name) {
		keys = append(keys, k)
	}
	for _, k := range keys {
		t.keys.remove(k)
	}
	t.tenants.remove(have)
	t.event(EventTenant, ActionDeleted, have.Name, have)
	t.log(t.env.Actor, "DELETE /fleet/tenants/{name}", c.Name, c.Name, "ok")
	return nil, nil
}

// maxKeys is how many keys one tenant, or the operators, may have.
const maxKeys = 256

// createKey adds an API key. Its value is the *Key.
func (t *tx) createKey(c CreateKey) (any, error) {
	row := c.Key
	if err := (&api.KeyRequest{Role: row.Role}).Check(row.Tenant == ""); err != nil {
		return nil, err
	}
	if t.Key(row.ID) != nil || t.KeyByHash(row.Hash) != nil {
		return nil, api.Errorf(api.CodeConflict, "there is such a key already; make another one")
	}
	if row.Tenant != "" && t.Tenant(row.Tenant) == nil {
		return nil, api.NotFound("tenant", row.Tenant)
	}
	n := 0
	for range t.Keys(row.Tenant) {
		n++
	}
	if n >= maxKeys {
		return nil, api.Errorf(api.CodeQuotaExceeded, "there are %d keys, and no more are allowed; revoke one first", n)
	}
	row.CreatedAt, row.LastUsedAt = t.now, 0
	if _, err := t.remember(Operation{Ref: row.ID}); err != nil {
		return nil, err
	}
	t.keys.put(&row)
	t.log(t.env.Actor, "POST "+keysRoute(row.Tenant), row.ID, row.Tenant, "ok", "role", row.Role)
	return &row, nil
}

func keysRoute(tenant string) string {
	if tenant == "" {
		return "/fleet/operator-keys"
	}
	return "/fleet/tenants/{name}/keys"
}

// deleteKey revokes a key. Nothing that it authorised applies after this.
func (t *tx) deleteKey(c DeleteKey) (any, error) {
	have := t.Key(c.ID)
	if have == nil || have.Tenant != c.Tenant {
		return nil, api.NotFound("key", c.ID)
	}
	t.keys.remove(have)
	t.log(t.env.Actor, "DELETE "+keysRoute(have.Tenant)+"/{id}", have.ID, have.Tenant, "ok")
	return nil, nil
}

// touchKeys notes uses.
func (t *tx) touchKeys(c TouchKeys) (any, error) {
	for _, u := range c.Keys {
		if have := t.Key(u.ID); have != nil && u.At > have.LastUsedAt {
			row := *have
			row.LastUsedAt = min(u.At, t.now)
			t.keys.put(&row)
		}
	}
	return nil, nil
}

// patchPolicy changes what the operator allows. Its value is the *Policy. What runs already stays.
func (t *tx) patchPolicy(c PatchPolicy) (any, error) {
	row, def := t.Policy(), api.DefaultPolicy()
	if err := checkVersion("policy", row.Version, c.IfMatch); err != nil {
		return nil, err
	}
	orDefault(&row.AllowSharedPoolClaims, c.Patch.AllowSharedPoolClaims, def.AllowSharedPoolClaims)
	orDefault(&row.RequireLeaseForMacOS, c.Patch.RequireLeaseForMacOS, def.RequireLeaseForMacOS)
	orDefault(&row.IsolateTenantNetworks, c.Patch.IsolateTenantNetworks, def.IsolateTenantNetworks)
	orDefault(&row.MinLeaseHours, c.Patch.MinLeaseHours, def.MinLeaseHours)
	orDefault(&row.MaxBootsPerNode, c.Patch.MaxBootsPerNode, def.MaxBootsPerNode)
	if p := c.Patch.LostAfterSeconds; p.Set {
		row.LostAfterSeconds = nil
		if !p.Null {
			row.LostAfterSeconds = new(p.V)
		}
	}
	if row.MaxBootsPerNode < 1 {
		return nil, api.Invalid("max_boots_per_node", "max_boots_per_node must be at least 1")
	}
	row.Version = t.index
	stored := &Policy{row}
	t.policy.put(stored)
	t.log(t.env.Actor, "PATCH /fleet/policy", "policy", "", "ok")
	return stored, nil
}

func orDefault[V any](field *V, o api.Optional[V], otherwise V) {
	switch {
	case !o.Set:
	case o.Null:
		*field = otherwise
	default:
		*field = o.V
	}
}
