package provider

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// killLeader ends the process of the replica that leads, at once, and gives the replica's name.
func (f fleet) killLeader(ctx context.Context) (string, error) {
	cluster, err := f.client.Cluster(ctx)
	if err != nil {
		return "", err
	}
	raw, err := os.ReadFile(os.Getenv("FLUXVM_TEST_PIDS"))
	if err != nil {
		return "", err
	}
	_, number, _ := strings.Cut(cluster.Leader, "-")
	for line := range strings.Lines(string(raw)) {
		name, pid, _ := strings.Cut(strings.TrimSpace(line), " ")
		if id, err := strconv.Atoi(pid); name == "replica-"+number && err == nil {
			return cluster.Leader, syscall.Kill(id, syscall.SIGKILL)
		}
	}
	return "", fmt.Errorf("%s is not in %q", cluster.Leader, raw)
}

func TestAccLeaderKilledDuringAnApply(t *testing.T) {
	f := aloneOnFleet(t)
	ctx := t.Context()
	const vms = 24 // Terraform makes ten at a time
	mine := client.Filter{Labels: map[string]string{"test": f.suffix}}
	config := f.config(imageBlock("sim:?boot_ms=400&agent_ms=50"), poolBlock("  min_ready = 2"), fmt.Sprintf(`resource "fluxvm_vm" "many" {
  count      = %d
  name       = "NAME(many)-${count.index}"
  image      = fluxvm_image.tiny.name
  memory_mib = 96
  labels     = { test = %q }
}`, vms, f.suffix))
	before := must[api.Cluster](t)(f.client.Cluster(ctx))
	var done sync.WaitGroup
	var killed string
	var atKill int
	f.run(t, resource.TestStep{
		Config: config,
		PreConfig: func() {
			done.Go(func() {
				err := waitFor(ctx, func(ctx context.Context) (bool, error) {
					made, err := client.All(f.client.VMs(ctx, mine))
					atKill = len(made)
					return atKill > 0, err
				})
				if err == nil {
					killed, err = f.killLeader(ctx)
				}
				if err != nil {
					t.Errorf("killing the leader: %v", err)
				}
			})
		},
		Check: func(s *terraform.State) error {
			done.Wait()
			inState := map[string]bool{}
			for address, r := range s.RootModule().Resources {
				if strings.HasPrefix(address, "fluxvm_vm.many") {
					inState[r.Primary.ID] = true
				}
			}
			made, err := client.All(f.client.VMs(ctx, mine))
			if err != nil {
				return err
			}
			for _, vm := range made {
				if !inState[vm.ID] || vm.State != api.StateRunning {
					return fmt.Errorf("VM %s (%s) is %s and in the state: %v", vm.Name, vm.ID, vm.State, inState[vm.ID])
				}
			}
			after, err := f.client.Cluster(ctx)
			switch {
			case err != nil:
				return err
			case len(made) != vms || len(inState) != vms:
				return fmt.Errorf("%d VMs and %d in the state, want %d of both", len(made), len(inState), vms)
			case atKill >= vms || after.Term <= before.Term:
				return fmt.Errorf("%s was killed after %d VMs, term %d before and %d after: that tests nothing", killed, atKill, before.Term, after.Term)
			}
			t.Logf("%s was killed after %d of %d VMs; term %d before, %d after", killed, atKill, vms, before.Term, after.Term)
			return nil
		},
	})
	eventually(t, "the killed replica to be back", func() bool {
		cluster, err := f.client.Cluster(ctx)
		return err == nil && !slices.ContainsFunc(cluster.Replicas, func(r api.Replica) bool { return !r.Healthy })
	})
}

