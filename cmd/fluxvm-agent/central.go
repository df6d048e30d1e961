package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/central"
	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/cmd/internal/conf"
	"github.com/fluxvm/fluxvm/cmd/internal/service"
	"github.com/fluxvm/fluxvm/pkg/certs"
)

// centralOptions are the command's settings, whichever way they came.
type centralOptions struct {
	name, listen, clusterListen, advertise, url, data string
	bootstrap                                         bool
	initial, join                                     []string
	joinTokenFile                                     string
	reconcileSecs                                     int
	operatorTokenFile                                 string
	insecure                                          bool
	diskReserveMiB                                    uint64
	tls                                               certs.Files
	requireClientCert                                 bool
	nodeCACert, nodeCAKey                             string
	nodeNetworks                                      []string
	electionTimeout                                   time.Duration
	config, logLevel                                  string
	logJSON                                           bool
}

func centralCommand() *cobra.Command {
	var o centralOptions
	cmd := &cobra.Command{
		Use:   "central",
		Short: "Run a replica of the control plane",
		Long: `Runs a replica of the control plane: the fleet's API and a member of the cluster that keeps its state.

Each flag can also be set in the file that --config names (the flag's name with _ for -) and in the environment
(FLUXVM_CENTRAL_ and the flag's name in capitals with _ for -). A flag wins over the environment, and that over the file.`,
		Example: `  fluxvm-agent central --bootstrap
  fluxvm-agent central --name central-1 --listen 127.0.0.1:7799 --cluster-listen 127.0.0.1:7800 --bootstrap \
    --initial central-1=127.0.0.1:7800,central-2=127.0.0.1:7810,central-3=127.0.0.1:7820
  fluxvm-agent central --name central-4 --join http://127.0.0.1:7799 --join-token-file join.token
  fluxvm-agent central --bootstrap --name central-1 --listen 10.0.0.1:7799 --cluster-listen 10.0.0.1:7800 \
    --tls-cert central-1.pem --tls-key central-1-key.pem --tls-ca ca.pem --node-ca-cert node-ca.pem --node-ca-key node-ca-key.pem`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := conf.Resolve(cmd.Flags(), "FLUXVM_CENTRAL_", &o.config, os.LookupEnv, nil); err != nil {
				return err
			}
			return runCentral(cmd, o)
		},
	}
	cmd.AddCommand(checkCommand(), recoverCommand(), compactCommand())
	host, _ := os.Hostname() // empty: --name is then required
	f := cmd.Flags()
	f.StringVar(&o.name, "name", strings.ToLower(host), "this replica's name, for as long as it lives")
	f.StringVar(&o.listen, "listen", "127.0.0.1:7799", "address of the HTTP API")
	f.StringVar(&o.clusterListen, "cluster-listen", "127.0.0.1:7800", "address for the other replicas")
	f.StringVar(&o.advertise, "advertise", "", "cluster address that others dial (default: --cluster-listen)")
	f.StringVar(&o.url, "url", "", "where clients and nodes reach the API (default: --listen)")
	f.StringVar(&o.data, "data", "/var/lib/fluxvm/central", "data directory")
	f.BoolVar(&o.bootstrap, "bootstrap", false, "start a new cluster; with state already there it changes nothing")
	f.StringSliceVar(&o.initial, "initial", nil, "with --bootstrap: the whole initial set as NAME=CLUSTERADDR, the same on every replica")
	f.StringSliceVar(&o.join, "join", nil, "URLs of a running cluster's API: become a member of it; with state already there it changes nothing")
	f.StringVar(&o.joinTokenFile, "join-token-file", "", "with --join: file with the token (fluxctl cluster join-token --kind replica)")
	f.IntVar(&o.reconcileSecs, "reconcile-secs", 5, "period of the background reconcilers in seconds; 0 turns them off")
	f.StringVar(&o.operatorTokenFile, "operator-token-file", "", "file with the first operator's token (default: one is made and written to DATA/operator-token)")
	f.Uint64Var(&o.diskReserveMiB, "disk-reserve-mib", central.DefaultDiskReserve>>20, "free room on the disk of --data below which this replica takes in nothing new")
	f.StringVar(&o.tls.Cert, "tls-cert", "", "certificate file of this replica (fluxctl tls cert replica NAME); read again when it changes")
	f.StringVar(&o.tls.Key, "tls-key", "", "key file of --tls-cert")
	f.StringVar(&o.tls.CA, "tls-ca", "", "certificate file of the authority that replicas, hosts and clients are held to")
	f.BoolVar(&o.requireClientCert, "require-client-cert", false, "refuse callers of the API that show no certificate of --tls-ca")
	f.StringVar(&o.nodeCACert, "node-ca-cert", "", "certificate file of the authority that signs hosts' certificates when they join (fluxctl tls ca --nodes)")
	f.StringVar(&o.nodeCAKey, "node-ca-key", "", "key file of --node-ca-cert")
	f.StringSliceVar(&o.nodeNetworks, "node-networks", nil, "the only networks in which hosts are dialed, such as 10.0.0.0/8 (default: any, but no link-local and metadata addresses)")
	f.BoolVar(&o.insecure, "insecure", false, "allow listening, and speaking to hosts, beyond loopback without TLS, where everything is readable to others")
	f.DurationVar(&o.electionTimeout, "election-timeout", 0, "how long a follower waits for its leader (default 2s)")
	f.StringVar(&o.config, "config", "", "configuration file (TOML)")
	f.StringVar(&o.logLevel, "log-level", "info", "trace, debug, info, warn or error")
	f.BoolVar(&o.logJSON, "log-json", false, "write the log as JSON")
	_ = f.MarkHidden("election-timeout") // for trying failovers out; it must be the same on all replicas
	return cmd
}

