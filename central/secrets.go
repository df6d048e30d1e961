package central

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	// claimDeadline is how long a claim may wait once its guest could have it; then the VM ends, for nobody could use it.
	claimDeadline = 15 * time.Minute

	// maxSecrets bounds what this replica holds for launches under way, in bytes.
	maxSecrets = 64 << 20

	// unknownPatience is how long secrets are held for a launch that the state does not know: it may be on its way there.
	unknownPatience = time.Minute
)

// secrets are those of launches whose guests do not have them yet. They are held in the leader's memory only: after a
// change of leader the client's repeat under the same key brings them again. By that key, which follows a launch from
// a spare that could not be handed over to the VM that it goes on as.
type secrets struct {
	mu    sync.Mutex
	held  map[launchKey]heldSecrets
	bytes int
}

type launchKey struct{ scope, key string }

type heldSecrets struct {
	values map[string]string
	bytes  int
	since  time.Time
}

// keep holds a launch's secrets, and says whether it did: once a launch of the key is known, those that came first stay.
func (s *secrets) keep(op *fsm.Op, values map[string]string, known bool, now time.Time) (kept bool, err error) {
	if len(values) == 0 {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k := launchKey{op.Scope, op.Key}
	if _, have := s.held[k]; have && known {
		return false, nil
	}
	s.dropLocked(k) // of a launch that came to nothing
	size := 0
	for name, value := range values {
		size += len(name) + len(value)
	}
	if s.bytes+size > maxSecrets {
		return false, api.Errorf(api.CodeUnavailable, "too many launches wait for their guests with secrets; try again in a moment")
	}
	if s.held == nil {
		s.held = map[launchKey]heldSecrets{}
	}
	s.held[k] = heldSecrets{maps.Clone(values), size, now}
	s.bytes += size
	return true, nil
}

// of gives the secrets that a VM waits for; ok is false if they are not here.
func (s *secrets) of(row *fsm.VM) (values map[string]string, ok bool) {
	if len(row.Claim.Secrets) == 0 {
		return nil, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	one, ok := s.held[launchKey{row.Scope, row.Key}]
	return one.values, ok && slices.Equal(slices.Sorted(maps.Keys(one.values)), row.Claim.Secrets)
}

// drop forgets a launch's secrets.
func (s *secrets) drop(scope, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(launchKey{scope, key})
}

func (s *secrets) dropLocked(k launchKey) {
	s.bytes -= s.held[k].bytes
	delete(s.held, k)
}

// forgetSecrets drops those that nobody waits for any more, however the launch or its VM ended.
func (g *reign) forgetSecrets() {
	s, now := &g.secrets, g.r.wall()
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, one := range s.held {
		if g.turns.taken(k) {
			continue // its launch is being committed
		}
		patience := unknownPatience
		if op := g.view().Operation(k.scope, k.key); op != nil {
			patience = 0
			if row := g.view().VM(op.Ref); row != nil && row.Claim != nil {
				patience = 2 * claimDeadline
			}
		}
		if now.Sub(one.since) >= patience {
			s.dropLocked(k)
		}
	}
}

// claimOf is a request's claim as the log carries it.
func claimOf(c *api.Claim) *fsm.Claim {
	if c == nil {
		return nil
	}
	return &fsm.Claim{Hostname: c.Hostname, Env: c.Env, Files: c.Files, Secrets: c.SecretNames()}
}

// overdue says that a VM has waited too long for its claim.
func overdue(row *fsm.VM, now api.Time) bool {
	since := max(row.ReadyAt, row.ClaimedAt)
	return row.Claim != nil && row.ReadyAt != 0 && now.Sub(since) > claimDeadline
}

const reasonOverdue = "its claim did not reach the guest within 15 minutes"
