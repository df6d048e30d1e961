package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/certs"
)

const (
	authorityDays = 3650
	certDays      = 365
	longestDays   = 36500
)

func (a *app) tlsCommand() *cobra.Command {
	return a.group("tls", "Make certificates for a fleet",
		`Make certificates for a fleet: an authority once, then a certificate for each replica.

Nothing is sent anywhere. ca-key.pem stays with you: no part of the fleet needs it, and whoever has it can pose as any
part. Hosts get theirs from central by their join token when central has the node authority (tls ca --nodes).`,
		`  fluxctl tls ca
  fluxctl tls ca --nodes
  fluxctl tls cert replica central-1 --san 10.0.0.1,central-1.example
  fluxctl tls cert node studio-1 --san 10.0.0.5`,
		a.tlsCA(), a.tlsCert())
}

// pemFile is a file that has been written.
type pemFile struct {
	CertFile string    `json:"cert_file"`
	KeyFile  string    `json:"key_file"`
	Identity string    `json:"identity,omitempty"`
	NotAfter time.Time `json:"not_after"`
}

func (a *app) tlsCA() *cobra.Command {
	var dir, name string
	var days int
	var nodes bool
	cmd := &cobra.Command{
		Use: "ca", Short: "Make the fleet's certificate authority",
		Long: `Make the fleet's certificate authority: ca.pem, which every part of the fleet and every client is given, and ca-key.pem,
which only you keep, away from the fleet. With --nodes make an authority below it, for central's --node-ca-cert and
--node-ca-key: it signs hosts' certificates when they join, and nobody accepts anything else that it signs.`,
		Example: "  fluxctl tls ca --dir ~/fleet-ca\n  fluxctl tls ca --dir ~/fleet-ca --nodes",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			valid, err := validDays(days)
			if err != nil {
				return err
			}
			out := pemFile{CertFile: filepath.Join(dir, "ca.pem"), KeyFile: filepath.Join(dir, "ca-key.pem")}
			if !nodes {
				pair, err := certs.NewAuthority(cmp.Or(name, "FluxVM fleet"), a.env.Now(), valid)
				if err != nil {
					return err
				}
				return a.keepPair(out, pair, "Made the authority "+out.CertFile, "keep "+out.KeyFile+" away from the fleet and give ca.pem to every replica, host and client")
			}
			root, err := readAuthority(out.CertFile, out.KeyFile)
			if err != nil {
				return err
			}
			pair, err := root.NewNodeAuthority(cmp.Or(name, "FluxVM fleet nodes"), a.env.Now(), valid)
			if err != nil {
				return err
			}
			out = pemFile{CertFile: filepath.Join(dir, "node-ca.pem"), KeyFile: filepath.Join(dir, "node-ca-key.pem")}
			return a.keepPair(out, pair, "Made the node authority "+out.CertFile, "give both files to every replica: --node-ca-cert "+out.CertFile+" --node-ca-key "+out.KeyFile)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dir, "dir", ".", "`DIRECTORY` for the files")
	flags.StringVar(&name, "name", "", "the authority's `NAME`, for people to read")
	flags.IntVar(&days, "days", authorityDays, "how many days it is good for")
	flags.BoolVar(&nodes, "nodes", false, "make the node authority, signed by ca.pem of the same directory")
	return cmd
}

