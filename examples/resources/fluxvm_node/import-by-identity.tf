import {
  to = fluxvm_node.studio
  identity = {
    name = "studio-1"
  }
}
