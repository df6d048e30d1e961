package central

import (
	"math"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
)

// poolMemory lets a pass leave out pools that lack nothing and that nothing has happened to. It is only ever wrong for
// one period: then all are looked at.
type poolMemory struct {
	index   uint64    // of the last change that was taken into account
	whole   time.Time // when all were looked at last
	settled map[string]bool
}

// due says which pools have to be looked at: all, once a period or after a change that is not of VMs and pools alone.
func (m *poolMemory) due(changes *fsm.Ring, view fsm.View, now time.Time, period time.Duration) func(pool string) bool {
	news, _, known := changes.After(m.index, math.MaxInt, 1<<20)
	if !known {
		m.index = view.Index()
	} else if len(news) > 0 {
		m.index = news[len(news)-1].Index
	}
	all := !known || m.settled == nil || now.Sub(m.whole) >= period
	for _, e := range news {
		switch row := e.Row.(type) {
		case *fsm.VM:
			delete(m.settled, row.Pool)
			delete(m.settled, row.ClaimedFrom)
		case *fsm.Pool:
			delete(m.settled, row.Name)
		default:
			all = true
		}
	}
	if all {
		m.whole, m.settled = now, map[string]bool{}
	}
	return func(pool string) bool { return !m.settled[pool] }
}

// looked notes what a pass made of a pool.
func (m *poolMemory) looked(view fsm.View, p *fsm.Pool, plan poolPlan) {
	m.settled[p.Name] = len(plan.drops)+len(plan.keep)+plan.fill+plan.want == 0 && plan.wait == nil && p.RollFrom == "" && view.Count(p).Ready >= p.MinReady
}
