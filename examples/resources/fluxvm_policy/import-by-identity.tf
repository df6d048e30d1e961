# Terraform 1.12 or later.
import {
  to = fluxvm_policy.this
  identity = {
    id = "policy"
  }
}
