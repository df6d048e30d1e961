import {
  to = fluxvm_tenant.acme
  identity = {
    name = "acme"
  }
}
