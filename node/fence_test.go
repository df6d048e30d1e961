package node

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestATokenIsEpochTermAndOperation(t *testing.T) {
	got, err := parseToken("3.17.op.9-x")
	if err != nil || got.fence != (fence{3, 17}) || got.op != "op.9-x" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, bad := range []string{"1", "1.2", "1.2.", "a.2.3", "1.-2.3", "1.2.a b", "1.2.\x7f", "99999999999999999999.1.1", "1.2." + strings.Repeat("x", 300)} {
		if _, err := parseToken(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestAnOlderLeadershipIsRefusedAlsoAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		vm := "/v1/vms/" + id
		h.want(200, "PATCH", vm, fields{"name": "one"}, fenced("1.5.1")...)
		check := func() {
			t.Helper()
			late := uuid.NewString()
			h.refused(api.CodeStaleToken, "PATCH", vm, fields{"name": "old"}, fenced("1.4.9")...)
			h.refused(api.CodeStaleToken, "PATCH", vm, fields{"name": "old"}, fenced("0.9.9")...)
			h.refused(api.CodeStaleToken, "DELETE", vm, nil, fenced("1.4.9")...)
			h.refused(api.CodeStaleToken, "POST", vm+"/stop", nil, fenced("1.4.9")...)
			h.refused(api.CodeStaleToken, "POST", vm+"/exec", fields{"argv": []string{"true"}}, fenced("1.4.9")...)
			h.refused(api.CodeStaleToken, "POST", "/v1/vms", body(late, nil), fenced("1.4.9")...)
			h.refused(api.CodeStaleToken, "POST", "/v1/vms", body(id, nil), fenced("1.4.9")...)
			h.refused(api.CodeNotFound, "GET", "/v1/vms/"+late, nil)
			h.refused(api.CodeInvalid, "PATCH", vm, fields{"name": "old"}, fenced("1.4")...)
			if m := h.get(id); m.Name != "one" || m.State != api.StateRunning {
				t.Errorf("got %+v, want the VM as the refused orders found it", m)
			}
		}
		check()
		h.restart()
		check()
		h.want(200, "PATCH", vm, fields{"name": "admin"})
		h.want(200, "PATCH", vm, fields{"name": "newer"}, fenced("2.1.1")...)
		h.refused(api.CodeStaleToken, "PATCH", vm, fields{"name": "old"}, fenced("1.6.1")...)
	})
}

// The fleet gave up on a create whose answer did not come, and has ended the VM. Then the create arrives.
func TestACreateThatComesAfterItsEndMakesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id, other := uuid.NewString(), uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(uuid.NewString(), fields{"name": "first"}), fenced("1.5.1")...)
		h.refused(api.CodeStaleToken, "DELETE", "/v1/vms/"+other, nil, fenced("1.4.2")...)
		for range 2 {
			h.refused(api.CodeNotFound, "DELETE", "/v1/vms/"+id, nil, fenced("1.5.3")...)
		}
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil), fenced("1.5.2")...)
		h.refused(api.CodeNotFound, "GET", "/v1/vms/"+id, nil)
		h.refused(api.CodeNotFound, "DELETE", "/v1/vms/"+other, nil) // an admin's, who knows what comes next
		h.want(201, "POST", "/v1/vms", body(other, fields{"name": "other"}), fenced("1.5.2")...)
	})
}

// A VM that moved to another host may come back to this one: its create is a later order than its end was.
func TestAVMThatEndedIsMadeAnewByALaterOrderOnly(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		vm := "/v1/vms/" + id
		gone := func() { t.Helper(); h.refused(api.CodeNotFound, "GET", vm, nil) }
		h.want(201, "POST", "/v1/vms", body(id, nil), fenced("1.5.10")...)
		h.want(204, "DELETE", vm, nil, fenced("1.5.12")...)
		for _, old := range []string{"1.5.10", "1.5.12", "1.6.11"} {
			h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil), fenced(old)...)
		}
		h.restart()
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil), fenced("1.6.12")...)
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil)) // an admin's
		gone()
		h.want(204, "DELETE", vm, nil, fenced("1.6.20")...) // of a create that has not come yet
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil), fenced("1.6.20")...)
		gone()
		h.want(201, "POST", "/v1/vms", body(id, nil), fenced("1.6.21")...)
		h.want(200, "POST", "/v1/vms", body(id, nil), fenced("1.7.21")...) // a repeat
		h.restart()
		if m := h.get(id); m.ID != id {
			t.Errorf("got %+v, want the VM that came back", m)
		}
		h.want(204, "DELETE", vm, nil, fenced("1.7.30")...)
		gone()
	})
}

func TestARepeatedOrderIsNotCarriedOutAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		vm := "/v1/vms/" + id
		order := func(method, path string, b any, tok string) { t.Helper(); h.want(200, method, path, b, fenced(tok)...) }
		order("PATCH", vm, fields{"name": "one"}, "1.5.7")
		h.want(200, "PATCH", vm, fields{"name": "two"})
		order("PATCH", vm, fields{"name": "one"}, "1.5.7")
		order("PATCH", vm, fields{"name": "one"}, "1.6.7") // the next leader repeats it
		if m := h.get(id); m.Name != "two" {
			t.Errorf("got name %q: the repeat was carried out", m.Name)
		}
		order("PATCH", vm, fields{"name": "three"}, "1.6.7") // the same number for another order
		if m := h.get(id); m.Name != "three" {
			t.Errorf("got name %q: another order was taken for a repeat", m.Name)
		}
		started := h.get(id).StartedAt
		order("POST", vm+"/restart", nil, "1.6.8")
		h.await(id, func(m api.Machine) bool { return m.StartedAt != started && m.Agent })
		started = h.get(id).StartedAt
		h.restart()
		order("POST", vm+"/restart", nil, "1.6.8")
		passes(1e9)
		if m := h.get(id); m.StartedAt != started {
			t.Error("the repeated restart was carried out")
		}
		order("POST", vm+"/exec", fields{"argv": []string{"true"}}, "1.6.9")
		order("POST", vm+"/exec", fields{"argv": []string{"true"}}, "1.6.9")
		execs := 0
		for _, o := range h.orders() {
			if o.Op == "exec" {
				execs++
			}
		}
		if execs != 1 {
			t.Errorf("the command ran %d times", execs)
		}
	})
}
