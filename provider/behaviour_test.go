package provider

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func TestAccUpdatesSendOnlyWhatChanged(t *testing.T) {
	f := newFleet(t).recorded(t)
	vm := func(extra string) string {
		return "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  memory_mib = 160\n" + extra + "\n}"
	}
	f.run(t,
		resource.TestStep{Config: f.config(imageBlock(f.image), poolBlock("  min_ready = 1\n  max_total = 7"), vm("  labels = { a = \"1\", b = \"1\" }"))},
		resource.TestStep{Config: f.config(imageBlock(f.image), poolBlock("  min_ready = 2\n  max_total = 7"), vm("  labels = { a = \"2\" }")),
			Check: resource.ComposeTestCheckFunc(f.sends("PATCH /fleet/pools/", `{"min_ready":2}`), f.sends("PATCH /fleet/vms/", `{"labels":{"a":"2","b":null}}`))},
		resource.TestStep{Config: f.config(imageBlock(f.image), poolBlock("  min_ready = 2"), vm("  labels = { a = \"2\" }\n  ttl_seconds = 900")),
			Check: resource.ComposeTestCheckFunc(f.sends("PATCH /fleet/pools/", `{"max_total":null}`), f.sends("PATCH /fleet/vms/", `{"ttl_seconds":900}`))},
		resource.TestStep{Config: f.config(imageBlock(f.image), poolBlock("  min_ready = 3"), vm("  labels = { a = \"2\" }")),
			Check: resource.ComposeTestCheckFunc(f.sends("PATCH /fleet/pools/", `{"min_ready":3}`), f.sends("PATCH /fleet/vms/", `{"ttl_seconds":null}`))},
	)
}

func TestAccLostAnswersMakeOneObject(t *testing.T) {
	f := newFleet(t).recorded(t)
	f.run(t, resource.TestStep{
		PreConfig: func() { f.recorder.loseAnswers(2) },
		Config:    f.config(imageBlock(f.image), "resource \"fluxvm_vm\" \"one\" {\n  image = fluxvm_image.tiny.name\n  labels = { test = \""+f.suffix+"\" }\n}"),
		Check: func(*terraform.State) error {
			vms, err := client.All(f.client.VMs(t.Context(), client.Filter{Labels: map[string]string{"test": f.suffix}}))
			if posts := f.recorder.sent("POST "); err != nil || len(vms) != 1 || len(posts) != 4 {
				return fmt.Errorf("%d VMs of %d POSTs (%v), want one, of two POSTs and a repeat of each", len(vms), len(posts), err)
			}
			return nil
		},
	})
}

func TestAccRefusedTokenNamesTheSetting(t *testing.T) {
	f := newFleet(t)
	f.provider = "provider \"fluxvm\" {\n  token = \"fvx_wrong\"\n}\n"
	f.run(t, resource.TestStep{Config: f.config(imageBlock(f.image)), ExpectError: regexp.MustCompile(`Set\s+token\s+in\s+the\s+provider\s+block,\s+or\s+FLUXVM_TOKEN`)})
}

