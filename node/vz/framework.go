package vz

import (
	"net"
	"os"
)

// Framework makes guests. The helper calls it from one goroutine.
type Framework interface {
	// Identifier is a new machine identifier for guests of the kind.
	Identifier(kind BootKind) ([]byte, error)

	// New makes the guest of a plan; it does not run yet. What it writes to its serial port goes to serial, which stays
	// open while the guest lives. Paths of the plan are absolute.
	New(p Plan, serial *os.File) (Guest, error)
}

// Guest is one virtual machine. Errors of the framework are *FrameworkError. Its methods are never called at once,
// except Connect, Stop and Ended.
type Guest interface {
	Start() error
	Pause() error
	Resume() error

	// Ask presses the power button. Stop pulls the plug.
	Ask() error
	Stop() error

	// Save writes the state of a paused guest to a file that is not there. Restore, in place of Start, goes on from it
	// and leaves the guest paused.
	Save(path string) error
	Restore(path string) error

	// SetMemory tells the balloon how many MiB the guest is to keep.
	SetMemory(mib uint64) error

	// Connect opens a stream to a vsock port of the guest.
	Connect(port uint32) (net.Conn, error)

	// Ended gives one value when the guest has ended: nil if it shut down or was stopped.
	Ended() <-chan error
}

// Limits are what guests may be on a host. The zero value allows nothing.
type Limits struct {
	MinVCPUs, MaxVCPUs         int
	MinMemoryMiB, MaxMemoryMiB int64
	Rosetta                    bool // is installed, so that Linux guests can run programs for x86-64
	Nested                     bool // guests may run guests
}
