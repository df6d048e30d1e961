package hostd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/cmd/internal/service"
	"github.com/fluxvm/fluxvm/node"
	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/sim"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
)

// options are the command's settings, whichever way they came.
type options struct {
	Name           string
	Listen         string
	AdvertiseURL   string
	Data           string
	Labels         map[string]string
	Backend        string
	Central        []string
	JoinTokenFile  string
	HeartbeatSecs  int
	CPUOvercommit  int
	AdminTokenFile string
	ReadTokenFile  string
	Config         string
	LogLevel       string
	LogJSON        bool
	TLS            certs.Files
	Insecure       bool
	StopMachines   bool
	PoseAsMac      bool
	OpenNetwork    bool
}

// Command is the command that runs the daemon until it is told to end. With fleet it can report to central.
func Command(use string, fleet bool) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   use,
		Short: "Run this host's VMs and serve its API",
		Long: `Runs this host's VMs and serves its API (/v1). VMs outlive the daemon: the next one takes them over.

Each flag can also be set in the file that --config names (the flag's name with _ for -) and in the environment
(` + envPrefix + ` and the flag's name in capitals with _ for -). A flag wins over the environment, and that over the file.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := resolve(cmd.Flags(), &o.Config, os.LookupEnv)
			if err != nil {
				return err
			}
			return run(cmd, o, settings)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of this host in the fleet (default: the host's name)")
	f.StringVar(&o.Listen, "listen", node.DefaultListen, "address of the HTTP API")
	f.StringVar(&o.Data, "data", defaultData(), "directory of records and machines")
	f.StringVar(&o.Backend, "backend", "auto", "what \"auto\" means here: auto, vz (Macs), flux-vm, qemu, procbox, or sim (no VM is real)")
	f.IntVar(&o.CPUOvercommit, "cpu-overcommit", node.DefaultCPUOvercommit, "vCPUs given out for each of the host's processors")
	f.BoolVar(&o.OpenNetwork, "open-network", false, "let QEMU guests with a network reach this host, and through it others; needs --admin-token-file (default: only their forwarded ports work)")
	f.StringVar(&o.AdminTokenFile, "admin-token-file", "", "file with bearer tokens that may do everything, one a line")
	f.StringVar(&o.ReadTokenFile, "read-token-file", "", "file with bearer tokens that may read, one a line")
	f.StringVar(&o.TLS.Cert, "tls-cert", "", "certificate file of this host (fluxctl tls cert node NAME); read again when it changes")
	f.StringVar(&o.TLS.Key, "tls-key", "", "key file of --tls-cert")
	f.StringVar(&o.TLS.CA, "tls-ca", "", "certificate file of the fleet's authority (ca.pem)")
	f.BoolVar(&o.Insecure, "insecure", false, "allow listening beyond loopback without TLS, where everything is readable to others")
	f.StringVar(&o.Config, "config", "", "configuration file (TOML)")
	f.StringVar(&o.LogLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.BoolVar(&o.LogJSON, "log-json", false, "write the log as JSON")
	f.BoolVar(&o.StopMachines, "stop-machines", false, "end every VM when the daemon ends")
	f.BoolVar(&o.PoseAsMac, "pose-as-mac", false, "report as a Mac (sim only)")
	_, _ = f.MarkHidden("stop-machines"), f.MarkHidden("pose-as-mac") // for fluxvm-agent dev
	if fleet {
		f.StringSliceVar(&o.Central, "central", nil, "URLs of central's replicas, all of them")
		f.StringVar(&o.AdvertiseURL, "advertise-url", "", "where central reaches this host's API (default: the listen address)")
		f.StringToStringVar(&o.Labels, "label", nil, "label of this host, k=v; may be repeated")
		f.StringVar(&o.JoinTokenFile, "join-token-file", "", "file with the token that lets this host join")
		f.IntVar(&o.HeartbeatSecs, "heartbeat-secs", node.DefaultHeartbeatSecs, "time between reports to central")
	}
	return cmd
}

func run(cmd *cobra.Command, o options, settings node.Settings) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log, err := logger(cmd.ErrOrStderr(), o)
	if err != nil {
		return err
	}
	if o.OpenNetwork && o.AdminTokenFile == "" {
		return errors.New("--open-network lets guests reach what listens on this host's loopback, this daemon's API among it: give --admin-token-file, so that they cannot give it orders")
	}
	drivers, sized, err := chooseDrivers(ctx, o.Backend, o.OpenNetwork, log)
	if err != nil {
		return err
	}
	if o.PoseAsMac && o.Backend == api.BackendSim {
		drivers = []machine.Driver{sim.New(sim.Config{Mac: true})}
	}
	cfg := node.Config{
		Name: o.Name, Listen: o.Listen, AdvertiseURL: o.AdvertiseURL, DataDir: o.Data, Labels: o.Labels, Drivers: drivers, Backend: drivers[0].Name(),
		Central: o.Central, HeartbeatSecs: o.HeartbeatSecs, CPUOvercommit: o.CPUOvercommit,
		VCPUsTotal: sized.vcpus, MemoryMiBTotal: sized.memoryMiB, Settings: settings, Insecure: o.Insecure, StopMachines: o.StopMachines, Logger: log,
	}
	if cfg.AdminTokens, err = tokensIn(o.AdminTokenFile); err != nil {
		return err
	}
	if cfg.ReadTokens, err = tokensIn(o.ReadTokenFile); err != nil {
		return err
	}
	join, err := tokensIn(o.JoinTokenFile)
	if err != nil {
		return err
	}
	if len(join) > 0 {
		cfg.JoinToken = join[0]
	}
	if o.TLS != (certs.Files{}) {
		if cfg.TLS, err = certs.Open(o.TLS, log.Named("tls")); err != nil {
			return err
		}
	}
	daemon, err := node.New(cfg)
	if err != nil {
		return err
	}
	defer daemon.Close()
	return service.Notified(ctx, o.Listen, cfg.TLS != nil, daemon.Run)
}

func logger(out io.Writer, o options) (hclog.Logger, error) {
	level := hclog.LevelFromString(o.LogLevel)
	if level == hclog.NoLevel {
		return nil, fmt.Errorf("--log-level %q must be trace, debug, info, warn or error", o.LogLevel)
	}
	return hclog.New(&hclog.LoggerOptions{Name: "fluxvm", Level: level, Output: out, JSONFormat: o.LogJSON}), nil
}

// tokensIn reads a file of tokens, one a line. No file is no tokens; an empty one is a mistake.
func tokensIn(path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading tokens: %w", err)
	}
	tokens := strings.Fields(string(raw))
	if len(tokens) == 0 {
		return nil, fmt.Errorf("%s holds no token: write one a line", path)
	}
	return tokens, nil
}

// defaultData is where a daemon of this user keeps its things.
func defaultData() string {
	if os.Geteuid() == 0 {
		return "/var/lib/fluxvm/node"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "fluxvm", "node")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "" // the daemon then asks for --data
	}
	return filepath.Join(home, ".local", "state", "fluxvm", "node")
}
