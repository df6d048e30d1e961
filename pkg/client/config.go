package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/certs"
)

// Where the APIs listen unless told otherwise.
const (
	DefaultFleetURL = "http://127.0.0.1:7799"
	DefaultHostURL  = "http://127.0.0.1:7788"
)

// Environment variables that ConfigFromEnv and HostConfigFromEnv read.
const (
	EnvFleetURL  = "FLUXVM_FLEET_URL"   // replicas of the fleet, separated by commas
	EnvHostURL   = "FLUXVM_API"         // one host
	EnvToken     = "FLUXVM_TOKEN"       // wins over the file
	EnvTokenFile = "FLUXVM_TOKEN_FILE"  // a file that holds the token
	EnvCACert    = "FLUXVM_CA_CERT"     // a PEM file
	EnvCert      = "FLUXVM_CLIENT_CERT" // a PEM file: the certificate to show
	EnvKey       = "FLUXVM_CLIENT_KEY"  // a PEM file: its key
)

// Config says where the API is and how to speak to it. The zero value reaches a local fleet without a token.
type Config struct {
	Endpoints  []string      // base URLs of all replicas; empty: DefaultFleetURL (for a Host: DefaultHostURL)
	Token      string        // sent as bearer token; empty: none
	CACertPEM  []byte        // certificates to trust instead of the system's; empty: the system's
	CertPEM    []byte        // a certificate to show, with KeyPEM; empty: none
	KeyPEM     []byte        // its key
	Tenant     string        // an operator acts for this tenant in launches, pools and lists; empty: for itself
	Timeout    time.Duration // how long one call may take over all its tries; 0: 60 s
	UserAgent  string        // empty: fluxvm-client
	HTTPClient *http.Client  // carries the requests (its own TLS settings hold); nil: one made from this Config
}

// ConfigFromEnv reads the fleet's address, token and CA certificate from the environment and the files it names.
func ConfigFromEnv() (Config, error) { return configFromEnv(EnvFleetURL) }

// HostConfigFromEnv is ConfigFromEnv for the API of one host.
func HostConfigFromEnv() (Config, error) { return configFromEnv(EnvHostURL) }

func configFromEnv(where string) (Config, error) {
	cfg := Config{Endpoints: SplitEndpoints(os.Getenv(where)), Token: os.Getenv(EnvToken)}
	if file := os.Getenv(EnvTokenFile); cfg.Token == "" && file != "" {
		raw, err := os.ReadFile(file)
		if err != nil {
			return Config{}, fmt.Errorf("reading the token that %s names: %w", EnvTokenFile, err)
		}
		cfg.Token = strings.TrimSpace(string(raw))
	}
	if value := os.Getenv(EnvCACert); value != "" {
		pem, err := ReadCACert(value)
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w", EnvCACert, err)
		}
		cfg.CACertPEM = pem
	}
	cert, key := os.Getenv(EnvCert), os.Getenv(EnvKey)
	if (cert == "") != (key == "") {
		return Config{}, fmt.Errorf("%s and %s go together: set both or neither", EnvCert, EnvKey)
	}
	if cert != "" {
		var err error
		if cfg.CertPEM, err = os.ReadFile(cert); err == nil {
			cfg.KeyPEM, err = os.ReadFile(key)
		}
		if err != nil {
			return Config{}, fmt.Errorf("reading the certificate to show: %w", err)
		}
	}
	return cfg, nil
}

// SplitEndpoints reads a list of URLs separated by commas; blanks and empty parts are dropped.
func SplitEndpoints(list string) []string {
	var out []string
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// ReadCACert gives PEM certificates from a value that is either the PEM text itself or the path of a file.
func ReadCACert(value string) ([]byte, error) {
	if strings.Contains(value, "-----BEGIN") {
		return []byte(value), nil
	}
	pem, err := os.ReadFile(value)
	if err != nil {
		return nil, fmt.Errorf("reading the CA certificate: %w", err)
	}
	return pem, nil
}

// checkEndpoint gives the base URL without a slash at its end.
func checkEndpoint(raw string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", fmt.Errorf("endpoint %q must be a URL such as %s", raw, DefaultFleetURL)
	}
	if u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", fmt.Errorf("endpoint of host %q must have no user, query or fragment; give the token apart from it", u.Host)
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// httpClient gives what carries the requests. It never follows redirects: they would carry the token elsewhere.
func (cfg *Config) httpClient(ofHost bool) (*http.Client, error) {
	out := &http.Client{}
	if cfg.HTTPClient != nil {
		*out = *cfg.HTTPClient
	} else {
		transport := &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout:   dialTimeout,
			ExpectContinueTimeout: time.Second,
			MaxIdleConnsPerHost:   32,
			IdleConnTimeout:       30 * time.Second,
			ForceAttemptHTTP2:     true,
		}
		var err error
		if transport.TLSClientConfig, err = cfg.tls(ofHost); err != nil {
			return nil, err
		}
		out.Transport = transport
	}
	out.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return out, nil
}

// tls is the configuration of connections. A node's certificate never passes for a replica's, whatever addresses it
// names: the token would go to the node.
func (cfg *Config) tls(ofHost bool) (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS13}
	if len(cfg.CACertPEM) > 0 {
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(cfg.CACertPEM) {
			return nil, errors.New("the CA certificate holds no PEM block of type CERTIFICATE; give the fleet's ca.pem")
		}
	}
	if len(cfg.CertPEM) > 0 {
		pair, err := tls.X509KeyPair(cfg.CertPEM, cfg.KeyPEM)
		if err != nil {
			return nil, fmt.Errorf("the certificate to show cannot be used: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	switch {
	case !ofHost:
		out.VerifyConnection = func(cs tls.ConnectionState) error {
			if err := certs.AcceptFleet(certs.PeerOf(&cs)); err != nil {
				return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
			}
			return nil
		}
	case len(cfg.Endpoints) == 1:
		host := ""
		if u, err := url.Parse(cfg.Endpoints[0]); err == nil {
			host = u.Hostname()
		}
		out.InsecureSkipVerify = true // verified here instead, as a certificate that central issued names the node and no address
		out.VerifyConnection = func(cs tls.ConnectionState) error { return certs.VerifyHost(&cs, out.RootCAs, host) }
	}
	return out, nil
}
