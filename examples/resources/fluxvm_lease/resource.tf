# One host, renewed every week.
resource "fluxvm_lease" "build" {
  tenant     = "acme"
  node       = "studio-1"
  duration   = "7d"
  auto_renew = true
}

# Two more, whichever are free, for a month; it waits until the VMs of others are off them.
resource "fluxvm_lease" "release" {
  tenant        = "acme"
  node_selector = { chip = "m4-max" }
  node_count    = 2
  duration      = "30d"
  drain         = true
  depends_on    = [fluxvm_lease.build] # which names its host, and is to have it

  timeouts = {
    create = "1h"
  }
}

# What runs on a lease depends on it, so that it is destroyed first.
resource "fluxvm_pool" "ios" {
  name       = "ios-ci"
  tenant     = "acme"
  image      = "macos-27-xcode"
  min_ready  = 2
  depends_on = [fluxvm_lease.build]
}
