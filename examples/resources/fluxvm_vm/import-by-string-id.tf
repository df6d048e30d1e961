import {
  to = fluxvm_vm.build
  id = "build-42"
}
