import {
  to = fluxvm_image.ubuntu
  id = "ubuntu-26-04"
}
