package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// flaky is the sim driver with a backend that does not do what it is told, so many times.
type flaky struct {
	*sim.Driver
	stops, removes, adopts, pauses atomic.Int32
}

func (f *flaky) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := f.Driver.Start(ctx, spec, dir)
	if err != nil {
		return nil, err
	}
	return &flakyMachine{m, f}, nil
}

func (f *flaky) Adopt(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	if f.adopts.Add(-1) >= 0 {
		return nil, errors.New("the monitor does not answer")
	}
	return f.Driver.Adopt(ctx, spec, dir)
}

func (f *flaky) Remove(spec machine.Spec, dir string) error {
	if f.removes.Add(-1) >= 0 {
		return errors.New("the disk is busy")
	}
	return f.Driver.Remove(spec, dir)
}

type flakyMachine struct {
	machine.Machine
	f *flaky
}

func (m *flakyMachine) Stop(ctx context.Context, force bool) error {
	if m.f.stops.Add(-1) >= 0 {
		return errors.New("the process does not end")
	}
	return m.Machine.Stop(ctx, force)
}

func (m *flakyMachine) Pause(ctx context.Context) error {
	if m.f.pauses.Add(-1) >= 0 {
		return errors.New("the monitor is stuck")
	}
	return m.Machine.Pause(ctx)
}

func newFlaky(t *testing.T) (*host, *flaky) {
	f := &flaky{Driver: sim.New(sim.Config{})}
	return newHost(t, func(c *Config) { c.Drivers = []machine.Driver{f} }), f
}

func TestADeleteThatDoesNotWorkIsSaidAndTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, f := newFlaky(t)
		id := h.boot(nil)
		f.stops.Store(1)
		f.removes.Store(2)
		if e := h.refused(api.CodeInternal, "DELETE", "/v1/vms/"+id, nil); !strings.Contains(e.Detail, "does not end") {
			t.Errorf("got %q", e.Detail)
		}
		if m := h.get(id); m.State != api.StateDeleting {
			t.Errorf("got state %s, want deleting", m.State)
		}
		h.refused(api.CodeConflict, "PATCH", "/v1/vms/"+id, fields{"name": "x"})
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil))
		passes(30 * time.Second)
		h.refused(api.CodeNotFound, "GET", "/v1/vms/"+id, nil)
		deletes := 0
		for _, o := range h.orders() {
			if o.Op == "delete" {
				deletes++
			}
		}
		if deletes != 1 {
			t.Errorf("the delete is listed %d times, want once", deletes)
		}
	})
}

func TestAPauseThatDoesNotWorkLeavesTheVMRunning(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, f := newFlaky(t)
		id := h.boot(nil)
		f.pauses.Store(1)
		if e := h.refused(api.CodeInternal, "POST", "/v1/vms/"+id+"/pause", nil); !strings.Contains(e.Detail, "stuck") {
			t.Errorf("got %q", e.Detail)
		}
		if m := h.get(id); m.State != api.StateRunning {
			t.Errorf("got state %s, want running", m.State)
		}
		h.want(200, "POST", "/v1/vms/"+id+"/pause", nil)
	})
}

func TestAMachineThatCannotBeTakenOverIsFailedUntilItCan(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, f := newFlaky(t)
		id := h.boot(nil)
		f.adopts.Store(1)
		h.restart()
		if m := h.get(id); m.State != api.StateFailed || !strings.Contains(m.Reason, "monitor") {
			t.Errorf("got %s (%s)", m.State, m.Reason)
		}
		h.restart()
		if m := h.awaitState(id, api.StateRunning); m.Reason != "" {
			t.Errorf("got the reason %q for a VM that runs", m.Reason)
		}
	})
}

func TestADeleteThatTheDaemonDidNotLiveToFinishIsFinishedByTheNext(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, f := newFlaky(t)
		id := h.boot(nil)
		f.stops.Store(1)
		h.refused(api.CodeInternal, "DELETE", "/v1/vms/"+id, nil)
		h.restart()
		passes(time.Second)
		h.refused(api.CodeNotFound, "GET", "/v1/vms/"+id, nil)
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil))
	})
}

func TestAPauseOrderedBeforeACrashHoldsAfterIt(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, _ := newFlaky(t)
		id := h.boot(nil)
		// The record as a daemon leaves it that dies between the order and its effect.
		v, err := h.find(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []api.VMState{api.StatePaused, api.StateRunning} {
			v.mu.Lock()
			rec := v.rec
			v.mu.Unlock()
			h.stop()
			rec.Wanted, rec.Paused = want, true
			s, err := openStore(h.dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.put(id, rec), s.close()); err != nil {
				t.Fatal(err)
			}
			h.start()
			if m := h.get(id); m.State != want {
				t.Errorf("got state %s, want %s", m.State, want)
			}
			if v, err = h.find(id); err != nil {
				t.Fatal(err)
			}
		}
		h.want(200, "POST", "/v1/vms/"+id+"/exec", fields{"argv": []string{"true"}})
	})
}

func TestABackendThatIsNotThereIsNamed(t *testing.T) {
	h := Config{Name: "n", DataDir: t.TempDir(), Drivers: []machine.Driver{sim.New(sim.Config{})}, Backend: "vz"}
	if _, err := New(h); err == nil || !strings.Contains(err.Error(), `"vz"`) || !strings.Contains(err.Error(), "sim") {
		t.Errorf("got %v", err)
	}
	for name, change := range map[string]func(*Config){
		"--data":          func(c *Config) { c.DataDir = "" },
		"--central":       func(c *Config) { c.Central = []string{"10.0.0.1:7799"} },
		"--advertise-url": func(c *Config) { c.AdvertiseURL = "10.0.0.1" },
		"--label":         func(c *Config) { c.Labels = map[string]string{"a b": "c"} },
		"--name":          func(c *Config) { c.Name = "a b" },
		"driver":          func(c *Config) { c.Drivers = nil },
	} {
		cfg := Config{Name: "n", DataDir: t.TempDir(), Drivers: []machine.Driver{sim.New(sim.Config{})}}
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
