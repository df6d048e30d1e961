package api

import (
	"maps"
	"slices"
	"strings"
)

// Headers of orders that central gives to nodes, and of the fleet API.
const (
	HeaderFencing        = "X-Fluxvm-Fencing-Token" // EPOCH.TERM.OP
	HeaderDefer          = "X-Fluxvm-Defer"         // 0: answer pressure at once
	HeaderIndex          = "X-Fluxvm-Index"
	HeaderLastContact    = "X-Fluxvm-Last-Contact" // ms
	HeaderIdempotencyKey = "Idempotency-Key"
	HeaderReplayed       = "Idempotent-Replayed"
	HeaderRequestID      = "X-Request-Id"
)

// BearerToken is the token of an Authorization header. The scheme may be written in any case.
func BearerToken(header string) (token string, ok bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return token, ok && strings.EqualFold(scheme, "bearer")
}

// Backends: the ways of running a machine.
const (
	BackendAuto    = "auto"
	BackendVZ      = "vz"
	BackendFluxVM  = "flux-vm"
	BackendQEMU    = "qemu"
	BackendProcbox = "procbox"
	BackendSim     = "sim"
)

// MachineRequest is the body of POST /v1/vms on a node. The caller chooses the id; a repeated create with the
// same id answers with the machine as it is.
type MachineRequest struct {
	ID              string            `json:"id"` // a UUID
	Name            string            `json:"name"`
	Backend         string            `json:"backend,omitempty"` // empty: auto
	Image           string            `json:"image,omitempty"`   // a path or a name the backend understands
	GuestOS         string            `json:"guest_os,omitempty"`
	VCPUs           int               `json:"vcpus,omitempty"` // 1
	MemoryMiB       int64             `json:"memory_mib"`
	DiskSizeGiB     int64             `json:"disk_size_gib,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	ExpiresInMS     *int64            `json:"expires_in_ms,omitempty"` // counted on the node's monotonic clock
	NoAgent         bool              `json:"no_agent,omitempty"`      // the image has no guest agent
	CloudInit       *CloudInit        `json:"cloud_init,omitempty"`
	Network         *Network          `json:"network,omitempty"`
	Networks        []NetworkRef      `json:"networks,omitempty"`
	Apple           *Apple            `json:"apple,omitempty"`
	ExtraDisks      []ExtraDisk       `json:"extra_disks,omitempty"`
	SecurityProfile string            `json:"security_profile,omitempty"`
	Balloon         *BalloonDevice    `json:"balloon,omitempty"`
	Hugepages       bool              `json:"hugepages,omitempty"`
	VFIODevices     []string          `json:"vfio_devices,omitempty"`
	Reschedulable   bool              `json:"reschedulable,omitempty"` // it runs only while the host hears the fleet, which may boot it elsewhere
}

// WithoutForwards is the network with no port of the host taken; nil stays nil.
func (n *Network) WithoutForwards() *Network {
	if n == nil {
		return nil
	}
	out := *n
	out.Forwards = nil
	if out.Mode == "" && len(n.Forwards) > 0 {
		out.Mode = "nat" // it has a device because of its forwards
	}
	return &out
}

// Machine is a VM as its node shows it (GET /v1/vms/{id}).
type Machine struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Backend     string            `json:"backend"`
	Image       string            `json:"image"`
	GuestOS     string            `json:"guest_os"`
	VCPUs       int               `json:"vcpus"`
	MemoryMiB   int64             `json:"memory_mib"`
	DiskSizeGiB int64             `json:"disk_size_gib"`
	State       VMState           `json:"state"`
	Reason      string            `json:"reason,omitempty"`
	Labels      map[string]string `json:"labels"`
	IP          string            `json:"ip,omitempty"`
	Agent       bool              `json:"agent"`               // the guest agent has answered
	CanClaim    bool              `json:"can_claim,omitempty"` // and it can take a claim
	CreatedAt   Time              `json:"created_at"`
	StartedAt   Time              `json:"started_at"`
	ReadyAt     Time              `json:"ready_at"`
	ExpiresAt   Time              `json:"expires_at"` // for show; the deadline itself is counted monotonically
}

// MachinePatch is the merge patch of PATCH /v1/vms/{id}. A null label is removed; a null deadline is taken off.
type MachinePatch struct {
	Name        Optional[string]             `json:"name,omitzero"`
	Labels      Optional[map[string]*string] `json:"labels,omitzero"`
	ExpiresInMS Optional[int64]              `json:"expires_in_ms,omitzero"`
	// Claim is given to the guest by its agent before the rest is done. It is stored nowhere.
	Claim *GuestClaim `json:"claim,omitempty"`
}

// Check refuses values that no machine could have. FluxVM's own labels are allowed: central sets them.
func (p *MachinePatch) Check() error {
	if p.Name.Set {
		if err := CheckName("name", p.Name.V, MaxVMName); err != nil {
			return err
		}
	}
	if p.ExpiresInMS.Set && !p.ExpiresInMS.Null && (p.ExpiresInMS.V < 0 || p.ExpiresInMS.V > MaxTTLSeconds*1000) {
		return Invalid("expires_in_ms", "expires_in_ms must be from 0 to %d, or null for no deadline", int64(MaxTTLSeconds)*1000)
	}
	if p.Labels.Null {
		return Invalid("labels", "labels cannot be null, for FluxVM's own are among them; name each label that is to go, with null")
	}
	if len(p.Labels.V) > 2*MaxLabels {
		return Invalid("labels", "labels may hold %d changes at most", 2*MaxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(p.Labels.V)) {
		v := ""
		if p.Labels.V[k] != nil {
			v = *p.Labels.V[k]
		}
		if err := checkLabel("labels", k, v); err != nil {
			return err
		}
	}
	if p.Claim != nil {
		return p.Claim.Check()
	}
	return nil
}

// HostMemory is GET /v1/host/memory.
type HostMemory struct {
	MemTotalMiB     int64   `json:"mem_total_mib"`
	MemAvailableMiB int64   `json:"mem_available_mib"`
	PSI             *PSI    `json:"psi"` // null where the kernel has none
	PressureLevel   *string `json:"pressure_level"`
}

// PSI is memory pressure stall information, in percent over ten seconds.
type PSI struct {
	SomeAvg10 float64 `json:"some_avg10"`
	FullAvg10 float64 `json:"full_avg10"`
}
