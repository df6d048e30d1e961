package hostd

import (
	"github.com/spf13/pflag"

	"github.com/fluxvm/fluxvm/cmd/internal/conf"
	"github.com/fluxvm/fluxvm/node"
)

const envPrefix = "FLUXVM_NODE_"

// resolve sets the flags that the command line left alone from the environment and from the file that config names,
// and reads the file's settings.
func resolve(flags *pflag.FlagSet, config *string, env func(string) (string, bool)) (settings node.Settings, err error) {
	err = conf.Resolve(flags, envPrefix, config, env, map[string]any{"policy": &settings.Policy, "sandbox": &settings.Sandbox})
	return settings, err
}
