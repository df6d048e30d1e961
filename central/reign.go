package central

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	establishTimeout = 10 * time.Second
	proposeTimeout   = 10 * time.Second
	// letGoPatience is how long what only a leader does may go on after the leadership has ended.
	letGoPatience = 10 * time.Second
	setUpTries    = 3
)

// reign is one term of leadership: everything only the leader does, from the barrier to the loss.
type reign struct {
	r        *Replica
	ctx      context.Context // ends with the leadership
	term     uint64
	since    time.Time // by this process's clock
	found    api.Time  // the last committed time of earlier leaders
	orders   *orders
	secrets  secrets
	turns    turns
	outcomes *outcomes
	ready    chan struct{} // closed when the reign may serve
	poolPoke chan struct{}
	pools    poolMemory // of passPools alone
	vmPoke   chan struct{}
	nodePoke chan struct{}
	facts    factQueue

	queue     *queue
	leasePoke chan struct{}
	scrubs    scrubs
	roster    roster
	stuck     stuckMoves

	verified atomic.Pointer[time.Time] // when a majority last took this replica for the leader
}

func (g *reign) view() fsm.View { return g.r.state.View() }

// inherited says whether the spare was claimed under an earlier leader, who may have answered the launch.
func (g *reign) inherited(row *fsm.VM) bool { return row.ClaimedAt <= g.found }

func (g *reign) now() api.Time { return g.r.clock.now() }

// propose commits a command of the leader's own and gives its value; a refusal is an *api.Error.
func (g *reign) propose(ctx context.Context, kind fsm.Kind, actor string, op *fsm.Op, body any) (fsm.Result, error) {
	return g.proposeFor(ctx, caller{actor: actor}, kind, op, body)
}

// proposeFor is propose on behalf of a caller, whose key is checked once more when the command applies.
func (g *reign) proposeFor(ctx context.Context, who caller, kind fsm.Kind, op *fsm.Op, body any) (fsm.Result, error) {
	if err := g.mayPropose(kind); err != nil {
		return fsm.Result{}, err
	}
	raw, err := fsm.Encode(fsm.Envelope{Kind: kind, Now: g.now(), Term: g.term, Actor: who.actor, Token: who.key, From: who.from, Op: op}, body)
	if err != nil {
		return fsm.Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	out, _, err := g.r.log.Propose(ctx, raw)
	if err != nil {
		return fsm.Result{}, err
	}
	result, ok := out.(fsm.Result)
	if !ok {
		return fsm.Result{}, api.Errorf(api.CodeInternal, "the log gave back something else than a result")
	}
	if result.Err != nil {
		return result, result.Err
	}
	return result, nil
}

// need of a VM that has its row.
func needOf(row *fsm.VM, host *fsm.Node) need {
	n := need{tenant: row.Tenant, guestOS: row.GuestOS, imagePath: row.ImagePath, vcpus: row.VCPUs, memoryMiB: row.MemoryMiB, tried: map[string]string{}, spare: row.Warm, claim: row.Claim != nil}
	for i, node := range row.Tried {
		n.tried[node] = api.WhyUnhealthy
		if i < len(row.TriedFor) && row.TriedFor[i] != "" {
			n.tried[node] = row.TriedFor[i]
		}
	}
	if host == nil || host.Backend("") != row.Backend {
		n.backend = row.Backend
	}
	return n
}

// constrain adds where the row's pool, or its launch, lets it go.
func (n need) constrain(view fsm.View, pool string, l *fsm.Launch) need {
	if l != nil {
		n.node, n.selector, n.backend = l.Node, l.Selector, l.Backend
	}
	if p := view.Pool(pool); p != nil && pool != "" {
		n.nodes, n.poolSelector = p.Nodes, p.NodeSelector
		n.leased = n.leased || n.spare && p.Tenant != ""
	}
	n.leased = n.leased || view.MacOSNeedsLease(n.tenant, n.guestOS)
	return n
}

// move gives a VM that its host refused to the next one. Once as many have refused it as three rankings name, no other
// is asked.
func (g *reign) move(row *fsm.VM, refusal, why string) (fsm.Moved, error) {
	view := g.view()
	n := needOf(row, view.Node(row.Node)).constrain(view, row.Pool, row.Launch)
	n.tried[row.Node] = why
	candidates, reasons := g.r.hosts.rank(view, n, nil)
	if len(row.Tried)+1 >= rankings*maxCandidates {
		candidates = nil
	}
	result, err := g.propose(g.ctx, fsm.KindMoveVM, "central", nil, fsm.MoveVM{ID: row.ID, From: row.Node, Refusal: refusal, Why: why, Candidates: candidates, Reasons: reasons, Keep: true})
	return moved(result, err)
}

// failHandOver ends a spare that could not be handed over and goes on with its launch.
func (g *reign) failHandOver(row *fsm.VM, refusal string) (fsm.Moved, error) {
	view := g.view()
	plan, err := view.Resolve(row.Launch)
	if err != nil {
		plan = fsm.Plan{GuestOS: row.GuestOS, VCPUs: row.VCPUs, MemoryMiB: row.MemoryMiB}
	}
	n := need{tenant: row.Launch.Tenant, guestOS: plan.GuestOS, imagePath: row.ImagePath, vcpus: plan.VCPUs, memoryMiB: plan.MemoryMiB, claim: row.Claim != nil}.constrain(view, row.Launch.Pool, row.Launch)
	if plan.Image != nil {
		n.imagePath = plan.Image.Path
	}
	candidates, reasons := g.r.hosts.rank(view, n, nil)
	result, err := g.propose(g.ctx, fsm.KindFailHandOver, "central", nil, fsm.FailHandOver{ID: row.ID, NewID: newID(), Refusal: refusal, Candidates: candidates, Reasons: reasons})
	return moved(result, err)
}

func moved(result fsm.Result, err error) (fsm.Moved, error) {
	if err != nil {
		return fsm.Moved{}, err
	}
	out, ok := result.Value.(fsm.Moved)
	if !ok {
		return fsm.Moved{}, errors.New("a moved VM's command gave no outcome")
	}
	return out, nil
}

// lead follows the leadership until ctx ends, and runs one reign after the other.
func (r *Replica) lead(ctx context.Context) {
	var failed failures
	for ctx.Err() == nil {
		now, changed := r.log.Leadership()
		if !now.Leader {
			select {
			case <-ctx.Done():
			case <-changed:
			}
			continue
		}
		reignCtx, stop := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- r.reignOnce(reignCtx, now.Term) }()
		var failure error
		finished := false
		select {
		case <-ctx.Done():
		case <-changed:
		case failure = <-done:
			finished = true
		}
		stop()
		if !finished {
			select {
			case failure = <-done:
			case <-time.After(letGoPatience):
				// Until it has ended, this replica could not take up the leadership again.
				_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1) // what went on; there is nowhere to report that it could not be said
				r.cfg.Exit(consensus.ExitFault, fmt.Sprintf("what a leader does went on for %s after the leadership of term %d had ended: starting again", letGoPatience, now.Term))
				failure = <-done
			}
		}
		if failure != nil && ctx.Err() == nil {
			r.logger.Warn("could not establish leadership", "term", now.Term, "error", failure)
			r.giveAway(ctx, now.Term, failed.note(now.Term), failure)
		}
	}
}

