package api

import "encoding/json"

// VMState is where a VM is in its life: placed → booting → running → deleting → gone, and the states beside.
type VMState string

// The states of a VM, in the fleet and on its node.
const (
	StatePlaced   VMState = "placed"  // has a host; the host has not confirmed it yet
	StateBooting  VMState = "booting" // the host is starting it
	StateRunning  VMState = "running"
	StateDeleting VMState = "deleting"
	StateGone     VMState = "gone" // only in replayed answers and in a node's reports
	StateStopped  VMState = "stopped"
	StatePaused   VMState = "paused"
	StateFailed   VMState = "failed"
	StateUnknown  VMState = "unknown" // its host is silent
	StateLost     VMState = "lost"    // its host is gone for good
)

// Guest operating systems.
const (
	GuestLinux = "linux"
	GuestMacOS = "macos"
)

// Labels that FluxVM sets on the node's record of a VM.
const (
	LabelWarmPool    = "fluxvm.dev/warm-pool"
	LabelWarmClaimed = "fluxvm.dev/warm-claimed"
	LabelEphemeral   = "fluxvm.dev/ephemeral"
	LabelCluster     = "fluxvm.dev/cluster"  // the cluster that ordered the VM
	LabelDevNode     = "fluxvm.dev/dev-node" // on nodes started by `fluxvm-agent dev`
	LabelPrefix      = "fluxvm.dev/"         // users may not set labels below it
)

// VM is a virtual machine as the fleet API shows it. Memory is in MiB, disk in GiB.
type VM struct {
	ID            string            `json:"id"`
	Name          string            `json:"name"`
	Tenant        *string           `json:"tenant"` // null: the operator's
	Node          string            `json:"node"`
	Backend       string            `json:"backend"`
	Image         string            `json:"image"`
	GuestOS       string            `json:"guest_os"`
	VCPUs         int               `json:"vcpus"`
	MemoryMiB     int64             `json:"memory_mib"`
	DiskSizeGiB   int64             `json:"disk_size_gib"`
	State         VMState           `json:"state"`
	Reason        string            `json:"reason,omitempty"`
	Labels        map[string]string `json:"labels"`
	CreatedAt     Time              `json:"created_at"`
	ReadyAt       Time              `json:"ready_at"` // when the guest agent first answered
	ExpiresAt     Time              `json:"expires_at"`
	IP            string            `json:"ip,omitempty"`
	Pool          string            `json:"pool,omitempty"` // the pool named at launch, or that booted it
	WarmPool      string            `json:"warm_pool,omitempty"`
	WarmState     string            `json:"warm_state,omitempty"` // booting or ready
	ClaimedFrom   string            `json:"claimed_from,omitempty"`
	ClaimedAt     Time              `json:"claimed_at"`
	ColdReason    string            `json:"cold_reason,omitempty"`
	Ephemeral     bool              `json:"ephemeral"`
	Reschedulable bool              `json:"reschedulable"`
	Version       uint64            `json:"version"` // index of its last change; its ETag
}

// LaunchRequest is the body of POST /fleet/vms.
type LaunchRequest struct {
	Name              string            `json:"name,omitempty"`
	Tenant            string            `json:"tenant,omitempty"` // operator only
	Pool              string            `json:"pool,omitempty"`
	Image             string            `json:"image,omitempty"` // catalog name or path
	VCPUs             int               `json:"vcpus,omitempty"`
	MemoryMiB         int64             `json:"memory_mib,omitempty"`
	DiskSizeGiB       int64             `json:"disk_size_gib,omitempty"`
	TTLSeconds        int64             `json:"ttl_seconds,omitempty"`
	Node              string            `json:"node,omitempty"`
	NodeSelector      map[string]string `json:"nodeSelector,omitempty"`
	NodeSelectorSnake map[string]string `json:"node_selector,omitempty"` // the same, spelled as the rest is
	Labels            map[string]string `json:"labels,omitempty"`
	Backend           string            `json:"backend,omitempty"`
	Reschedulable     bool              `json:"reschedulable,omitempty"`
	Apple             *Apple            `json:"apple,omitempty"`
	CloudInit         *CloudInit        `json:"cloud_init,omitempty"`
	Network           *Network          `json:"network,omitempty"`
	Networks          []NetworkRef      `json:"networks,omitempty"`
	ExtraDisks        []ExtraDisk       `json:"extra_disks,omitempty"`
	SecurityProfile   string            `json:"security_profile,omitempty"`
	Balloon           *BalloonDevice    `json:"balloon,omitempty"`
	Claim             *Claim            `json:"claim,omitempty"`

	WaitForCapacitySecs int64 `json:"wait_for_capacity_secs,omitempty"` // how long to wait for a host that has room
}

// Apple are settings of guests on Macs.
type Apple struct {
	GuestOS              string       `json:"guest_os,omitempty"`
	Networks             []NetworkRef `json:"networks,omitempty"`
	VMNet                string       `json:"vmnet,omitempty"`
	BridgeInterface      string       `json:"bridge_interface,omitempty"`
	Rosetta              bool         `json:"rosetta,omitempty"`
	NestedVirtualization bool         `json:"nested_virtualization,omitempty"`
}

