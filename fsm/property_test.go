package fsm

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestRandomCommandsKeepTheInvariants applies random commands of every kind and compares each with a model. Then it
// applies the same log again, once through a snapshot in its middle, and compares bytes.
func TestRandomCommandsKeepTheInvariants(t *testing.T) {
	deepen(t)
	seen := map[string]int{}
	rapid.Check(t, func(r *rapid.T) {
		m := newModel(r, seen)
		r.Repeat(m.actions())
		m.finish()
		m.compareReplays(rapid.IntRange(1, len(m.f.log)).Draw(r, "snapshot after"))
	})
	if t.Failed() || seen["commands"] < 3_000 {
		return // a run cut short by flags proves nothing about its reach
	}
	for _, s := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[s], s)
	}
	for _, k := range kinds(t) {
		if n := seen[k.name]; n <= seen["commands"]/20_000 { // all are drawn far more often, and many times in vain
			t.Errorf("%d of %d commands were %s that was carried out; want more", n, seen["commands"], k.name)
		}
	}
	reach := []string{"claim", "claim of the tenant", "cold", "replay", "key reused", "key expired", "name taken", "no capacity", "moved", "spare placed",
		"fill held back", "time back", "stale report", "macOS placed", "ready spare", "conflict",
		"launch over quota", "quota lowered below use", "revoked key", "macOS without a lease", "placed on its tenant's host", "lease active", "lease pending", "lease ending", "lease scrubbing",
		"lease scrub_failed", "lease no_capacity", "scrubbed", "scrub report ignored", "stretch of a vm", "stretch of a pool", "payer changed", "ended a while ago", "money", "changed since"}
	if seen["commands"] > 60_000 { // the rare ones
		reach = append(reach, "claim by name", "replay after a move", "replay after a failed hand-over", "gave up", "hand-over ended", "macOS limit", "failed spare", "unknown VM", "pool deleted", "roll", "hand-over moved", "expired key", "scrub failed", "scrub retried",
			"claim of a shared spare by a tenant", "TTL too long", "patch TTL too long", "tenant deleted", "pool over quota", "lease quota_exceeded", "end as intent", "ended before it began", "renewed", "started late",
			"scrub overdue", "scrub overridden", "too late to begin", "policy of its own", "charged as leased", "hand-over taken back", "lost VM", "lost spare", "rescheduled", "lost VM back", "failed by a reboot", "billed until heard")
	}
	for _, want := range reach {
		if seen[want] == 0 {
			t.Errorf("the commands never led to: %s", want)
		}
	}
}

// deepen makes the sequences fewer, long enough to fill a fleet, and the same in every run, so that a red run means a red
// change, unless flags say otherwise: make property draws new ones each time.
func deepen(t *testing.T) {
	settings := map[string]string{"rapid.steps": "250", "rapid.checks": "200"}
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		settings["rapid.seed"] = "1"
	}
	for name, value := range settings {
		f := flag.Lookup(name)
		if f.Value.String() != f.DefValue {
			continue
		}
		if err := f.Value.Set(value); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Value.Set(f.DefValue) })
	}
}

// asked is a keyed request that was carried out, and what a repeat of it must answer.
type asked struct {
	kind Kind
	op   Op
	body any
	at   api.Time
	want Operation
	note string // what happened to it since
}

// model knows what callers were told. Everything else it reads from the state before and after a command.
type model struct {
	f      *fleet
	r      *rapid.T
	seen   map[string]int
	count  int
	holder map[string]string // VM id → the request that it was given to
	asked  map[string]*asked // by scope and key
	tokens []string          // hashes
	keys   map[string]*modelKey
	held   map[string]string   // node → the lease that has it
	scrubs map[string]*ordered // by node
	books  books

	skipped bool // the action of now
}

var (
	modelNodes   = []string{"n1", "n2", "mac-1", "mac-2"}
	modelImages  = []string{"img", "mute", "mac"}
	modelPools   = []string{"p", "q", "r", "m", "n"}
	modelNames   = []string{"b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12"}
	modelTenants = []string{"", "acme", "acme", "beta"}
)

func newModel(r *rapid.T, seen map[string]int) *model {
	m := &model{f: newFleet(r), r: r, seen: seen, holder: map[string]string{}, asked: map[string]*asked{}, keys: map[string]*modelKey{}, held: map[string]string{}, scrubs: map[string]*ordered{}, books: newBooks()}
	m.f.after = m.audit
	m.repair(r)
	return m
}

