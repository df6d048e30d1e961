# Terraform 1.12 or later.
import {
  to = fluxvm_node.studio
  identity = {
    name = "studio-1"
  }
}
