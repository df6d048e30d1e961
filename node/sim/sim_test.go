package sim

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAnImageSaysHowItsMachinesBehave(t *testing.T) {
	usual := image{boot: 50 * time.Millisecond, agent: 50 * time.Millisecond, fail: failNone, balloon: balloonFollows}
	for path, want := range map[string]image{
		"":                            usual,
		"sim:":                        usual,
		"sim:?":                       usual,
		"sim:?boot_ms=0&agent_ms=900": {agent: 900 * time.Millisecond, fail: failNone, balloon: balloonFollows},
		"sim:?fail=crash&crash_after_ms=5&boot_ms=1&agent_ms=2": {boot: time.Millisecond, agent: 2 * time.Millisecond, fail: failCrash, crashAfter: 5 * time.Millisecond, balloon: balloonFollows},
		"sim:?boot_ms=0&agent_ms=0&balloon=stuck&template=1":    {fail: failNone, balloon: balloonStuck, template: true},
	} {
		got, err := parseImage(path)
		if err != nil {
			t.Errorf("%q: %v", path, err)
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(image{})); diff != "" {
			t.Errorf("%q: %s", path, diff)
		}
	}
}

func TestAMachineIsTakenOverByItsTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, dir := context.Background(), t.TempDir()
		spec := machine.Spec{MachineRequest: api.MachineRequest{Image: "sim:?boot_ms=1000&agent_ms=5000&fail=crash&crash_after_ms=60000", MemoryMiB: 1000}}
		first := New(Config{})
		began := time.Now()
		m, err := first.Start(ctx, spec, dir)
		if err != nil || time.Since(began) != time.Second {
			t.Fatalf("started after %s: %v", time.Since(began), err)
		}
		if got := first.Memory().MemAvailableMiB; got != MemoryMiB-1000 {
			t.Errorf("got %d MiB available while it runs", got)
		}
		if err := m.Ping(ctx); !errors.Is(err, machine.ErrNoAgent) {
			t.Errorf("the agent answers too early: %v", err)
		}
		m.Release()
		<-time.After(10 * time.Second)
		second := New(Config{})
		if m, err = second.Adopt(ctx, spec, dir); err != nil {
			t.Fatal(err)
		}
		if err := m.Ping(ctx); err != nil {
			t.Errorf("the agent of a machine taken over: %v", err)
		}
		<-m.Done()
		if lived := time.Since(began); lived != 61*time.Second || m.Err() == nil {
			t.Errorf("it lived %s and ended with %v, want a crash after 61 s", lived, m.Err())
		}
		if _, err := second.Adopt(ctx, spec, dir); !errors.Is(err, machine.ErrGone) {
			t.Errorf("a machine that died was taken over: %v", err)
		}
		if got := second.Memory().MemAvailableMiB; got != MemoryMiB {
			t.Errorf("got %d MiB available when none runs", got)
		}
	})
}

func TestABootEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		dir := t.TempDir()
		spec := machine.Spec{MachineRequest: api.MachineRequest{Image: "sim:?boot_ms=60000"}}
		d := New(Config{})
		if _, err := d.Start(ctx, spec, dir); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if _, err := d.Adopt(context.Background(), spec, dir); !errors.Is(err, machine.ErrGone) {
			t.Errorf("a boot that was ended left a machine: %v", err)
		}
	})
}
