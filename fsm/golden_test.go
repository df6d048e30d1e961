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

// script has one command of each kind, in an order in which all but the last are carried out. A new kind goes to the
// end, with a state of its own in states.
func script() []struct {
	kind Kind
	op   *Op
	body any
} {
	image := api.ImageRequest{Name: "ubuntu", Path: "/images/ubuntu", Title: "Ubuntu", VCPUs: 2, MemoryMiB: 2048, DiskSizeGiB: 10, HasAgent: true}
	node := Node{Name: "studio-1", UUID: "0c1d2e3f-0000-4000-8000-000000000001", BootID: "boot-1", URL: "https://10.0.0.7:7788", CredentialHash: "c0ffee", Backends: []string{"vz", "sim"}, Rename: true,
		VCPUsTotal: 16, MemoryMiBTotal: 65536, CPUOvercommit: 8, Labels: map[string]string{"zone": "lab", "kairon.zyvor.dev/chip": "m4-max"}, Mac: true, Chip: "m4-max"}
	spare := func(id string) Spare {
		return Spare{ID: id, Name: "warm-ci-" + id, Candidates: []string{"studio-1"}}
	}
	launch := Launch{Tenant: "acme", Name: "build-42", Pool: "ci", TTLSeconds: 7200, Selector: map[string]string{"zone": "lab"}, Labels: map[string]string{"job": "42"}}
	return []struct {
		kind Kind
		op   *Op
		body any
	}{
		{KindInitCluster, nil, InitCluster{ClusterID: "c-1", Epoch: 1, OperatorHash: "5eed"}},
		{KindTick, nil, Tick{}},
		{KindCreateImage, &Op{Key: "k-image", Digest: "d1"}, CreateImage{Image: image}},
		{KindPatchImage, nil, PatchImage{Name: "ubuntu", Patch: api.ImagePatch{Title: api.Some("Ubuntu 24.04"), DiskSizeGiB: api.Null[int64]()}, IfMatch: 3}},
		{KindCreateJoinToken, &Op{Key: "k-token", Digest: "d2"}, CreateJoinToken{Token: JoinToken{ID: "t-1", Hash: "beef", Kind: "node", NamePattern: "studio-*", UsesLeft: 2, ExpiresAt: 1_700_003_600_000}}},
		{KindRegisterNode, nil, RegisterNode{Node: node, TokenHash: "beef"}},
		{KindPatchNode, &Op{Key: "k-node", Digest: "d3"}, PatchNode{Name: "studio-1", Action: "PATCH /fleet/nodes/{name}", Cordoned: new(false), Reason: new("back from repair")}},
		{KindNodeHealth, nil, NodeHealth{Changes: []NodeChange{{Name: "studio-1", State: api.NodeHealthy, ConfirmedAt: 1_700_000_000_000}}}},
		{KindCreatePool, &Op{Scope: "acme", Key: "k-pool", Digest: "d4"}, CreatePool{Tenant: "acme", Request: api.PoolRequest{Name: "ci", Image: "ubuntu", MinReady: new(4), NodeSelector: map[string]string{"zone": "lab"}, Nodes: []string{"studio-1"}}}},
		{KindFillPool, nil, FillPool{Pool: "ci", Spares: []Spare{spare("0001"), spare("0002"), spare("0003")}, Wait: &Wait{Reason: api.WaitNoCapacity, Reasons: map[string]int{api.WhyCPU: 1}}}},
		{KindReportVMs, nil, ReportVMs{Reports: []VMReport{
			{ID: "0001", Node: "studio-1", Told: 10, State: api.StateRunning, Agent: true, IP: "10.0.0.11"},
			{ID: "0002", Node: "studio-1", Told: 10, ClaimMS: new(int64(0)), State: api.StateFailed, Reason: "no kernel"}}}},
		{KindLaunchVM, &Op{Scope: "acme", Key: "k-launch", Digest: "d5"}, LaunchVM{ID: "0004", Launch: launch, Candidates: []string{"studio-1"}, NoHandOut: []string{"studio-2"}, Reasons: map[string]int{api.WhyLabel: 1}}},
		{KindFailHandOver, nil, FailHandOver{ID: "0001", NewID: "0005", Refusal: "too old to rename", Candidates: []string{"studio-1"}, Reasons: map[string]int{api.WhyLabel: 1}}},
		{KindMoveVM, nil, MoveVM{ID: "0003", From: "studio-1", Refusal: "host under memory pressure", Candidates: []string{"studio-1"}, Reasons: map[string]int{api.WhyPressure: 1}}},
		{KindPatchVM, nil, PatchVM{ID: "0005", Patch: api.VMPatch{Name: api.Some("build-42b"), Labels: map[string]*string{"job": nil, "keep": new("yes")}, TTLSeconds: api.Some(int64(60))}, IfMatch: 13}},
		{KindPatchPool, nil, PatchPool{Name: "ci", Patch: api.PoolPatch{MinReady: api.Some(2), MaxTotal: api.Some(6), Nodes: api.Null[[]string]()}, IfMatch: 14}},
		{KindRollPool, &Op{Scope: "acme", Key: "k-roll", Digest: "d6"}, RollPool{Name: "ci", Roll: api.RollRequest{Image: "ubuntu", MaxUnavailable: new(2), StaleUse: "never"}}},
		{KindDeleteVMs, nil, DeleteVMs{IDs: []string{"0005", "absent"}, Action: "DELETE /fleet/vms/{id}", Reason: "asked for"}},
		{KindDeletePool, nil, DeletePool{Name: "ci"}},
		{KindDeleteImage, nil, DeleteImage{Name: "ubuntu"}},
		{KindDeleteNode, nil, DeleteNode{Name: "studio-1"}}, // refused: it holds VMs
	}
}

