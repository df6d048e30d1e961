terraform import fluxvm_pool.ci linux-ci