// Two workspaces of one directory apply at the same time, and take VMs from one pool.
func TestAccTwoWorkspacesApplyInParallel(t *testing.T) {
	f := newFleet(t)
	ctx := t.Context()
	must[api.Image](t)(f.client.CreateImage(ctx, api.ImageRequest{Name: f.name("tiny"), Path: f.image, MemoryMiB: 96, HasAgent: true}, ""))
	must[api.Pool](t)(f.client.CreatePool(ctx, api.PoolRequest{Name: f.name("ci"), Image: f.name("tiny"), MinReady: new(4)}, ""))
	from := t.TempDir()
	config := `terraform {
  required_providers {
    fluxvm = { source = "fluxvm/fluxvm" }
  }
}
resource "fluxvm_vm" "job" {
  count = 3
  name  = "NAME(job)-${terraform.workspace}-${count.index}"
  pool  = "NAME(ci)"
}
output "ids" {
  value = fluxvm_vm.job[*].id
}
`
	if err := os.WriteFile(filepath.Join(from, "main.tf"), []byte(strings.TrimPrefix(f.config(config), f.provider)), 0o600); err != nil {
		t.Fatal(err)
	}
	w := f.newWorkdir(t, from)
	spaces := []string{"blue", "green"}
	for _, name := range spaces {
		w.must(t, "workspace", "new", "-no-color", name)
	}
	together := func(args ...string) {
		t.Helper()
		var all sync.WaitGroup
		for _, name := range spaces {
			all.Go(func() {
				if out, code := w.run(t, []string{"TF_WORKSPACE=" + name}, args...); code != 0 {
					t.Errorf("terraform %s in %s: exit %d\n%s", args[0], name, code, out)
				}
			})
		}
		all.Wait()
	}
	together("apply", "-auto-approve", "-no-color")
	together("plan", "-detailed-exitcode", "-no-color")
	holders := map[string]string{}
	for _, name := range spaces {
		w.must(t, "workspace", "select", name)
		for _, id := range w.outputs(t)["ids"].([]any) {
			if other, taken := holders[id.(string)]; taken {
				t.Errorf("VM %s is in the state of %s and of %s", id, other, name)
			}
			holders[id.(string)] = name
		}
	}
	if len(holders) != 6 {
		t.Errorf("the states hold %v, want six VMs", holders)
	}
	together("destroy", "-auto-approve", "-no-color")
	for vm, err := range f.client.VMs(ctx, client.Filter{}) {
		if err != nil || holders[vm.ID] != "" && !ended(vm.State) {
			t.Errorf("after destroy %s is %s (%v)", vm.Name, vm.State, err)
		}
	}
	if err := f.client.DeletePool(ctx, f.name("ci")); err != nil {
		t.Error(err)
	}
}

