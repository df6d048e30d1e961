# What terraform.tfstate beside this was made of.

terraform {
  required_providers {
    fluxvm = {
      source = "fluxvm/fluxvm"
    }
  }
}

resource "fluxvm_image" "tiny" {
  name       = "v0-tiny"
  path       = "sim:?boot_ms=50&agent_ms=50"
  memory_mib = 128
  has_agent  = true
}

resource "fluxvm_tenant" "acme" {
  name            = "v0-acme"
  quota           = { max_vms = 4, max_pools = 0 }
  max_ttl_seconds = 7200
}

resource "fluxvm_tenant_key" "ci" {
  tenant     = fluxvm_tenant.acme.name
  expires_in = "30d"
}

resource "fluxvm_lease" "host" {
  tenant   = fluxvm_tenant.acme.name
  node     = "node-3"
  duration = "2h"
}

resource "fluxvm_pool" "ci" {
  name      = "v0-ci"
  image     = fluxvm_image.tiny.name
  min_ready = 0
  nodes     = ["node-4"]
}

resource "fluxvm_vm" "one" {
  name   = "v0-one"
  image  = fluxvm_image.tiny.name
  node   = "node-4"
  labels = { team = "build" }
}

resource "fluxvm_node" "host" {
  name     = "node-4"
  cordoned = true
  reason   = "kept as it is"

  depends_on = [fluxvm_vm.one]
}

resource "fluxvm_policy" "this" {}
