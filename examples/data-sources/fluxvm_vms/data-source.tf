# What runs now and carries this label.
data "fluxvm_vms" "compilers" {
  selector = { team = "compilers" }
}

output "addresses" {
  value = { for vm in data.fluxvm_vms.compilers.vms : vm.name => vm.ip if vm.state == "running" }
}
