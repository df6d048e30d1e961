package central

import (
	"context"
	"errors"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// maxReports is how many pieces of news one command carries.
const maxReports = 128

// outcomes commits what nodes confirmed and showed, many at a time, behind the answers that they led to. What is
// lost with the leader is found out again by the next one from the rows and the nodes.
type outcomes struct {
	queue  chan outcome
	commit func(context.Context, fsm.ReportVMs) error
	failed func(error)
}

type outcome struct {
	report fsm.VMReport
	done   func() // called once it is committed, or was lost
}

func newOutcomes(commit func(context.Context, fsm.ReportVMs) error, failed func(error)) *outcomes {
	return &outcomes{queue: make(chan outcome, 4*maxReports), commit: commit, failed: failed}
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
		for more := true; more && len(batch) < maxReports; {
			select {
			case next := <-o.queue:
				batch = append(batch, next)
			default:
				more = false
			}
		}
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
