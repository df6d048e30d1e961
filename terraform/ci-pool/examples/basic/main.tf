# Four VMs that wait booted, and one job's VM taken from them for an hour.

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

module "ci" {
  source = "../.."

  name       = "linux-ci"
  image      = "ci-tiny"
  image_path = var.image_path
  memory_mib = 128
  min_ready  = 4
  max_total  = 12
}

resource "fluxvm_vm" "job" {
  pool        = module.ci.pool
  ttl_seconds = 3600
}

output "pool" {
  value = module.ci.pool
}

output "warm" {
  value = fluxvm_vm.job.warm
}
