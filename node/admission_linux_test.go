package node

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// hold takes so much of the host's memory, touched, until the returned function is called.
func hold(t *testing.T, mib int) (release func()) {
	t.Helper()
	raw, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		t.Skipf("SKIPPED: the host gives no %d MiB: %v", mib, err)
	}
	return func() { _ = unix.Munmap(raw) }
}

func available(t *testing.T) int64 {
	t.Helper()
	m, err := hostFacts{}.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return m.MemAvailableMiB
}

// TestACreateIsHeldUntilTheHostsOwnMemoryIsThere takes real memory of this host, and gives it back while a create waits.
func TestACreateIsHeldUntilTheHostsOwnMemoryIsThere(t *testing.T) {
	const held = 2048 // of which what others do at the same time may be a half
	if available(t) < 3*held {
		t.Skipf("SKIPPED: it needs %d MiB of available memory", 3*held)
	}
	release := hold(t, held)
	given := false
	defer func() {
		if !given {
			release()
		}
	}()
	reserve := available(t) + held/2
	h := newHost(t, func(c *Config) {
		c.Facts, c.Drivers = hostFacts{}, []machine.Driver{struct{ machine.Driver }{sim.New(sim.Config{})}} // without sim's own memory
		c.Settings.Policy = Policy{MinHostMemAvailableMiB: &reserve, PressureDeferSecs: 60}
	})
	e := h.refused(api.CodeHostPressure, "POST", "/v1/vms", body(uuid.NewString(), fields{"memory_mib": 64}), api.HeaderDefer, "0")
	if !strings.Contains(e.Detail, "64 MiB requested, policy.min_host_mem_available_mib reserve is") {
		t.Errorf("got %q", e.Detail)
	}
	answered := make(chan *httptest.ResponseRecorder, 1)
	go func() { answered <- h.do("POST", "/v1/vms", body(uuid.NewString(), fields{"memory_mib": 64})) }()
	select {
	case w := <-answered:
		t.Fatalf("answered at once: %d %s", w.Code, w.Body)
	case <-time.After(1500 * time.Millisecond):
	}
	release()
	given = true
	if w := <-answered; w.Code != 201 {
		t.Errorf("once the memory was back: %d %s", w.Code, w.Body)
	}
}
