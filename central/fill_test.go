package central

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// dropped lists what a plan drops as id: beginning of the reason, a failed boot with a mark.
func dropped(plan poolPlan) (out []string) {
	for _, d := range plan.drops {
		words := strings.Fields(d.reason)
		text := d.vm.ID + ": " + strings.Join(words[:min(3, len(words))], " ")
		if d.failed {
			text += " !"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func TestPoolsAreKeptFull(t *testing.T) {
	running, booting := api.StateRunning, api.StateBooting
	two := func(w *world) { w.pool("p", "linux", 2, nil) }
	for name, c := range map[string]struct {
		set   func(*world)
		drops []string
		fill  int
		wait  *fsm.Wait
	}{
		"an empty pool is filled":  {set: two, fill: 2},
		"a full one is left alone": {set: func(w *world) { two(w); w.spare("p", "a", "n1", running); w.spare("p", "b", "n1", running) }},
		"what boots counts":        {set: func(w *world) { two(w); w.spare("p", "a", "n1", running); w.spare("p", "b", "n1", booting) }},
		"what is placed counts":    {set: func(w *world) { two(w); w.spare("p", "a", "n1", running); w.spare("p", "b", "n1", api.StatePlaced) }},
		"four at most in one pass": {set: func(w *world) { w.pool("p", "linux", 9, nil) }, fill: 4},
		"the third pass fills the rest": {set: func(w *world) {
			w.pool("p", "linux", 9, nil)
			for i := range 8 {
				w.spare("p", fmt.Sprint(i), "n1", booting)
			}
		}, fill: 1},
		"a failed spare is replaced and was counted already": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", booting)
			w.report("b", api.StateFailed)
		},
			drops: []string{"b: it failed: why"}, fill: 0}, // the pool waits after a failed boot
		"a ready spare that fails is replaced after a wait": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", running)
			w.report("b", api.StateFailed)
		},
			drops: []string{"b: it failed: why"}, fill: 0},
		"the last that failed is kept as long as the pool says": {set: func(w *world) {
			w.pool("p", "linux", 2, func(r *api.PoolRequest) { r.KeepFailedSeconds = 600 })
			w.spare("p", "a", "n1", booting)
			w.spare("p", "b", "n1", booting)
			w.report("a", api.StateFailed)
			w.now += 1_000
			w.report("b", api.StateFailed)
			w.now += 300_000
		},
			drops: []string{"a: it failed: why"}, fill: 2},
		"and then it goes": {set: func(w *world) {
			w.pool("p", "linux", 1, func(r *api.PoolRequest) { r.KeepFailedSeconds = 600 })
			w.spare("p", "a", "n1", booting)
			w.report("a", api.StateFailed)
			w.now += 600_000
		},
			drops: []string{"a: it failed: why"}, fill: 1},
		"one spare at a time is recycled, the oldest": {set: func(w *world) {
			w.pool("p", "linux", 2, func(r *api.PoolRequest) { r.MaxAgeSeconds = 60 })
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", running)
			w.now += 61_000
		},
			drops: []string{"a: it is older"}, fill: 1},
		"none is recycled while another boots": {set: func(w *world) {
			w.pool("p", "linux", 2, func(r *api.PoolRequest) { r.MaxAgeSeconds = 60 })
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", booting)
			w.now += 61_000
		}},
		"a stopped spare is replaced": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", running)
			w.report("b", api.StateStopped)
		},
			drops: []string{"b: it is stopped"}, fill: 1},
		"one that stopped before it was ready is a failed boot": {set: func(w *world) { two(w); w.spare("p", "a", "n1", booting); w.report("a", api.StateStopped) },
			drops: []string{"a: it is stopped !"}, fill: 2},
		"a paused spare is replaced": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", running)
			w.report("b", api.StatePaused)
		},
			drops: []string{"b: it is paused"}, fill: 1},
		"a spare of a silent node is made up for, not dropped": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n2", running)
			w.health("n2", api.NodeUnreachable)
		}, fill: 1},
		"fifteen minutes of booting are enough": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", booting)
			w.spare("p", "b", "n1", running)
			w.now = w.now.Add(bootDeadline + time.Second)
		},
			drops: []string{"a: it did not !"}, fill: 1},
		"and not too much": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", booting)
			w.spare("p", "b", "n1", running)
			w.now = w.now.Add(bootDeadline - time.Second)
		}},
		"an agent that never answers": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", api.StatePlaced)
			w.do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: "a", Node: "n1", Told: w.row("a").Order, State: running}}})
			w.now = w.now.Add(bootDeadline + time.Second)
		}, drops: []string{"a: its guest agent !"}, fill: 2},
		"ready ones grow old": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", running)
			w.now = w.now.Add(240 * time.Hour)
		}},
		"off a draining node": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n2", running)
			w.patchNode("n2", true, true)
		},
			drops: []string{"b: its node is"}, fill: 1},
		"not off a cordoned one": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n2", running)
			w.patchNode("n2", true, false)
		}},
		"off a node that the pool no longer names": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n2", running)
			w.do(fsm.KindPatchPool, fsm.PatchPool{Name: "p", Patch: api.PoolPatch{Nodes: api.Some([]string{"n1"})}})
		}, drops: []string{"b: its node is"}, fill: 1},
		"off a node that the selector no longer matches": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n2", running)
			w.do(fsm.KindPatchPool, fsm.PatchPool{Name: "p", Patch: api.PoolPatch{NodeSelector: api.Some(map[string]string{"rack": "1"})}})
		}, drops: []string{"b: its node is"}, fill: 1},
		"off a node that cannot rename any more": {set: func(w *world) {
			two(w)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n2", running)
			old := host("n2")
			old.Rename = false
			w.node(old)
		}, drops: []string{"b: its node cannot"}, fill: 1},
		"trimmed: booting ones first, then the newest": {set: func(w *world) {
			w.pool("p", "linux", 5, nil)
			w.spare("p", "old", "n1", running)
			w.spare("p", "new", "n1", running)
			w.spare("p", "boot", "n1", booting)
			w.do(fsm.KindPatchPool, fsm.PatchPool{Name: "p", Patch: api.PoolPatch{MinReady: api.Some(1)}})
		}, drops: []string{"boot: the pool keeps", "new: the pool keeps"}},
		"trimmed: the newest of those that boot": {set: func(w *world) {
			w.pool("p", "linux", 3, nil)
			w.spare("p", "b1", "n1", booting)
			w.spare("p", "b2", "n1", booting)
			w.spare("p", "r1", "n1", running)
			w.do(fsm.KindPatchPool, fsm.PatchPool{Name: "p", Patch: api.PoolPatch{MinReady: api.Some(2)}})
		}, drops: []string{"b2: the pool keeps"}},
		"paused: none are kept": {set: func(w *world) {
			w.pool("p", "linux", 1, nil)
			w.spare("p", "r", "n1", running)
			w.do(fsm.KindPatchPool, fsm.PatchPool{Name: "p", Patch: api.PoolPatch{MinReady: api.Some(0)}})
		}, drops: []string{"r: the pool keeps"}},
		"max_total counts taken ones": {set: func(w *world) {
			most := 2
			w.pool("p", "linux", 2, func(r *api.PoolRequest) { r.MaxTotal = &most })
			w.spare("p", "a", "n1", running)
			w.claim("p", "a")
		}, fill: 1},
		"at max_total the pool waits": {set: func(w *world) {
			most := 1
			w.pool("p", "linux", 1, func(r *api.PoolRequest) { r.MaxTotal = &most })
			w.spare("p", "a", "n1", running)
			w.claim("p", "a")
		}, wait: &fsm.Wait{Reason: api.WaitMaxTotal}},
		"and says so once": {set: func(w *world) {
			most := 1
			w.pool("p", "linux", 1, func(r *api.PoolRequest) { r.MaxTotal = &most })
			w.spare("p", "a", "n1", running)
			w.claim("p", "a")
			w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Wait: &fsm.Wait{Reason: api.WaitMaxTotal}})
		}},
		"until it is full again": {set: func(w *world) {
			w.pool("p", "linux", 1, nil)
			w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Wait: &fsm.Wait{Reason: api.WaitMaxTotal}})
			w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Spares: []fsm.Spare{{ID: "a", Name: "warm-p-a", Candidates: []string{"n1"}}}})
		}, wait: &fsm.Wait{}},
		"no fill while it backs off": {set: func(w *world) {
			two(w)
			w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Wait: &fsm.Wait{Reason: api.WaitBootFailed, Error: "no"}})
			w.now = w.now.Add(4 * time.Second)
		}},
		"a fill after five seconds": {set: func(w *world) {
			two(w)
			w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Wait: &fsm.Wait{Reason: api.WaitBootFailed, Error: "no"}})
			w.now = w.now.Add(5 * time.Second)
		}, fill: 2},
		"a change tries again at once": {set: func(w *world) {
			two(w)
			w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Wait: &fsm.Wait{Reason: api.WaitBootFailed, Error: "no"}})
			w.do(fsm.KindPatchPool, fsm.PatchPool{Name: "p", Patch: api.PoolPatch{MinReady: api.Some(1)}})
		}, fill: 1},
		"another pool's spares are not its own": {set: func(w *world) {
			w.pool("p-2", "linux", 1, nil)
			w.spare("p-2", "x", "n1", running)
			w.pool("p", "linux", 1, nil)
		}, fill: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.image("linux", api.GuestLinux)
			for _, n := range []string{"n1", "n2"} {
				h := host(n)
				h.Labels["rack"] = n[1:]
				w.node(h)
			}
			c.set(w)
			plan := decidePool(w.view(), w.view().Pool("p"), w.now)
			if diff := cmp.Diff(c.drops, dropped(plan)); diff != "" {
				t.Errorf("drops (-want +got):\n%s", diff)
			}
			if plan.fill != c.fill {
				t.Errorf("fill: got %d, want %d", plan.fill, c.fill)
			}
			if diff := cmp.Diff(c.wait, plan.wait); diff != "" {
				t.Errorf("wait (-want +got):\n%s", diff)
			}
		})
	}
}

