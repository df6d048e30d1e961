package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
)

// certificateFile holds, in the data directory, the certificate that central signed and its key.
const certificateFile = "certificate.pem"

// issue is the certificate that central signs for this node. The zero value asks for none.
type issue struct {
	wanted bool       // set before the daemon serves
	asking sync.Mutex // held by the one beat that asks
	told   bool       // that nobody signs; guarded by asking
}

// secure decides how the API is served, once it is known where. It gives the listener that requests come in on.
func (d *Daemon) secure(listener net.Listener) (net.Listener, error) {
	tcp, _ := listener.Addr().(*net.TCPAddr)
	loopback := tcp == nil || tcp.IP.IsLoopback()
	own := d.cfg.TLS != nil && d.cfg.TLS.Identity() != (certs.Identity{})
	d.issue.wanted = d.cfg.TLS != nil && !own && len(d.cfg.Central) > 0 &&
		(strings.HasPrefix(d.cfg.AdvertiseURL, "https://") || d.cfg.AdvertiseURL == "" && !loopback)
	d.secured = own || d.issue.wanted
	switch {
	case !d.secured && !loopback && !d.cfg.Insecure:
		return nil, fmt.Errorf("%s can be reached from other hosts, and tokens would cross the network in clear: in a fleet give --tls-ca and let central sign a certificate (or give --tls-cert and --tls-key), listen on 127.0.0.1, or give --insecure on a network you trust", tcp)
	case d.secured && strings.HasPrefix(d.cfg.AdvertiseURL, "http://"):
		return nil, fmt.Errorf("the API speaks TLS, and --advertise-url %s does not: make it https", d.cfg.AdvertiseURL)
	}
	if d.cfg.AdvertiseURL == "" {
		d.cfg.AdvertiseURL = "http://" + listener.Addr().String()
		if d.secured {
			d.cfg.AdvertiseURL = "https://" + listener.Addr().String()
		}
	}
	if !d.secured {
		return listener, nil
	}
	return tls.NewListener(listener, d.cfg.TLS.Server(false, func(peer certs.Identity) error {
		if peer.Role == certs.Node {
			return fmt.Errorf("%s gives no orders here", peer)
		}
		return nil
	})), nil
}

// loadCertificate takes up what central signed for an earlier run. One that is of no use any more is asked for anew.
func (d *Daemon) loadCertificate() error {
	if !d.issue.wanted {
		return nil
	}
	raw, err := os.ReadFile(filepath.Join(d.cfg.DataDir, certificateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the node's certificate: %w", err)
	}
	if err := d.cfg.TLS.Put(raw, raw); err != nil {
		d.log.Warn("the certificate of an earlier run is of no use; asking central for another one", "error", err)
	}
	return nil
}

// lacks says that the API cannot be reached yet, for want of a certificate.
func (i *issue) lacks(d *Daemon) bool { return i.wanted && d.cfg.TLS.NotAfter().IsZero() }

// request adds a request for a certificate to the report while one is wanted, on one beat at a time. The function that it
// gives takes central's answer.
func (i *issue) request(d *Daemon, report *api.Register) (take func(string, error), err error) {
	if !i.wanted || !d.cfg.TLS.Aged() || !i.asking.TryLock() {
		return func(string, error) {}, nil
	}
	key, keyPEM, err := certs.NewKey()
	if err == nil {
		report.CertificateRequest, err = certs.NewRequest(key)
	}
	if err != nil {
		i.asking.Unlock()
		return nil, err
	}
	return func(certificate string, refused error) {
		defer i.asking.Unlock()
		switch {
		case refused != nil:
		case certificate == "":
			if !i.told {
				i.told = true
				d.log.Warn("central signs no certificates and this node has none, or an old one: start central with --node-ca-cert and --node-ca-key, or give this node --tls-cert and --tls-key (fluxctl tls cert node " + d.cfg.Name + ")")
			}
		default:
			if err := d.takeCertificate(certificate, keyPEM); err != nil {
				d.log.Error("the certificate that central signed is of no use", "error", err)
				return
			}
			d.log.Info("central signed this node's certificate", "not_after", d.cfg.TLS.NotAfter())
		}
	}, nil
}

func (d *Daemon) takeCertificate(certificate string, keyPEM []byte) error {
	if err := d.cfg.TLS.Put([]byte(certificate), keyPEM); err != nil {
		return err
	}
	return writeWhole(filepath.Join(d.cfg.DataDir, certificateFile), certificate+string(keyPEM))
}

// centralTransport carries reports to central.
func (d *Daemon) centralTransport() *http.Transport {
	out := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1, IdleConnTimeout: 2 * time.Minute}
	if d.cfg.TLS != nil {
		dial := (&net.Dialer{Timeout: beatTimeout}).DialContext
		out.Proxy, out.DialContext = nil, dial
		out.DialTLSContext = d.cfg.TLS.Dial(dial, true, func(_ string, peer certs.Identity) error { return certs.AcceptFleet(peer) })
	}
	return out
}

// ofCentral says whether a request that shows the node's own credential comes from a replica. Where there is TLS the
// credential alone, which someone may have read somewhere, gives no orders.
func (d *Daemon) ofCentral(req *http.Request) bool {
	return !d.secured || certs.PeerOf(req.TLS).Role == certs.Replica
}

// What one daemon takes.
const (
	refusalsPerSecond, refusalsBurst = 5, 100 // of one address, for tokens that are not good
	requestsAll                      = 512    // under way at once
)

// refusal writes a request down that was refused for what it showed. From an address with too many of them it says so
// instead; a good token is never held to what others at its address do.
func (d *Daemon) refusal(req *http.Request, err error) error {
	if !errors.Is(err, &api.Error{Code: api.CodeUnauthenticated}) {
		return err
	}
	from, _, splitErr := net.SplitHostPort(req.RemoteAddr)
	if splitErr != nil {
		from = req.RemoteAddr
	}
	ok, wait := d.refusals.Take(from)
	if !ok {
		e := api.Errorf(api.CodeRateLimited, "too many requests from this address were refused for their token; correct it and wait")
		e.RetryAfterSecs = max(1, int(wait.Seconds()+1))
		return e
	}
	d.log.Warn("refused", "code", string(api.CodeUnauthenticated), "certificate", certs.PeerOf(req.TLS).String(), "from", from, "method", knownMethod(req.Method), "path", req.URL.Path, "request", requestID(req))
	return err
}
