package provider

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// testdata/v0 holds what the first version wrote into its state, and from which configuration; it never changes. A later version
// must read it and plan nothing. What a fleet gives out (ids, times, hosts) is put in for what it gave then.
func TestAccStateOfTheFirstVersionIsStillRead(t *testing.T) {
	f := leaseFleet(t, 9)
	ctx := t.Context()
	must[api.Image](t)(f.client.CreateImage(ctx, api.ImageRequest{Name: "v0-tiny", Path: f.image, VCPUs: 1, MemoryMiB: 128, HasAgent: true}, ""))
	must[api.Tenant](t)(f.client.CreateTenant(ctx, api.TenantRequest{Name: "v0-acme", Quota: api.Quota{MaxVMs: new(int64(4)), MaxPools: new(int64(0))}, MaxTTLSeconds: new(int64(7200))}, ""))
	key := must[api.Key](t)(f.client.CreateTenantKey(ctx, "v0-acme", api.KeyRequest{Role: api.RoleTenant, ExpiresInSecs: 30 * 24 * 3600}, ""))
	lease := must[api.Lease](t)(f.client.CreateLease(ctx, api.LeaseRequest{Tenant: "v0-acme", Node: f.hosts[0], Duration: "2h"}, ""))
	must[api.Pool](t)(f.client.CreatePool(ctx, api.PoolRequest{Name: "v0-ci", Image: "v0-tiny", MinReady: new(0), Nodes: []string{f.hosts[1]}}, ""))
	answer, _, err := f.client.Launch(ctx, api.LaunchRequest{Name: "v0-one", Image: "v0-tiny", Node: f.hosts[1], Labels: map[string]string{"team": "build"}}, client.LaunchOptions{WaitReady: true})
	if err != nil {
		t.Fatal(err)
	}
	must[api.Node](t)(f.client.PatchNode(ctx, f.hosts[1], api.NodePatch{Cordoned: api.Some(true), Reason: api.Some("kept as it is")}))

	w := f.newWorkdir(t, "testdata/v0")
	now := strings.NewReplacer("node-3", f.hosts[0], "node-4", f.hosts[1],
		"2ae9f147-a5fc-4a57-9f3e-d7c3cf9e02fd", key.ID, "01a2285f-031d-74d1-aa13-57cb960215c2", lease.ID, "01a2285f-0273-77d1-b813-68f1763f1fb0", answer.VM.ID,
		"2026-11-29T17:34:04.988Z", lease.StartsAt.String(), "2026-11-29T19:34:04.988Z", lease.EndsAt.String())
	for from, to := range map[string]string{"main.tf": "main.tf", "terraform.tfstate.json": "terraform.tfstate"} {
		raw := must[[]byte](t)(os.ReadFile(filepath.Join("testdata/v0", from)))
		if err := os.WriteFile(filepath.Join(w.dir, to), []byte(now.Replace(string(raw))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(w.must(t, "state", "list"), "fluxvm_"); n != len(speak(t, nil).schemas.ResourceSchemas) {
		t.Errorf("the state holds %d resources, want one of each kind", n)
	}
	w.plansNothing(t)
	w.destroy(t)
}
