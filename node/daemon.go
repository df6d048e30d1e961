package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

const (
	adoptTimeout  = 15 * time.Second
	housekeeping  = 30 * time.Second // saves deadlines, forgets tombstones
	drainRequests = 3 * time.Second  // what an open request gets when the daemon ends
)

// Daemon is the daemon of one host.
type Daemon struct {
	cfg     Config
	log     hclog.Logger
	handler http.Handler
	metrics *metrics
	events  *events
	beats   *beats
	steer   Steering // nil unless a driver has it
	id      identity

	loopback bool // the API listens on loopback only
	secured  bool // the API speaks TLS
	issue    issue
	refusals *guard.Rate  // of one address, for tokens that are not good
	under    *guard.Slots // requests under way

	store     *store
	gate      gate
	scrubs    *scrubs
	reserved  *reservations
	lease     lease
	templates *templates
	idle      idle

	mu        sync.Mutex
	vms       map[string]*vm
	tombs     map[string]tombstone
	barred    map[string]bar  // ids whose end was ordered before they were made
	scrubbing bool            // no VM may come
	copying   map[string]bool // ids of VMs whose saved state is being put in place

	lives    sync.WaitGroup // live of every VM
	liveCtx  context.Context
	instance atomic.Value // string

	stateMu sync.Mutex // guards what follows
	phase   phase
	busy    sync.WaitGroup // requests and timers that use the store
	cancel  context.CancelFunc
	closing chan struct{} // closed when the daemon begins to end: nobody may wait for a VM any more
	ended   chan struct{} // closed when Run has returned
}

// phase is how far the daemon is in its one life.
type phase int

const (
	phaseNew phase = iota
	phaseStarting
	phaseServing
	phaseEnded
)

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Daemon, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, fmt.Errorf("configuring the node: %w", err)
	}
	d := &Daemon{
		cfg: cfg, log: cfg.Logger.Named("node").With("node", cfg.Name), events: newEvents(), vms: map[string]*vm{}, tombs: map[string]tombstone{}, barred: map[string]bar{},
		scrubs: newScrubs(), reserved: newReservations(), templates: newTemplates(), idle: newIdle(), copying: map[string]bool{}, steer: steering(cfg.Drivers), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	d.refusals, d.under = guard.NewRate(refusalsPerSecond, refusalsBurst, time.Now), guard.NewSlots(requestsAll, requestsAll)
	d.instance.Store(uuid.NewString())
	d.beats = newBeats(d)
	d.metrics = newMetrics(d)
	d.handler = d.routes()
	return d, nil
}

// Handler is the host's API. Until Run has taken the host's VMs over it answers unavailable.
func (d *Daemon) Handler() http.Handler { return d.handler }

// Run takes over the VMs of an earlier daemon, serves the API and reports to central until ctx ends or Close is
// called. It can run once.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.stateMu.Lock()
	if d.phase != phaseNew {
		d.stateMu.Unlock()
		return errors.New("the node ran already or was closed: make another one")
	}
	d.phase, d.cancel = phaseStarting, cancel
	d.stateMu.Unlock()
	defer close(d.ended)
	err := d.run(ctx)
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = nil
	}
	return err
}

// Close ends Run and waits for it. It may be called any number of times.
func (d *Daemon) Close() error {
	d.stateMu.Lock()
	cancel, was := d.cancel, d.phase
	if was == phaseNew {
		d.phase = phaseEnded
	}
	d.stateMu.Unlock()
	if was == phaseNew || cancel == nil {
		return nil
	}
	cancel()
	<-d.ended
	return nil
}

