package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	// targetFile holds the size last asked for, in the VM's directory: QEMU does not tell it. Each launch removes it.
	targetFile = "balloon-target-mib"

	// followWithin is how long the guest may take to give up anything more before it counts as not following.
	followWithin = 10 * time.Second

	followPoll = 100 * time.Millisecond

	leastStepMiB = 64
)

// balloon is that of one run of a machine.
type balloon struct {
	mu     sync.Mutex // held while one size is set; what follows is guarded by the VM's own lock
	target int64      // MiB, as last asked for
	driver string     // absent or stuck, once the guest did not follow
	moving bool       // a mover is at work; it sees every later target
}

// nextSize is what the device is told next on its way to the target. It deflates at once and inflates in steps, each
// begun when the guest has followed the one before.
func nextSize(target, set, actual, memoryMiB int64) int64 {
	if target <= set {
		return target
	}
	return min(target, max(set, actual)+max(leastStepMiB, memoryMiB/8))
}

// ballooner is the running machine if it may have a balloon; otherwise the refusal.
func (v *vm) ballooner() (*run, machine.Ballooner, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == nil {
		return nil, nil, api.Errorf(api.CodeInvalid, "VM %s is %s; only a running VM has a balloon", v.id, v.stateLocked())
	}
	if b, ok := v.run.Machine.(machine.Ballooner); ok {
		return v.run, b, nil
	}
	return nil, nil, v.noBalloon()
}

func (v *vm) noBalloon() error {
	how := "create it on a backend that has one, such as flux-vm"
	if v.driver.Features().BalloonAsked {
		how = `create it with "balloon": {}`
	}
	return api.Errorf(api.CodeInvalid, "VM %s has no balloon; %s", v.id, how)
}

// readBalloon is the balloon as the API shows it.
func (v *vm) readBalloon(ctx context.Context) (api.Balloon, error) {
	r, device, err := v.ballooner()
	if err != nil {
		return api.Balloon{}, err
	}
	actual, err := device.Balloon(ctx)
	switch {
	case errors.Is(err, machine.ErrNoBalloon):
		return api.Balloon{}, v.noBalloon()
	case err != nil:
		return api.Balloon{}, fmt.Errorf("reading the balloon of VM %s: %w", v.id, err)
	}
	out := api.Balloon{MemoryMiB: v.size.MemoryMiB}
	v.mu.Lock()
	out.TargetMiB, out.Driver = r.balloon.target, r.balloon.driver
	v.mu.Unlock()
	if actual >= 0 {
		actual = min(actual, out.MemoryMiB)
		out.ActualMiB = &actual
	}
	return out, nil
}

func checkBalloon(mib, memoryMiB int64) error {
	switch {
	case mib < 0:
		return api.Invalid("balloon_mib", "balloon_mib must not be negative; 0 gives the guest all its memory back")
	case memoryMiB-mib < api.BalloonFloorMiB && mib > 0:
		return api.Invalid("balloon_mib", "balloon_mib must be at most %d: it must leave %d MiB of %d to the guest", max(0, memoryMiB-api.BalloonFloorMiB), api.BalloonFloorMiB, memoryMiB)
	}
	return nil
}

// balloonOwner is on whose behalf a balloon is set.
type balloonOwner int

const (
	balloonByHand  balloonOwner = iota // whoever calls; from then on the scanner leaves it alone
	balloonReclaim                     // the scanner, from an idle sandbox whose balloon nobody has set
	balloonReturn                      // the scanner, what it took itself
)

