package machine

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What some machines and drivers can do beyond Machine and Driver. The daemon asks for each by a type assertion.

// ErrNoBalloon is what a machine answers whose kind may have a balloon while this one has none.
var ErrNoBalloon = errors.New("the machine has no balloon")

// Ballooner is a machine that may have a balloon. A balloon is deflated at each start.
type Ballooner interface {
	// Balloon is how many MiB the balloon holds now; ErrNoBalloon without one. A negative number: it cannot be told.
	Balloon(ctx context.Context) (int64, error)

	// SetBalloon tells the device to take so many MiB of the guest and returns before the guest has followed.
	SetBalloon(ctx context.Context, mib int64) error
}

// Observed is a machine whose guest tells of its own memory.
type Observed interface {
	// GuestMemory is what the guest last told; nil before it has. The first call may be what makes it tell.
	GuestMemory(ctx context.Context) (*api.GuestMemory, error)
}

// Grouped is a machine that is many processes.
type Grouped interface {
	// PIDs are those of the host's processes that are the machine.
	PIDs() ([]int, error)
}

// Saver is a machine whose whole state can be written down while it runs.
type Saver interface {
	// Save writes the machine as it is at one moment into the directory to, which exists and is empty. The machine
	// is halted meanwhile and then goes on as before; with halt it stays halted, to be ended by the caller, and its
	// disks are not copied, because a machine restored in the same place finds them there.
	Save(ctx context.Context, to string, halt bool) error
}

// Restorer is a driver that starts machines from what a Saver wrote.
type Restorer interface {
	// Restore starts a machine from saved and returns once it runs. Memory that it does not write to is shared with
	// all that were started from copies of the same saved state. The caller may remove saved afterwards.
	Restore(ctx context.Context, spec Spec, dir, saved string) (Machine, error)

	// CopySaved copies a saved state into the directory to, which exists and is empty. What nobody writes is shared.
	CopySaved(from, to string) error

	// Template names what a machine of the spec is right after its boot: two machines of one name may start from one
	// saved state. Empty: such a machine always boots.
	Template(spec Spec) string
}

// Identity is what makes a guest that was copied another one. Empty texts are left as they are.
type Identity struct {
	Hostname  string
	MachineID string // 32 hex digits
	BootID    string // a UUID
	HostKeys  bool   // make new SSH host keys
}

// NewIdentity is one that no guest has had. hostname may be empty.
func NewIdentity(hostname string) Identity {
	return Identity{Hostname: hostname, MachineID: strings.ReplaceAll(uuid.NewString(), "-", ""), BootID: uuid.NewString(), HostKeys: true}
}

// Renewer is a machine whose guest agent can be given what a saved state makes stale.
type Renewer interface {
	// Renew gives the guest fresh randomness, the time, and the identity; ErrNoAgent while the agent does not answer.
	Renew(ctx context.Context, who Identity) error
}

// RenewWithin bounds one attempt to renew.
const RenewWithin = 30 * time.Second