func (d *Daemon) run(ctx context.Context) (err error) {
	listener := d.cfg.Listener
	if listener == nil {
		if listener, err = net.Listen("tcp", d.cfg.Listen); err != nil {
			return fmt.Errorf("listening on %s: %w", d.cfg.Listen, err)
		}
	}
	defer listener.Close()
	if err := d.cfg.guarded(listener.Addr()); err != nil {
		return err
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		d.loopback = tcp.IP.IsLoopback()
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok && tcp.IP.IsUnspecified() && d.cfg.AdvertiseURL == "" && len(d.cfg.Central) > 0 {
		return fmt.Errorf("%s is every address of this host: say with --advertise-url at which one central reaches it", tcp)
	}
	serving, err := d.secure(listener)
	if err != nil {
		return err
	}
	if err := d.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.store.close()) }()
	if err := d.loadCertificate(); err != nil {
		return err
	}

	liveCtx, endLives := context.WithCancel(context.Background())
	defer endLives()
	d.liveCtx = liveCtx
	d.adoptAll(ctx)

	server := &http.Server{Handler: d.handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: d.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(serving) }()
	if d.steer != nil {
		d.steer.Steer(d.cfg.Facts.BootID(), d.beats.poke, d.rebooted)
	}
	d.log.Info("serving", "address", listener.Addr().String(), "backend", d.cfg.Backend, "vms", len(d.vms))
	d.setPhase(phaseServing)
	var background sync.WaitGroup
	background.Go(func() { d.keepHouse(ctx) })
	background.Go(func() { d.beats.run(ctx) })
	background.Go(func() { d.scanIdle(ctx) })
	background.Go(func() { d.watchLease(ctx) })
	background.Go(func() { d.keepSlots(ctx) })
	if d.cfg.TLS != nil {
		background.Go(func() { d.cfg.TLS.Run(ctx) })
	}

	select {
	case <-ctx.Done():
	case err = <-served:
		err = fmt.Errorf("serving on %s: %w", listener.Addr(), err)
	}
	d.beats.stop()
	endRequests, cancelRequests := context.WithTimeout(context.Background(), drainRequests)
	defer cancelRequests()
	if server.Shutdown(endRequests) != nil {
		server.Close()
	}
	d.setPhase(phaseEnded)
	close(d.closing)
	d.busy.Wait()
	background.Wait()
	endLives()
	d.lives.Wait()
	return err
}

func (d *Daemon) setPhase(p phase) {
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	d.phase = p
}

// enter says whether the daemon serves, and if so keeps the store open until leave.
func (d *Daemon) enter() bool { return d.holdIn(phaseServing) }

// hold is enter for the daemon's own timers, which may fire before it serves: a deadline may have passed while no
// daemon ran.
func (d *Daemon) hold() bool { return d.holdIn(phaseStarting, phaseServing) }

func (d *Daemon) holdIn(phases ...phase) bool {
	d.stateMu.Lock()
	defer d.stateMu.Unlock()
	if !slices.Contains(phases, d.phase) {
		return false
	}
	d.busy.Add(1)
	return true
}

func (d *Daemon) leave() { d.busy.Done() }

// open reads who this node is and what it has.
func (d *Daemon) open() error {
	if err := os.MkdirAll(filepath.Join(d.cfg.DataDir, "vms"), 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	var err error
	if d.store, err = openStore(d.cfg.DataDir); err != nil {
		return err
	}
	if err := d.load(); err != nil {
		return errors.Join(err, d.store.close())
	}
	return nil
}

func (d *Daemon) load() error {
	var err error
	if d.id, err = openIdentity(d.cfg.DataDir); err != nil {
		return err
	}
	records, tombs, seen, err := d.store.load()
	if err != nil {
		return err
	}
	d.tombs = tombs
	d.gate.seen, d.gate.save = seen, d.store.putFence
	if d.scrubs.done, err = d.store.scrubs(); err != nil {
		return err
	}
	if d.lease.until, err = d.store.lease(); err != nil {
		return err
	}
	if err := d.templates.load(d.snapshotsDir()); err != nil {
		return err
	}
	d.sweepImports()
	if d.cfg.VCPUsTotal == 0 {
		d.cfg.VCPUsTotal = runtime.NumCPU()
	}
	if d.cfg.MemoryMiBTotal == 0 {
		m, err := d.cfg.Facts.Memory()
		if err != nil {
			return err
		}
		d.cfg.MemoryMiBTotal = m.MemTotalMiB
	}
	for id, rec := range records {
		driver := d.driver(rec.Spec.Backend)
		if driver == nil {
			return fmt.Errorf("VM %s (%s) runs on backend %q, which this daemon was started without: start it with that backend, or delete the VM there first", id, rec.Spec.Name, rec.Spec.Backend)
		}
		if rec.Deadline != nil {
			rec.Deadline = rec.Deadline.rebased(now(d.cfg.Facts))
		}
		v := newVM(d, id, driver, rec)
		close(v.committed)
		d.vms[id] = v
	}
	return nil
}

// adoptAll takes over all machines at once, and returns when each is either held or known to have ended.
func (d *Daemon) adoptAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	var adopting sync.WaitGroup
	for _, v := range d.vms {
		adopting.Go(func() { v.adopt(ctx) })
	}
	adopting.Wait()
	for _, v := range d.vms {
		v.mu.Lock()
		v.armLocked()
		v.mu.Unlock()
		d.lives.Go(func() { v.live(d.liveCtx) })
	}
}

// keepHouse saves what is left of deadlines and forgets old tombstones.
func (d *Daemon) keepHouse(ctx context.Context) {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var saving sync.WaitGroup // at once, so that they share a commit
		for _, v := range d.list() {
			saving.Go(v.saveRemainder)
		}
		saving.Wait()
		if err := d.forgetOld(); err != nil {
			d.log.Warn("old records are not removed", "error", err)
		}
	}
}

