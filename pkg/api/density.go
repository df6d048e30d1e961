package api

import "fmt"

// BalloonFloorMiB is what a balloon must leave to its guest.
const BalloonFloorMiB = 64

// LabelSandbox marks a VM that is a sandbox; LabelSandboxSlot one that waits to become one.
const (
	LabelSandbox     = "fluxvm.dev/sandbox"
	LabelSandboxSlot = "fluxvm.dev/sandbox-slot"
)

// Why a balloon's actual size stays behind its target.
const (
	BalloonAbsent = "absent" // it never moved: the guest has no balloon driver, or has not loaded it
	BalloonStuck  = "stuck"  // it moved and then stopped short
)

// Balloon is GET /v1/vms/{id}/balloon. Target and actual are what is taken from the guest.
type Balloon struct {
	MemoryMiB int64  `json:"memory_mib"`
	TargetMiB int64  `json:"target_mib"`
	ActualMiB *int64 `json:"actual_mib"`               // null where the backend cannot tell
	Driver    string `json:"balloon_driver,omitempty"` // absent or stuck, once the guest did not follow
}

// BalloonRequest is the body of POST /v1/vms/{id}/balloon.
type BalloonRequest struct {
	BalloonMiB *int64 `json:"balloon_mib"` // required; 0 deflates
}

// MemoryReport is GET /v1/vms/{id}/memory.
type MemoryReport struct {
	VMID          string       `json:"vm_id"`
	ConfiguredMiB int64        `json:"configured_mib"`
	Usage         *MemoryUsage `json:"usage"`           // null without a process of the VM's own
	Balloon       *Balloon     `json:"balloon"`         // null without a balloon
	Guest         *GuestMemory `json:"guest,omitempty"` // absent until the guest has told
}

// MemoryUsage is what the VM's processes hold, as the kernel's smaps_rollup counts it.
type MemoryUsage struct {
	RSSKiB     int64 `json:"rss_kib"`
	PSSKiB     int64 `json:"pss_kib"` // private pages and this VM's share of shared ones: the number to add up
	PrivateKiB int64 `json:"private_kib"`
	SharedKiB  int64 `json:"shared_kib"`
	SwapKiB    int64 `json:"swap_kib"`
}

// GuestMemory is what the guest's balloon driver last told of its own memory.
type GuestMemory struct {
	TotalMiB     int64 `json:"total_mib"`
	FreeMiB      int64 `json:"free_mib"`
	AvailableMiB int64 `json:"available_mib"`
	UpdatedAt    Time  `json:"updated_at"`
}

// ForkRequest is the body of POST /v1/vms/{id}/fork. An empty id gets a random one; with a count above 1 neither
// id nor name may be given.
type ForkRequest struct {
	ID          string            `json:"id,omitempty"`
	Name        string            `json:"name,omitempty"`
	Count       int               `json:"count,omitempty"` // 1; the copies share their memory until they write to it
	Labels      map[string]string `json:"labels,omitempty"`
	ExpiresInMS *int64            `json:"expires_in_ms,omitempty"`
}

// MaxForks is how many copies one fork makes at most.
const MaxForks = 32

// Check refuses what no fork could be.
func (r *ForkRequest) Check() error {
	switch {
	case r.Count < 0 || r.Count > MaxForks:
		return Invalid("count", "count must be from 1 to %d", MaxForks)
	case r.Count > 1 && (r.ID != "" || r.Name != ""):
		return Invalid("count", "id and name are for one copy; leave them out, or count")
	}
	m := MachineRequest{ID: r.ID, Name: r.Name, MemoryMiB: 1, Labels: r.Labels, ExpiresInMS: r.ExpiresInMS}
	if m.ID == "" {
		m.ID = "00000000-0000-0000-0000-000000000000"
	}
	return first(m.Check(), checkExpiry(r.ExpiresInMS))
}

func checkExpiry(ms *int64) error {
	if ms != nil && (*ms < 0 || *ms > MaxTTLSeconds*1000) {
		return Invalid("expires_in_ms", "expires_in_ms must be from 0 to %d", int64(MaxTTLSeconds)*1000)
	}
	return nil
}

// SnapshotRequest is the body of POST /v1/vms/{id}/snapshot.
type SnapshotRequest struct {
	Name string `json:"name"` // VMs start from it as image snapshot:NAME
}

// Snapshot is a running VM written down, from which others start.
type Snapshot struct {
	Name        string `json:"name"`
	Image       string `json:"image"` // what a create gives to start from it
	Backend     string `json:"backend"`
	VCPUs       int    `json:"vcpus"`
	MemoryMiB   int64  `json:"memory_mib"`
	DiskSizeGiB int64  `json:"disk_size_gib"`
	CreatedAt   Time   `json:"created_at"`
}

// SnapshotImage begins an image that is a snapshot.
const SnapshotImage = "snapshot:"

// SandboxProfile is a size that a sandbox may have by name.
type SandboxProfile struct {
	Name      string
	VCPUs     int
	MemoryMiB int64
}

// SandboxProfiles are the profiles there are, smallest first.
var SandboxProfiles = [...]SandboxProfile{{"tiny", 1, 128}, {"small", 1, 256}, {"standard", 2, 512}}

// DefaultSandboxProfile is what a sandbox is without a profile or a size.
const DefaultSandboxProfile = "small"

// FindSandboxProfile is the profile of the name; the default for none.
func FindSandboxProfile(name string) (SandboxProfile, error) {
	if name == "" {
		name = DefaultSandboxProfile
	}
	for _, p := range SandboxProfiles {
		if p.Name == name {
			return p, nil
		}
	}
	return SandboxProfile{}, Invalid("profile", "profile must be tiny, small or standard, not %s", shown(name))
}

func shown(name string) string {
	if len(name) > 32 {
		name = name[:32] + "…"
	}
	return fmt.Sprintf("%q", name)
}

// SandboxRequest is the body of POST /v1/sandboxes: a machine, of which a profile gives the size and the host's
// configuration the image where they are left out. Without an id a warm slot may be taken.
type SandboxRequest struct {
	MachineRequest
	Profile    string `json:"profile,omitempty"`
	TTLSeconds int64  `json:"ttl_seconds,omitempty"` // 0: until it is deleted
}
