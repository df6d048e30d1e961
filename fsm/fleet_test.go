package fsm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// tb is what ordinary and property tests have in common.
type tb interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// fleet drives a State as the log would. After each command it holds the state to every invariant, the time to
// never going back, and a refusal or a replay to changing nothing.
type fleet struct {
	t      tb
	state  *State
	index  uint64
	now    api.Time // the leader's; moves on by 10 ms with each command
	bearer string   // the key behind the commands from now on
	log    [][]byte

	after func(before, after View) // looks at each command's effect
}

// empty is a fleet before its first command.
func empty(t tb) *fleet {
	t.Helper()
	return &fleet{t: t, state: New(), now: 1_700_000_000_000}
}

func newFleet(t tb) *fleet {
	t.Helper()
	f := empty(t)
	f.do(KindInitCluster, InitCluster{ClusterID: "c-1", Epoch: 1, OperatorHash: "h"})
	return f
}

func (f *fleet) send(kind Kind, op *Op, body any) Result {
	f.t.Helper()
	f.now += 10
	raw, err := Encode(Envelope{Kind: kind, Now: f.now, Term: 1, Actor: "operator", Token: f.bearer, Op: op}, body)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.apply(raw)
}

func (f *fleet) apply(raw []byte) Result {
	f.t.Helper()
	f.index++
	before := f.state.View()
	f.log = append(f.log, raw)
	r, err := f.state.Apply(f.index, raw)
	if err != nil {
		f.t.Fatal(err)
	}
	after := f.state.View()
	if err := after.Check(); err != nil {
		f.t.Fatalf("after command %d, %s: %v", f.index, raw[1:], err)
	}
	if was, is := before.Meta().Now, after.Meta().Now; is != max(was, f.now) {
		f.t.Fatalf("command %d brought %s and took the time from %s to %s", f.index, f.now, was, is)
	}
	if r.Index != f.index || after.Index() != f.index {
		f.t.Fatalf("command %d gave result %d and state %d", f.index, r.Index, after.Index())
	}
	if r.Err != nil || r.Replayed {
		if changed := difference(f.t, before, after); changed != "" {
			f.t.Fatalf("command %d, %s, was refused (%v) or replayed and changed %s", f.index, raw[1:], r.Err, changed)
		}
		if told, _, ok := f.state.Events().After(f.index-1, math.MaxInt, 1); !ok || len(told) > 0 {
			f.t.Fatalf("command %d, %s, was refused (%v) or replayed and told of %+v", f.index, raw[1:], r.Err, told)
		}
	}
	if r.Err != nil && (!r.Err.Code.Known() || r.Err.Detail == "" || r.Value != nil) {
		f.t.Fatalf("command %d: refusal %+v with value %v", f.index, r.Err, r.Value)
	}
	if f.after != nil {
		f.after(before, after)
	}
	return r
}

// do sends a command that must not be refused.
func (f *fleet) do(kind Kind, body any) Result {
	f.t.Helper()
	return f.done(f.send(kind, nil, body))
}

// done is a result that must not be a refusal.
func (f *fleet) done(r Result) Result {
	f.t.Helper()
	if r.Err != nil {
		f.t.Fatalf("command %d: %v", f.index, r.Err)
	}
	return r
}

// refused sends a command that must be refused with the code, for the field unless that is empty.
func (f *fleet) refused(code api.Code, field string, kind Kind, body any) {
	f.t.Helper()
	if r := f.send(kind, nil, body); r.Err == nil || r.Err.Code != code || r.Err.Field != field {
		f.t.Fatalf("got %+v, want %s for field %q", r, code, field)
	}
}

func (f *fleet) view() View { return f.state.View() }

// vm is a VM that must be there.
func (f *fleet) vm(id string) *VM {
	f.t.Helper()
	v := f.view().VM(id)
	if v == nil {
		f.t.Fatalf("there is no VM %s", id)
	}
	return v
}

// pass lets FSM time go by.
func (f *fleet) pass(ms api.Time) {
	f.t.Helper()
	f.now += ms
	f.do(KindTick, Tick{})
}

// host is the facts of a node of 16 vCPUs and 64 GiB.
func host(name string, mac bool) Node {
	return Node{Name: name, UUID: "u-" + name, BootID: "b", URL: "http://" + name,
		Backends: []string{"sim"}, Rename: true, VCPUsTotal: 16, MemoryMiBTotal: 65536, CPUOvercommit: 8, Mac: mac}
}

func (f *fleet) node(name string) {
	f.t.Helper()
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: host(name, false)})
}

func (f *fleet) mac(name string) {
	f.t.Helper()
	f.do(KindRegisterNode, RegisterNode{Operator: true, Node: host(name, true)})
}

// image adds a Linux image with an agent, of 1 vCPU and 256 MiB.
func (f *fleet) image(name string) {
	f.t.Helper()
	f.do(KindCreateImage, CreateImage{Image: api.ImageRequest{Name: name, Path: "sim:?" + name, HasAgent: true, VCPUs: 1, MemoryMiB: 256}})
}

// pool adds a pool of the image; tenant is empty for a shared one.
func (f *fleet) pool(name, tenant, image string, minReady int) {
	f.t.Helper()
	f.do(KindCreatePool, CreatePool{Tenant: tenant, Request: api.PoolRequest{Name: name, Image: image, MinReady: &minReady}})
}

// tenant adds a tenant without limits.
func (f *fleet) tenant(names ...string) {
	f.t.Helper()
	for _, name := range names {
		f.do(KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: name}})
	}
}

