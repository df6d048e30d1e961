package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/cmd/internal/hostd"
	"github.com/fluxvm/fluxvm/cmd/internal/runners"
)

// version is set by the linker in releases.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	root := &cobra.Command{
		Use:   "fluxvm-agent",
		Short: "Run the parts of a FluxVM fleet",
		Long: `Runs the parts of a FluxVM fleet. fluxctl and Terraform talk to what it runs.

Try it out with "fluxvm-agent dev"; docs/operations.md tells how to run a real fleet.`,
		SilenceUsage: true, SilenceErrors: true, Version: buildVersion(),
	}
	node := hostd.Command("node", true)
	node.Example = `  fluxvm-agent node --central https://10.0.0.1:7799,https://10.0.0.2:7799,https://10.0.0.3:7799 --join-token-file join.token \
    --tls-ca ca.pem --listen 10.0.0.5:7788
  fluxvm-agent node --central http://127.0.0.1:7799 --backend sim --label zone=lab --data /tmp/node`
	root.AddCommand(centralCommand(), node, devCommand(), runners.Command(func(level string, asJSON bool) (hclog.Logger, error) { return newLogger(os.Stderr, level, asJSON) }))
	root.AddCommand(hostd.Helpers()...)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "fluxvm-agent:", err)
		var refused *consensus.ExitError
		if errors.As(err, &refused) {
			os.Exit(refused.Code)
		}
		os.Exit(1)
	}
}

// buildVersion is the release's, else what the Go toolchain recorded of the source.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "(devel)" && info.Main.Version != "" {
		return info.Main.Version
	}
	return "dev"
}

func newLogger(out io.Writer, level string, asJSON bool) (hclog.Logger, error) {
	l := hclog.LevelFromString(level)
	if l == hclog.NoLevel {
		return nil, fmt.Errorf("--log-level %q must be trace, debug, info, warn or error", level)
	}
	return hclog.New(&hclog.LoggerOptions{Name: "fluxvm", Level: l, Output: out, JSONFormat: asJSON}), nil
}
