package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func (h *host) balloon(id string) api.Balloon {
	h.t.Helper()
	return decode[api.Balloon](h.t, h.want(200, "GET", "/v1/vms/"+id+"/balloon", nil))
}

func (h *host) setBalloon(id string, mib int64) {
	h.t.Helper()
	h.want(200, "POST", "/v1/vms/"+id+"/balloon", fields{"balloon_mib": mib})
}

func (h *host) awaitBalloon(id string, done func(api.Balloon) bool) api.Balloon {
	h.t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; <-time.After(10 * time.Millisecond) {
		b := h.balloon(id)
		if done(b) {
			return b
		}
		if time.Now().After(end) {
			h.t.Fatalf("the balloon does not come to what is wanted; it is %+v (actual %d)", b, *b.ActualMiB)
		}
	}
}

// count is how many events there are of the action with these details.
func (h *host) count(action string, detail fields) (n int) {
	h.t.Helper()
	for _, e := range decode[api.List[api.Activity]](h.t, h.want(200, "GET", "/v1/events", nil)).Items {
		same := e.Action == action
		for k, v := range detail {
			same = same && e.Detail[k] == v
		}
		if same {
			n++
		}
	}
	return n
}

func TestABalloonIsInflatedInStepsThatTheGuestFollows(t *testing.T) {
	for name, c := range map[string]struct{ target, set, actual, memory, want int64 }{
		"first step":           {400, 0, 0, 512, 64},
		"a large guest":        {4000, 0, 0, 8192, 1024},
		"the last step":        {100, 64, 64, 512, 100},
		"deflating is at once": {0, 400, 400, 512, 0},
		"the guest is ahead":   {400, 64, 128, 512, 192},
		"there":                {64, 64, 64, 512, 64},
	} {
		if got := nextSize(c.target, c.set, c.actual, c.memory); got != c.want {
			t.Errorf("%s: got %d, want %d", name, got, c.want)
		}
	}
}

func TestABalloonFollowsItsTargetAndKeepsItOverARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"memory_mib": 1024})
		if b := h.balloon(id); b.MemoryMiB != 1024 || b.TargetMiB != 0 || *b.ActualMiB != 0 {
			t.Errorf("a new VM's balloon: got %+v", b)
		}
		h.setBalloon(id, 500)
		if b := h.balloon(id); b.TargetMiB != 500 {
			t.Errorf("got target %d at once, want 500", b.TargetMiB)
		}
		h.awaitBalloon(id, func(b api.Balloon) bool { return *b.ActualMiB == 500 && b.Driver == "" })
		h.restart()
		if b := h.balloon(id); b.TargetMiB != 500 || *b.ActualMiB != 500 {
			t.Errorf("after a restart of the daemon: got %+v", b)
		}
		h.setBalloon(id, 0)
		h.awaitBalloon(id, func(b api.Balloon) bool { return *b.ActualMiB == 0 })
		h.setBalloon(id, 300)
		h.want(200, "POST", "/v1/vms/"+id+"/stop", nil)
		for _, method := range []string{"GET", "POST"} {
			h.refused(api.CodeInvalid, method, "/v1/vms/"+id+"/balloon", fields{"balloon_mib": 0})
		}
		h.want(200, "POST", "/v1/vms/"+id+"/start", nil)
		h.awaitState(id, api.StateRunning)
		if b := h.balloon(id); b.TargetMiB != 0 || *b.ActualMiB != 0 {
			t.Errorf("after a launch: got %+v", b)
		}
		if n := h.count("vm.balloon", fields{"vm_id": id, "target_mib": 300.0}); n != 1 {
			t.Errorf("got %d events of target 300, want 1", n)
		}
	})
}

func TestAnInterruptedInflationGoesOnAfterARestart(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"memory_mib": 1024})
		h.stop()
		// The file as a daemon leaves it that died right after the call.
		if err := os.WriteFile(filepath.Join(h.dir, "vms", id, targetFile), []byte("200\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		h.start()
		h.awaitBalloon(id, func(b api.Balloon) bool { return b.TargetMiB == 200 && *b.ActualMiB == 200 })
	})
}

func TestAPausedGuestFollowsItsBalloonWhenItRunsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"memory_mib": 1024})
		h.want(200, "POST", "/v1/vms/"+id+"/pause", nil)
		h.setBalloon(id, 300)
		passes(10 * followWithin)
		if b := h.balloon(id); b.Driver != "" || b.TargetMiB != 300 || *b.ActualMiB != 0 {
			t.Errorf("while it is paused: got %+v (actual %d), want that it is waited for", b, *b.ActualMiB)
		}
		h.want(200, "POST", "/v1/vms/"+id+"/resume", nil)
		h.awaitBalloon(id, func(b api.Balloon) bool { return *b.ActualMiB == 300 && b.Driver == "" })
	})
}

func TestAGuestThatDoesNotFollowIsSaidSo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		for _, want := range []string{api.BalloonAbsent, api.BalloonStuck} {
			id := h.boot(fields{"memory_mib": 1024, "image": "sim:?balloon=" + want})
			h.setBalloon(id, 512)
			b := h.awaitBalloon(id, func(b api.Balloon) bool { return b.Driver != "" })
			if b.Driver != want || b.TargetMiB != 512 || *b.ActualMiB >= 512 || (want == api.BalloonAbsent) != (*b.ActualMiB == 0) {
				t.Errorf("got %+v (actual %d), want %s", b, *b.ActualMiB, want)
			}
			h.setBalloon(id, 0)
			if b := h.awaitBalloon(id, func(b api.Balloon) bool { return *b.ActualMiB == 0 }); b.Driver != "" {
				t.Errorf("after a new target: got %+v", b)
			}
		}
	})
}

func TestABalloonLeavesTheGuestItsFloor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil) // 256 MiB
		path := "/v1/vms/" + id + "/balloon"
		h.setBalloon(id, 192)
		for _, mib := range []any{193, 256, 100000, -1, 1.5, "half", nil} {
			h.refused(api.CodeInvalid, "POST", path, fields{"balloon_mib": mib})
		}
		h.refused(api.CodeInvalid, "POST", path, fields{})
		if b := h.balloon(id); b.TargetMiB != 192 {
			t.Errorf("got target %d after refusals, want 192", b.TargetMiB)
		}
		tiny := h.boot(fields{"memory_mib": 48})
		h.refused(api.CodeInvalid, "POST", "/v1/vms/"+tiny+"/balloon", fields{"balloon_mib": 1})
		h.setBalloon(tiny, 0)
	})
}

func TestAMemoryReportHasNullsWhereThereIsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		h.setBalloon(id, 100)
		r := decode[api.MemoryReport](t, h.want(200, "GET", "/v1/vms/"+id+"/memory", nil))
		if r.VMID != id || r.ConfiguredMiB != 256 || r.Usage != nil || r.Balloon == nil || r.Balloon.TargetMiB != 100 {
			t.Errorf("running: got %+v", r)
		}
		h.want(200, "POST", "/v1/vms/"+id+"/stop", nil)
		raw := h.want(200, "GET", "/v1/vms/"+id+"/memory", nil).Body.String()
		if !strings.Contains(raw, `"usage":null`) || !strings.Contains(raw, `"balloon":null`) {
			t.Errorf("stopped: got %s", raw)
		}
	})
}
