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
	KindCreateTenant    Kind = 22
	KindPatchTenant     Kind = 23
	KindDeleteTenant    Kind = 24
	KindCreateKey       Kind = 25
	KindDeleteKey       Kind = 26
	KindTouchKeys       Kind = 27
	KindPatchPolicy     Kind = 28
	KindPutPrices       Kind = 29
	KindCreateLease     Kind = 30
	KindPatchLease      Kind = 31
	KindEndLease        Kind = 32
	KindAdvanceLease    Kind = 33
	KindReportScrub     Kind = 34
	KindRetryScrub      Kind = 35
	KindAdjustLedger    Kind = 36
	KindAdmitReplica    Kind = 37
	KindAdoptNode       Kind = 38
	KindLoseNode        Kind = 39
	KindLoseVMs         Kind = 40
	KindUpdateNodes     Kind = 41
	KindRelocateVMs     Kind = 42
	KindFillPools       Kind = 43
)

// Newest is the highest kind that this program understands.
const Newest = KindFillPools

// Baseline is the highest kind that every release understands. Kinds above it are proposed only once every member has
// said that it knows them. It moves with Newest until the first release, and never again.
const Baseline = Newest

// format is the first byte of every command.
const format = 1

// MaxCommand is the largest command in bytes; the log's file grows with them.
const MaxCommand = 64 << 10

// Envelope is what every command carries beside its body.
type Envelope struct {
	V     int             `json:"v"` // of the body's form
	Kind  Kind            `json:"kind"`
	Now   api.Time        `json:"now"`                // the leader's time
	Term  uint64          `json:"term"`               // the leader's term
	Actor string          `json:"actor,omitempty"`    // who asked: operator, a tenant, warm-pool, central
	Token string          `json:"token_id,omitempty"` // the key that authorised it; checked again when it applies
	From  string          `json:"from,omitempty"`     // the address from which it was asked
	Op    *Op             `json:"op,omitempty"`       // the keyed request behind it
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
	Name    string `json:"name"`
	IfMatch uint64 `json:"if_match,omitempty"`
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
	IfMatch  uint64  `json:"if_match,omitempty"`

	By    string     `json:"by,omitempty"`    // who is shown as the one that cordoned or drained
	Drain *DrainHost `json:"drain,omitempty"` // how to drain
}

// DrainHost is how a host is to be emptied.
type DrainHost struct {
	DeadlineSeconds int64 `json:"deadline_seconds,omitempty"` // from the command's time; 0: none
	Force           bool  `json:"force,omitempty"`            // at the deadline, or at once without one, delete what blocks
}

// DeleteNode forgets a host that holds no VMs. Force forgets the VMs with it: their host is gone for good.
type DeleteNode struct {
	Name    string `json:"name"`
	Force   bool   `json:"force,omitempty"`
	IfMatch uint64 `json:"if_match,omitempty"`
}

// NodeHealth records changes of what central thinks of hosts, many at once.
type NodeHealth struct {
	Changes []NodeChange `json:"changes"`
}

// NodeChange is one of them. ConfirmedAt is when the host was last heard, Fault what an operator has to mend.
type NodeChange struct {
	Name        string        `json:"name"`
	State       api.NodeState `json:"state"`
	ConfirmedAt api.Time      `json:"confirmed_at"` // zero: nothing newer than is known
	Fault       string        `json:"fault,omitempty"`
}

// LoseNode is the operator's word that a silent host is lost, or with Replace that another takes its name over.
type LoseNode struct {
	Name    string `json:"name"`
	Action  string `json:"action"` // for the activity log: the route
	Reason  string `json:"reason,omitempty"`
	Replace bool   `json:"replace,omitempty"`
}

// LoseVMs settles VMs of a lost host.
type LoseVMs struct {
	Node string   `json:"node"`
	VMs  []LostVM `json:"vms"`
	Keep bool     `json:"keep,omitempty"` // note of those that boot anew that they do
}

// LostVM is one of them. Candidates are where it may boot anew, if it may, best first.
type LostVM struct {
	ID         string   `json:"id"`
	Candidates []string `json:"candidates,omitempty"`
}

// RelocateVMs moves VMs off a host that is drained: to be ended there first, or, once they have ended, to one of their
// candidates.
type RelocateVMs struct {
	Node string   `json:"node"`
	VMs  []LostVM `json:"vms"`
	Keep bool     `json:"keep,omitempty"` // note of those that boot anew that they do
}

