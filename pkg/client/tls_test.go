package client

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/certs"
)

// lab is an authority and what it signs.
type lab struct {
	*certs.Authority
	pem []byte
}

func newLab(t *testing.T) lab {
	t.Helper()
	pair, err := certs.NewAuthority("lab", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	a, err := certs.LoadAuthority(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return lab{a, pair.CertPEM}
}

func (l lab) cert(t *testing.T, id certs.Identity, sans ...string) certs.Pair {
	t.Helper()
	key, keyPEM, err := certs.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := l.Sign(id, sans, key.Public(), time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair.KeyPEM = keyPEM
	return pair
}

// serve runs an HTTPS server that says what certificate it was shown.
func (l lab) serve(t *testing.T, pair certs.Pair) (port string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id":"` + certs.PeerOf(req.TLS).String() + `","mem_total_mib":1}`))
	}))
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(l.pem)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	server.StartTLS()
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u.Port()
}

func TestTheFleetIsKnownByItsCertificateAndANodeIsNotTheFleet(t *testing.T) {
	l, other := newLab(t), newLab(t)
	mine := l.cert(t, certs.Identity{Role: certs.API, Name: "ci"})
	for name, c := range map[string]struct {
		pair certs.Pair
		ca   []byte
		want string
	}{
		"a replica":            {l.cert(t, certs.Identity{Role: certs.Replica, Name: "central-1"}, "127.0.0.1"), l.pem, ""},
		"a proxy":              {l.cert(t, certs.Identity{Role: certs.API, Name: "proxy"}, "127.0.0.1"), l.pem, ""},
		"a node":               {l.cert(t, certs.Identity{Role: certs.Node, Name: "studio-1"}, "127.0.0.1"), l.pem, "node/studio-1 answers"},
		"another address":      {l.cert(t, certs.Identity{Role: certs.Replica, Name: "central-1"}, "127.0.0.2"), l.pem, "127.0.0.1"},
		"of another authority": {l.cert(t, certs.Identity{Role: certs.Replica, Name: "central-1"}, "127.0.0.1"), other.pem, "unknown authority"},
	} {
		cl, err := New(Config{Endpoints: []string{"https://127.0.0.1:" + l.serve(t, c.pair)}, CACertPEM: c.ca, CertPEM: mine.CertPEM, KeyPEM: mine.KeyPEM, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		cluster, err := cl.Cluster(t.Context())
		if c.want == "" && (err != nil || cluster.ID != "api/ci") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %q, %v; want %q", name, cluster.ID, err, c.want)
		}
	}
}

func TestAHostIsKnownByItsAddressOrItsName(t *testing.T) {
	l := newLab(t)
	if addrs, err := net.DefaultResolver.LookupHost(t.Context(), "localhost"); err != nil || len(addrs) == 0 {
		t.Skip("SKIPPED: this machine does not know localhost")
	}
	for name, c := range map[string]struct {
		id   certs.Identity
		sans []string
		good bool
	}{
		"by address":      {certs.Identity{Role: certs.Node, Name: "studio-1"}, []string{"localhost"}, true},
		"by name":         {certs.Identity{Role: certs.Node, Name: "localhost"}, nil, true},
		"another node":    {certs.Identity{Role: certs.Node, Name: "studio-1"}, nil, false},
		"not even a node": {certs.Identity{Role: certs.API, Name: "localhost"}, nil, false},
	} {
		h, err := NewHost(Config{Endpoints: []string{"https://localhost:" + l.serve(t, l.cert(t, c.id, c.sans...))}, CACertPEM: l.pem, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.HostMemory(t.Context()); (err == nil) != c.good {
			t.Errorf("%s: got %v, want good=%v", name, err, c.good)
		}
	}
}

func TestTheEnvironmentNamesACertificateWithItsKey(t *testing.T) {
	l, dir := newLab(t), t.TempDir()
	pair := l.cert(t, certs.Identity{Role: certs.API, Name: "ci"})
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	for path, raw := range map[string][]byte{cert: pair.CertPEM, key: pair.KeyPEM} {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(EnvCert, cert)
	if _, err := ConfigFromEnv(); err == nil || !strings.Contains(err.Error(), EnvKey) {
		t.Errorf("without its key: got %v", err)
	}
	t.Setenv(EnvKey, key)
	if cfg, err := ConfigFromEnv(); err != nil || string(cfg.KeyPEM) != string(pair.KeyPEM) {
		t.Errorf("got %v", err)
	}
	t.Setenv(EnvKey, cert)
	if cfg, err := ConfigFromEnv(); err != nil {
		t.Error(err)
	} else if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "cannot be used") {
		t.Errorf("with another file for its key: got %v", err)
	}
}
