import {
  to = fluxvm_policy.this
  id = "policy"
}
