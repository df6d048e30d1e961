package node

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	stopGrace   = 8 * time.Second // a guest asked to stop is forced after it
	bootTimeout = 10 * time.Minute
	keepOrders  = 32 // fingerprints of orders kept a VM
	retryFirst  = time.Second
	retryMost   = 30 * time.Second
)

// vm is one VM: its record and its machine. Its goroutine (live) alone starts, stops and removes the machine;
// everyone else changes what the record wants and pokes it.
type vm struct {
	id     string
	dir    string
	driver machine.Driver
	size   api.MachineRequest // as created: what quotas count, readable without mu
	d      *Daemon
	log    hclog.Logger
	poke   chan struct{} // capacity 1

	committed chan struct{} // closed when the create is on disk or has failed
	gone      chan struct{} // closed when live has removed the VM

	mu      sync.Mutex
	rec     record
	run     *run          // nil while no machine runs
	booting bool          // a boot is under way
	abort   func()        // ends the boot under way; nil without one
	fault   error         // why the latest step did not work; cleared by the next order
	changed chan struct{} // closed and replaced at each change of what is shown
	timer   *time.Timer   // the deadline's
	execs   []*execution  // the latest commands given under a token
	touched time.Time     // when a call last had to do with what runs inside

	reclaimedAt time.Time // when the idle scanner last took or gave back

	pinging sync.WaitGroup // goroutines that wait for an agent
}

// run is one machine from its start to its end.
type run struct {
	machine.Machine
	paused  bool
	ctx     context.Context    // of the goroutines that serve this run
	quiet   context.CancelFunc // ends it
	balloon balloon
}

func newVM(d *Daemon, id string, driver machine.Driver, rec record) *vm {
	return &vm{
		id: id, dir: d.machineDir(id), driver: driver, size: rec.Spec, d: d, log: d.log.With("vm", id), rec: rec,
		poke: make(chan struct{}, 1), committed: make(chan struct{}), gone: make(chan struct{}), changed: make(chan struct{}),
	}
}

// step is what live does next.
type step int

const (
	stepNone step = iota
	stepBoot
	stepHalt
	stepPause
	stepResume
	stepHibernate
	stepRemove
)

// stateHibernated is what a record wants whose machine is to be on disk. It is shown as stopped.
const stateHibernated api.VMState = "hibernated"

// nextStep brings a machine nearer to what its record wants. running and paused describe the machine now.
func nextStep(r record, running, paused bool) step {
	switch {
	case r.Wanted == api.StateDeleting && running:
		return stepHalt
	case r.Wanted == api.StateDeleting:
		return stepRemove
	case r.Wanted == api.StateStopped && running, running && r.Booted < r.Boots:
		return stepHalt
	case r.Wanted == api.StateStopped || r.Failed != "":
		return stepNone
	case r.Wanted == stateHibernated && running:
		return stepHibernate
	case r.Wanted == stateHibernated:
		return stepNone
	case !running:
		return stepBoot
	case r.Wanted == api.StatePaused && !paused:
		return stepPause
	case r.Wanted == api.StateRunning && paused:
		return stepResume
	}
	return stepNone
}

// stateOf is how the VM shows itself.
func stateOf(r record, running, paused, booting bool) api.VMState {
	switch {
	case r.Wanted == api.StateDeleting:
		return api.StateDeleting
	case running && r.Booted < r.Boots && r.Wanted != api.StateStopped:
		return api.StateBooting // a restart was ordered; what runs is the machine before it
	case running && paused:
		return api.StatePaused
	case running:
		return api.StateRunning
	case r.Failed != "":
		return api.StateFailed
	case r.Wanted == api.StateStopped || r.Wanted == stateHibernated:
		return api.StateStopped
	case booting:
		return api.StateBooting
	}
	return api.StatePlaced
}