// CloudInit is first-boot configuration.
type CloudInit struct {
	Hostname          string          `json:"hostname,omitempty"`
	User              string          `json:"user,omitempty"`
	SSHAuthorizedKeys []string        `json:"ssh_authorized_keys,omitempty"`
	Packages          []string        `json:"packages,omitempty"`
	RunCmd            []string        `json:"runcmd,omitempty"`
	WriteFiles        []CloudInitFile `json:"write_files,omitempty"`
}

// CloudInitFile is a file that cloud-init writes.
type CloudInitFile struct {
	Path        string `json:"path"`
	Content     string `json:"content,omitempty"`
	Permissions string `json:"permissions,omitempty"`
}

// Network is how a VM is connected. Mode is nat, bridge, vmnet or none.
type Network struct {
	Mode     string        `json:"mode,omitempty"`
	Bridge   string        `json:"bridge,omitempty"`
	Forwards []PortForward `json:"forwards,omitempty"`
}

// PortForward sends a port of the host's loopback to a port of the guest.
type PortForward struct {
	HostPort  int `json:"host_port"`
	GuestPort int `json:"guest_port"`
}

// NetworkRef names a network.
type NetworkRef struct {
	Name string `json:"name"`
}

// ExtraDisk is an empty disk beside the image's.
type ExtraDisk struct {
	SizeGiB int64 `json:"size_gib"`
}

// BalloonDevice asks for a memory balloon where it is not always there. Nil fields take their defaults.
type BalloonDevice struct {
	FreePageReporting *bool `json:"free_page_reporting,omitempty"`
	DeflateOnOOM      *bool `json:"deflate_on_oom,omitempty"`
	StatsIntervalSecs *int  `json:"stats_interval_secs,omitempty"`
}

// LaunchAnswer is the body of 201 to POST /fleet/vms. Warm, Pool and ClaimMS are there only when it was warm.
type LaunchAnswer struct {
	Node       string `json:"node"`
	VM         VM     `json:"vm"`
	Warm       bool   `json:"warm,omitempty"`
	Pool       string `json:"pool,omitempty"`
	ClaimMS    *int64 `json:"claim_ms,omitempty"`
	ColdReason string `json:"cold_reason,omitempty"`
}

// DryRunAnswer is the body of 200 to POST /fleet/vms?dry_run=true. Node is null when it fits nowhere.
type DryRunAnswer struct {
	Node    *string        `json:"node"`
	Warm    bool           `json:"warm"`
	Pool    *string        `json:"pool"`
	Reasons map[string]int `json:"reasons"`
	Hosts   []HostVerdict  `json:"hosts,omitempty"` // what placement makes of each host that the caller may see
}

// HostVerdict is what placement makes of one host: a rank from 1 on for a new VM, or the reason that rules it out.
type HostVerdict struct {
	Node          string `json:"node"`
	Rank          int    `json:"rank,omitempty"`
	Reason        string `json:"reason,omitempty"`
	FreeMemoryMiB int64  `json:"free_memory_mib,omitempty"` // after the VM would be there
	Residual      int64  `json:"residual,omitempty"`        // thousandths of the host that would be left
}

// MaxWaitForCapacitySecs is the longest that a launch may wait for room.
const MaxWaitForCapacitySecs = 3600

// VMPatch is the merge patch of PATCH /fleet/vms/{id}. A null label removes it, null labels remove all; a null TTL takes
// the limit off.
type VMPatch struct {
	Name       Optional[string]             `json:"name,omitzero"`
	Labels     Optional[map[string]*string] `json:"labels,omitzero"`
	TTLSeconds Optional[int64]              `json:"ttl_seconds,omitzero"`
}

// ExecRequest runs a command in a guest through its agent.
type ExecRequest struct {
	Argv        []string          `json:"argv"`
	Env         map[string]string `json:"env,omitempty"`
	Stdin       string            `json:"stdin,omitempty"`
	TimeoutSecs int               `json:"timeout_secs,omitempty"` // 0 is 60
	Detach      bool              `json:"detach,omitempty"`
}

// ExecAnswer is what the command left. Stdout and Stderr hold 1 MiB each at most.
type ExecAnswer struct {
	ExitCode  int    `json:"exit_code"`
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	Truncated bool   `json:"truncated"`
	TimedOut  bool   `json:"timed_out"`
}

// List is one page of a list.
type List[T any] struct {
	Items      []T     `json:"items"`
	NextCursor *string `json:"next_cursor"` // null on the last page
}

// MarshalJSON writes an empty list as [] rather than null.
func (l List[T]) MarshalJSON() ([]byte, error) {
	type plain List[T]
	if l.Items == nil {
		l.Items = []T{}
	}
	return json.Marshal(plain(l))
}