// audit looks at what each command changed.
func (m *model) audit(before, after View) {
	m.auditQuota(before, after)
	m.auditLeases(before, after)
	m.auditBills(before, after)
	m.auditLedger(after)
}

// actions come in ten groups of eight, for rapid draws a small number from few almost evenly, and from many not at all.
// What fills the fleet and brings things on is there more than once.
func (m *model) actions() map[string]func(*rapid.T) {
	all := [][]func(*rapid.T){
		{m.launch, m.report, m.fillPool, m.launch, m.report, m.advance, m.reportScrub, m.repair},
		{m.report, m.launch, m.createLease, m.advance, m.fillPool, m.failHandOver, m.deleteVMs, m.patchTenant},
		{m.launch, m.report, m.fillPool, m.repair, m.retryScrub, m.endLease, m.move, m.createKey},
		{m.report, m.launch, m.advance, m.reportScrub, m.tick, m.patchVM, m.patchPolicy, m.repeat},
		{m.advance, m.report, m.launch, m.createLease, m.failHandOver, m.putPrices, m.badKey, m.registerNode},
		{m.launch, m.report, m.deleteVMs, m.retryScrub, m.patchLease, m.createTenant, m.deleteKey, m.createPool},
		{m.report, m.loseVMs, m.advance, m.endLease, m.adjust, m.nodeHealth, m.patchPool, m.rollPool},
		{m.fillPool, m.loseVMs, m.relocateVMs, m.createLease, m.reportScrub, m.updateNodes, m.touchKeys, m.patchNode, m.deletePool},
		{m.failHandOver, m.tick, m.patchVM, m.loseNode, m.deleteTenant, m.createKey, m.joinToken, m.deleteNode, m.admitReplica, m.adoptNode, m.relocateVMs},
		{m.repeat, m.otherBody, m.patchTenant, m.registerNode, m.createImage, m.patchImage, m.deleteImage, m.initCluster},
	}
	groups := map[string]func(*rapid.T){}
	for i, group := range all {
		groups[fmt.Sprint("group ", i)] = func(r *rapid.T) {
			m.r, m.f.t = r, r
			m.act(group[rapid.IntRange(0, len(group)-1).Draw(r, "which")])
		}
	}
	return groups
}

// act carries out an action, under some key or none.
func (m *model) act(action func(*rapid.T)) {
	defer func() {
		if m.skipped { // no failure of the test, which goes on
			m.skipped = false
			_ = recover()
		}
	}()
	m.bear()
	action(m.r)
	m.f.bearer = ""
	m.checkHosts()
}

// skip leaves an action that has nothing to act on. Were rapid told, it would end a run with many of those.
func (m *model) skip() {
	m.skipped = true
	panic("skipped")
}

func (m *model) saw(what string) { m.seen[what]++ }

// chance is true about once in n times; shrinking makes it false.
func (m *model) chance(n int, what string) bool { return rapid.IntRange(0, n-1).Draw(m.r, what) == n-1 }

func (m *model) pick(from []string, what string) string {
	return rapid.SampledFrom(from).Draw(m.r, what)
}

func (m *model) next(prefix string) string { m.count++; return fmt.Sprintf("%s-%04d", prefix, m.count) }

// send sends a command without a key.
func (m *model) send(kind Kind, body any) (View, Result) {
	before := m.f.view()
	r := m.f.send(kind, nil, body)
	m.note(kind, r)
	return before, r
}

func (m *model) note(kind Kind, r Result) {
	m.saw("commands")
	switch {
	case r.Err != nil && r.Err.Code == api.CodeConflict:
		m.saw("conflict")
	case r.Err == nil && !r.Replayed:
		m.saw(kindName(kind))
	}
}

// keyed sends a request, most times under a key. It holds the answer to the model and gives the state before it, and
// whether the command itself was carried out or refused, rather than answered because of its key.
func (m *model) keyed(kind Kind, scope string, request, body any) (View, Result, *Op, bool) {
	if m.chance(4, "no key") {
		before, r := m.send(kind, body)
		return before, r, nil, true
	}
	op := &Op{Scope: scope, Key: m.next("key"), Digest: digest(request)}
	if old := m.anyAsked(); old != nil && m.chance(5, "an old key") {
		op.Scope, op.Key = old.op.Scope, old.op.Key
		op.Digest += "!" // never the same request by accident
	}
	before, r, applied := m.under(kind, op, body)
	return before, r, op, applied
}

