import {
  to = fluxvm_vm.build
  identity = {
    id = "3f9d1c52-6a3e-4b7a-9a57-0c1b5d0f7e21"
  }
}
