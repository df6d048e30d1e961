package guest

import "encoding/json"

// PortName is the name of the virtio-serial port that the agent serves.
const PortName = "fluxvm.guest.0"

// VsockPort is where the agent listens on vsock, for hosts that have no virtio-serial ports to give.
const VsockPort = 7799

// Protocol is the version of the messages. It grows when an older agent could misread a newer host.
const Protocol = 1

// MaxOutput is how much of each of a command's two outputs is kept, in bytes.
const MaxOutput = 1 << 20

// What the host may ask.
const (
	opPing     = "ping"
	opExec     = "exec"
	opCancel   = "cancel" // end the exec with the id in the body; has no answer of its own
	opPoweroff = "poweroff"
	opClaim    = "claim"
)

// message is one request (Op is set) or one answer (Op is empty).
type message struct {
	ID    uint64          `json:"id"`
	Op    string          `json:"op,omitempty"`
	Body  json.RawMessage `json:"body,omitempty"`
	Error string          `json:"error,omitempty"` // of an answer: why there is none
}

// Hello is the agent's answer to a ping.
type Hello struct {
	Protocol int    `json:"protocol"`
	Hostname string `json:"hostname"`
	BootID   string `json:"boot_id,omitempty"` // of the guest's kernel, where it has one
	Claims   bool   `json:"claims,omitempty"`  // it can carry out a Claim
}

// ExecRequest is a command to run in the guest.
type ExecRequest struct {
	Argv      []string          `json:"argv"`          // the program, looked up in the agent's PATH, and its arguments
	Env       map[string]string `json:"env,omitempty"` // on top of the agent's own environment
	Stdin     []byte            `json:"stdin,omitempty"`
	TimeoutMS int64             `json:"timeout_ms,omitempty"` // it is killed after this long; 0: never
	Detach    bool              `json:"detach,omitempty"`     // answer once it has started, and leave it running
}

// ExecAnswer is what the command left.
type ExecAnswer struct {
	// ExitCode is the command's own; 128 and the signal's number when a signal ended it; 126 or 127 when it could
	// not be started, and Stderr says why.
	ExitCode  int    `json:"exit_code"`
	Stdout    []byte `json:"stdout,omitempty"` // MaxOutput bytes at most
	Stderr    []byte `json:"stderr,omitempty"` // the same
	Truncated bool   `json:"truncated,omitempty"`
	TimedOut  bool   `json:"timed_out,omitempty"`
}
