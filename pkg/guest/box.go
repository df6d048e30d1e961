package guest

// Box is what the host tells process 1 of a box (fluxvm-guest started with BoxArgument), as JSON on the file BoxWord. The
// host has made the namespaces: user, mount, process ids, host name, IPC, network, control groups.
type Box struct {
	Hostname  string `json:"hostname"`
	Image     string `json:"image,omitempty"` // directory of the root; empty: the host's programs, read-only
	MemoryMiB int64  `json:"memory_mib"`      // bounds what the root may take
	Probe     bool   `json:"probe,omitempty"` // end once all is set up
}

// Files that process 1 of a box has open.
const (
	BoxProgram = 3 // fluxvm-guest itself
	BoxWord    = 4 // a stream: a Box comes in, BoxReady or an error goes out
	BoxPort    = 5 // listens; each connection is a host that speaks to the agent
	BoxImage   = 6 // a mount of the image, where the host can hand one over
)

const (
	BoxArgument = "fluxvm-box"
	BoxReady    = "ready"
	BoxEnded    = "the box has shut down" // the last line on its console, when it was not killed
)
