package fsm

import (
	"github.com/fluxvm/fluxvm/pkg/api"
)

// Rows are immutable once stored: a change stores a copy. Their JSON is the snapshot's format.

// Meta is the one row about the cluster itself.
type Meta struct {
	ClusterID    string   `json:"cluster_id"`
	Epoch        uint64   `json:"epoch"` // leads every fencing token; a restore raises it
	OperatorHash string   `json:"operator_hash"`
	CreatedAt    api.Time `json:"created_at"`
	Now          api.Time `json:"now"`   // the newest time any command brought; never goes back
	Index        uint64   `json:"index"` // of the last command applied
	ActivitySeq  uint64   `json:"activity_seq"`
	Operations   int      `json:"operations"` // rows of keyed requests
	LedgerSeq    uint64   `json:"ledger_seq"`
}

// Image is a catalog entry.
type Image struct {
	api.Image
}

// Node is what is committed of a host: facts and intent. Its load and last beat are central's, in memory.
type Node struct {
	Name           string            `json:"name"`
	UUID           string            `json:"uuid"`
	BootID         string            `json:"boot_id"`
	URL            string            `json:"url"`
	CredentialHash string            `json:"credential_hash,omitempty"`
	Backends       []string          `json:"backends"` // the first is what auto means there
	Rename         bool              `json:"rename"`
	Claim          bool              `json:"claim,omitempty"` // its daemon gives claims to guests
	VCPUsTotal     int               `json:"vcpus_total"`
	MemoryMiBTotal int64             `json:"memory_mib_total"`
	CPUOvercommit  int               `json:"cpu_overcommit"`
	Labels         map[string]string `json:"labels,omitempty"`
	Mac            bool              `json:"mac"`
	Chip           string            `json:"chip,omitempty"`
	State          api.NodeState     `json:"state"`
	ConfirmedAt    api.Time          `json:"confirmed_at"`    // last known alive, as of the last change of State
	Lease          string            `json:"lease,omitempty"` // of the lease that has it, until that lease's scrub is confirmed
	Cordoned       bool              `json:"cordoned"`
	Draining       bool              `json:"draining"`
	Reason         string            `json:"reason,omitempty"`
	CordonedBy     string            `json:"cordoned_by,omitempty"`
	Drain          *Drain            `json:"drain,omitempty"`    // of the drain under way
	Adopting       bool              `json:"adopting,omitempty"` // after a restore, until its list is merged
	Fault          string            `json:"fault,omitempty"`    // why the host is held back until an operator mends it
	CreatedAt      api.Time          `json:"created_at"`
	Version        uint64            `json:"version"`
}

// Drain is how a host is being emptied.
type Drain struct {
	By        string   `json:"by"`
	StartedAt api.Time `json:"started_at"`
	Deadline  api.Time `json:"deadline"` // zero: none
	Force     bool     `json:"force,omitempty"`
	Total     int      `json:"total"` // VMs that were there when it began
}

// Forced says that what blocks the drain is to be deleted now.
func (d *Drain) Forced(now api.Time) bool { return d != nil && d.Force && now >= d.Deadline }

// Backend is what the backend name of a request means on this node.
func (n *Node) Backend(named string) string {
	if named == "" || named == api.BackendAuto {
		if len(n.Backends) > 0 {
			return n.Backends[0]
		}
		return api.BackendAuto
	}
	return named
}

// Use is what the rows of a node take of it. It is derived from them in the same change, never stored in a
// snapshot, and recounted by Check.
type Use struct {
	Node      string
	VCPUs     int // macOS guests count times the host's overcommit, since they get none
	MemoryMiB int64
	MacOS     int
	VMs       int
	Booting   int
}

