package api

import "encoding/json"

// Quota bounds what a tenant may hold at once. Null is no limit, 0 is none.
type Quota struct {
	MaxVMs         *int64 `json:"max_vms"`
	MaxVCPUs       *int64 `json:"max_vcpus"`
	MaxMemoryMiB   *int64 `json:"max_memory_mib"`
	MaxMacOSGuests *int64 `json:"max_macos_guests"`
	MaxLeases      *int64 `json:"max_leases"`
	MaxPools       *int64 `json:"max_pools"`
}

// Holding is what a tenant holds now, in the same units as its quota.
type Holding struct {
	VMs         int64 `json:"vms"`
	VCPUs       int64 `json:"vcpus"`
	MemoryMiB   int64 `json:"memory_mib"`
	MacOSGuests int64 `json:"macos_guests"`
	Leases      int64 `json:"leases"`
	Pools       int64 `json:"pools"`
}

// Tenant is one who owns VMs, pools and leases. Time limits are null where there is none.
type Tenant struct {
	Name              string `json:"name"`
	Quota             Quota  `json:"quota"`
	DefaultTTLSeconds *int64 `json:"default_ttl_seconds"`
	MaxTTLSeconds     *int64 `json:"max_ttl_seconds"`
	CreatedAt         Time   `json:"created_at"`
	Version           uint64 `json:"version"`

	Policy TenantPolicy `json:"policy"`
}

// TenantPolicy is where one tenant's policy differs from the fleet's. Null is the fleet's, whatever that becomes.
type TenantPolicy struct {
	AllowSharedPoolClaims *bool  `json:"allow_shared_pool_claims"`
	RequireLeaseForMacOS  *bool  `json:"require_lease_for_macos"`
	IsolateTenantNetworks *bool  `json:"isolate_tenant_networks"`
	MinLeaseHours         *int64 `json:"min_lease_hours"` // on hosts that can run macOS
}

// TenantRequest is the body of POST /fleet/tenants.
type TenantRequest struct {
	Name              string `json:"name"`
	Quota             Quota  `json:"quota,omitzero"`
	DefaultTTLSeconds *int64 `json:"default_ttl_seconds,omitempty"`
	MaxTTLSeconds     *int64 `json:"max_ttl_seconds,omitempty"`

	Policy TenantPolicy `json:"policy,omitzero"`
}

// TenantPatch is the merge patch of PATCH /fleet/tenants/{name}. A null limit is taken off.
type TenantPatch struct {
	Quota             QuotaPatch      `json:"quota,omitzero"`
	DefaultTTLSeconds Optional[int64] `json:"default_ttl_seconds,omitzero"`
	MaxTTLSeconds     Optional[int64] `json:"max_ttl_seconds,omitzero"`

	Policy TenantPolicyPatch `json:"policy,omitzero"`
}

