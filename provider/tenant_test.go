package provider

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	theTenant = "fluxvm_tenant.acme"
	theKey    = "fluxvm_tenant_key.ci"
	thePolicy = "fluxvm_policy.this"
)

func tenantBlock(extra string) string {
	return "resource \"fluxvm_tenant\" \"acme\" {\n  name = \"NAME(acme)\"\n" + extra + "\n}\n"
}

func TestAccTenantLife(t *testing.T) {
	f := newFleet(t)
	step := func(extra string, action plancheck.ResourceActionType, checks ...statecheck.StateCheck) resource.TestStep {
		return resource.TestStep{Config: f.config(tenantBlock(extra)), ConfigPlanChecks: plans(theTenant, action), ConfigStateChecks: checks}
	}
	quota := func(name string, value knownvalue.Check) statecheck.StateCheck {
		return statecheck.ExpectKnownValue(theTenant, tfjsonpath.New("quota").AtMapKey(name), value)
	}
	policy := func(name string, value knownvalue.Check) statecheck.StateCheck {
		return statecheck.ExpectKnownValue(theTenant, tfjsonpath.New("policy").AtMapKey(name), value)
	}
	update := plancheck.ResourceActionUpdate
	full := "  quota = { max_vms = 4, max_vcpus = 0, max_leases = 1 }\n  default_ttl_seconds = 3600\n  max_ttl_seconds = 7200"
	imports := func(extra string) []resource.TestStep {
		return []resource.TestStep{
			{ResourceName: theTenant, ImportState: true, ImportStateId: f.name("acme"), ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
			{ResourceName: theTenant, ImportState: true, ImportStateId: f.name("acme"), ImportStateKind: resource.ImportBlockWithID, Config: f.config(tenantBlock(extra))},
		}
	}
	f.run(t, slices.Concat(
		[]resource.TestStep{step("", plancheck.ResourceActionCreate, is(theTenant, "quota", none()), is(theTenant, "max_ttl_seconds", none()), is(theTenant, "id", text(f.name("acme"))), is(theTenant, "created_at", some()))},
		imports("")[1:],
		[]resource.TestStep{step(full, update, quota("max_vms", num(4)), quota("max_vcpus", num(0)), quota("max_memory_mib", none()), is(theTenant, "default_ttl_seconds", num(3600)))},
		imports(full),
		[]resource.TestStep{
			step("  quota = { max_vms = 0, max_vcpus = null }\n  max_ttl_seconds = 7200", update, quota("max_vms", num(0)), quota("max_vcpus", none()), quota("max_leases", none()), is(theTenant, "default_ttl_seconds", none())),
			{Config: f.config(tenantBlock("  quota = { max_vms = 0 }\n  max_ttl_seconds = 7200")), ConfigPlanChecks: plansNothing()},
			step("  quota = {}", update, quota("max_vms", none())),
			step("", update, is(theTenant, "quota", none())),
			step("  policy = { allow_shared_pool_claims = true, min_lease_hours = 0 }", update, policy("allow_shared_pool_claims", knownvalue.Bool(true)), policy("min_lease_hours", num(0)), policy("require_lease_for_macos", none())),
			{ResourceName: theTenant, ImportState: true, ImportStateId: f.name("acme"), ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
			step("  policy = { require_lease_for_macos = false }", update, policy("allow_shared_pool_claims", none()), policy("require_lease_for_macos", knownvalue.Bool(false))),
			step("", update, is(theTenant, "policy", none())),
		},
	)...)
}

func TestAccTenantUpdatesSendOnlyWhatChanged(t *testing.T) {
	f := newFleet(t).recorded(t)
	step := func(extra, want string) resource.TestStep {
		return resource.TestStep{Config: f.config(tenantBlock(extra)), Check: f.sends("", want)}
	}
	f.run(t,
		step("  quota = { max_vms = 4, max_pools = 2 }\n  max_ttl_seconds = 60", `{"name":"`+f.name("acme")+`","quota":{"max_vms":4,"max_vcpus":null,"max_memory_mib":null,"max_macos_guests":null,"max_leases":null,"max_pools":2},"max_ttl_seconds":60}`),
		step("  quota = { max_vms = 0, max_pools = 2 }\n  max_ttl_seconds = 60", `{"quota":{"max_vms":0}}`),
		step("  quota = { max_pools = 2 }\n  max_ttl_seconds = 60", `{"quota":{"max_vms":null}}`),
		step("", `{"quota":{"max_pools":null},"max_ttl_seconds":null}`),
		step("  policy = { isolate_tenant_networks = true, min_lease_hours = 1 }", `{"policy":{"isolate_tenant_networks":true,"min_lease_hours":1}}`),
		step("  policy = { isolate_tenant_networks = false }", `{"policy":{"isolate_tenant_networks":false,"min_lease_hours":null}}`),
	)
}

func TestAccTenantDriftIsPlannedBack(t *testing.T) {
	f := newFleet(t)
	config := f.config(tenantBlock("  quota = { max_vms = 0 }"), "resource \"fluxvm_tenant_key\" \"ci\" {\n  tenant = fluxvm_tenant.acme.name\n  store_secret = true\n}")
	ctx := t.Context()
	f.run(t,
		resource.TestStep{Config: config},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theTenant, plancheck.ResourceActionUpdate), PreConfig: func() {
			f.fluxctl(t, "fleet", "tenant-set", f.name("acme"), "--max-vms", "none", "--max-leases", "0")
		}},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theKey, plancheck.ResourceActionCreate), PreConfig: func() {
			for _, key := range must[[]api.Key](t)(client.All(f.client.TenantKeys(ctx, f.name("acme")))) {
				f.fluxctl(t, "fleet", "key-revoke", f.name("acme"), key.ID)
			}
		}},
		resource.TestStep{Config: config, ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
			plancheck.ExpectResourceAction(theTenant, plancheck.ResourceActionCreate), plancheck.ExpectResourceAction(theKey, plancheck.ResourceActionCreate)}},
			PreConfig: func() {
				f.fluxctl(t, "fleet", "tenant-rm", f.name("acme"), "--yes")
			}},
	)
}

