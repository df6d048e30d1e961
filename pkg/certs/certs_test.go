package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

// authority makes a root that has begun at that time.
func authority(t *testing.T, now time.Time) (*Authority, Pair) {
	t.Helper()
	pair, err := NewAuthority("lab", now, 3650*day)
	if err != nil {
		t.Fatal(err)
	}
	return load(t, pair), pair
}

func load(t *testing.T, pair Pair) *Authority {
	t.Helper()
	a, err := LoadAuthority(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func sign(t *testing.T, a *Authority, id Identity, now time.Time, valid time.Duration, sans ...string) Pair {
	t.Helper()
	key, keyPEM, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := a.Sign(id, sans, key.Public(), now, valid)
	if err != nil {
		t.Fatal(err)
	}
	pair.KeyPEM = keyPEM
	return pair
}

func write(t *testing.T, dir string, pair Pair, ca []byte) Files {
	t.Helper()
	files := Files{Cert: filepath.Join(dir, "c.pem"), Key: filepath.Join(dir, "k.pem"), CA: filepath.Join(dir, "ca.pem")}
	for path, raw := range map[string][]byte{files.Cert: pair.CertPEM, files.Key: pair.KeyPEM, files.CA: ca} {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func open(t *testing.T, files Files) *Source {
	t.Helper()
	s, err := Open(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// meet lets a client with one configuration speak to a server with the other, and gives what each of them says.
func meet(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	a, b := net.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		conn := tls.Server(a, server)
		err := conn.HandshakeContext(ctx)
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		served <- errors.Join(err, a.Close())
	}()
	conn := tls.Client(b, client)
	clientErr = conn.HandshakeContext(ctx)
	if clientErr == nil { // in TLS 1.3 a server that refuses says so afterwards
		_, clientErr = io.ReadFull(conn, make([]byte, 1))
	}
	_ = b.Close()
	return <-served, clientErr
}

func TestAnIdentityIsReadAsItWasSigned(t *testing.T) {
	now := time.Now()
	ca, _ := authority(t, now)
	for _, id := range []Identity{{Replica, "central-1"}, {Node, "studio.lab-7"}, {API, "ci"}} {
		pair := sign(t, ca, id, now, day, "10.0.0.1", "host.example")
		block, _ := pem.Decode(pair.CertPEM)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := Of(cert); got != id {
			t.Errorf("got %v, want %v", got, id)
		}
		if got, ok := Parse(id.String()); !ok || got != id {
			t.Errorf("%s parses as %v, %v", id, got, ok)
		}
	}
	for _, id := range []Identity{{"king", "x"}, {Node, ""}, {Node, "../x"}, {Node, "a_b"}, {Node, "-a"}, {Replica, strings.Repeat("x", 64)}} {
		if _, err := ca.Sign(id, nil, nil, now, day); err == nil {
			t.Errorf("%v was signed", id)
		}
	}
	for _, san := range []string{"https://x", "x:7799", "", "a b"} {
		key, _, _ := NewKey()
		if _, err := ca.Sign(Identity{API, "x"}, []string{san}, key.Public(), now, day); err == nil {
			t.Errorf("the name %q was signed", san)
		}
	}
}

func TestANodeAuthorityVouchesForNodesOnly(t *testing.T) {
	now := time.Now()
	root, rootPair := authority(t, now)
	nodePair, err := root.NewNodeAuthority("lab nodes", now, 365*day)
	if err != nil {
		t.Fatal(err)
	}
	nodes := load(t, nodePair)
	if !nodes.OnlyNodes() || root.OnlyNodes() {
		t.Error("OnlyNodes tells them apart the wrong way")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(rootPair.CertPEM)
	for _, c := range []struct {
		id   Identity
		sans []string
		good bool
	}{
		{Identity{Node, "studio-1"}, nil, true},
		{Identity{Replica, "central-1"}, nil, false},
		{Identity{API, "ci"}, nil, false},
		{Identity{Node, "studio-1"}, []string{"central-1.example"}, false},
		{Identity{Node, "studio-1"}, []string{"10.0.0.1"}, false},
		{Identity{Node, "studio-1"}, []string{"::1"}, false},
	} {
		pair := sign(t, nodes, c.id, now, 900*day, c.sans...)
		if pair.NotAfter.After(now.Add(366 * day)) {
			t.Errorf("%v outlives its authority", c.id)
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if err := verify(parse(t, pair.CertPEM), pool, "", usage, now); (err == nil) != c.good {
				t.Errorf("%v for %v: got %v, want good=%v", c.id, c.sans, err, c.good)
			}
		}
	}
	if err := nodes.SignedBy(pool, now); err != nil {
		t.Error(err)
	}
	other, _ := authority(t, now)
	if err := other.SignedBy(pool, now); err == nil {
		t.Error("another root passes for this one's")
	}
}

func parse(t *testing.T, chain []byte) (out []*x509.Certificate) {
	t.Helper()
	for block, rest := pem.Decode(chain); block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, cert)
	}
	return out
}

func TestBothSidesHoldTheOtherToItsCertificate(t *testing.T) {
	now := time.Now()
	ca, caPair := authority(t, now)
	other, otherPair := authority(t, now)
	server := open(t, write(t, t.TempDir(), sign(t, ca, Identity{Replica, "central-1"}, now, day, "127.0.0.1"), caPair.CertPEM))
	client := open(t, write(t, t.TempDir(), sign(t, ca, Identity{Node, "studio-1"}, now, day), caPair.CertPEM))
	foreign := open(t, write(t, t.TempDir(), sign(t, other, Identity{Node, "studio-1"}, now, day), otherPair.CertPEM))
	bare := open(t, Files{CA: client.files.CA})
	only := func(role Role) Accept {
		return func(id Identity) error {
			if id.Role != role {
				return errors.New("not a " + string(role))
			}
			return nil
		}
	}
	stale := open(t, client.files) // the same certificate, two days later
	stale.now = func() time.Time { return now.Add(2 * day) }
	for name, c := range map[string]struct {
		server, client *tls.Config
		good           bool
	}{
		"both known":                      {server.Server(true, only(Node)), client.Client("127.0.0.1", only(Replica)), true},
		"by identity":                     {server.Server(true, only(Node)), client.Client("", only(Replica)), true},
		"another address":                 {server.Server(true, nil), client.Client("127.0.0.2", nil), false},
		"another name":                    {server.Server(true, nil), client.Client("example.com", nil), false},
		"a server of the wrong role":      {server.Server(true, nil), client.Client("127.0.0.1", only(Node)), false},
		"a client of the wrong role":      {server.Server(true, only(Replica)), client.Client("127.0.0.1", nil), false},
		"a client of another authority":   {server.Server(false, nil), func() *tls.Config { c := foreign.Client("", nil); c.VerifyConnection = nil; return c }(), false},
		"a server of another authority":   {server.Server(false, nil), foreign.Client("127.0.0.1", nil), false},
		"a client without a certificate":  {server.Server(false, nil), bare.Client("127.0.0.1", nil), true},
		"a client that has to have one":   {server.Server(true, nil), bare.Client("127.0.0.1", nil), false},
		"a server whose time is over":     {server.Server(false, nil), stale.Client("127.0.0.1", nil), false},
		"a client that speaks TLS 1.2":    {server.Server(false, nil), &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}, false},
		"a server that has none yet":      {bare.Server(false, nil), client.Client("", nil), false},
		"a server that speaks only 1.2":   {&tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*server.held.Load().cert}}, client.Client("127.0.0.1", nil), false},
		"a certificate for nothing of us": {server.Server(false, only(API)), client.Client("127.0.0.1", nil), false},
	} {
		serverErr, clientErr := meet(t, c.server, c.client)
		if good := serverErr == nil && clientErr == nil; good != c.good {
			t.Errorf("%s: got %v and %v, want good=%v", name, serverErr, clientErr, c.good)
		}
	}
}

func TestFilesAreFollowedAndTheLastGoodOnesStay(t *testing.T) {
	now := time.Now()
	ca, caPair := authority(t, now)
	dir := t.TempDir()
	files := write(t, dir, sign(t, ca, Identity{Replica, "central-1"}, now, 10*day), caPair.CertPEM)
	var said bytes.Buffer
	s, err := Open(files, hclog.New(&hclog.LoggerOptions{Output: &said}))
	if err != nil {
		t.Fatal(err)
	}
	first := s.NotAfter()
	s.Look()
	if s.NotAfter() != first || said.Len() > 0 {
		t.Errorf("nothing changed, and it says %s", &said)
	}
	next := sign(t, ca, Identity{Replica, "central-1"}, now, 20*day)
	for _, step := range []struct {
		cert, key []byte
		replaced  bool
		word      string
	}{
		{next.CertPEM, nil, false, "last good ones stay"},    // the key is not there yet
		{next.CertPEM, next.KeyPEM, true, "were read again"}, // now it is
		{[]byte("rubbish"), next.KeyPEM, false, "last good ones stay"},
		{sign(t, ca, Identity{Replica, "x"}, now.Add(-9*day), day).CertPEM, next.KeyPEM, false, "last good"},
	} {
		before := s.NotAfter()
		said.Reset()
		if err := os.WriteFile(files.Cert, step.cert, 0o600); err != nil {
			t.Fatal(err)
		}
		if step.key != nil {
			if err := os.WriteFile(files.Key, step.key, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.Look()
		if (s.NotAfter() != before) != step.replaced || !strings.Contains(said.String(), step.word) {
			t.Errorf("got not_after %s (before %s), said %q, want %q", s.NotAfter(), before, said.String(), step.word)
		}
		said.Reset()
		s.Look()
		if said.Len() > 0 {
			t.Errorf("it is said again: %s", &said)
		}
	}
}

func TestTheEndOfACertificateIsSaidAheadAndOnce(t *testing.T) {
	now := time.Now()
	ca, caPair := authority(t, now)
	for valid, words := range map[time.Duration]map[time.Duration]int{ // words said when so much is left
		365 * day: {40 * day: 0, 29 * day: 1, 28 * day: 1, 6 * day: 2, 12 * time.Hour: 3, -day: 4, -2 * day: 4},
		14 * day:  {10 * day: 0, 5 * day: 0, 12 * time.Hour: 1, -day: 2},
	} {
		var said bytes.Buffer
		s, err := Open(write(t, t.TempDir(), sign(t, ca, Identity{Node, "n"}, now, valid), caPair.CertPEM), hclog.New(&hclog.LoggerOptions{Output: &said}))
		if err != nil {
			t.Fatal(err)
		}
		for _, left := range []time.Duration{40 * day, 29 * day, 28 * day, 10 * day, 6 * day, 5 * day, 12 * time.Hour, -day, -2 * day} {
			want, asked := words[left]
			if !asked {
				continue
			}
			s.now = func() time.Time { return s.NotAfter().Add(-left) }
			s.warn()
			s.warn()
			if got := strings.Count(said.String(), "\n"); got != want {
				t.Errorf("valid %s, %s left: got %d words, want %d: %s", valid, left, got, want, &said)
			}
		}
	}
}

func TestARequestIsBelievedForItsKeyOnly(t *testing.T) {
	key, keyPEM, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParseKey(keyPEM); err != nil || again.Public() == nil {
		t.Error(err)
	}
	text, err := NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := RequestedKey(text)
	if err != nil {
		t.Fatal(err)
	}
	if same, ok := key.Public().(*ecdsa.PublicKey); !ok || !same.Equal(public) {
		t.Error("another key came out")
	}
	block, _ := pem.Decode([]byte(text))
	block.Bytes[len(block.Bytes)-1] ^= 1
	for _, bad := range []string{"", "x", string(pem.EncodeToMemory(block)), string(keyPEM)} {
		if _, err := RequestedKey(bad); err == nil {
			t.Errorf("%.40q was taken", bad)
		}
	}
}
