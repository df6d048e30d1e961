package provider

import (
	"context"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/attr"
	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema"
	"github.com/hashicorp/terraform-plugin-framework/resource/schema/planmodifier"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// protocol speaks to the provider as Terraform does. Identities need Terraform 1.12, which is not on every machine.
type protocol struct {
	tfprotov6.ProviderServer
	schemas    *tfprotov6.GetProviderSchemaResponse
	identities *tfprotov6.GetResourceIdentitySchemasResponse
}

// speak starts the provider against a fleet that has one answer to each path.
func speak(t *testing.T, answers map[string]any) *protocol {
	t.Helper()
	server, err := providerserver.NewProtocol6WithError(New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	p := &protocol{server, must[*tfprotov6.GetProviderSchemaResponse](t)(server.GetProviderSchema(ctx, &tfprotov6.GetProviderSchemaRequest{})),
		must[*tfprotov6.GetResourceIdentitySchemasResponse](t)(server.GetResourceIdentitySchemas(ctx, &tfprotov6.GetResourceIdentitySchemasRequest{}))}
	set := map[string]tftypes.Value{}
	config := p.schemas.Provider.ValueType().(tftypes.Object)
	for name, typ := range config.AttributeTypes {
		set[name] = tftypes.NewValue(typ, nil)
	}
	set["endpoint"] = tftypes.NewValue(tftypes.String, answering(t, answers).Endpoints()[0])
	value := must[tfprotov6.DynamicValue](t)(tfprotov6.NewDynamicValue(config, tftypes.NewValue(config, set)))
	resp := must[*tfprotov6.ConfigureProviderResponse](t)(server.ConfigureProvider(ctx, &tfprotov6.ConfigureProviderRequest{Config: &value}))
	if len(resp.Diagnostics) > 0 {
		t.Fatalf("configuring the provider: %s", resp.Diagnostics[0].Detail)
	}
	return p
}

// read reads a resource and gives its state, null where it is gone, and the warnings.
func (p *protocol) read(t *testing.T, kind string, state *tfprotov6.DynamicValue, identity *tfprotov6.ResourceIdentityData) (map[string]tftypes.Value, []string) {
	t.Helper()
	resp := must[*tfprotov6.ReadResourceResponse](t)(p.ReadResource(t.Context(), &tfprotov6.ReadResourceRequest{TypeName: kind, CurrentState: state, CurrentIdentity: identity}))
	var warnings []string
	for _, d := range resp.Diagnostics {
		if d.Severity == tfprotov6.DiagnosticSeverityError {
			t.Fatalf("reading %s: %s: %s", kind, d.Summary, d.Detail)
		}
		warnings = append(warnings, d.Summary+": "+d.Detail)
	}
	value := must[tftypes.Value](t)(resp.NewState.Unmarshal(p.schemas.ResourceSchemas[kind].ValueType()))
	out := map[string]tftypes.Value{}
	if !value.IsNull() {
		if err := value.As(&out); err != nil {
			t.Fatal(err)
		}
	}
	return out, warnings
}

// imported imports by identity, or by a string when identity is nil, and reads.
func (p *protocol) imported(t *testing.T, kind, id string, identity map[string]string) (map[string]tftypes.Value, []string) {
	t.Helper()
	req := &tfprotov6.ImportResourceStateRequest{TypeName: kind, ID: id}
	if identity != nil {
		typ := p.identities.IdentitySchemas[kind].ValueType()
		values := map[string]tftypes.Value{}
		for name, v := range identity {
			values[name] = tftypes.NewValue(tftypes.String, v)
		}
		data := must[tfprotov6.DynamicValue](t)(tfprotov6.NewDynamicValue(typ, tftypes.NewValue(typ, values)))
		req.Identity = &tfprotov6.ResourceIdentityData{IdentityData: &data}
	}
	resp := must[*tfprotov6.ImportResourceStateResponse](t)(p.ImportResourceState(t.Context(), req))
	if len(resp.Diagnostics) > 0 || len(resp.ImportedResources) != 1 {
		t.Fatalf("importing %s %s %v: %v", kind, id, identity, resp.Diagnostics)
	}
	one := resp.ImportedResources[0]
	return p.read(t, kind, one.State, one.Identity)
}

// world has one object of each kind, under the names that the examples import.
func world() map[string]any {
	now := api.TimeOf(time.Now())
	acme := "acme"
	vm := api.VM{ID: "3f9d1c52-6a3e-4b7a-9a57-0c1b5d0f7e21", Name: "build-42", Image: "tiny", State: api.StateRunning, VCPUs: 1, MemoryMiB: 128, CreatedAt: now}
	return map[string]any{
		"/fleet/images/ubuntu-26-04": api.Image{Name: "ubuntu-26-04", Path: "/i", GuestOS: "linux", Title: "U", VCPUs: 1, MemoryMiB: 512, CreatedAt: now},
		"/fleet/pools/linux-ci":      api.Pool{Name: "linux-ci", Owner: "operator", Image: "tiny", MinReady: 0, MaxTotal: 4, CreatedAt: now},
		"/fleet/tenants/acme":        api.Tenant{Name: "acme", CreatedAt: now},
		"/fleet/nodes/studio-1":      api.Node{Name: "studio-1", Cordoned: true, Reason: "repair"},
		"/fleet/policy":              api.DefaultPolicy(),
		"/fleet/leases/0b7e2f64-3f0c-4a8e-8f0e-2f5e3c1d9a10": api.Lease{ID: "0b7e2f64-3f0c-4a8e-8f0e-2f5e3c1d9a10", Tenant: "acme", Nodes: []string{"studio-1"}, State: api.LeaseActive,
			StartsAt: now, EndsAt: now.Add(time.Hour), EarliestEnd: now, CreatedAt: now},
		"/fleet/vms/" + vm.ID: vm, "/fleet/vms/build-42": vm,
		"/fleet/tenants/acme/keys": api.List[api.Key]{Items: []api.Key{{ID: "6f1c0d0e-5b1a-4a53-9d0b-1f6a2d6f5b77", Tenant: &acme, Role: "viewer", CreatedAt: now}}},
	}
}

// example reads a file of examples/resources.
func exampleOf(t *testing.T, kind, name string) string {
	t.Helper()
	return string(must[[]byte](t)(os.ReadFile("../examples/resources/" + kind + "/" + name)))
}

func TestEveryResourceImportsByIdentityAndByString(t *testing.T) {
	t.Parallel()
	p := speak(t, world())
	pair := regexp.MustCompile(`(\w+) += "([^"]*)"`)
	for kind := range p.schemas.ResourceSchemas {
		identity := map[string]string{}
		for _, m := range pair.FindAllStringSubmatch(exampleOf(t, kind, "import-by-identity.tf"), -1) {
			identity[m[1]] = m[2]
		}
		byIdentity, _ := p.imported(t, kind, "", identity)
		id := pair.FindStringSubmatch(exampleOf(t, kind, "import-by-string-id.tf"))[2]
		byString, _ := p.imported(t, kind, id, nil)
		for name, v := range identity {
			if got := byIdentity[name]; !got.Equal(tftypes.NewValue(tftypes.String, v)) || !byString[name].Equal(got) {
				t.Errorf("%s of an imported %s is %s by identity and %s by string, want %q", name, kind, got, byString[name], v)
			}
		}
		if text := exampleOf(t, kind, "import.sh"); !regexp.MustCompile(`terraform import ` + kind + `\.\w+ ` + regexp.QuoteMeta(id) + `\n`).MatchString(text) {
			t.Errorf("import.sh of %s does not import %s: %s", kind, id, text)
		}
	}
}

func TestWhatIsGoneLeavesTheStateWithAReason(t *testing.T) {
	t.Parallel()
	p, empty := speak(t, world()), speak(t, nil)
	for kind := range p.schemas.ResourceSchemas {
		if kind == "fluxvm_policy" { // there is always one
			continue
		}
		req := &tfprotov6.ImportResourceStateRequest{TypeName: kind, ID: regexp.MustCompile(`id += "([^"]*)"`).FindStringSubmatch(exampleOf(t, kind, "import-by-string-id.tf"))[1]}
		one := must[*tfprotov6.ImportResourceStateResponse](t)(p.ImportResourceState(t.Context(), req)).ImportedResources[0]
		state, warnings := empty.read(t, kind, one.State, one.Identity)
		if len(state) > 0 || len(warnings) != 1 || !strings.Contains(warnings[0], "is gone") || !strings.Contains(warnings[0], "outside of this configuration") && kind != "fluxvm_lease" {
			t.Errorf("%s that is not there: state %v with %q", kind, state, warnings)
		}
	}
}

func TestALeaseShowsThatItEnds(t *testing.T) {
	t.Parallel()
	const id = "0b7e2f64-3f0c-4a8e-8f0e-2f5e3c1d9a10"
	for _, state := range []api.LeaseState{api.LeaseEnding, api.LeaseScrubbing} {
		answers := world()
		lease := answers["/fleet/leases/"+id].(api.Lease)
		lease.State = state
		answers["/fleet/leases/"+id] = lease
		got, warnings := speak(t, answers).imported(t, "fluxvm_lease", id, nil)
		if !got["state"].Equal(tftypes.NewValue(tftypes.String, string(state))) || len(warnings) != 1 || !strings.Contains(warnings[0], string(state)) {
			t.Errorf("a lease that is %s: state %s with %q", state, got["state"], warnings)
		}
	}
}

// Every argument that can change in place, and what someone else may have made of it.
func TestDriftOfEveryAttributeShows(t *testing.T) {
	t.Parallel()
	now := api.TimeOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	n := func(v int64) *int64 { return &v }
	lease := api.Lease{ID: "l", Tenant: "acme", Nodes: []string{"n"}, State: api.LeaseActive, StartsAt: now, EndsAt: now.Add(time.Hour)}
	image := func(change func(*api.Image)) func() (any, any) {
		return func() (any, any) {
			var m imageModel
			i := api.Image{Name: "a", Title: "a", Path: "p", VCPUs: 1, MemoryMiB: 1}
			m.take(i)
			was := m
			change(&i)
			m.take(i)
			return was, m
		}
	}
	pool := func(change func(*api.Pool)) func() (any, any) {
		return func() (any, any) {
			m, p := poolModel{WaitReady: types.BoolValue(true)}, api.Pool{Name: "a", MinReady: 1, MaxTotal: 5}
			m.take(p)
			was := m
			change(&p)
			m.take(p)
			return was, m
		}
	}
	vm := func(change func(*api.VM)) func() (any, any) {
		return func() (any, any) {
			m, v := vmModel{WaitReady: types.BoolValue(true)}, api.VM{ID: "v", Name: "a", CreatedAt: now}
			m.take(v)
			was := m
			change(&v)
			m.refreshTTL(v)
			m.take(v)
			return was, m
		}
	}
	tenant := func(change func(*api.Tenant)) func() (any, any) {
		return func() (any, any) {
			m, x := tenantModel{}, api.Tenant{Name: "a"}
			m.take(x)
			was := m
			change(&x)
			m.take(x)
			return was, m
		}
	}
	policy := func(change func(*api.Policy)) func() (any, any) {
		return func() (any, any) {
			m, x := policyModel{}, api.DefaultPolicy()
			m.take(x)
			was := m
			change(&x)
			m.take(x)
			return was, m
		}
	}
	leased := func(change func(*api.Lease)) func() (any, any) {
		return func() (any, any) {
			m, x := leaseModel{}, lease
			m.take(x)
			was := m
			change(&x)
			m.refreshTerm(x)
			m.take(x)
			return was, m
		}
	}
	drifts := map[string]func() (any, any){
		"fluxvm_image.path":          image(func(i *api.Image) { i.Path = "q" }),
		"fluxvm_image.title":         image(func(i *api.Image) { i.Title = "q" }),
		"fluxvm_image.vcpus":         image(func(i *api.Image) { i.VCPUs = 9 }),
		"fluxvm_image.memory_mib":    image(func(i *api.Image) { i.MemoryMiB = 9 }),
		"fluxvm_image.disk_size_gib": image(func(i *api.Image) { i.DiskSizeGiB = 9 }),
		"fluxvm_image.has_agent":     image(func(i *api.Image) { i.HasAgent = true }),

		"fluxvm_pool.min_ready":     pool(func(p *api.Pool) { p.MinReady = 0 }),
		"fluxvm_pool.max_total":     pool(func(p *api.Pool) { p.MaxTotal, p.MaxTotalSet = 0, true }),
		"fluxvm_pool.node_selector": pool(func(p *api.Pool) { p.NodeSelector = map[string]string{"a": "b"} }),
		"fluxvm_pool.nodes":         pool(func(p *api.Pool) { p.Nodes = []string{"a"} }),

		"fluxvm_vm.name":        vm(func(v *api.VM) { v.Name = "b" }),
		"fluxvm_vm.labels":      vm(func(v *api.VM) { v.Labels = map[string]string{"a": "b"} }),
		"fluxvm_vm.ttl_seconds": vm(func(v *api.VM) { v.ExpiresAt = now.Add(time.Hour) }),

		"fluxvm_tenant.quota":               tenant(func(x *api.Tenant) { x.Quota.MaxVMs = n(0) }),
		"fluxvm_tenant.default_ttl_seconds": tenant(func(x *api.Tenant) { x.DefaultTTLSeconds = n(1) }),
		"fluxvm_tenant.max_ttl_seconds":     tenant(func(x *api.Tenant) { x.MaxTTLSeconds = n(1) }),

		"fluxvm_tenant.policy": tenant(func(x *api.Tenant) { x.Policy.MinLeaseHours = n(0) }),

		"fluxvm_policy.allow_shared_pool_claims": policy(func(x *api.Policy) { x.AllowSharedPoolClaims = true }),
		"fluxvm_policy.require_lease_for_macos":  policy(func(x *api.Policy) { x.RequireLeaseForMacOS = false }),
		"fluxvm_policy.isolate_tenant_networks":  policy(func(x *api.Policy) { x.IsolateTenantNetworks = true }),
		"fluxvm_policy.min_lease_hours":          policy(func(x *api.Policy) { x.MinLeaseHours = 0 }),
		"fluxvm_policy.max_boots_per_node":       policy(func(x *api.Policy) { x.MaxBootsPerNode = 1 }),
		"fluxvm_policy.lost_after_seconds":       policy(func(x *api.Policy) { x.LostAfterSeconds = n(300) }),

		"fluxvm_lease.ends_at":    leased(func(x *api.Lease) { x.EndsAt = x.EndsAt.Add(time.Hour) }),
		"fluxvm_lease.duration":   leased(func(x *api.Lease) { x.EndsAt = x.EndsAt.Add(time.Hour) }),
		"fluxvm_lease.auto_renew": leased(func(x *api.Lease) { x.AutoRenew = true }),

		"fluxvm_node.cordoned": func() (any, any) { return nodeModel{}, nodeModel{Cordoned: types.BoolValue(true)} },
		"fluxvm_node.reason": func() (any, any) {
			var m nodeModel
			m.take(api.Node{Name: "n", Reason: "r"})
			return nodeModel{}, m
		},
	}
	// What only Terraform knows, or what an object keeps for life.
	settled := []string{"timeouts", "wait_ready", "name_prefix", "store_secret", "cloud_init", "claim", "drain", "node_selector of a lease", "wait_for_capacity_seconds"}
	for name, change := range drifts {
		was, is := change()
		_, attribute, _ := strings.Cut(name, ".")
		if a, b := fieldOf(was, attribute), fieldOf(is, attribute); a == b {
			t.Errorf("someone else has changed %s, and it still reads %s", name, a)
		}
	}
	for kind, s := range map[string]schema.Schema{"image": imageSchema(t.Context()), "lease": leaseSchema(t.Context()), "node": nodeSchema(t.Context()), "policy": policySchema(t.Context()),
		"pool": poolSchema(t.Context()), "tenant": tenantSchema(t.Context()), "tenant_key": tenantKeySchema(t.Context()), "vm": vmSchema(t.Context())} {
		for name, a := range s.Attributes {
			full := "fluxvm_" + kind + "." + name
			if drifts[full] == nil && (a.IsOptional() || a.IsRequired()) && !replaces(a) && !slices.Contains(settled, name) && !slices.Contains(settled, name+" of a "+kind) {
				t.Errorf("%s can change in place, and this test does not say how drift of it shows", full)
			}
		}
	}
}

// fieldOf is the text of the field that has an attribute's name.
func fieldOf(model any, attribute string) string {
	return fmt.Sprintf("%+v", taggedField(model, attribute))
}

func TestHeldLeasesGiveNotice(t *testing.T) {
	t.Parallel()
	mac := api.Node{Name: "studio-1", Apple: &api.AppleHost{}, Labels: map[string]string{"chip": "m4"}}
	linux := api.Node{Name: "rack-1", Labels: map[string]string{"chip": "m4"}}
	fleet := func(nodes ...api.Node) op {
		return answering(t, map[string]any{"/fleet/policy": api.DefaultPolicy(), "/fleet/nodes": api.List[api.Node]{Items: nodes}})
	}
	chip := types.MapValueMust(types.StringType, map[string]attr.Value{"chip": types.StringValue("m4")})
	for name, c := range map[string]struct {
		o      op
		config leaseModel
		notice bool
	}{
		"too short for the Mac":          {fleet(mac, linux), leaseModel{Node: types.StringValue("studio-1"), Duration: types.StringValue("2h")}, true},
		"long enough":                    {fleet(mac), leaseModel{Node: types.StringValue("studio-1"), Duration: types.StringValue("1d")}, false},
		"of a host that is no Mac":       {fleet(mac, linux), leaseModel{Node: types.StringValue("rack-1"), Duration: types.StringValue("2h")}, false},
		"of Macs only":                   {fleet(mac), leaseModel{NodeSelector: chip, Duration: types.StringValue("2h")}, true},
		"of hosts that need not be Macs": {fleet(mac, linux), leaseModel{NodeSelector: chip, Duration: types.StringValue("2h")}, false},
		"by its end":                     {fleet(mac), leaseModel{Node: types.StringValue("studio-1"), EndsAt: types.StringValue(time.Now().Add(time.Hour).Format(time.RFC3339))}, true},
		"by a tenant, who may not know":  {answering(t, nil), leaseModel{Node: types.StringValue("studio-1"), Duration: types.StringValue("2h")}, false},
	} {
		if noticeMinimum(t.Context(), c.o, c.config); (c.o.diags.WarningsCount() > 0) != c.notice || c.o.diags.HasError() {
			t.Errorf("%s: %v, want a notice: %v", name, *c.o.diags, c.notice)
		}
	}
	for at, want := range map[time.Duration]int{time.Hour: 1, -time.Hour: 0} {
		o := op{diags: &diag.Diagnostics{}}
		if noticeHeld(o, leaseModel{ID: types.StringValue("l"), EarliestEnd: types.StringValue(time.Now().Add(at).Format(time.RFC3339))}); len(*o.diags) != want {
			t.Errorf("with %v of its minimum term left: %v, want %d notice", at, *o.diags, want)
		}
	}
}

// taggedField gives the field of a model that has an attribute's name.
func taggedField(model any, attribute string) any {
	v := reflect.ValueOf(model)
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("tfsdk") == attribute {
			if f := v.Field(i); f.Kind() != reflect.Pointer || f.IsNil() {
				return f.Interface()
			}
			return v.Field(i).Elem().Interface()
		}
	}
	return nil
}

// replaces says that another value makes a new object.
func replaces(a schema.Attribute) bool {
	var texts []string
	switch a := a.(type) {
	case schema.StringAttribute:
		texts = described(a.PlanModifiers)
	case schema.BoolAttribute:
		texts = described(a.PlanModifiers)
	case schema.Int64Attribute:
		texts = described(a.PlanModifiers)
	case schema.MapAttribute:
		texts = described(a.PlanModifiers)
	case schema.SingleNestedAttribute:
		texts = described(a.PlanModifiers)
	case schema.ListNestedAttribute:
		texts = described(a.PlanModifiers)
	}
	return strings.Contains(strings.Join(texts, " "), "recreate")
}

func described[M planmodifier.Describer](modifiers []M) (texts []string) {
	for _, m := range modifiers {
		texts = append(texts, m.Description(context.Background()))
	}
	return texts
}

// An example that no scenario applies would rot.
func TestEveryExampleIsApplied(t *testing.T) {
	t.Parallel()
	scenarios := string(must[[]byte](t)(os.ReadFile("proof_test.go")))
	for _, kind := range []string{"resources", "data-sources", "ephemeral-resources"} {
		for _, d := range must[[]os.DirEntry](t)(os.ReadDir("../examples/" + kind)) {
			if !strings.Contains(scenarios, `"`+kind+"/"+d.Name()+`"`) {
				t.Errorf("examples/%s/%s is applied by no scenario; add it to proof_test.go", kind, d.Name())
			}
		}
	}
	p := speak(t, nil)
	for kind, names := range map[string][]string{"resources": slices.Collect(maps.Keys(p.schemas.ResourceSchemas)), "data-sources": slices.Collect(maps.Keys(p.schemas.DataSourceSchemas)),
		"ephemeral-resources": slices.Collect(maps.Keys(p.schemas.EphemeralResourceSchemas))} {
		for _, name := range names {
			if _, err := os.Stat("../examples/" + kind + "/" + name); err != nil {
				t.Errorf("%s has no example: %v", name, err)
			}
		}
	}
}
