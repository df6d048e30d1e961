package hostd

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/procbox"
	"github.com/fluxvm/fluxvm/node/qemu"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// proofTimeout bounds the proof that a guest can run at all.
const proofTimeout = time.Minute

// candidates share one engine: what it finds out about the host takes time.
func candidates(openNetwork bool, log hclog.Logger) []candidate {
	engine := sync.OnceValues(func() (*qemu.Engine, error) { return qemu.New(qemu.Config{OpenNetwork: openNetwork, Logger: log}) })
	onQEMU := func(name string, ready func(context.Context, *qemu.Engine) (machine.Driver, error)) candidate {
		return candidate{name, func(ctx context.Context) (machine.Driver, error) {
			e, err := engine()
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithTimeout(ctx, proofTimeout)
			defer cancel()
			driver, err := ready(ctx, e)
			if err != nil {
				return nil, fmt.Errorf("%w; it needs QEMU 6.0 or later (Debian, Ubuntu: apt-get install qemu-system-x86 qemu-utils)", err)
			}
			return driver, nil
		}}
	}
	return []candidate{
		onQEMU(api.BackendFluxVM, func(ctx context.Context, e *qemu.Engine) (machine.Driver, error) {
			return e.FluxVM(), e.Ready(ctx)
		}),
		onQEMU(api.BackendQEMU, func(ctx context.Context, e *qemu.Engine) (machine.Driver, error) {
			return e.Whole(), e.Whole().Ready(ctx)
		}),
		{api.BackendProcbox, func(ctx context.Context) (machine.Driver, error) {
			driver := procbox.New(procbox.Config{Logger: log})
			return driver, driver.Ready(ctx)
		}},
	}
}