// validated gives what a plan says about a configuration, without Terraform.
func validated(t *testing.T, resourceType string, set map[string]any) (refused []string) {
	t.Helper()
	ctx := context.Background()
	server, err := providerserver.NewProtocol6WithError(New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	schemas := must[*tfprotov6.GetProviderSchemaResponse](t)(server.GetProviderSchema(ctx, &tfprotov6.GetProviderSchemaRequest{}))
	object := schemas.ResourceSchemas[resourceType].ValueType().(tftypes.Object)
	values := map[string]tftypes.Value{}
	for name, typ := range object.AttributeTypes {
		values[name] = tftypes.NewValue(typ, nil)
		switch v := set[name].(type) {
		case nil:
		case map[string]string:
			m := map[string]tftypes.Value{}
			for k, s := range v {
				m[k] = tftypes.NewValue(tftypes.String, s)
			}
			values[name] = tftypes.NewValue(typ, m)
		case []string:
			var list []tftypes.Value
			for _, s := range v {
				list = append(list, tftypes.NewValue(tftypes.String, s))
			}
			values[name] = tftypes.NewValue(typ, list)
		default:
			values[name] = tftypes.NewValue(typ, v)
		}
	}
	config := must[tfprotov6.DynamicValue](t)(tfprotov6.NewDynamicValue(object, tftypes.NewValue(object, values)))
	resp := must[*tfprotov6.ValidateResourceConfigResponse](t)(server.ValidateResourceConfig(ctx, &tfprotov6.ValidateResourceConfigRequest{TypeName: resourceType, Config: &config}))
	for _, d := range resp.Diagnostics {
		if d.Severity == tfprotov6.DiagnosticSeverityError {
			at := ""
			if d.Attribute != nil {
				at = d.Attribute.String()
			}
			refused = append(refused, at+": "+d.Summary+": "+d.Detail)
		}
	}
	return refused
}

func TestPlanRefusesWhatTheFleetWould(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 64)
	good := map[string]map[string]any{
		"fluxvm_image": {"name": "Tiny_1.0", "path": "/images/tiny", "guest_os": "macos", "vcpus": 512, "disk_size_gib": 0},
		"fluxvm_pool":  {"name": "ci", "image": "tiny", "min_ready": 0, "max_total": 0, "nodes": []string{"a.b"}, "readiness": "running"},
		"fluxvm_vm":    {"pool": "ci", "ttl_seconds": 1, "labels": map[string]string{"a/b": ""}},
	}
	for kind, set := range good {
		if got := validated(t, kind, set); len(got) > 0 {
			t.Errorf("a good %s is refused: %q", kind, got)
		}
	}
	for _, c := range []struct {
		kind, attribute string
		value           any
	}{
		{"fluxvm_image", "name", "a/b"}, {"fluxvm_image", "name", ""}, {"fluxvm_image", "path", ""}, {"fluxvm_image", "guest_os", "plan9"},
		{"fluxvm_image", "vcpus", 0}, {"fluxvm_image", "memory_mib", 0}, {"fluxvm_image", "disk_size_gib", -1}, {"fluxvm_image", "title", "a\nb"}, {"fluxvm_image", "title", ""},
		{"fluxvm_pool", "name", "Ci"}, {"fluxvm_pool", "name", strings.Repeat("x", 41)}, {"fluxvm_pool", "image", ""}, {"fluxvm_pool", "vcpus", 0},
		{"fluxvm_pool", "min_ready", -1}, {"fluxvm_pool", "min_ready", 33}, {"fluxvm_pool", "max_total", 101}, {"fluxvm_pool", "readiness", "soon"},
		{"fluxvm_pool", "node_selector", map[string]string{long: "v"}}, {"fluxvm_pool", "nodes", []string{"a/b"}},
		{"fluxvm_vm", "name", "A"}, {"fluxvm_vm", "name", long}, {"fluxvm_vm", "ttl_seconds", 0}, {"fluxvm_vm", "memory_mib", 0},
		{"fluxvm_vm", "labels", map[string]string{"fluxvm.dev/x": "1"}}, {"fluxvm_vm", "labels", map[string]string{"a b": "1"}}, {"fluxvm_vm", "node", "a b"},
		{"fluxvm_vm", "backend", "auto"}, {"fluxvm_vm", "security_profile", "best"}, {"fluxvm_vm", "wait_for_capacity_seconds", 3601},
	} {
		set := map[string]any{}
		for k, v := range good[c.kind] {
			set[k] = v
		}
		set[c.attribute] = c.value
		got := validated(t, c.kind, set)
		if len(got) != 1 || !strings.Contains(got[0], c.attribute) {
			t.Errorf("%s with %s = %v: got %q, want one refusal at %s", c.kind, c.attribute, c.value, got, c.attribute)
		}
	}
	if got := validated(t, "fluxvm_vm", map[string]any{"name": "one"}); len(got) != 1 || !strings.Contains(got[0], "pool") || !strings.Contains(got[0], "image") {
		t.Errorf("a VM with neither pool nor image: got %q", got)
	}
}

