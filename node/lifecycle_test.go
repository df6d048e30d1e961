package node

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestNextStepBringsTheMachineToWhatIsWanted(t *testing.T) {
	for name, c := range map[string]struct {
		rec             record
		running, paused bool
		want            step
	}{
		"new":                      {record{Wanted: api.StateRunning, Boots: 1}, false, false, stepBoot},
		"runs":                     {record{Wanted: api.StateRunning, Boots: 1, Booted: 1}, true, false, stepNone},
		"failed stays":             {record{Wanted: api.StateRunning, Boots: 1, Failed: "x"}, false, false, stepNone},
		"failed is removed":        {record{Wanted: api.StateDeleting, Boots: 1, Failed: "x"}, false, false, stepRemove},
		"stop":                     {record{Wanted: api.StateStopped, Boots: 1, Booted: 1}, true, false, stepHalt},
		"stop a paused one":        {record{Wanted: api.StateStopped, Boots: 1, Booted: 1}, true, true, stepHalt},
		"stopped":                  {record{Wanted: api.StateStopped, Boots: 1, Booted: 1}, false, false, stepNone},
		"restart halts first":      {record{Wanted: api.StateRunning, Boots: 2, Booted: 1}, true, false, stepHalt},
		"restart then boots":       {record{Wanted: api.StateRunning, Boots: 2, Booted: 1}, false, false, stepBoot},
		"pause":                    {record{Wanted: api.StatePaused, Boots: 1, Booted: 1}, true, false, stepPause},
		"paused":                   {record{Wanted: api.StatePaused, Boots: 1, Booted: 1}, true, true, stepNone},
		"resume":                   {record{Wanted: api.StateRunning, Boots: 1, Booted: 1}, true, true, stepResume},
		"delete halts first":       {record{Wanted: api.StateDeleting, Boots: 1, Booted: 1}, true, false, stepHalt},
		"wanted paused but absent": {record{Wanted: api.StatePaused, Boots: 1, Booted: 0}, false, false, stepBoot},
	} {
		if got := nextStep(c.rec, c.running, c.paused); got != c.want {
			t.Errorf("%s: got step %d, want %d", name, got, c.want)
		}
	}
}

func TestCreateBootsAndTheAgentMakesItReady(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"labels": fields{"zone": "lab"}})
		got := h.get(id)
		got.CreatedAt, got.StartedAt = 0, 0
		if got.ReadyAt == 0 {
			t.Error("ready_at is null although the agent answered")
		}
		got.ReadyAt = 0
		want := api.Machine{ID: id, Name: "vm-a", Backend: "sim", Image: "sim:?boot_ms=50&agent_ms=50", GuestOS: "linux", VCPUs: 1, MemoryMiB: 256,
			State: api.StateRunning, Labels: map[string]string{"zone": "lab"}, Agent: true, CanClaim: true}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestEightCreatesWithOneIDMakeOneVM(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		codes := make([]int, 8)
		var wait sync.WaitGroup
		for i := range codes {
			wait.Go(func() { codes[i] = h.do("POST", "/v1/vms", body(id, nil)).Code })
		}
		wait.Wait()
		made := 0
		for _, code := range codes {
			switch code {
			case 201:
				made++
			case 200:
			default:
				t.Errorf("got status %d, want 200 or 201", code)
			}
		}
		if made != 1 {
			t.Errorf("got %d times 201, want once", made)
		}
		if list := decode[api.List[api.Machine]](t, h.want(200, "GET", "/v1/vms", nil)); len(list.Items) != 1 {
			t.Errorf("got %d VMs, want 1", len(list.Items))
		}
	})
}

func TestCreateNeverChangesTheVMThatHasTheID(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, fields{"memory_mib": 512}))
		got := decode[api.Machine](t, h.want(200, "POST", "/v1/vms", body(id, fields{"name": "other", "labels": fields{"a": "b"}})))
		if got.Name != "vm-a" || got.MemoryMiB != 256 || len(got.Labels) != 0 {
			t.Errorf("got %+v, want the VM as first made", got)
		}
		h.want(204, "DELETE", "/v1/vms/"+id, nil)
		h.refused(api.CodeConflict, "POST", "/v1/vms", body(id, nil))
	})
}

func TestDeleteEndsABootUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(id, fields{"image": "sim:?boot_ms=60000"}))
		began := time.Now()
		h.want(204, "DELETE", "/v1/vms/"+id, nil)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("the delete took %s, want it not to wait for the boot", took)
		}
		if _, err := os.Stat(h.machineDir(id)); !os.IsNotExist(err) {
			t.Errorf("the machine's directory is still there: %v", err)
		}
		h.refused(api.CodeNotFound, "DELETE", "/v1/vms/"+id, nil)
		h.want(204, "DELETE", "/v1/vms/"+id, nil, fenced("1.1.7")...)
		h.refused(api.CodeNotFound, "DELETE", "/v1/vms/"+uuid.NewString(), nil, fenced("1.1.8")...)
	})
}