// Pool is a warm pool.
type Pool struct {
	Name         string            `json:"name"`
	Tenant       string            `json:"tenant,omitempty"` // empty: shared, the operator's
	Image        string            `json:"image"`
	GuestOS      string            `json:"guest_os"`
	VCPUs        int               `json:"vcpus"`
	MemoryMiB    int64             `json:"memory_mib"`
	DiskGiB      int64             `json:"disk_gib"`
	MinReady     int               `json:"min_ready"`
	MaxTotal     int               `json:"max_total"`
	MaxTotalSet  bool              `json:"max_total_set"` // else MaxTotal follows MinReady
	NodeSelector map[string]string `json:"node_selector,omitempty"`
	Nodes        []string          `json:"nodes,omitempty"`
	Readiness    string            `json:"readiness"`
	CreatedAt    api.Time          `json:"created_at"`
	Version      uint64            `json:"version"`

	MaxUnavailable int    `json:"max_unavailable"` // of the roll in progress
	StaleUse       string `json:"stale_use,omitempty"`
	RollFrom       string `json:"roll_from,omitempty"` // the image it rolls away from; empty while it does not roll

	KeepFailed     int64 `json:"keep_failed,omitempty"` // seconds that the last failed spare is kept
	MaxAge         int64 `json:"max_age,omitempty"`     // seconds after which a ready spare is replaced; 0: never
	RotateIdentity bool  `json:"rotate_identity,omitempty"`

	Failures     int            `json:"failures"` // boots that failed in a row
	BackoffUntil api.Time       `json:"backoff_until"`
	Crashing     bool           `json:"crashing,omitempty"`       // among the failures are ready spares that died
	WaitsForRoom bool           `json:"waits_for_room,omitempty"` // the last failed because no host was free; room ends the wait
	LastError    string         `json:"last_error,omitempty"`
	WaitReason   string         `json:"wait_reason,omitempty"`
	Reasons      map[string]int `json:"reasons,omitempty"`
	LastClaimAt  api.Time       `json:"last_claim_at"`
	LastFillAt   api.Time       `json:"last_fill_at"`
}

// Owner is the tenant, or "operator" for a shared pool.
func (p *Pool) Owner() string {
	if p.Tenant == "" {
		return "operator"
	}
	return p.Tenant
}

// maxTotalFor is max_total where it was never set.
func maxTotalFor(minReady int) int { return min(api.MaxMaxTotal, max(4*minReady, minReady+4)) }

// ClaimStat counts a pool's claims of one minute, so that the last day's can be summed from few small rows.
type ClaimStat struct {
	Pool   string `json:"pool"`
	Minute int64  `json:"minute"` // since 1970
	Claims int64  `json:"claims"`
	Timed  int64  `json:"timed"` // of them, confirmed by the node
	SumMS  int64  `json:"sum_ms"`
	Cold   int64  `json:"cold,omitempty"` // launches that matched and booted normally
}

