package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	restOfReplicas = 3 * time.Second // at most, between two faults
	restOfHosts    = 4 * time.Second
	progressEvery  = 5 * time.Second
)

// Run makes a campaign, in network, mount and process namespaces of its own: see Enter. When ctx ends it heals, checks
// what there is, and ends.
func Run(ctx context.Context, cfg Config) (Report, error) {
	rec := newRecord(cfg.Out)
	f, err := newFleet(cfg, rec)
	if err != nil {
		return Report{}, err
	}
	f.writes, f.truth, f.clients = newWrites(f), newTruth(f), newClients(f, rec)
	whole, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer f.down()
	if err := f.up(ctx, whole); err != nil {
		return Report{}, err
	}
	if err := f.clients.prepare(ctx); err != nil {
		return Report{}, err
	}
	rec.with(func() { rec.began = time.Now() })
	began := time.Now()
	f.trouble(ctx, whole)
	took := time.Since(began)
	if !cfg.Impatient || len(rec.report(cfg, took, 0).Violations) == 0 {
		rec.log("all faults are healed; the audit begins")
		f.audit(whole)
	}
	for _, s := range []*objects{f.clients.quota, f.clients.limit, f.clients.names} {
		s.finish()
	}
	return rec.report(cfg, took, f.truth.orders), nil
}

// trouble lets clients work and faults happen, until the time is over, ctx ends or, if impatient, a promise is broken.
func (f *fleet) trouble(ctx, whole context.Context) {
	ctx, stop := context.WithTimeout(ctx, f.cfg.Duration)
	defer stop()
	seed := f.cfg.Seed
	var faults, load, watch sync.WaitGroup
	watching, stopWatching := context.WithCancel(whole)
	defer stopWatching()
	working, stopWorking := context.WithCancel(whole)
	defer stopWorking()
	for i := range workers {
		load.Go(func() { f.clients.work(working, i, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	watch.Go(func() { f.writes.run(watching) })
	watch.Go(func() { f.truth.watch(watching) })
	watch.Go(func() { f.follow(watching) })
	watch.Go(func() { f.progress(watching) })
	watch.Go(func() { f.amounts(watching) })
	watch.Go(func() {
		for watching.Err() == nil {
			f.sums(watching)
			pause(watching, 3*time.Second)
		}
	})
	faults.Go(func() {
		f.torment(ctx, &deck{rng: rand.New(rand.NewPCG(seed, 1<<32)), faults: f.replicaFaults()}, restOfReplicas, f.missing)
	})
	faults.Go(func() {
		f.torment(ctx, &deck{rng: rand.New(rand.NewPCG(seed, 1<<33)), faults: f.hostFaults()}, restOfHosts, f.hostless)
	})
	if f.cfg.Impatient {
		watch.Go(func() {
			select {
			case <-f.rec.found:
				stop()
			case <-watching.Done():
			}
		})
	}
	<-ctx.Done()
	faults.Wait() // each heals what it has broken
	stopWorking()
	load.Wait()
	stopWatching()
	watch.Wait()
}

// progress says every few seconds how it goes.
func (f *fleet) progress(ctx context.Context) {
	for {
		pause(ctx, progressEvery)
		if ctx.Err() != nil {
			return
		}
		var line string
		f.rec.with(func() {
			ops, faults := 0, 0
			for _, n := range f.rec.operations {
				ops += n
			}
			for _, n := range f.rec.faults {
				faults += n
			}
			line = fmt.Sprintf("%d operations, %d faults, %d leaders, %d histories checked, %d violations", ops, faults, len(f.rec.leaders), f.rec.checked, len(f.rec.violations))
		})
		f.rec.log("%s", line)
	}
}

// follow reads the stream of events over everything that happens. Ids never go back, whichever replica gives them.
func (f *fleet) follow(ctx context.Context) {
	last := client.FromNow
	var index, n uint64
	for ctx.Err() == nil {
		for e, err := range f.admin.Events(ctx, last) {
			var refused *api.Error
			if errors.As(err, &refused) && refused.Code == api.CodeCursorGone { // no replica holds what came since
				last, index, n = client.FromNow, 0, 0 // and now is not the same everywhere
			}
			if err != nil {
				break
			}
			var i, k uint64
			if _, err := fmt.Sscanf(e.ID, "%d.%d", &i, &k); err != nil {
				f.rec.broken(checkAnswer, "an event has the id %q", e.ID)
				continue
			}
			if i < index || i == index && k < n { // the same one may come again
				f.rec.broken(checkIndex, "event %s comes after %d.%d", e.ID, index, n)
			}
			index, n, last = i, k, e.ID
			f.rec.with(func() { f.rec.events++ })
		}
		pause(ctx, 200*time.Millisecond)
	}
}
