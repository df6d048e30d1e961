terraform import fluxvm_image.ubuntu ubuntu-26-04
