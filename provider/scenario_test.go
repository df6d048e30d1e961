package provider

import (
	"regexp"
	"testing"

	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	theImage = "fluxvm_image.tiny"
	thePool  = "fluxvm_pool.ci"
	theVM    = "fluxvm_vm.one"
)

func TestAccImageLife(t *testing.T) {
	f := newFleet(t)
	full := `resource "fluxvm_image" "tiny" {
  name          = "NAME(tiny)"
  path          = "sim:?boot_ms=60"
  title         = "Tiny Linux"
  vcpus         = 2
  memory_mib    = 256
  disk_size_gib = 3
  has_agent     = true
}`
	least := `resource "fluxvm_image" "tiny" {
  name = "NAME(tiny)"
  path = "sim:?boot_ms=60"
}`
	f.run(t,
		resource.TestStep{Config: f.config(imageBlock(f.image)), ConfigStateChecks: []statecheck.StateCheck{
			is(theImage, "guest_os", text("linux")), is(theImage, "vcpus", num(1)), is(theImage, "memory_mib", num(128)), is(theImage, "created_at", some())}},
		resource.TestStep{Config: f.config(full), ConfigPlanChecks: plans(theImage, plancheck.ResourceActionUpdate), ConfigStateChecks: []statecheck.StateCheck{
			is(theImage, "title", text("Tiny Linux")), is(theImage, "vcpus", num(2)), is(theImage, "disk_size_gib", num(3))}},
		resource.TestStep{ResourceName: theImage, ImportState: true, ImportStateId: f.name("tiny"), ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{ResourceName: theImage, ImportState: true, ImportStateId: f.name("tiny"), ImportStateKind: resource.ImportBlockWithID, Config: f.config(full)},
		resource.TestStep{Config: f.config(least), ConfigPlanChecks: plans(theImage, plancheck.ResourceActionUpdate), ConfigStateChecks: []statecheck.StateCheck{
			is(theImage, "title", text(f.name("tiny"))), is(theImage, "vcpus", num(1)), is(theImage, "memory_mib", num(512)), is(theImage, "disk_size_gib", num(0)),
			is(theImage, "has_agent", knownvalue.Bool(false))}},
	)
}

func TestAccPoolLife(t *testing.T) {
	f := newFleet(t)
	image := imageBlock(f.image)
	step := func(extra string, action plancheck.ResourceActionType, checks ...statecheck.StateCheck) resource.TestStep {
		return resource.TestStep{Config: f.config(image, poolBlock(extra)), ConfigPlanChecks: plans(thePool, action), ConfigStateChecks: checks}
	}
	update := plancheck.ResourceActionUpdate
	data := `data "fluxvm_pool" "ci" {
  name = fluxvm_pool.ci.name
}`
	f.run(t,
		step("", plancheck.ResourceActionCreate, is(thePool, "min_ready", num(1)), is(thePool, "max_total", none()), is(thePool, "vcpus", num(1)),
			is(thePool, "memory_mib", num(128)), is(thePool, "owner", text("operator")), is(thePool, "readiness", text("agent")), is(thePool, "node_selector", none()), is(thePool, "nodes", none())),
		step("  min_ready = 2", update, is(thePool, "min_ready", num(2)), is(thePool, "max_total", none())),
		resource.TestStep{Config: f.config(image, poolBlock("  min_ready = 2"), data), ConfigStateChecks: []statecheck.StateCheck{
			is("data.fluxvm_pool.ci", "ready", num(2)), is("data.fluxvm_pool.ci", "max_total", num(8)), is("data.fluxvm_pool.ci", "state", text("ready")), is("data.fluxvm_pool.ci", "last_error", none())}},
		resource.TestStep{ResourceName: thePool, ImportState: true, ImportStateId: f.name("ci"), ImportStateVerify: true, ImportStateVerifyIdentifierAttribute: "name"},
		resource.TestStep{ResourceName: thePool, ImportState: true, ImportStateId: f.name("ci"), ImportStateKind: resource.ImportBlockWithID,
			Config: f.config(image, poolBlock("  min_ready = 2"))},
		step("  min_ready = 2\n  max_total = 9", update, is(thePool, "max_total", num(9))),
		step("  min_ready = 2", update, is(thePool, "max_total", none())),
		step("  min_ready = 0\n  max_total = 0", update, is(thePool, "min_ready", num(0)), is(thePool, "max_total", num(0))),
		step("  min_ready = 0", update, is(thePool, "min_ready", num(0)), is(thePool, "max_total", none())),
		step("", update, is(thePool, "min_ready", num(1)), is(thePool, "max_total", none())),
		step("  node_selector = { \"fluxvm.dev/dev-node\" = \"HOST(0)\" }\n  nodes = [\"HOST(0)\"]", update,
			is(thePool, "node_selector", knownvalue.MapSizeExact(1)), is(thePool, "nodes", knownvalue.SetSizeExact(1))),
		step("  node_selector = {}\n  nodes = []", update, is(thePool, "node_selector", knownvalue.MapSizeExact(0))),
		step("  wait_ready = false", update, is(thePool, "wait_ready", knownvalue.Bool(false)), is(thePool, "node_selector", none())),
		step("  memory_mib = 192", plancheck.ResourceActionReplace, is(thePool, "memory_mib", num(192))),
	)
}

func TestAccVMLife(t *testing.T) {
	f := newFleet(t)
	base := imageBlock(f.image) + poolBlock("  min_ready = 1")
	step := func(extra string, action plancheck.ResourceActionType, checks ...statecheck.StateCheck) resource.TestStep {
		return resource.TestStep{Config: f.config(base, "resource \"fluxvm_vm\" \"one\" {\n"+extra+"\n}"), ConfigPlanChecks: plans(theVM, action), ConfigStateChecks: checks}
	}
	update := plancheck.ResourceActionUpdate
	fromPool := "  name = \"NAME(one)\"\n  pool = fluxvm_pool.ci.name\n"
	f.run(t,
		step(fromPool, plancheck.ResourceActionCreate, is(theVM, "warm", yes()), is(theVM, "claim_ms", some()), is(theVM, "cold_reason", none()), is(theVM, "node", some()),
			is(theVM, "image", text(f.name("tiny"))), is(theVM, "memory_mib", num(128)), is(theVM, "ttl_seconds", none()), is(theVM, "expires_at", none())),
		step(fromPool+"  labels = { team = \"build\", tier = \"1\" }\n  ttl_seconds = 3600", update, is(theVM, "labels", knownvalue.MapSizeExact(2)), is(theVM, "expires_at", some()),
			is(theVM, "claim_ms", some())),
		step(fromPool+"  labels = { team = \"test\" }\n  ttl_seconds = 7200", update, is(theVM, "labels", knownvalue.MapExact(map[string]knownvalue.Check{"team": text("test")}))),
		step(fromPool, update, is(theVM, "labels", none()), is(theVM, "expires_at", none())),
		step("  name = \"NAME(two)\"\n  pool = fluxvm_pool.ci.name", update, is(theVM, "name", text(f.name("two"))), is(theVM, "warm", yes())),
		resource.TestStep{ResourceName: theVM, ImportState: true, ImportStateId: f.name("two"), ImportStateVerify: true,
			ImportStateVerifyIgnore: []string{"claim_ms"}}, // the fleet does not keep it
		resource.TestStep{ResourceName: theVM, ImportState: true, ImportStateId: f.name("two"), ImportStateKind: resource.ImportBlockWithID,
			Config: f.config(base, "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(two)\"\n  pool = fluxvm_pool.ci.name\n}")},
		step("  image = fluxvm_image.tiny.name\n  memory_mib = 160", plancheck.ResourceActionReplace, is(theVM, "warm", knownvalue.Bool(false)), is(theVM, "cold_reason", some()),
			is(theVM, "memory_mib", num(160)), is(theVM, "claim_ms", none())),
	)
}

func TestAccImportFindsTheTTL(t *testing.T) {
	f := newFleet(t)
	vm := "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  ttl_seconds = 3600\n}"
	f.run(t,
		resource.TestStep{Config: f.config(imageBlock(f.image), vm)},
		resource.TestStep{ResourceName: theVM, ImportState: true, ImportStateId: f.name("one"), ImportStateVerify: true},
		resource.TestStep{ResourceName: theVM, ImportState: true, ImportStateId: f.name("one"), ImportStateKind: resource.ImportBlockWithID, Config: f.config(imageBlock(f.image), vm)},
	)
}

func TestAccDriftIsPlannedBack(t *testing.T) {
	f := newFleet(t)
	config := f.config(imageBlock(f.image), poolBlock("  min_ready = 1"),
		"resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  memory_mib = 160\n  labels = { a = \"1\" }\n  ttl_seconds = 3600\n}")
	ctx := t.Context()
	other := "2"
	f.run(t,
		resource.TestStep{Config: config},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(thePool, plancheck.ResourceActionUpdate), PreConfig: func() {
			f.fluxctl(t, "fleet", "pool-set", f.name("ci"), "--min-ready", "0", "--max", "11")
		}, ConfigStateChecks: []statecheck.StateCheck{is(thePool, "min_ready", num(1)), is(thePool, "max_total", none())}},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theVM, plancheck.ResourceActionUpdate), PreConfig: func() {
			must[api.VM](t)(f.client.PatchVM(ctx, f.name("one"), api.VMPatch{Labels: api.Some(map[string]*string{"a": &other, "b": &other}), TTLSeconds: api.Null[int64]()}))
		}, ConfigStateChecks: []statecheck.StateCheck{is(theVM, "labels", knownvalue.MapSizeExact(1)), is(theVM, "ttl_seconds", num(3600))}},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theVM, plancheck.ResourceActionUpdate), PreConfig: func() {
			must[api.VM](t)(f.client.PatchVM(ctx, f.name("one"), api.VMPatch{TTLSeconds: api.Some(int64(90000))}))
		}, ConfigStateChecks: []statecheck.StateCheck{is(theVM, "ttl_seconds", num(3600))}},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theImage, plancheck.ResourceActionUpdate), PreConfig: func() {
			must[api.Image](t)(f.client.PatchImage(ctx, f.name("tiny"), api.ImagePatch{MemoryMiB: api.Some(int64(999))}))
		}, ConfigStateChecks: []statecheck.StateCheck{is(theImage, "memory_mib", num(128))}},
		resource.TestStep{Config: config, ConfigPlanChecks: resource.ConfigPlanChecks{PreApply: []plancheck.PlanCheck{
			plancheck.ExpectResourceAction(thePool, plancheck.ResourceActionCreate), plancheck.ExpectResourceAction(theVM, plancheck.ResourceActionCreate)}},
			PreConfig: func() {
				f.fluxctl(t, "fleet", "pool-rm", f.name("ci"), "--yes")
				f.fluxctl(t, "fleet", "rm", f.name("one"))
			}},
		resource.TestStep{Config: config, ConfigPlanChecks: plansNothing()},
	)
}

