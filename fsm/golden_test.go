package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Logs outlive programs: a command that was ever written must be read for ever, as what it meant when it was written.
// So these files never change, and -update only adds those that are missing.
var update = flag.Bool("update", false, "write the golden samples that are missing")

// sample is a file of testdata/commands.
type sample struct {
	Command json.RawMessage `json:"command"` // for the reader: the bytes after the first
	Bytes   []byte          `json:"bytes"`   // as the log holds them
}

// step is a command of the script.
type step struct {
	kind Kind
	op   *Op
	body any
	more string   // tells a second sample of a kind from the first
	at   api.Time // ms since the first; 0: a second for each command before
}

func (s step) file() string {
	return filepath.Join("testdata/commands", fmt.Sprintf("%d-%s%s.json", s.kind, kindName(s.kind), s.more))
}

func (s step) read(t testing.TB) (have sample) {
	t.Helper()
	raw, err := os.ReadFile(s.file())
	if err == nil {
		err = json.Unmarshal(raw, &have)
	}
	if err != nil {
		t.Fatalf("%v (go test ./fsm -update writes samples that are missing)", err)
	}
	return have
}

// script has a command of each kind, in an order in which all but DeleteNode are carried out. Some name the index of
// another, so no command may come between the first 17.
func script() []step {
	image := api.ImageRequest{Name: "ubuntu", Path: "/images/ubuntu", Title: "Ubuntu", VCPUs: 2, MemoryMiB: 2048, DiskSizeGiB: 10, HasAgent: true}
	node := Node{Name: "studio-1", UUID: "0c1d2e3f-0000-4000-8000-000000000001", BootID: "boot-1", URL: "https://10.0.0.7:7788", CredentialHash: "c0ffee", Backends: []string{"vz", "sim"}, Rename: true,
		VCPUsTotal: 16, MemoryMiBTotal: 65536, CPUOvercommit: 8, Labels: map[string]string{"zone": "lab", "kairon.zyvor.dev/chip": "m4-max"}, Mac: true, Chip: "m4-max"}
	spare := func(id string) Spare {
		return Spare{ID: id, Name: "warm-ci-" + id, Candidates: []string{"studio-1"}}
	}
	launch := Launch{Tenant: "acme", Name: "build-42", Pool: "ci", TTLSeconds: 7200, Selector: map[string]string{"zone": "lab"}, Labels: map[string]string{"job": "42"}}
	return []step{
		{kind: KindInitCluster, body: InitCluster{ClusterID: "c-1", Epoch: 1, OperatorHash: "5eed"}},
		{kind: KindPutPrices, at: 1_500, body: PutPrices{Prices: api.Prices{Currency: "EUR", VM: []api.VMPrice{{GuestOS: "linux", VCPUHourMicros: 10_000, GiBHourMicros: 5_000, OnLeased: true}},
			Lease: []api.LeasePrice{{Label: "kairon.zyvor.dev/chip=m4-max", HourMicros: 900_000}}, Pool: []api.VMPrice{{VCPUHourMicros: 1_000, GiBHourMicros: 500}}}}},
		{kind: KindCreateImage, op: &Op{Key: "k-image", Digest: "d1"}, body: CreateImage{Image: image}},
		{kind: KindPatchImage, body: PatchImage{Name: "ubuntu", Patch: api.ImagePatch{Title: api.Some("Ubuntu 24.04"), DiskSizeGiB: api.Null[int64]()}, IfMatch: 3}},
		{kind: KindCreateJoinToken, op: &Op{Key: "k-token", Digest: "d2"}, body: CreateJoinToken{Token: JoinToken{ID: "t-1", Hash: "beef", Kind: "node", NamePattern: "studio-*", UsesLeft: 2, ExpiresAt: 1_700_003_600_000}}},
		{kind: KindRegisterNode, body: RegisterNode{Node: node, TokenHash: "beef"}},
		{kind: KindCreateTenant, at: 5_500, op: &Op{Key: "k-tenant", Digest: "d7"}, body: CreateTenant{Request: api.TenantRequest{Name: "acme", Quota: api.Quota{MaxVMs: new(int64(8)), MaxVCPUs: new(int64(64)), MaxLeases: new(int64(1)), MaxMacOSGuests: new(int64(0))}, DefaultTTLSeconds: new(int64(3600)), MaxTTLSeconds: new(int64(86_400))}}},
		{kind: KindCreateLease, at: 5_600, op: &Op{Key: "k-lease", Digest: "d8"}, body: CreateLease{ID: "l-1", Tenant: "acme", Candidates: []string{"studio-1", "studio-2"}, Count: 1, DurationMS: 172_800_000, AutoRenew: true, Drain: true, Reasons: map[string]int{api.WhyLabel: 1}}},
		{kind: KindCreatePool, op: &Op{Scope: "acme", Key: "k-pool", Digest: "d4"}, body: CreatePool{Tenant: "acme", Request: api.PoolRequest{Name: "ci", Image: "ubuntu", MinReady: new(4), NodeSelector: map[string]string{"zone": "lab"}, Nodes: []string{"studio-1"}}}},
		{kind: KindFillPool, body: FillPool{Pool: "ci", Spares: []Spare{spare("0001"), spare("0002"), spare("0003")}, Wait: &Wait{Reason: api.WaitNoCapacity, Reasons: map[string]int{api.WhyCPU: 1}}}},
		{kind: KindReportVMs, body: ReportVMs{Reports: []VMReport{
			{ID: "0001", Node: "studio-1", Told: 10, State: api.StateRunning, Agent: true, IP: "10.0.0.11"},
			{ID: "0002", Node: "studio-1", Told: 10, ClaimMS: new(int64(0)), State: api.StateFailed, Reason: "no kernel"}}}},
		{kind: KindLaunchVM, op: &Op{Scope: "acme", Key: "k-launch", Digest: "d5"}, body: LaunchVM{ID: "0004", Launch: launch, Candidates: []string{"studio-1"}, NoHandOut: []string{"studio-2"}, Reasons: map[string]int{api.WhyLabel: 1}}},
		{kind: KindFailHandOver, body: FailHandOver{ID: "0001", NewID: "0005", Refusal: "too old to rename", Candidates: []string{"studio-1"}, Reasons: map[string]int{api.WhyLabel: 1}}},
		{kind: KindMoveVM, body: MoveVM{ID: "0003", From: "studio-1", Refusal: "host under memory pressure", Candidates: []string{"studio-1"}, Reasons: map[string]int{api.WhyPressure: 1}}},
		{kind: KindPatchVM, body: PatchVM{ID: "0005", Patch: api.VMPatch{Name: api.Some("build-42b"), Labels: api.Some(map[string]*string{"job": nil, "keep": new("yes")}), TTLSeconds: api.Some(int64(60))}, IfMatch: 13}},
		{kind: KindPatchPool, body: PatchPool{Name: "ci", Patch: api.PoolPatch{MinReady: api.Some(2), MaxTotal: api.Some(6), Nodes: api.Null[[]string]()}, IfMatch: 14}},
		{kind: KindRollPool, op: &Op{Scope: "acme", Key: "k-roll", Digest: "d6"}, body: RollPool{Name: "ci", Roll: api.RollRequest{Image: "ubuntu", MaxUnavailable: new(2), StaleUse: "never"}}},
		{kind: KindTick, body: Tick{}},
		{kind: KindPatchNode, op: &Op{Key: "k-node", Digest: "d3"}, body: PatchNode{Name: "studio-1", Action: "PATCH /fleet/nodes/{name}", Cordoned: new(false), Reason: new("back from repair")}},
		{kind: KindNodeHealth, body: NodeHealth{Changes: []NodeChange{{Name: "studio-1", State: api.NodeHealthy, ConfirmedAt: 1_700_000_000_000}}}},
		{kind: KindDeleteVMs, body: DeleteVMs{IDs: []string{"0005", "absent"}, Action: "DELETE /fleet/vms/{id}", Reason: "asked for"}},
		{kind: KindDeletePool, body: DeletePool{Name: "ci"}},
		{kind: KindDeleteImage, body: DeleteImage{Name: "ubuntu"}},
		{kind: KindDeleteNode, body: DeleteNode{Name: "studio-1"}}, // refused: it is leased
		{kind: KindPatchTenant, body: PatchTenant{Name: "acme", Patch: api.TenantPatch{Quota: api.QuotaPatch{MaxVMs: api.Some(int64(20)), MaxVCPUs: api.Null[int64]()}, MaxTTLSeconds: api.Null[int64]()}, IfMatch: 7}},
		{kind: KindPatchPolicy, body: PatchPolicy{Patch: api.PolicyPatch{AllowSharedPoolClaims: api.Some(true), MinLeaseHours: api.Null[int64](), MaxBootsPerNode: api.Some(2)}}},
		{kind: KindCreateKey, op: &Op{Scope: "acme", Key: "k-key", Digest: "d9"}, body: CreateKey{Key: Key{ID: "key-1", Tenant: "acme", Role: api.RoleTenant, Hash: "fade", ExpiresAt: 1_700_086_400_000}}},
		{kind: KindTouchKeys, body: TouchKeys{Keys: []KeyUse{{ID: "key-1", At: 1_700_000_026_000}}}},
		{kind: KindDeleteKey, body: DeleteKey{ID: "key-1", Tenant: "acme"}},
		{kind: KindPatchLease, body: PatchLease{ID: "l-1", Patch: api.LeasePatch{EndsAt: api.Some(api.Time(1_700_259_200_000)), AutoRenew: api.Some(false)}, IfMatch: 8}},
		{kind: KindEndLease, body: EndLease{ID: "l-1", Tenant: "acme"}},
		{kind: KindAdvanceLease, at: 90_000_000, body: AdvanceLease{ID: "l-1"}}, // its minimum term is over
		{kind: KindReportVMs, more: "-gone", at: 90_060_000, body: ReportVMs{Reports: []VMReport{{ID: "0001", Node: "studio-1", State: api.StateGone, EndedMS: 30_000}, {ID: "0002", Node: "studio-1", State: api.StateGone},
			{ID: "0005", Node: "studio-1", State: api.StateGone, Reason: "deleted"}}}},
		{kind: KindAdvanceLease, body: AdvanceLease{ID: "l-1"}}, // the same again: no VM is left
		{kind: KindReportScrub, at: 90_120_000, body: ReportScrub{ID: "l-1", Node: "studio-1", Order: 34, Error: "a disk is busy"}},
		{kind: KindRetryScrub, op: &Op{Key: "k-scrub", Digest: "d10"}, at: 90_130_000, body: RetryScrub{Node: "studio-1", Reason: "unmounted it"}},
		{kind: KindReportScrub, more: "-done", at: 90_140_000, body: ReportScrub{ID: "l-1", Node: "studio-1", Order: 36}},
		{kind: KindAdjustLedger, op: &Op{Key: "k-money", Digest: "d11"}, at: 90_150_000, body: AdjustLedger{Request: api.AdjustmentRequest{Tenant: "acme", AmountMicros: -250_000, Reason: "a disk was busy"}}},
		{kind: KindDeleteTenant, at: 90_160_000, body: DeleteTenant{Name: "acme"}},
		{kind: KindPatchNode, more: "-drain", at: 90_165_000, body: PatchNode{Name: "studio-1", Action: "POST /fleet/nodes/{name}/drain", Cordoned: new(true), Draining: new(true), By: "operator", Drain: &DrainHost{DeadlineSeconds: 3600, Force: true}}},
		{kind: KindCreateJoinToken, more: "-replica", at: 90_170_000, body: CreateJoinToken{Token: JoinToken{ID: "t-2", Hash: "d00d", Kind: "replica", NamePattern: "central-*", UsesLeft: 1, ExpiresAt: 1_700_100_000_000}}},
		{kind: KindAdmitReplica, op: &Op{Key: "k-replica", Digest: "d12"}, at: 90_180_000, body: AdmitReplica{Name: "central-4", Addr: "10.0.0.4:7800", TokenHash: "d00d"}},
		{kind: KindAdoptNode, at: 90_190_000, body: AdoptNode{Name: "studio-1", Done: true, Gone: []VMReport{{ID: "0008", Node: "studio-1", State: api.StateGone, EndedMS: 1000}}, VMs: []AdoptedVM{{ID: "0009", Name: "found", Backend: "vz", GuestOS: "linux", VCPUs: 2, MemoryMiB: 2048, State: api.StateRunning}}}},
		{kind: KindUpdateNodes, at: 90_200_000, body: UpdateNodes{Nodes: []Node{node}}},
		{kind: KindNodeHealth, more: "-fault", at: 90_210_000, body: NodeHealth{Changes: []NodeChange{{Name: "studio-1", State: api.NodeSuspect, ConfirmedAt: 1_700_090_170_000, Fault: "two daemons report as this node"}}}},
		{kind: KindLoseNode, op: &Op{Key: "k-lost", Digest: "d13"}, at: 90_220_000, body: LoseNode{Name: "studio-1", Action: "POST /fleet/nodes/{name}/replace", Reason: "a new disk", Replace: true}},
		{kind: KindLoseVMs, at: 90_230_000, body: LoseVMs{Node: "studio-1", VMs: []LostVM{{ID: "0001"}, {ID: "0002", Candidates: []string{"studio-2"}}}}},
		{kind: KindRelocateVMs, at: 90_240_000, body: RelocateVMs{Node: "studio-1", VMs: []LostVM{{ID: "0003", Candidates: []string{"studio-2", "studio-3"}}}}},
		{kind: KindFillPools, at: 90_250_000, body: FillPools{Fills: []FillPool{{Pool: "ci", Spares: []Spare{spare("0006")}}, {Pool: "other", Wait: &Wait{Reason: api.WaitMaxTotal}}}}},
	}
}