func (d *Daemon) forgetOld() error {
	at, wall := now(d.cfg.Facts), d.wall()
	d.mu.Lock()
	var old []string
	for id, t := range d.tombs {
		if t.ago(at, wall) > keepGone {
			old = append(old, id)
			delete(d.tombs, id)
		}
	}
	maps.DeleteFunc(d.barred, func(_ string, b bar) bool {
		ago, ok := at.since(b.since)
		return ok && ago > keepGone
	})
	d.mu.Unlock()
	if len(old) == 0 {
		return nil
	}
	return d.store.forget(old)
}

// bury replaces a VM by its tombstone.
func (d *Daemon) bury(v *vm) error {
	last := v.reported()
	v.mu.Lock()
	reason, order := v.rec.End, v.rec.Order
	v.mu.Unlock()
	last.State, last.Reason, last.Agent, last.IP = api.StateGone, reason, false, ""
	t := tombstone{Last: last, Ended: now(d.cfg.Facts), EndedAt: d.wall(), Order: order}
	if err := d.store.bury(v.id, t); err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.vms, v.id)
	d.tombs[v.id] = t
	d.mu.Unlock()
	d.beats.poke()
	return nil
}

// rebooted ends every VM as a boot of the host does.
func (d *Daemon) rebooted() {
	if !d.enter() {
		return
	}
	defer d.leave()
	d.instance.Store(uuid.NewString())
	var ending []*vm
	for _, v := range d.list() {
		v.mu.Lock()
		if v.rec.Wanted != api.StateDeleting {
			err := v.changeLocked("", func(r *record) error {
				r.Wanted, r.End = api.StateDeleting, "the host rebooted"
				return nil
			})
			if err != nil {
				v.log.Error("the VM is not ended", "error", err)
			} else {
				ending = append(ending, v)
			}
		}
		v.mu.Unlock()
	}
	for _, v := range ending {
		select {
		case <-v.gone:
		case <-d.closing:
		}
	}
	d.beats.poke()
}

// list is every VM in the order of ids.
func (d *Daemon) list() []*vm {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]*vm, 0, len(d.vms))
	for _, id := range slices.Sorted(maps.Keys(d.vms)) {
		select {
		case <-d.vms[id].committed:
			out = append(out, d.vms[id])
		default: // its create has not happened yet
		}
	}
	return out
}

// bar is the end of a VM that is not here.
type bar struct {
	since mark
	order uint64
}

// bar keeps a VM that is not here from being made by an order that was given before its end and may still be on its way.
// Such an order does not outlive the daemon, so this need not either.
func (d *Daemon) bar(id string, order uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.vms[id] != nil {
		return beingMade(id)
	}
	d.barred[id] = bar{now(d.cfg.Facts), max(order, d.barred[id].order)}
	return nil
}

func beingMade(id string) error {
	return api.Errorf(api.CodeUnavailable, "VM %s is only being made; try again", id)
}

// endedLocked says that the VM has ended, and is not to be made by an order from before that. A later order makes it anew:
// it moved to another host and comes back.
func (d *Daemon) endedLocked(id string, order uint64) bool {
	t, buried := d.tombs[id]
	b, barred := d.barred[id]
	return buried && (t.Order == 0 || order <= t.Order) || barred && order <= b.order
}

// find is the VM with the id; not_found without one, unavailable while its create is not decided.
func (d *Daemon) find(id string) (*vm, error) {
	d.mu.Lock()
	v := d.vms[id]
	_, buried := d.tombs[id]
	d.mu.Unlock()
	if v != nil {
		select {
		case <-v.committed:
			return v, nil
		default:
			return nil, beingMade(id)
		}
	}
	if buried {
		return nil, api.Errorf(api.CodeNotFound, "VM %s has ended", id)
	}
	return nil, api.Errorf(api.CodeNotFound, "this host has no such VM; GET /v1/vms lists those it has")
}

func (d *Daemon) driver(backend string) machine.Driver {
	for _, driver := range d.cfg.Drivers {
		if driver.Name() == backend {
			return driver
		}
	}
	return nil
}

func (d *Daemon) machineDir(id string) string { return filepath.Join(d.cfg.DataDir, "vms", id) }

func (d *Daemon) wall() api.Time { return api.TimeOf(d.cfg.Clock.Now()) }

// record adds an event to what GET /v1/events shows.
func (d *Daemon) record(actor, action, target, outcome string, detail map[string]any) {
	d.events.add(d.wall(), actor, action, target, outcome, detail)
}

// ordered tells a steering driver of an order that was carried out.
func (d *Daemon) ordered(op, vmID, name, token string) {
	if d.steer != nil {
		d.steer.Ordered(op, vmID, name, token)
	}
}
