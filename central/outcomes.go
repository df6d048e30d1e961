package central

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	maxReports     = 128                    // in one command
	outcomeGather  = 10 * time.Millisecond  // how long a piece of news may wait for others, while nobody waits for it
	handOverGather = 100 * time.Millisecond // and that a VM was handed over
)

// outcomes commits what nodes confirmed and showed, many at a time, behind the answers that they led to. What is
// lost with the leader is found out again by the next one from the rows and the nodes.
type outcomes struct {
	queue   chan outcome
	commit  func(context.Context, fsm.ReportVMs) error
	failed  func(error)
	await   atomic.Int64  // requests that wait for what nodes do
	hurried chan struct{} // poked when there is one
}

// hurry has news committed at once until the function that it gives is called.
func (o *outcomes) hurry() (done func()) {
	o.await.Add(1)
	poke(o.hurried)
	return func() { o.await.Add(-1) }
}

type outcome struct {
	report fsm.VMReport
	done   func() // called once it is committed, or was lost
}

func newOutcomes(commit func(context.Context, fsm.ReportVMs) error, failed func(error)) *outcomes {
	return &outcomes{queue: make(chan outcome, 4*maxReports), commit: commit, failed: failed, hurried: make(chan struct{}, 1)}
}

// add queues a report; done may be nil. It gives up when ctx ends.
func (o *outcomes) add(ctx context.Context, report fsm.VMReport, done func()) {
	select {
	case o.queue <- outcome{report, done}:
	case <-ctx.Done():
		if done != nil {
			done()
		}
	}
}

// run commits until ctx ends. What waits while one commit is under way goes out together in the next.
func (o *outcomes) run(ctx context.Context) {
	for {
		var batch []outcome
		select {
		case <-ctx.Done():
			return
		case first := <-o.queue:
			batch = append(batch, first)
		}
		batch = o.gather(ctx, batch)
		var reports []fsm.VMReport
		for _, one := range batch {
			reports = append(reports, one.report)
		}
		if err := o.commitAll(ctx, reports); err != nil && ctx.Err() == nil {
			o.failed(err)
			pause(ctx, 100*time.Millisecond) // the nodes' next reports bring the news again
		}
		for _, one := range batch {
			if one.done != nil {
				one.done()
			}
		}
	}
}

// gather waits a moment for more, unless somebody waits, and takes all that is there.
func (o *outcomes) gather(ctx context.Context, batch []outcome) []outcome {
	late := time.NewTimer(patience(batch[0]))
	defer late.Stop()
	began := time.Now()
	for len(batch) < maxReports {
		var next outcome
		select {
		case next = <-o.queue:
		default:
			if o.await.Load() > 0 {
				return batch
			}
			select {
			case next = <-o.queue:
			case <-o.hurried:
				continue
			case <-late.C:
				return batch
			case <-ctx.Done():
				return batch
			}
		}
		batch = append(batch, next)
		if patience(next) < handOverGather {
			late.Reset(outcomeGather - time.Since(began))
		}
	}
	return batch
}

// patience is how long a piece of news may wait for others. That a hand-over was confirmed changes no bill and no answer.
func patience(one outcome) time.Duration {
	if one.report.ClaimMS != nil {
		return handOverGather
	}
	return outcomeGather
}

// commitAll commits the reports as one command, or as several where one would be too large: what one node says at
// length must not keep back what others say.
func (o *outcomes) commitAll(ctx context.Context, reports []fsm.VMReport) error {
	err := o.commit(ctx, fsm.ReportVMs{Reports: reports})
	if codeOf(err) != api.CodeTooLarge {
		return err
	}
	half := len(reports) / 2
	if half == 0 {
		return err
	}
	return errors.Join(o.commitAll(ctx, reports[:half]), o.commitAll(ctx, reports[half:]))
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
