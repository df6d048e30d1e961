# Terraform 1.12 or later.
import {
  to = fluxvm_image.ubuntu
  identity = {
    name = "ubuntu-26-04"
  }
}
