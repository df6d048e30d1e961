package runners

import (
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/client"
)

// Command is fluxvm-agent gha-runners. newLogger makes what it logs with.
func Command(newLogger func(level string, asJSON bool) (hclog.Logger, error)) *cobra.Command {
	var file, level string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "gha-runners --config FILE", Short: "Give each queued job of GitHub Actions a VM of its own",
		Long: `Gives each queued job of GitHub Actions a VM of its own, warm from a pool where one is named, and deletes it when the
job is done. It keeps no state and may be ended and started again at any time.

The fleet and its token come from the environment, as for fluxctl: ` + client.EnvFleetURL + `, ` + client.EnvTokenFile + `, ` + client.EnvCACert + `.`,
		Example: `  FLUXVM_FLEET_URL=https://10.0.0.1:7799 FLUXVM_TOKEN_FILE=ci.key fluxvm-agent gha-runners --config gha-runners.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return fmt.Errorf("say which repositories and pools: --config FILE (examples/gha-runners.json is one)")
			}
			cfg, err := Load(file)
			if err != nil {
				return err
			}
			if _, err := os.ReadFile(cfg.GitHub.TokenFile); err != nil {
				return fmt.Errorf("%s: github.token_file: %w", file, err)
			}
			logger, err := newLogger(level, asJSON)
			if err != nil {
				return err
			}
			from, err := client.ConfigFromEnv()
			if err != nil {
				return err
			}
			fleet, err := client.New(from)
			if err != nil {
				return err
			}
			logger.Info("following the queues", "repositories", len(cfg.GitHub.Repositories), "pools", len(cfg.Pools))
			return New(cfg, fleet, logger.Named("gha")).Run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `FILE` (JSON)")
	cmd.Flags().StringVar(&level, "log-level", "info", "trace, debug, info, warn or error")
	cmd.Flags().BoolVar(&asJSON, "log-json", false, "log one JSON object a line")
	return cmd
}
