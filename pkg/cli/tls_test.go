package cli

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/certs"
)

// tlsRun runs one command line.
func tlsRun(args ...string) (code int, out, said string) {
	var stdout, stderr bytes.Buffer
	code = Run(context.Background(), Env{Out: &stdout, Err: &stderr}, args)
	return code, stdout.String(), stderr.String()
}

func TestCertificatesAreMadeOnceAndForTheirOwnerAlone(t *testing.T) {
	dir := t.TempDir()
	ca, caKey := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	if code, _, said := tlsRun("tls", "cert", "replica", "central-1", "--ca", ca, "--ca-key", caKey); code != 2 || !strings.Contains(said, "fluxctl tls ca") {
		t.Errorf("without an authority: got exit %d, %s", code, said)
	}
	if code, out, said := tlsRun("tls", "ca", "--dir", dir); code != 0 || !strings.Contains(out, "until ") {
		t.Fatalf("got exit %d, %s, %s", code, out, said)
	}
	before, err := os.ReadFile(caKey)
	if err != nil {
		t.Fatal(err)
	}
	if code, _, said := tlsRun("tls", "ca", "--dir", dir); code != 2 || !strings.Contains(said, "is not replaced") {
		t.Errorf("a second time: got exit %d, %s", code, said)
	}
	if after, err := os.ReadFile(caKey); err != nil || !bytes.Equal(before, after) {
		t.Error("the authority's key was replaced")
	}
	if code, _, said := tlsRun("tls", "ca", "--dir", dir, "--nodes"); code != 0 {
		t.Fatal(said)
	}
	code, out, said := tlsRun("-o", "json", "tls", "cert", "replica", "central-1", "--dir", dir, "--ca", ca, "--ca-key", caKey, "--san", "10.0.0.1,central-1.example", "--days", "10")
	var made pemFile
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil {
		t.Fatalf("got exit %d, %v, %s, %s", code, err, out, said)
	}
	for _, name := range []string{"ca.pem", "ca-key.pem", "node-ca.pem", "node-ca-key.pem", "central-1.pem", "central-1-key.pem"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v", name, info, err)
		}
	}
	raw, err := os.ReadFile(made.CertFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if certs.Of(cert) != (certs.Identity{Role: certs.Replica, Name: "central-1"}) || cert.VerifyHostname("10.0.0.1") != nil || cert.VerifyHostname("central-1.example") != nil || cert.VerifyHostname("central-1") == nil {
		t.Errorf("got %v for %v %v", cert.URIs, cert.DNSNames, cert.IPAddresses)
	}
	if left := time.Until(cert.NotAfter); left < 9*24*time.Hour || left > 10*24*time.Hour || !cert.NotAfter.Equal(made.NotAfter.Truncate(time.Second)) {
		t.Errorf("it ends at %s, and %s was said", cert.NotAfter, made.NotAfter)
	}
	if _, err := certs.Open(certs.Files{Cert: made.CertFile, Key: made.KeyFile, CA: ca}, nil); err != nil {
		t.Error(err)
	}
}

func TestWhatNoCertificateCanSayIsRefused(t *testing.T) {
	dir := t.TempDir()
	if code, _, said := tlsRun("tls", "ca", "--dir", dir); code != 0 {
		t.Fatal(said)
	}
	ca := []string{"--dir", dir, "--ca", filepath.Join(dir, "ca.pem"), "--ca-key", filepath.Join(dir, "ca-key.pem")}
	for want, args := range map[string][]string{
		"must be replica, node or api": {"king", "x"},
		"must have 1 to 63":            {"node", "under_score"},
		"neither a host name":          {"node", "x", "--san", "https://x"},
		"--days must be":               {"node", "x", "--days", "0"},
		"needs NAME":                   {"node"},
	} {
		if code, _, said := tlsRun(append(append([]string{"tls", "cert"}, args...), ca...)...); code != 2 || !strings.Contains(said, want) {
			t.Errorf("%v: got exit %d, %s; want %q", args, code, said, want)
		}
	}
	for _, name := range []string{"x.pem", "x-key.pem"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was written", name)
		}
	}
	if code, _, said := tlsRun("cluster", "status", "--cert", filepath.Join(dir, "ca.pem")); code != 2 || !strings.Contains(said, "--key") {
		t.Errorf("a certificate without its key: got exit %d, %s", code, said)
	}
}
