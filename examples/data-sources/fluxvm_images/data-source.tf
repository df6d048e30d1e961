data "fluxvm_images" "linux" {
  guest_os = "linux"
}

output "images" {
  value = data.fluxvm_images.linux.images[*].name
}
