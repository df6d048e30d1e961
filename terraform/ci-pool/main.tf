terraform {
  required_version = ">= 1.11"

  required_providers {
    fluxvm = {
      source = "fluxvm/fluxvm"
    }
  }
}

resource "fluxvm_image" "this" {
  count = var.image_path == null ? 0 : 1

  name          = var.image
  path          = var.image_path
  guest_os      = var.guest_os
  vcpus         = coalesce(var.vcpus, 1)
  memory_mib    = coalesce(var.memory_mib, 512)
  disk_size_gib = coalesce(var.disk_size_gib, 0)
  has_agent     = var.has_agent
}

resource "fluxvm_pool" "this" {
  name_prefix   = "${var.name}-"
  tenant        = var.tenant
  image         = var.image_path == null ? var.image : fluxvm_image.this[0].name
  vcpus         = var.vcpus
  memory_mib    = var.memory_mib
  disk_size_gib = var.disk_size_gib
  min_ready     = var.min_ready
  max_total     = var.max_total
  node_selector = var.node_selector
  nodes         = var.nodes
  wait_ready    = var.wait_ready

  timeouts = {
    create = var.ready_within
    update = var.ready_within
  }

  lifecycle {
    create_before_destroy = true

    precondition {
      condition     = var.max_total == null || coalesce(var.max_total, 0) >= var.min_ready
      error_message = "max_total must not be below min_ready (${var.min_ready})."
    }
  }
}
