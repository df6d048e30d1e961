package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/cmd/internal/hostd"
	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/fleettest"
)

// devOptions are the command's settings.
type devOptions struct {
	replicas, nodes, macs int
	backend, listen, data string
	processes             bool
	logLevel              string
}

func devCommand() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole fleet on this host, for trying it out",
		Long: `Runs a whole fleet on this host until it is interrupted: replicas of the control plane and nodes, on loopback.
Prints, and writes to DATA/env, what fluxctl and Terraform need to find it. It leaves no VM behind.`,
		Example: `  fluxvm-agent dev
  fluxvm-agent dev --nodes 3 --macs 2 --backend sim --data /tmp/fleet
  . /tmp/fleet/env && fluxctl fleet nodes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDev(cmd, o) },
	}
	f := cmd.Flags()
	f.IntVar(&o.replicas, "replicas", 3, "replicas of the control plane")
	f.IntVar(&o.nodes, "nodes", 1, "nodes, called node-1 and so on")
	f.IntVar(&o.macs, "macs", 0, "how many of the nodes pose as Macs (sim only)")
	f.StringVar(&o.backend, "backend", api.BackendAuto, "how VMs are run: auto, flux-vm, qemu, procbox, or sim (no VM is real)")
	f.StringVar(&o.listen, "listen", "127.0.0.1:7799", "address of the first replica's API; the others take free ports")
	f.StringVar(&o.data, "data", "", "directory for everything (default: a temporary one, removed at the end)")
	f.BoolVar(&o.processes, "processes", false, "run each replica and node as a process of its own, and restart those that die (not those that end with 78 or 79)")
	f.StringVar(&o.logLevel, "log-level", "warn", "trace, debug, info, warn or error")
	return cmd
}

func (o *devOptions) check() error {
	switch {
	case o.replicas < 1 || o.replicas > 9:
		return errors.New("--replicas must be from 1 to 9")
	case o.nodes < 1 || o.nodes > 100:
		return errors.New("--nodes must be from 1 to 100")
	case o.macs < 0 || o.macs > o.nodes:
		return errors.New("--macs must not be more than --nodes")
	case o.macs > 0 && o.backend != api.BackendSim:
		return errors.New("--macs needs --backend sim: only a simulated node can pose as a Mac")
	}
	return nil
}

// address is where the parts of a running fleet are.
type address struct {
	token    string
	replicas []string
	nodes    []string // NAME=URL
}

func runDev(cmd *cobra.Command, o devOptions) (err error) {
	if err := o.check(); err != nil {
		return err
	}
	ctx := cmd.Context()
	logger, err := newLogger(cmd.ErrOrStderr(), o.logLevel, false)
	if err != nil {
		return err
	}
	if o.data == "" {
		if o.data, err = os.MkdirTemp("", "fluxvm-dev-"); err != nil {
			return fmt.Errorf("making a temporary directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.data)) }()
	}
	if o.data, err = filepath.Abs(o.data); err != nil {
		return err
	}
	for _, stale := range []string{"env", "pids"} { // of an earlier run: whoever waits for them waits for this one's
		if err := os.Remove(filepath.Join(o.data, stale)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Starting %d replicas and %d nodes…\n", o.replicas, o.nodes)
	if o.processes {
		return runProcesses(ctx, cmd, o, logger)
	}
	return runInProcess(ctx, cmd, o, logger)
}

func runInProcess(ctx context.Context, cmd *cobra.Command, o devOptions, logger hclog.Logger) (err error) {
	interval, err := poolInterval(os.Getenv("FLUXVM_WARM_POOL_INTERVAL_SECS"), 5)
	if err != nil {
		return err
	}
	cfg := fleettest.Config{Dir: o.data, Replicas: o.replicas, Nodes: o.nodes, Macs: o.macs, Listen: o.listen, PoolInterval: interval, Version: buildVersion(), Logger: logger}
	if o.backend != api.BackendSim {
		cfg.Drivers = func() ([]machine.Driver, error) { return hostd.Drivers(ctx, o.backend, logger) }
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fleet, err := fleettest.Start(starting, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Stop()) }()
	where := address{token: fleet.Token, replicas: fleet.URLs()}
	for i, url := range fleet.NodeURLs() {
		where.nodes = append(where.nodes, fmt.Sprintf("node-%d=%s", i+1, url))
	}
	if err := where.publish(cmd, o.data); err != nil {
		return err
	}
	ended, why := fleet.Ended()
	select {
	case <-ctx.Done():
		fmt.Fprintln(cmd.ErrOrStderr(), "Stopping the fleet…")
		return nil
	case <-ended:
		return why()
	}
}

// publish prints how to reach the fleet and writes it to DATA/env, which appears whole or not at all.
func (a *address) publish(cmd *cobra.Command, dir string) error {
	env := fmt.Sprintf("export FLUXVM_FLEET_URL=%s FLUXVM_TOKEN=%s\nexport FLUXVM_REPLICA_URLS=%s FLUXVM_NODE_URLS=%s\n",
		strings.Join(a.replicas, ","), a.token, strings.Join(a.replicas, ","), strings.Join(a.nodes, ","))
	if err := writeWhole(filepath.Join(dir, "env"), env); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\n# The fleet is up. In another shell:  . %s && fluxctl fleet nodes\n", strings.TrimSpace(env), filepath.Join(dir, "env"))
	return nil
}

func writeWhole(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