func TestAccTakenTenantTellsHowToImport(t *testing.T) {
	f := newFleet(t)
	f.run(t,
		resource.TestStep{Config: f.config(tenantBlock(""))},
		resource.TestStep{Config: f.config(tenantBlock(""), "resource \"fluxvm_tenant\" \"again\" {\n  name = \"NAME(acme)\"\n}"),
			ExpectError: regexp.MustCompile(`terraform import fluxvm_tenant\.LABEL ` + f.name("acme"))},
	)
}

func TestAccTenantKeyLife(t *testing.T) {
	f := newFleet(t)
	key := func(extra string) string {
		return f.config(tenantBlock(""), "resource \"fluxvm_tenant_key\" \"ci\" {\n  tenant = fluxvm_tenant.acme.name\n"+extra+"\n}")
	}
	step := func(extra string, action plancheck.ResourceActionType, checks ...statecheck.StateCheck) resource.TestStep {
		return resource.TestStep{Config: key(extra), ConfigPlanChecks: plans(theKey, action), ConfigStateChecks: checks}
	}
	id := ""
	remember := func(s *terraform.State) error {
		id = s.RootModule().Resources[theKey].Primary.ID
		return nil
	}
	importID := func(*terraform.State) (string, error) { return f.name("acme") + "/" + id, nil }
	stored, dropped := step("  expires_in = \"30d\"\n  store_secret = true", plancheck.ResourceActionReplace, is(theKey, "secret", knownvalue.StringRegexp(regexp.MustCompile("^fvx_")))),
		step("  expires_in = \"720h\"", plancheck.ResourceActionUpdate, is(theKey, "secret", none()), is(theKey, "expires_in", text("30d")))
	stored.Check, dropped.Check = remember, func(s *terraform.State) error {
		if was := id; remember(s) != nil || id != was {
			return fmt.Errorf("the key was replaced by %s to forget the secret of %s", id, was)
		}
		return nil
	}
	f.run(t,
		step("", plancheck.ResourceActionCreate, is(theKey, "role", text("tenant")), is(theKey, "secret", none()), is(theKey, "expires_at", none()), is(theKey, "store_secret", knownvalue.Bool(false))),
		step("  expires_in = \"30d\"", plancheck.ResourceActionReplace, is(theKey, "expires_at", some()), is(theKey, "secret", none())),
		resource.TestStep{Config: key("  expires_in = \"720h\""), ConfigPlanChecks: plansNothing()},
		stored, dropped,
		resource.TestStep{ResourceName: theKey, ImportState: true, ImportStateIdFunc: importID, ImportStateVerify: true},
		resource.TestStep{ResourceName: theKey, ImportState: true, ImportStateIdFunc: importID, ImportStateKind: resource.ImportBlockWithID, Config: key("  expires_in = \"30d\"")},
		step("  role = \"viewer\"", plancheck.ResourceActionReplace, is(theKey, "role", text("viewer"))),
		resource.TestStep{Config: f.config(tenantBlock("")), Check: func(*terraform.State) error {
			if keys, err := client.All(f.client.TenantKeys(t.Context(), f.name("acme"))); err != nil || len(keys) > 0 {
				return fmt.Errorf("%d keys are left, %v", len(keys), err)
			}
			return nil
		}},
	)
}

