package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func ptr[V any](v V) *V { return &v }

func TestPressureRefusesWhatBreaksAThreshold(t *testing.T) {
	calm := api.HostMemory{MemTotalMiB: 8000, MemAvailableMiB: 5000, PSI: &api.PSI{SomeAvg10: 10, FullAvg10: 2}, PressureLevel: ptr("normal")}
	none := api.HostMemory{MemTotalMiB: 8000, MemAvailableMiB: 5000}
	for name, c := range map[string]struct {
		policy Policy
		memory api.HostMemory
		want   string // part of the refusal; empty: admitted
	}{
		"off":                    {Policy{}, api.HostMemory{PressureLevel: ptr("critical")}, ""},
		"reserve kept exactly":   {Policy{MinHostMemAvailableMiB: ptr(int64(4000))}, calm, ""},
		"reserve broken":         {Policy{MinHostMemAvailableMiB: ptr(int64(4001))}, calm, "host under memory pressure: 5000 MiB available, 1000 MiB requested, policy.min_host_mem_available_mib reserve is 4001 MiB"},
		"some at the threshold":  {Policy{MaxHostMemPSISomeAvg10: ptr(10.0)}, calm, ""},
		"some above":             {Policy{MaxHostMemPSISomeAvg10: ptr(9.5)}, calm, "max_host_mem_psi_some_avg10"},
		"full above":             {Policy{MaxHostMemPSIFullAvg10: ptr(1.5)}, calm, "max_host_mem_psi_full_avg10"},
		"no PSI is passed over":  {Policy{MaxHostMemPSISomeAvg10: ptr(0.0), MaxHostMemPSIFullAvg10: ptr(0.0)}, none, ""},
		"no level is passed":     {Policy{DenyHostPressureLevel: "warn"}, none, ""},
		"level below":            {Policy{DenyHostPressureLevel: "critical"}, api.HostMemory{PressureLevel: ptr("warn")}, ""},
		"level reached":          {Policy{DenyHostPressureLevel: "warn"}, api.HostMemory{PressureLevel: ptr("warn")}, "deny_host_pressure_level"},
		"level above":            {Policy{DenyHostPressureLevel: "warn"}, api.HostMemory{PressureLevel: ptr("critical")}, "deny_host_pressure_level"},
		"zero reserve, too much": {Policy{MinHostMemAvailableMiB: ptr(int64(0))}, api.HostMemory{MemAvailableMiB: 999}, "999 MiB available"},
	} {
		got := pressureRefusal(c.policy, c.memory, 0, 1000)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestQuotasCountEveryVM(t *testing.T) {
	used := usage{vms: 2, vcpus: 10, memoryMiB: 1000}
	for name, c := range map[string]struct {
		policy Policy
		want   string
	}{
		"off":                 {Policy{}, ""},
		"one more VM":         {Policy{MaxVMs: 3}, ""},
		"one VM too many":     {Policy{MaxVMs: 2}, "vms"},
		"vcpus":               {Policy{MaxVCPUs: 11}, "vcpus"},
		"vcpus fit":           {Policy{MaxVCPUs: 12}, ""},
		"memory":              {Policy{MaxMemoryMiB: 1499}, "memory"},
		"host totals":         {Policy{EnforceHostTotals: true}, "memory"},
		"a quota over totals": {Policy{EnforceHostTotals: true, MaxMemoryMiB: 4000}, ""},
	} {
		if got, why := quotaRefusal(c.policy, used, 100, 1200, 2, 500); got != c.want || (got == "") != (why == "") {
			t.Errorf("%s: got scope %q (%s), want %q", name, got, why, c.want)
		}
	}
}

func TestACreateIsHeldWhilePressureMayClear(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) {
			c.Settings.Policy = Policy{MinHostMemAvailableMiB: ptr(int64(4096)), PressureDeferSecs: 30}
		})
		h.want(200, "PATCH", "/v1/sim", fields{"mem_available_mib": 100})
		took := func(f func()) time.Duration { began := time.Now(); f(); return time.Since(began) }
		refuse := func(header ...string) func() {
			return func() {
				h.refused(api.CodeHostPressure, "POST", "/v1/vms", body(uuid.NewString(), nil), header...)
			}
		}
		if d := took(refuse()); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("held for %s, want 30 s", d)
		}
		if d := took(refuse(api.HeaderDefer, "0")); d > time.Second {
			t.Errorf("held for %s in spite of the header", d)
		}
		go func() {
			passes(10 * time.Second)
			h.do("PATCH", "/v1/sim", fields{"mem_available_mib": 60000})
		}()
		if d := took(func() { h.want(201, "POST", "/v1/vms", body(uuid.NewString(), nil)) }); d < 9*time.Second || d > 12*time.Second {
			t.Errorf("admitted after %s, want soon after 10 s", d)
		}
		denied := 0
		for _, e := range decode[api.List[api.Activity]](t, h.want(200, "GET", "/v1/events", nil)).Items {
			if e.Action == "quota.deny" && e.Detail["scope"] == "pressure" && e.Outcome == "refused" {
				denied++
			}
		}
		if denied != 2 {
			t.Errorf("got %d quota.deny events, want 2", denied)
		}
	})
}

