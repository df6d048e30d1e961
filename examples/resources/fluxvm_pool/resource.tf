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

# Moves to another image without a gap: the new pool, under a name of its own, is full before the old one goes.
resource "fluxvm_pool" "nightly" {
  name_prefix = "nightly-"
  image       = "ubuntu-26-04"

  lifecycle {
    create_before_destroy = true
  }
}
