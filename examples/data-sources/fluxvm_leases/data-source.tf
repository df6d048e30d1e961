data "fluxvm_leases" "acme" {
  tenant = "acme"
  state  = "active"
}

output "hosts" {
  value = flatten(data.fluxvm_leases.acme.leases[*].nodes)
}
