package guard

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// BodyTime is how long a request may take to come in: the ReadTimeout of a server.
const BodyTime = 30 * time.Second

// Steady gives each part of a long body, whose server would end it after BodyTime, that time anew.
func Steady(w http.ResponseWriter, body io.ReadCloser) io.ReadCloser {
	return steady{body, http.NewResponseController(w)}
}

type steady struct {
	io.ReadCloser
	conn *http.ResponseController
}

func (s steady) Read(p []byte) (int, error) {
	_ = s.conn.SetReadDeadline(time.Now().Add(BodyTime)) // impossible in memory, where nobody is slow
	return s.ReadCloser.Read(p)
}

// Named says whether a request may be meant for this listener by the name that it calls it. On loopback that is this
// host, or one of names: a web page that had its own name resolve to this host would otherwise speak to it as if it
// were a page of its own.
func Named(req *http.Request, names ...string) bool {
	local, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || !loopback(local.String()) {
		return true
	}
	host := hostOf(req.Host)
	if host == "" || strings.EqualFold(host, "localhost") || loopback(req.Host) {
		return true
	}
	for _, name := range names {
		if name != "" && strings.EqualFold(host, hostOf(name)) {
			return true
		}
	}
	return false
}

// hostOf is the host of a URL, of HOST:PORT, or of a host alone.
func hostOf(text string) string {
	if u, err := url.Parse(text); err == nil && u.Host != "" {
		return u.Hostname()
	}
	if host, _, err := net.SplitHostPort(text); err == nil {
		return host
	}
	return strings.Trim(text, "[]")
}

func loopback(addr string) bool {
	ip, err := netip.ParseAddr(hostOf(addr))
	return err == nil && ip.Unmap().IsLoopback()
}
