terraform {
  required_version = ">= 1.11"

  required_providers {
    fluxvm = {
      source = "fluxvm/fluxvm"
    }
  }
}

resource "fluxvm_tenant" "this" {
  name                = var.name
  quota               = var.quota
  default_ttl_seconds = var.default_ttl_seconds
  max_ttl_seconds     = var.max_ttl_seconds
}

# Named Macs have a lease each, so that one can be given back without the others.
resource "fluxvm_lease" "named" {
  for_each = var.macs

  tenant     = fluxvm_tenant.this.name
  node       = each.value
  duration   = var.lease_duration
  auto_renew = var.auto_renew
  drain      = var.drain
}

resource "fluxvm_lease" "any" {
  count = var.any_macs == null ? 0 : 1

  tenant        = fluxvm_tenant.this.name
  node_selector = var.any_macs.selector
  node_count    = var.any_macs.count
  duration      = var.lease_duration
  auto_renew    = var.auto_renew
  drain         = var.drain
}

resource "fluxvm_pool" "this" {
  for_each = var.pools

  name_prefix   = "${each.key}-"
  tenant        = fluxvm_tenant.this.name
  image         = each.value.image
  vcpus         = each.value.vcpus
  memory_mib    = each.value.memory_mib
  disk_size_gib = each.value.disk_size_gib
  min_ready     = each.value.min_ready
  max_total     = each.value.max_total
  nodes         = each.value.nodes

  # Its VMs run on the leased Macs: they come after the leases, and go before them.
  depends_on = [fluxvm_lease.named, fluxvm_lease.any]

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = length(setsubtract(coalesce(each.value.nodes, []), var.macs)) == 0 || var.any_macs != null
      error_message = "Pool ${each.key} names Macs that are not leased; add them to macs."
    }
  }
}
