package node

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// example is a request of examples/ as it stands there.
func example(t *testing.T, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile("../examples/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// onSim is the example for a host that has the sim backend only.
func onSim(t *testing.T, raw []byte) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatal(err)
	}
	out["image"] = "sim:?boot_ms=50&agent_ms=50"
	delete(out, "backend")
	return out
}

func TestExampleRequestsMakeVMs(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		plain := example(t, "vm-agent-micro.json")
		var vm api.MachineRequest
		if err := api.Decode(plain, &vm); err != nil || vm.Check() != nil || vm.Backend != api.BackendVZ {
			t.Errorf("the plain VM: %+v, %v, %v", vm, err, vm.Check())
		}
		h.want(201, "POST", "/v1/vms", onSim(t, plain))
		if m := h.await(vm.ID, func(m api.Machine) bool { return m.Agent }); m.VCPUs != 1 || m.MemoryMiB != 512 || m.Name != vm.Name {
			t.Errorf("got %+v", m)
		}
		sandbox := example(t, "sandbox-agent-micro.json")
		if err := api.Decode(sandbox, &api.SandboxRequest{}); err != nil {
			t.Errorf("the sandbox: %v", err)
		}
		m := decode[api.Machine](t, h.want(201, "POST", "/v1/sandboxes", onSim(t, sandbox)))
		if m = h.await(m.ID, func(m api.Machine) bool { return m.Agent }); m.MemoryMiB != 128 || m.ExpiresAt == 0 {
			t.Errorf("got %+v", m)
		}
	})
}

// The labels that the documentation suggests are ones that a host may have and a launch may ask for.
func TestExampleLaunchFitsAHostWithTheSuggestedLabels(t *testing.T) {
	var launch api.LaunchRequest
	if err := api.Decode(example(t, "launch-agent-micro.json"), &launch); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"kairon.zyvor.dev/backend.vz": "true", "kairon.zyvor.dev/chip": chipName("Apple M4 Max"), "kairon.zyvor.dev/memory-gib": "64"}
	if err := launch.Check(); err != nil || !api.Matches(launch.Selector(), labels) {
		t.Errorf("%v; selector %v", err, launch.Selector())
	}
	inBubble(t, func(t *testing.T) { newHost(t, func(c *Config) { c.Labels = labels }) })
}
