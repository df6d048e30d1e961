package hostd

import (
	"context"
	"fmt"
	"strings"

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

// candidate is a driver that this build has; auto takes those in order that can run a VM here.
type candidate struct {
	name string
	make func(context.Context) (machine.Driver, error) // the error says what to install
}

// chooseDrivers makes the drivers this host can use; the first is what "auto" means. Sim is used only when named,
// and then alone: its host is not real either. With openNetwork QEMU's guests reach beyond their forwarded ports.
func chooseDrivers(ctx context.Context, backend string, openNetwork bool, log hclog.Logger) ([]machine.Driver, size, error) {
	if backend == api.BackendSim {
		return []machine.Driver{sim.New(sim.Config{})}, size{sim.VCPUs, sim.MemoryMiB}, nil
	}
	auto := backend == "" || backend == api.BackendAuto
	var usable []machine.Driver
	var names, why []string
	for _, c := range candidates(openNetwork, log) {
		names = append(names, c.name)
		if !auto && c.name != backend {
			continue
		}
		driver, err := c.make(ctx)
		if err != nil {
			why = append(why, fmt.Sprintf("%s: %v", c.name, err))
			continue
		}
		usable = append(usable, driver)
	}
	switch {
	case len(usable) > 0:
		return usable, size{}, nil
	case ctx.Err() != nil:
		return nil, size{}, ctx.Err()
	case len(why) > 0:
		return nil, size{}, fmt.Errorf("no VM can run on this host (%s); to try things out, --backend sim runs VMs that are not real", strings.Join(why, "; "))
	case auto:
		return nil, size{}, fmt.Errorf("this build runs no VMs on this system yet; to try things out, --backend sim runs VMs that are not real")
	}
	return nil, size{}, fmt.Errorf("--backend %q is not one that this build has: use %s", backend, strings.Join(append([]string{api.BackendAuto}, append(names, api.BackendSim)...), ", "))
}
