package consensus

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func openMux(t *testing.T, conf *tls.Config) *Mux {
	t.Helper()
	m, err := NewMux(MuxConfig{Listener: listen(t, "127.0.0.1:0"), TLS: conf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// echoRaft answers on the Raft side with what it reads.
func echoRaft(t *testing.T, m *Mux) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := m.raft.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = m.Close(); <-done })
}

func serveHTTP(t *testing.T, m *Mux) {
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secured := "plain"
		if r.TLS != nil {
			secured = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, secured+" "+r.URL.Path)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(m.HTTP()) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
}

func get(t *testing.T, m *Mux, url string) string {
	t.Helper()
	transport := &http.Transport{DialContext: m.DialHTTP}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func echo(t *testing.T, m *Mux, addr string) string {
	t.Helper()
	conn, err := m.raft.Dial(raft.ServerAddress(addr), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(conn, answer); err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

func TestOnePortCarriesRaftAndHTTP(t *testing.T) {
	server, client := openMux(t, nil), openMux(t, nil)
	echoRaft(t, server)
	serveHTTP(t, server)
	if got, want := get(t, client, "http://"+server.Advertise()+"/x"), "plain /x"; got != want {
		t.Errorf("over HTTP: got %q, want %q", got, want)
	}
	if got := echo(t, client, server.Advertise()); got != "hello" {
		t.Errorf("over Raft: got %q, want %q", got, "hello")
	}
}

func TestStrangerIsDropped(t *testing.T) {
	m := openMux(t, nil)
	conn, err := net.Dial("tcp", m.Advertise())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, conn)
}

func TestSilentConnectionEndsWithTheMux(t *testing.T) {
	m := openMux(t, nil)
	conn, err := net.Dial("tcp", m.Advertise())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	eventually(t, "the connection to be accepted", func() bool { return len(m.unsorted) == 1 })
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	wantClosed(t, conn)
}

func TestSilentConnectionIsDroppedInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the five seconds a connection may be silent")
	}
	m := openMux(t, nil)
	conn, err := net.Dial("tcp", m.Advertise())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	wantClosed(t, conn)
}

func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Read(make([]byte, 1))
	if err == nil || errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout") {
		t.Errorf("reading: got %v, want a closed connection", err)
	}
}

func TestClosingTheMuxCutsRaftConnections(t *testing.T) {
	server, client := openMux(t, nil), openMux(t, nil)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := server.raft.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	conn, err := client.raft.Dial(raft.ServerAddress(server.Advertise()), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	<-accepted
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	wantClosed(t, conn)
}

func TestUnreachableAdvertiseIsRefused(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:7800", "[::]:7800", ":7800", "host"} {
		ln := listen(t, "127.0.0.1:0")
		if m, err := NewMux(MuxConfig{Listener: ln, Advertise: addr}); err == nil {
			t.Errorf("%s was accepted", addr)
			_ = m.Close()
		} else if !strings.Contains(err.Error(), "--advertise") {
			t.Errorf("%s: %v does not name the flag to change", addr, err)
		}
		_ = ln.Close()
	}
}

// authority makes certificates for a fleet of one address.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{key, cert}
}

func (a *authority) config(t *testing.T, name string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
		RootCAs:      pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

func TestMutualTLSCoversBothProtocols(t *testing.T) {
	fleet := newAuthority(t)
	server, client := openMux(t, fleet.config(t, "central-1")), openMux(t, fleet.config(t, "central-2"))
	echoRaft(t, server)
	serveHTTP(t, server)
	if got, want := get(t, client, "http://"+server.Advertise()+"/x"), "central-2 /x"; got != want {
		t.Errorf("over HTTP: got %q, want %q", got, want)
	}
	if got := echo(t, client, server.Advertise()); got != "hello" {
		t.Errorf("over Raft: got %q, want %q", got, "hello")
	}

	for name, stranger := range map[string]*Mux{
		"without TLS": openMux(t, nil), "of another authority": openMux(t, newAuthority(t).config(t, "central-3")),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		conn, err := stranger.DialHTTP(ctx, "tcp", server.Advertise())
		cancel()
		if err != nil {
			continue
		}
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		answer, _ := io.ReadAll(conn)
		_ = conn.Close()
		if strings.Contains(string(answer), "HTTP") {
			t.Errorf("a client %s was served", name)
		}
	}
}
