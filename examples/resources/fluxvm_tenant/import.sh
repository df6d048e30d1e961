terraform import fluxvm_tenant.acme acme
