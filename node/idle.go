package node

import (
	"context"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// idle is what wakes the idle scanner before its time.
type idle struct{ poke chan struct{} }

func newIdle() idle { return idle{poke: make(chan struct{}, 1)} }

// look makes the scanner look now. It never blocks.
func (i idle) look() {
	select {
	case i.poke <- struct{}{}:
	default:
	}
}

// idleView is what the scanner knows of one sandbox.
type idleView struct {
	state       api.VMState
	idleFor     time.Duration // since a call last had to do with what runs inside
	reclaimed   bool          // the scanner inflated the balloon
	usedSince   bool          // and a call came after that
	targetMiB   int64         // of the balloon
	memoryMiB   int64
	canBalloon  bool // the backend gives the host back what a balloon takes
	canPause    bool
	agentSilent bool // it is not up yet, so nothing can be said of it
}

// idleAct is what the scanner does with one sandbox.
type idleAct int

const (
	idleLeave idleAct = iota
	idleInflate
	idleDeflate
	idlePause
)

// decideIdle is the scanner's rule. A balloon that somebody else set is left alone, whatever its size.
func decideIdle(s Sandbox, v idleView) (idleAct, int64) {
	size := reclaimSize(s, v.memoryMiB)
	after := func(secs int) bool { return secs > 0 && v.idleFor >= time.Duration(secs)*time.Second }
	switch {
	case v.state != api.StateRunning:
		return idleLeave, 0
	case v.reclaimed && v.usedSince:
		return idleDeflate, 0
	case v.agentSilent:
		return idleLeave, 0
	case v.canPause && after(s.AutopauseIdleSecs):
		return idlePause, 0
	case v.canBalloon && !v.reclaimed && v.targetMiB == 0 && size > 0 && after(s.IdleBalloonSecs):
		return idleInflate, size
	}
	return idleLeave, 0
}

// reclaimSize is what idle reclaim takes from a guest of the size, in MiB.
func reclaimSize(s Sandbox, memoryMiB int64) int64 {
	return max(0, min(memoryMiB*s.idlePercent()/100, memoryMiB-api.BalloonFloorMiB))
}

// scanIdle looks at every sandbox until ctx ends.
func (d *Daemon) scanIdle(ctx context.Context) {
	s := d.cfg.Settings.Sandbox
	if !s.scans() {
		return
	}
	tick := time.NewTicker(s.scanEvery())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.idle.poke:
		}
		for _, v := range d.list() {
			if v.isSandbox() {
				v.scan(ctx, s)
			}
		}
	}
}

func (v *vm) scan(ctx context.Context, s Sandbox) {
	act, size := decideIdle(s, v.idleView())
	var err error
	switch act {
	case idleInflate:
		_, err = v.setBalloon(ctx, size, nodeActor, balloonReclaim)
	case idleDeflate:
		_, err = v.setBalloon(ctx, 0, nodeActor, balloonReturn)
	case idlePause:
		err = v.autopause()
	}
	if err != nil && ctx.Err() == nil {
		v.log.Debug("the idle scanner could not do it; it looks again", "error", err)
	}
}

func (v *vm) idleView() idleView {
	can := v.driver.Features()
	v.mu.Lock()
	defer v.mu.Unlock()
	out := idleView{
		state: v.stateLocked(), idleFor: time.Since(v.touched), reclaimed: v.rec.Reclaimed, usedSince: v.touched.After(v.reclaimedAt),
		memoryMiB: v.size.MemoryMiB, canBalloon: can.Balloon && can.BalloonReclaims, canPause: can.Pause,
		agentSilent: v.hasAgent() && !v.rec.Agent,
	}
	if v.run != nil {
		out.targetMiB = v.run.balloon.target
	}
	return out
}

// autopause halts a sandbox that nobody uses, so that its next call lets it go on.
func (v *vm) autopause() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stateLocked() != api.StateRunning || v.rec.Wanted != api.StateRunning {
		return nil
	}
	err := v.changeLocked("", func(r *record) error {
		r.Wanted, r.Paused, r.Autopause = api.StatePaused, true, true
		return nil
	})
	if err == nil {
		v.d.record(nodeActor, "vm.pause", v.id, "ok", map[string]any{"vm_id": v.id, "name": v.rec.Spec.Name, "idle_secs": int64(time.Since(v.touched).Seconds())})
	}
	return err
}

// touch notes that a call has to do with what runs inside the VM.
func (v *vm) touch() {
	v.mu.Lock()
	v.touched = time.Now()
	returns := v.rec.Reclaimed
	v.mu.Unlock()
	if returns {
		v.d.idle.look()
	}
}

// rouse makes a VM that was paused for idleness or hibernated run again, for a call that needs it to.
func (d *Daemon) rouse(c *call, v *vm) error {
	v.touch()
	v.mu.Lock()
	asleep, hibernated := v.rec.Autopause || v.rec.Wanted == stateHibernated, v.rec.Wanted == stateHibernated
	v.mu.Unlock()
	if !asleep {
		return nil
	}
	if hibernated {
		if err := d.admitStart(c, v, v.size.MemoryMiB); err != nil {
			return err
		}
	}
	_, err := v.order(c.token, "", func(r *record) error {
		if !r.Autopause && r.Wanted != stateHibernated {
			return nil // somebody else was faster
		}
		r.Wanted, r.Autopause = api.StateRunning, false
		return nil
	})
	if err != nil {
		d.unreserve(v.id)
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), rouseWithin)
	defer cancel()
	return v.await(ctx, func(api.VMState) bool { return v.ready() })
}

// rouseNamed is rouse for a route that refuses a VM that is not there by itself.
func (d *Daemon) rouseNamed(c *call) error {
	v, err := d.named(c)
	if err != nil {
		return err
	}
	return d.rouse(c, v)
}

// rouseWithin is how long a call waits for a VM to go on.
const rouseWithin = 2 * time.Minute
