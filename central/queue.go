package central

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	maxWaiting       = 1000
	maxTenantWaiting = 100
	queuePeriod      = time.Second
	queueGather      = 20 * time.Millisecond // changes that come together are looked at together
	afterRefusal     = 5 * time.Second       // a launch that all hosts refused does not ask them again before
)

// queue holds launches that wait for room. Tenants take turns; within a tenant the oldest launch that fits goes first.
// It lives with the reign: after a change of leader clients come again under their keys and line up anew.
type queue struct {
	mu      sync.Mutex
	turns   []string // tenants that wait, the next one first
	waiting map[string][]*waiter
	total   int
	poke    chan struct{}
}

// waiter is one launch in the line.
type waiter struct {
	launch *fsm.Launch
	op     *fsm.Op
	shape  string        // equal for launches that fit the same hosts
	after  time.Time     // it does not try before
	turn   chan struct{} // closed when it is its turn
	done   chan struct{} // closed when it has used its turn
}

func newQueue() *queue { return &queue{waiting: map[string][]*waiter{}, poke: make(chan struct{}, 1)} }

func (u *queue) empty() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.total == 0
}

// join puts a launch at the end of its tenant's line.
func (u *queue) join(w *waiter) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	tenant := w.launch.Tenant
	line := u.waiting[tenant]
	repeats := func(other *waiter) bool { return other.op.Scope == w.op.Scope && other.op.Key == w.op.Key }
	if (u.total >= maxWaiting || len(line) >= maxTenantWaiting) && !slices.ContainsFunc(line, repeats) { // what waits already is told no at its own time
		return api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes can take the VM now, and %d launches wait for room already; try again later", max(len(line), u.total))
	}
	if len(line) == 0 {
		u.turns = append(u.turns, tenant)
	}
	u.waiting[tenant], u.total = append(line, w), u.total+1
	poke(u.poke)
	return nil
}

// leave takes a launch out of the line, if it is still there.
func (u *queue) leave(w *waiter) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.remove(w)
}

func (u *queue) remove(w *waiter) {
	tenant := w.launch.Tenant
	i := slices.Index(u.waiting[tenant], w)
	if i < 0 {
		return
	}
	u.total--
	u.waiting[tenant] = slices.Delete(u.waiting[tenant], i, i+1)
	if len(u.waiting[tenant]) == 0 {
		delete(u.waiting, tenant)
		u.turns = slices.DeleteFunc(u.turns, func(t string) bool { return t == tenant })
	}
}

// line is the tenants in the order of their turns.
func (u *queue) line() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.turns)
}

// grant gives the turn to the tenant's oldest launch that fits; the tenant then goes to the end. nil: none fits.
func (u *queue) grant(tenant string, fits func(*waiter) bool) *waiter {
	u.mu.Lock()
	line := slices.Clone(u.waiting[tenant])
	u.mu.Unlock()
	i := slices.IndexFunc(line, fits)
	if i < 0 {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !slices.Contains(u.waiting[tenant], line[i]) {
		return nil // it has left meanwhile
	}
	u.remove(line[i])
	if at := slices.Index(u.turns, tenant); at >= 0 {
		u.turns = append(slices.Delete(u.turns, at, at+1), tenant)
	}
	close(line[i].turn)
	return line[i]
}

// passQueue gives turns until nothing that waits fits. One turn at a time: the next looks at what the last has taken.
func (g *reign) passQueue(ctx context.Context) error {
	if g.queue.empty() {
		return nil
	}
	for again := true; again; {
		again = false
		unfit := map[string]bool{}
		for _, tenant := range g.queue.line() {
			w := g.queue.grant(tenant, func(w *waiter) bool { return !unfit[w.shape] && g.mayGo(w, unfit) })
			if w == nil {
				continue
			}
			again = true
			select {
			case <-w.done:
			case <-ctx.Done():
				return nil
			}
			clear(unfit)
		}
	}
	pause(ctx, queueGather)
	return nil
}

// mayGo says whether a launch would find room now, or has another answer coming.
func (g *reign) mayGo(w *waiter, unfit map[string]bool) bool {
	view := g.view()
	if view.Operation(w.op.Scope, w.op.Key) != nil {
		return true
	}
	if g.r.wall().Before(w.after) {
		return false
	}
	ranked, err := g.rankLaunch(view, "", *w.launch)
	if err != nil {
		return true
	}
	plan, err := view.Plan(w.launch, ranked.Candidates, ranked.NoHandOut)
	if err == nil && plan.Node == nil && plan.Claim == nil {
		unfit[w.shape] = true
		return false
	}
	return true
}

// shapeOf is what decides where a launch fits.
func shapeOf(l *fsm.Launch) string {
	same := *l
	same.Name, same.Labels, same.TTLSeconds, same.Boot = "", nil, 0, nil
	raw, err := json.Marshal(same)
	if err != nil {
		return l.Name // only of its own shape
	}
	return string(raw)
}

// whenRoom launches as soon as there is room, or gives the refusal of the last try when the time is up. commit places
// the VM and gives what answers the request.
func (g *reign) whenRoom(ctx context.Context, op *fsm.Op, l *fsm.Launch, wait time.Duration, commit func() (answer func() error, err error)) error {
	deadline, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	w := &waiter{launch: l, op: op, shape: shapeOf(l)}
	if g.queue.empty() || g.view().Operation(op.Scope, op.Key) != nil { // else those that wait go first
		if err := launchNow(commit); codeOf(err) != api.CodeNoCapacity {
			return err
		}
	}
	for {
		w = &waiter{launch: l, op: op, shape: w.shape, after: w.after, turn: make(chan struct{}), done: make(chan struct{})}
		if err := g.queue.join(w); err != nil {
			return err
		}
		over := false
		select {
		case <-w.turn:
		case <-deadline.Done():
			over = true
		case <-g.ctx.Done():
			g.queue.leave(w)
			close(w.done)
			return api.Errorf(api.CodeNotLeader, "this replica stopped leading while the launch waited for room; repeat it to wait on")
		}
		g.queue.leave(w)
		if err := ctx.Err(); err != nil {
			close(w.done)
			return err
		}
		answer, err := w.use(commit)
		if err == nil {
			err = answer()
			w.after = g.r.wall().Add(afterRefusal)
		}
		if over || codeOf(err) != api.CodeNoCapacity {
			return err
		}
	}
}

// use is commit in the launch's turn, which ends in any case: the whole line waits for that.
func (w *waiter) use(commit func() (answer func() error, err error)) (answer func() error, err error) {
	defer close(w.done)
	return commit()
}

func launchNow(commit func() (answer func() error, err error)) error {
	answer, err := commit()
	if err != nil {
		return err
	}
	return answer()
}
