package node

import (
	"cmp"
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	execDefaultSecs = 60
	execGrace       = 5 * time.Second // what the agent gets to report a command that was ended
	maxOutput       = 1 << 20
	keepExecs       = 8 // answers kept a VM for commands repeated under their token
)

// execution is a command that was given under a fencing token, so that its repeat does not run it again.
type execution struct {
	fingerprint string
	done        chan struct{}
	answer      api.ExecAnswer
	err         error
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
	var m machine.Machine
	var known, mine *execution
	err = d.gate.within(c.token, func() error {
		if known, mine = v.execution(c.token.fingerprint("exec", c.body)); known != nil {
			return nil
		}
		m, err = v.forExec()
		return err
	})
	if known != nil && err == nil {
		select {
		case <-known.done:
		case <-c.Context().Done():
			return answer{}, api.Errorf(api.CodeOutcomeUnknown, "the command still runs")
		}
		if known.err != nil {
			return answer{}, known.err
		}
		return ok(known.answer)
	}
	var out api.ExecAnswer
	if err == nil {
		out, err = runExec(c.Context(), m, v.id, req)
	}
	v.finish(mine, out, err)
	if err != nil {
		return answer{}, err
	}
	d.carriedOut(c, "exec", v.id, v.view().Name, map[string]any{"program": req.Argv[0], "exit_code": out.ExitCode, "timed_out": out.TimedOut})
	return ok(out)
}

// forExec is the machine if it can run a command now.
func (v *vm) forExec() (machine.Machine, error) {
	m, agent, paused := v.machineNow()
	switch {
	case m == nil:
		return nil, api.Errorf(api.CodeConflict, "VM %s does not run; start it", v.id)
	case paused:
		return nil, api.Errorf(api.CodeConflict, "VM %s is paused; resume it", v.id)
	case !v.hasAgent():
		return nil, api.Errorf(api.CodeConflict, "VM %s has no guest agent, so no command can run in it", v.id)
	case !agent:
		return nil, noAgent(v.id)
	}
	return m, nil
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

// execution finds the command that was given under the fingerprint before, or notes this one as running. Both are
// nil without a token.
func (v *vm) execution(fingerprint string) (known, mine *execution) {
	if fingerprint == "" {
		return nil, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.execs {
		if e.fingerprint == fingerprint {
			return e, nil
		}
	}
	mine = &execution{fingerprint: fingerprint, done: make(chan struct{})}
	v.execs = append(v.execs, mine)
	v.execs = v.execs[max(0, len(v.execs)-keepExecs):]
	return nil, mine
}

// finish keeps what a command left. One that did not run is forgotten, so that its repeat may.
func (v *vm) finish(e *execution, out api.ExecAnswer, err error) {
	if e == nil {
		return
	}
	e.answer, e.err = out, err
	close(e.done)
	if err == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.execs {
		if v.execs[i] == e {
			v.execs = append(v.execs[:i:i], v.execs[i+1:]...)
			return
		}
	}
}