// VM is a virtual machine, from its placement until its node confirmed that it is gone.
type VM struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	Tenant        string            `json:"tenant,omitempty"` // empty: the operator's
	Node          string            `json:"node"`
	Backend       string            `json:"backend"`
	Image         string            `json:"image"`
	ImagePath     string            `json:"image_path"`
	GuestOS       string            `json:"guest_os"`
	VCPUs         int               `json:"vcpus"`
	MemoryMiB     int64             `json:"memory_mib"`
	DiskGiB       int64             `json:"disk_gib"`
	NoAgent       bool              `json:"no_agent,omitempty"`
	State         api.VMState       `json:"state"`
	Reason        string            `json:"reason,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	CreatedAt     api.Time          `json:"created_at"`
	RunningAt     api.Time          `json:"running_at"`
	ReadyAt       api.Time          `json:"ready_at"`
	ExpiresAt     api.Time          `json:"expires_at"`
	IP            string            `json:"ip,omitempty"`
	Pool          string            `json:"pool,omitempty"` // the pool that booted it, or that its launch named
	Warm          bool              `json:"warm,omitempty"` // still a spare of Pool
	SpareSince    api.Time          `json:"spare_since"`    // when the spare became ready to hand out; zero before
	ClaimedFrom   string            `json:"claimed_from,omitempty"`
	ClaimedAt     api.Time          `json:"claimed_at"`
	ColdReason    string            `json:"cold_reason,omitempty"`
	Reschedulable bool              `json:"reschedulable,omitempty"`
	Version       uint64            `json:"version"` // index of the last change that shows

	Order    uint64   `json:"order"`               // index of the last change its node must hear of; the fencing token's OP
	Told     uint64   `json:"told"`                // the newest order its node confirmed
	Placed   uint64   `json:"placed_term"`         // the leader's term when it got its present node
	HandOver bool     `json:"hand_over,omitempty"` // claimed, and the node has not confirmed it
	Tried    []string `json:"tried,omitempty"`     // nodes that refused it
	TriedFor []string `json:"tried_for,omitempty"` // the reason each of them stands for, as reasons count them
	Down     bool     `json:"down,omitempty"`      // it was down already when its end was asked for
	FailedAt api.Time `json:"failed_at,omitempty"` // when it failed, as a spare of a pool that keeps failed ones
	CanClaim bool     `json:"can_claim,omitempty"` // its guest agent takes claims
	Claim    *Claim   `json:"claim,omitempty"`     // what its guest is still to be given
	Launch   *Launch  `json:"launch,omitempty"`    // what was asked, while it may have to boot elsewhere: until a node has it, or always
	Boot     *Boot    `json:"boot,omitempty"`      // what the create order carries beyond the columns above
	Move     string   `json:"move,omitempty"`      // how far it is on its way off a host that is drained
	Again    bool     `json:"again,omitempty"`     // it has been on another host, and its present one has not confirmed it
	Scope    string   `json:"scope,omitempty"`     // of the operation that asked for it
	Key      string   `json:"key,omitempty"`
}

// Ephemeral says that a drain may delete the VM.
func (v *VM) Ephemeral() bool { return v.Warm || v.ExpiresAt != 0 }

// Live says that the VM still holds its name.
func (v *VM) Live() bool { return v.State != api.StateDeleting }

// NeedsOrder says that the node has to be told something.
func (v *VM) NeedsOrder() bool {
	if v.State == api.StateUnknown || v.State == api.StateLost {
		return false
	}
	return v.State == api.StateDeleting || v.Move != "" || v.Told < v.Order
}

// takesMemory says that the VM uses its host's memory, or may at any moment.
func (v *VM) takesMemory() bool {
	return v.State != api.StateFailed && v.State != api.StateLost && !v.Down
}

// isMacOS counts toward the two per Mac.
func (v *VM) isMacOS() bool { return v.GuestOS == api.GuestMacOS && !v.isDown() }

// isDown says that the VM does not run. Deleting one that does not must not make it count again.
func (v *VM) isDown() bool {
	return v.State == api.StateFailed || v.State == api.StateLost || v.State == api.StateStopped || v.Down
}

// end makes the row that of a VM whose end was asked for at the index.
func (v *VM) end(index uint64, reason string) {
	v.Down = v.isDown()
	v.State, v.Reason, v.Order, v.HandOver, v.Launch = api.StateDeleting, reason, index, false, nil
	v.Claim, v.Move = nil, ""
}

// isBooting says that the host is busy starting it.
func (v *VM) isBooting() bool { return v.State == api.StatePlaced || v.State == api.StateBooting }

// WarmState is booting or ready for a spare, else empty.
func (v *VM) WarmState() string {
	switch {
	case !v.Warm || v.State == api.StateDeleting:
		return ""
	case v.FailedAt != 0:
		return string(api.StateFailed)
	case v.SpareSince != 0 && v.State == api.StateRunning:
		return "ready"
	case v.isBooting(), v.State == api.StateRunning:
		return "booting"
	}
	return string(v.State)
}

// Claim is what a guest is to be given by its agent. It stays in the row until the node has confirmed that. Of secrets
// it has the names: their values are in the leader's memory and nowhere else.
type Claim struct {
	Hostname       string            `json:"hostname,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	Files          []api.ClaimFile   `json:"files,omitempty"`
	Secrets        []string          `json:"secrets,omitempty"`
	RotateIdentity bool              `json:"rotate_identity,omitempty"`
}

// Boot holds the parts of a launch that only its create order needs. It is dropped once the node has confirmed.
type Boot struct {
	CloudInit       *api.CloudInit     `json:"cloud_init,omitempty"`
	Network         *api.Network       `json:"network,omitempty"`
	Networks        []api.NetworkRef   `json:"networks,omitempty"`
	Apple           *api.Apple         `json:"apple,omitempty"`
	ExtraDisks      []api.ExtraDisk    `json:"extra_disks,omitempty"`
	SecurityProfile string             `json:"security_profile,omitempty"`
	Balloon         *api.BalloonDevice `json:"balloon,omitempty"`
}

// Operation is one keyed request: its effect, by reference. A repeat finds it and has none of its own.
type Operation struct {
	Scope  string   `json:"scope"`
	Key    string   `json:"key"`
	Digest string   `json:"digest"` // of method, path and body
	At     api.Time `json:"at"`
	Ref    string   `json:"ref"` // id or name of what the request made or changed

	// The rest is set for launches only, and answers a repeat even after the VM is gone.
	Name       string `json:"name,omitempty"`
	Image      string `json:"image,omitempty"`
	Node       string `json:"node,omitempty"`
	Warm       bool   `json:"warm,omitempty"`
	Pool       string `json:"pool,omitempty"`
	ClaimMS    int64  `json:"claim_ms,omitempty"`
	ColdReason string `json:"cold_reason,omitempty"`
	GuestOS    string `json:"guest_os,omitempty"`
	VCPUs      int    `json:"vcpus,omitempty"`
	MemoryMiB  int64  `json:"memory_mib,omitempty"`
	DiskGiB    int64  `json:"disk_gib,omitempty"`
}