// leased adds a lease of the nodes for two days; it must be active at once.
func (f *fleet) leased(id, tenant string, nodes ...string) *Lease {
	f.t.Helper()
	l := f.do(KindCreateLease, CreateLease{ID: id, Tenant: tenant, Candidates: nodes, Count: len(nodes), DurationMS: 48 * hourMS}).Value.(*Lease)
	if l.State != api.LeaseActive {
		f.t.Fatalf("got %+v, want an active lease", l)
	}
	return l
}

// policy changes what the operator allows.
func (f *fleet) policy(p api.PolicyPatch) {
	f.t.Helper()
	f.do(KindPatchPolicy, PatchPolicy{Patch: p})
}

// fill places spares of the ids on the node; all must find their place.
func (f *fleet) fill(pool, node string, ids ...string) {
	f.t.Helper()
	c := FillPool{Pool: pool}
	for _, id := range ids {
		c.Spares = append(c.Spares, Spare{ID: id, Name: "warm-" + pool + "-" + id, Candidates: []string{node}})
	}
	if placed := f.do(KindFillPool, c).Value.([]string); len(placed) != len(ids) {
		f.t.Fatalf("got %v, want all of %v placed", placed, ids)
	}
}

// report says that the node confirmed all orders for the VM and shows it in the state.
func (f *fleet) report(id string, state api.VMState) {
	f.t.Helper()
	v := f.vm(id)
	f.do(KindReportVMs, ReportVMs{Reports: []VMReport{{ID: id, Node: v.Node, Told: v.Order, State: state, Agent: state == api.StateRunning}}})
}

// ready fills the pool with spares that are ready, in the order given.
func (f *fleet) ready(pool, node string, ids ...string) {
	f.t.Helper()
	f.fill(pool, node, ids...)
	for _, id := range ids {
		f.report(id, api.StateRunning)
	}
}

// launch sends a launch under the key, or without one if that is empty.
func (f *fleet) launch(id, key string, l Launch, candidates ...string) Result {
	f.t.Helper()
	var op *Op
	if key != "" {
		op = &Op{Scope: l.Tenant, Key: key, Digest: digest(l)}
	}
	return f.send(KindLaunchVM, op, LaunchVM{ID: id, Launch: l, Candidates: candidates})
}

// launched is the operation of a launch that must not be refused.
func (f *fleet) launched(id, key string, l Launch, candidates ...string) *Operation {
	f.t.Helper()
	return f.done(f.launch(id, key, l, candidates...)).Value.(*Operation)
}

// digest stands for the one of method, path and body.
func digest(body any) string {
	raw, err := json.Marshal(body)
	if err != nil {
		panic(err) // a body of a test always encodes
	}
	return string(raw)
}

func (f *fleet) snapshot() []byte {
	f.t.Helper()
	return snapshot(f.t, f.view())
}

func snapshot(t tb, v View) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := v.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("got %d bytes, %d counted, and %v", b.Len(), n, err)
	}
	return b.Bytes()
}

// difference names the first row that two views do not share, but for time and index, which even a refusal moves on.
// Rows are never changed in place, so what did not change is the very same row.
func difference(t tb, before, after View) string {
	t.Helper()
	was, is := before.Meta(), after.Meta()
	was.Now, was.Index = is.Now, is.Index
	if was != is {
		return fmt.Sprintf("%+v to %+v", was, is)
	}
	a, b := rows(before), rows(after)
	for _, table := range slices.Sorted(maps.Keys(b)) {
		if !slices.Equal(a[table], b[table]) {
			return fmt.Sprintf("%s, which has %d rows in its indexes and had %d", table, len(b[table]), len(a[table]))
		}
	}
	return ""
}

// rows are those of all tables but meta, also of what a snapshot leaves out, in the order of each index.
func rows(v View) map[string][]any {
	out := map[string][]any{
		"images": inOrder(v.images), "nodes": inOrder(v.nodes), "uses": inOrder(v.uses), "holdings": inOrder(v.holdings), "pools": inOrder(v.pools),
		"claims": inOrder(v.claims), "vms": inOrder(v.vms), "operations": inOrder(v.operations), "activity": inOrder(v.activity), "joins": inOrder(v.joins),
		"tenants": inOrder(v.tenants), "keys": inOrder(v.keys), "policy": inOrder(v.policy), "prices": inOrder(v.prices), "leases": inOrder(v.leases), "ledger": inOrder(v.ledger),
	}
	if all := reflect.TypeFor[tables]().NumField() - 3; all != len(out) { // journal, counter and meta are the others
		panic(fmt.Sprintf("%d tables are compared, and there are %d", len(out), all))
	}
	return out
}

func inOrder[T any](t *table[T]) (out []any) {
	for i := range t.indexes {
		for row := range t.each(i, "") {
			out = append(out, row)
		}
	}
	return out
}

// restored is a new state made from a snapshot.
func restored(t tb, raw []byte) *State {
	t.Helper()
	s := New()
	if err := s.Restore(bytes.NewReader(raw)); err != nil {
		t.Fatal(err)
	}
	if err := s.View().Check(); err != nil {
		t.Fatalf("after a restore: %v", err)
	}
	return s
}

// activities counts the entries of the actor, action and outcome.
func (f *fleet) activities(actor, action, outcome string) (n int) {
	for a := range f.view().Activities(0) {
		if a.Actor == actor && a.Action == action && a.Outcome == outcome {
			n++
		}
	}
	return n
}

var _ tb = testing.TB(nil)

// health is what central thinks of a host from now on.
func (f *fleet) health(node string, state api.NodeState) {
	f.t.Helper()
	f.do(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: node, State: state, ConfirmedAt: f.now}}})
}
