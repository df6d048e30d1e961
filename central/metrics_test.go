package central

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// TestMetricsFromAnotherHostNeedAToken asks a replica that runs on real ports as callers from here and from elsewhere do.
func TestMetricsFromAnotherHostNeedAToken(t *testing.T) {
	const token = "fvx_op_of_the_metrics_test"
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
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
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
	deadline := time.Now().Add(time.Minute)
	for ask("GET", "/readyz", "127.0.0.1", "", "").Code != http.StatusOK {
		if time.Now().After(deadline) {
			t.Fatal("the replica does not get ready")
		}
		<-time.After(20 * time.Millisecond)
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