func TestPatchIsImmediateWhileTheVMBoots(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(id, fields{"image": "sim:?boot_ms=60000", "labels": fields{"keep": "1", "drop": "1"}}))
		began := time.Now()
		got := decode[api.Machine](t, h.want(200, "PATCH", "/v1/vms/"+id, fields{"name": "build-42", "labels": fields{"drop": nil, "new": "2"}}))
		if took := time.Since(began); took > time.Second {
			t.Errorf("the patch took %s", took)
		}
		if diff := cmp.Diff(map[string]string{"keep": "1", "new": "2"}, got.Labels); diff != "" || got.Name != "build-42" {
			t.Errorf("name %q, labels %s", got.Name, diff)
		}
	})
}

func TestStopStartRestartPauseResume(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		vm := "/v1/vms/" + id
		order := func(op string, want api.VMState) {
			t.Helper()
			h.want(200, "POST", vm+"/"+op, nil)
			h.awaitState(id, want)
		}
		h.refused(api.CodeInvalid, "POST", vm+"/stop", fields{"hard": true})
		order("pause", api.StatePaused)
		h.refused(api.CodeConflict, "POST", vm+"/start", nil)
		h.refused(api.CodeConflict, "POST", vm+"/exec", fields{"argv": []string{"true"}})
		order("resume", api.StateRunning)
		order("stop", api.StateStopped)
		order("stop", api.StateStopped)
		h.refused(api.CodeConflict, "POST", vm+"/pause", nil)
		h.refused(api.CodeConflict, "POST", vm+"/exec", fields{"argv": []string{"true"}})
		order("start", api.StateRunning)
		h.await(id, func(m api.Machine) bool { return m.Agent })
		order("restart", api.StateRunning)
		order("pause", api.StatePaused)
		order("stop", api.StateStopped)
		order("restart", api.StateRunning)
	})
}

func TestAFailedBootSaysWhyAndCanBeStartedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(id, fields{"image": "sim:?fail=boot"}))
		if m := h.awaitState(id, api.StateFailed); m.Reason == "" {
			t.Error("no reason is given")
		}
		h.want(200, "POST", "/v1/vms/"+id+"/start", nil)
		h.awaitState(id, api.StateFailed)
		h.want(204, "DELETE", "/v1/vms/"+id, nil)
	})
}

func TestAMachineThatDiesIsFailed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"image": "sim:?fail=crash&crash_after_ms=3000&agent_ms=10"})
		if m := h.awaitState(id, api.StateFailed); m.Reason == "" || m.Agent {
			t.Errorf("got %+v, want a reason and no agent", m)
		}
	})
}

func TestMachinesGoOnWithoutADaemonAndAreTakenOver(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		runs, paused, stopped := h.boot(nil), h.boot(nil), h.boot(nil)
		h.want(200, "POST", "/v1/vms/"+paused+"/pause", nil)
		h.want(200, "POST", "/v1/vms/"+stopped+"/stop", nil)
		h.want(200, "PATCH", "/v1/vms/"+runs, fields{"name": "renamed"})
		booting := uuid.NewString()
		h.want(201, "POST", "/v1/vms", body(booting, fields{"image": "sim:?boot_ms=60000"}))
		before := h.get(runs)
		h.restart()
		if diff := cmp.Diff(before, h.get(runs)); diff != "" {
			t.Errorf("the VM that runs changed over the restart: %s", diff)
		}
		for id, want := range map[string]api.VMState{paused: api.StatePaused, stopped: api.StateStopped} {
			if got := h.get(id).State; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		h.await(booting, func(m api.Machine) bool { return m.State == api.StateBooting })
		h.want(200, "POST", "/v1/vms/"+paused+"/resume", nil)
		h.want(200, "POST", "/v1/vms/"+runs+"/exec", fields{"argv": []string{"true"}})
	})
}

func TestAMachineThatEndedWithoutADaemonIsFailed(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(fields{"image": "sim:?fail=crash&crash_after_ms=60000"})
		h.stop()
		passes(2 * time.Minute) // of the synthetic clock: the machine dies meanwhile
		h.start()
		if m := h.get(id); m.State != api.StateFailed || m.Reason != "the machine ended while the daemon was down" {
			t.Errorf("got %s (%s)", m.State, m.Reason)
		}
	})
}

func TestStopMachinesLeavesNothingRunning(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		driver := sim.New(sim.Config{})
		h := newHost(t, func(c *Config) { c.StopMachines = true })
		id := h.boot(nil)
		spec := machine.Spec{MachineRequest: api.MachineRequest{ID: id}}
		dir := h.machineDir(id)
		h.stop()
		if _, err := driver.Adopt(context.Background(), spec, dir); err != machine.ErrGone {
			t.Errorf("got %v, want the machine to be gone", err)
		}
	})
}

func TestTwoMacOSGuestsAMac(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.Drivers = []machine.Driver{sim.New(sim.Config{Mac: true})} })
		first := h.boot(fields{"guest_os": "macos"})
		h.boot(fields{"apple": fields{"guest_os": "macos"}})
		h.refused(api.CodeHostFull, "POST", "/v1/vms", body(uuid.NewString(), fields{"guest_os": "macos"}))
		h.boot(nil)
		if a := h.report().Apple; a == nil || a.MacOSGuests != 2 || a.MacOSLimit != 2 {
			t.Errorf("got apple %+v", a)
		}
		h.want(204, "DELETE", "/v1/vms/"+first, nil)
		h.boot(fields{"guest_os": "macos"})
		plain := newHost(t, nil)
		plain.refused(api.CodeInvalid, "POST", "/v1/vms", body(uuid.NewString(), fields{"guest_os": "macos"}))
	})
}
