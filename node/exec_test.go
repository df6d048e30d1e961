package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// slowExec is a sim driver whose commands take ten seconds, or until they are told to end.
type slowExec struct {
	machine.Driver
	runs chan struct{} // one for each command that started
}

type slowMachine struct {
	machine.Machine
	runs chan struct{}
}

func (d slowExec) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.Driver.Start(ctx, spec, dir)
	return slowMachine{m, d.runs}, err
}

func (m slowMachine) Exec(ctx context.Context, _ api.ExecRequest) (api.ExecAnswer, error) {
	m.runs <- struct{}{}
	select {
	case <-ctx.Done():
		return api.ExecAnswer{}, ctx.Err()
	case <-time.After(10 * time.Second):
		return api.ExecAnswer{ExitCode: len(m.runs)}, nil
	}
}

func TestACommandUnderOneOperationRunsOnceWhateverBecomesOfItsCaller(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		runs := make(chan struct{}, 100)
		h := newHost(t, func(c *Config) { c.Drivers = []machine.Driver{slowExec{sim.New(sim.Config{}), runs}} })
		id := h.boot(nil)
		vm := h.vms[id]
		mark := execMark{Op: "k", Fingerprint: token{op: "k"}.fingerprint("exec", nil)}
		_, known, mine, err := vm.beginExec(mark)
		if known != nil || mine == nil || err != nil {
			t.Fatalf("the first: %v, %v, %v", known, mine, err)
		}
		ctx, end := h.untilClosing(t.Context())
		left, leave := context.WithCancel(ctx)
		leave() // whoever gave the command is gone; ctx is not
		if left.Err() == nil || ctx.Err() != nil {
			t.Fatal("the command ended with its caller")
		}
		out, err := runExec(ctx, vm.machineNow(), id, api.ExecRequest{TimeoutSecs: 60})
		vm.finish(mine, out, err)
		end()
		if _, known, _, err := vm.beginExec(mark); known == nil || err != nil || known.answer.ExitCode != 1 {
			t.Errorf("the repeat: %+v, %v; want the first one's answer", known, err)
		}
		exec := "/v1/vms/" + id + "/exec"
		first := h.want(200, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.other")...)
		again := h.want(200, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.6.other")...)
		if first.Body.String() != again.Body.String() || first.Header().Get(api.HeaderReplayed) != "" || again.Header().Get(api.HeaderReplayed) != "true" || len(runs) != 2 {
			t.Errorf("got %s (%q) after %s (%q) and %d runs", again.Body, again.Header().Get(api.HeaderReplayed), first.Body, first.Header().Get(api.HeaderReplayed), len(runs))
		}
		h.refused(api.CodeKeyReused, "POST", exec, fields{"argv": []string{"b"}}, fenced("1.6.other")...)
		h.want(200, "POST", exec, fields{"argv": []string{"a"}}) // no token: it runs each time
		if len(runs) != 3 {
			t.Errorf("%d runs, want 3", len(runs))
		}
	})
}

func TestACommandWhoseAnswerTheDaemonLostIsNotRunAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		exec := "/v1/vms/" + id + "/exec"
		h.want(200, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.k")...)
		h.restart()
		h.await(id, func(m api.Machine) bool { return m.Agent })
		h.refused(api.CodeOutcomeUnknown, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.k")...)
		h.refused(api.CodeKeyReused, "POST", exec, fields{"argv": []string{"b"}}, fenced("1.5.k")...)
		h.want(200, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.k2")...)
		n := 0
		for _, o := range h.orders() {
			if o.Op == "exec" {
				n++
			}
		}
		if n != 1 { // the driver is a new one
			t.Errorf("%d commands since the restart, want 1", n)
		}
	})
}

func TestACommandThatCouldNotRunMayBeRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(id, fields{"image": "sim:?boot_ms=50&agent_ms=5000"}))
		exec := "/v1/vms/" + id + "/exec"
		h.refused(api.CodeConflict, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.k")...)
		h.await(id, func(m api.Machine) bool { return m.Agent })
		_, _, mine, err := h.vms[id].beginExec(execMark{"k3", "f"})
		if err != nil {
			t.Fatal(err)
		}
		h.vms[id].finish(mine, api.ExecAnswer{}, noAgent(id)) // its agent went away before it could start
		if _, known, again, err := h.vms[id].beginExec(execMark{"k3", "f"}); known != nil || again == nil || err != nil {
			t.Errorf("one that did not run: %v, %v, %v; want that it may run", known, again, err)
		}
		_, _, mine, err = h.vms[id].beginExec(execMark{"k4", "f"})
		if err != nil {
			t.Fatal(err)
		}
		h.vms[id].finish(mine, api.ExecAnswer{}, api.Errorf(api.CodeOutcomeUnknown, "the daemon ends"))
		if _, known, _, _ := h.vms[id].beginExec(execMark{"k4", "f"}); known == nil || !errors.Is(known.err, &api.Error{Code: api.CodeOutcomeUnknown}) {
			t.Errorf("one that may have run: %+v, want that its outcome is unknown", known)
		}
		h.want(200, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.k")...)
		h.want(200, "POST", "/v1/vms/"+id+"/stop", nil)
		h.refused(api.CodeConflict, "POST", exec, fields{"argv": []string{"a"}}, fenced("1.5.k5")...)
	})
}

func TestAFullHostSaysInWhatItIsFull(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) {
			c.Settings.Policy.MaxVCPUs, c.Settings.Policy.MaxMemoryMiB = 4, 1024
		})
		for why, change := range map[string]fields{api.WhyCPU: {"vcpus": 5}, api.WhyMemory: {"memory_mib": 2048}} {
			e := h.refused(api.CodeHostFull, "POST", "/v1/vms", body(uuid.NewString(), change))
			if len(e.Reasons) != 1 || e.Reasons[why] != 1 {
				t.Errorf("reasons %v, want %s", e.Reasons, why)
			}
		}
	})
}
