package central

import (
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAPassLeavesOutPoolsThatNothingHasHappenedTo(t *testing.T) {
	w := newWorld(t)
	w.image("linux", api.GuestLinux)
	w.node(host("n1"))
	for _, name := range []string{"full", "claimed", "short"} {
		w.pool(name, "linux", 1, nil)
	}
	w.spare("full", "a", "n1", api.StateRunning)
	w.spare("claimed", "b", "n1", api.StateRunning)
	var m poolMemory
	now, period := time.Now(), time.Minute
	pass := func(what string, want ...string) {
		t.Helper()
		view := w.view()
		due, got := m.due(w.state.Events(), view, now, period), []string{}
		for p := range view.Pools("") {
			if due(p.Name) {
				got = append(got, p.Name)
				m.looked(view, p, decidePool(view, p, w.now))
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: looked at %v, want %v", what, got, want)
			return
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: looked at %v, want %v", what, got, want)
			}
		}
	}
	pass("the first", "claimed", "full", "short")
	pass("nothing happened", "short")
	w.do(fsm.KindLaunchVM, fsm.LaunchVM{ID: "x", Launch: fsm.Launch{Name: "x", Pool: "claimed"}})
	pass("a spare was taken", "claimed", "short")
	pass("it was not replaced yet", "claimed", "short")
	w.spare("claimed", "c", "n1", api.StateRunning)
	pass("it was replaced", "claimed", "short")
	pass("nothing happened again", "short")
	w.report("a", api.StateFailed)
	pass("a spare failed", "full", "short")
	w.patchNode("n1", true, false)
	pass("a host changed", "claimed", "full", "short")
	now = now.Add(period)
	pass("a period is over", "claimed", "full", "short")
}