func TestAccVMEndedByItsTTLIsPlannedAnew(t *testing.T) {
	f := newFleet(t)
	config := f.config(imageBlock(f.image), "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  ttl_seconds = 3600\n}")
	f.run(t,
		resource.TestStep{Config: config},
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theVM, plancheck.ResourceActionCreate), PreConfig: func() {
			must[api.VM](t)(f.client.PatchVM(t.Context(), f.name("one"), api.VMPatch{TTLSeconds: api.Some(int64(1))}))
			eventually(t, "the VM to end by its TTL", func() bool {
				vm, err := f.client.VM(t.Context(), f.name("one"))
				return client.IsNotFound(err) || err == nil && ended(vm.State)
			})
		}},
	)
}

func TestAccNoCapacityFailsAtOnceWithTheReason(t *testing.T) {
	f := newFleet(t)
	f.run(t, resource.TestStep{
		Config:      f.config(imageBlock(f.image), "resource \"fluxvm_vm\" \"one\" {\n  image = fluxvm_image.tiny.name\n  node_selector = { nowhere = \"true\" }\n}"),
		ExpectError: regexp.MustCompile(`(?s)no healthy,\s+uncordoned\s+nodes.*Ruled\s+out:\s+\d+\s+hosts?:\s+no\s+label`),
	})
}

