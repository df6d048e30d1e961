output "tenant" {
  description = "The tenant's name, known once the tenant is there: what an ephemeral fluxvm_tenant_key takes."
  value       = fluxvm_tenant.this.id
}

output "macs" {
  description = "The Macs that the tenant has, by name, and until when."
  value = merge(
    { for name, lease in fluxvm_lease.named : name => lease.ends_at },
    { for name in flatten(fluxvm_lease.any[*].nodes) : name => fluxvm_lease.any[0].ends_at },
  )
}

output "pools" {
  description = "The pools' names, by what they begin with."
  value       = { for key, pool in fluxvm_pool.this : key => pool.name }
}
