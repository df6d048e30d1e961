package api

import (
	"strconv"
	"strings"
	"time"
)

// LeaseState is where a lease is in its life.
type LeaseState string

// The states of a lease: pending → active → ending → scrubbing → ended, and scrub_failed beside scrubbing.
const (
	LeasePending     LeaseState = "pending"   // waits until others' VMs are off its hosts
	LeaseActive      LeaseState = "active"    // its hosts are the tenant's alone
	LeaseEnding      LeaseState = "ending"    // the tenant's VMs are being deleted
	LeaseScrubbing   LeaseState = "scrubbing" // its hosts are being cleaned
	LeaseScrubFailed LeaseState = "scrub_failed"
	LeaseEnded       LeaseState = "ended" // its hosts are free
)

// Lease gives whole hosts to one tenant.
type Lease struct {
	ID          string     `json:"id"`
	Tenant      string     `json:"tenant"`
	Nodes       []string   `json:"nodes"`
	State       LeaseState `json:"state"`
	StartsAt    Time       `json:"starts_at"` // null while pending
	EndsAt      Time       `json:"ends_at"`
	EarliestEnd Time       `json:"earliest_end"`
	AutoRenew   bool       `json:"auto_renew"`
	Reason      string     `json:"reason,omitempty"`
	BlockedBy   []string   `json:"blocked_by"` // ids of the VMs it waits for
	Scrubs      []Scrub    `json:"scrubs,omitempty"`
	CreatedAt   Time       `json:"created_at"`
	Version     uint64     `json:"version"`
}

// Scrub is the cleaning of one host after a lease. State is running, done or failed.
type Scrub struct {
	Node      string `json:"node"`
	State     string `json:"state"`
	StartedAt Time   `json:"started_at"`
	Reason    string `json:"reason,omitempty"`
}

// States of a scrub.
const (
	ScrubRunning = "running"
	ScrubDone    = "done"
	ScrubFailed  = "failed"
)

// LeaseRequest is the body of POST /fleet/leases: Node, or NodeSelector with Count; Duration or EndsAt.
type LeaseRequest struct {
	Tenant       string            `json:"tenant,omitempty"` // a tenant's key leaves it out
	Node         string            `json:"node,omitempty"`
	NodeSelector map[string]string `json:"node_selector,omitempty"`
	Count        int               `json:"count,omitempty"`
	Duration     string            `json:"duration,omitempty"` // 90m, 2h, 7d
	EndsAt       Time              `json:"ends_at,omitzero"`
	AutoRenew    bool              `json:"auto_renew,omitempty"`
	Drain        bool              `json:"drain,omitempty"`
}

// LeasePatch is the merge patch of PATCH /fleet/leases/{id}: it extends a lease, or turns renewal on or off.
type LeasePatch struct {
	EndsAt    Optional[Time] `json:"ends_at,omitzero"`
	AutoRenew Optional[bool] `json:"auto_renew,omitzero"`
}

// ScrubRequest is the body of POST /v1/scrub on a node: remove what VMs left behind, for the lease of that id.
type ScrubRequest struct {
	LeaseID string `json:"lease_id"`
	Tenant  string `json:"tenant,omitempty"`
}

// ScrubAnswer says that the host holds nothing of the lease any more.
type ScrubAnswer struct {
	LeaseID string `json:"lease_id"`
	Removed int    `json:"removed"` // directories and files that were left behind
}

// MaxLeaseDays bounds a lease's length, and how far ahead its end may be put.
const MaxLeaseDays = 3 * 366

// MaxLease is MaxLeaseDays as a duration.
const MaxLease = MaxLeaseDays * 24 * time.Hour

// ParseDuration reads 90s, 90m, 2h, 7d or sums of them such as 1d12h.
func ParseDuration(text string) (time.Duration, bool) {
	days, rest := time.Duration(0), text
	if before, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.Atoi(before)
		if err != nil || n < 0 || n > 100_000 {
			return 0, false
		}
		days, rest = time.Duration(n)*24*time.Hour, after
	}
	if rest == "" {
		return days, text != ""
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 {
		return 0, false
	}
	return days + d, true
}

// Check refuses a lease nobody could have.
func (r *LeaseRequest) Check() error {
	switch {
	case r.Tenant == "":
		return Invalid("tenant", "tenant is required: it is who gets the hosts")
	case (r.Node == "") == (r.NodeSelector == nil):
		return Invalid("node", "give node, or node_selector with count")
	case r.Node != "" && r.Count > 1:
		return Invalid("count", "count goes with node_selector; a node is one host")
	case r.Count < 0 || r.Count > 64:
		return Invalid("count", "count must be from 1 to 64")
	case (r.Duration == "") == (r.EndsAt == 0):
		return Invalid("duration", "give duration, such as 24h or 7d, or ends_at")
	}
	if r.Duration != "" {
		if d, ok := ParseDuration(r.Duration); !ok || d < time.Second || d > MaxLease {
			return Invalid("duration", "duration must be such as 90m, 2h or 7d, from a second to %d days", MaxLeaseDays)
		}
	}
	if r.Node != "" {
		return CheckNodeName("node", r.Node)
	}
	return CheckSelector("node_selector", r.NodeSelector)
}