// A pool with name_prefix moves to another image with the new one there before the old one goes.
func TestAccPoolRollsToAnotherImage(t *testing.T) {
	f := newFleet(t)
	images := imageBlock(f.image) + strings.NewReplacer(`"tiny"`, `"next"`, "NAME(tiny)", "NAME(next)").Replace(imageBlock(f.image))
	pool := func(image string) string {
		return f.config(images, "resource \"fluxvm_pool\" \"ci\" {\n  name_prefix = \"NAME(ci)-\"\n  image = fluxvm_image."+image+".name\n  lifecycle {\n    create_before_destroy = true\n  }\n}\n")
	}
	first := ""
	name := func(s *terraform.State) string { return s.RootModule().Resources[thePool].Primary.Attributes["name"] }
	importID := func(s *terraform.State) (string, error) { return name(s), nil }
	f.run(t,
		resource.TestStep{Config: pool("tiny"), Check: func(s *terraform.State) error {
			if first = name(s); !strings.HasPrefix(first, f.name("ci")+"-") || len(first) != len(f.name("ci"))+1+madeLength {
				return fmt.Errorf("the pool is called %s", first)
			}
			return nil
		}},
		resource.TestStep{ResourceName: thePool, ImportState: true, ImportStateIdFunc: importID, ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{ResourceName: thePool, ImportState: true, ImportStateIdFunc: importID, ImportStateKind: resource.ImportBlockWithID, Config: pool("tiny")},
		resource.TestStep{Config: pool("next"), ConfigPlanChecks: plans(thePool, plancheck.ResourceActionCreateBeforeDestroy), Check: func(s *terraform.State) error {
			second := name(s)
			if _, err := f.client.Pool(t.Context(), first); second == first || !strings.HasPrefix(second, f.name("ci")+"-") || !client.IsNotFound(err) {
				return fmt.Errorf("the pool %s became %s, and the old one answers %v", first, second, err)
			}
			return nil
		}},
	)
}

// What a VM is made with reaches the fleet, and any change of it makes another VM.
func TestAccDevicesAreSentAtLaunch(t *testing.T) {
	f := newFleet(t).recorded(t)
	vm := func(extra string) string {
		return f.config(imageBlock(f.image), "resource \"fluxvm_vm\" \"one\" {\n  image = fluxvm_image.tiny.name\n"+extra+"\n}")
	}
	const devices = "  reschedulable = true\n  wait_for_capacity_seconds = 5\n  security_profile = \"standard\"\n" +
		"  network = { mode = \"nat\", forwards = [{ host_port = 0, guest_port = 22 }] }\n"
	sent := func(want ...string) resource.TestCheckFunc {
		return func(*terraform.State) error {
			posts := f.recorder.sent("POST /fleet/vms")
			for _, w := range want {
				if !strings.Contains(posts[len(posts)-1], w) {
					return fmt.Errorf("sent %q, want %s in the last", posts, w)
				}
			}
			return nil
		}
	}
	f.run(t,
		resource.TestStep{Config: vm(devices + "  extra_disks = [{ size_gib = 2 }]"),
			Check: sent(`"reschedulable":true`, `"network":{"mode":"nat","forwards":[{"host_port":0,"guest_port":22}]}`, `"extra_disks":[{"size_gib":2}]`,
				`"security_profile":"standard"`, `"wait_for_capacity_secs":5`),
			ConfigStateChecks: []statecheck.StateCheck{is(theVM, "reschedulable", yes()), is(theVM, "cold_reason", some()), is(theVM, "backend", some())}},
		resource.TestStep{Config: vm(devices + "  extra_disks = [{ size_gib = 3 }]"),
			ConfigPlanChecks: plans(theVM, plancheck.ResourceActionReplace), Check: sent(`"extra_disks":[{"size_gib":3}]`)},
		resource.TestStep{Config: vm(""), ConfigPlanChecks: plans(theVM, plancheck.ResourceActionReplace), ConfigStateChecks: []statecheck.StateCheck{is(theVM, "reschedulable", knownvalue.Bool(false))}},
	)
}

// Simulated hosts take no balloon and no settings of Macs, so what is sent for them is read off here.
func TestBalloonAndMacSettingsAreSentAsGiven(t *testing.T) {
	t.Parallel()
	b := (&balloonDevice{Reporting: types.BoolValue(false), StatsSecs: types.Int64Value(0)}).wire()
	a := (&vmApple{Networks: []types.String{types.StringValue("lab")}, VMNet: types.StringValue("shared"), Interface: types.StringValue("en0"), Rosetta: types.BoolValue(true)}).wire()
	got := string(must[[]byte](t)(json.Marshal(api.LaunchRequest{Balloon: b, Apple: a})))
	const want = `{"apple":{"networks":[{"name":"lab"}],"vmnet":"shared","bridge_interface":"en0","rosetta":true},"balloon":{"free_page_reporting":false,"stats_interval_secs":0}}`
	if got != want {
		t.Errorf("sent %s, want %s", got, want)
	}
}

// What cloud_init holds is sent once and kept nowhere.
func TestAccCloudInitIsInNoState(t *testing.T) {
	f := newFleet(t).recorded(t)
	const secret = "correct-horse-battery"
	vm := func(version int) string {
		return f.config(imageBlock(f.image), fmt.Sprintf("resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  cloud_init_version = %d\n  cloud_init = {\n    runcmd = [\"true\"]\n    write_files = [{ path = \"/etc/token\", content = %q }]\n  }\n}", version, secret))
	}
	sent := func(s *terraform.State) error {
		posts := f.recorder.sent("POST /fleet/vms")
		if len(posts) == 0 || !strings.Contains(posts[len(posts)-1], `"cloud_init":{"runcmd":["true"],"write_files":[{"path":"/etc/token","content":"`+secret+`"}]}`) {
			return fmt.Errorf("sent %q", posts)
		}
		if text := fmt.Sprint(s.RootModule().Resources[theVM].Primary.Attributes); strings.Contains(text, secret) {
			return fmt.Errorf("the state holds the secret: %s", text)
		}
		return nil
	}
	f.run(t,
		resource.TestStep{Config: vm(1), Check: sent, ConfigStateChecks: []statecheck.StateCheck{is(theVM, "cloud_init", none()), is(theVM, "cold_reason", text("cloud_init"))}},
		resource.TestStep{Config: vm(2), Check: sent, ConfigPlanChecks: plans(theVM, plancheck.ResourceActionReplace)},
		resource.TestStep{Config: f.config(imageBlock(f.image), "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(two)\"\n  image = fluxvm_image.tiny.name\n  claim = {\n    env = { STAGE = \"test\" }\n    secrets = { token = \""+secret+"\" }\n  }\n}"),
			ConfigStateChecks: []statecheck.StateCheck{is(theVM, "claim", none())}, ConfigPlanChecks: plans(theVM, plancheck.ResourceActionReplace), Check: func(*terraform.State) error {
				if posts := f.recorder.sent("POST /fleet/vms"); !strings.Contains(posts[len(posts)-1], `"claim":{"env":{"STAGE":"test"},"secrets":{"token":"`+secret+`"}}`) {
					return fmt.Errorf("sent %q", posts)
				}
				return nil
			}},
	)
}

func TestAccNodeLife(t *testing.T) {
	f := leaseFleet(t, 6)
	const at = "fluxvm_node.host"
	node := func(extra string) string {
		return f.config("resource \"fluxvm_node\" \"host\" {\n  name = \"HOST(0)\"\n" + extra + "\n}\n")
	}
	full := "  cordoned = true\n  reason = \"disk is being replaced\""
	isNow := func(cordoned bool, reason string) resource.TestCheckFunc {
		return func(*terraform.State) error {
			if n, err := f.client.Node(t.Context(), f.hosts[0]); err != nil || n.Cordoned != cordoned || n.Reason != reason {
				return fmt.Errorf("the host is cordoned: %v, because of %q (%v)", n.Cordoned, n.Reason, err)
			}
			return nil
		}
	}
	update := plancheck.ResourceActionUpdate
	f.run(t,
		resource.TestStep{Config: f.config("resource \"fluxvm_node\" \"host\" {\n  name = \"nowhere\"\n  cordoned = true\n}\n"), ExpectError: regexp.MustCompile(`nowhere`)},
		resource.TestStep{Config: node(full), Check: isNow(true, "disk is being replaced")},
		resource.TestStep{ResourceName: at, ImportState: true, ImportStateId: f.hosts[0], ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{ResourceName: at, ImportState: true, ImportStateId: f.hosts[0], ImportStateKind: resource.ImportBlockWithID, Config: node(full)},
		resource.TestStep{Config: node("  cordoned = true\n  reason = \"moved\""), ConfigPlanChecks: plans(at, update), Check: isNow(true, "moved")},
		resource.TestStep{Config: node("  cordoned = true"), ConfigPlanChecks: plans(at, update), Check: isNow(true, "")},
		resource.TestStep{Config: node(full), ConfigPlanChecks: plans(at, update), Check: isNow(true, "disk is being replaced"), PreConfig: func() { f.fluxctl(t, "fleet", "uncordon", f.hosts[0]) }},
	)
	if err := isNow(false, "")(nil); err != nil {
		t.Errorf("after destroy: %v", err)
	}
}

func TestAccListsAreReadable(t *testing.T) {
	f := newFleet(t)
	vm := "resource \"fluxvm_vm\" \"one\" {\n  image = fluxvm_image.tiny.name\n  memory_mib = 160\n  labels = { test = \"" + f.suffix + "\" }\n}"
	lists := `data "fluxvm_images" "all" { guest_os = "linux" }
data "fluxvm_nodes" "lab" {
  state    = "healthy"
  selector = { zone = "lab" }
}
data "fluxvm_nodes" "all" {}
data "fluxvm_pools" "all" {}
data "fluxvm_pools" "none" { tenant = "nobody" }
data "fluxvm_vms" "mine" { selector = fluxvm_vm.one.labels }
data "fluxvm_vms" "spares" { pool = fluxvm_pool.ci.name }
output "found" {
  value = {
    image  = one([for i in data.fluxvm_images.all.images : i.memory_mib if i.name == "NAME(tiny)"])
    hosts  = join(",", data.fluxvm_nodes.lab.nodes[*].name)
    macs   = length([for n in data.fluxvm_nodes.all.nodes : n if n.mac])
    ready  = one([for p in data.fluxvm_pools.all.pools : p.min_ready if p.name == "NAME(ci)"])
    none   = length(data.fluxvm_pools.none.pools)
    vm     = one(data.fluxvm_vms.mine.vms).id == fluxvm_vm.one.id
    spares = length(data.fluxvm_vms.spares.vms)
  }
}`
	base := []string{imageBlock(f.image), poolBlock("  min_ready = 1"), vm}
	want := map[string]knownvalue.Check{"image": num(128), "hosts": text("studio-1"), "macs": num(1), "ready": num(1), "none": num(0), "vm": yes(), "spares": num(1)}
	f.run(t,
		resource.TestStep{Config: f.config(base...)},
		resource.TestStep{Config: f.config(append(base, lists)...), ConfigStateChecks: []statecheck.StateCheck{statecheck.ExpectKnownOutputValue("found", knownvalue.ObjectExact(want))}},
	)
}

// Every example is applied as it is written, on a fleet that has what it names.
func TestAccExamplesApply(t *testing.T) {
	f := newFleet(t)
	ctx := t.Context()
	f.applyExamples(t, "resources/fluxvm_image", "resources/fluxvm_policy", "resources/fluxvm_tenant", "resources/fluxvm_node")
	must[api.Image](t)(f.client.CreateImage(ctx, api.ImageRequest{Name: "ubuntu-26-04", Path: f.image, MemoryMiB: 96, HasAgent: true}, ""))
	must[api.Tenant](t)(f.client.CreateTenant(ctx, api.TenantRequest{Name: "acme"}, ""))
	f.applyExamples(t, "resources/fluxvm_pool", "resources/fluxvm_tenant_key")
	must[api.Pool](t)(f.client.CreatePool(ctx, api.PoolRequest{Name: "linux-ci", Image: "ubuntu-26-04"}, ""))
	f.applyExamples(t, "resources/fluxvm_vm", "ephemeral-resources/fluxvm_tenant_key")
	f.applyExamples(t, "data-sources/fluxvm_cluster", "data-sources/fluxvm_images", "data-sources/fluxvm_leases", "data-sources/fluxvm_nodes", "data-sources/fluxvm_pool",
		"data-sources/fluxvm_pools", "data-sources/fluxvm_usage", "data-sources/fluxvm_vms")
	w := f.newWorkdir(t, "../examples/quickstart")
	w.apply(t, "-var=image_path="+f.image)
	if out := w.outputs(t); out["warm"] != true || out["pool"] != "demo" || out["claim_ms"] == nil || out["node"] == nil {
		t.Errorf("the quickstart's outputs are %v, want a warm VM of the pool demo", out)
	}
	w.destroy(t, "-var=image_path="+f.image)
}

func TestAccLeaseExampleApplies(t *testing.T) {
	f := leaseFleet(t, 9)
	ctx := t.Context()
	must[api.Image](t)(f.client.CreateImage(ctx, api.ImageRequest{Name: "macos-27-xcode", Path: f.image, MemoryMiB: 96, HasAgent: true}, ""))
	must[api.Tenant](t)(f.client.CreateTenant(ctx, api.TenantRequest{Name: "acme"}, ""))
	f.applyExamples(t, "resources/fluxvm_lease")
}

// applyExamples applies examples together, wants an empty plan, and destroys what they made. Examples leave out whose the
// provider is.
func (f fleet) applyExamples(t *testing.T, names ...string) {
	t.Helper()
	w := f.emptyWorkdir(t)
	files := map[string]string{"versions.tf": "terraform {\n  required_providers {\n    fluxvm = { source = \"fluxvm/fluxvm\" }\n  }\n}\n"}
	for _, name := range names {
		kind, _, _ := strings.Cut(name, "/")
		file := strings.TrimSuffix(kind, "s") + ".tf" // not those of an import: they name what is not there
		files[strings.ReplaceAll(name, "/", "-")+".tf"] = string(must[[]byte](t)(os.ReadFile(filepath.Join("../examples", name, file))))
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.must(t, "init", "-no-color")
	if strings.HasPrefix(names[0], "data-sources/") { // what they show changes while other scenarios run
		w.must(t, "apply", "-auto-approve", "-no-color")
		return
	}
	w.apply(t)
	w.destroy(t)
}

// The modules hold to what their own tests say, and their examples apply.
func TestAccModules(t *testing.T) {
	f := newFleet(t)
	for _, name := range []string{"ci-pool", "tenant-with-leased-macs"} {
		w := f.newWorkdir(t, filepath.Join("../terraform", name))
		w.must(t, "fmt", "-check", "-recursive", "-no-color")
		w.must(t, "validate", "-no-color")
		if out := w.must(t, "test", "-no-color"); !strings.Contains(out, "Success!") || strings.Contains(out, "0 passed") {
			t.Errorf("terraform test of %s: %s", name, out)
		}
	}
	w := f.newWorkdir(t, "../terraform/ci-pool")
	w.dir = filepath.Join(w.dir, "examples/basic")
	w.must(t, "init", "-no-color")
	w.apply(t, "-var=image_path="+f.image)
	if out := w.outputs(t); out["warm"] != true || !strings.HasPrefix(fmt.Sprint(out["pool"]), "linux-ci-") {
		t.Errorf("outputs %v, want a warm VM from a pool linux-ci-…", out)
	}
	w.destroy(t, "-var=image_path="+f.image)
}

// The leases of this example are held by their minimum term, so what it made stays on the fleet.
func TestAccLeasedMacsExampleApplies(t *testing.T) {
	f := leaseFleet(t, 9)
	mac := f.macs[1]
	must[api.Image](t)(f.client.CreateImage(t.Context(), api.ImageRequest{Name: f.name("macos"), Path: f.image, GuestOS: api.GuestMacOS, MemoryMiB: 96, HasAgent: true}, ""))
	w := f.newWorkdir(t, "../terraform/tenant-with-leased-macs")
	w.dir = filepath.Join(w.dir, "examples/basic")
	w.must(t, "init", "-no-color")
	w.apply(t, "-var=mac="+mac, "-var=image="+f.name("macos"))
	if _, leased := w.outputs(t)["macs"].(map[string]any)[mac]; !leased {
		t.Errorf("outputs %v, want %s leased", w.outputs(t), mac)
	}
	out, code := w.run(t, nil, "destroy", "-auto-approve", "-no-color", "-var=mac="+mac, "-var=image="+f.name("macos"))
	if code == 0 || !strings.Contains(out, "goes on until its minimum term is over") || !strings.Contains(out, "is held by its minimum term") {
		t.Errorf("destroy inside the minimum term: exit %d\n%s", code, out)
	}
}