// under sends a command under a key and holds the answer to what is known of the key.
func (m *model) under(kind Kind, op *Op, body any) (View, Result, bool) {
	before := m.f.view()
	known := m.asked[op.Scope+"/"+op.Key]
	r := m.f.send(kind, op, body)
	m.note(kind, r)
	if known != nil && m.f.view().Meta().Now-known.at >= keyLifeMS {
		m.saw("key expired")
		delete(m.asked, op.Scope+"/"+op.Key)
		known = nil
	}
	switch {
	case known == nil:
		if r.Replayed || r.Err != nil && r.Err.Code == api.CodeKeyReused {
			m.r.Fatalf("got %+v for key %s, which is new", r, op.Key)
		}
		return before, r, true
	case known.op.Digest != op.Digest:
		m.saw("key reused")
		if r.Err == nil || r.Err.Code != api.CodeKeyReused {
			m.r.Fatalf("got %+v for another request under key %s, want key_reused", r, op.Key)
		}
		return before, r, false
	}
	m.saw("replay")
	m.saw("replay" + known.note)
	if have, ok := r.Value.(*Operation); !r.Replayed || !ok || *have != known.want {
		m.r.Fatalf("got %+v (%+v) for a repeat of key %s, want %+v", r, r.Value, op.Key, known.want)
	}
	return before, r, false
}

// remember keeps what a repeat of the key must answer.
func (m *model) remember(kind Kind, op *Op, body any, want Operation) {
	if op == nil {
		return
	}
	now := m.f.view().Meta().Now
	want.Scope, want.Key, want.Digest, want.At = op.Scope, op.Key, op.Digest, now
	if have := m.f.view().Operation(op.Scope, op.Key); have == nil || *have != want {
		m.r.Fatalf("key %s is kept as %+v, want %+v", op.Key, have, want)
	}
	m.asked[op.Scope+"/"+op.Key] = &asked{kind: kind, op: *op, body: body, at: now, want: want}
}

func (m *model) anyAsked() *asked {
	if len(m.asked) == 0 {
		return nil
	}
	return m.asked[m.pick(slices.Sorted(maps.Keys(m.asked)), "asked")]
}

// repeat sends a keyed request again, as a client would whose answer was lost.
func (m *model) repeat(*rapid.T) { m.again("") }

// otherBody sends another request of the same kind under a key that was used.
func (m *model) otherBody(*rapid.T) { m.again("?") }

// again makes new ids and candidates for an old request, as central does for each that comes in.
func (m *model) again(more string) {
	a := m.anyAsked()
	if a == nil {
		m.skip()
	}
	op, body := a.op, a.body
	op.Digest += more
	switch c := body.(type) {
	case LaunchVM:
		c.ID, c.Candidates = m.next("vm"), m.candidates()
		body = c
	case CreateJoinToken:
		c.Token.ID, c.Token.Hash = m.next("token"), m.next("hash")
		body = c
	case CreateKey:
		c.Key.ID, c.Key.Hash = m.next("key"), m.next("secret")
		body = c
	case CreateLease:
		c.ID, c.Candidates = m.next("lease"), m.candidates()
		body = c
	}
	if before, r, applied := m.under(a.kind, &op, body); applied {
		m.carriedOut(before, r, a.kind, &op, body)
	}
}

// carriedOut holds a keyed command to the model after its key turned out to be new.
func (m *model) carriedOut(before View, r Result, kind Kind, op *Op, body any) {
	switch c := body.(type) {
	case LaunchVM:
		m.launched(before, r, op, c)
	case CreateImage:
		m.kept(r, kind, op, body, c.Image.Name)
	case CreatePool:
		m.kept(r, kind, op, body, c.Request.Name)
	case RollPool:
		m.kept(r, kind, op, body, c.Name)
	case PatchNode:
		m.kept(r, kind, op, body, c.Name)
	case CreateJoinToken:
		m.kept(r, kind, op, body, c.Token.ID)
	case AdmitReplica:
		m.kept(r, kind, op, body, c.Name)
	case CreateTenant:
		m.kept(r, kind, op, body, c.Request.Name)
	case CreateKey:
		m.keyMade(before, r, op, c)
	case CreateLease:
		m.leased(before, r, op, c)
	case RetryScrub:
		m.retried(before, r, op, c)
	case AdjustLedger:
		m.adjusted(before, r, op, c)
	case LoseNode:
		m.kept(r, KindLoseNode, op, c, c.Name)
	default:
		m.r.Fatalf("a keyed command of type %T", body)
	}
}

