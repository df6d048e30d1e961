package fleettest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// macFleet is three replicas and hosts of which the first pose as Macs.
type macFleet struct {
	*Fleet
	*client.Client // the operator's, through every replica
	t              *testing.T
	ctx            context.Context
}

func startMacs(t *testing.T, nodes, macs int) *macFleet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	f, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: nodes, Macs: macs, PoolInterval: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := f.Stop(); err != nil {
			t.Errorf("stopping the fleet: %v", err)
		}
	})
	m := &macFleet{Fleet: f, t: t, ctx: ctx}
	m.Client = m.as(f.Token, f.URLs()...)
	return m
}

// as is a client of the token's bearer.
func (m *macFleet) as(token string, urls ...string) *client.Client {
	m.t.Helper()
	transport := &http.Transport{}
	m.t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(client.Config{Endpoints: urls, Token: token, HTTPClient: &http.Client{Transport: transport}})
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// onNode asks a host itself and gives status and body.
func (m *macFleet) onNode(i int, method, path string, body any) (int, []byte) {
	m.t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		m.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(m.ctx, method, m.NodeURLs()[i]+path, bytes.NewReader(raw))
	if err != nil {
		m.t.Fatal(err)
	}
	if body == nil {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	req.Header.Set("Authorization", "Bearer "+m.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.StatusCode, got
}

// machines are the VMs that a host itself says it has.
func (m *macFleet) machines(i int) (items []api.Machine) {
	m.t.Helper()
	_, raw := m.onNode(i, http.MethodGet, "/v1/vms", nil)
	var list api.List[api.Machine]
	if err := json.Unmarshal(raw, &list); err != nil {
		m.t.Fatalf("%v: %s", err, raw)
	}
	return list.Items
}

func (m *macFleet) launch(c *client.Client, req api.LaunchRequest) (api.LaunchAnswer, error) {
	got, _, err := c.Launch(m.ctx, req, client.LaunchOptions{Key: "key-" + req.Name})
	return got, err
}

func (m *macFleet) addImage(req api.ImageRequest) {
	m.t.Helper()
	if _, err := m.CreateImage(m.ctx, req, ""); err != nil {
		m.t.Fatal(err)
	}
}

var macImage = api.ImageRequest{Name: "macos", Path: "sim:?boot_ms=20&agent_ms=20", GuestOS: api.GuestMacOS, VCPUs: 2, MemoryMiB: 4096, HasAgent: true}

// Real daemons that pose as Macs, three real replicas, and asks at all of them at once.
func TestNoMacGetsAThirdGuestThroughWhicheverReplica(t *testing.T) {
	m := startMacs(t, 3, 2)
	m.addImage(macImage)
	const asks = 24
	var all sync.WaitGroup
	results := make(chan error, asks)
	for i := range asks {
		one := m.as(m.Token, m.URLs()[i%3])
		all.Go(func() {
			_, err := m.launch(one, api.LaunchRequest{Name: fmt.Sprint("mac-", i), Image: "macos"})
			results <- err
		})
	}
	all.Wait()
	made := 0
	for range asks {
		var refused *api.Error
		switch err := <-results; {
		case err == nil:
			made++
		case !errors.As(err, &refused) || refused.Code != api.CodeNoCapacity || refused.Reasons[api.WhyMacOSLimit] != 2:
			t.Errorf("got %v, want both Macs at their limit", err)
		}
	}
	if made != 2*api.MacOSPerHost {
		t.Errorf("%d guests run on two Macs", made)
	}
	for i := range 2 {
		if n := len(m.machines(i)); n != api.MacOSPerHost {
			t.Errorf("Mac %d says that it has %d guests", i, n)
		}
		// The host itself refuses a third, whoever asks it.
		if status, raw := m.onNode(i, http.MethodPost, "/v1/vms", map[string]any{"id": fmt.Sprintf("0c1d2e3f-0000-4000-8000-00000000000%d", i), "image": macImage.Path, "guest_os": "macos", "memory_mib": 4096}); status != http.StatusConflict {
			t.Errorf("Mac %d answers %d: %s", i, status, raw)
		}
	}
	if n := len(m.machines(2)); n != 0 {
		t.Errorf("the host that is no Mac has %d", n)
	}
	// A place that becomes free is one place.
	if err := m.DeleteVM(m.ctx, m.machines(0)[0].ID); err != nil {
		t.Fatal(err)
	}
	eventually(m.ctx, t, "for a place on the first Mac", func() bool {
		_, err := m.launch(m.Client, api.LaunchRequest{Name: "late", Image: "macos"})
		return err == nil
	})
	if _, err := m.launch(m.Client, api.LaunchRequest{Name: "too-late", Image: "macos"}); !errors.Is(err, &api.Error{Code: api.CodeNoCapacity}) {
		t.Errorf("got %v", err)
	}
}

func TestAMacsMemoryPressureSteersPlacement(t *testing.T) {
	m := startMacs(t, 2, 2)
	m.addImage(macImage)
	press := func(i int, level string) {
		t.Helper()
		if status, raw := m.onNode(i, http.MethodPatch, "/v1/sim", map[string]any{"pressure_level": level}); status != http.StatusOK {
			t.Fatalf("%d: %s", status, raw)
		}
		for _, url := range m.URLs() { // whichever replica leads
			one := m.as(m.Token, url)
			eventually(m.ctx, t, "for the level to be heard", func() bool {
				n, err := one.Node(m.ctx, fmt.Sprint("node-", i+1))
				return err == nil && n.Density.HostPressureLevel != nil && *n.Density.HostPressureLevel == level
			})
		}
	}
	where := func(name string) string {
		t.Helper()
		got, err := m.launch(m.Client, api.LaunchRequest{Name: name, Image: "macos"})
		if err != nil {
			t.Fatal(err)
		}
		return got.Node
	}
	press(0, api.PressureWarn)
	press(1, api.PressureNormal)
	if got := where("a"); got != "node-2" {
		t.Errorf("with a warning on node-1 a guest went to %s", got)
	}
	press(1, api.PressureCritical)
	if got := where("b"); got != "node-1" {
		t.Errorf("with node-2 critical a guest went to %s", got)
	}
	press(0, api.PressureCritical)
	_, err := m.launch(m.Client, api.LaunchRequest{Name: "c", Image: "macos"})
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != api.CodeNoCapacity || refused.Reasons[api.WhyPressure] != 2 {
		t.Errorf("got %v, want both Macs under pressure", err)
	}
	press(0, api.PressureNormal)
	if got := where("d"); got != "node-1" {
		t.Errorf("with node-1 at ease again a guest went to %s", got)
	}
}

func TestAMacIsCleanBetweenTwoTenants(t *testing.T) {
	m := startMacs(t, 1, 1)
	m.addImage(macImage)
	if _, err := m.PatchPolicy(m.ctx, api.PolicyPatch{MinLeaseHours: api.Optional[int64]{Set: true}}); err != nil {
		t.Fatal(err)
	}
	tenants := map[string]*client.Client{}
	for _, name := range []string{"acme", "other"} {
		if _, err := m.CreateTenant(m.ctx, api.TenantRequest{Name: name}, ""); err != nil {
			t.Fatal(err)
		}
		key, err := m.CreateTenantKey(m.ctx, name, api.KeyRequest{Role: "tenant"}, "")
		if err != nil {
			t.Fatal(err)
		}
		tenants[name] = m.as(key.Secret, m.URLs()...)
	}
	left := filepath.Join(m.nodes[0].dir, "snapshots", "left-by-acme")
	lease := func(who string) api.Lease {
		t.Helper()
		got, err := tenants[who].CreateLease(m.ctx, api.LeaseRequest{Node: "node-1", Duration: "48h"}, "lease-"+who)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if _, err := m.launch(tenants["acme"], api.LaunchRequest{Name: "early", Image: "macos"}); err == nil {
		t.Error("a tenant without a lease runs a macOS guest")
	}
	l := lease("acme")
	if _, err := m.launch(tenants["acme"], api.LaunchRequest{Name: "secret", Image: "macos"}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.launch(tenants["other"], api.LaunchRequest{Name: "intruder", Image: "macos"}); err == nil {
		t.Error("a tenant runs a guest on the Mac that another leases")
	}
	if err := errors.Join(os.MkdirAll(left, 0o700), os.WriteFile(filepath.Join(left, "x"), []byte("acme's"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := tenants["acme"].DeleteVM(m.ctx, "secret"); err != nil {
		t.Fatal(err)
	}
	// While its scrub fails the Mac is nobody's.
	if status, raw := m.onNode(0, http.MethodPatch, "/v1/sim", map[string]any{"fail_scrub": "the disk is on fire"}); status != http.StatusOK {
		t.Fatalf("%d: %s", status, raw)
	}
	if _, err := tenants["acme"].EndLease(m.ctx, l.ID); err != nil {
		t.Fatal(err)
	}
	eventually(m.ctx, t, "for the scrub to fail", func() bool {
		got, err := m.Lease(m.ctx, l.ID)
		return err == nil && got.State == api.LeaseScrubFailed
	})
	if got, err := tenants["other"].CreateLease(m.ctx, api.LeaseRequest{Node: "node-1", Duration: "48h"}, "lease-too-early"); err == nil && got.State == api.LeaseActive {
		t.Errorf("a Mac that is not clean is leased: %+v", got)
	}
	if status, raw := m.onNode(0, http.MethodPatch, "/v1/sim", map[string]any{"fail_scrub": nil}); status != http.StatusOK {
		t.Fatalf("%d: %s", status, raw)
	}
	if _, err := m.ScrubNode(m.ctx, "node-1", client.ScrubOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(m.ctx, t, "for the Mac to be free", func() bool {
		got, err := m.Lease(m.ctx, l.ID)
		return err == nil && got.State == api.LeaseEnded
	})
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what acme left is there: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Join(m.nodes[0].dir, "vms")); err != nil || len(entries) > 0 {
		t.Errorf("of VMs there is left %v, %v", entries, err)
	}
	lease("other")
	if _, err := m.launch(tenants["other"], api.LaunchRequest{Name: "mine", Image: "macos"}); err != nil {
		t.Error(err)
	}
}

func TestAnImportedImageBootsOnTheHostsThatHaveIt(t *testing.T) {
	m := startMacs(t, 2, 2)
	source := filepath.Join(t.TempDir(), "mac.img")
	raw := append(make([]byte, 2<<20), "a disk"...)
	if err := os.WriteFile(source, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(raw))
	bring := func(digest string) (int, []byte) {
		return m.onNode(1, http.MethodPost, "/v1/images", api.ImportRequest{Name: "mac", From: source, Digest: digest})
	}
	if status, got := bring("sha256:" + fmt.Sprintf("%064d", 0)); status != http.StatusBadRequest {
		t.Errorf("another digest is answered with %d: %s", status, got)
	}
	local := macImage
	local.Path = api.LocalImage + "mac"
	m.addImage(local)
	if _, err := m.launch(m.Client, api.LaunchRequest{Name: "early", Image: "macos"}); !isNoImage(err) {
		t.Errorf("before any host has it: %v", err)
	}
	if status, got := bring(digest); status != http.StatusCreated {
		t.Fatalf("%d: %s", status, got)
	}
	var first api.LaunchAnswer
	eventually(m.ctx, t, "for the beat that tells of it", func() (ok bool) {
		var err error
		first, err = m.launch(m.Client, api.LaunchRequest{Name: "first", Image: "macos"})
		if err != nil && !isNoImage(err) {
			var refused *api.Error
			errors.As(err, &refused)
			t.Fatalf("%v: %v", err, refused.Reasons)
		}
		return err == nil
	})
	second, err := m.launch(m.Client, api.LaunchRequest{Name: "second", Image: "macos"})
	if err != nil || first.Node != "node-2" || second.Node != "node-2" {
		t.Errorf("it went to %s and %s (%v); only node-2 has the image", first.Node, second.Node, err)
	}
	// Through the host's own API, on the one that has it and on the other.
	direct := map[string]any{"id": "0c1d2e3f-0000-4000-8000-000000000001", "image": local.Path, "memory_mib": 512}
	if status, got := m.onNode(1, http.MethodPost, "/v1/vms", direct); status != http.StatusCreated {
		t.Errorf("%d: %s", status, got)
	}
	if status, got := m.onNode(0, http.MethodPost, "/v1/vms", direct); status != http.StatusBadRequest {
		t.Errorf("a host without it answers %d: %s", status, got)
	}
	_, got := m.onNode(1, http.MethodGet, "/v1/images", nil)
	var images api.List[api.HostImage]
	if err := json.Unmarshal(got, &images); err != nil || len(images.Items) != 1 || images.Items[0] != (api.HostImage{Path: local.Path, VMs: 3, Digest: digest, Bytes: int64(len(raw))}) {
		t.Errorf("got %s, %v", got, err)
	}
	if status, got := m.onNode(1, http.MethodDelete, "/v1/images/mac", nil); status != http.StatusConflict {
		t.Errorf("with VMs it is removed: %d: %s", status, got)
	}
	for _, vm := range m.machines(1) {
		if status, got := m.onNode(1, http.MethodDelete, "/v1/vms/"+vm.ID, nil); status != http.StatusNoContent && status != http.StatusOK && status != http.StatusAccepted {
			t.Errorf("%d: %s", status, got)
		}
	}
	eventually(m.ctx, t, "for the image to be removed", func() bool {
		status, _ := m.onNode(1, http.MethodDelete, "/v1/images/mac", nil)
		return status == http.StatusNoContent
	})
	for _, name := range []string{"first", "second"} {
		if err := m.DeleteVM(m.ctx, name); err != nil && !errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
			t.Error(err)
		}
	}
	eventually(m.ctx, t, "for the beat that it is gone", func() bool {
		dry, err := m.DryRun(m.ctx, api.LaunchRequest{Image: "macos"})
		return err == nil && dry.Reasons[api.WhyImage] == 2
	})
}

// isNoImage says whether no host has the image.
func isNoImage(err error) bool {
	var refused *api.Error
	return errors.As(err, &refused) && refused.Code == api.CodeNoCapacity && refused.Reasons[api.WhyImage] == 2
}
