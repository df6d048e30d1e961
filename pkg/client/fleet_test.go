package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// listServer pages through n VMs, three at a time.
func listServer(t *testing.T, n int) (*replica, string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		from := 0
		if c := r.URL.Query().Get("cursor"); c != "" {
			if _, err := fmt.Sscanf(c, "c%d", &from); err != nil {
				t.Errorf("cursor %q came back changed", c)
			}
		}
		var page api.List[api.VM]
		for i := from; i < min(from+3, n); i++ {
			page.Items = append(page.Items, api.VM{ID: fmt.Sprint(i)})
		}
		if from+3 < n {
			next := fmt.Sprintf("c%d", from+3)
			page.NextCursor = &next
		}
		answer(200, page)(w, r)
	})
}

func TestListsReadAllPages(t *testing.T) {
	for _, n := range []int{0, 1, 3, 7} {
		_, url := listServer(t, n)
		got, err := All(newClient(t, url).VMs(t.Context(), Filter{}))
		if err != nil || len(got) != n {
			t.Errorf("got %d of %d, %v", len(got), n, err)
		}
	}
}

func TestListsStopWhenTheReaderDoes(t *testing.T) {
	r, url := listServer(t, 9)
	for range newClient(t, url).VMs(t.Context(), Filter{}) {
		break
	}
	if n := len(r.requests()); n != 1 {
		t.Errorf("%d pages were read for one item, want 1", n)
	}
}

func TestListsGiveTheirErrorLast(t *testing.T) {
	next := "c1"
	_, url := serve(t, answer(200, api.List[api.VM]{Items: []api.VM{vm1}, NextCursor: &next}), refuse(api.Errorf(api.CodeForbidden, "no")))
	var ids []string
	var last error
	for vm, err := range newClient(t, url).VMs(t.Context(), Filter{}) {
		ids, last = append(ids, vm.ID), err
	}
	if !errors.Is(last, &api.Error{Code: api.CodeForbidden}) || !slices.Equal(ids, []string{vm1.ID, ""}) {
		t.Errorf("got %v, then %v", ids, last)
	}
}

func TestFiltersAndTheTenantGoIntoTheQuery(t *testing.T) {
	r, url := serve(t, answer(200, api.List[api.VM]{}))
	c, err := New(Config{Endpoints: []string{url + "/"}, Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := All(c.VMs(t.Context(), Filter{Pool: "ci", Labels: map[string]string{"b": "2", "a": "1"}, PageSize: 50, Stale: true})); err != nil {
		t.Fatal(err)
	}
	want := "/fleet/vms?label=a%3D1&label=b%3D2&limit=50&pool=ci&stale=true&tenant=acme"
	if got := r.requests()[0].URL; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAnOperatorLaunchesForItsTenant(t *testing.T) {
	var bodies []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Tenant string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		bodies = append(bodies, body.Tenant)
		answer(201, struct{}{})(w, r)
	}))
	defer s.Close()
	c, err := New(Config{Endpoints: []string{s.URL}, Tenant: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	_, _, err1 := c.Launch(t.Context(), api.LaunchRequest{Image: "tiny"}, LaunchOptions{})
	_, _, err2 := c.Launch(t.Context(), api.LaunchRequest{Image: "tiny", Tenant: "other"}, LaunchOptions{})
	_, err3 := c.CreatePool(t.Context(), api.PoolRequest{Name: "p", Image: "tiny"}, "")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"acme", "other", "acme"}, bodies); diff != "" {
		t.Error(diff)
	}
}

func TestEventsResumeOnAnotherReplica(t *testing.T) {
	part := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, text)
		}
	}
	var asked []string
	note := func(h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			asked = append(asked, r.URL.Query().Get("from")+"|"+r.Header.Get("Last-Event-ID"))
			h(w, r)
		}
	}
	event := func(id, name string) string {
		return ": beat\nid: " + id + "\nevent: vm\ndata: {\"action\":\"created\",\ndata: \"object\":{\"name\":\"" + name + "\"}}\n\n"
	}
	_, first := serve(t, note(part(event("7.0", "a")+event("8.0", "b")+"id: 9.0\nevent: vm\ndata: {\"half")))
	_, second := serve(t, note(part(event("9.0", "c"))), note(refuse(api.Errorf(api.CodeCursorGone, "too old"))))
	var got []string
	var last error
	for e, err := range newClient(t, first, second, second+"/").Events(t.Context(), FromNow) {
		if err != nil {
			last = err
			break
		}
		got = append(got, e.ID+" "+e.Kind+" "+e.Action+" "+string(e.Object))
		if e.ID == "9.0" {
			break
		}
	}
	want := []string{`7.0 vm created {"name":"a"}`, `8.0 vm created {"name":"b"}`, `9.0 vm created {"name":"c"}`}
	if diff := cmp.Diff(want, got); diff != "" || last != nil {
		t.Error(diff, last)
	}
	if diff := cmp.Diff([]string{"now|", "|8.0"}, asked); diff != "" {
		t.Error(diff)
	}
}

func TestEventsEndWhenTheCursorIsGone(t *testing.T) {
	_, url := serve(t, refuse(api.Errorf(api.CodeCursorGone, "too old")))
	for e, err := range newClient(t, url).Events(t.Context(), "3.1") {
		if !errors.Is(err, &api.Error{Code: api.CodeCursorGone}) {
			t.Errorf("got %v, %v", e, err)
		}
	}
}

func TestConfigComesFromTheEnvironment(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	ca := filepath.Join(dir, "ca.pem")
	for file, text := range map[string]string{token: "fvx_file\n", ca: "-----BEGIN CERTIFICATE-----\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(EnvFleetURL, "http://a:1, http://b:2,")
	t.Setenv(EnvToken, "")
	t.Setenv(EnvTokenFile, token)
	t.Setenv(EnvCACert, ca)
	got, err := ConfigFromEnv()
	if err != nil {
		t.Fatal(err)
	}
	want := Config{Endpoints: []string{"http://a:1", "http://b:2"}, Token: "fvx_file", CACertPEM: []byte("-----BEGIN CERTIFICATE-----\n")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	t.Setenv(EnvToken, "fvx_direct")
	if got, _ := ConfigFromEnv(); got.Token != "fvx_direct" {
		t.Errorf("token %q, want the variable to win over the file", got.Token)
	}
	t.Setenv(EnvToken, "")
	t.Setenv(EnvTokenFile, filepath.Join(dir, "absent"))
	if _, err := ConfigFromEnv(); err == nil || !strings.Contains(err.Error(), EnvTokenFile) {
		t.Errorf("got %v, want it to name %s", err, EnvTokenFile)
	}
}

func TestUselessConfigIsRefused(t *testing.T) {
	for name, cfg := range map[string]Config{
		"no scheme":       {Endpoints: []string{"127.0.0.1:7799"}},
		"user in URL":     {Endpoints: []string{"http://u:p@a"}},
		"token with line": {Token: "a\nb"},
		"no certificate":  {CACertPEM: []byte("hello")},
		"negative time":   {Timeout: -1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := NewHost(Config{Endpoints: []string{"http://a", "http://b"}}); err == nil {
		t.Error("two endpoints were taken for one host")
	}
	c, err := New(Config{})
	if err != nil || !slices.Equal(c.Endpoints(), []string{DefaultFleetURL}) {
		t.Errorf("got %v, %v, want the local fleet", c.Endpoints(), err)
	}
}
