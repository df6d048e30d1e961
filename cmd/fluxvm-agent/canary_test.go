package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// canaries are secrets by what they are, and the only files below the fleet's directory that may hold each.
type canary struct {
	value string
	files []string // prefixes of paths
}

// TestSecretsAreNowhereInClear puts one secret of each kind into a running fleet and then looks for all of them in
// everything that the fleet writes, shows or is started with. What docs/security.md lists as holding a secret may.
func TestSecretsAreNowhereInClear(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	f := startSecure(ctx, t, "trace")
	c := f.client(client.Config{})
	eventually(ctx, t, "the certificate of node-2", func() bool { _, err := os.Stat(f.path("data-node-2/certificate.pem")); return err == nil })
	raftLog := []string{"data-central-1/raft/", "data-central-2/raft/", "data-central-3/raft/"}
	canaries := map[string]canary{
		"operator token":         {f.token, []string{"operator-token"}},
		"join token":             {string(f.read("join-token")), []string{"join-token"}},
		"credential of node-1":   {strings.TrimSpace(string(f.read("data-node-1/credential"))), []string{"data-node-1/credential"}},
		"credential of node-2":   {strings.TrimSpace(string(f.read("data-node-2/credential"))), []string{"data-node-2/credential"}},
		"secret of a claim":      {"canary-claim-secret-5bd1", nil},
		"secret of a cold claim": {"canary-cold-secret-1e7f", nil},
		"environment of a claim": {"canary-claim-env-77aa", append([]string{"data-node-"}, raftLog...)},
		"file of cloud_init":     {"canary-cloud-init-90c3", append([]string{"data-node-"}, raftLog...)},
		"token that is refused":  {"fvx_canary_refused_token_4411", nil},
		"value that is refused":  {"canary-refused-value-0d02", nil},
	}
	for _, name := range []string{"ca-key.pem", "node-ca-key.pem", "certs/central-1-key.pem", "certs/node-1-key.pem", "data-node-2/certificate.pem"} {
		_, key, _ := strings.Cut(string(f.read(name)), "-----BEGIN PRIVATE KEY-----\n")
		line, _, _ := strings.Cut(key, "\n")
		if len(line) < 60 {
			t.Fatalf("%s holds no key", name)
		}
		canaries["key in "+name] = canary{line, []string{name}}
	}
	if _, err := c.CreateTenant(ctx, api.TenantRequest{Name: "acme"}, ""); err != nil {
		t.Fatal(err)
	}
	tenant, err := c.CreateTenantKey(ctx, "acme", api.KeyRequest{Role: "tenant"}, "key-of-the-tenant")
	if err != nil {
		t.Fatal(err)
	}
	viewer, err := c.CreateOperatorKey(ctx, api.KeyRequest{Role: "viewer"}, "")
	if err != nil {
		t.Fatal(err)
	}
	canaries["key of a tenant"], canaries["key of a viewer"] = canary{value: tenant.Secret}, canary{value: viewer.Secret}
	f.use(ctx, c, canaries)

	seen := f.everythingShown(ctx, c, canaries)
	for what, one := range canaries {
		for where, text := range seen {
			if bytes.Contains(text, []byte(one.value)) {
				t.Errorf("the %s is in %s", what, where)
			}
		}
	}
	f.inFiles(canaries, map[string]bool{})
	for _, name := range []string{"node-2", "node-1", "central-1", "central-2", "central-3"} { // what they write at their end
		f.stop(name)
	}
	found := map[string]bool{}
	f.inFiles(canaries, found)
	for _, what := range []string{"operator token", "join token", "credential of node-1", "key in ca-key.pem", "environment of a claim"} {
		if !found[what] {
			t.Errorf("the %s was not found where it is known to be: the search finds nothing", what)
		}
	}
}

// use makes the fleet work with the secrets, rightly and wrongly.
func (f *secureFleet) use(ctx context.Context, c *client.Client, canaries map[string]canary) {
	t := f.t
	t.Helper()
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "img", Path: "sim:?boot_ms=10&agent_ms=10", VCPUs: 1, MemoryMiB: 64, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	one := 1
	if _, err := c.CreatePool(ctx, api.PoolRequest{Name: "p", Image: "img", MinReady: &one}, ""); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "a spare", func() bool { s, err := c.PoolStatus(ctx, "p"); return err == nil && s.Ready == 1 })
	claim := func(secret string) *api.Claim {
		return &api.Claim{Env: map[string]string{"STAGE": canaries["environment of a claim"].value}, Secrets: map[string]string{"TOKEN": canaries[secret].value}}
	}
	for name, req := range map[string]api.LaunchRequest{
		"warm": {Pool: "p", Claim: claim("secret of a claim")},
		"cold": {Image: "img", Claim: claim("secret of a cold claim")},
		"init": {Image: "img", CloudInit: &api.CloudInit{WriteFiles: []api.CloudInitFile{{Path: "/etc/x", Content: canaries["file of cloud_init"].value}}}},
	} {
		req.Name = name
		for range 2 { // and its repeat
			if _, _, err := c.Launch(ctx, req, client.LaunchOptions{WaitReady: true, Key: "launch-" + name}); err != nil {
				t.Fatalf("launching %s: %v", name, err)
			}
		}
	}
	bad := canaries["token that is refused"].value
	for _, url := range append([]string{"https://" + f.nodes["node-1"], "https://" + f.nodes["node-2"]}, f.urls...) {
		f.ask(ctx, http.MethodGet, url+"/fleet/vms", bad, "")
		f.ask(ctx, http.MethodGet, url+"/v1/vms", bad, "")
	}
}

