data "fluxvm_pool" "ci" {
  name = "linux-ci"
}

output "ready" {
  value = "${data.fluxvm_pool.ci.ready} of ${data.fluxvm_pool.ci.min_ready} are ready"
}
