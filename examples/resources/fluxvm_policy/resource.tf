# A fleet has one. What is left out has its default.
resource "fluxvm_policy" "this" {
  min_lease_hours    = 24
  max_boots_per_node = 2
}
