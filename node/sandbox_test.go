package node

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestASandboxHasAProfilesSizeAndATimeToLive(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.Settings.Sandbox.Image = "sim:?boot_ms=10" })
		for profile, want := range map[string]api.SandboxProfile{"": {VCPUs: 1, MemoryMiB: 256}, "tiny": {VCPUs: 1, MemoryMiB: 128}, "standard": {VCPUs: 2, MemoryMiB: 512}} {
			m := decode[api.Machine](t, h.want(201, "POST", "/v1/sandboxes", fields{"profile": profile, "ttl_seconds": 60}))
			if m.VCPUs != want.VCPUs || m.MemoryMiB != want.MemoryMiB || m.Image != "sim:?boot_ms=10" || m.ExpiresAt == 0 {
				t.Errorf("profile %q: got %+v", profile, m)
			}
		}
		for _, wrong := range []fields{{"profile": "huge"}, {"profile": "tiny", "memory_mib": 200}, {"ttl_seconds": -1}, {"ttl_seconds": 1, "expires_in_ms": 1}, {"cpus": 1}} {
			h.refused(api.CodeInvalid, "POST", "/v1/sandboxes", wrong)
		}
		if n := len(decode[api.List[api.Machine]](t, h.want(200, "GET", "/v1/sandboxes", nil)).Items); n != 3 {
			t.Errorf("got %d sandboxes, want 3", n)
		}
		passes(61 * time.Second)
		if n := len(decode[api.List[api.Machine]](t, h.want(200, "GET", "/v1/sandboxes", nil)).Items); n != 0 {
			t.Errorf("got %d sandboxes after their time, want none", n)
		}
	})
}

func TestWarmSlotsAreHandedOutOnceAndMadeAnew(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) {
			c.Settings.Sandbox.WarmSlots, c.Settings.Sandbox.Image = 2, "sim:?boot_ms=5000"
		})
		passes(30 * time.Second)
		if d := h.density(); d.WarmSlotsReady != 2 || d.ActiveSandboxes != 0 {
			t.Fatalf("got %+v, want two slots", d)
		}
		seen := map[string]bool{}
		for _, name := range []string{"a", "b", "c"} {
			m := decode[api.Machine](t, h.want(201, "POST", "/v1/sandboxes", fields{"name": name, "labels": fields{"k": name}}))
			if warm := m.State == api.StateRunning; warm != (name != "c") {
				t.Errorf("sandbox %s: got state %s", name, m.State)
			}
			if m.Name != name || m.Labels["k"] != name || m.Labels[api.LabelSandboxSlot] != "" || m.Labels[api.LabelSandbox] == "" {
				t.Errorf("sandbox %s: got %+v", name, m)
			}
			seen[m.ID] = true
		}
		if len(seen) != 3 {
			t.Errorf("one slot went to two callers")
		}
		// Who wants another size, or a VM of its own, gets no slot.
		if m := decode[api.Machine](t, h.want(201, "POST", "/v1/sandboxes", fields{"profile": "tiny"})); m.State == api.StateRunning {
			t.Error("another size came warm")
		}
		passes(30 * time.Second)
		if d := h.density(); d.WarmSlotsReady != 2 || d.ActiveSandboxes != 4 {
			t.Errorf("got %+v, want two slots again and four sandboxes", d)
		}
		id := uuid.NewString()
		if m := decode[api.Machine](t, h.want(201, "POST", "/v1/sandboxes", fields{"id": id})); m.ID != id || m.State == api.StateRunning {
			t.Errorf("with an id of the caller's: got %+v", m)
		}
		h.restart()
		passes(10 * time.Second)
		if d := h.density(); d.WarmSlotsReady != 2 {
			t.Errorf("after a restart: got %+v", d)
		}
	})
}

func TestAWarmSlotThatDoesNotRunIsMadeAgainLater(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) {
			c.Settings.Sandbox.WarmSlots, c.Settings.Sandbox.Image = 1, "sim:?fail=boot"
		})
		passes(5 * time.Minute)
		made := h.count("vm.create", nil)
		if made < 5 || made > 20 {
			t.Errorf("tried %d times in 5 minutes, want one about every half minute", made)
		}
		if n := len(h.list()); n > 1 {
			t.Errorf("%d failed slots are left", n)
		}
	})
}
