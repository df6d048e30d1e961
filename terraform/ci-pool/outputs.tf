output "pool" {
  description = "Name of the pool: what a runner's VM body or a launch names."
  value       = fluxvm_pool.this.name
}

output "image" {
  description = "Name of its image."
  value       = fluxvm_pool.this.image
}

output "vm" {
  description = "The size of each of its VMs."
  value = {
    vcpus         = fluxvm_pool.this.vcpus
    memory_mib    = fluxvm_pool.this.memory_mib
    disk_size_gib = fluxvm_pool.this.disk_size_gib
  }
}
