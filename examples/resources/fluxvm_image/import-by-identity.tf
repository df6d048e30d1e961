import {
  to = fluxvm_image.ubuntu
  identity = {
    name = "ubuntu-26-04"
  }
}
