terraform import fluxvm_policy.this policy
