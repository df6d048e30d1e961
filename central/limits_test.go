package central

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

func TestAKeyThatAsksTooOftenIsToldWhenToAskAgain(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		lead := r.leader()
		one, two := r.tenant("acme", nil), r.tenant("globex", nil)
		m := r.member(lead)
		m.limits = limits{requests: guard.NewRate(0.5, 3, time.Now), each: guard.NewSlots(100, 100)}
		ask := func(token string) reply {
			got, err := r.try(lead, token, "GET", "/fleet/vms", nil)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		for i, want := range []int{200, 200, 200, 429} {
			if got := ask(one); got.status != want || want == 429 && (got.code() != api.CodeRateLimited || got.header.Get("Retry-After") != "2") {
				t.Errorf("request %d: got %s, Retry-After %q, want %d", i, got, got.header.Get("Retry-After"), want)
			}
		}
		for range 5 {
			if got := ask(operatorToken); got.status != 200 {
				t.Errorf("the operator: got %s", got)
			}
		}
		if got := ask(two); got.status != 200 {
			t.Errorf("another tenant: got %s", got)
		}
		r.wait(2 * time.Second)
		if got := ask(one); got.status != 200 {
			t.Errorf("after the wait: got %s", got)
		}
		m.limits = limits{requests: guard.NewRate(1, 100, time.Now), each: guard.NewSlots(1, 100)}
		waiting := make(chan reply, 1)
		go func() {
			got, err := r.try(lead, one, "GET", "/fleet/vms?wait=30s&index=1000000", nil)
			if err != nil {
				t.Error(err)
			}
			waiting <- got
		}()
		r.wait(time.Second)
		if got := ask(one); got.status != 429 {
			t.Errorf("beside one that waits: got %s", got)
		}
		if got := ask(two); got.status != 200 {
			t.Errorf("another key beside one that waits: got %s", got)
		}
		<-waiting
		if got := ask(one); got.status != 200 {
			t.Errorf("once it has ended: got %s", got)
		}
	})
}

func TestABadTokenIsSlowedDownAndNoGoodOneBesideIt(t *testing.T) {
	scenario(t, 2, func(t *testing.T, r *rig) {
		lead := r.leader()
		m := r.member(lead)
		m.limits = limits{refusals: guard.NewRate(0.1, 2, time.Now)}
		for i, want := range []int{401, 401, 429} {
			got, err := r.try(lead, "fvx_wrong", "GET", "/fleet/vms", nil)
			if err != nil || got.status != want || want == 429 && got.header.Get("Retry-After") != "10" {
				t.Errorf("try %d: got %s, %v, want %d", i, got, err, want)
			}
		}
		if got := r.call(lead, "GET", "/fleet/vms", nil); got.status != 200 {
			t.Errorf("a good token: got %s", got)
		}
	})
}

func TestARequestBeyondAllPlacesIsTurnedAwayAndHostsAreNot(t *testing.T) {
	scenario(t, 3, func(t *testing.T, r *rig) {
		r.addNode("n1", nil)
		lead := r.leader()
		m := r.member(lead)
		r.eventually("n1 to be healthy", time.Minute, func() bool {
			n := m.state.View().Node("n1")
			return n != nil && n.State == api.NodeHealthy
		})
		m.limits = limits{all: guard.NewSlots(0, 0)}
		if got := r.call(lead, "GET", "/fleet/vms", nil); got.status != 429 || got.header.Get("Retry-After") == "" {
			t.Errorf("got %s", got)
		}
		if got := r.call(lead, "GET", "/readyz", nil); got.status != 200 {
			t.Errorf("a probe: got %s", got)
		}
		r.wait(2 * time.Minute) // a host that was turned away would be suspect by now
		if n := m.state.View().Node("n1"); n.State != api.NodeHealthy {
			t.Errorf("n1 is %s", n.State)
		}
	})
}