// UpdateNodes takes over changed facts of known hosts, many at once.
type UpdateNodes struct {
	Nodes []Node `json:"nodes"` // intent and state columns are ignored
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

// PatchPool changes a pool and makes it try again at once. Tenant must be the pool's; empty for the operator.
type PatchPool struct {
	Name    string        `json:"name"`
	Tenant  string        `json:"tenant,omitempty"`
	Patch   api.PoolPatch `json:"patch"`
	IfMatch uint64        `json:"if_match,omitempty"`
}

// DeletePool removes a pool and its spares; taken VMs stay. Tenant must be the pool's; empty for the operator.
type DeletePool struct {
	Name    string `json:"name"`
	Tenant  string `json:"tenant,omitempty"`
	IfMatch uint64 `json:"if_match,omitempty"`
}

// RollPool moves a pool to another image; its spares are replaced by and by. Tenant must be the pool's; empty for the
// operator.
type RollPool struct {
	Name   string          `json:"name"`
	Tenant string          `json:"tenant,omitempty"`
	Roll   api.RollRequest `json:"roll"`
}

// FillPool places spares, or records why none can be placed.
type FillPool struct {
	Pool   string  `json:"pool"`
	Spares []Spare `json:"spares,omitempty"`
	Wait   *Wait   `json:"wait,omitempty"`
	Room   bool    `json:"room,omitempty"` // hosts have room again: a pool that waits for that waits no longer

	Failed []FailedSpare `json:"failed,omitempty"` // spares that run and never became ready
}

// FillPools is FillPool for several pools at once. One that is no more is passed over.
type FillPools struct {
	Fills []FillPool `json:"fills"`
}

// FailedSpare is one that is taken for failed, and why.
type FailedSpare struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
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
	Claim      *Claim            `json:"claim,omitempty"`
}

// LaunchVM claims a ready spare, or places a new VM on the first candidate that fits.
type LaunchVM struct {
	ID         string         `json:"id"` // of the VM, should it be a new one
	Launch     Launch         `json:"launch"`
	Candidates []string       `json:"candidates"`            // at most 32, best first
	NoHandOut  []string       `json:"no_hand_out,omitempty"` // hosts whose spares must stay where they are
	Reasons    map[string]int `json:"reasons,omitempty"`     // why the other hosts are no candidates
	Keep       bool           `json:"keep,omitempty"`        // what a later answer, or a later boot, needs of the launch is kept
}