func TestMovedDeadlineShowsAsAnotherTTL(t *testing.T) {
	t.Parallel()
	start := api.TimeOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	at := func(d time.Duration) api.Time { return start.Add(d) }
	for name, c := range map[string]struct {
		ttl  types.Int64
		was  api.Time
		vm   api.VM
		want types.Int64
	}{
		"the same":   {types.Int64Value(60), at(time.Minute), api.VM{CreatedAt: start, ExpiresAt: at(time.Minute)}, types.Int64Value(60)},
		"taken off":  {types.Int64Value(60), at(time.Minute), api.VM{CreatedAt: start}, types.Int64Null()},
		"moved":      {types.Int64Value(60), at(time.Minute), api.VM{CreatedAt: start, ExpiresAt: at(90500 * time.Millisecond)}, types.Int64Value(91)},
		"put on":     {types.Int64Null(), 0, api.VM{CreatedAt: start, ExpiresAt: at(time.Hour)}, types.Int64Value(3600)},
		"of a claim": {types.Int64Null(), 0, api.VM{CreatedAt: start, ClaimedAt: at(time.Hour), ExpiresAt: at(2 * time.Hour)}, types.Int64Value(3600)},
		"never had":  {types.Int64Null(), 0, api.VM{CreatedAt: start}, types.Int64Null()},
	} {
		m := vmModel{TTLSeconds: c.ttl, ExpiresAt: timeOrNull(c.was)}
		if m.refreshTTL(c.vm); !m.TTLSeconds.Equal(c.want) {
			t.Errorf("%s: ttl_seconds %s, want %s", name, m.TTLSeconds, c.want)
		}
	}
}

func TestGoneVMsSayWhy(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := vmModel{Node: types.StringValue("studio-1"), ExpiresAt: types.StringValue("2026-01-02T03:04:04.000Z")}
	for state, want := range map[api.VMState]string{api.StateLost: "studio-1 is lost", api.StateGone: "time to live ended"} {
		if got := whyGone(&m, state, now); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", state, got, want)
		}
	}
	if got := whyGone(&m, "", now.Add(-time.Hour)); !strings.Contains(got, "outside") {
		t.Errorf("before its deadline: got %q", got)
	}
}

func TestReasonsReadMostFrequentFirst(t *testing.T) {
	t.Parallel()
	got := reasonsText(map[string]int{api.WhyMemory: 1, api.WhyLabel: 3, "new_kind": 1})
	want := "Ruled out: 3 hosts: no label that node_selector asks for (label); 1 host: too little free memory (memory); 1 host: new_kind."
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEveryAttributeIsDescribed(t *testing.T) {
	t.Parallel()
	server, err := providerserver.NewProtocol6WithError(New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	s := must[*tfprotov6.GetProviderSchemaResponse](t)(server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{}))
	if len(s.Diagnostics) > 0 {
		t.Fatalf("the schema is not valid: %v", s.Diagnostics[0])
	}
	for kind, schemas := range map[string]map[string]*tfprotov6.Schema{"resource": s.ResourceSchemas, "data source": s.DataSourceSchemas, "ephemeral": s.EphemeralResourceSchemas, "provider": {"": s.Provider}} {
		for name, one := range schemas {
			attributes := one.Block.Attributes
			for _, a := range one.Block.Attributes {
				if a.NestedType != nil && a.Name != "timeouts" {
					attributes = append(attributes, a.NestedType.Attributes...)
				}
			}
			for _, a := range attributes {
				if a.Description == "" && !slices.Contains([]string{"timeouts"}, a.Name) {
					t.Errorf("%s %s: %s has no description", kind, name, a.Name)
				}
			}
		}
	}
}
