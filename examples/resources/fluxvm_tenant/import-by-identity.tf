# Terraform 1.12 or later.
import {
  to = fluxvm_tenant.acme
  identity = {
    name = "acme"
  }
}
