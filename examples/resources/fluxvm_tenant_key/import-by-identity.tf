import {
  to = fluxvm_tenant_key.dashboard
  identity = {
    tenant = "acme"
    id     = "6f1c0d0e-5b1a-4a53-9d0b-1f6a2d6f5b77"
  }
}
