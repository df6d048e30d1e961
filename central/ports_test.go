package central

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

// onRealPorts is a replica alone, with listeners and a disk, that is ready and ends with the test.
func onRealPorts(t *testing.T, token string) *Replica {
	t.Helper()
	open := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	r, err := New(Config{Name: "c1", Listener: open(), Cluster: open(), DataDir: t.TempDir(), Bootstrap: true, OperatorToken: token, ElectionTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		got := httptest.NewRecorder()
		if r.Handler().ServeHTTP(got, httptest.NewRequest("GET", "/readyz", nil)); got.Code == http.StatusOK {
			return r
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica does not get ready: %s", got.Body)
		}
	}
}

// TestABodyThatDoesNotComeEndsTheConnection: whatever is asked, and whether or not anybody reads the body. What takes long
// for other reasons goes on.
func TestABodyThatDoesNotComeEndsTheConnection(t *testing.T) {
	const token = "fvx_op_of_the_slow_test"
	r := onRealPorts(t, token)
	server := r.server(r.Handler())
	if server.ReadTimeout != guard.BodyTime || server.ReadHeaderTimeout == 0 || server.IdleTimeout == 0 {
		t.Errorf("the server's limits: %s, %s, %s", server.ReadTimeout, server.ReadHeaderTimeout, server.IdleTimeout)
	}
	server.ReadTimeout = 300 * time.Millisecond
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	defer func() { _ = server.Close(); <-served }()
	ask := func(head, bearer, body string) net.Conn {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, head+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+bearer+"\r\n"+body); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for name, conn := range map[string]net.Conn{
		"a launch":           ask("POST /fleet/vms", token, "Content-Length: 1000\r\n\r\n{"),
		"of a stranger":      ask("POST /fleet/vms", "wrong", "Content-Length: 1000\r\n\r\n{"),
		"to no route":        ask("POST /nowhere", token, "Content-Length: 1000\r\n\r\n{"),
		"a page of others'":  ask("POST /fleet/vms", token, "Origin: https://evil.example\r\nContent-Length: 1000\r\n\r\n{"),
		"in parts":           ask("POST /fleet/vms", token, "Transfer-Encoding: chunked\r\n\r\n5\r\n{"),
		"a stranger's state": ask("POST "+restorePath, "wrong", "Content-Length: 1000\r\n\r\n{"),
	} {
		if answer, err := io.ReadAll(conn); err != nil { // a deadline that passes here: it is open for ever
			t.Errorf("%s: got %v after %.60q", name, err, answer)
		}
	}
	got, err := http.ReadResponse(bufio.NewReader(ask("GET /fleet/vms?wait=1s&index=1000000", token, "\r\n")), nil)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Errorf("a read that waits for longer: got %v, %v", got, err)
	}
	conn := ask("POST "+restorePath, token, "Content-Length: 6\r\n\r\n")
	for range 6 {
		<-time.After(100 * time.Millisecond)
		if _, err := io.WriteString(conn, "x"); err != nil {
			t.Fatal(err)
		}
	}
	got, err = http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || got.StatusCode != http.StatusBadRequest {
		t.Fatalf("a backup that comes slowly: got %v, %v", got, err)
	}
	if said, err := io.ReadAll(got.Body); err != nil || strings.Contains(string(said), "timeout") {
		t.Errorf("a backup that comes slowly: got %s, %v", said, err)
	}
}

// TestMetricsFromAnotherHostNeedAToken asks a replica that runs on real ports as callers from here and from elsewhere do.
func TestMetricsFromAnotherHostNeedAToken(t *testing.T) {
	const token = "fvx_op_of_the_metrics_test"
	r := onRealPorts(t, token)
	ask := func(method, path, from, bearer, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, strings.NewReader(body))
		req.RemoteAddr = from + ":4711"
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
		}
		got := httptest.NewRecorder()
		r.Handler().ServeHTTP(got, req)
		return got
	}
	made := ask("POST", "/fleet/operator-keys", "127.0.0.1", token, `{"role":"viewer"}`)
	var viewer api.Key
	if err := json.Unmarshal(made.Body.Bytes(), &viewer); err != nil || viewer.Secret == "" {
		t.Fatalf("making a key: %v, %s", err, made.Body)
	}
	for _, c := range []struct {
		from, bearer string
		want         int
	}{
		{"127.0.0.1", "", 200}, {"[::1]", "", 200}, {"[::ffff:127.0.0.1]", "", 200},
		{"192.0.2.7", "", 401}, {"192.0.2.7", "fvx_wrong", 401}, {"[2001:db8::7]", "", 401},
		{"192.0.2.7", token, 200}, {"192.0.2.7", viewer.Secret, 200},
	} {
		if got := ask("GET", "/metrics", c.from, c.bearer, ""); got.Code != c.want {
			t.Errorf("from %s with token %q: got %d, want %d", c.from, c.bearer, got.Code, c.want)
		}
	}
	for _, header := range []string{"X-Forwarded-For", headerFrom} { // what a caller says of itself counts for nothing
		req := httptest.NewRequest("GET", "/metrics", nil)
		req.RemoteAddr = "192.0.2.7:4711"
		req.Header.Set(header, "127.0.0.1")
		got := httptest.NewRecorder()
		if r.Handler().ServeHTTP(got, req); got.Code != http.StatusUnauthorized {
			t.Errorf("with %s: got %d", header, got.Code)
		}
	}
}
