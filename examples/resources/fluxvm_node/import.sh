terraform import fluxvm_node.studio studio-1