// claim takes the pool's oldest ready spare.
func (w *world) claim(pool, want string) {
	w.t.Helper()
	done := w.do(fsm.KindLaunchVM, fsm.LaunchVM{ID: "new-" + want, Launch: fsm.Launch{Name: "taken-" + want, Pool: pool}}).Value.(*fsm.Operation)
	if done.Ref != want {
		w.t.Fatalf("claimed %s, want %s", done.Ref, want)
	}
}

func TestARollReplacesSparesAsFarAsMayBeUnavailable(t *testing.T) {
	running, booting := api.StateRunning, api.StateBooting
	rolled := func(w *world, most int) {
		w.image("next", api.GuestLinux)
		w.do(fsm.KindRollPool, fsm.RollPool{Name: "p", Roll: api.RollRequest{Image: "next", MaxUnavailable: &most}})
	}
	three := func(w *world) {
		w.pool("p", "linux", 3, nil)
		for _, id := range []string{"a", "b", "c"} {
			w.spare("p", id, "n1", running)
		}
	}
	fails := func(w *world) {
		w.now = max(w.now, w.view().Pool("p").BackoffUntil)
		w.do(fsm.KindFillPool, fsm.FillPool{Pool: "p", Wait: &fsm.Wait{Reason: api.WaitBootFailed, Error: "no"}})
	}
	for name, c := range map[string]struct {
		set   func(*world)
		drops []string
		fill  int
	}{
		"one at a time, the oldest first": {func(w *world) { three(w); rolled(w, 1) }, []string{"a: the pool rolled"}, 1},
		"two at a time":                   {func(w *world) { three(w); rolled(w, 2) }, []string{"a: the pool rolled", "b: the pool rolled"}, 2},
		"not before the last is ready":    {func(w *world) { three(w); w.claim("p", "a"); rolled(w, 1); w.spare("p", "d", "n1", booting) }, nil, 0},
		"on when it is":                   {func(w *world) { three(w); w.claim("p", "a"); rolled(w, 1); w.spare("p", "d", "n1", running) }, []string{"b: the pool rolled"}, 1},
		"what still boots the old image goes at once": {func(w *world) {
			w.pool("p", "linux", 3, nil)
			w.spare("p", "a", "n1", running)
			w.spare("p", "b", "n1", booting)
			w.spare("p", "c", "n1", booting)
			rolled(w, 1)
		}, []string{"b: the pool rolled", "c: the pool rolled"}, 2},
		"one failure does not stop it": {func(w *world) { three(w); rolled(w, 1); fails(w); w.now = w.view().Pool("p").BackoffUntil }, []string{"a: the pool rolled"}, 1},
		"two in a row pause it":        {func(w *world) { three(w); rolled(w, 1); fails(w); fails(w); w.now = w.view().Pool("p").BackoffUntil }, nil, 0},
		"rolled again it goes on": {func(w *world) {
			three(w)
			rolled(w, 1)
			fails(w)
			fails(w)
			w.do(fsm.KindRollPool, fsm.RollPool{Name: "p", Roll: api.RollRequest{Image: "next"}})
		}, []string{"a: the pool rolled"}, 1},
		"done": {func(w *world) { w.pool("p", "linux", 1, nil); rolled(w, 1); w.spare("p", "a", "n1", running) }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.image("linux", api.GuestLinux)
			w.node(host("n1"))
			c.set(w)
			plan := decidePool(w.view(), w.view().Pool("p"), w.now)
			if diff := cmp.Diff(c.drops, dropped(plan)); diff != "" {
				t.Errorf("drops (-want +got):\n%s", diff)
			}
			if plan.fill != c.fill {
				t.Errorf("fill: got %d, want %d", plan.fill, c.fill)
			}
		})
	}
}