// live runs until the VM is removed or ctx ends, and then lets go of the machine.
func (v *vm) live(ctx context.Context) {
	defer v.letGo()
	retry := retryFirst
	for ctx.Err() == nil {
		v.mu.Lock()
		running, paused := v.run != nil, v.run != nil && v.run.paused
		next := nextStep(v.rec, running, paused)
		if v.held() {
			next = heldStep(next, running)
		}
		var ended <-chan struct{}
		if running {
			ended = v.run.Done()
		}
		v.mu.Unlock()

		var err error
		switch next {
		case stepNone:
			select {
			case <-ctx.Done():
			case <-v.poke:
			case <-ended:
				v.noteEnd()
			}
			continue
		case stepBoot:
			v.boot(ctx)
		case stepHalt:
			err = v.halt(ctx)
		case stepPause:
			v.halve(ctx, true)
		case stepResume:
			v.halve(ctx, false)
		case stepHibernate:
			v.hibernate(ctx)
		case stepRemove:
			if err = v.remove(); err == nil {
				return
			}
		}
		if err == nil {
			retry = retryFirst
			continue
		}
		v.log.Error("the machine does not do what it should; trying again", "error", err, "in", retry)
		v.setFault(err)
		select {
		case <-ctx.Done():
		case <-v.poke:
		case <-time.After(retry):
		}
		retry = min(2*retry, retryMost)
	}
}

// boot starts the machine. A failure is final until somebody orders a start; an order that no longer wants the
// machine ends the attempt.
func (v *vm) boot(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	v.mu.Lock()
	v.abort, v.booting = cancel, true
	spec, boots, saved := machine.Spec{MachineRequest: v.rec.Spec}, v.rec.Boots, v.rec.Saved
	if v.rec.Wanted != api.StateRunning && v.rec.Wanted != api.StatePaused {
		cancel()
	}
	v.tellLocked()
	v.mu.Unlock()

	m, restored, err := v.start(ctx, spec, saved)

	v.mu.Lock()
	defer v.mu.Unlock()
	v.abort, v.booting = nil, false
	aborted := ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case err == nil:
		v.rec.Booted, v.rec.StartedAt = boots, v.d.wall()
		v.rec.Agent, v.rec.ReadyAt = false, 0
		v.rec.Saved, v.rec.Reclaimed, v.rec.Held = false, false, false
		if !restored {
			v.rec.Renew = renewNothing
		}
		v.attachLocked(m, false)
	case aborted: // an order changed its mind, or the daemon ends: nothing has failed
		if v.rec.Wanted == api.StateStopped {
			v.d.reserved.release(v.id)
		}
		return
	default:
		v.rec.Failed = "the boot failed: " + message(err)
		v.d.reserved.release(v.id)
		v.log.Warn("boot failed", "error", err)
		v.d.record("node", "vm.fail", v.id, "failed", map[string]any{"vm_id": v.id, "name": v.rec.Spec.Name, "reason": v.rec.Failed})
	}
	v.keepLocked()
}

// start boots the machine, or goes on from the state saved for it, or from a template of its kind.
func (v *vm) start(ctx context.Context, spec machine.Spec, saved bool) (m machine.Machine, restored bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return nil, false, err
	}
	if err := os.Remove(filepath.Join(v.dir, targetFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	if saved {
		m, err := v.restore(ctx, spec)
		return m, true, err
	}
	if m := v.startFromTemplate(ctx, spec); m != nil {
		return m, true, nil
	}
	if err := os.RemoveAll(filepath.Join(v.dir, savedDir)); err != nil {
		return nil, false, err
	}
	m, err = v.driver.Start(ctx, spec, v.dir)
	return m, false, err
}

// attachLocked takes a machine that runs and asks for its agent until it answers.
func (v *vm) attachLocked(m machine.Machine, paused bool) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{Machine: m, paused: paused, ctx: ctx, quiet: cancel}
	v.run, v.touched = r, time.Now()
	v.reclaimedAt = v.touched // a sandbox that an earlier daemon reclaimed from stays so until it is used
	v.resumeBalloonLocked(r)
	switch {
	case !v.hasAgent():
		v.d.reserved.release(v.id)
	case !v.rec.Agent:
		v.pinging.Go(func() { v.awaitAgent(ctx, r) })
	}
}

// hasAgent says whether the guest is to have an agent.
func (v *vm) hasAgent() bool { return !v.rec.Spec.NoAgent && v.driver.Features().Agent }

