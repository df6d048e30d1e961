import {
  to = fluxvm_policy.this
  identity = {
    id = "policy"
  }
}