// states are the snapshots that the samples lead to: the first before anything is deleted.
var states = map[Kind]string{KindRollPool: "testdata/before-deletions.snapshot", KindDeleteNode: "testdata/after-deletions.snapshot", KindDeleteTenant: "testdata/after-tenants.snapshot"}

// writeMissing adds a golden file; one that is there stays as it is.
func writeMissing(t *testing.T, name string, raw []byte) {
	t.Helper()
	if _, err := os.Stat(name); !*update || !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, raw, 0o644)); err != nil {
		t.Fatal(err)
	}
}

func TestEachKindHasAGoldenSample(t *testing.T) {
	scripted := map[Kind]bool{}
	for i, c := range script() {
		scripted[c.kind] = true
		at := c.at
		if at == 0 {
			at = api.Time(i * 1000)
		}
		raw, err := Encode(Envelope{Kind: c.kind, Now: 1_700_000_000_000 + at, Term: 3, Actor: "operator", Op: c.op}, c.body)
		if err != nil {
			t.Fatal(err)
		}
		file, err := json.MarshalIndent(sample{Command: raw[1:], Bytes: raw}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		writeMissing(t, c.file(), append(file, '\n'))
	}
	for _, k := range kinds(t) {
		if _, err := os.Stat(step{kind: k.number}.file()); err != nil || !scripted[k.number] {
			t.Errorf("%s has no golden sample: add a command to the script and run go test ./fsm -update (%v)", k.name, err)
		}
	}
}

func TestOldCommandsAreReadAndWrittenAsTheyWere(t *testing.T) {
	for _, c := range script() {
		s := c.read(t)
		var compact bytes.Buffer
		if err := json.Compact(&compact, s.Command); err != nil || !bytes.Equal(compact.Bytes(), s.Bytes[1:]) {
			t.Errorf("%s: the readable form and the bytes differ (%v)", c.file(), err)
		}
		e, err := decode(s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		body := reflect.New(reflect.TypeOf(bodies[c.kind]))
		strict := json.NewDecoder(bytes.NewReader(e.Body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(body.Interface()); err != nil {
			t.Errorf("%s: a field is no longer known: %v", c.file(), err)
		}
		again, err := Encode(e, body.Elem().Interface())
		if err != nil || !bytes.Equal(again, s.Bytes) {
			t.Errorf("%s is written in another way now (%v): a field was renamed, or a new one lacks omitempty\n%s", c.file(), err, cmp.Diff(string(s.Bytes), string(again)))
		}
	}
}

// TestOldCommandsMeanWhatTheyMeant compares through a restore, so that a row may gain a column that old commands leave
// at zero.
func TestOldCommandsMeanWhatTheyMeant(t *testing.T) {
	f := empty(t)
	for _, c := range script() {
		s := c.read(t)
		e, err := decode(s.Bytes)
		if err != nil || e.Kind != c.kind {
			t.Fatalf("%s: kind %d, %v", c.file(), e.Kind, err)
		}
		f.now = e.Now
		if r := f.apply(s.Bytes); (r.Err != nil) != (c.kind == KindDeleteNode) {
			t.Errorf("%s led to %+v", c.file(), r)
		}
		name := states[c.kind]
		if name == "" {
			continue
		}
		writeMissing(t, name, f.snapshot())
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(snapshot(t, restored(t, raw).View())), string(f.snapshot())); diff != "" {
			t.Errorf("the samples lead to another state than %s:\n%s", name, diff)
		}
	}
}
