package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// replica answers with a script, one step a request, the last step for ever after.
type replica struct {
	mu    sync.Mutex
	seen  []seen
	steps []http.HandlerFunc
}

type seen struct{ Method, URL, Key, Auth string }

func (r *replica) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	_, _ = io.Copy(io.Discard, req.Body)
	r.mu.Lock()
	r.seen = append(r.seen, seen{req.Method, req.URL.RequestURI(), req.Header.Get(api.HeaderIdempotencyKey), req.Header.Get("Authorization")})
	step := r.steps[min(len(r.seen), len(r.steps))-1]
	r.mu.Unlock()
	step(w, req)
}

func (r *replica) requests() []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.seen)
}

func answer(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the reader may be gone
	}
}

func refuse(e *api.Error) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		answer(e.Code.Status(), e.Filled("req-1"))(w, req)
	}
}

// loseAnswer takes the request and breaks the connection.
func loseAnswer(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func serve(t *testing.T, steps ...http.HandlerFunc) (*replica, string) {
	t.Helper()
	r := &replica{steps: steps}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, s.URL
}

func deadURL(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return "http://" + l.Addr().String()
}

func newClient(t *testing.T, endpoints ...string) *Client {
	t.Helper()
	c, err := New(Config{Endpoints: endpoints, Token: "fvx_test"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// wire carries requests inside a synctest bubble.
type wire func(*http.Request) (*http.Response, error)

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) { return w(r) }

func onWire(h http.Handler) wire {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body == nil {
			r.Body = http.NoBody
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	}
}

func wired(t *testing.T, w wire, endpoints ...string) *Client {
	t.Helper()
	c, err := New(Config{Endpoints: endpoints, HTTPClient: &http.Client{Transport: w}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var vm1 = api.VM{ID: "11111111-1111-4111-8111-111111111111", Name: "build-1", State: api.StateRunning}

func TestDeadReplicaIsPassedAndTheAnsweringOneRemembered(t *testing.T) {
	alive, url := serve(t, answer(200, vm1))
	c := newClient(t, deadURL(t), url)
	for range 2 {
		got, err := c.VM(t.Context(), "build-1")
		if err != nil || got.ID != vm1.ID {
			t.Fatalf("got %v, %v", got.ID, err)
		}
	}
	if got := c.caller.current.Load(); got != 1 {
		t.Errorf("the client would begin at endpoint %d, want 1", got)
	}
	want := seen{"GET", "/fleet/vms/build-1", "", "Bearer fvx_test"}
	if diff := cmp.Diff([]seen{want, want}, alive.requests()); diff != "" {
		t.Error(diff)
	}
}

func TestElectionIsWaitedOutUnderOneKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noLeader := refuse(api.Errorf(api.CodeNotLeader, "no leader yet; try again"))
		r := &replica{steps: slices.Concat(slices.Repeat([]http.HandlerFunc{noLeader}, 12), []http.HandlerFunc{answer(201, api.LaunchAnswer{VM: vm1})})}
		c := wired(t, onWire(r), "http://a", "http://b", "http://c")
		began := time.Now()
		got, replayed, err := c.Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{})
		if err != nil || got.VM.ID != vm1.ID || replayed {
			t.Fatalf("got %v, replayed %v, %v", got.VM.ID, replayed, err)
		}
		if took := time.Since(began); took < 4*time.Second || took > 15*time.Second {
			t.Errorf("four rounds that each ask for 1 s took %v", took)
		}
		keys := map[string]bool{}
		for _, s := range r.requests() {
			keys[s.Key] = true
		}
		if len(r.requests()) != 13 || len(keys) != 1 || keys[""] {
			t.Errorf("%d requests under keys %v, want 13 under one", len(r.requests()), keys)
		}
	})
}

func TestRateLimitIsObeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := api.Errorf(api.CodeRateLimited, "slow down")
		limited.RetryAfterSecs = 7
		r := &replica{steps: []http.HandlerFunc{refuse(limited), answer(200, vm1)}}
		began := time.Now()
		if _, err := wired(t, onWire(r), "http://a", "http://b").VM(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 7*time.Second {
			t.Errorf("asked again after %v, want 7 s", took)
		}
	})
}

