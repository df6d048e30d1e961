# A tenant that has one Mac to itself, with two macOS VMs that wait booted on it.

terraform {
  required_providers {
    fluxvm = {
      source = "fluxvm/fluxvm"
    }
  }
}

provider "fluxvm" {}

variable "mac" {
  type        = string
  description = "The Mac to lease."
  default     = "studio-1"
}

variable "image" {
  type        = string
  description = "Catalog image with macOS."
  default     = "macos-27-xcode"
}

module "acme" {
  source = "../.."

  name           = "acme-mobile"
  macs           = [var.mac]
  lease_duration = "1d"
  auto_renew     = false
  quota          = { max_macos_guests = 2 }

  pools = {
    ios-ci = { image = var.image, min_ready = 2 }
  }
}

output "pools" {
  value = module.acme.pools
}

output "macs" {
  value = module.acme.macs
}
