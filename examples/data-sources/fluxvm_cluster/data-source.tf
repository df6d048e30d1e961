data "fluxvm_cluster" "this" {}

check "replicas" {
  assert {
    condition     = alltrue([for r in data.fluxvm_cluster.this.replicas : r.healthy])
    error_message = "A replica of the control plane does not answer."
  }
}