func TestAccPoolThatFindsNoRoomIsAWarning(t *testing.T) {
	f := newFleet(t)
	config := f.config(imageBlock(f.image), poolBlock("  node_selector = { nowhere = \"true\" }"))
	f.run(t, resource.TestStep{Config: config}, resource.TestStep{Config: config, ConfigPlanChecks: plansNothing()})
}

func TestAccWaitThatRunsOutLeavesTheObjectsUntainted(t *testing.T) {
	f := newFleet(t)
	limit := "\n  timeouts = { create = \"2s\" }"
	config := f.config(imageBlock("sim:?boot_ms=600000"), poolBlock(limit),
		"resource \"fluxvm_vm\" \"one\" {\n  image = fluxvm_image.tiny.name\n  memory_mib = 160"+limit+"\n}")
	f.run(t, resource.TestStep{Config: config}, resource.TestStep{Config: config, ConfigPlanChecks: plansNothing()})
}

func TestAccImageThatDoesNotBootEndsTheWait(t *testing.T) {
	f := newFleet(t)
	vm := "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n  memory_mib = 160\n}"
	broken := imageBlock("sim:?boot_ms=20&fail=boot")
	f.run(t,
		resource.TestStep{Config: f.config(broken, poolBlock("")), ExpectError: regexp.MustCompile(`cannot\s+boot\s+its\s+VMs`)},
		resource.TestStep{Config: f.config(broken, vm), ExpectError: regexp.MustCompile(`failed\s+on`)},
		resource.TestStep{Config: f.config(imageBlock(f.image), vm), ConfigPlanChecks: plans(theVM, plancheck.ResourceActionReplace)},
	)
}