func (m *model) kept(r Result, kind Kind, op *Op, body any, ref string) {
	if r.Err == nil {
		m.remember(kind, op, body, Operation{Ref: ref})
	}
}

// finish looks over what only shows at the end: every key still answers.
func (m *model) finish() {
	m.f.bearer = ""
	m.exportAgain()
	for _, k := range slices.Sorted(maps.Keys(m.asked)) {
		if a := m.asked[k]; max(m.f.now+10, m.f.view().Meta().Now)-a.at < keyLifeMS {
			m.under(a.kind, &a.op, a.body)
		}
	}
	for v := range m.f.view().VMs("") {
		if v.Live() && !v.Warm && m.holder[v.ID] == "" {
			m.r.Fatalf("VM %s is nobody's", v.ID)
		}
	}
}

// compareReplays applies the log to a new state, and to one that takes a snapshot after the cut and goes on from it.
func (m *model) compareReplays(cut int) {
	again, together, want := New(), New(), m.f.snapshot()
	var half *State
	var alone, inBatches []Result
	var batch []Entry
	for i, raw := range m.f.log {
		for _, s := range []*State{again, half} {
			if s == nil {
				continue
			}
			r, err := s.Apply(uint64(i+1), raw)
			if err != nil {
				m.r.Fatal(err)
			}
			if s == again {
				alone = append(alone, r)
			}
		}
		if batch = append(batch, Entry{uint64(i + 1), raw}); i%23 >= cut%23 || i+1 == len(m.f.log) {
			results, err := together.ApplyAll(batch)
			if err != nil {
				m.r.Fatal(err)
			}
			batch, inBatches = nil, append(inBatches, results...)
		}
		if i+1 == cut {
			half = restored(m.r, snapshot(m.r, again.View()))
		}
	}
	if got := snapshot(m.r, again.View()); !bytes.Equal(got, want) {
		m.r.Fatalf("the same log led to\n%s\nand to\n%s", want, got)
	}
	if got := snapshot(m.r, together.View()); !bytes.Equal(got, want) {
		m.r.Fatalf("in batches the log led to\n%s\nand one by one to\n%s", got, want)
	}
	if !reflect.DeepEqual(alone, inBatches) {
		m.r.Fatal("in batches the log led to other results than one by one")
	}
	if got := snapshot(m.r, half.View()); !bytes.Equal(got, want) {
		m.r.Fatalf("through a snapshot after command %d the log led to\n%s\nand without to\n%s", cut, got, want)
	}
	if err := half.View().Check(); err != nil {
		m.r.Fatalf("through a snapshot after command %d: %v", cut, err)
	}
	a, b, c := rows(m.f.view()), rows(half.View()), rows(together.View())
	same := func(x, y any) bool { return digest(x) == digest(y) }
	for _, table := range slices.Sorted(maps.Keys(a)) { // also what a snapshot leaves out
		if !slices.EqualFunc(a[table], b[table], same) || !slices.EqualFunc(a[table], c[table], same) {
			m.r.Fatalf("through a snapshot after command %d, or in batches, table %s differs", cut, table)
		}
	}
	was, _, ok1 := m.f.state.Events().After(0, 0, ringSize)
	for _, s := range []*State{again, together} {
		is, _, ok2 := s.Events().After(0, 0, ringSize)
		if !ok1 || !ok2 || !reflect.DeepEqual(was, is) {
			m.r.Fatalf("the same log led to %d other events than the first %d", len(is), len(was))
		}
	}
	after, _, ok3 := half.Events().After(uint64(cut), math.MaxInt, ringSize)
	if tail := slices.DeleteFunc(was, func(e Event) bool { return e.Index <= uint64(cut) }); !ok3 || len(after) != len(tail) {
		m.r.Fatalf("after a snapshot at %d there are %d events, want %d", cut, len(after), len(tail))
	}
}

func kindName(k Kind) string { return reflect.TypeOf(bodies[k]).Name() }
