package hostd

import (
	"context"
	"fmt"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/vz"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// helperVerb is the hidden command that holds one VM.
const helperVerb = "vz-machine"

func candidates(_ bool, log hclog.Logger) []candidate {
	return []candidate{{api.BackendVZ, func(context.Context) (machine.Driver, error) { return appleVMs(log) }}}
}

func appleVMs(log hclog.Logger) (machine.Driver, error) {
	_, limits, err := vz.Host()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program, which also holds the VMs: %w", err)
	}
	return vz.New(vz.Config{Helper: []string{self, helperVerb}, Limits: limits, Logger: log})
}

// Helpers are the hidden commands by which a driver of this host starts processes of its own.
func Helpers() []*cobra.Command {
	return []*cobra.Command{{
		Use: helperVerb, Short: "Hold one VM; the node daemon starts it", Hidden: true, Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			framework, _, err := vz.Host()
			if err != nil {
				return err
			}
			return vz.RunHelper(framework)
		},
	}}
}