// Activity is one entry of who did what.
type Activity struct {
	Seq     uint64            `json:"seq"`
	At      api.Time          `json:"at"`
	Tenant  string            `json:"tenant,omitempty"`
	Actor   string            `json:"actor"`
	Action  string            `json:"action"`
	Target  string            `json:"target"`
	Outcome string            `json:"outcome"`
	Detail  map[string]string `json:"detail,omitempty"`
}

// JoinToken lets a node or replica in. Only its hash is kept.
type JoinToken struct {
	ID          string   `json:"id"`
	Hash        string   `json:"hash"`
	Kind        string   `json:"kind"`
	NamePattern string   `json:"name_pattern"`
	UsesLeft    int      `json:"uses_left"`
	ExpiresAt   api.Time `json:"expires_at"`
}

// Tenant is one who owns VMs, pools and leases.
type Tenant struct {
	Name       string    `json:"name"`
	Quota      api.Quota `json:"quota"`
	DefaultTTL *int64    `json:"default_ttl,omitempty"` // seconds
	MaxTTL     *int64    `json:"max_ttl,omitempty"`     // seconds
	CreatedAt  api.Time  `json:"created_at"`

	Policy  api.TenantPolicy `json:"policy,omitzero"` // where it differs from the fleet's
	Version uint64           `json:"version"`
}

// Key is an API key. Only its hash is kept.
type Key struct {
	ID         string   `json:"id"`
	Tenant     string   `json:"tenant,omitempty"` // empty: an operator's
	Role       string   `json:"role"`
	Hash       string   `json:"hash"`
	CreatedAt  api.Time `json:"created_at"`
	ExpiresAt  api.Time `json:"expires_at"`
	LastUsedAt api.Time `json:"last_used_at"`
}

// Good says whether the key may be used at the time.
func (k *Key) Good(now api.Time) bool { return k.ExpiresAt == 0 || now < k.ExpiresAt }

// Policy is the one row of what the operator allows.
type Policy struct {
	api.Policy
}

// Prices is the one row of what is charged.
type Prices struct {
	api.Prices
}

// Lease gives whole hosts to one tenant. Node.Lease is its other end.
type Lease struct {
	ID          string         `json:"id"`
	Tenant      string         `json:"tenant"`
	Nodes       []string       `json:"nodes"`
	State       api.LeaseState `json:"state"`
	StartsAt    api.Time       `json:"starts_at"`
	EndsAt      api.Time       `json:"ends_at"`
	EarliestEnd api.Time       `json:"earliest_end"`
	LengthMS    int64          `json:"length_ms"` // what a renewal adds
	AutoRenew   bool           `json:"auto_renew,omitempty"`
	Until       bool           `json:"until,omitempty"`     // EndsAt was named rather than the length: it stays while the lease is pending
	EndAsked    bool           `json:"end_asked,omitempty"` // to end as soon as its minimum term allows
	Reason      string         `json:"reason,omitempty"`
	Scrubs      []Scrub        `json:"scrubs,omitempty"`
	CreatedAt   api.Time       `json:"created_at"`
	Version     uint64         `json:"version"`
}

// Scrub is the cleaning of one of a lease's hosts.
type Scrub struct {
	Node      string   `json:"node"`
	State     string   `json:"state"`
	Order     uint64   `json:"order"` // the fencing token's OP
	StartedAt api.Time `json:"started_at"`
	Reason    string   `json:"reason,omitempty"`
}

// Live says that the lease still holds hosts.
func (l *Lease) Live() bool { return l.State != api.LeaseEnded }

// LedgerRow is one billed stretch. Tenant is empty for the operator's.
type LedgerRow struct {
	Seq       uint64   `json:"seq"`
	Tenant    string   `json:"tenant,omitempty"`
	Kind      string   `json:"kind"`
	VMID      string   `json:"vm_id,omitempty"`
	LeaseID   string   `json:"lease_id,omitempty"`
	Name      string   `json:"name"`
	Node      string   `json:"node,omitempty"`
	Pool      string   `json:"pool,omitempty"`
	GuestOS   string   `json:"guest_os,omitempty"`
	VCPUs     int      `json:"vcpus"`
	MemoryMiB int64    `json:"memory_mib"`
	StartedAt api.Time `json:"started_at"`
	EndedAt   api.Time `json:"ended_at"`
	EndReason string   `json:"end_reason,omitempty"`
	Rate      api.Rate `json:"rate"`
	Amount    int64    `json:"amount_micros"`
}