func TestCentralDialsHostsAndNothingElse(t *testing.T) {
	open := &Replica{}
	withTLS := &Replica{cfg: Config{TLS: new(certs.Source)}}
	listed := &Replica{cfg: Config{NodeNetworks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("127.0.0.0/8")}}}
	for _, c := range []struct {
		r         *Replica
		url, from string
		want      string // part of the refusal; empty: it may be dialed
	}{
		{open, "http://10.0.0.5:7788", "10.0.0.5", ""},
		{open, "http://studio-1.lab:7788/", "10.0.0.5", ""},
		{open, "http://[fd12::5]:7788", "fd12::5", ""},
		{open, "http://127.0.0.1:7788", "127.0.0.1", ""},
		{open, "http://localhost:7788", "::1", ""},
		{open, "http://127.0.0.1:7799", "10.0.0.5", "is this host"},
		{open, "http://[::1]:7799", "10.0.0.5", "is this host"},
		{open, "http://[::ffff:127.0.0.1]:7799", "10.0.0.5", "is this host"},
		{open, "http://localhost:7799", "10.0.0.5", "is this host"},
		{open, "http://169.254.169.254", "10.0.0.5", "no address of a host"},
		{open, "http://169.254.169.254", "127.0.0.1", "no address of a host"},
		{open, "http://[::ffff:169.254.169.254]:80", "10.0.0.5", "no address of a host"},
		{open, "http://[fe80::1]:7788", "10.0.0.5", "no address of a host"},
		{open, "http://[fd00:ec2::254]", "10.0.0.5", "no address of a host"},
		{open, "http://100.100.100.200", "10.0.0.5", "no address of a host"},
		{open, "http://0.0.0.0:7788", "10.0.0.5", "no address of a host"},
		{open, "http://224.0.0.1:7788", "10.0.0.5", "no address of a host"},
		{open, "file:///etc/passwd", "10.0.0.5", "must be like"},
		{open, "gopher://10.0.0.5", "10.0.0.5", "must be like"},
		{open, "http://", "10.0.0.5", "must be like"},
		{open, "http://u:p@10.0.0.5", "10.0.0.5", "no user"},
		{open, "http://10.0.0.5/admin", "10.0.0.5", "no user, path"},
		{open, "http://10.0.0.5?x=", "10.0.0.5", "query"},
		{listed, "http://10.1.0.5:7788", "10.1.0.5", ""},
		{listed, "http://10.2.0.5:7788", "10.2.0.5", "--node-networks"},
		{listed, "http://169.254.169.254", "10.2.0.5", "--node-networks"},
		{withTLS, "http://10.0.0.5:7788", "10.0.0.5", "--tls-ca"},
		{withTLS, "https://10.0.0.5:7788", "10.0.0.5", ""},
		{withTLS, "http://127.0.0.1:7788", "127.0.0.1", ""},
	} {
		err := c.r.mayDial(c.url, c.from)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s from %s: got %v, want %q", c.url, c.from, err, c.want)
		}
	}
}

func TestNamesAreHeldToTheSameOnceTheyAreResolvedAndRedirectsAreNotFollowed(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		asked = append(asked, req.URL.Path)
		http.Redirect(w, req, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	call := func(r *Replica, url string) error {
		c := newNodeCaller(r.nodeTransport(), time.Now)
		defer c.close()
		return c.call(t.Context(), url, "secret", http.MethodGet, "/v1/vms", "", nil, nil)
	}
	if err := call(&Replica{}, server.URL); err == nil || len(asked) != 1 || asked[0] != "/v1/vms" {
		t.Errorf("a redirect: got %v, asked %v", err, asked)
	}
	far := &Replica{cfg: Config{NodeNetworks: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}}
	asked = nil
	for _, host := range []string{"127.0.0.1", "localhost"} {
		if err := call(far, strings.Replace(server.URL, "127.0.0.1", host, 1)); err == nil || !strings.Contains(err.Error(), "--node-networks") || len(asked) > 0 {
			t.Errorf("%s: got %v, asked %v", host, err, asked)
		}
	}
}

func TestAPageOfAnotherSiteIsRefused(t *testing.T) {
	scenario(t, 4, func(t *testing.T, r *rig) {
		lead := r.leader()
		for _, c := range []struct {
			method, site string
			want         int
		}{{"POST", "cross-site", 403}, {"POST", "same-origin", 400}, {"GET", "cross-site", 200}} {
			got := r.call(lead, c.method, "/fleet/vms", map[bool]any{true: body{"nonsense": 1}, false: nil}[c.method == "POST"], "Sec-Fetch-Site", c.site)
			if got.status != c.want {
				t.Errorf("%s from %s: got %s, want %d", c.method, c.site, got, c.want)
			}
		}
	})
}
