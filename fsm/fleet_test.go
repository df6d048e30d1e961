package fsm

import (
	"bytes"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// fleet drives a State as the log would, checking every invariant after each command.
type fleet struct {
	t     testing.TB
	state *State
	index uint64
	now   api.Time
	log   [][]byte
}

func newFleet(t testing.TB) *fleet {
	f := &fleet{t: t, state: New(), now: 1_700_000_000_000}
	f.do(KindInitCluster, InitCluster{ClusterID: "c-1", Epoch: 1, OperatorHash: "h"})
	return f
}

func (f *fleet) send(kind Kind, op *Op, body any) Result {
	f.t.Helper()
	f.index++
	f.now += 10
	raw, err := Encode(Envelope{Kind: kind, Now: f.now, Term: 1, Actor: "operator", Op: op}, body)
	if err != nil {
		f.t.Fatal(err)
	}
	f.log = append(f.log, raw)
	r, err := f.state.Apply(f.index, raw)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.state.View().Check(); err != nil {
		f.t.Fatalf("after command %d of kind %d: %v", f.index, kind, err)
	}
	return r
}

// do sends a command that must not be refused.
func (f *fleet) do(kind Kind, body any) Result {
	f.t.Helper()
	r := f.send(kind, nil, body)
	if r.Err != nil {
		f.t.Fatalf("kind %d: %v", kind, r.Err)
	}
	return r
}

func (f *fleet) node(name string) {
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: Node{Name: name, UUID: "u-" + name, BootID: "b", URL: "http://" + name,
		Backends: []string{"sim"}, Rename: true, VCPUsTotal: 16, MemoryMiBTotal: 65536, CPUOvercommit: 8}})
}

func (f *fleet) snapshot() []byte {
	var b bytes.Buffer
	if _, err := f.state.View().WriteTo(&b); err != nil {
		f.t.Fatal(err)
	}
	return b.Bytes()
}

func TestClaimTakesOldestReady(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "img", Path: "sim:", HasAgent: true, VCPUs: 1, MemoryMiB: 256}})
	f.do(KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "p", Image: "img", MinReady: new(2)}})
	f.do(KindFillPool, FillPool{Pool: "p", Spares: []Spare{{"a", "warm-p-1", []string{"n1"}}, {"b", "warm-p-2", []string{"n1"}}}})
	for _, id := range []string{"b", "a"} {
		f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: id, Node: "n1", Told: f.state.View().VM(id).Order, State: api.StateRunning, Agent: true}}})
	}
	launch := LaunchVM{ID: "c", Launch: Launch{Name: "build", Image: "img"}, Candidates: []string{"n1"}}
	op := &Op{Key: "k", Digest: "d"}
	r := f.send(KindLaunchVM, op, launch)
	if r.Err != nil || r.Value.(*Operation).Ref != "b" || !r.Value.(*Operation).Warm {
		t.Fatalf("got %+v, want a claim of b, which was ready first", r)
	}
	if again := f.send(KindLaunchVM, op, launch); !again.Replayed || again.Value.(*Operation).Ref != "b" {
		t.Fatalf("got %+v, want the same claim replayed", again)
	}
	if other := f.send(KindLaunchVM, &Op{Key: "k", Digest: "e"}, launch); other.Err == nil || other.Err.Code != api.CodeKeyReused {
		t.Fatalf("got %+v, want key_reused", other)
	}
	f.do(KindFailHandOver, FailHandOver{ID: "b", NewID: "d", Refusal: "404", Candidates: []string{"n1"}})
	if vm := f.state.View().VMNamed("", "build"); vm == nil || vm.ID != "d" || vm.ColdReason != "rename_failed" {
		t.Fatalf("got %+v, want the launch as VM d", vm)
	}
	first := f.snapshot()
	other := New()
	if err := other.Restore(bytes.NewReader(first)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := other.View().WriteTo(&b); err != nil || !bytes.Equal(b.Bytes(), first) {
		t.Fatalf("a restored state differs (%v)", err)
	}
	if err := other.View().Check(); err != nil {
		t.Fatal(err)
	}
}