func TestAccTakenNameTellsHowToImport(t *testing.T) {
	f := newFleet(t)
	image := imageBlock(f.image)
	twice := func(kind, rest string) string {
		return "resource \"" + kind + "\" \"again\" {\n" + rest + "\n}"
	}
	vm := "resource \"fluxvm_vm\" \"one\" {\n  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name\n}"
	base := []string{image, poolBlock("  min_ready = 0"), vm}
	f.run(t,
		resource.TestStep{Config: f.config(base...)},
		resource.TestStep{Config: f.config(append(base, twice("fluxvm_image", "  name = \"NAME(tiny)\"\n  path = \"sim:\""))...),
			ExpectError: regexp.MustCompile(`terraform import fluxvm_image\.LABEL ` + f.name("tiny"))},
		resource.TestStep{Config: f.config(append(base, twice("fluxvm_pool", "  name = \"NAME(ci)\"\n  image = fluxvm_image.tiny.name"))...),
			ExpectError: regexp.MustCompile(`terraform import fluxvm_pool\.LABEL ` + f.name("ci"))},
		resource.TestStep{Config: f.config(append(base, twice("fluxvm_vm", "  name = \"NAME(one)\"\n  image = fluxvm_image.tiny.name"))...),
			ExpectError: regexp.MustCompile(`terraform import fluxvm_vm\.LABEL ` + f.name("one"))},
	)
}

func TestAccClusterIsReadable(t *testing.T) {
	f := newFleet(t)
	f.run(t, resource.TestStep{Config: f.config(`data "fluxvm_cluster" "this" {}`), ConfigStateChecks: []statecheck.StateCheck{
		is("data.fluxvm_cluster.this", "leader", some()), is("data.fluxvm_cluster.this", "id", some())}})
}
