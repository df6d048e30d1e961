package hostd

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/qemu"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// proofTimeout bounds the proof that a guest can run at all.
const proofTimeout = time.Minute

func candidates() []candidate {
	return []candidate{{api.BackendFluxVM, fluxVM}}
}

func fluxVM(ctx context.Context, log hclog.Logger) (machine.Driver, error) {
	driver, err := qemu.New(qemu.Config{Logger: log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	if err := driver.Ready(ctx); err != nil {
		return nil, fmt.Errorf("%w; it needs QEMU 6.0 or later (Debian, Ubuntu: apt-get install qemu-system-x86)", err)
	}
	return driver, nil
}
