import {
  to = fluxvm_pool.ci
  identity = {
    name = "linux-ci"
  }
}
