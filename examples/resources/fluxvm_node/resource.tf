# No new VMs on this host while its disk is replaced; those on it stay.
resource "fluxvm_node" "studio" {
  name     = "studio-1"
  cordoned = true
  reason   = "disk is being replaced"
}
