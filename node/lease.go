package node

import (
	"context"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	leaseLook = time.Second
	leaseSave = 30 * time.Second // an older mark ends the lease sooner after a restart, never later
)

const reasonHeld = "its host has not heard the fleet for so long that the VM may boot elsewhere; it starts again when the fleet answers"

// lease is how long this host may run VMs that boot elsewhere when it is lost. Only the leader's answer to a report
// renews it, from the moment that the report was sent, and central boots no VM elsewhere before every lease that it gave
// has run out: so no VM runs twice, whichever way the network is cut. It counts on the host's own clock, which goes on
// while the host sleeps.
type lease struct {
	mu     sync.Mutex
	until  mark // zero: none
	saved  mark // the last that is on disk
	lapsed bool // as of the last look
}

// runs says whether the lease holds now.
func (l *lease) runs(now mark) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	over, ok := now.since(l.until)
	return ok && over < 0
}

// extend takes an answer to a report that was sent at the given time, and says whether the mark is to be saved.
func (l *lease) extend(sent mark, by time.Duration) (until mark, save bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until = mark{Boot: sent.Boot, At: sent.At + by}
	if later, ok := until.since(l.until); ok && later <= 0 {
		return l.until, false
	}
	l.until = until
	later, ok := until.since(l.saved)
	if save = !ok || later >= leaseSave; save {
		l.saved = until
	}
	return until, save
}

// turned says whether the lease has run out or come back since the last look.
func (l *lease) turned(now mark) (lapsed, news bool) {
	runs := l.runs(now)
	l.mu.Lock()
	defer l.mu.Unlock()
	news, l.lapsed = l.lapsed == runs, !runs
	return !runs, news
}

// leased says that the VM runs only while the lease does.
func (v *vm) leased() bool { return v.size.Reschedulable && len(v.d.cfg.Central) > 0 }

// held says that the VM may not run now.
func (v *vm) held() bool { return v.leased() && !v.d.lease.runs(now(v.d.cfg.Facts)) }

// heldStep is what becomes of a step of a VM that may not run.
func heldStep(next step, running bool) step {
	switch {
	case running:
		return stepHalt
	case next == stepBoot:
		return stepNone
	}
	return next
}

// renew takes the leader's word that VMs which may boot elsewhere may run here.
func (d *Daemon) renew(sent mark, by time.Duration) {
	until, save := d.lease.extend(sent, by)
	if save && len(d.onLease()) > 0 {
		if err := d.store.write(bucketMeta, keyLease, until); err != nil {
			d.log.Warn("the fleet's lease is not saved: after a restart of the daemon VMs that may boot elsewhere wait for the fleet", "error", err)
		}
	}
	d.lookAtLease()
}

func (d *Daemon) onLease() (out []*vm) {
	for _, v := range d.list() {
		if v.leased() {
			out = append(out, v)
		}
	}
	return out
}

// watchLease stops what may not run once the lease has run out. It looks often rather than set a timer, for timers stand
// still while the host sleeps.
func (d *Daemon) watchLease(ctx context.Context) {
	tick := time.NewTicker(leaseLook)
	defer tick.Stop()
	for {
		d.lookAtLease()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (d *Daemon) lookAtLease() {
	lapsed, news := d.lease.turned(now(d.cfg.Facts))
	if !news {
		return
	}
	all := d.onLease()
	if lapsed && len(all) > 0 {
		d.log.Warn("the fleet has not answered for too long: stopping the VMs that may boot elsewhere", "vms", len(all))
		d.record("node", "node.fence", d.cfg.Name, "ok", map[string]any{"vms": len(all)})
	}
	for _, v := range all {
		v.mu.Lock()
		if lapsed && v.abort != nil && v.rec.Wanted != api.StateDeleting {
			v.abort()
		}
		v.tellLocked()
		v.nudge()
		v.mu.Unlock()
	}
}
