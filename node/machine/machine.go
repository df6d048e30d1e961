package machine

import (
	"context"
	"errors"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Spec is what one machine is made of. It does not change after the first start, except Name.
type Spec struct {
	api.MachineRequest
}

// Features says what a driver can do, as data.
type Features struct {
	MacOS        bool // runs guest_os macos
	Agent        bool // machines can have a guest agent
	Pause        bool
	Balloon      bool // a balloon in every machine
	BalloonAsked bool // a balloon when asked for
	// BalloonReclaims says that what the balloon takes goes back to the host.
	BalloonReclaims bool
	Survives        bool // machines outlive the daemon and can be adopted
}

// ErrGone is what Adopt returns when the machine no longer runs.
var ErrGone = errors.New("the machine no longer runs")

// ErrNoAgent is what Ping and Exec return while the guest agent does not answer.
var ErrNoAgent = errors.New("the guest agent does not answer")

// Driver is one way of running machines. The daemon calls a driver from many goroutines at once, but for one
// machine (one dir) never two calls of Start, Adopt and Remove at the same time.
type Driver interface {
	// Name is the backend's name, one of the api.Backend constants.
	Name() string

	// Features are fixed for the life of the process.
	Features() Features

	// Check refuses, as *api.Error and without any effect, what the driver cannot run. The daemon calls it
	// before a create is accepted.
	Check(spec Spec) error

	// Start boots the machine and returns once it runs (the guest agent may answer later). dir is the machine's
	// own directory; it exists. The context ends the attempt and not the machine.
	Start(ctx context.Context, spec Spec, dir string) (Machine, error)

	// Adopt takes over a machine that an earlier daemon started with the same spec and dir; ErrGone if it ended.
	Adopt(ctx context.Context, spec Spec, dir string) (Machine, error)

	// Remove frees what the driver holds outside dir. The machine has stopped. The daemon deletes dir itself.
	Remove(spec Spec, dir string) error
}

// LastWords is what a Driver may have: the console of a machine that has ended.
type LastWords interface {
	// LastConsole is the end of what the machine of dir wrote to its console before it ended, at most limit bytes.
	LastConsole(spec Spec, dir string, limit int) ([]byte, error)
}

// Confiner is a Driver that knows what holds its machines' processes on this host.
type Confiner interface {
	// Confinement is that in api's words; empty until the host was looked at.
	Confinement() []string
}

// Claimer is a Machine whose guest agent may be able to take a claim.
type Claimer interface {
	// CanClaim says whether the agent, which has answered a Ping, can take one.
	CanClaim() bool

	// Claim gives the guest its claim, once more if it is repeated; ErrNoAgent while there is no agent. Nothing of it
	// may be kept, and no error may hold a value.
	Claim(ctx context.Context, claim api.GuestClaim) error
}

// Machine is one that runs. Its methods may be called from any goroutine.
type Machine interface {
	// Ping asks the guest agent whether it is there; ErrNoAgent if not.
	Ping(ctx context.Context) error

	// Exec runs a command in the guest. Err is ErrNoAgent while there is no agent; a command that fails is no error.
	Exec(ctx context.Context, req api.ExecRequest) (api.ExecAnswer, error)

	// Stop ends the machine: asks the guest first unless force, and forces it when ctx ends. Idempotent.
	Stop(ctx context.Context, force bool) error

	// Pause and Resume halt the guest's processors and let them go on.
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error

	// Done is closed when the machine has ended, whoever ended it; Err then says why, nil for a clean end.
	Done() <-chan struct{}
	Err() error

	// IP is the guest's address as the host sees it, empty when unknown.
	IP() string

	// PID is the process that is the machine, 0 when there is none of its own.
	PID() int

	// Console is the end of the guest's console output, at most limit bytes.
	Console(limit int) ([]byte, error)

	// Release lets go of the machine without ending it (the daemon stops, the machine goes on). Idempotent.
	Release()
}