// setBalloon moves the target and sees to it that the device follows. It is the one way for callers and scanner.
func (v *vm) setBalloon(ctx context.Context, mib int64, actor string, owner balloonOwner) (api.Balloon, error) {
	if err := checkBalloon(mib, v.size.MemoryMiB); err != nil {
		return api.Balloon{}, err
	}
	if _, err := v.readBalloon(ctx); err != nil {
		return api.Balloon{}, err
	}
	r, device, err := v.ballooner()
	if err != nil {
		return api.Balloon{}, err
	}
	r.balloon.mu.Lock()
	defer r.balloon.mu.Unlock()
	v.mu.Lock()
	reclaimed, target := v.rec.Reclaimed, r.balloon.target
	v.mu.Unlock()
	if owner == balloonReclaim && (reclaimed || target != 0) || owner == balloonReturn && !reclaimed {
		return v.readBalloon(ctx) // a call was faster, and its wish stands
	}
	// That the scanner took it is on disk before it is taken, and until it is given back.
	if owner == balloonReclaim {
		if err := v.keepReclaimed(true); err != nil {
			return api.Balloon{}, err
		}
	}
	if err := os.WriteFile(filepath.Join(v.dir, targetFile), []byte(strconv.FormatInt(mib, 10)+"\n"), 0o600); err != nil {
		return api.Balloon{}, saveError(err)
	}
	v.mu.Lock()
	r.balloon.target, r.balloon.driver = mib, ""
	v.moveBalloonLocked(r, device)
	v.mu.Unlock()
	if owner != balloonReclaim && reclaimed {
		if err := v.keepReclaimed(false); err != nil {
			return api.Balloon{}, err
		}
	}
	v.d.record(actor, "vm.balloon", v.id, "ok", map[string]any{"vm_id": v.id, "target_mib": mib})
	return v.readBalloon(ctx)
}

func (v *vm) keepReclaimed(is bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := v.rec
	next.Reclaimed = is
	if err := v.d.store.put(v.id, next); err != nil {
		return err
	}
	v.rec, v.reclaimedAt = next, time.Now()
	return nil
}

// moveBalloonLocked starts the mover unless one is at work.
func (v *vm) moveBalloonLocked(r *run, device machine.Ballooner) {
	if r.balloon.moving || r.ctx.Err() != nil {
		return
	}
	r.balloon.moving = true
	v.pinging.Go(func() { v.moveBalloon(r, device) })
}

// moveBalloon brings the device to the target, step by step, until it is there or the guest does not follow.
func (v *vm) moveBalloon(r *run, device machine.Ballooner) {
	set, last, goal := int64(-1), int64(-1), int64(-1) // what the device was told, what it had, and where it was going
	moved := time.Now()
	for {
		actual, err := device.Balloon(r.ctx)
		follows := err == nil && (actual < 0 || actual >= set)
		if err == nil && actual != last {
			last, moved = actual, time.Now()
		}
		if err == nil && set < 0 {
			set = max(0, actual)
		}
		v.mu.Lock()
		if r.balloon.target != goal || r.paused { // a paused guest follows when it runs again
			goal, moved = r.balloon.target, time.Now()
		}
		there := err == nil && set == goal && follows
		late := time.Since(moved) > followWithin
		if over := there || late || r.ctx.Err() != nil || errors.Is(err, machine.ErrNoBalloon); over {
			r.balloon.moving = false
			if late && !there {
				r.balloon.driver = api.BalloonStuck
				if actual <= 0 {
					r.balloon.driver = api.BalloonAbsent
				}
				v.log.Info("the guest does not follow its balloon", "target_mib", goal, "actual_mib", actual, "driver", r.balloon.driver, "error", err)
			}
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		if err == nil && set != goal && (goal < set || follows) {
			next := nextSize(goal, set, actual, v.size.MemoryMiB)
			if err := device.SetBalloon(r.ctx, next); err == nil {
				set, moved = next, time.Now()
				continue
			}
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(followPoll):
		}
	}
}

// resumeBalloon goes on with the target that an earlier daemon left.
func (v *vm) resumeBalloonLocked(r *run) {
	device, ok := r.Machine.(machine.Ballooner)
	if !ok {
		return
	}
	raw, err := os.ReadFile(filepath.Join(v.dir, targetFile))
	if err != nil {
		return // nothing was asked for since the launch
	}
	target, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil || checkBalloon(target, v.size.MemoryMiB) != nil {
		v.log.Warn("the balloon's target cannot be read; it is taken for 0", "file", targetFile)
		target = 0
	}
	r.balloon.target = target
	v.moveBalloonLocked(r, device)
}

func (d *Daemon) getBalloon(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	b, err := v.readBalloon(c.Context())
	if err != nil {
		return answer{}, err
	}
	return ok(b)
}

func (d *Daemon) postBalloon(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	var req api.BalloonRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	if req.BalloonMiB == nil {
		return answer{}, api.Invalid("balloon_mib", "balloon_mib is required: how many MiB the guest is to give back, 0 for none")
	}
	var b api.Balloon
	err = d.gate.within(c.token, func() (err error) {
		b, err = v.setBalloon(c.Context(), *req.BalloonMiB, c.actor, balloonByHand)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	return ok(b)
}
