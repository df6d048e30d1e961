package provider

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/config"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
)

// example gives a file of examples/ without what names the provider, which the test itself provides.
func example(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`(?ms)^terraform \{$.*?^\}$\n`).ReplaceAllString(string(raw), "")
	return strings.Replace(text, "provider \"fluxvm\" {}\n", "", 1)
}

func TestAccQuickstartHandsOutAWarmVM(t *testing.T) {
	f := newFleet(t)
	f.run(t, resource.TestStep{
		Config:          f.config(example(t, "quickstart/main.tf")),
		ConfigVariables: config.Variables{"image_path": config.StringVariable(f.image)},
		ConfigStateChecks: []statecheck.StateCheck{
			statecheck.ExpectKnownOutputValue("warm", yes()), statecheck.ExpectKnownOutputValue("node", some()),
			statecheck.ExpectKnownOutputValue("pool", text("demo")),
			statecheck.ExpectKnownOutputValue("claim_ms", knownvalue.NotNull()),
		},
	})
}

func TestAccExamplesPlan(t *testing.T) {
	f := newFleet(t)
	var all []string
	for _, kind := range []string{"fluxvm_image", "fluxvm_lease", "fluxvm_node", "fluxvm_policy", "fluxvm_pool", "fluxvm_tenant", "fluxvm_tenant_key", "fluxvm_vm"} {
		all = append(all, example(t, "resources/"+kind+"/resource.tf"))
		if raw, err := os.ReadFile("../examples/resources/" + kind + "/import.sh"); err != nil || !strings.Contains(string(raw), "terraform import "+kind+".") {
			t.Errorf("import.sh of %s does not import it (%v)", kind, err)
		}
	}
	for _, kind := range []string{"fluxvm_images", "fluxvm_leases", "fluxvm_nodes", "fluxvm_pools", "fluxvm_usage", "fluxvm_vms"} {
		all = append(all, example(t, "data-sources/"+kind+"/data-source.tf"))
	}
	f.run(t, resource.TestStep{Config: f.config(all...), PlanOnly: true, ExpectNonEmptyPlan: true})
}