func TestAccLostSecretMakesAnotherKey(t *testing.T) {
	f := newFleet(t).recorded(t)
	config := f.config(tenantBlock(""), "resource \"fluxvm_tenant_key\" \"ci\" {\n  tenant = fluxvm_tenant.acme.name\n  store_secret = true\n}")
	f.run(t,
		resource.TestStep{Config: f.config(tenantBlock(""))},
		resource.TestStep{PreConfig: func() { f.recorder.loseAnswers(1) }, Config: config, ConfigStateChecks: []statecheck.StateCheck{is(theKey, "secret", some())}},
	)
}

// The key of a tenant's run is in no state, works while the run lasts, and is gone afterwards.

func TestAccEphemeralKeyLastsARun(t *testing.T) {
	f := newFleet(t)
	key := "ephemeral \"fluxvm_tenant_key\" \"run\" {\n  tenant = fluxvm_tenant.acme.id\n}\n"
	echo := key + "provider \"echo\" {\n  data = ephemeral.fluxvm_tenant_key.run\n}\nresource \"echo\" \"run\" {}\n"
	// Providers that share a process share its settings, so the tenant's has a name of its own.
	asTenant := key + "provider \"acme\" {\n  token = ephemeral.fluxvm_tenant_key.run.secret\n}\n"
	vm := "resource \"fluxvm_vm\" \"one\" {\n  provider = acme\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n}\n"
	revoked := func(*terraform.State) error {
		if keys, err := client.All(f.client.TenantKeys(t.Context(), f.name("acme"))); err != nil || len(keys) > 0 {
			return fmt.Errorf("%d keys are left after the run, %v", len(keys), err)
		}
		return nil
	}
	shows := func(name string, value knownvalue.Check) statecheck.StateCheck {
		return statecheck.ExpectKnownValue("echo.run", tfjsonpath.New("data").AtMapKey(name), value)
	}
	f.run(t,
		resource.TestStep{Config: f.config(tenantBlock(""), strings.Replace(echo, "acme.id", "acme.name", 1)), ExpectError: regexp.MustCompile(`write\s+fluxvm_tenant\.LABEL\.id`)},
		resource.TestStep{Config: f.config(tenantBlock(""), echo), Check: revoked, ConfigStateChecks: []statecheck.StateCheck{
			shows("secret", knownvalue.StringRegexp(regexp.MustCompile("^fvx_"))), shows("role", text("tenant")), shows("expires_in", text("1d")), shows("expires_at", some())}},
		resource.TestStep{Config: f.config(tenantBlock(""), imageBlock(f.image), asTenant, vm), Check: revoked, ConfigStateChecks: []statecheck.StateCheck{is(theVM, "tenant", text(f.name("acme")))}},
	)
}

func TestAccPolicyLife(t *testing.T) {
	f := aloneOnFleet(t) // a fleet has one policy
	policy := func(extra string) string {
		return f.config("resource \"fluxvm_policy\" \"this\" {\n" + extra + "\n}")
	}
	step := func(extra string, action plancheck.ResourceActionType, checks ...statecheck.StateCheck) resource.TestStep {
		return resource.TestStep{Config: policy(extra), ConfigPlanChecks: plans(thePolicy, action), ConfigStateChecks: checks}
	}
	update, off := plancheck.ResourceActionUpdate, knownvalue.Bool(false)
	most := "  allow_shared_pool_claims = true\n  require_lease_for_macos = false\n  min_lease_hours = 0\n  max_boots_per_node = 2\n  lost_after_seconds = 3600"
	f.run(t,
		step("  min_lease_hours = 1", plancheck.ResourceActionCreate, is(thePolicy, "min_lease_hours", num(1)), is(thePolicy, "require_lease_for_macos", yes()), is(thePolicy, "max_boots_per_node", num(4))),
		step(most, update, is(thePolicy, "allow_shared_pool_claims", yes()), is(thePolicy, "require_lease_for_macos", off), is(thePolicy, "min_lease_hours", num(0)), is(thePolicy, "lost_after_seconds", num(3600))),
		resource.TestStep{ResourceName: thePolicy, ImportState: true, ImportStateId: "policy", ImportStateVerify: true},
		resource.TestStep{ResourceName: thePolicy, ImportState: true, ImportStateId: "policy", ImportStateKind: resource.ImportBlockWithID, Config: policy(most)},
		resource.TestStep{ResourceName: thePolicy, ImportState: true, ImportStateId: "mine", ExpectError: regexp.MustCompile(`id policy`)},
		resource.TestStep{Config: policy(most), ConfigPlanChecks: plans(thePolicy, update), PreConfig: func() {
			f.fluxctl(t, "fleet", "policy", "--set", "isolate_tenant_networks=true")
		}, ConfigStateChecks: []statecheck.StateCheck{is(thePolicy, "isolate_tenant_networks", off)}},
		step("", update, is(thePolicy, "allow_shared_pool_claims", off), is(thePolicy, "min_lease_hours", num(24))),
		step("  isolate_tenant_networks = true", update, is(thePolicy, "isolate_tenant_networks", yes())), // for the destroy to take back
	)
}

