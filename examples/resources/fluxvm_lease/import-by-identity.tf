import {
  to = fluxvm_lease.build
  identity = {
    id = "0b7e2f64-3f0c-4a8e-8f0e-2f5e3c1d9a10"
  }
}