// failures counts those to take up one leadership.
type failures struct {
	term uint64
	n    int
}

func (f *failures) note(term uint64) int {
	if f.term != term {
		*f = failures{term: term}
	}
	f.n++
	return f.n
}

// giveAway lets another replica lead when this one could not take the leadership up. If it keeps it, and fails again and
// again, the process ends: as a leader that serves nobody it would keep the others from leading.
func (r *Replica) giveAway(ctx context.Context, term uint64, failures int, failure error) {
	if now, _ := r.log.Leadership(); now.Leader && now.Term == term {
		if failures >= setUpTries {
			r.cfg.Exit(consensus.ExitFault, fmt.Sprintf("could not take up the leadership %d times in term %d (%v): starting again", failures, term, failure))
		}
		handing, cancel := context.WithTimeout(ctx, proposeTimeout)
		defer cancel()
		if err := r.log.Transfer(handing, ""); err != nil {
			r.logger.Warn("nor hand it over", "error", err)
		}
	}
	pause(ctx, time.Second)
}

// reignOnce establishes the leadership and works until ctx ends. Not-ready comes first on the way out.
func (r *Replica) reignOnce(ctx context.Context, term uint64) error {
	g := &reign{r: r, ctx: ctx, term: term, since: r.wall(), ready: make(chan struct{}), poolPoke: make(chan struct{}, 1), vmPoke: make(chan struct{}, 1),
		nodePoke: make(chan struct{}, 1), facts: factQueue{poke: make(chan struct{}, 1)},
		leasePoke: make(chan struct{}, 1)}
	g.orders, g.queue = newOrders(g), newQueue()
	g.outcomes = newOutcomes(func(ctx context.Context, body fsm.ReportVMs) error {
		_, err := g.propose(ctx, fsm.KindReportVMs, "central", nil, body)
		return err
	}, func(err error) {
		r.logger.Warn("could not record what nodes reported; it will be found out again", "error", err)
	})
	setUp, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	if err := r.log.Barrier(setUp); err != nil {
		return err
	}
	g.found = g.view().Meta().Now
	if err := r.initCluster(setUp, g); err != nil {
		return err
	}
	var work sync.WaitGroup
	work.Go(func() { g.outcomes.run(ctx) })
	work.Go(func() { g.observeAll(ctx) })
	work.Go(func() { loop{"queue", queuePeriod, g.queue.poke, g.passQueue, 0}.run(ctx, r.logger) })
	work.Go(func() { loop{"member", memberPeriod, nil, g.passMembers, 0}.run(ctx, r.logger) })
	work.Go(func() { loop{"roster", rosterPeriod, nil, g.passRoster, 0}.run(ctx, r.logger) })
	work.Go(func() { g.recordFacts(ctx) })
	work.Go(func() { g.verify(ctx) })
	for _, l := range g.loops() {
		work.Go(func() { l.run(ctx, r.logger) })
	}
	r.reign.Store(g)
	close(g.ready)
	r.logger.Info("leading", "term", term)
	<-ctx.Done()
	r.reign.CompareAndSwap(g, nil)
	work.Wait()
	g.orders.close()
	g.scrubs.running.Wait()
	r.logger.Info("no longer leading", "term", term)
	return nil
}
