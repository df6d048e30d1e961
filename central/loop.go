package central

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
)

// loop is one reconciler: it looks at what is and what should be, again and again. A poke only makes the next
// look come sooner; no look depends on one.
type loop struct {
	name   string
	period time.Duration
	poke   <-chan struct{}
	pass   func(ctx context.Context) error
	gather time.Duration // how long a poke waits for others: one look then does for all
}

func (l loop) run(ctx context.Context, logger hclog.Logger) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-l.poke:
			if l.gather > 0 {
				pause(ctx, l.gather)
				select {
				case <-l.poke:
				default:
				}
			}
		}
		if err := l.pass(ctx); err != nil && ctx.Err() == nil {
			logger.Warn("a reconciler's pass failed; the next one goes on", "reconciler", l.name, "error", err)
		}
		timer.Reset(l.period)
	}
}

// poke wakes a loop; one that is awake looks once more.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
