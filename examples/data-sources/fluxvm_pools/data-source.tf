data "fluxvm_pools" "all" {}

output "pools_that_wait" {
  value = { for p in data.fluxvm_pools.all.pools : p.name => p.wait_reason if p.wait_reason != null }
}
