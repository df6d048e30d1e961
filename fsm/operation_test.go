package fsm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestRepeatOfAKeyAnswersAsTheFirstDidEvenWhenItsVMIsGone(t *testing.T) {
	f := poolFleet(t)
	l := Launch{Name: "build", Image: "img"}
	first := *f.launched("x", "k", l)
	for _, state := range []api.VMState{api.StateRunning, api.StateFailed, api.StateGone} {
		f.report("a", state)
		r := f.launch("y", "k", l, "n1")
		if op, ok := r.Value.(*Operation); !ok || !r.Replayed || *op != first {
			t.Errorf("after %s: got %+v (%+v), want %+v replayed", state, r, r.Value, first)
		}
	}
	if f.view().VM("y") != nil || !f.vm("b").Warm {
		t.Error("a repeat had an effect of its own")
	}
}

func TestKeyIsRefusedForAnotherRequestAndAnotherScopeHasItsOwn(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	f.tenant("acme")
	f.launched("a", "k", Launch{Name: "a", Image: "img"}, "n1")
	if r := f.launch("b", "k", Launch{Name: "b", Image: "img"}, "n1"); r.Err == nil || r.Err.Code != api.CodeKeyReused {
		t.Errorf("got %+v, want key_reused", r)
	}
	if r := f.send(KindCreatePool, &Op{Key: "k", Digest: "pool"}, CreatePool{Request: api.PoolRequest{Name: "p", Image: "img"}}); r.Err == nil || r.Err.Code != api.CodeKeyReused {
		t.Errorf("got %+v, want key_reused for another kind, too", r)
	}
	if op := f.launched("t", "k", Launch{Tenant: "acme", Name: "a", Image: "img"}, "n1"); op.Ref != "t" {
		t.Errorf("got %+v, want a tenant's key to be its own", op)
	}
}

func TestKeyedRequestsOfEveryPostAreAnsweredOnce(t *testing.T) {
	f := poolFleet(t)
	for i, c := range []struct {
		kind Kind
		body any
		ref  string
	}{
		{KindCreateImage, CreateImage{Image: api.ImageRequest{Name: "i", Path: "/i"}}, "i"},
		{KindCreatePool, CreatePool{Request: api.PoolRequest{Name: "q", Image: "img"}}, "q"},
		{KindRollPool, RollPool{Name: "p", Roll: api.RollRequest{Image: "img"}}, "p"},
		{KindPatchNode, PatchNode{Name: "n1", Cordoned: new(true)}, "n1"},
		{KindCreateJoinToken, CreateJoinToken{Token: JoinToken{ID: "t", Hash: "h", Kind: "node"}}, "t"},
	} {
		op := &Op{Key: fmt.Sprint("k", i), Digest: "d"}
		if r := f.send(c.kind, op, c.body); r.Err != nil || r.Replayed {
			t.Errorf("%s: got %+v", kindName(c.kind), r)
		}
		if r := f.send(c.kind, op, c.body); !r.Replayed || r.Value.(*Operation).Ref != c.ref {
			t.Errorf("%s again: got %+v, want it replayed", kindName(c.kind), r)
		}
	}
}

func TestRefusedRequestLeavesItsKeyFree(t *testing.T) {
	f := poolFleet(t)
	op := &Op{Key: "k", Digest: "d"}
	body := CreatePool{Request: api.PoolRequest{Name: "p", Image: "img"}}
	for range 2 {
		if r := f.send(KindCreatePool, op, body); r.Err == nil || r.Err.Code != api.CodeNameTaken {
			t.Errorf("got %+v, want name_taken", r)
		}
	}
	f.do(KindDeletePool, DeletePool{Name: "p"})
	if r := f.send(KindCreatePool, op, body); r.Err != nil || r.Replayed {
		t.Errorf("got %+v, want the pool", r)
	}
}

func TestRefusalThatComesLateUndoesWhatCameBefore(t *testing.T) {
	f := poolFleet(t)
	l := Launch{Name: "build", Image: "img", VCPUs: 2}
	if r := f.launch("b", "k", l, "n1"); r.Err == nil || r.Err.Code != api.CodeConflict { // after the key was bound
		t.Errorf("got %+v, want a conflict: there is a VM b", r)
	}
	if op := f.launched("c", "k", l, "n1"); op.Ref != "c" {
		t.Errorf("got %+v, want the key free", op)
	}
	f.launched("x", "k2", Launch{Name: "warm", Image: "img"})
	f.refused(api.CodeConflict, "", KindFailHandOver, FailHandOver{ID: "a", NewID: "b", Candidates: []string{"n1"}}) // after the spare was ended
	if v := f.vm("a"); !v.HandOver || v.Key != "k2" {
		t.Errorf("got %+v, want the claim as it was", v)
	}
}

func TestKeysExpireAfterADayOfFSMTime(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	f.image("img")
	l := Launch{Name: "a", Image: "img"}
	at := f.launched("a", "k", l, "n1").At
	f.now = at + keyLifeMS - 11 // the command comes 10 ms later
	if r := f.launch("b", "k", l, "n1"); !r.Replayed {
		t.Errorf("a millisecond early: got %+v, want a replay", r)
	}
	f.now -= 7 * keyLifeMS
	if r := f.launch("b", "k", l, "n1"); !r.Replayed {
		t.Errorf("with a clock of the past: got %+v, want a replay", r)
	}
	f.now = at + keyLifeMS - 10
	if op := f.launched("b", "k", Launch{Name: "b", Image: "img"}, "n1"); op.Ref != "b" {
		t.Errorf("got %+v, want the key to name a new request", op)
	}
	if f.vm("a").Key != "" || f.vm("b").Key != "k" {
		t.Errorf("the key is that of %+v and %+v", f.vm("a"), f.vm("b"))
	}
	f.do(KindMoveVM, MoveVM{ID: "a", From: "n1"}) // ends it
	if op := f.view().Operation("", "k"); op == nil || op.Ref != "b" {
		t.Errorf("got %+v, want the end of a to leave the key of b alone", op)
	}
}

