# Up to 20 VMs, two of them with macOS, and no lease. What is left out has no limit.
resource "fluxvm_tenant" "acme" {
  name = "acme"

  quota = {
    max_vms          = 20
    max_memory_mib   = 65536
    max_macos_guests = 2
    max_leases       = 0
  }

  # This one may take VMs from shared pools, whatever the fleet's policy says of others.
  policy = {
    allow_shared_pool_claims = true
  }

  default_ttl_seconds = 14400
  max_ttl_seconds     = 604800
}
