package node

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// expiresAt wants the VM to be there just before the moment and gone just after.
func (h *host) expiresAt(id string, at time.Time) {
	h.t.Helper()
	passes(time.Until(at) - 100*time.Millisecond)
	if !h.has(id) {
		h.t.Fatalf("the VM went %s early", time.Until(at))
	}
	passes(time.Until(at) + 100*time.Millisecond)
	if h.has(id) {
		h.t.Fatalf("the VM is still there %s after its deadline", time.Since(at))
	}
}

func TestTheNodeDeletesAVMAtItsDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		due := time.Now().Add(90 * time.Second)
		m := decode[api.Machine](t, h.want(200, "PATCH", "/v1/vms/"+id, fields{"expires_in_ms": 90_000}))
		if got := m.ExpiresAt.Std().Sub(due).Abs(); got > time.Second {
			t.Errorf("expires_at is %s off", got)
		}
		h.expiresAt(id, due)
		gone := h.report().VMs
		if len(gone) != 1 || gone[0].State != api.StateGone || gone[0].Reason != "expired" || gone[0].ID != id {
			t.Errorf("got the report %+v, want the VM gone because it expired", gone)
		}
		passes(59 * time.Minute)
		if got := h.report().VMs; len(got) != 1 || got[0].EndedMSAgo < 59*60_000 {
			t.Errorf("got the report %+v, want the VM for an hour", got)
		}
		passes(2 * time.Minute)
		if got := h.report().VMs; len(got) != 0 {
			t.Errorf("got the report %+v, want nothing after an hour", got)
		}
		if len(h.tombs) != 0 {
			t.Error("the tombstone is kept")
		}
	})
}

func TestADeadlineIsMovedAndTakenOff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(id, fields{"expires_in_ms": 10_000}))
		due := time.Now().Add(time.Minute)
		h.want(200, "PATCH", "/v1/vms/"+id, fields{"expires_in_ms": 60_000})
		other := h.boot(fields{"expires_in_ms": 10_000})
		h.want(200, "PATCH", "/v1/vms/"+other, fields{"expires_in_ms": nil})
		h.expiresAt(id, due)
		passes(24 * time.Hour)
		if !h.has(other) {
			t.Error("a VM whose deadline was taken off is gone")
		}
	})
}

func TestAWallClockThatJumpsMovesNoDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		due := time.Now().Add(time.Minute)
		h.want(200, "PATCH", "/v1/vms/"+id, fields{"expires_in_ms": 60_000})
		h.want(200, "PATCH", "/v1/sim", fields{"clock_offset_secs": 3600})
		passes(20 * time.Second)
		h.want(200, "PATCH", "/v1/sim", fields{"clock_offset_secs": -3600})
		h.expiresAt(id, due)
	})
}

func TestADeadlineCountsOnWhileNoDaemonRuns(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		soon, later := h.boot(nil), h.boot(nil)
		due := time.Now().Add(10 * time.Minute)
		h.want(200, "PATCH", "/v1/vms/"+soon, fields{"expires_in_ms": 60_000})
		h.want(200, "PATCH", "/v1/vms/"+later, fields{"expires_in_ms": 600_000})
		h.stop()
		passes(5 * time.Minute)
		h.start()
		passes(time.Second)
		if h.has(soon) {
			t.Error("a VM whose deadline passed while the daemon was down is still there")
		}
		h.expiresAt(later, due)
	})
}

func TestADeadlineKeepsItsRemainderOverAReboot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		h.want(200, "PATCH", "/v1/vms/"+id, fields{"expires_in_ms": 600_000})
		passes(4*time.Minute + 10*time.Second)
		h.stop()
		h.facts.reboot()
		passes(time.Hour) // the host was off; nobody counted
		h.start()
		back := time.Now()
		h.awaitState(id, api.StateRunning)
		// What remained was last written down at most housekeeping ago: later is allowed, earlier never is.
		passes(time.Until(back.Add(5*time.Minute + 49*time.Second)))
		if !h.has(id) {
			t.Fatal("the VM went early")
		}
		passes(time.Until(back.Add(5*time.Minute + 50*time.Second + housekeeping + time.Second)))
		if h.has(id) {
			t.Error("the VM is still there")
		}
	})
}

func TestAStoppedOrFailedVMExpiresToo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		stopped := h.boot(nil)
		h.want(200, "POST", "/v1/vms/"+stopped+"/stop", nil)
		failed := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(failed, fields{"image": "sim:?fail=boot"}))
		h.awaitState(failed, api.StateFailed)
		booting := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(booting, fields{"image": "sim:?boot_ms=3600000"}))
		due := time.Now().Add(time.Minute)
		for _, id := range []string{stopped, failed, booting} {
			h.want(200, "PATCH", "/v1/vms/"+id, fields{"expires_in_ms": 60_000})
		}
		passes(time.Until(due) - time.Second)
		for _, id := range []string{stopped, failed, booting} {
			if !h.has(id) {
				t.Error("a VM went early")
			}
		}
		passes(2 * time.Second)
		for _, id := range []string{stopped, failed, booting} {
			if h.has(id) {
				t.Error("a VM is still there")
			}
		}
	})
}
