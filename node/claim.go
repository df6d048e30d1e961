package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// claimTimeout is how long a guest may take over its claim: less than central waits for the whole order.
const claimTimeout = 8 * time.Second

// giveClaim gives the VM's guest its claim under the order's token. It goes through memory only: no record, no event
// and no log holds it.
func (d *Daemon) giveClaim(c *call, v *vm, claim api.GuestClaim) error {
	var claimer machine.Claimer
	err := d.gate.within(c.token, func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		var can bool
		switch {
		case v.run == nil:
			return api.Errorf(api.CodeConflict, "VM %s does not run, so its guest cannot take a claim", v.id)
		case v.hasAgent() && (v.run.paused || !v.rec.Agent):
			return api.Errorf(api.CodeUnavailable, "the guest agent of VM %s does not answer yet; try again", v.id)
		}
		if claimer, can = v.run.Machine.(machine.Claimer); !can || !v.hasAgent() || !claimer.CanClaim() {
			return api.Invalid("claim", "the guest agent of VM %s cannot take a claim; update fluxvm-guest in its image", v.id)
		}
		return nil
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Context(), claimTimeout)
	defer cancel()
	switch err := claimer.Claim(ctx, claim); {
	case errors.Is(err, machine.ErrNoAgent), errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeOutcomeUnknown, "the guest agent of VM %s has gone silent over its claim", v.id)
	case errors.Is(err, context.Canceled):
		return api.Errorf(api.CodeOutcomeUnknown, "the caller left before the guest had the claim")
	case err != nil:
		return api.Errorf(api.CodeConflict, "the guest could not take its claim: %s", err)
	}
	return nil
}

// withoutClaim is the patch as it may be remembered: a hash of secrets would let them be guessed.
func withoutClaim(p api.MachinePatch) ([]byte, error) {
	p.Claim = nil
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encoding a patch: %w", err)
	}
	return raw, nil
}