// ask gives the whole answer, headers and all.
func (f *secureFleet) ask(ctx context.Context, method, url, token, body string) []byte {
	f.t.Helper()
	var out bytes.Buffer
	resp, err := f.do(ctx, method, url, token, body)
	if err != nil {
		return []byte(err.Error())
	}
	defer resp.Body.Close()
	fmt.Fprintln(&out, resp.Status)
	if err := resp.Header.Write(&out); err != nil {
		f.t.Error(err)
	}
	if _, err := io.Copy(&out, io.LimitReader(resp.Body, 4<<20)); err != nil && ctx.Err() == nil {
		f.t.Errorf("%s %s: %v", method, url, err)
	}
	return out.Bytes()
}

func (f *secureFleet) do(ctx context.Context, method, url, token, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{TLSClientConfig: trusting(f.read("ca.pem")), DisableKeepAlives: true}
	transport.TLSClientConfig.InsecureSkipVerify = strings.Contains(url, f.nodes["node-2"]) // its certificate names no address
	return (&http.Client{Transport: transport}).Do(req)
}

// everythingShown is what the APIs answer, and what everyone on the host sees of the processes.
func (f *secureFleet) everythingShown(ctx context.Context, c *client.Client, canaries map[string]canary) map[string][]byte {
	t := f.t
	t.Helper()
	seen := map[string][]byte{}
	for _, url := range f.urls {
		for _, path := range []string{"/metrics", "/readyz", "/fleet/cluster", "/fleet/nodes", "/fleet/vms", "/fleet/pools", "/fleet/pools/p/status", "/fleet/images", "/fleet/tenants",
			"/fleet/tenants/acme/keys", "/fleet/operator-keys", "/fleet/policy", "/fleet/leases", "/fleet/ledger", "/fleet/usage", "/fleet/activity", "/fleet/capacity"} {
			seen[url+path] = f.ask(ctx, http.MethodGet, url+path, f.token, "")
		}
	}
	secret := canaries["value that is refused"].value
	for i, body := range []string{`{"name":` + secret, `{"nonsense":"` + secret + `"}`, `{"image":{"x":"` + secret + `"}}`, `{"image":"img","vcpus":"` + secret + `"}`, `{"image":"img","claim":{"secrets":{"a b":"` + secret + `"}}}`, secret} {
		got := f.ask(ctx, http.MethodPost, f.urls[0]+"/fleet/vms", f.token, body)
		if !bytes.HasPrefix(got, []byte("400")) {
			t.Errorf("body %d: got %.40s, want 400", i, got)
		}
		seen[fmt.Sprint("the refusal of body ", i)] = got
	}
	for name, node := range f.nodes {
		for _, path := range []string{"/metrics", "/v1/vms", "/v1/events", "/v1/sandboxes", "/v1/images", "/v1/sim/orders"} {
			got := f.ask(ctx, http.MethodGet, "https://"+node+path, f.token, "")
			if path == "/v1/vms" && !bytes.Contains(got, []byte(`"items"`)) {
				t.Errorf("%s%s: got %.200s", name, path, got)
			}
			seen[name+path] = got
		}
	}
	var backup bytes.Buffer
	eventually(ctx, t, "a backup without what guests were given", func() bool { // a launch's last command may be on its way
		backup.Reset()
		if _, err := c.Backup(ctx, &backup); err != nil {
			return false
		}
		return !bytes.Contains(backup.Bytes(), []byte(canaries["file of cloud_init"].value)) && !bytes.Contains(backup.Bytes(), []byte(canaries["environment of a claim"].value))
	})
	seen["the backup"] = backup.Bytes()
	var events bytes.Buffer
	short, stop := context.WithTimeout(ctx, 5*time.Second)
	defer stop()
	n := 0
	for e, err := range c.Events(short, "1.0") {
		if err != nil {
			if short.Err() == nil {
				t.Errorf("following the events: %v", err)
			}
			break
		}
		n++
		fmt.Fprintf(&events, "%s %s %s %s\n", e.ID, e.Kind, e.Action, e.Object)
	}
	if n < 10 {
		t.Errorf("only %d events were seen", n)
	}
	seen["the events"] = events.Bytes()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.procs {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.cmd.Process.Pid))
		if err == nil {
			seen["the command line of "+name] = raw
		} else if !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	return seen
}

// inFiles looks through every file of the fleet, logs and data directories among them.
func (f *secureFleet) inFiles(canaries map[string]canary, found map[string]bool) {
	f.t.Helper()
	err := filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was there a moment ago
		}
		if err != nil || d.IsDir() || !d.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		name, err := filepath.Rel(f.dir, path)
		if err != nil {
			return err
		}
	each:
		for what, one := range canaries {
			if !bytes.Contains(raw, []byte(one.value)) {
				continue
			}
			found[what] = true
			for _, may := range one.files {
				if strings.HasPrefix(name, may) {
					continue each
				}
			}
			f.t.Errorf("the %s is in %s", what, name)
		}
		return nil
	})
	if err != nil {
		f.t.Error(err)
	}
}
