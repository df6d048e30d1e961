package provider

import (
	"context"
	"errors"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Bounds of the pause between two looks.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
)

// waitFor looks again and again until step is done or fails. A fleet that cannot answer for a while is no
// failure: only the context ends that, and then the error is the context's.
func waitFor(ctx context.Context, step func(context.Context) (done bool, err error)) error {
	for pause := firstPause; ; pause = min(pause*2, longestPause) {
		done, err := step(ctx)
		var e *api.Error
		passing := errors.As(err, &e) && (e.Code.Temporary() || e.Code == api.CodeOutcomeUnknown)
		if err != nil && ctx.Err() == nil && !passing {
			return err
		}
		if done && err == nil {
			return nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}
