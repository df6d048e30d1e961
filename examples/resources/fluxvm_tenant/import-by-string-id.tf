import {
  to = fluxvm_tenant.acme
  id = "acme"
}
