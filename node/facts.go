package node

import (
	"fmt"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Facts are what the daemon asks of its host. A driver that brings its own host (sim) implements it.
type Facts interface {
	// BootID changes when the host boots.
	BootID() string

	// Uptime is monotonic since the host booted and goes on while no daemon runs. Two readings compare only
	// under one BootID.
	Uptime() time.Duration

	// Chip names a Mac's processor, such as m4-max; empty on other hosts.
	Chip() string

	// Memory is read anew at each call.
	Memory() (api.HostMemory, error)
}

// mark is a moment on the host's monotonic clock.
type mark struct {
	Boot string        `json:"boot"`
	At   time.Duration `json:"at"`
}

func now(f Facts) mark { return mark{Boot: f.BootID(), At: f.Uptime()} }

// since is how much later m is than old; false if the host booted in between.
func (m mark) since(old mark) (time.Duration, bool) { return m.At - old.At, m.Boot == old.Boot }

// deadline is when a VM is to be deleted. Left is what remained at the last saving and counts after a reboot,
// when At means nothing any more.
type deadline struct {
	Due  mark          `json:"due"`
	Left time.Duration `json:"left"`
}

func deadlineIn(now mark, left time.Duration) *deadline {
	return &deadline{Due: mark{Boot: now.Boot, At: now.At + left}, Left: left}
}

// left is what remains, at least 0.
func (d deadline) left(now mark) time.Duration {
	if passed, ok := now.since(d.Due); ok {
		return max(0, -passed)
	}
	return max(0, d.Left)
}

// rebased is the deadline as it counts from now on, also after a reboot.
func (d deadline) rebased(now mark) *deadline { return deadlineIn(now, d.left(now)) }

func factsError(what string, err error) error {
	return fmt.Errorf("reading the host's %s: %w", what, err)
}
