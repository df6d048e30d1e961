package node

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestTheIdleScannersRule(t *testing.T) {
	s := Sandbox{IdleBalloonSecs: 60, AutopauseIdleSecs: 300}
	usual := idleView{state: api.StateRunning, idleFor: 61 * time.Second, memoryMiB: 1024, canBalloon: true, canPause: true}
	for name, c := range map[string]struct {
		change func(*Sandbox, *idleView)
		want   idleAct
		size   int64
	}{
		"idle":                     {func(*Sandbox, *idleView) {}, idleInflate, 512},
		"exactly":                  {func(_ *Sandbox, v *idleView) { v.idleFor = time.Minute }, idleInflate, 512},
		"busy":                     {func(_ *Sandbox, v *idleView) { v.idleFor = 59 * time.Second }, idleLeave, 0},
		"off":                      {func(s *Sandbox, _ *idleView) { s.IdleBalloonSecs = 0 }, idleLeave, 0},
		"another share":            {func(s *Sandbox, _ *idleView) { s.IdleBalloonPercent = ptr(90) }, idleInflate, 921},
		"the floor":                {func(s *Sandbox, v *idleView) { s.IdleBalloonPercent = ptr(90); v.memoryMiB = 128 }, idleInflate, 64},
		"too small to take from":   {func(_ *Sandbox, v *idleView) { v.memoryMiB = 64 }, idleLeave, 0},
		"set by hand":              {func(_ *Sandbox, v *idleView) { v.targetMiB = 8 }, idleLeave, 0},
		"reclaimed already":        {func(_ *Sandbox, v *idleView) { v.reclaimed, v.targetMiB = true, 512 }, idleLeave, 0},
		"used again":               {func(_ *Sandbox, v *idleView) { v.reclaimed, v.usedSince, v.targetMiB = true, true, 512 }, idleDeflate, 0},
		"a backend without":        {func(_ *Sandbox, v *idleView) { v.canBalloon = false }, idleLeave, 0},
		"paused":                   {func(_ *Sandbox, v *idleView) { v.state = api.StatePaused }, idleLeave, 0},
		"still booting":            {func(_ *Sandbox, v *idleView) { v.agentSilent = true }, idleLeave, 0},
		"idle for long":            {func(_ *Sandbox, v *idleView) { v.idleFor = 301 * time.Second; v.reclaimed = true }, idlePause, 0},
		"a backend without pauses": {func(_ *Sandbox, v *idleView) { v.idleFor, v.canPause, v.canBalloon = time.Hour, false, false }, idleLeave, 0},
	} {
		settings, view := s, usual
		c.change(&settings, &view)
		if got, size := decideIdle(settings, view); got != c.want || size != c.size {
			t.Errorf("%s: got %d of %d MiB, want %d of %d", name, got, size, c.want, c.size)
		}
	}
}

func (h *host) sandbox(changes fields) string {
	h.t.Helper()
	id := uuid.NewString()
	h.want(201, "POST", "/v1/sandboxes", body(id, changes))
	h.await(id, func(m api.Machine) bool { return m.Agent })
	return id
}

func (h *host) exec(id string) {
	h.t.Helper()
	h.want(200, "POST", "/v1/sandboxes/"+id+"/exec", fields{"argv": []string{"true"}})
}

// idleHost reclaims after a minute and pauses after five, looking every ten seconds.
func idleHost(t *testing.T) *host {
	return newHost(t, func(c *Config) { c.Settings.Sandbox = Sandbox{IdleBalloonSecs: 60, AutopauseIdleSecs: 300} })
}

func TestAnIdleSandboxGivesMemoryBackUntilItIsUsed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := idleHost(t)
		id, plain := h.sandbox(nil), h.boot(nil)
		passes(59 * time.Second)
		if b := h.balloon(id); b.TargetMiB != 0 {
			t.Errorf("reclaimed after 59 s: %+v", b)
		}
		passes(12 * time.Second)
		h.awaitBalloon(id, func(b api.Balloon) bool { return b.TargetMiB == 128 && *b.ActualMiB == 128 })
		h.restart() // what it inflated is remembered
		passes(90 * time.Second)
		if b := h.balloon(id); b.TargetMiB != 128 {
			t.Errorf("after a restart and 90 s: got %+v, want 128 as before", b)
		}
		h.exec(id)
		h.awaitBalloon(id, func(b api.Balloon) bool { return b.TargetMiB == 0 && *b.ActualMiB == 0 })
		passes(75 * time.Second)
		if b := h.balloon(id); b.TargetMiB != 128 {
			t.Errorf("idle again: got %+v, want 128", b)
		}
		if b := h.balloon(plain); b.TargetMiB != 0 {
			t.Errorf("a VM that is no sandbox: got %+v", b)
		}
		if n := h.count("vm.balloon", fields{"vm_id": id, "target_mib": 128.0}); n != 1 { // events do not outlive a daemon
			t.Errorf("got %d events of target 128 since the restart, want 1", n)
		}
	})
}

func TestABalloonSetByHandIsLeftAlone(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := idleHost(t)
		byHand, taken := h.sandbox(nil), h.sandbox(nil)
		h.setBalloon(byHand, 32)
		passes(90 * time.Second)
		h.setBalloon(taken, 100) // after the scanner took 128
		for _, id := range []string{byHand, taken} {
			h.exec(id)
		}
		passes(100 * time.Second)
		h.restart()
		h.exec(taken)
		passes(100 * time.Second)
		if a, b := h.balloon(byHand), h.balloon(taken); a.TargetMiB != 32 || b.TargetMiB != 100 {
			t.Errorf("got targets %d and %d, want 32 and 100 as set by hand", a.TargetMiB, b.TargetMiB)
		}
	})
}

func TestABootIsNoIdleness(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := idleHost(t)
		id := uuid.NewString()
		h.want(201, "POST", "/v1/sandboxes", body(id, fields{"image": "sim:?boot_ms=50&agent_ms=290000"}))
		passes(291 * time.Second)
		passes(4 * time.Minute)
		if m := h.get(id); m.State != api.StateRunning {
			t.Errorf("four minutes after its agent answered it is %s, want running", m.State)
		}
		passes(time.Minute + 20*time.Second)
		h.awaitState(id, api.StatePaused)
	})
}

func TestASandboxIdleForLongIsPausedUntilACallNeedsIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := idleHost(t)
		id := h.sandbox(nil)
		passes(5*time.Minute + 11*time.Second)
		h.awaitState(id, api.StatePaused)
		if d := h.density(); d.PausedSandboxes != 1 || d.ActiveSandboxes != 0 {
			t.Errorf("got %+v", d)
		}
		h.restart()
		h.get(id)
		h.want(200, "GET", "/v1/vms/"+id+"/memory", nil)
		if m := h.get(id); m.State != api.StatePaused {
			t.Errorf("reading woke it: %s", m.State)
		}
		h.exec(id)
		if m := h.get(id); m.State != api.StateRunning {
			t.Errorf("got state %s after a command, want running", m.State)
		}
		h.awaitBalloon(id, func(b api.Balloon) bool { return b.TargetMiB == 0 })
		// One that somebody paused is not ours to wake.
		h.want(200, "POST", "/v1/vms/"+id+"/pause", nil)
		h.refused(api.CodeConflict, "POST", "/v1/sandboxes/"+id+"/exec", fields{"argv": []string{"true"}})
	})
}