func runCentral(cmd *cobra.Command, o centralOptions) error {
	logger, err := newLogger(cmd.ErrOrStderr(), o.logLevel, o.logJSON)
	if err != nil {
		return err
	}
	cfg := central.Config{Name: o.name, URL: o.url, ClusterAddr: o.advertise, DataDir: o.data, Bootstrap: o.bootstrap,
		NoReconcile: o.reconcileSecs == 0, ElectionTimeout: o.electionTimeout, Version: buildVersion(), DiskReserve: o.diskReserveMiB << 20, Logger: logger}
	if cfg.PoolInterval, err = poolInterval(os.Getenv("FLUXVM_WARM_POOL_INTERVAL_SECS"), o.reconcileSecs); err != nil {
		return err
	}
	if cfg.Initial, err = initialSet(o.initial, o.bootstrap); err != nil {
		return err
	}
	if cfg.Join, cfg.JoinToken, err = joining(o); err != nil {
		return err
	}
	if o.operatorTokenFile != "" {
		raw, err := os.ReadFile(o.operatorTokenFile)
		if err != nil {
			return fmt.Errorf("reading the operator token: %w", err)
		}
		if cfg.OperatorToken = strings.TrimSpace(string(raw)); len(cfg.OperatorToken) < 16 {
			return fmt.Errorf("%s must hold a token of at least 16 characters", o.operatorTokenFile)
		}
	}
	if err := o.secure(&cfg); err != nil {
		return err
	}
	open := o.insecure || cfg.TLS != nil
	if cfg.Listener, err = listen(o.listen, open); err != nil {
		return err
	}
	if cfg.Cluster, err = listen(o.clusterListen, open); err != nil {
		return errors.Join(err, cfg.Listener.Close())
	}
	if err := underTest(&cfg); err != nil {
		return err
	}
	replica, err := central.New(cfg)
	if err != nil {
		return err
	}
	return service.Notified(cmd.Context(), cfg.Listener.Addr().String(), cfg.TLS != nil, replica.Run)
}

// joining reads what a new replica shows to a running cluster. Where there is state the token may be gone.
func joining(o centralOptions) (urls []string, token string, err error) {
	switch {
	case len(o.join) == 0 && o.joinTokenFile != "":
		return nil, "", errors.New("--join-token-file goes with --join")
	case len(o.join) == 0:
		return nil, "", nil
	case o.bootstrap:
		return nil, "", errors.New("--join becomes a member of a running cluster and --bootstrap starts a new one: give one of them")
	case o.joinTokenFile == "":
		return nil, "", errors.New("--join needs --join-token-file with a token from: fluxctl cluster join-token --kind replica")
	}
	raw, err := os.ReadFile(o.joinTokenFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, "", fmt.Errorf("reading the join token: %w", err)
	}
	return o.join, strings.TrimSpace(string(raw)), nil
}

