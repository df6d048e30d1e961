# Hosts in the lab that take VMs.
data "fluxvm_nodes" "lab" {
  state    = "healthy"
  selector = { zone = "lab" }
}

output "free_memory_mib" {
  value = sum(concat([0], [for n in data.fluxvm_nodes.lab.nodes : n.free_memory_mib if !n.cordoned]))
}