func TestExpiredKeysArePrunedAsNewOnesCome(t *testing.T) {
	f := newFleet(t)
	image := func(i int) {
		t.Helper()
		f.done(f.send(KindCreateImage, &Op{Key: fmt.Sprintf("k%03d", i), Digest: "d"}, CreateImage{Image: api.ImageRequest{Name: fmt.Sprintf("i%03d", i%1000), Path: "/i"}}))
	}
	for i := range 3 * prunePerWrite {
		image(i)
	}
	f.pass(keyLifeMS)
	for i, left := range []int{2*prunePerWrite + 1, prunePerWrite + 2, 3, 4} {
		image(1000 - 4 + i)
		if got := f.view().Meta().Operations; got != left {
			t.Errorf("after %d new keys %d are kept, want %d", i+1, got, left)
		}
	}
	f.pass(keyLifeMS)
	for i := range prunePerWrite + 10 {
		image(500 + i)
	}
	f.pass(keyLifeMS)
	// The last of many expired keys is used again before its turn to be pruned came.
	f.done(f.send(KindCreatePool, &Op{Key: fmt.Sprintf("k%03d", 500+prunePerWrite+9), Digest: "d"}, CreatePool{Request: api.PoolRequest{Name: "p", Image: "i500"}}))
}

func TestActivityKeepsTheNewestEntries(t *testing.T) {
	f := newFleet(t)
	f.node("n1")
	raw, err := Encode(Envelope{Kind: KindPatchNode, Now: f.now}, PatchNode{Name: "n1", Action: "cordon", Cordoned: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(maxActivity + 5 - 2) {
		if r, err := f.state.Apply(f.index+1+i, raw); err != nil || r.Err != nil {
			t.Fatal(r.Err, err)
		}
	}
	first, last, n := uint64(0), uint64(0), 0
	for a := range f.view().Activities(0) {
		if n++; first == 0 {
			first = a.Seq
		}
		last = a.Seq
	}
	if n != maxActivity || first != maxActivity+5 || last != 6 {
		t.Errorf("got %d entries from %d to %d, want the newest %d of %d", n, first, last, maxActivity, maxActivity+5)
	}
	for a := range f.view().Activities(100) {
		if a.Seq != 99 {
			t.Errorf("got entry %d, want the one before 100", a.Seq)
		}
		break
	}
}

func TestCommandsOfALaterReleaseHaltTheReplica(t *testing.T) {
	f := newFleet(t)
	before := f.view()
	for what, raw := range map[string]string{
		"an unknown kind":  "\x01" + `{"v":1,"kind":999,"now":null,"body":{}}`,
		"a later form":     "\x01" + `{"v":2,"kind":2,"now":null,"body":{}}`,
		"a later format":   "\x02" + `{"v":1,"kind":2,"now":null,"body":{}}`,
		"no command":       "",
		"no body":          "\x01" + `{"v":1,"kind":2,"now":null}`,
		"a body of a list": "\x01" + `{"v":1,"kind":16,"now":null,"body":[]}`,
	} {
		_, err := f.state.Apply(f.index+1, []byte(raw))
		if err == nil || !strings.Contains(err.Error(), ErrUpgrade.Error()) {
			t.Errorf("%s: got %v, want ErrUpgrade", what, err)
		}
		if changed := difference(t, before, f.view()); changed != "" || f.view().Index() != f.index {
			t.Errorf("%s changed %s", what, changed)
		}
	}
}

func TestEncodeRefusesACommandOverTheLimit(t *testing.T) {
	_, err := Encode(Envelope{Kind: KindDeleteImage}, DeleteImage{Name: strings.Repeat("x", MaxCommand)})
	if refusal, ok := err.(*api.Error); !ok || refusal.Code != api.CodeTooLarge {
		t.Errorf("got %v, want too_large", err)
	}
	raw, err := Encode(Envelope{Kind: KindDeleteImage}, DeleteImage{Name: strings.Repeat("x", MaxCommand-200)})
	if err != nil || len(raw) > MaxCommand {
		t.Errorf("got %d bytes and %v, want at most %d", len(raw), err, MaxCommand)
	}
}

func TestClusterIsInitialisedOnce(t *testing.T) {
	f := empty(t)
	f.do(KindInitCluster, InitCluster{ClusterID: "c-1", OperatorHash: "h1"})
	if r := f.do(KindInitCluster, InitCluster{ClusterID: "c-2", Epoch: 7, OperatorHash: "h2"}); r.Value != "c-1" {
		t.Errorf("got %+v, want the first id", r)
	}
	if m := f.view().Meta(); m.ClusterID != "c-1" || m.Epoch != 1 || m.OperatorHash != "h1" || f.activities("central", "InitCluster", "ok") != 1 {
		t.Errorf("got %+v", m)
	}
}

func TestTimeNeverGoesBackAndNothingExpiresEarly(t *testing.T) {
	f := poolFleet(t)
	now := f.view().Meta().Now
	f.now -= 3_600_000
	if op := f.launched("x", "k", Launch{Name: "build", Pool: "p", TTLSeconds: 60}); op.At != now {
		t.Errorf("got %+v, want its day to begin at %s", op, now)
	}
	if got := f.view().Meta().Now; got != now {
		t.Errorf("the time went from %s to %s", now, got)
	}
	if v := f.vm("a"); v.ExpiresAt != now+60_000 || v.ClaimedAt != now {
		t.Errorf("got %+v, want its minute counted from the newest time known", v)
	}
}