func TestSettingsThatCannotBeMeantAreRefused(t *testing.T) {
	for name, s := range map[string]Settings{
		"level":   {Policy: Policy{DenyHostPressureLevel: "normal"}},
		"percent": {Sandbox: Sandbox{IdleBalloonPercent: ptr(95)}},
		"psi":     {Policy: Policy{MaxHostMemPSISomeAvg10: ptr(120.0)}},
		"reserve": {Policy: Policy{MinHostMemAvailableMiB: ptr(int64(-1))}},
		"defer":   {Policy: Policy{PressureDeferSecs: -1}},
	} {
		if err := s.check(); err == nil {
			t.Errorf("%s: was taken", name)
		}
	}
	if err := (Settings{}).check(); err != nil {
		t.Error(err)
	}
}

func TestCreatesAtOneMomentReserveAgainstEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.Settings.Policy = Policy{MinHostMemAvailableMiB: ptr(int64(4096))} })
		h.want(200, "PATCH", "/v1/sim", fields{"mem_available_mib": 4096 + 3*256})
		slow := fields{"image": "sim:?boot_ms=30000"}
		for range 3 {
			h.want(201, "POST", "/v1/vms", body(uuid.NewString(), slow))
		}
		e := h.refused(api.CodeHostPressure, "POST", "/v1/vms", body(uuid.NewString(), slow))
		if !strings.Contains(e.Detail, "768 MiB of them promised") {
			t.Errorf("got %q", e.Detail)
		}
		passes(31 * time.Second) // they have landed: what they take is in what the host reports
		h.want(201, "POST", "/v1/vms", body(uuid.NewString(), slow))
	})
}

func TestWhatDoesNotLandReservesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.Settings.Policy = Policy{MinHostMemAvailableMiB: ptr(int64(4096))} })
		h.want(200, "PATCH", "/v1/sim", fields{"mem_available_mib": 4096 + 256})
		for _, c := range []struct{ image, end string }{
			{"sim:?fail=boot", ""}, {"sim:?fail=agent", ""}, {"sim:?agent_ms=60000&fail=crash&crash_after_ms=100", ""},
			{"sim:?boot_ms=60000", "delete"}, {"sim:?boot_ms=60000", "stop"}, {"sim:?boot_ms=1&agent_ms=60000", "stop"},
		} {
			id := uuid.NewString()
			h.want(201, "POST", "/v1/vms", body(id, fields{"image": c.image}))
			passes(10 * time.Millisecond)
			h.refused(api.CodeHostPressure, "POST", "/v1/vms", body(uuid.NewString(), nil))
			switch c.end {
			case "delete":
				h.want(204, "DELETE", "/v1/vms/"+id, nil)
			case "stop":
				h.want(200, "POST", "/v1/vms/"+id+"/stop", nil)
				passes(time.Second)
			default:
				passes(2 * time.Minute)
			}
			if left := h.reserved.total(); left != 0 {
				t.Errorf("%+v leaves %d MiB reserved", c, left)
			}
		}
		h.boot(nil)
		h.boot(nil)
		if h.reserved.sumMiB != 0 || len(h.reserved.byVM) != 0 {
			t.Errorf("%d MiB are still reserved: %v", h.reserved.sumMiB, h.reserved.byVM)
		}
	})
}

func TestOtherStartsAreGatedOnlyWherePolicySaysSo(t *testing.T) {
	for _, all := range []bool{false, true} {
		inBubble(t, func(t *testing.T) {
			h := newHost(t, func(c *Config) {
				c.Settings.Policy = Policy{MinHostMemAvailableMiB: ptr(int64(4096)), GateAllStarts: all}
			})
			parent, spare, asleep := h.boot(nil), h.boot(fields{"labels": fields{api.LabelWarmPool: "p"}}), h.sandbox(nil)
			down, again := h.boot(nil), h.boot(nil)
			for _, id := range []string{down, again} {
				h.want(200, "POST", "/v1/vms/"+id+"/stop", nil)
			}
			h.want(200, "POST", "/v1/sandboxes/"+asleep+"/hibernate", nil)
			h.want(200, "PATCH", "/v1/sim", fields{"mem_available_mib": 4000})
			for _, order := range []struct {
				method, path string
				body         any
			}{
				{"POST", "/v1/vms/" + parent + "/fork", fields{}},
				{"PATCH", "/v1/vms/" + spare, fields{"labels": fields{api.LabelWarmPool: nil, api.LabelWarmClaimed: "p"}}},
				{"POST", "/v1/sandboxes/" + asleep + "/wake", nil},
				{"POST", "/v1/vms/" + down + "/start", nil},
				{"POST", "/v1/vms/" + again + "/restart", nil},
			} {
				if all {
					h.refused(api.CodeHostPressure, order.method, order.path, order.body)
				} else if w := h.do(order.method, order.path, order.body); w.Code >= 300 {
					t.Errorf("%s %s: got %d %s", order.method, order.path, w.Code, w.Body)
				}
			}
			h.want(200, "PATCH", "/v1/vms/"+parent, fields{"name": "renamed"}) // no start
			h.want(200, "POST", "/v1/vms/"+parent+"/restart", nil)             // it has its memory
			if n := h.count("quota.deny", fields{"scope": "pressure"}); (n == 5) != all || !all && n != 0 {
				t.Errorf("gate_all_starts %t: got %d refusals", all, n)
			}
			h.want(200, "PATCH", "/v1/sim", fields{"mem_available_mib": 4096 + 256})
			h.want(200, "POST", "/v1/vms/"+down+"/start", nil)
			passes(time.Second)
			if left := h.reserved.total(); left != 0 {
				t.Errorf("gate_all_starts %t: %d MiB are left reserved", all, left)
			}
		})
	}
}
