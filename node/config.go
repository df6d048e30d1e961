package node

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
)

// Defaults of Config.
const (
	DefaultListen        = "127.0.0.1:7788"
	DefaultHeartbeatSecs = 10
	DefaultCPUOvercommit = 8
)

// Config is what a daemon is made of.
type Config struct {
	Name         string       // of the host in the fleet; empty: the host's name
	Listen       string       // HTTP address; empty: DefaultListen
	Listener     net.Listener // used instead of Listen when set; Run closes it
	AdvertiseURL string       // where central reaches the API; empty: the listener's address
	DataDir      string       // required; records, machines' directories, identity
	Labels       map[string]string

	Drivers []machine.Driver // required
	Backend string           // what "auto" means here; empty or "auto": the first of Drivers

	Central       []string // URLs of the replicas; empty: no fleet
	JoinToken     string   // presented while the fleet does not know the node's own credential
	HeartbeatSecs int      // 0: DefaultHeartbeatSecs; each answer may set another interval

	AdminTokens []string // bearer tokens that may do everything
	ReadTokens  []string // bearer tokens that may read

	// TLS is this node's certificate and what it trusts. Nil: the API is served without, and central's is trusted by the
	// system's authorities. One without a certificate gets it from central, where the API is to be reached by https.
	TLS      *certs.Source
	Insecure bool // lets the API be served without TLS beyond loopback

	VCPUsTotal     int    // 0: the host's processors
	MemoryMiBTotal int64  // 0: the host's memory
	CPUOvercommit  int    // 0: DefaultCPUOvercommit
	AppleChip      string // reported when a driver runs macOS guests; empty: what Facts say

	Settings Settings

	Facts  Facts        // nil: this host's
	Clock  Clock        // nil: the system's
	Logger hclog.Logger // nil: none

	// StopMachines ends every machine when Run ends. Otherwise those that can outlive the daemon do.
	StopMachines bool
}

// Clock is the wall clock, which is only ever shown. What is counted is counted on Facts.Uptime.
type Clock interface{ Now() time.Time }

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// filled checks the configuration and gives a copy with the defaults set.
func (c Config) filled() (Config, error) {
	if c.DataDir == "" {
		return c, errors.New("the node needs a data directory: give --data")
	}
	if c.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("reading the host's name (give --name): %w", err)
		}
		c.Name = strings.ToLower(host)
	}
	if err := api.CheckNodeName("name", c.Name); err != nil {
		return c, fmt.Errorf("--name %q: %w", c.Name, err)
	}
	if c.TLS != nil && c.TLS.Identity() != (certs.Identity{}) && c.TLS.Identity() != (certs.Identity{Role: certs.Node, Name: c.Name}) {
		return c, fmt.Errorf("--tls-cert is of %s, and this is node/%s: make the right one with fluxctl tls cert node %s", c.TLS.Identity(), c.Name, c.Name)
	}
	if len(c.Drivers) == 0 {
		return c, errors.New("no way to run VMs on this host: give the node a driver")
	}
	if c.Backend == "" || c.Backend == api.BackendAuto {
		c.Backend = c.Drivers[0].Name()
	}
	at := slices.IndexFunc(c.Drivers, func(d machine.Driver) bool { return d.Name() == c.Backend })
	if at < 0 {
		return c, fmt.Errorf("backend %q is not available on this host; it has %s", c.Backend, strings.Join(driverNames(c.Drivers), ", "))
	}
	c.Drivers = slices.Concat(c.Drivers[at:at+1], c.Drivers[:at], c.Drivers[at+1:])
	c.Listen = cmp.Or(c.Listen, DefaultListen)
	c.HeartbeatSecs = cmp.Or(c.HeartbeatSecs, DefaultHeartbeatSecs)
	c.CPUOvercommit = cmp.Or(c.CPUOvercommit, DefaultCPUOvercommit)
	if c.HeartbeatSecs < 1 || c.HeartbeatSecs > 300 {
		return c, errors.New("--heartbeat-secs must be from 1 to 300")
	}
	if c.CPUOvercommit < 1 || c.CPUOvercommit > 100 {
		return c, errors.New("--cpu-overcommit must be from 1 to 100")
	}
	if c.Facts == nil {
		c.Facts = hostFacts{}
	}
	if c.AppleChip == "" {
		c.AppleChip = c.Facts.Chip()
	}
	if s := steering(c.Drivers); s != nil {
		c.Facts, c.Clock = steeredFacts{Facts: c.Facts, as: s}, s
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	c.Central = slices.Clone(c.Central)
	if c.AdvertiseURL != "" && !isURL(c.AdvertiseURL) {
		return c, fmt.Errorf("--advertise-url %q must be a URL such as http://10.0.0.5:7788", c.AdvertiseURL)
	}
	c.AdvertiseURL = strings.TrimRight(c.AdvertiseURL, "/")
	// What central would refuse in every report is refused here, once.
	sample := api.Register{Name: c.Name, UUID: "00000000-0000-0000-0000-000000000000", BootID: "x", Instance: "x", URL: "x", Labels: c.Labels}
	if err := sample.Check(); err != nil {
		return c, fmt.Errorf("--label: %w", err)
	}
	for i, u := range c.Central {
		if !isURL(u) {
			return c, fmt.Errorf("--central %q must be a URL such as http://127.0.0.1:7799", u)
		}
		c.Central[i] = strings.TrimRight(u, "/")
	}
	return c, c.Settings.check()
}

// guarded says whether the API may listen at addr: beyond loopback someone must have to show a token. A node of
// a fleet always has one, its own credential, which central presents.
func (c Config) guarded(addr net.Addr) error {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() || len(c.AdminTokens) > 0 || len(c.Central) > 0 {
		return nil
	}
	return fmt.Errorf("%s can be reached from other hosts and no token is set: give --admin-token-file, or listen on 127.0.0.1", addr)
}

func isURL(s string) bool {
	return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://")
}

func steering(drivers []machine.Driver) Steering {
	for _, d := range drivers {
		if s, ok := d.(Steering); ok {
			return s
		}
	}
	return nil
}

func driverNames(drivers []machine.Driver) []string {
	names := make([]string, len(drivers))
	for i, d := range drivers {
		names[i] = d.Name()
	}
	return names
}
