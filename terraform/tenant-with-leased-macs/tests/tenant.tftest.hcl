# Without a fleet: a mock provider answers.

mock_provider "fluxvm" {
  mock_resource "fluxvm_lease" {
    defaults = {
      nodes   = ["studio-8", "studio-9"]
      ends_at = "2027-01-08T00:00:00.000Z"
    }
  }
}

variables {
  name = "acme"
}

run "a_tenant_alone" {
  command = plan

  assert {
    condition     = fluxvm_tenant.this.name == "acme" && fluxvm_tenant.this.quota == null
    error_message = "The tenant is not the one that the variables describe."
  }

  assert {
    condition     = length(fluxvm_lease.named) + length(fluxvm_lease.any) + length(fluxvm_pool.this) == 0
    error_message = "Something is made that was not asked for."
  }
}

run "macs_and_pools" {
  variables {
    quota    = { max_macos_guests = 4, max_leases = 0 }
    macs     = ["studio-1", "studio-2"]
    any_macs = { selector = { chip = "m4-max" }, count = 2 }
    pools    = { ios-ci = { image = "macos-27-xcode", min_ready = 2, nodes = ["studio-1"] } }
  }

  assert {
    condition     = fluxvm_tenant.this.quota.max_leases == 0 && fluxvm_tenant.this.quota.max_vms == null
    error_message = "0, none at all, is not kept apart from no limit."
  }

  assert {
    condition     = fluxvm_lease.named["studio-2"].tenant == "acme" && fluxvm_lease.named["studio-2"].auto_renew && fluxvm_lease.named["studio-2"].duration == "7d"
    error_message = "The named Macs are not leased for the tenant."
  }

  assert {
    condition     = fluxvm_lease.any[0].node_count == 2 && fluxvm_lease.any[0].node_selector["chip"] == "m4-max"
    error_message = "The other Macs are not leased."
  }

  assert {
    condition     = fluxvm_pool.this["ios-ci"].tenant == "acme" && fluxvm_pool.this["ios-ci"].min_ready == 2 && output.pools["ios-ci"] == fluxvm_pool.this["ios-ci"].name
    error_message = "The pool is not the tenant's, or the output does not name it."
  }

  assert {
    condition     = toset(keys(output.macs)) == toset(["studio-1", "studio-2", "studio-8", "studio-9"])
    error_message = "The output macs does not list every leased Mac."
  }
}

run "bad_values_are_refused" {
  command = plan

  variables {
    name            = "operator"
    quota           = { max_vms = -1 }
    macs            = ["a/b"]
    any_macs        = { selector = {} }
    lease_duration  = "a week"
    pools           = { Bad = { image = "x" } }
    max_ttl_seconds = 0
  }

  expect_failures = [var.name, var.quota, var.macs, var.any_macs, var.lease_duration, var.pools, var.max_ttl_seconds]
}

run "a_pool_on_a_mac_that_is_not_leased" {
  command = plan

  variables {
    macs  = ["studio-1"]
    pools = { ios-ci = { image = "macos-27-xcode", nodes = ["studio-7"] } }
  }

  expect_failures = [fluxvm_pool.this["ios-ci"]]
}