// A tenant with a leased host, a pool on it and a VM from that; it all goes in one destroy, the tenant last.
func TestAccOperatorActsForATenant(t *testing.T) {
	f := leaseFleet(t, 7)
	base := []string{imageBlock(f.image), tenantBlock("  quota = { max_vms = 3 }"),
		"resource \"fluxvm_lease\" \"one\" {\n  tenant = fluxvm_tenant.acme.name\n  node = \"HOST(0)\"\n  duration = \"1h\"\n}",
		poolBlock("  tenant = fluxvm_tenant.acme.name\n  depends_on = [fluxvm_lease.one]")}
	vm := "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  tenant = fluxvm_tenant.acme.name\n  pool = fluxvm_pool.ci.name\n}"
	cold := "resource \"fluxvm_vm\" \"two\" {\n  name = \"NAME(two)\"\n  tenant = fluxvm_tenant.acme.name\n  image = fluxvm_image.tiny.name\n  memory_mib = 160\n  depends_on = [fluxvm_vm.one]\n}"
	others := "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  tenant = fluxvm_tenant.other.name\n}\nresource \"fluxvm_tenant\" \"other\" {\n  name = \"NAME(other)\"\n}"
	config := f.config(append(base, vm)...)
	f.run(t,
		resource.TestStep{Config: config, ConfigStateChecks: []statecheck.StateCheck{
			is(thePool, "tenant", text(f.name("acme"))), is(thePool, "owner", text(f.name("acme"))), is(theVM, "tenant", text(f.name("acme"))), is(theVM, "warm", yes())}},
		resource.TestStep{ResourceName: thePool, ImportState: true, ImportStateId: f.name("ci"), ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{ResourceName: theVM, ImportState: true, ImportStateId: f.name("acme") + "/" + f.name("one"), ImportStateVerify: true, ImportStateVerifyIgnore: []string{"claim_ms"}},
		resource.TestStep{ResourceName: theVM, ImportState: true, ImportStateId: f.name("acme") + "/" + f.name("one"), ImportStateKind: resource.ImportBlockWithID, Config: config},
		resource.TestStep{Config: f.config(append(base, vm, strings.ReplaceAll(vm, `"one"`, `"again"`))...), ExpectError: regexp.MustCompile(`terraform import fluxvm_vm\.LABEL ` + f.name("acme") + "/" + f.name("one"))},
		resource.TestStep{Config: f.config(append([]string{base[0], strings.Replace(base[1], "max_vms = 3", "max_vms = 1", 1)}, append(base[2:], vm, cold)...)...), ExpectError: regexp.MustCompile(`quota\s+of\s+1`)},
		resource.TestStep{Config: f.config(append(base, others)...), ConfigPlanChecks: plans(theVM, plancheck.ResourceActionReplace), ConfigStateChecks: []statecheck.StateCheck{is(theVM, "tenant", text(f.name("other")))}},
	)
}

func TestAccTenantThatHoldsThingsIsNotRemoved(t *testing.T) {
	f := newFleet(t)
	id := ""
	f.run(t,
		resource.TestStep{Config: f.config(imageBlock(f.image), tenantBlock(""))},
		resource.TestStep{Config: f.config(imageBlock(f.image)), ExpectError: regexp.MustCompile(`still\s+holds\s+1\s+VMs`), PreConfig: func() {
			answer, _, err := f.client.Launch(t.Context(), api.LaunchRequest{Image: f.name("tiny"), Tenant: f.name("acme")}, client.LaunchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			id = answer.VM.ID
		}},
		resource.TestStep{Config: f.config(imageBlock(f.image)), PreConfig: func() { // its VM is on its way out now, which is waited for
			if err := f.client.DeleteVM(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}},
	)
}

func TestAccUsageIsReadable(t *testing.T) {
	f := newFleet(t)
	const at = "data.fluxvm_usage.this"
	vm := "resource \"fluxvm_vm\" \"one\" {\n  tenant = fluxvm_tenant.acme.name\n  image = fluxvm_image.tiny.name\n}"
	past := "data \"fluxvm_usage\" \"this\" {\n  from = \"2020-01-01T00:00:00Z\"\n  to = \"2020-02-01T00:00:00Z\"\n  group_by = [\"day\", \"tenant\"]\n}"
	steps := []resource.TestStep{
		{Config: f.config(imageBlock(f.image), tenantBlock(""), vm)},
		{Config: f.config(imageBlock(f.image), tenantBlock(""), vm, `data "fluxvm_usage" "this" {}`, `output "mine" {
  value = one([for i in data.fluxvm_usage.this.items : i if i.tenant == "NAME(acme)"]).day
}`), ConfigStateChecks: []statecheck.StateCheck{is(at, "items", some()), statecheck.ExpectKnownValue(at, tfjsonpath.New("total").AtMapKey("vm_seconds"), some())}},
	}
	steps = append(steps, resource.TestStep{Config: f.config(imageBlock(f.image), tenantBlock(""), vm, past), ConfigStateChecks: []statecheck.StateCheck{is(at, "items", knownvalue.ListSizeExact(0))}})
	f.run(t, steps...)
}

func TestPlanRefusesTenantsTheFleetWould(t *testing.T) {
	t.Parallel()
	good := map[string]map[string]any{
		"fluxvm_tenant":     {"name": "acme", "default_ttl_seconds": 1, "max_ttl_seconds": 1},
		"fluxvm_tenant_key": {"tenant": "acme", "role": "viewer", "expires_in": "1d12h", "store_secret": true},
		"fluxvm_lease":      {"tenant": "acme", "node": "studio-1", "duration": "90m"},
		"fluxvm_policy":     {"min_lease_hours": 0, "max_boots_per_node": 1, "lost_after_seconds": 300},
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
		{"fluxvm_tenant", "name", "operator"}, {"fluxvm_tenant", "name", "A"}, {"fluxvm_tenant", "default_ttl_seconds", 2}, {"fluxvm_tenant", "max_ttl_seconds", 0},
		{"fluxvm_tenant_key", "role", "operator"}, {"fluxvm_tenant_key", "expires_in", "soon"}, {"fluxvm_tenant_key", "expires_in", "10ms"}, {"fluxvm_tenant_key", "tenant", "a/b"},
		{"fluxvm_lease", "duration", "7"}, {"fluxvm_lease", "node", "a/b"}, {"fluxvm_lease", "node_count", 2}, {"fluxvm_lease", "ends_at", "tomorrow"},
		{"fluxvm_lease", "node_selector", map[string]string{"a": "b"}},
		{"fluxvm_policy", "min_lease_hours", -1}, {"fluxvm_policy", "max_boots_per_node", 0}, {"fluxvm_policy", "lost_after_seconds", 299},
	} {
		set := map[string]any{}
		for k, v := range good[c.kind] {
			set[k] = v
		}
		set[c.attribute] = c.value
		if got := validated(t, c.kind, set); len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), c.attribute) {
			t.Errorf("%s with %s = %v: got %q, want a refusal that names %[2]s", c.kind, c.attribute, c.value, got)
		}
	}
}

func TestRefusalsPointAtTheirAttribute(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]string{"quota.max_vms": "quota.max_vms", "count": "node_count", "expires_in_secs": "expires_in", "elsewhere": ""} {
		if got := refusedAt(api.Invalid(field, "no")); got != want {
			t.Errorf("a refusal of %s is shown at %q, want %q", field, got, want)
		}
	}
	if got := refusedAt(errors.New("no connection")); got != "" {
		t.Errorf("a failure is shown at %q", got)
	}
}

// refusedAt gives the attribute that an error is shown at.
func refusedAt(err error) string {
	var diags diag.Diagnostics
	attributes := slices.Concat(attributeNames(tenantSchema(context.Background())), attributeNames(tenantKeySchema(context.Background())), attributeNames(leaseSchema(context.Background())))
	addError(&diags, "no", err, attributes...)
	if at, ok := diags[0].(diag.DiagnosticWithPath); ok {
		return at.Path().String()
	}
	return ""
}
