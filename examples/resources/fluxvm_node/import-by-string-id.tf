import {
  to = fluxvm_node.studio
  id = "studio-1"
}
