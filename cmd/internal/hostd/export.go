package hostd

import (
	"context"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
)

// Drivers makes the drivers that this host can use, for a caller that runs daemons itself.
func Drivers(ctx context.Context, backend string, logger hclog.Logger) ([]machine.Driver, error) {
	drivers, _, err := chooseDrivers(ctx, backend, false, logger)
	return drivers, err
}
