package api

// Why a host was ruled out, as counted in reasons.
const (
	WhyLabel      = "label"
	WhyCPU        = "cpu"
	WhyMemory     = "memory"
	WhyPressure   = "pressure"
	WhyMacOSLimit = "macos_limit"
	WhyPort       = "port"
	WhyLeased     = "leased"
	WhyCordoned   = "cordoned"
	WhyScrub      = "scrub"
	WhyImage      = "image"
	WhyBackend    = "backend"
	WhyUnhealthy  = "unhealthy"
	WhyStartLimit = "start_limit"
)

// MacOSPerHost is how many macOS guests Apple's licence allows on one Mac.
const MacOSPerHost = 2

// NodeState is how central sees a host.
type NodeState string

// The states of a node.
const (
	NodeHealthy     NodeState = "healthy"
	NodeSuspect     NodeState = "suspect"     // silent for 30 s: nothing new, nothing handed out
	NodeUnreachable NodeState = "unreachable" // silent for 5 min: its VMs are unknown
	NodeLost        NodeState = "lost"
)

// Memory pressure levels of a host.
const (
	PressureNormal   = "normal"
	PressureWarn     = "warn"
	PressureCritical = "critical"
)

// Density is a host's load as of its last beat (GET /v1/sandboxes/density).
type Density struct {
	HostPressureLevel   *string `json:"host_pressure_level"` // null where the host has no such level
	HostMemAvailableMiB int64   `json:"host_mem_available_mib"`
	WarmSlotsReady      int     `json:"warm_slots_ready"`
	ActiveSandboxes     int     `json:"active_sandboxes"`
	PausedSandboxes     int     `json:"paused_sandboxes"`
	HibernatedSandboxes int     `json:"hibernated_sandboxes"`
}

// AppleHost is what only a Mac reports.
type AppleHost struct {
	Chip        string `json:"chip,omitempty"`
	MacOSGuests int    `json:"macos_guests"`
	MacOSLimit  int    `json:"macos_limit"`
}

// Capabilities are what a node's daemon can do.
type Capabilities struct {
	Rename bool `json:"rename"`
	Claim  bool `json:"claim,omitempty"` // it gives claims to guests
}

// Words of Node.Confinement: what holds the processes of a backend's VMs on the host.
const (
	ConfinedByUser         = "own_user"        // each VM's are a user of their own
	ConfinedByFiles        = "own_files"       // they see their VM's files and no other
	ConfinedByFilter       = "syscall_filter"  // the kernel answers only what such a VM needs
	ConfinedByNamespaces   = "namespaces"      // they see no other process, mount or network
	ConfinedByCapabilities = "no_capabilities" // root among them is nobody's root
	ConfinedByGroup        = "cgroup_"         // and the control group's controller that bounds them: memory, pids, cpu
)

// Node is a host. Free amounts are what placement may still use: total × overcommit less what is placed there.
type Node struct {
	Name           string            `json:"name"`
	UUID           string            `json:"uuid"`
	URL            string            `json:"url"`
	State          NodeState         `json:"state"`
	Reason         string            `json:"reason,omitempty"`
	Cordoned       bool              `json:"cordoned"`
	CordonedBy     string            `json:"cordoned_by,omitempty"`
	Draining       bool              `json:"draining"`
	Drain          *NodeDrain        `json:"drain,omitempty"` // of the drain under way
	Lease          *string           `json:"lease"`
	Backends       []string          `json:"backends"`
	Capabilities   Capabilities      `json:"capabilities"`
	VCPUsTotal     int               `json:"vcpus_total"`
	MemoryMiBTotal int64             `json:"memory_mib_total"`
	CPUOvercommit  int               `json:"cpu_overcommit"`
	VMCount        int               `json:"vm_count"`
	FreeVCPUs      int               `json:"free_vcpus"`
	FreeMemoryMiB  int64             `json:"free_memory_mib"`
	FreeMacOS      int               `json:"free_macos_guests"`
	Labels         map[string]string `json:"labels"`
	Density        Density           `json:"density"`
	Apple          *AppleHost        `json:"apple"`

	// Confinement is what holds the processes of each backend's VMs, in the words of ConfinedByUser and on; as last reported.
	Confinement map[string][]string `json:"confinement,omitempty"`

	LastSeenAt Time   `json:"last_seen_at"`
	Version    uint64 `json:"version"`
}

// NodeDrain is how far a drain is. What blocks it stays until somebody deletes it, or the drain is forced.
type NodeDrain struct {
	By        string         `json:"by"`
	StartedAt Time           `json:"started_at"`
	Deadline  Time           `json:"deadline"` // null: none
	Force     bool           `json:"force"`
	Done      bool           `json:"done"`
	Overdue   bool           `json:"overdue"` // the deadline has passed and VMs are left
	Total     int            `json:"total"`   // VMs that were there when it began
	ToDelete  int            `json:"to_delete"`
	ToMove    int            `json:"to_move"`
	Blocked   int            `json:"blocked"`
	Blocking  []DrainBlocker `json:"blocking"` // 50 of them at most
}

