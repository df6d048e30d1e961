package central

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
)

// What central dials is said by nodes, and a node may be in the wrong hands. So it never dials what answers for a cloud
// or for the local link, nor its own host for a node elsewhere, and never follows a redirect.

// metadata are addresses at which clouds tell whoever asks from a machine that machine's secrets, beside the link-local
// ones.
var metadata = [...]netip.Addr{netip.AddrFrom4([4]byte{100, 100, 100, 200}), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254")}

// mayReach says why an address must not be dialed. here: the node is on this host.
func (r *Replica) mayReach(ip netip.Addr, here bool) error {
	ip = ip.Unmap()
	for _, network := range r.cfg.NodeNetworks {
		if network.Contains(ip) {
			return nil
		}
	}
	switch {
	case len(r.cfg.NodeNetworks) > 0:
		return fmt.Errorf("%s is not in --node-networks", ip)
	case ip.IsLinkLocalUnicast(), ip.IsMulticast(), ip.IsUnspecified(), ip == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is no address of a host", ip)
	case ip.IsLoopback() && !here:
		return fmt.Errorf("%s is this host, and the node is not on it", ip)
	}
	for _, m := range metadata {
		if ip == m {
			return fmt.Errorf("%s is no address of a host", ip)
		}
	}
	return nil
}

// mayDial holds the URL that a node gives for itself to what central would dial. from is where the node spoke from.
func (r *Replica) mayDial(text, from string) error {
	refuse := func(format string, args ...any) error {
		return api.Invalid("url", "central does not dial the URL of this node: %s; give it another --advertise-url", fmt.Sprintf(format, args...))
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return refuse("it must be like https://10.0.0.5:7788")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return refuse("it must have no user, path, query or fragment")
	}
	sender, err := netip.ParseAddr(from)
	near := err != nil || sender.Unmap().IsLoopback() // in memory, where tests are, there is no address
	ip, err := netip.ParseAddr(u.Hostname())
	local := err == nil && ip.IsLoopback() || isLocalhost(u.Hostname())
	switch {
	case err == nil:
		if why := r.mayReach(ip, near); why != nil {
			return refuse("%v", why)
		}
	case local && !near:
		return refuse("localhost is this host, and the node is not on it")
	}
	if u.Scheme == "http" && r.cfg.TLS != nil && !local && !r.cfg.Insecure {
		return refuse("the node's secret would cross the network in clear; let the daemon have a certificate (--tls-ca and an https URL), or start central with --insecure")
	}
	return nil
}

func isLocalhost(host string) bool { return strings.EqualFold(host, "localhost") }

// hostPort is the address behind a URL, as a dialer gets it.
func hostPort(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// nodeTransport carries orders to nodes. Names are held to the same rules as addresses once they are resolved.
func (r *Replica) nodeTransport() *http.Transport {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		ip, err := netip.ParseAddr(host)
		here := err == nil && ip.Unmap().IsLoopback() || isLocalhost(host)
		dialer := net.Dialer{Timeout: 2 * time.Second, Control: func(_, resolved string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(resolved)
			if err != nil {
				return err
			}
			return r.mayReach(to.Addr().WithZone(""), here)
		}}
		return dialer.DialContext(ctx, network, addr)
	}
	// What is kept open is bounded, whatever the number of nodes: a replica that has used up its file descriptors
	// takes no more requests. Those that were used least lately are closed first.
	out := &http.Transport{DialContext: dial, MaxIdleConns: 4096, MaxIdleConnsPerHost: 8, MaxConnsPerHost: 64, IdleConnTimeout: 90 * time.Second}
	if r.cfg.TLS != nil {
		out.DialTLSContext = r.cfg.TLS.Dial(dial, false, func(addr string, peer certs.Identity) error { return r.acceptNodeAt(addr, peer) })
	}
	return out
}
