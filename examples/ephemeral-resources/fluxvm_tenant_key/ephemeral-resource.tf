# A key for this run alone; it is revoked when the run ends.
ephemeral "fluxvm_tenant_key" "run" {
  tenant     = "acme"
  expires_in = "2h"
}

# What this provider makes is the tenant's, by the tenant's own rights.
provider "fluxvm" {
  alias = "acme"
  token = ephemeral.fluxvm_tenant_key.run.secret
}

resource "fluxvm_vm" "job" {
  provider = fluxvm.acme
  image    = "ubuntu-26-04"
}
