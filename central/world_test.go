package central

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/api/apitest"
)

func TestMain(m *testing.M) {
	if _, err := apitest.Routes(); err != nil { // read here, outside of any bubble
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// world is a state made by commands alone, for decisions that only look.
type world struct {
	t     *testing.T
	state *fsm.State
	index uint64
	now   api.Time
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, state: fsm.New(), now: 1_000_000}
	w.do(fsm.KindInitCluster, fsm.InitCluster{ClusterID: "this", Epoch: 1, OperatorHash: "h"})
	return w
}

func (w *world) view() fsm.View { return w.state.View() }

// try applies a command and gives its result.
func (w *world) try(kind fsm.Kind, body any) fsm.Result {
	w.t.Helper()
	raw, err := fsm.Encode(fsm.Envelope{Kind: kind, Now: w.now, Term: 1, Actor: "test"}, body)
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	result, err := w.state.Apply(w.index, raw)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.view().Check(); err != nil {
		w.t.Fatalf("after command %d: %v", kind, err)
	}
	return result
}

func (w *world) do(kind fsm.Kind, body any) fsm.Result {
	w.t.Helper()
	result := w.try(kind, body)
	if result.Err != nil {
		w.t.Fatalf("command %d: %v", kind, result.Err)
	}
	return result
}

// host is a node's facts, of 16 vCPUs and 64 GiB unless the caller changes them.
func host(name string) fsm.Node {
	return fsm.Node{Name: name, UUID: "uuid-" + name, BootID: "1", URL: "http://" + name, Backends: []string{api.BackendSim}, Rename: true,
		VCPUsTotal: 16, MemoryMiBTotal: 65536, CPUOvercommit: 1, Labels: map[string]string{"zone": "lab"}}
}

func (w *world) node(n fsm.Node) {
	w.t.Helper()
	w.do(fsm.KindRegisterNode, fsm.RegisterNode{Node: n, Operator: true})
}

func (w *world) health(name string, state api.NodeState) {
	w.t.Helper()
	w.do(fsm.KindNodeHealth, fsm.NodeHealth{Changes: []fsm.NodeChange{{Name: name, State: state, ConfirmedAt: w.now}}})
}

func (w *world) patchNode(name string, cordoned, draining bool) {
	w.t.Helper()
	w.do(fsm.KindPatchNode, fsm.PatchNode{Name: name, Cordoned: &cordoned, Draining: &draining})
}

func (w *world) image(name, guestOS string) {
	w.t.Helper()
	w.do(fsm.KindCreateImage, fsm.CreateImage{Image: api.ImageRequest{Name: name, Path: "sim:?" + name, GuestOS: guestOS, VCPUs: 2, MemoryMiB: 4096, HasAgent: true}})
}

// vm places a VM of the size on the node; it is placed until it is told of.
func (w *world) vm(id, image, node string, vcpus int, memoryMiB int64) {
	w.t.Helper()
	w.do(fsm.KindLaunchVM, fsm.LaunchVM{ID: id, Launch: fsm.Launch{Name: id, Image: image, VCPUs: vcpus, MemoryMiB: memoryMiB, ColdField: "balloon"}, Candidates: []string{node}})
}

func (w *world) pool(name, image string, minReady int, change func(*api.PoolRequest)) {
	w.t.Helper()
	r := api.PoolRequest{Name: name, Image: image, MinReady: &minReady}
	if change != nil {
		change(&r)
	}
	w.do(fsm.KindCreatePool, fsm.CreatePool{Request: r})
}

// spare places one for the pool; the state says what its node reports of it, placed for nothing.
func (w *world) spare(pool, id, node string, state api.VMState) {
	w.t.Helper()
	w.now++
	result := w.do(fsm.KindFillPool, fsm.FillPool{Pool: pool, Spares: []fsm.Spare{{ID: id, Name: "warm-" + pool + "-" + id, Candidates: []string{node}}}})
	if placed := result.Value.([]string); len(placed) != 1 {
		w.t.Fatalf("spare %s was not placed on %s", id, node)
	}
	w.report(id, state)
}

// report is what the VM's node says of it.
func (w *world) report(id string, state api.VMState) {
	w.t.Helper()
	if state == api.StatePlaced {
		return
	}
	row := w.view().VM(id)
	w.do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: id, Node: row.Node, Told: row.Order, State: state, Agent: state == api.StateRunning, Reason: "why"}}})
}

func (w *world) row(id string) *fsm.VM {
	w.t.Helper()
	row := w.view().VM(id)
	if row == nil {
		w.t.Fatalf("there is no VM %s", id)
	}
	return row
}

func contains(text, part string) bool { return strings.Contains(text, part) }
