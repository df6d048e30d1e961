# By id or by name.
terraform import fluxvm_vm.build build-42
