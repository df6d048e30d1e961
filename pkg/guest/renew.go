package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// opRenew gives a guest that goes on from a saved state what that state made stale.
const opRenew = "renew"

// Renewal is what a guest must be told that was copied or has slept. The agent mixes the seed in before it does
// anything else; empty texts are left as they are.
type Renewal struct {
	Seed      []byte `json:"seed"`       // randomness that no other guest was given
	UnixNanos int64  `json:"unix_nanos"` // the time, when it is sent
	Hostname  string `json:"hostname,omitempty"`
	MachineID string `json:"machine_id,omitempty"` // 32 hex digits
	BootID    string `json:"boot_id,omitempty"`    // a UUID
	HostKeys  bool   `json:"host_keys,omitempty"`  // make new SSH host keys, where the guest has some
}

// Renew makes the guest another one, or the same one at another time. It returns when that is done.
func (c *Client) Renew(ctx context.Context, r Renewal) error {
	if err := c.call(ctx, opRenew, r, nil); err != nil {
		return fmt.Errorf("renewing the guest: %w", err)
	}
	return nil
}

func (s *session) renew(m message) {
	s.answerLater(m.ID, func() (any, error) {
		var r Renewal
		switch {
		case json.Unmarshal(m.Body, &r) != nil:
			return nil, errors.New("the renewal is malformed")
		case s.server.Owner == nil:
			return nil, errors.New("this agent cannot renew the guest")
		}
		return struct{}{}, s.server.Owner.Renew(r)
	})
}
