package fsm

import (
	"encoding/json"
	"fmt"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Kind says what a command does. Numbers only grow: a kind is never reused and never means something else.
// A new one needs a case in Apply, a golden sample in testdata, and a line in docs/consistency.md, and is
// proposed only once every member knows it.
type Kind uint16

// The kinds.
const (
	KindInitCluster     Kind = 1
	KindTick            Kind = 2
	KindCreateImage     Kind = 3
	KindPatchImage      Kind = 4
	KindDeleteImage     Kind = 5
	KindRegisterNode    Kind = 6
	KindPatchNode       Kind = 7
	KindDeleteNode      Kind = 8
	KindNodeHealth      Kind = 9
	KindCreateJoinToken Kind = 10
	KindCreatePool      Kind = 11
	KindPatchPool       Kind = 12
	KindDeletePool      Kind = 13
	KindRollPool        Kind = 14
	KindFillPool        Kind = 15
	KindLaunchVM        Kind = 16
	KindMoveVM          Kind = 17
	KindFailHandOver    Kind = 18
	KindReportVMs       Kind = 19
	KindPatchVM         Kind = 20
	KindDeleteVMs       Kind = 21
)

// format is the first byte of every command.
const format = 1

// MaxCommand is the largest command in bytes; the log's file grows with them.
const MaxCommand = 64 << 10

// Envelope is what every command carries beside its body.
type Envelope struct {
	V     int             `json:"v"` // of the body's form
	Kind  Kind            `json:"kind"`
	Now   api.Time        `json:"now"`             // the leader's time
	Term  uint64          `json:"term"`            // the leader's term
	Actor string          `json:"actor,omitempty"` // who asked: operator, a tenant, warm-pool, central
	Op    *Op             `json:"op,omitempty"`    // the keyed request behind it
	Body  json.RawMessage `json:"body,omitempty"`
}

// Op is an idempotency key as a command carries it.
type Op struct {
	Scope  string `json:"scope,omitempty"` // the caller's tenant; empty for the operator
	Key    string `json:"key"`
	Digest string `json:"digest"` // of method, path and body
}

// Encode writes a command. It refuses one over MaxCommand.
func Encode(e Envelope, body any) ([]byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encoding command %d: %w", e.Kind, err)
	}
	e.V, e.Body = 1, raw
	out, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding command %d: %w", e.Kind, err)
	}
	if len(out) >= MaxCommand {
		return nil, api.Errorf(api.CodeTooLarge, "the request makes a command of %d bytes, over the %d the log takes; send less", len(out), MaxCommand)
	}
	return append([]byte{format}, out...), nil
}

func decode(raw []byte) (e Envelope, err error) {
	if len(raw) == 0 || raw[0] != format {
		return e, fmt.Errorf("a command of an unknown format; this replica is older than the leader: upgrade it")
	}
	if err := json.Unmarshal(raw[1:], &e); err != nil {
		return e, fmt.Errorf("decoding a command: %w", err)
	}
	if e.V != 1 {
		return e, fmt.Errorf("command %d has form %d; this replica is older than the leader: upgrade it", e.Kind, e.V)
	}
	return e, nil
}

// InitCluster is the first command of a cluster. A repeat with the same id changes nothing.
type InitCluster struct {
	ClusterID    string `json:"cluster_id"`
	Epoch        uint64 `json:"epoch"`
	OperatorHash string `json:"operator_hash"`
}

// Tick only brings time, so that what waits for it can be decided.
type Tick struct{}

// CreateImage adds a catalog entry.
type CreateImage struct {
	Image api.ImageRequest `json:"image"`
}

// PatchImage changes what later VMs boot.
type PatchImage struct {
	Name    string         `json:"name"`
	Patch   api.ImagePatch `json:"patch"`
	IfMatch uint64         `json:"if_match,omitempty"`
}

// DeleteImage removes a catalog entry that no pool uses.
type DeleteImage struct {
	Name string `json:"name"`
}

// RegisterNode adds a host or updates its facts. A new one needs a join token or comes from the operator.
type RegisterNode struct {
	Node      Node   `json:"node"` // intent and state columns are ignored
	TokenHash string `json:"token_hash,omitempty"`
	Operator  bool   `json:"operator,omitempty"` // the operator's own token vouches for it
}

// PatchNode cordons, drains or frees a host.
type PatchNode struct {
	Name     string  `json:"name"`
	Action   string  `json:"action"` // for the activity log: the route
	Cordoned *bool   `json:"cordoned,omitempty"`
	Draining *bool   `json:"draining,omitempty"`
	Reason   *string `json:"reason,omitempty"`
}

// DeleteNode forgets a host that holds no VMs.
type DeleteNode struct {
	Name string `json:"name"`
}

// NodeHealth records changes of what central thinks of hosts, many at once.
type NodeHealth struct {
	Changes []NodeChange `json:"changes"`
}

// NodeChange is one of them. ConfirmedAt is when the host was last heard.
type NodeChange struct {
	Name        string        `json:"name"`
	State       api.NodeState `json:"state"`
	ConfirmedAt api.Time      `json:"confirmed_at"`
}