func (a *app) tlsCert() *cobra.Command {
	var dir, caCert, caKey string
	var sans []string
	var days int
	cmd := &cobra.Command{
		Use: "cert replica|node|api NAME", Short: "Make a certificate",
		Long: `Make a certificate and its key, NAME.pem and NAME-key.pem.

replica   a member of the control plane; NAME is its --name. For both of its ports, and to speak to hosts.
node      a host; NAME is its --name. Not needed where central issues them.
api       a caller of the API, where central asks for a certificate (--require-client-cert), or a proxy in front of it.

--san names the addresses at which clients reach it as a server, without a port. The certificate's role and NAME are
what the parts of the fleet hold each other to. To renew one, make it anew in another directory and move both files over
the old ones: they are read again within seconds.`,
		Example: `  fluxctl tls cert replica central-1 --san 10.0.0.1,central-1.example --ca ~/fleet-ca/ca.pem --ca-key ~/fleet-ca/ca-key.pem
  fluxctl tls cert node studio-1 --san 10.0.0.5
  fluxctl tls cert api ci --days 30`,
		Args: takes("ROLE", "NAME"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var roles []string
			for _, r := range certs.Roles() {
				roles = append(roles, string(r))
			}
			return roles, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			valid, err := validDays(days)
			if err != nil {
				return err
			}
			id := certs.Identity{Role: certs.Role(args[0]), Name: args[1]}
			if err := id.Check(); err != nil {
				return usagef("%v", err)
			}
			root, err := readAuthority(caCert, caKey)
			if err != nil {
				return err
			}
			key, keyPEM, err := certs.NewKey()
			if err != nil {
				return err
			}
			pair, err := root.Sign(id, sans, key.Public(), a.env.Now(), valid)
			if err != nil {
				return usagef("%v", err)
			}
			pair.KeyPEM = keyPEM
			out := pemFile{CertFile: filepath.Join(dir, id.Name+".pem"), KeyFile: filepath.Join(dir, id.Name+"-key.pem"), Identity: id.String()}
			next := "give it " + out.CertFile + ", " + out.KeyFile + " and ca.pem: --tls-cert, --tls-key, --tls-ca"
			if id.Role == certs.API {
				next = "FLUXVM_CLIENT_CERT=" + out.CertFile + " FLUXVM_CLIENT_KEY=" + out.KeyFile
			} else if len(sans) == 0 {
				a.note("No --san: clients that go by address will not take it as a server.")
			}
			return a.keepPair(out, pair, "Made the certificate of "+id.String(), next)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&sans, "san", nil, "host `NAME` or IP address at which it is a server; may be repeated")
	flags.StringVar(&dir, "dir", ".", "`DIRECTORY` for the files")
	flags.StringVar(&caCert, "ca", "ca.pem", "the authority's certificate `FILE`")
	flags.StringVar(&caKey, "ca-key", "ca-key.pem", "the authority's key `FILE`")
	flags.IntVar(&days, "days", certDays, "how many days it is good for")
	return cmd
}

func validDays(days int) (time.Duration, error) {
	if days < 1 || days > longestDays {
		return 0, usagef("--days must be from 1 to %d", longestDays)
	}
	return time.Duration(days) * 24 * time.Hour, nil
}

func readAuthority(certFile, keyFile string) (*certs.Authority, error) {
	certPEM, err := os.ReadFile(certFile)
	if err == nil {
		var keyPEM []byte
		if keyPEM, err = os.ReadFile(keyFile); err == nil {
			root, err := certs.LoadAuthority(certPEM, keyPEM)
			if err != nil {
				return nil, usagef("%s and %s: %v", certFile, keyFile, err)
			}
			return root, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("%v; make the authority first with fluxctl tls ca, or say where it is", err)
	}
	return nil, fmt.Errorf("reading the authority: %w", err)
}

// keepPair writes both files for their owner alone, and neither where one is there already.
func (a *app) keepPair(out pemFile, pair certs.Pair, sentence, next string) error {
	out.NotAfter = pair.NotAfter
	if err := writeNew(out.KeyFile, pair.KeyPEM); err != nil {
		return err
	}
	if err := writeNew(out.CertFile, pair.CertPEM); err != nil {
		return errors.Join(err, os.Remove(out.KeyFile))
	}
	if ok, err := a.json(out); ok {
		return err
	}
	a.done(sentence, "until "+out.NotAfter.UTC().Format(time.RFC3339)+"; "+next)
	return nil
}

// writeNew writes a file that was not there.
func writeNew(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usagef("%s is there already and is not replaced; give another --dir, or move it away", path)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	_, err = f.Write(raw)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), os.Remove(path))
	}
	return nil
}

// clientPair reads the certificate that clients show, from the flags or the environment.
func (a *app) clientPair() (certPEM, keyPEM []byte, err error) {
	certFile, keyFile := cmp.Or(a.certFile, a.env.Getenv("FLUXVM_CLIENT_CERT")), cmp.Or(a.keyFile, a.env.Getenv("FLUXVM_CLIENT_KEY"))
	if (certFile == "") != (keyFile == "") {
		return nil, nil, usagef("a client's certificate and its key go together: give --cert and --key, or FLUXVM_CLIENT_CERT and FLUXVM_CLIENT_KEY")
	}
	if certFile == "" {
		return nil, nil, nil
	}
	if certPEM, err = os.ReadFile(certFile); err == nil {
		keyPEM, err = os.ReadFile(keyFile)
	}
	if err != nil {
		return nil, nil, usagef("cannot read the client's certificate: %v", err)
	}
	return certPEM, keyPEM, nil
}