// states are the snapshots that the samples lead to: the first before anything is deleted.
var states = map[Kind]string{KindRollPool: "testdata/before-deletions.snapshot", KindDeleteNode: "testdata/after-deletions.snapshot"}

func sampleFile(k Kind) string {
	return filepath.Join("testdata/commands", fmt.Sprintf("%d-%s.json", k, kindName(k)))
}

func readSample(t testing.TB, k Kind) (s sample) {
	t.Helper()
	raw, err := os.ReadFile(sampleFile(k))
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		t.Fatalf("%v (go test ./fsm -update writes samples that are missing)", err)
	}
	return s
}

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
		raw, err := Encode(Envelope{Kind: c.kind, Now: 1_700_000_000_000 + api.Time(i*1000), Term: 3, Actor: "operator", Op: c.op}, c.body)
		if err != nil {
			t.Fatal(err)
		}
		file, err := json.MarshalIndent(sample{Command: raw[1:], Bytes: raw}, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		writeMissing(t, sampleFile(c.kind), append(file, '\n'))
	}
	for _, k := range kinds(t) {
		if _, err := os.Stat(sampleFile(k.number)); err != nil || !scripted[k.number] {
			t.Errorf("%s has no golden sample: add a command to the script and run go test ./fsm -update (%v)", k.name, err)
		}
	}
}

func TestOldCommandsAreReadAndWrittenAsTheyWere(t *testing.T) {
	for _, c := range script() {
		s := readSample(t, c.kind)
		var compact bytes.Buffer
		if err := json.Compact(&compact, s.Command); err != nil || !bytes.Equal(compact.Bytes(), s.Bytes[1:]) {
			t.Errorf("%s: the readable form and the bytes differ (%v)", sampleFile(c.kind), err)
		}
		e, err := decode(s.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		body := reflect.New(reflect.TypeOf(bodies[c.kind]))
		strict := json.NewDecoder(bytes.NewReader(e.Body))
		strict.DisallowUnknownFields()
		if err := strict.Decode(body.Interface()); err != nil {
			t.Errorf("%s: a field is no longer known: %v", sampleFile(c.kind), err)
		}
		again, err := Encode(e, body.Elem().Interface())
		if err != nil || !bytes.Equal(again, s.Bytes) {
			t.Errorf("%s is written in another way now (%v): a field was renamed, or a new one lacks omitempty\n%s", sampleFile(c.kind), err, cmp.Diff(string(s.Bytes), string(again)))
		}
	}
}

// TestOldCommandsMeanWhatTheyMeant compares through a restore, so that a row may gain a column that old commands leave
// at zero.
func TestOldCommandsMeanWhatTheyMeant(t *testing.T) {
	f := empty(t)
	for _, c := range script() {
		s := readSample(t, c.kind)
		e, err := decode(s.Bytes)
		if err != nil || e.Kind != c.kind {
			t.Fatalf("%s: kind %d, %v", sampleFile(c.kind), e.Kind, err)
		}
		f.now = e.Now
		if r := f.apply(s.Bytes); (r.Err != nil) != (c.kind == KindDeleteNode) {
			t.Errorf("%s led to %+v", sampleFile(c.kind), r)
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
