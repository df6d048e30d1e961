import {
  to = fluxvm_pool.ci
  id = "linux-ci"
}
