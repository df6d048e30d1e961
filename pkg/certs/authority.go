package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
)

// backdate lets a certificate be used by machines whose clocks are a little behind.
const backdate = 5 * time.Minute

const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
	pemRequest     = "CERTIFICATE REQUEST"
)

// Authority signs certificates.
type Authority struct {
	cert  *x509.Certificate
	key   crypto.Signer
	chain []byte // PEM of its own certificate where it is no root: it has to be sent along
}

// Pair is a certificate and its key as files hold them.
type Pair struct {
	CertPEM, KeyPEM []byte
	NotAfter        time.Time
}

// NewAuthority makes a root that everything of one fleet is signed by.
func NewAuthority(name string, now time.Time, valid time.Duration) (Pair, error) {
	return newAuthority(&x509.Certificate{Subject: pkix.Name{CommonName: name}, MaxPathLen: 1}, nil, now, valid)
}

// NewNodeAuthority makes an authority below this one that can vouch for nodes and for nothing else: what it signs is
// refused by every verifier if it has another role, a host's name or an IP address.
func (a *Authority) NewNodeAuthority(name string, now time.Time, valid time.Duration) (Pair, error) {
	_, every4, _ := net.ParseCIDR("0.0.0.0/0")
	_, every6, _ := net.ParseCIDR("::/0")
	return newAuthority(&x509.Certificate{
		Subject: pkix.Name{CommonName: name}, MaxPathLenZero: true,
		ExtKeyUsage:                 []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		PermittedDNSDomainsCritical: true,
		PermittedURIDomains:         []string{string(Node)},
		PermittedDNSDomains:         []string{"none.invalid"}, // there is no such host: so none at all
		ExcludedIPRanges:            []*net.IPNet{every4, every6},
	}, a, now, valid)
}

func newAuthority(template *x509.Certificate, parent *Authority, now time.Time, valid time.Duration) (Pair, error) {
	key, keyPEM, err := NewKey()
	if err != nil {
		return Pair{}, err
	}
	template.BasicConstraintsValid, template.IsCA = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	signer := &Authority{cert: template, key: key}
	if parent != nil {
		signer = parent
	}
	return signer.create(template, key.Public(), keyPEM, now, valid)
}

// LoadAuthority reads an authority's certificate and key.
func LoadAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("reading the authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("this is the certificate of no authority; give one made by fluxctl tls ca")
	}
	a := &Authority{cert: pair.Leaf, key: key}
	if string(pair.Leaf.RawIssuer) != string(pair.Leaf.RawSubject) {
		a.chain = certPEM
	}
	return a, nil
}

// NotAfter is when the authority's own certificate ends.
func (a *Authority) NotAfter() time.Time { return a.cert.NotAfter }

// OnlyNodes says that whatever this authority signs can only be a node.
func (a *Authority) OnlyNodes() bool {
	return len(a.cert.PermittedURIDomains) == 1 && a.cert.PermittedURIDomains[0] == string(Node)
}

// SignedBy says whether the authority descends from one of roots.
func (a *Authority) SignedBy(roots *x509.CertPool, now time.Time) error {
	_, err := a.cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// Sign makes a certificate for a holder's public key. sans are host names and IP addresses at which it may be a server.
// It ends with the authority's own at the latest.
func (a *Authority) Sign(id Identity, sans []string, public crypto.PublicKey, now time.Time, valid time.Duration) (Pair, error) {
	if err := id.Check(); err != nil {
		return Pair{}, err
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: id.Name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usages,
		BasicConstraintsValid: true, URIs: []*url.URL{id.uri()}}
	for _, san := range sans {
		if ip := net.ParseIP(san); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		if san == "" || strings.ContainsAny(san, " :/_@") {
			return Pair{}, fmt.Errorf("%q is neither a host name nor an IP address; leave scheme and port out", san)
		}
		template.DNSNames = append(template.DNSNames, san)
	}
	out, err := a.create(template, public, nil, now, valid)
	out.CertPEM = append(out.CertPEM, a.chain...)
	return out, err
}

func (a *Authority) create(template *x509.Certificate, public crypto.PublicKey, keyPEM []byte, now time.Time, valid time.Duration) (Pair, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return Pair{}, fmt.Errorf("making a serial number: %w", err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = now.Add(-backdate).UTC(), now.Add(valid).UTC()
	if a.cert != template && template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	if !template.NotAfter.After(now) {
		return Pair{}, fmt.Errorf("the authority's certificate ended at %s: make a new one", a.cert.NotAfter.Format(time.RFC3339))
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("signing the certificate: %w", err)
	}
	return Pair{CertPEM: pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: raw}), KeyPEM: keyPEM, NotAfter: template.NotAfter}, nil
}

// NewKey makes a private key (ECDSA P-256) and its PEM form.
func NewKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making a key: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: raw}), nil
}

// ParseKey reads what NewKey wrote.
func ParseKey(raw []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("this file holds no private key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("reading a key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("this key cannot sign")
	}
	return signer, nil
}

// NewRequest asks for a certificate for a key. Whoever signs decides what it says.
func NewRequest(key crypto.Signer) (string, error) {
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return "", fmt.Errorf("making a certificate request: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: pemRequest, Bytes: raw})), nil
}

// RequestedKey is the public key of a request whose sender has the private one. Nothing else of it is believed.
func RequestedKey(text string) (crypto.PublicKey, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != pemRequest {
		return nil, errors.New("this is no certificate request in PEM form")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, errors.New("the certificate request cannot be read")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, errors.New("the certificate request is not signed by its own key")
	}
	if key, ok := request.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the certificate request must be for an ECDSA P-256 key")
	}
	return request.PublicKey, nil
}
