package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	lookEvery = 2 * time.Second // between two looks at the files
	day       = 24 * time.Hour
)

// Files are the PEM files of one process. Cert and Key go together; CA is what it trusts.
type Files struct{ Cert, Key, CA string }

// Check refuses halves.
func (f Files) Check() error {
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("--tls-cert and --tls-key go together: give both")
	case f.Cert != "" && f.CA == "":
		return errors.New("--tls-cert needs --tls-ca, the certificate (ca.pem) of the authority that made it")
	}
	return nil
}

// Source is a process's certificate and what it trusts. It follows the files: what is read whole and fits together
// replaces what was there, anything else leaves it as it is. All methods may be called from many goroutines.
type Source struct {
	files Files
	log   hclog.Logger
	now   func() time.Time
	held  atomic.Pointer[held]

	mu     sync.Mutex // held while files are read
	seen   [3][]byte  // their contents when they were last looked at
	wrong  string     // the last thing said about them
	warned time.Duration
}

// held is one state of a Source; it does not change.
type held struct {
	cert *tls.Certificate // nil: none yet
	pool *x509.CertPool
}

// Open reads the files; from then on Run follows them.
func Open(files Files, logger hclog.Logger) (*Source, error) {
	if err := files.Check(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	s := &Source{files: files, log: logger, now: time.Now}
	if _, err := s.look(); err != nil {
		return nil, err
	}
	return s, nil
}

// Run follows the files and warns of the end that comes near, until ctx ends.
func (s *Source) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		s.Look()
		s.warn()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Look reads files that have changed. What is wrong with them is logged once.
func (s *Source) Look() {
	changed, err := s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && err.Error() != s.wrong:
		s.wrong = err.Error()
		s.log.Error("the new certificate files are not used; the last good ones stay", "error", err, "not_after", s.NotAfter())
	case err == nil && changed:
		s.wrong, s.warned = "", 0
		s.log.Info("certificates were read again", "identity", s.Identity().String(), "not_after", s.NotAfter())
	}
}

func (s *Source) look() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var read [3][]byte
	for i, path := range [...]string{s.files.Cert, s.files.Key, s.files.CA} {
		if path == "" {
			continue
		}
		if read[i], err = os.ReadFile(path); err != nil {
			return false, fmt.Errorf("reading a certificate file: %w", err)
		}
		changed = changed || !bytes.Equal(read[i], s.seen[i])
	}
	if !changed && s.held.Load() != nil {
		return false, nil
	}
	next := &held{}
	if old := s.held.Load(); old != nil && s.files.Cert == "" {
		next.cert = old.cert // it was put, and is in no file
	}
	if s.files.CA != "" {
		next.pool = x509.NewCertPool()
		if !next.pool.AppendCertsFromPEM(read[2]) {
			return false, fmt.Errorf("%s holds no certificate: give the ca.pem that fluxctl tls ca made", s.files.CA)
		}
	}
	if s.files.Cert != "" {
		if next.cert, err = pair(read[0], read[1], next.pool, s.now()); err != nil {
			return false, fmt.Errorf("%s: %w; make another one with fluxctl tls cert", s.files.Cert, err)
		}
	}
	s.seen = read
	s.held.Store(next)
	return true, nil
}

// pair makes sure that a certificate goes with its key and is one that others who trust pool would take.
func pair(certPEM, keyPEM []byte, pool *x509.CertPool, now time.Time) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	if err := verify(append([]*x509.Certificate{cert.Leaf}, others(cert.Certificate)...), pool, "", x509.ExtKeyUsageServerAuth, now); err != nil {
		return nil, err
	}
	return &cert, nil
}

func others(raw [][]byte) (out []*x509.Certificate) {
	for _, one := range raw[1:] {
		if cert, err := x509.ParseCertificate(one); err == nil {
			out = append(out, cert)
		}
	}
	return out
}

// Put replaces the certificate by one that is in no file of Files.
func (s *Source) Put(certPEM, keyPEM []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.held.Load()
	cert, err := pair(certPEM, keyPEM, old.pool, s.now())
	if err != nil {
		return err
	}
	s.held.Store(&held{cert: cert, pool: old.pool})
	s.warned = 0
	return nil
}

// Identity is whose certificate it is; zero while there is none.
func (s *Source) Identity() Identity {
	if cert := s.held.Load().cert; cert != nil {
		return Of(cert.Leaf)
	}
	return Identity{}
}

// Roots is what is trusted now.
func (s *Source) Roots() *x509.CertPool { return s.held.Load().pool }

// NotAfter is when the certificate ends; zero while there is none.
func (s *Source) NotAfter() time.Time {
	if cert := s.held.Load().cert; cert != nil {
		return cert.Leaf.NotAfter
	}
	return time.Time{}
}

// Aged says that there is no certificate, or that two thirds of its time are over.
func (s *Source) Aged() bool {
	cert := s.held.Load().cert
	if cert == nil {
		return true
	}
	return s.now().After(cert.Leaf.NotBefore.Add(cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore) * 2 / 3))
}

