package hostd

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/node"
	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// microVMs is the sim driver under the name of the one that the density script boots.
type microVMs struct{ *sim.Driver }

func (microVMs) Name() string { return api.BackendFluxVM }

// densityHost is a daemon and a client of it.
func densityHost(t *testing.T, settings node.Settings) (url string, h *client.Host) {
	t.Helper()
	for _, program := range []string{"bash", "curl", "jq", "awk"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("SKIPPED: the density script needs %s", program)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d, err := node.New(node.Config{Name: "n", DataDir: t.TempDir(), Listener: listener, Drivers: []machine.Driver{microVMs{sim.New(sim.Config{})}}, Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	url = "http://" + listener.Addr().String()
	if h, err = client.NewHost(client.Config{Endpoints: []string{url}}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		if _, err := h.HostMemory(t.Context()); err == nil {
			return url, h
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func machines(t *testing.T, h *client.Host) (ids []string) {
	t.Helper()
	for m, err := range h.Machines(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	return ids
}

// density runs the script and gives its exit code and both outputs.
func density(t *testing.T, url string, args []string, vars ...string) (code int, out, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append([]string{filepath.Join("..", "..", "..", "scripts", "bench-density-count.sh")}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "FLUXVM_API=" + url, "FLUXVM_BENCH_CONFIRM=1", "MODE=BASELINE", "IMAGE=sim:?boot_ms=1&agent_ms=1", "SETTLE_SECS=0", "MAX=3"}, vars...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// tcg is the flag that a host without KVM needs; every host takes it.
var tcg = [...]string{"--accel", "tcg"}

func TestTheDensityScriptRefusesWhatIsUnsafeOrContradictory(t *testing.T) {
	url, h := densityHost(t, node.Settings{})
	tuned := filepath.Join(t.TempDir(), "node.toml")
	if err := os.WriteFile(tuned, []byte("[policy]\nidle_balloon_secs = 0\n[sandbox] # of all\n idle_balloon_secs = 6_0 # s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, vars := range map[string][]string{
		"FLUXVM_BENCH_CONFIRM=1":       {"FLUXVM_BENCH_CONFIRM="},
		"at least 512":                 {"MIN_AVAIL_MIB=511"},
		"BASELINE or TUNED":            {"MODE="},
		"idle_balloon_secs is 60":      {"FLUXVM_CONFIG=" + tuned},
		"idle_balloon_secs is 0":       {"MODE=TUNED", "FLUXVM_CONFIG=/dev/null"},
		"MAX must be a whole number":   {"MAX=many"},
		"KERNEL needs IMAGE":           {"KERNEL=/x", "IMAGE="},
		"MIN_AVAIL_MIB must be":        {"MIN_AVAIL_MIB=-1"},
		"FLUXVM_CONFIG=/no/such/file ": {"FLUXVM_CONFIG=/no/such/file"},
	} {
		if code, out, said := density(t, url, tcg[:], vars...); code != 2 || out != "" || !strings.Contains(said, want) {
			t.Errorf("%v: got exit %d, %q, %q; want 2 and %q", vars, code, out, said, want)
		}
	}
	if code, _, said := density(t, url, []string{"--accel", "fast"}); code != 2 || !strings.Contains(said, "kvm or tcg") {
		t.Errorf("got exit %d, %q", code, said)
	}
	if code, out, said := density(t, url, tcg[:], "MIN_AVAIL_MIB=100000"); code != 1 || out != "" || !strings.Contains(said, "nothing was started") {
		t.Errorf("below the floor at the start: got exit %d, %q", code, said)
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		if code, out, said := density(t, url, nil); code != 0 || out != "" || !strings.Contains(said, "skipped") {
			t.Errorf("without KVM: got exit %d, %q", code, said)
		}
	}
	if ids := machines(t, h); len(ids) > 0 {
		t.Errorf("it made %v", ids)
	}
}

func TestTheDensityScriptCountsAndDeletesOnlyItsOwn(t *testing.T) {
	url, h := densityHost(t, node.Settings{Policy: node.Policy{MaxVMs: 4}})
	mine, err := h.Create(t.Context(), api.MachineRequest{Name: "bench-mine", Image: "sim:", MemoryMiB: 256})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		reason string
		count  int
		sim    string
		vars   []string
	}{
		{"max_reached", 2, `{}`, []string{"MAX=2"}},
		{"create_refused", 3, `{}`, []string{"MAX=9"}},
		{"below_floor", 0, `{"mem_available_mib": 2303}`, nil},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, url+"/v1/sim", strings.NewReader(c.sim))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		code, out, said := density(t, url, tcg[:], c.vars...)
		if code != 0 {
			t.Fatalf("%s: exit %d: %s", c.reason, code, said)
		}
		var got struct {
			Mode, Accel, Note string
			MemMiB            int    `json:"mem_mib"`
			StopReason        string `json:"stop_reason"`
			Refusal           string
			Count             int
			Start             *int   `json:"host_mem_available_start_mib"`
			End               *int   `json:"host_mem_available_end_mib"`
			Delta             *int   `json:"host_mem_available_delta_mib"`
			PSS               *int   `json:"pss_total_kib"`
			Check             string `json:"mode_config_check"`
			PerVM             []any  `json:"per_vm"`
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%s: %v in %s", c.reason, err, out)
		}
		if got.StopReason != c.reason || got.Count != c.count || len(got.PerVM) != c.count || got.Mode != "BASELINE" || got.MemMiB != 256 || got.Check != "not_run" {
			t.Errorf("%s: got %s", c.reason, out)
		}
		if got.Accel != "tcg" || got.Note == "" || got.PSS == nil || got.Start == nil || got.End == nil || got.Delta == nil || *got.Delta != *got.Start-*got.End {
			t.Errorf("%s: got %s", c.reason, out)
		}
		if (got.Refusal != "") != (c.reason == "create_refused") {
			t.Errorf("%s: got refusal %q", c.reason, got.Refusal)
		}
		if ids := machines(t, h); len(ids) != 1 || ids[0] != mine.ID {
			t.Errorf("%s: left %v, want only %s", c.reason, ids, mine.ID)
		}
	}
}
