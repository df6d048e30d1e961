package hostd

import (
	"context"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// size overrides what the host has; zeros do not.
type size struct {
	vcpus     int
	memoryMiB int64
}

// chooseDrivers makes the drivers this host can use; the first is what "auto" means. Sim is used only when named,
// and then alone: its host is not real either.
func chooseDrivers(_ context.Context, backend string, _ hclog.Logger) ([]machine.Driver, size, error) {
	switch backend {
	case api.BackendSim:
		return []machine.Driver{sim.New(sim.Config{})}, size{sim.VCPUs, sim.MemoryMiB}, nil
	case api.BackendAuto, "":
		return nil, size{}, errNoDriver
	}
	return nil, size{}, fmt.Errorf("--backend %q is not one this build has: auto or sim", backend)
}