// poolInterval is the specification's environment variable, else the reconcilers' period.
func poolInterval(env string, reconcileSecs int) (time.Duration, error) {
	if env == "" {
		if reconcileSecs < 0 || reconcileSecs > 3600 {
			return 0, errors.New("--reconcile-secs must be from 0 to 3600")
		}
		return time.Duration(reconcileSecs) * time.Second, nil
	}
	n, err := strconv.Atoi(env)
	if err != nil || n < 1 || n > 3600 {
		return 0, errors.New("FLUXVM_WARM_POOL_INTERVAL_SECS must be from 1 to 3600")
	}
	return time.Duration(n) * time.Second, nil
}

func initialSet(pairs []string, bootstrap bool) (servers []consensus.Server, err error) {
	if len(pairs) > 0 && !bootstrap {
		return nil, errors.New("--initial goes with --bootstrap")
	}
	for _, pair := range pairs {
		name, addr, ok := strings.Cut(pair, "=")
		if !ok || name == "" || addr == "" {
			return nil, fmt.Errorf("--initial %q must be NAME=CLUSTERADDR, such as central-1=127.0.0.1:7800", pair)
		}
		servers = append(servers, consensus.Server{Name: name, Addr: addr})
	}
	return servers, nil
}

// secure reads the certificates, and makes sure that they are this replica's.
func (o *centralOptions) secure(cfg *central.Config) (err error) {
	cfg.Insecure, cfg.RequireClientCert = o.insecure, o.requireClientCert
	for _, text := range o.nodeNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--node-networks %q must be a network such as 10.0.0.0/8", text)
		}
		cfg.NodeNetworks = append(cfg.NodeNetworks, network.Masked())
	}
	switch {
	case o.tls == certs.Files{} && (o.requireClientCert || o.nodeCACert != "" || o.nodeCAKey != ""):
		return errors.New("--require-client-cert, --node-ca-cert and --node-ca-key need --tls-cert, --tls-key and --tls-ca")
	case o.tls == certs.Files{}:
		return nil
	case o.tls.Cert == "" || o.tls.Key == "" || o.tls.CA == "":
		return errors.New("--tls-cert, --tls-key and --tls-ca go together: give all three (fluxctl tls makes them)")
	case (o.nodeCACert == "") != (o.nodeCAKey == ""):
		return errors.New("--node-ca-cert and --node-ca-key go together: give both")
	}
	if cfg.TLS, err = certs.Open(o.tls, cfg.Logger.Named("tls")); err != nil {
		return err
	}
	if id, want := cfg.TLS.Identity(), (certs.Identity{Role: certs.Replica, Name: o.name}); id != want {
		return fmt.Errorf("%s is of %s, and this is %s: make the right one with fluxctl tls cert replica %s", o.tls.Cert, id, want, o.name)
	}
	if o.nodeCACert == "" {
		return nil
	}
	certPEM, err := os.ReadFile(o.nodeCACert)
	if err != nil {
		return fmt.Errorf("reading the node authority: %w", err)
	}
	keyPEM, err := os.ReadFile(o.nodeCAKey)
	if err != nil {
		return fmt.Errorf("reading the node authority: %w", err)
	}
	if cfg.NodeCA, err = certs.LoadAuthority(certPEM, keyPEM); err != nil {
		return fmt.Errorf("%s and %s: %w", o.nodeCACert, o.nodeCAKey, err)
	}
	if !cfg.NodeCA.OnlyNodes() {
		return fmt.Errorf("%s can sign for more than nodes, and such a key does not belong here: make one with fluxctl tls ca --nodes", o.nodeCACert)
	}
	if err := cfg.NodeCA.SignedBy(cfg.TLS.Roots(), time.Now()); err != nil {
		return fmt.Errorf("%s is not of the authority in %s: %w", o.nodeCACert, o.tls.CA, err)
	}
	return nil
}

// listen opens a port; beyond loopback only when that is wanted and safe, or wanted all the same.
func listen(addr string, open bool) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() && !open {
		return nil, errors.Join(fmt.Errorf("%s is reachable from other hosts, and tokens would cross the network in clear: "+
			"give --tls-cert, --tls-key and --tls-ca (fluxctl tls makes them), listen on loopback, or give --insecure on a network you trust", addr), l.Close())
	}
	return l, nil
}