// DrainBlocker is a VM that a drain may not touch, and why.
type DrainBlocker struct {
	ID     string  `json:"id"`
	Name   string  `json:"name"`
	Tenant *string `json:"tenant"`
	Why    string  `json:"why"`
}

// DrainRequest is the body of POST /fleet/nodes/{name}/drain.
type DrainRequest struct {
	Reason          *string `json:"reason,omitempty"`
	DeadlineSeconds int64   `json:"deadline_seconds,omitempty"` // 0: none
	Force           bool    `json:"force,omitempty"`            // at the deadline, or at once without one, delete what blocks
}

// MaxDrainSeconds is the longest deadline of a drain.
const MaxDrainSeconds = 30 * 24 * 3600

// NodePatch is the merge patch of PATCH /fleet/nodes/{name}.
type NodePatch struct {
	Cordoned Optional[bool]   `json:"cordoned,omitzero"`
	Reason   Optional[string] `json:"reason,omitzero"`
}

// Capacity sums up the fleet (GET /fleet/capacity).
type Capacity struct {
	Nodes          int   `json:"nodes"`
	Healthy        int   `json:"healthy"`
	VCPUsTotal     int   `json:"vcpus_total"` // with overcommit
	VCPUsFree      int   `json:"vcpus_free"`
	MemoryMiBTotal int64 `json:"memory_mib_total"`
	MemoryMiBFree  int64 `json:"memory_mib_free"`
	MacOSTotal     int   `json:"macos_guests_total"`
	MacOSFree      int   `json:"macos_guests_free"`
	VMs            int   `json:"vms"`
}

// Register is the body of POST /fleet/register: registration and heartbeat in one, sent to every replica.
// VMs is there when the list differs from what this replica last acknowledged by digest.
type Register struct {
	Name           string            `json:"name"`
	UUID           string            `json:"uuid"`     // of the host's data directory; survives restarts
	BootID         string            `json:"boot_id"`  // changes when the host boots
	Instance       string            `json:"instance"` // changes when the daemon starts
	Seq            uint64            `json:"seq"`      // counts the beats of one instance
	URL            string            `json:"url"`      // where the node's own API answers
	Version        string            `json:"version,omitempty"`
	Backends       []string          `json:"backends"` // the first is what "auto" means here
	Capabilities   Capabilities      `json:"capabilities"`
	VCPUsTotal     int               `json:"vcpus_total"`
	MemoryMiBTotal int64             `json:"memory_mib_total"`
	CPUOvercommit  int               `json:"cpu_overcommit"`
	VMCount        int               `json:"vm_count"`
	Labels         map[string]string `json:"labels"`
	Density        Density           `json:"density"`
	Apple          *AppleHost        `json:"apple"`

	Confinement map[string][]string `json:"confinement,omitempty"`

	Images     []string     `json:"images"`
	VMsDigest  string       `json:"vms_digest"`
	VMs        []ReportedVM `json:"vms,omitempty"`
	HasVMs     bool         `json:"has_vms,omitempty"`    // vms is the whole list, also when it is empty
	Credential string       `json:"credential,omitempty"` // the node's own secret, sent with a join token only

	CertificateRequest string `json:"certificate_request,omitempty"` // PEM; while the node wants central to sign its certificate
}

// ReportedVM is one VM of a node's report. A VM that ended is reported for an hour with state gone and why.
type ReportedVM struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	State      VMState `json:"state"`
	Reason     string  `json:"reason,omitempty"`
	GuestOS    string  `json:"guest_os,omitempty"`
	VCPUs      int     `json:"vcpus"`
	MemoryMiB  int64   `json:"memory_mib"`
	IP         string  `json:"ip,omitempty"`
	Agent      bool    `json:"agent"`                  // the guest agent has answered since it last started
	CanClaim   bool    `json:"can_claim,omitempty"`    // and it can take a claim
	Cluster    string  `json:"cluster,omitempty"`      // of the central that ordered it; empty for one made on the host
	EndedMSAgo int64   `json:"ended_ms_ago,omitempty"` // for state gone
}

// RegisterAnswer tells the node when to beat next and where all replicas are.
type RegisterAnswer struct {
	OK       bool     `json:"ok"`
	NextInMS int64    `json:"next_in_ms"`
	WantVMs  bool     `json:"want_vms"`
	Replicas []string `json:"replicas"`

	Certificate string `json:"certificate,omitempty"` // PEM, the answer to a request for one
	LeaseMS     int64  `json:"lease_ms,omitempty"`    // how long from this beat on VMs that may boot elsewhere may run there
}

// JoinTokenRequest is the body of POST /fleet/join-tokens. Kind is node or replica.
type JoinTokenRequest struct {
	Kind          string `json:"kind"`
	NamePattern   string `json:"name_pattern,omitempty"`    // a shell pattern; default *
	Uses          int    `json:"uses,omitempty"`            // 1
	ExpiresInSecs int64  `json:"expires_in_secs,omitempty"` // 3600
}

// JoinToken is the answer; Token is shown once.
type JoinToken struct {
	ID          string `json:"id"`
	Token       string `json:"token"`
	Kind        string `json:"kind"`
	NamePattern string `json:"name_pattern"`
	Uses        int    `json:"uses"`
	ExpiresAt   Time   `json:"expires_at"`
}