// CreateJoinToken lets hosts or replicas in.
type CreateJoinToken struct {
	Token JoinToken `json:"token"`
}

// CreatePool adds a warm pool for Tenant, or a shared one.
type CreatePool struct {
	Tenant  string          `json:"tenant,omitempty"`
	Request api.PoolRequest `json:"request"`
}

// PatchPool changes a pool and makes it try again at once.
type PatchPool struct {
	Name    string        `json:"name"`
	Patch   api.PoolPatch `json:"patch"`
	IfMatch uint64        `json:"if_match,omitempty"`
}

// DeletePool removes a pool and its spares; taken VMs stay.
type DeletePool struct {
	Name string `json:"name"`
}

// RollPool moves a pool to another image; its spares are replaced by and by.
type RollPool struct {
	Name string          `json:"name"`
	Roll api.RollRequest `json:"roll"`
}

// FillPool places spares, or records why none can be placed.
type FillPool struct {
	Pool   string  `json:"pool"`
	Spares []Spare `json:"spares,omitempty"`
	Wait   *Wait   `json:"wait,omitempty"`
}

// Spare is one VM to boot, with the hosts that could take it, best first.
type Spare struct {
	ID         string   `json:"id"`
	Name       string   `json:"name"`
	Candidates []string `json:"candidates"`
}

// Wait is why a pool is not filled. One with an error counts as a failed boot and makes the pool back off.
type Wait struct {
	Reason  string         `json:"reason,omitempty"` // empty: it waits no longer
	Reasons map[string]int `json:"reasons,omitempty"`
	Error   string         `json:"error,omitempty"`
}

// Launch is a validated launch as the log carries it.
type Launch struct {
	Tenant     string            `json:"tenant,omitempty"`
	Name       string            `json:"name"`
	Image      string            `json:"image,omitempty"` // name or path
	Pool       string            `json:"pool,omitempty"`
	VCPUs      int               `json:"vcpus,omitempty"`
	MemoryMiB  int64             `json:"memory_mib,omitempty"`
	DiskGiB    int64             `json:"disk_gib,omitempty"`
	GuestOS    string            `json:"guest_os,omitempty"`
	TTLSeconds int64             `json:"ttl_seconds,omitempty"`
	Node       string            `json:"node,omitempty"`
	Selector   map[string]string `json:"selector,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Backend    string            `json:"backend,omitempty"`
	Resched    bool              `json:"reschedulable,omitempty"`
	ColdField  string            `json:"cold_field,omitempty"` // the first field that no booted VM can have
	Boot       *Boot             `json:"boot,omitempty"`
}

// LaunchVM claims a ready spare, or places a new VM on the first candidate that fits.
type LaunchVM struct {
	ID         string         `json:"id"` // of the VM, should it be a new one
	Launch     Launch         `json:"launch"`
	Candidates []string       `json:"candidates"`            // at most 32, best first
	NoHandOut  []string       `json:"no_hand_out,omitempty"` // hosts whose spares must stay where they are
	Reasons    map[string]int `json:"reasons,omitempty"`     // why the other hosts are no candidates
}

// MoveVM says that a host refused a VM it was given: the next candidate takes it, or it ends.
type MoveVM struct {
	ID         string         `json:"id"`
	From       string         `json:"from"`
	Refusal    string         `json:"refusal"`
	Candidates []string       `json:"candidates"`
	Reasons    map[string]int `json:"reasons,omitempty"`
}

// FailHandOver says that a node could not hand over a claimed spare. Its launch goes on as a new VM.
type FailHandOver struct {
	ID         string         `json:"id"`
	NewID      string         `json:"new_id"`
	Refusal    string         `json:"refusal"`
	Candidates []string       `json:"candidates"`
	Reasons    map[string]int `json:"reasons,omitempty"`
}

// ReportVMs records what nodes confirmed and showed, many at once.
type ReportVMs struct {
	Reports []VMReport `json:"reports"`
}

// VMReport is news of one VM. News of a VM that is elsewhere by now is ignored.
type VMReport struct {
	ID      string      `json:"id"`
	Node    string      `json:"node"`
	Told    uint64      `json:"told,omitempty"`     // the order the node confirmed
	ClaimMS *int64      `json:"claim_ms,omitempty"` // how long the hand-over took
	State   api.VMState `json:"state,omitempty"`    // empty: no news of it
	Agent   bool        `json:"agent,omitempty"`
	IP      string      `json:"ip,omitempty"`
	Reason  string      `json:"reason,omitempty"`
}

// PatchVM renames, labels or gives another deadline. TTL counts from the command's time.
type PatchVM struct {
	ID      string      `json:"id"`
	Patch   api.VMPatch `json:"patch"`
	IfMatch uint64      `json:"if_match,omitempty"`
}

// DeleteVMs asks for the end of VMs. Their names are free at once; the rows go when the nodes have confirmed.
type DeleteVMs struct {
	IDs    []string `json:"ids"`
	Action string   `json:"action,omitempty"` // for the activity log; empty writes none
	Reason string   `json:"reason,omitempty"`
}
