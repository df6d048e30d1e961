package api

// Limits of warm pools.
const (
	MaxPools          = 64
	MaxPoolsPerTenant = 8
	MaxMinReady       = 32
	MaxMaxTotal       = 100
)

// When a pool counts a spare as ready.
const (
	ReadinessAgent   = "agent"   // the guest agent answered
	ReadinessRunning = "running" // the node says running
)

// PoolState sums up a pool.
type PoolState string

// The states of a pool.
const (
	PoolReady      PoolState = "ready" // min_ready spares are ready
	PoolFilling    PoolState = "filling"
	PoolBackingOff PoolState = "backing_off"
	PoolPaused     PoolState = "paused" // min_ready is 0
)

// Why a pool waits, in status.wait_reason.
const (
	WaitNoCapacity = "no_capacity"
	WaitBootFailed = "boot_failed"
	WaitMaxTotal   = "max_total"
	WaitMacOSLimit = "macos_limit"
	WaitPressure   = "pressure"
	WaitImage      = "image"
	WaitQuota      = "quota"
)

// Size is what one VM of a pool takes. DiskSizeGiB is left out when the image decides.
type Size struct {
	VCPUs       int   `json:"vcpus"`
	MemoryMiB   int64 `json:"memory_mib"`
	DiskSizeGiB int64 `json:"disk_size_gib,omitempty"`
}

// PoolRequest is the body of POST /fleet/pools. Nil numbers take their defaults.
type PoolRequest struct {
	Name         string            `json:"name"`
	Image        string            `json:"image"`
	Tenant       string            `json:"tenant,omitempty"` // operator only
	MinReady     *int              `json:"min_ready,omitempty"`
	MaxTotal     *int              `json:"max_total,omitempty"`
	VCPUs        int               `json:"vcpus,omitempty"`
	MemoryMiB    int64             `json:"memory_mib,omitempty"`
	DiskSizeGiB  int64             `json:"disk_size_gib,omitempty"`
	NodeSelector map[string]string `json:"node_selector,omitempty"`
	Nodes        []string          `json:"nodes,omitempty"`
	Readiness    string            `json:"readiness,omitempty"`

	KeepFailedSeconds int64 `json:"keep_failed_seconds,omitempty"` // how long the last failed spare is kept for its console
	MaxAgeSeconds     int64 `json:"max_age_seconds,omitempty"`     // a ready spare older than that is replaced; 0: never
	RotateIdentity    bool  `json:"rotate_identity,omitempty"`     // a taken VM gets a machine id and SSH host keys of its own
}

// PoolPatch is the merge patch of PATCH /fleet/pools/{name}. Null puts a field back to its default.
type PoolPatch struct {
	MinReady     Optional[int]               `json:"min_ready,omitzero"`
	MaxTotal     Optional[int]               `json:"max_total,omitzero"`
	NodeSelector Optional[map[string]string] `json:"node_selector,omitzero"`
	Nodes        Optional[[]string]          `json:"nodes,omitzero"`

	KeepFailedSeconds Optional[int64] `json:"keep_failed_seconds,omitzero"`
	MaxAgeSeconds     Optional[int64] `json:"max_age_seconds,omitzero"`
}

// RollRequest is the body of POST /fleet/pools/{name}/roll.
type RollRequest struct {
	Image          string `json:"image,omitempty"`           // required unless Abort
	Abort          bool   `json:"abort,omitempty"`           // go back to the image that the pool rolls away from
	MaxUnavailable *int   `json:"max_unavailable,omitempty"` // 1
	StaleUse       string `json:"stale_use,omitempty"`       // allow (default) or never
}

// Pool is a warm pool with its status and its spares.
type Pool struct {
	Name         string            `json:"name"`
	Owner        string            `json:"owner"`  // the tenant, or "operator"
	Tenant       *string           `json:"tenant"` // null: shared
	Image        string            `json:"image"`
	GuestOS      string            `json:"guest_os"`
	Size         Size              `json:"size"`
	MinReady     int               `json:"min_ready"`
	MaxTotal     int               `json:"max_total"`
	MaxTotalSet  bool              `json:"max_total_set"` // else max_total follows min_ready
	NodeSelector map[string]string `json:"node_selector"`
	Nodes        []string          `json:"nodes"`
	Readiness    string            `json:"readiness"`

	KeepFailedSeconds int64 `json:"keep_failed_seconds"`
	MaxAgeSeconds     int64 `json:"max_age_seconds"`
	RotateIdentity    bool  `json:"rotate_identity"`

	CreatedAt Time       `json:"created_at"`
	Version   uint64     `json:"version"`
	Status    PoolStatus `json:"status"`
	Warm      []WarmVM   `json:"warm"`
	Note      string     `json:"note,omitempty"` // advice, at creation
}

// PoolStatus is what GET /fleet/pools/{name}/status answers.
type PoolStatus struct {
	State          PoolState      `json:"state"`
	Ready          int            `json:"ready"`
	Booting        int            `json:"booting"`
	Stale          int            `json:"stale"` // spares booted from an image the pool has rolled away from
	ClaimedRunning int            `json:"claimed_running"`
	Claimed24h     int64          `json:"claimed_24h"`
	AvgClaimMS     int64          `json:"avg_claim_ms"`
	Cold24h        int64          `json:"cold_24h"`      // launches that matched and booted normally
	WarmHitRate    *float64       `json:"warm_hit_rate"` // of those that matched, from 0 to 1; null without any
	Roll           *Roll          `json:"roll"`          // null unless it rolls to another image
	LastClaimAt    Time           `json:"last_claim_at"`
	LastFillAt     Time           `json:"last_fill_at"`
	LastError      *string        `json:"last_error"`
	BackoffUntil   Time           `json:"backoff_until"`
	WaitReason     *string        `json:"wait_reason"`
	Reasons        map[string]int `json:"reasons,omitempty"`
}

// Roll is a roll under way. State is rolling or paused.
type Roll struct {
	Image string `json:"image"`
	From  string `json:"from"`
	State string `json:"state"`
}

// The states of a roll.
const (
	RollRolling = "rolling"
	RollPaused  = "paused" // the new image failed to boot twice in a row; spares of the old one are kept
)

// WarmVM is a spare of a pool. State is booting or ready, or failed for one that is kept for its console.
type WarmVM struct {
	Node  string `json:"node"`
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"`
	Image string `json:"image"`
	Since Time   `json:"since"`

	Reason string `json:"reason,omitempty"` // why it failed
}