// MoveVM says that a host refused a VM it was given: the next candidate takes it, or it ends.
type MoveVM struct {
	ID         string         `json:"id"`
	From       string         `json:"from"`
	Why        string         `json:"why,omitempty"` // the reason that the refusal stands for
	Refusal    string         `json:"refusal"`
	Candidates []string       `json:"candidates"`
	Reasons    map[string]int `json:"reasons,omitempty"`
	Keep       bool           `json:"keep,omitempty"` // a VM that boots anew waits for a host rather than end
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
	EndedMS int64       `json:"ended_ms,omitempty"` // how long ago it went, for a VM that is gone
	Agent   bool        `json:"agent,omitempty"`

	CanClaim bool   `json:"can_claim,omitempty"` // the agent takes claims
	Claimed  bool   `json:"claimed,omitempty"`   // the order gave the guest its claim
	IP       string `json:"ip,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// PatchVM renames, labels or gives another deadline. TTL counts from the command's time.
type PatchVM struct {
	ID      string      `json:"id"`
	Patch   api.VMPatch `json:"patch"`
	IfMatch uint64      `json:"if_match,omitempty"`
}

// DeleteVMs asks for the end of VMs. Their names are free at once; the rows go when the nodes have confirmed.
type DeleteVMs struct {
	IDs     []string `json:"ids"`
	IfMatch uint64   `json:"if_match,omitempty"` // of a VM that alone was named
	AsOf    uint64   `json:"as_of,omitempty"`    // leaves out VMs that changed after this index; zero: none
	Action  string   `json:"action,omitempty"`   // for the activity log; empty writes none
	Reason  string   `json:"reason,omitempty"`
}

// CreateTenant adds a tenant.
type CreateTenant struct {
	Request api.TenantRequest `json:"request"`
}

// PatchTenant changes limits. What a tenant holds already stays.
type PatchTenant struct {
	Name    string          `json:"name"`
	Patch   api.TenantPatch `json:"patch"`
	IfMatch uint64          `json:"if_match,omitempty"`
}

// DeleteTenant removes a tenant that holds nothing, and its keys.
type DeleteTenant struct {
	Name    string `json:"name"`
	IfMatch uint64 `json:"if_match,omitempty"`
}

// CreateKey adds an API key by its hash.
type CreateKey struct {
	Key Key `json:"key"`
}

// DeleteKey revokes a key. Tenant must be the key's; empty for an operator's.
type DeleteKey struct {
	ID     string `json:"id"`
	Tenant string `json:"tenant,omitempty"`
}

// TouchKeys notes when keys were last used, many at once.
type TouchKeys struct {
	Keys []KeyUse `json:"keys"`
}

// KeyUse is one of them.
type KeyUse struct {
	ID string   `json:"id"`
	At api.Time `json:"at"`
}

// PatchPolicy changes what the operator allows.
type PatchPolicy struct {
	Patch   api.PolicyPatch `json:"patch"`
	IfMatch uint64          `json:"if_match,omitempty"`
}

// PutPrices replaces what later stretches are charged.
type PutPrices struct {
	Prices  api.Prices `json:"prices"`
	IfMatch uint64     `json:"if_match,omitempty"`
}

// CreateLease gives hosts to a tenant: the first Count candidates that are free.
type CreateLease struct {
	ID         string         `json:"id"`
	Tenant     string         `json:"tenant"`
	Candidates []string       `json:"candidates"`
	Count      int            `json:"count"`
	DurationMS int64          `json:"duration_ms,omitempty"`
	EndsAt     api.Time       `json:"ends_at,omitempty"`
	AutoRenew  bool           `json:"auto_renew,omitempty"`
	Drain      bool           `json:"drain,omitempty"`
	Reasons    map[string]int `json:"reasons,omitempty"` // why the other hosts are no candidates
}

// PatchLease extends a lease or turns its renewal on or off.
type PatchLease struct {
	ID      string         `json:"id"`
	Patch   api.LeasePatch `json:"patch"`
	IfMatch uint64         `json:"if_match,omitempty"`
}

// EndLease takes in the wish to end a lease early. Tenant must be the lease's; empty for the operator.
type EndLease struct {
	ID      string `json:"id"`
	Tenant  string `json:"tenant,omitempty"`
	IfMatch uint64 `json:"if_match,omitempty"`
}

// AdvanceLease brings a lease as far as the rows and the time allow.
type AdvanceLease struct {
	ID string `json:"id"`
}

// ReportScrub says how a host's scrub for a lease went. Only the scrub that was ordered counts.
type ReportScrub struct {
	ID    string `json:"id"`
	Node  string `json:"node"`
	Order uint64 `json:"order"`
	Error string `json:"error,omitempty"`
}

// RetryScrub orders a failed scrub again, or with Override declares the host clean on the operator's word.
type RetryScrub struct {
	Node     string `json:"node"`
	Override bool   `json:"override,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// AdjustLedger gives or takes money, with a reason.
type AdjustLedger struct {
	Request api.AdjustmentRequest `json:"request"`
}

// AdmitReplica lets a replica into the cluster: by a join token, or because the operator says so.
type AdmitReplica struct {
	Name      string `json:"name"`
	Addr      string `json:"addr"` // its cluster address
	TokenHash string `json:"token_hash,omitempty"`
	Operator  bool   `json:"operator,omitempty"`
}

// AdoptNode merges what a host lists, after a restore. Long lists come in parts.
type AdoptNode struct {
	Name string      `json:"name"`
	Gone []VMReport  `json:"gone,omitempty"` // rows of this host that its list lacks
	VMs  []AdoptedVM `json:"vms,omitempty"`  // of this cluster, not known by a row of this host
	Done bool        `json:"done,omitempty"`
}

// AdoptedVM is a VM as its host lists it.
type AdoptedVM struct {
	ID        string      `json:"id"`
	Name      string      `json:"name"`
	Backend   string      `json:"backend"`
	GuestOS   string      `json:"guest_os"`
	VCPUs     int         `json:"vcpus"`
	MemoryMiB int64       `json:"memory_mib"`
	State     api.VMState `json:"state"`
}
