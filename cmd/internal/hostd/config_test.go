package hostd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/node"
)

// resolved runs the resolution on a node command with arguments, environment and file.
func resolved(t *testing.T, args []string, env map[string]string, file string) (map[string]string, node.Settings, error) {
	t.Helper()
	cmd := Command("node", true)
	path := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.ParseFlags(append(args, "--config", path)); err != nil {
		t.Fatal(err)
	}
	config := path
	settings, err := resolve(cmd.Flags(), &config, func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	got := map[string]string{}
	for _, name := range []string{"name", "listen", "central", "label", "cpu-overcommit", "log-json"} {
		got[name] = cmd.Flags().Lookup(name).Value.String()
	}
	return got, settings, err
}

func TestAFlagWinsOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	file := `
name = "file"
listen = "127.0.0.1:1"
central = ["http://a", "http://b"]
label = { zone = "lab", "kairon.zyvor.dev/chip" = "m4,max" }
cpu_overcommit = 3
log_json = true

[policy]
min_host_mem_available_mib = 4096
deny_host_pressure_level = "critical"
[sandbox]
idle_balloon_secs = 60
warm_slots = 2
`
	got, settings, err := resolved(t, []string{"--name", "flag"}, map[string]string{"FLUXVM_NODE_NAME": "env", "FLUXVM_NODE_LISTEN": "127.0.0.1:2"}, file)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"name": "flag", "listen": "127.0.0.1:2", "central": "[http://a,http://b]", "cpu-overcommit": "3", "log-json": "true"}
	label := got["label"]
	delete(got, "label")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(label, "zone=lab") || !strings.Contains(label, "kairon.zyvor.dev/chip=m4,max") {
		t.Errorf("got labels %s", label)
	}
	reserve := int64(4096)
	if diff := cmp.Diff(node.Settings{Policy: node.Policy{MinHostMemAvailableMiB: &reserve, DenyHostPressureLevel: "critical"},
		Sandbox: node.Sandbox{IdleBalloonSecs: 60, WarmSlots: 2}}, settings); diff != "" {
		t.Error(diff)
	}
}

func TestAFileThatCannotBeMeantIsRefusedWithItsLine(t *testing.T) {
	for file, want := range map[string]string{
		"name = \"x\"\n[policy]\nmax_vms = 3\nmax_vsm = 3\n": "line 4: policy.max_vsm",
		"nmae = \"x\"":                      "line 1: nmae",
		"\n[polcy]\nmax_vms = 1":            "line 2: polcy",
		"[policy]\nmax_vms = \"many\"":      "policy",
		"name = ":                           "line 1",
		"cpu-overcommit = 3":                "line 1: cpu-overcommit",
		"central = \"http://a\"":            "line 1: central",
		"cpu_overcommit = \"eight\"":        "line 1: cpu_overcommit",
		"config = \"other.toml\"":           "line 1: config",
		"[sandbox.inner]\nx = 1":            "sandbox.inner",
		"[policy]\npressure_defer_secs=1.5": "policy",
	} {
		_, _, err := resolved(t, nil, nil, file)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q in it", file, err, want)
		}
	}
	_, _, err := resolved(t, nil, map[string]string{"FLUXVM_NODE_CPU_OVERCOMMIT": "x"}, "")
	if err == nil || !strings.Contains(err.Error(), "FLUXVM_NODE_CPU_OVERCOMMIT") {
		t.Errorf("got %v", err)
	}
}

func TestWithoutAFleetThereAreNoFleetFlags(t *testing.T) {
	serve := Command("serve", false).Flags()
	for _, name := range []string{"central", "join-token-file", "heartbeat-secs", "label", "advertise-url"} {
		if serve.Lookup(name) != nil {
			t.Errorf("serve has --%s", name)
		}
	}
	if serve.Lookup("backend") == nil {
		t.Error("serve has no --backend")
	}
}

func TestABackendThatThisBuildLacksIsRefused(t *testing.T) {
	for _, backend := range []string{"vz", "nonsense"} {
		if _, _, err := chooseDrivers(t.Context(), backend, false, nil); err == nil || !strings.Contains(err.Error(), "sim") {
			t.Errorf("%s: got %v", backend, err)
		}
	}
	drivers, sized, err := chooseDrivers(t.Context(), "sim", false, nil)
	if err != nil || len(drivers) != 1 || drivers[0].Name() != "sim" || sized.vcpus == 0 {
		t.Errorf("got %v, %+v, %v", drivers, sized, err)
	}
}

func TestAnOpenNetworkNeedsATokenForTheAPIThatGuestsThenReach(t *testing.T) {
	cmd := Command("serve", false)
	cmd.SetArgs([]string{"--open-network", "--backend", "sim", "--data", t.TempDir()})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--admin-token-file") {
		t.Errorf("got %v, want that it asks for a token", err)
	}
}