func (v *vm) awaitAgent(ctx context.Context, r *run) {
	began := time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(wait*3/2, 100*time.Millisecond) {
		if time.Since(began) > time.Minute {
			wait = time.Second // it is no longer about a quick start
			v.d.reserved.release(v.id)
		}
		ping, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := r.Ping(ping)
		cancel()
		if err == nil {
			err = v.settle(ctx, r)
		}
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-r.Done():
			return
		case <-time.After(wait):
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run != r || v.rec.Booted < v.rec.Boots {
		return
	}
	claimer, can := r.Machine.(machine.Claimer)
	v.rec.CanClaim = can && claimer.CanClaim()
	v.rec.Agent, v.rec.ReadyAt, v.rec.Renew = true, v.d.wall(), renewNothing
	v.touched = time.Now() // a boot is no idleness
	v.d.reserved.release(v.id)
	v.keepLocked()
}

// halt ends the machine: politely where the VM is to be kept, at once where it is to be deleted or cannot hear.
func (v *vm) halt(ctx context.Context) error {
	v.mu.Lock()
	held := v.held()
	r, force := v.run, v.rec.Wanted == api.StateDeleting || v.run.paused || held
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := r.Stop(ctx, force); err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.detachLocked()
	v.fault, v.rec.Held = nil, held
	v.keepLocked()
	return nil
}

// noteEnd records a machine that ended although none of us ended it.
func (v *vm) noteEnd() {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.run.Err()
	v.detachLocked()
	if err == nil {
		if v.rec.Wanted != api.StateDeleting {
			v.rec.Wanted, v.rec.Note = api.StateStopped, "the guest shut itself down"
		}
	} else {
		v.rec.Failed = "the machine ended: " + message(err)
		v.log.Warn("machine ended", "error", err)
		v.d.record("node", "vm.fail", v.id, "failed", map[string]any{"vm_id": v.id, "name": v.rec.Spec.Name, "reason": v.rec.Failed})
	}
	v.keepLocked()
}

func (v *vm) detachLocked() {
	v.d.reserved.release(v.id) // it ended before its agent answered
	v.run.quiet()
	v.run.Release()
	v.run = nil
	v.rec.Agent, v.rec.Paused, v.rec.Autopause = false, false, false
}

// halve pauses or resumes. One that does not work is not tried again: the record goes back to what is.
func (v *vm) halve(ctx context.Context, pause bool) {
	v.mu.Lock()
	r := v.run
	v.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	act := r.Resume
	if pause {
		act = r.Pause
	}
	err := act(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		r.paused, v.rec.Paused = pause, pause
	} else if v.fault = err; pause {
		v.rec.Wanted = api.StateRunning
	} else {
		v.rec.Wanted = api.StatePaused
	}
	v.keepLocked()
}

// remove frees what is left of a VM whose machine has ended, and its record.
func (v *vm) remove() error {
	v.mu.Lock()
	spec := machine.Spec{MachineRequest: v.rec.Spec}
	v.mu.Unlock()
	if err := v.driver.Remove(spec, v.dir); err != nil {
		return err
	}
	if err := os.RemoveAll(v.dir); err != nil {
		return err
	}
	if err := v.d.bury(v); err != nil {
		return err
	}
	v.d.reserved.release(v.id)
	close(v.gone)
	return nil
}

// letGo ends what live owns. A machine that can outlive the daemon goes on unless it was told otherwise.
func (v *vm) letGo() {
	v.mu.Lock()
	if v.timer != nil {
		v.timer.Stop()
	}
	r := v.run
	if r != nil {
		r.quiet()
	}
	v.mu.Unlock()
	v.pinging.Wait()
	if r == nil {
		return
	}
	if v.d.cfg.StopMachines || !v.driver.Features().Survives {
		ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
		defer cancel()
		if err := r.Stop(ctx, true); err != nil {
			v.log.Error("the machine did not end", "error", err)
		}
	}
	r.Release()
}

// adopt finds the machine that an earlier daemon started. It is called once, before live.
func (v *vm) adopt(ctx context.Context) {
	v.mu.Lock()
	rec := v.rec
	v.mu.Unlock()
	m, err := v.driver.Adopt(ctx, machine.Spec{MachineRequest: rec.Spec}, v.dir)
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case err == nil:
		if v.rec.Booted == 0 { // the daemon ended between the machine's start and its record's
			v.rec.Booted, v.rec.StartedAt = v.rec.Boots, v.d.wall()
		}
		v.rec.Failed, v.rec.Saved = "", false
		v.attachLocked(m, v.settlePause(ctx, m, rec))
		return
	case rec.Wanted == api.StateDeleting || rec.Wanted == api.StateStopped || rec.Failed != "" || rec.Booted < rec.Boots || rec.Held:
		// It was to end anyway, or its boot had not come to an end: live goes on from here.
		if !errors.Is(err, machine.ErrGone) {
			v.log.Warn("the machine could not be taken over", "error", err)
		}
		return
	case rec.Wanted == stateHibernated && (rec.Saved || v.hasSaved()):
		v.rec.Saved = true // the daemon ended between the saving and its record
	case errors.Is(err, machine.ErrGone):
		v.rec.Failed = "the machine ended while the daemon was down"
	default:
		v.rec.Failed = "the machine could not be taken over: " + message(err)
	}
	v.rec.Agent = false
	v.keepLocked()
}

