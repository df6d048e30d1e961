# A fleet's first pool: an image, VMs of it that wait booted, and one VM taken from them.
# The provider finds the fleet by FLUXVM_FLEET_URL and FLUXVM_TOKEN.

terraform {
  required_providers {
    fluxvm = {
      source = "fluxvm/fluxvm"
    }
  }
}

provider "fluxvm" {}

variable "image_path" {
  type        = string
  description = "Where the hosts find the image: for Linux micro-VMs a directory with kernel and initrd."
}

variable "has_agent" {
  type        = bool
  description = "Whether the image starts FluxVM's guest agent."
  default     = true
}

variable "memory_mib" {
  type        = number
  description = "Memory of each VM in MiB."
  default     = 128
}

variable "min_ready" {
  type        = number
  description = "How many VMs to keep booted."
  default     = 2
}

resource "fluxvm_image" "demo" {
  name       = "demo"
  title      = "Tiny Linux"
  path       = var.image_path
  vcpus      = 1
  memory_mib = var.memory_mib
  has_agent  = var.has_agent
}

resource "fluxvm_pool" "demo" {
  name      = "demo"
  image     = fluxvm_image.demo.name
  min_ready = var.min_ready
}

resource "fluxvm_vm" "first" {
  name   = "first"
  pool   = fluxvm_pool.demo.name
  labels = { purpose = "demo" }
}

output "pool" {
  description = "The warm pool."
  value       = fluxvm_pool.demo.name
}

output "vm" {
  description = "The VM's name."
  value       = fluxvm_vm.first.name
}

output "warm" {
  description = "Whether the VM came booted from the pool."
  value       = fluxvm_vm.first.warm
}

output "claim_ms" {
  description = "How long the hand-over took, in milliseconds."
  value       = fluxvm_vm.first.claim_ms
}

output "cold_reason" {
  description = "Why the VM had to boot, if it had to."
  value       = fluxvm_vm.first.cold_reason
}

output "node" {
  description = "The host that runs it."
  value       = fluxvm_vm.first.node
}
