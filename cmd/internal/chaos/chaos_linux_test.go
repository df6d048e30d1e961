package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// insideEnv is set in the process that makes the campaign, apart from the machine.
const insideEnv = "FLUXVM_CHAOS_INSIDE"

// TestCampaign makes a campaign: CHAOS_DURATION (it is skipped without), CHAOS_SEED (by default the time), CHAOS_REPLICAS
// (3), CHAOS_FAULTS (those alone, such as kill-leader,host-old), CHAOS_REPORT (a file for the report as JSON), CHAOS_LOGS (a directory that is kept).
func TestCampaign(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("CHAOS_DURATION"))
	if err != nil {
		t.Skip("CHAOS_DURATION says how long, such as 3m; make chaos sets it")
	}
	if os.Getenv(insideEnv) != "" {
		inside(t, duration)
		return
	}
	if err := unable(); err != nil {
		t.Skip(err)
	}
	if err := outside(t, build(t, ""), duration); err != nil {
		t.Error(err)
	}
}

// build makes the agent, with other sources in the places that overlay names.
func build(t *testing.T, overlay string) (agent string) {
	t.Helper()
	agent = filepath.Join(t.TempDir(), "fluxvm-agent")
	args := []string{"build", "-trimpath", "-tags", "chaos", "-o", agent}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.Command("go", append(args, "github.com/fluxvm/fluxvm/cmd/fluxvm-agent")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the agent: %v\n%s", err, out)
	}
	return agent
}

// outside runs this test once more, apart from the machine, and waits for it.
func outside(t *testing.T, agent string, duration time.Duration, env ...string) error {
	t.Helper()
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	logs := os.Getenv("CHAOS_LOGS")
	if logs == "" {
		logs = t.TempDir()
	}
	env = append(env, insideEnv+"="+agent, "CHAOS_DURATION="+duration.String(), "CHAOS_LOGS="+logs)
	return enter(ctx, os.Stdout, env, os.Args[0], "-test.run=^TestCampaign$", "-test.timeout=0")
}

// inside makes the campaign and judges it.
func inside(t *testing.T, duration time.Duration) {
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := Config{Agent: os.Getenv(insideEnv), Dir: os.Getenv("CHAOS_LOGS"), Duration: duration, Seed: uint64(time.Now().UnixNano()), Replicas: 3, Hosts: 4, Out: os.Stdout,
		Impatient: os.Getenv("CHAOS_IMPATIENT") != ""}
	if names := os.Getenv("CHAOS_FAULTS"); names != "" {
		cfg.Faults = strings.Split(names, ",")
	}
	if n, err := strconv.ParseUint(os.Getenv("CHAOS_SEED"), 10, 64); err == nil {
		cfg.Seed = n
	}
	if n, err := strconv.Atoi(os.Getenv("CHAOS_REPLICAS")); err == nil {
		cfg.Replicas = n
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	fmt.Printf("chaos: %s with %d replicas, CHAOS_SEED=%d\n", duration, cfg.Replicas, cfg.Seed)
	report, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	report.print(os.Stdout)
	if path := os.Getenv("CHAOS_REPORT"); path != "" {
		if err := report.write(path); err != nil {
			t.Error(err)
		}
	}
	if n := len(report.Violations); n > 0 {
		t.Errorf("%d promises were broken; the same faults again: CHAOS_SEED=%d", n, cfg.Seed)
	}
	if why := report.idle(); why != "" && ctx.Err() == nil && !cfg.Impatient && len(cfg.Faults) == 0 {
		t.Errorf("it did too little: %s", why)
	}
	if context.Cause(ctx) != nil {
		t.Error("it was interrupted")
	}
}