// settlePause makes a machine just taken over paused or not as its record wants: the daemon may have ended between
// an order and its effect.
func (v *vm) settlePause(ctx context.Context, m machine.Machine, rec record) (paused bool) {
	var err error
	switch {
	case rec.Wanted == api.StatePaused:
		err, paused = m.Pause(ctx), true
	case rec.Paused:
		err = m.Resume(ctx)
	}
	if err != nil {
		v.log.Warn("the machine taken over could not be paused or resumed", "error", err)
		return !paused
	}
	v.rec.Paused = paused
	return paused
}

// keepLocked saves the record and tells whoever waits or reports. A record that cannot be saved now is saved with
// the next change; what it says already holds.
func (v *vm) keepLocked() {
	if err := v.d.store.put(v.id, v.rec); err != nil {
		v.log.Error("the VM's record is not saved", "error", err)
	}
	v.tellLocked()
}

func (v *vm) tellLocked() {
	close(v.changed)
	v.changed = make(chan struct{})
	v.d.beats.poke()
}

func (v *vm) setFault(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fault = err
	v.tellLocked()
}

// nudge makes live look again.
func (v *vm) nudge() {
	select {
	case v.poke <- struct{}{}:
	default:
	}
}

// order commits one change of the record under a token; live carries it out. A repeat of an order that was
// carried out changes nothing and says so.
func (v *vm) order(t token, fingerprint string, change func(*record) error) (repeated bool, err error) {
	err = v.d.gate.within(t, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if fingerprint != "" && slices.Contains(v.rec.Orders, fingerprint) {
			repeated = true
			return nil
		}
		if v.rec.Wanted == api.StateDeleting {
			return api.Errorf(api.CodeConflict, "VM %s is being deleted; make another one", v.id)
		}
		return v.changeLocked(fingerprint, change)
	})
	return repeated, err
}

// changeLocked commits a change: all of it is on disk, or none of it has happened.
func (v *vm) changeLocked(fingerprint string, change func(*record) error) error {
	next := v.rec
	next.Spec.Labels = maps.Clone(v.rec.Spec.Labels)
	if err := change(&next); err != nil {
		return err
	}
	if fingerprint != "" {
		next.Orders = append(slices.Clone(v.rec.Orders), fingerprint)
		next.Orders = next.Orders[max(0, len(next.Orders)-keepOrders):]
	}
	if err := v.d.store.put(v.id, next); err != nil {
		return err
	}
	v.rec, v.fault = next, nil
	if wants := next.Wanted; v.abort != nil && wants != api.StateRunning && wants != api.StatePaused {
		v.abort()
	}
	v.armLocked()
	v.tellLocked()
	v.nudge()
	return nil
}

// armLocked sets the timer by the record's deadline.
func (v *vm) armLocked() {
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
	if v.rec.Deadline == nil || v.rec.Wanted == api.StateDeleting {
		return
	}
	v.timer = time.AfterFunc(v.rec.Deadline.left(now(v.d.cfg.Facts)), v.expire)
}

// expire deletes the VM if its deadline has passed; otherwise it sets the timer again.
func (v *vm) expire() {
	if !v.d.hold() {
		return
	}
	defer v.d.leave()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rec.Deadline == nil || v.rec.Wanted == api.StateDeleting {
		return
	}
	if v.rec.Deadline.left(now(v.d.cfg.Facts)) > 0 {
		v.armLocked()
		return
	}
	err := v.changeLocked("", func(r *record) error {
		r.Wanted, r.End = api.StateDeleting, "expired"
		return nil
	})
	if err != nil {
		v.log.Error("the expired VM is not deleted yet", "error", err)
		v.timer = time.AfterFunc(retryFirst, v.expire)
		return
	}
	v.d.record("node", "vm.expire", v.id, "ok", map[string]any{"vm_id": v.id, "name": v.rec.Spec.Name})
	v.d.ordered("expire", v.id, v.rec.Spec.Name, "")
}

