# Terraform 1.12 or later.
import {
  to = fluxvm_pool.ci
  identity = {
    name = "linux-ci"
  }
}