// warn says 30, 7 and 1 days ahead, and once it is too late, that the certificate ends. Of a short one only what is
// less than a third of its time is worth a word.
func (s *Source) warn() {
	cert := s.held.Load().cert
	if cert == nil {
		return
	}
	left, whole := cert.Leaf.NotAfter.Sub(s.now()), cert.Leaf.NotAfter.Sub(cert.Leaf.NotBefore)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ahead := range [...]time.Duration{1, day, 7 * day, 30 * day} {
		if left >= ahead || ahead > whole/3 {
			continue
		}
		if s.warned == 0 || ahead < s.warned {
			s.warned = ahead
			if left <= 0 {
				s.log.Error("the certificate has ended and nobody takes it any more: replace its files, they are read again by themselves", "identity", Of(cert.Leaf).String(), "not_after", cert.Leaf.NotAfter)
			} else {
				s.log.Warn("the certificate ends soon: replace its files, they are read again by themselves", "identity", Of(cert.Leaf).String(), "not_after", cert.Leaf.NotAfter, "days", int(left/day))
			}
		}
		return
	}
}

// Accept decides on a peer that was verified. A zero identity is a peer that this fleet's authority knows and gave no
// role.
type Accept func(Identity) error

// Server is the TLS of a listener. With must, callers have to show a certificate; one that is shown has to be good, and
// accept (nil: any) has to take it.
func (s *Source) Server(must bool, accept Accept) *tls.Config {
	ask := tls.RequestClientCert
	if must {
		ask = tls.RequireAnyClientCert
	}
	conf := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, ClientAuth: ask,
		SessionTicketsDisabled: true, // each connection is checked by what holds then
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if cert := s.held.Load().cert; cert != nil {
				return cert, nil
			}
			return nil, errors.New("this node has no certificate yet")
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return nil // must is the handshake's own business
			}
			return s.check(cs, "", x509.ExtKeyUsageClientAuth, accept)
		},
	}
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := conf.Clone()
		now.ClientCAs = s.Roots() // only a hint to clients which certificate to show
		return now, nil
	}
	return conf
}

// Dial makes TLS connections over those that dial makes, to servers that accept takes; it fits
// http.Transport.DialTLSContext. With byName the server's certificate must be good for the host that is dialed, else
// accept alone says who may be there.
func (s *Source) Dial(dial func(ctx context.Context, network, addr string) (net.Conn, error), byName bool, accept func(addr string, peer Identity) error) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		name := ""
		if byName {
			name, _, _ = net.SplitHostPort(addr)
		}
		secured := tls.Client(conn, s.Client(name, func(peer Identity) error { return accept(addr, peer) }))
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, &net.OpError{Op: "dial", Net: network, Addr: conn.RemoteAddr(), Err: err} // nothing was sent
		}
		return secured, nil
	}
}

// Client is the TLS of a connection to the server of that name or address, which accept (nil: any) has to take. An empty
// name leaves it all to accept.
func (s *Source) Client(name string, accept Accept) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         name,
		InsecureSkipVerify: true, // VerifyConnection does it, against what is trusted then
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if cert := s.held.Load().cert; cert != nil {
				return cert, nil
			}
			return &tls.Certificate{}, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			return s.check(cs, name, x509.ExtKeyUsageServerAuth, accept) // its own ServerName is empty for an IP address
		},
	}
}

func (s *Source) check(cs tls.ConnectionState, host string, usage x509.ExtKeyUsage, accept Accept) error {
	if err := verify(cs.PeerCertificates, s.Roots(), host, usage, s.now()); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	if accept == nil {
		return nil
	}
	if err := accept(Of(cs.PeerCertificates[0])); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return nil
}

// verify is x509's own, with a nil pool as the system's.
func verify(chain []*x509.Certificate, pool *x509.CertPool, host string, usage x509.ExtKeyUsage, now time.Time) error {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, DNSName: host, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

// PeerOf is who is at the other end of a connection that a Source has verified; zero without TLS or a certificate.
func PeerOf(cs *tls.ConnectionState) Identity {
	if cs == nil || len(cs.PeerCertificates) == 0 {
		return Identity{}
	}
	return Of(cs.PeerCertificates[0])
}

// VerifyHost makes sure that a server is the host that a client dialed: by a name or address in its certificate, or
// because it is the node of that name. A nil pool is the system's.
func VerifyHost(cs *tls.ConnectionState, roots *x509.CertPool, host string) error {
	name := host
	if PeerOf(cs) == (Identity{Node, host}) {
		name = ""
	}
	if err := verify(cs.PeerCertificates, roots, name, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return nil
}

// AcceptFleet takes whoever may answer for the fleet's API. A node may not, whatever addresses its certificate names:
// it would be told secrets that are not its.
func AcceptFleet(peer Identity) error {
	if peer.Role == Node {
		return fmt.Errorf("%s answers at an address of the fleet; give the URLs of its replicas", peer)
	}
	return nil
}
