resource "fluxvm_image" "ubuntu" {
  name       = "ubuntu-26-04"
  title      = "Ubuntu 26.04"
  path       = "/var/lib/fluxvm/images/ubuntu-26-04"
  vcpus      = 2
  memory_mib = 2048
  has_agent  = true
}