// DecodeTenantPatch reads a TenantPatch. A null quota is no limit at all, a null policy is the fleet's in everything.
func DecodeTenantPatch(raw []byte) (p TenantPatch, err error) {
	if err := Decode(raw, &p); err != nil {
		return p, err
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(raw, &given); err != nil {
		return p, decodeError(err, 0)
	}
	if string(given["quota"]) == "null" {
		off := Null[int64]()
		p.Quota = QuotaPatch{MaxVMs: off, MaxVCPUs: off, MaxMemoryMiB: off, MaxMacOSGuests: off, MaxLeases: off, MaxPools: off}
	}
	if string(given["policy"]) == "null" {
		p.Policy = TenantPolicyPatch{AllowSharedPoolClaims: Null[bool](), RequireLeaseForMacOS: Null[bool](), IsolateTenantNetworks: Null[bool](), MinLeaseHours: Null[int64]()}
	}
	return p, p.Check()
}

// TenantPolicyPatch changes single fields; null makes one the fleet's again.
type TenantPolicyPatch struct {
	AllowSharedPoolClaims Optional[bool]  `json:"allow_shared_pool_claims,omitzero"`
	RequireLeaseForMacOS  Optional[bool]  `json:"require_lease_for_macos,omitzero"`
	IsolateTenantNetworks Optional[bool]  `json:"isolate_tenant_networks,omitzero"`
	MinLeaseHours         Optional[int64] `json:"min_lease_hours,omitzero"`
}

// QuotaPatch changes single limits.
type QuotaPatch struct {
	MaxVMs         Optional[int64] `json:"max_vms,omitzero"`
	MaxVCPUs       Optional[int64] `json:"max_vcpus,omitzero"`
	MaxMemoryMiB   Optional[int64] `json:"max_memory_mib,omitzero"`
	MaxMacOSGuests Optional[int64] `json:"max_macos_guests,omitzero"`
	MaxLeases      Optional[int64] `json:"max_leases,omitzero"`
	MaxPools       Optional[int64] `json:"max_pools,omitzero"`
}

// Roles of keys. An operator's key may be viewer or operator; a tenant's tenant or viewer.
const (
	RoleOperator = "operator"
	RoleViewer   = "viewer"
	RoleTenant   = "tenant"
)

// KeyRequest is the body of POST /fleet/tenants/{name}/keys and POST /fleet/operator-keys.
type KeyRequest struct {
	Role          string `json:"role"`
	ExpiresInSecs int64  `json:"expires_in_secs,omitempty"` // 0: it does not expire
}

// Key is an API key. Secret is there only in the answer that made it.
type Key struct {
	ID         string  `json:"id"`
	Tenant     *string `json:"tenant"` // null: an operator's
	Role       string  `json:"role"`
	Secret     string  `json:"secret,omitempty"`
	CreatedAt  Time    `json:"created_at"`
	ExpiresAt  Time    `json:"expires_at"`
	LastUsedAt Time    `json:"last_used_at"` // to the minute
}

// TenantUsage is GET /fleet/tenants/{name}/usage.
type TenantUsage struct {
	Tenant string  `json:"tenant"`
	Quota  Quota   `json:"quota"`
	Used   Holding `json:"used"`
}

// Policy is what the operator allows.
type Policy struct {
	AllowSharedPoolClaims bool   `json:"allow_shared_pool_claims"`
	RequireLeaseForMacOS  bool   `json:"require_lease_for_macos"`
	IsolateTenantNetworks bool   `json:"isolate_tenant_networks"`
	MinLeaseHours         int64  `json:"min_lease_hours"`              // on hosts that can run macOS
	MaxBootsPerNode       int    `json:"max_boots_per_node"`           // spares that one host starts at a time
	LostAfterSeconds      *int64 `json:"lost_after_seconds,omitempty"` // of silence; absent: only the operator calls a host lost
	Version               uint64 `json:"version"`
}

// PolicyPatch is the merge patch of PATCH /fleet/policy. Null puts a field back to its default.
type PolicyPatch struct {
	AllowSharedPoolClaims Optional[bool]  `json:"allow_shared_pool_claims,omitzero"`
	RequireLeaseForMacOS  Optional[bool]  `json:"require_lease_for_macos,omitzero"`
	IsolateTenantNetworks Optional[bool]  `json:"isolate_tenant_networks,omitzero"`
	MinLeaseHours         Optional[int64] `json:"min_lease_hours,omitzero"`
	MaxBootsPerNode       Optional[int]   `json:"max_boots_per_node,omitzero"`
	LostAfterSeconds      Optional[int64] `json:"lost_after_seconds,omitzero"`
}

// MinLostAfterSeconds is how long a host is silent at least before policy may call it lost: it is unreachable first.
const MinLostAfterSeconds = 300

// DefaultPolicy is that of a fresh fleet.
func DefaultPolicy() Policy {
	return Policy{RequireLeaseForMacOS: true, MinLeaseHours: 24, MaxBootsPerNode: 4}
}

// maxMinLeaseHours bounds min_lease_hours: a year.
const maxMinLeaseHours = 24 * 366

// For is the policy as it holds for a tenant.
func (p Policy) For(t TenantPolicy) Policy {
	setTo(&p.AllowSharedPoolClaims, t.AllowSharedPoolClaims)
	setTo(&p.RequireLeaseForMacOS, t.RequireLeaseForMacOS)
	setTo(&p.IsolateTenantNetworks, t.IsolateTenantNetworks)
	setTo(&p.MinLeaseHours, t.MinLeaseHours)
	return p
}

func setTo[V any](field, to *V) {
	if to != nil {
		*field = *to
	}
}

func checkMinLease(hours *int64) error {
	if hours == nil {
		return nil
	}
	return checkNumbers(numberRule{"policy.min_lease_hours", *hours, maxMinLeaseHours})
}

// Check refuses values that no policy could have.
func (p *PolicyPatch) Check() error {
	if s := p.LostAfterSeconds; s.Set && !s.Null && (s.V < MinLostAfterSeconds || s.V > 30*24*3600) {
		return Invalid("lost_after_seconds", "lost_after_seconds must be from %d to %d, or null for never", MinLostAfterSeconds, 30*24*3600)
	}
	return checkNumbers(numberRule{"min_lease_hours", p.MinLeaseHours.V, maxMinLeaseHours}, numberRule{"max_boots_per_node", int64(p.MaxBootsPerNode.V), 1000})
}

// Check refuses values that no tenant could have.
func (r *TenantRequest) Check() error {
	if r.Name == "operator" {
		return Invalid("name", "operator is not a tenant's name; choose another")
	}
	q := r.Quota
	return first(CheckName("name", r.Name, MaxPoolName), checkLimit("quota.max_vms", q.MaxVMs), checkLimit("quota.max_vcpus", q.MaxVCPUs),
		checkLimit("quota.max_memory_mib", q.MaxMemoryMiB), checkLimit("quota.max_macos_guests", q.MaxMacOSGuests), checkLimit("quota.max_leases", q.MaxLeases),
		checkLimit("quota.max_pools", q.MaxPools), checkTTL("default_ttl_seconds", r.DefaultTTLSeconds), checkTTL("max_ttl_seconds", r.MaxTTLSeconds), checkMinLease(r.Policy.MinLeaseHours))
}

// Check refuses values that no tenant could have.
func (p *TenantPatch) Check() error {
	q := p.Quota
	return first(checkLimit("quota.max_vms", q.MaxVMs.OrNil()), checkLimit("quota.max_vcpus", q.MaxVCPUs.OrNil()), checkLimit("quota.max_memory_mib", q.MaxMemoryMiB.OrNil()),
		checkLimit("quota.max_macos_guests", q.MaxMacOSGuests.OrNil()), checkLimit("quota.max_leases", q.MaxLeases.OrNil()), checkLimit("quota.max_pools", q.MaxPools.OrNil()),
		checkTTL("default_ttl_seconds", p.DefaultTTLSeconds.OrNil()), checkTTL("max_ttl_seconds", p.MaxTTLSeconds.OrNil()), checkMinLease(p.Policy.MinLeaseHours.OrNil()))
}

// maxQuota bounds each limit of a quota.
const maxQuota = 1 << 40

func checkLimit(field string, n *int64) error {
	if n != nil && (*n < 0 || *n > maxQuota) {
		return Invalid(field, "%s must be a whole number from 0 to %d, or null for no limit", field, int64(maxQuota))
	}
	return nil
}

func checkTTL(field string, n *int64) error {
	if n != nil && (*n < 1 || *n > MaxTTLSeconds) {
		return Invalid(field, "%s must be from 1 to %d, or null", field, MaxTTLSeconds)
	}
	return nil
}

// Check refuses a key nobody could have. ofOperator says whose it is.
func (r *KeyRequest) Check(ofOperator bool) error {
	other := RoleTenant
	if ofOperator {
		other = RoleOperator
	}
	if r.Role != RoleViewer && r.Role != other {
		return Invalid("role", "role must be %s or %s", other, RoleViewer)
	}
	return checkNumbers(numberRule{"expires_in_secs", r.ExpiresInSecs, 10 * 366 * 24 * 3600})
}
