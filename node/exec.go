package node

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	execDefaultSecs = 60
	execGrace       = 5 * time.Second // what the agent gets to report a command that was ended
	maxOutput       = 1 << 20
	keepExecs       = 8  // answers kept a VM for commands repeated under their token
	keepExecMarks   = 64 // commands kept a VM that are known to have been started
)

// execution is a command that was given under a fencing token, so that its repeat does not run it again.
type execution struct {
	mark   execMark
	done   chan struct{}
	answer api.ExecAnswer
	err    error
}

// execMark is what the record keeps of a command that was started: a daemon that has its mark and not its answer
// cannot say what became of it, and must not run it again.
type execMark struct {
	Op          string `json:"op"`
	Fingerprint string `json:"fingerprint"`
}

func (d *Daemon) execVM(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	var req api.ExecRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	if err := req.Check(); err != nil {
		return answer{}, err
	}
	req.TimeoutSecs = cmp.Or(req.TimeoutSecs, execDefaultSecs)
	if err := d.rouse(c, v); err != nil {
		return answer{}, err
	}
	defer v.touch() // idleness counts from its end
	var m machine.Machine
	var known, mine *execution
	err = d.gate.within(c.token, func() error {
		m, known, mine, err = v.beginExec(execMark{Op: c.token.op, Fingerprint: c.token.fingerprint("exec", c.body)})
		return err
	})
	switch {
	case err != nil:
		return answer{}, err
	case known != nil:
		return known.again(c.Context())
	}
	ctx := c.Context()
	if mine != nil { // its repeat must find its answer, so it does not end with the caller who gave it
		var end func()
		ctx, end = d.untilClosing(ctx)
		defer end()
	}
	out, err := runExec(ctx, m, v.id, req)
	v.finish(mine, out, err)
	if err != nil {
		return answer{}, err
	}
	d.carriedOut(c, "exec", v.id, v.view().Name, map[string]any{"program": req.Argv[0], "exit_code": out.ExitCode, "timed_out": out.TimedOut})
	return ok(out)
}

// again waits for the answer that the command has got, or will get.
func (e *execution) again(ctx context.Context) (answer, error) {
	select {
	case <-e.done:
	case <-ctx.Done():
		return answer{}, api.Errorf(api.CodeOutcomeUnknown, "the command still runs")
	}
	if e.err != nil {
		return answer{}, e.err
	}
	return answer{status: http.StatusOK, body: e.answer, replayed: true}, nil
}

// untilClosing gives a context that outlives ctx and ends with the daemon. end must be called.
func (d *Daemon) untilClosing(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-d.closing:
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() { cancel(); watch.Wait() }
}

// forExecLocked is the machine if it can run a command now.
func (v *vm) forExecLocked() (machine.Machine, error) {
	switch state := v.stateLocked(); {
	case state == api.StateFailed:
		return nil, api.Errorf(api.CodeConflict, "VM %s has failed (%s); delete it, or start it again", v.id, cmp.Or(v.rec.Failed, "no reason is known"))
	case state == api.StateDeleting:
		return nil, api.Errorf(api.CodeConflict, "VM %s is being deleted", v.id)
	case state == api.StateBooting, state == api.StatePlaced:
		return nil, noAgent(v.id)
	case v.run == nil:
		return nil, api.Errorf(api.CodeConflict, "VM %s does not run; start it", v.id)
	case v.run.paused:
		return nil, api.Errorf(api.CodeConflict, "VM %s is paused; resume it", v.id)
	case !v.hasAgent():
		return nil, api.Errorf(api.CodeConflict, "VM %s has no guest agent, so no command can run in it", v.id)
	case !v.rec.Agent:
		return nil, noAgent(v.id)
	}
	return v.run.Machine, nil
}

func noAgent(id string) error {
	return api.Errorf(api.CodeConflict, "the guest agent of VM %s does not answer yet; try again", id)
}

func runExec(ctx context.Context, m machine.Machine, id string, req api.ExecRequest) (api.ExecAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.TimeoutSecs)*time.Second+execGrace)
	defer cancel()
	out, err := m.Exec(ctx, req)
	switch {
	case errors.Is(err, machine.ErrNoAgent):
		return out, noAgent(id)
	case errors.Is(err, context.DeadlineExceeded):
		return api.ExecAnswer{ExitCode: -1, TimedOut: true}, nil
	case errors.Is(err, context.Canceled):
		return out, api.Errorf(api.CodeOutcomeUnknown, "the caller left before the command ended")
	case err != nil:
		return out, err
	}
	var cut1, cut2 bool
	out.Stdout, cut1 = cut(out.Stdout)
	out.Stderr, cut2 = cut(out.Stderr)
	out.Truncated = out.Truncated || cut1 || cut2
	return out, nil
}

// cut shortens a text to maxOutput bytes, never in the middle of a character.
func cut(s string) (string, bool) {
	if len(s) <= maxOutput {
		return s, false
	}
	end := maxOutput
	for end > maxOutput-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end], true
}

// beginExec finds the command that was given under the mark's OP before, or notes this one as started: on disk first,
// so that not even a daemon that ends in the middle lets it run twice. known and mine are nil without a token.
func (v *vm) beginExec(mark execMark) (m machine.Machine, known, mine *execution, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if mark.Op != "" {
		for _, e := range v.execs {
			if e.mark == mark {
				return nil, e, nil, nil
			}
		}
		for _, seen := range v.rec.Execs {
			switch {
			case seen == mark:
				return nil, nil, nil, api.Errorf(api.CodeOutcomeUnknown, "the command was started before, and what became of it is no longer known; look before you run it under another key")
			case seen.Op == mark.Op:
				return nil, nil, nil, api.Errorf(api.CodeKeyReused, "another command was given under this key; take another key")
			}
		}
	}
	if m, err = v.forExecLocked(); err != nil || mark.Op == "" {
		return m, nil, nil, err
	}
	next := v.rec
	next.Execs = append(slices.Clone(v.rec.Execs), mark)
	next.Execs = next.Execs[max(0, len(next.Execs)-keepExecMarks):]
	if err := v.d.store.put(v.id, next); err != nil {
		return nil, nil, nil, err
	}
	v.rec = next
	mine = &execution{mark: mark, done: make(chan struct{})}
	v.execs = append(v.execs, mine)
	v.execs = v.execs[max(0, len(v.execs)-keepExecs):]
	return m, nil, mine, nil
}

// finish keeps what a command left. One that certainly did not run is forgotten, so that its repeat may.
func (v *vm) finish(e *execution, out api.ExecAnswer, err error) {
	if e == nil {
		return
	}
	e.answer, e.err = out, err
	close(e.done)
	var refused *api.Error
	if err == nil || !errors.As(err, &refused) || refused.Code != api.CodeConflict {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.execs = slices.DeleteFunc(slices.Clone(v.execs), func(one *execution) bool { return one == e })
	v.rec.Execs = slices.DeleteFunc(slices.Clone(v.rec.Execs), func(one execMark) bool { return one == e.mark })
	if err := v.d.store.put(v.id, v.rec); err != nil {
		v.log.Warn("a command that did not run stays noted as started", "error", err)
	}
}