// saveRemainder writes down what is left of the deadline, for the case that the host reboots.
func (v *vm) saveRemainder() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.rec.Deadline == nil || v.rec.Wanted == api.StateDeleting {
		return
	}
	next := v.rec
	next.Deadline = next.Deadline.rebased(now(v.d.cfg.Facts))
	if err := v.d.store.put(v.id, next); err != nil {
		v.log.Warn("the VM's deadline is not saved", "error", err)
		return
	}
	v.rec = next
}

// await blocks until what is shown satisfies done, a step fails, or ctx ends.
func (v *vm) await(ctx context.Context, done func(api.VMState) bool) error {
	for {
		v.mu.Lock()
		state, fault, changed := v.stateLocked(), v.fault, v.changed
		v.mu.Unlock()
		switch {
		case done(state):
			return nil
		case fault != nil:
			return api.Errorf(api.CodeInternal, "the backend could not do it: %s", message(fault))
		case state == api.StateFailed || state == api.StateDeleting:
			return api.Errorf(api.CodeConflict, "VM %s is %s now", v.id, state)
		}
		select {
		case <-ctx.Done():
			return api.Errorf(api.CodeOutcomeUnknown, "VM %s is still at it; look at its state", v.id)
		case <-v.gone:
			return api.Errorf(api.CodeConflict, "VM %s is deleted now", v.id)
		case <-changed:
		}
	}
}

// awaitGone blocks until the VM is gone, a step of that fails, or nobody waits any more.
func (v *vm) awaitGone(ctx context.Context) (answer, error) {
	for {
		v.mu.Lock()
		fault, changed := v.fault, v.changed
		v.mu.Unlock()
		if fault != nil {
			return answer{}, api.Errorf(api.CodeInternal, "VM %s is not deleted yet; the host goes on trying: %s", v.id, message(fault))
		}
		select {
		case <-v.gone:
			return answer{status: http.StatusNoContent}, nil
		case <-changed:
			continue
		case <-ctx.Done():
		case <-v.d.closing:
		}
		return answer{}, api.Errorf(api.CodeOutcomeUnknown, "VM %s is still being deleted; it will be gone soon", v.id)
	}
}

func (v *vm) stateLocked() api.VMState {
	state := stateOf(v.rec, v.run != nil, v.run != nil && v.run.paused, v.booting)
	if state == api.StatePlaced && v.held() {
		return api.StateStopped
	}
	return state
}

// view is the VM as the API shows it.
func (v *vm) view() api.Machine {
	v.mu.Lock()
	rec, state, r := v.rec, v.stateLocked(), v.run
	labels := maps.Clone(rec.Spec.Labels)
	v.mu.Unlock()
	s := rec.Spec
	if labels == nil {
		labels = map[string]string{}
	}
	out := api.Machine{
		ID: v.id, Name: s.Name, Backend: s.Backend, Image: s.Image, GuestOS: s.GuestOS, VCPUs: s.VCPUs, MemoryMiB: s.MemoryMiB, DiskSizeGiB: s.DiskSizeGiB,
		State: state, Reason: rec.Failed, Labels: labels, Agent: rec.Agent, CanClaim: rec.Agent && rec.CanClaim,
		CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, ReadyAt: rec.ReadyAt, ExpiresAt: rec.ExpiresAt,
	}
	if out.Reason == "" && state == api.StateStopped {
		if out.Reason = rec.Note; out.Reason == "" && rec.Wanted != api.StateStopped && v.leased() {
			out.Reason = reasonHeld
		}
	}
	if rec.Wanted == stateHibernated && out.Reason == "" {
		out.Reason = "hibernated: it is saved to disk, and the next call wakes it"
	}
	if r != nil {
		out.IP = r.IP()
	}
	return out
}

// ready says whether the VM runs and its agent, if it is to have one, has answered.
func (v *vm) ready() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stateLocked() == api.StateRunning && (v.rec.Agent || !v.hasAgent())
}

// machineNow is the machine that runs; nil without one.
func (v *vm) machineNow() machine.Machine {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.run == nil {
		return nil
	}
	return v.run.Machine
}

// spec is what the machine is made of.
func (v *vm) spec() machine.Spec {
	v.mu.Lock()
	defer v.mu.Unlock()
	return machine.Spec{MachineRequest: v.rec.Spec}
}

// message is an error's text for people: an api.Error without its code.
func message(err error) string {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Detail
	}
	return err.Error()
}