func TestLostAnswerIsAskedForAgainUnderTheSameKey(t *testing.T) {
	broken, first := serve(t, loseAnswer)
	whole, second := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderReplayed, "true")
		answer(201, api.LaunchAnswer{VM: vm1})(w, r)
	})
	_, replayed, err := newClient(t, first, second).Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{Key: "k-1"})
	if err != nil || !replayed {
		t.Fatalf("replayed %v, %v", replayed, err)
	}
	want := []seen{{"POST", "/fleet/vms", "k-1", "Bearer fvx_test"}}
	if diff := cmp.Diff(want, broken.requests()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, whole.requests()); diff != "" {
		t.Error(diff)
	}
}

func TestOutcomeUnknownIsRepeatedOnlyUnderAKey(t *testing.T) {
	lost := refuse(api.Errorf(api.CodeOutcomeUnknown, "the leader went away"))
	_, url := serve(t, lost, answer(201, api.LaunchAnswer{VM: vm1}))
	if _, _, err := newClient(t, url).Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{}); err != nil {
		t.Errorf("a launch under a key was not repeated: %v", err)
	}
	for name, step := range map[string]http.HandlerFunc{"504": lost, "lost answer": loseAnswer} {
		t.Run(name, func(t *testing.T) {
			r, url := serve(t, step, answer(200, api.ExecAnswer{ExitCode: 3}))
			got, err := newClient(t, url).Exec(t.Context(), "x", api.ExecRequest{Argv: []string{"reboot"}})
			if asked := r.requests(); err != nil || got.ExitCode != 3 || len(asked) != 2 || asked[0].Key == "" || asked[0].Key != asked[1].Key {
				t.Errorf("got %+v, %v after %v, want a command repeated under its key", got, err, asked)
			}
			host, url := serve(t, step, answer(200, api.ExecAnswer{}))
			h, err := NewHost(Config{Endpoints: []string{url}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := h.Exec(t.Context(), "x", api.ExecRequest{Argv: []string{"reboot"}}); !errors.Is(err, &api.Error{Code: api.CodeOutcomeUnknown}) || len(host.requests()) != 1 {
				t.Errorf("got %v after %d requests, want outcome_unknown after 1", err, len(host.requests()))
			}
			host, url = serve(t, step, answer(200, api.Machine{}))
			if h, err = NewHost(Config{Endpoints: []string{url}}); err != nil {
				t.Fatal(err)
			}
			if err := h.Restart(t.Context(), "x"); !errors.Is(err, &api.Error{Code: api.CodeOutcomeUnknown}) || len(host.requests()) != 1 {
				t.Errorf("got %v after %d requests, want outcome_unknown after 1", err, len(host.requests()))
			}
		})
	}
}

// A connection that the server closed while idle makes net/http itself send requests with a key again.
func TestExecIsNotRepeatedOnAReusedConnection(t *testing.T) {
	r, url := serve(t, answer(200, api.Machine{}), loseAnswer)
	c, err := NewHost(Config{Endpoints: []string{url}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.HostMemory(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Exec(t.Context(), "x", api.ExecRequest{Argv: []string{"reboot"}}); err == nil {
		t.Error("the answer was lost and nothing said so")
	}
	if n := len(r.requests()); n != 2 {
		t.Errorf("%d requests came, want one read and one exec", n)
	}
}

func TestExecThatWasNotAppliedIsSentAgain(t *testing.T) {
	r, url := serve(t, refuse(api.Errorf(api.CodeNotLeader, "no leader")), answer(200, api.ExecAnswer{ExitCode: 3}))
	got, err := newClient(t, url).Exec(t.Context(), "x", api.ExecRequest{Argv: []string{"false"}})
	if err != nil || got.ExitCode != 3 || len(r.requests()) != 2 {
		t.Errorf("got %+v, %v after %d requests", got, err, len(r.requests()))
	}
}

func TestDeleteWhoseAnswerWasLostIsDoneWhenNothingIsLeft(t *testing.T) {
	gone := refuse(api.Errorf(api.CodeNotFound, "no such VM"))
	_, url := serve(t, loseAnswer, gone)
	if err := newClient(t, url).DeleteVM(t.Context(), "x"); err != nil {
		t.Errorf("got %v, want success", err)
	}
	_, url = serve(t, gone)
	if err := newClient(t, url).DeleteVM(t.Context(), "x"); !IsNotFound(err) {
		t.Errorf("got %v, want not_found", err)
	}
}

func TestRefusalsKeepTheirCodeAndFacts(t *testing.T) {
	full := api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes")
	full.Reasons = map[string]int{"label": 2}
	r, url := serve(t, refuse(full))
	_, _, err := newClient(t, url).Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{})
	var got *api.Error
	if !errors.As(err, &got) {
		t.Fatalf("got %T, want *api.Error", err)
	}
	if diff := cmp.Diff(full.Filled("req-1"), got); diff != "" {
		t.Error(diff)
	}
	if n := len(r.requests()); n != 1 {
		t.Errorf("no_capacity was asked for %d times, want 1: when to try again is the caller's choice", n)
	}
}

func TestAnswersOfOtherServersBecomeTheNearestCode(t *testing.T) {
	for status, want := range map[int]api.Code{401: api.CodeUnauthenticated, 404: api.CodeNotFound, 413: api.CodeTooLarge, 418: api.CodeInternal} {
		_, url := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<h1>proxy</h1>", status) })
		_, err := newClient(t, url).Cluster(t.Context())
		var e *api.Error
		if !errors.As(err, &e) || e.Code != want || !strings.Contains(e.Detail, "proxy") || !strings.Contains(e.Detail, "check that the address") {
			t.Errorf("status %d: got %v, want %s with the text and what to check", status, err, want)
		}
	}
}

func TestNobodyThereNamesTheEndpointsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := wire(func(*http.Request) (*http.Response, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		})
		c := wired(t, refused, "http://a:1", "http://b:2")
		began := time.Now()
		_, err := c.CreatePool(t.Context(), api.PoolRequest{Name: "p", Image: "tiny"}, "")
		var e *UnreachableError
		if !errors.As(err, &e) || e.Unknown || !errors.Is(err, &api.Error{Code: api.CodeUnavailable}) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("got %v", err)
		}
		if diff := cmp.Diff([]string{"http://a:1", "http://b:2"}, e.Tried); diff != "" {
			t.Error(diff)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %v to say that nobody is there", took)
		}
	})
}

func TestSilentReplicaIsGivenUpForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		healthy := onWire(answer(201, api.LaunchAnswer{VM: vm1}))
		c := wired(t, func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "hung" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return healthy(r)
		}, "http://hung", "http://alive")
		if _, _, err := c.Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestTimeoutBoundsAllTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &replica{steps: []http.HandlerFunc{refuse(api.Errorf(api.CodeNotLeader, "no leader"))}}
		began := time.Now()
		_, err := wired(t, onWire(r), "http://a").Cluster(t.Context())
		if !errors.Is(err, &api.Error{Code: api.CodeNotLeader}) {
			t.Errorf("got %v, want the last refusal", err)
		}
		if took := time.Since(began); took < 50*time.Second || took > defaultTimeout {
			t.Errorf("tried for %v, want nearly %v", took, defaultTimeout)
		}
	})
}

func TestCancelEndsAtOnceAndIsTold(t *testing.T) {
	entered := make(chan struct{})
	_, url := serve(t, func(_ http.ResponseWriter, r *http.Request) { close(entered); <-r.Context().Done() })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	_, err := newClient(t, url).VM(ctx, "x")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want it to be context.Canceled", err)
	}
}

func TestRedirectsAreRefusedAndTheTokenStays(t *testing.T) {
	other, elsewhere := serve(t, answer(200, vm1))
	_, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
	})
	_, err := newClient(t, url).VM(t.Context(), "x")
	if err == nil || !strings.Contains(err.Error(), "not followed") || len(other.requests()) != 0 {
		t.Errorf("got %v, and %d requests elsewhere", err, len(other.requests()))
	}
}

