# Taken from a warm pool: it runs at once, and the fleet deletes it after two hours.
resource "fluxvm_vm" "build" {
  name        = "build-42"
  pool        = "linux-ci"
  ttl_seconds = 7200
  labels      = { team = "compilers" }
}

# Booted from an image, with a size of its own.
resource "fluxvm_vm" "database" {
  name          = "database"
  image         = "ubuntu-26-04"
  vcpus         = 4
  memory_mib    = 8192
  node_selector = { disk = "nvme" }
}

# Set up at its first boot. Terraform keeps nothing of cloud_init; another version makes a new VM.
variable "registry_token" {
  type      = string
  ephemeral = true
  default   = null
}

resource "fluxvm_vm" "registry" {
  name               = "registry"
  image              = "ubuntu-26-04"
  cloud_init_version = 1
  cloud_init = {
    packages = ["docker-registry"]
    write_files = [{
      path        = "/etc/registry/token"
      content     = var.registry_token
      permissions = "0600"
    }]
  }
}
