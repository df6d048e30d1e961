package node

import (
	"net/http"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Steering is a driver that also steers the daemon around it, so that tests can make a host misbehave. Only the
// sim driver has it. Its methods are called from any goroutine.
type Steering interface {
	// Intercept wraps the whole API. It may answer in the daemon's place, or not at all.
	Intercept(next http.Handler) http.Handler

	// Paths is the prefix below which ServeHTTP answers; the daemon has checked the caller's role before.
	Paths() string
	ServeHTTP(w http.ResponseWriter, r *http.Request)

	// Silent says that no beat may be sent now.
	Silent() bool

	// Capabilities are what the daemon pretends to be able to do.
	Capabilities() api.Capabilities

	// Ordered tells of an order that was carried out. Token is the fencing token's text, empty without one.
	Ordered(op, vmID, name, token string)

	// BootID, Memory and Now are what the host pretends to be; real is its own boot id.
	BootID(real string) string
	Memory() api.HostMemory
	Now() time.Time

	// Steer hands over the host's own boot id and what the driver may cause: a beat at once, and a reboot of the
	// host, which returns when no VM is left. It is called once, when the daemon serves.
	Steer(bootID string, beat, reboot func())
}

// steeredFacts are those of a host that pretends. Its uptime is real: deadlines count on it.
type steeredFacts struct {
	Facts
	as Steering
}

func (s steeredFacts) BootID() string { return s.as.BootID(s.Facts.BootID()) }

func (s steeredFacts) Memory() (api.HostMemory, error) { return s.as.Memory(), nil }