func TestAnswersAreBounded(t *testing.T) {
	_, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, maxAnswer+1)) // the reader stops early
	})
	if _, err := newClient(t, url).VMConsole(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "16 MiB") {
		t.Errorf("got %v, want a refusal that names 16 MiB", err)
	}
}

func TestTrustGoesByTheGivenCA(t *testing.T) {
	s := httptest.NewTLSServer(answer(200, vm1))
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	c, err := New(Config{Endpoints: []string{s.URL}, CACertPEM: ca})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.VM(t.Context(), "x"); err != nil {
		t.Errorf("with the server's CA: %v", err)
	}
	_, err = newClient(t, s.URL).VM(t.Context(), "x")
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) || !errors.Is(err, &api.Error{Code: api.CodeUnavailable}) {
		t.Errorf("without it: got %v, want an unknown authority and nothing applied", err)
	}
}

func TestAConnectionThatNeverWorksSaysWhatToChange(t *testing.T) {
	plain, secure := httptest.NewServer(answer(200, vm1)), httptest.NewUnstartedServer(answer(200, vm1))
	defer plain.Close()
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	secure.StartTLS()
	defer secure.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	_, port, _ := net.SplitHostPort(secure.Listener.Addr().String())
	for _, c := range []struct {
		endpoint string
		ca       []byte
		want     string
	}{
		{"https" + strings.TrimPrefix(plain.URL, "http"), nil, "begin the address with http://"},
		{"http" + strings.TrimPrefix(secure.URL, "https"), nil, "begin the address with https://"},
		{secure.URL, nil, "FLUXVM_CA_CERT"},
		{secure.URL, ca, "FLUXVM_CLIENT_CERT"},
		{"https://localhost:" + port, ca, "an address that its certificate names"},
	} {
		cl, err := New(Config{Endpoints: []string{c.endpoint}, CACertPEM: c.ca})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cl.VM(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want advice: %s", c.endpoint, err, c.want)
		}
	}
}

func TestWhatOneReplicaSaysIsToldWhereOthersAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		follower := onWire(&replica{steps: []http.HandlerFunc{refuse(api.Errorf(api.CodeNotLeader, "no leader"))}})
		c := wired(t, func(r *http.Request) (*http.Response, error) {
			if r.URL.Host == "hung" {
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			return follower(r)
		}, "http://hung", "http://follower")
		if _, err := c.VM(t.Context(), "x"); !errors.Is(err, &api.Error{Code: api.CodeNotLeader}) {
			t.Errorf("got %v, want what the follower says", err)
		}
		var e *UnreachableError
		if _, _, err := c.Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{}); !errors.As(err, &e) || !e.Unknown {
			t.Errorf("got %v, want that the launch may have been carried out", err)
		}
	})
}

func TestNamesStayOneSegmentOfThePath(t *testing.T) {
	r, url := serve(t, answer(200, vm1))
	for _, name := range []string{"a/b", "..", "x?y", "ü"} {
		if _, err := newClient(t, url).VM(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, s := range r.requests() {
		got = append(got, s.URL)
	}
	want := []string{"/fleet/vms/a%2Fb", "/fleet/vms/%00", "/fleet/vms/x%3Fy", "/fleet/vms/%C3%BC"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
