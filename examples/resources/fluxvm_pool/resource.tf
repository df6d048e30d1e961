# Keeps four VMs booted, on hosts in the lab, and never has more than twelve.
resource "fluxvm_pool" "ci" {
  name          = "linux-ci"
  image         = "ubuntu-26-04"
  min_ready     = 4
  max_total     = 12
  node_selector = { zone = "lab" }

  timeouts = {
    create = "15m"
  }
}
