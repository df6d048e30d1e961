data "fluxvm_usage" "january" {
  from     = "2026-01-01T00:00:00Z"
  to       = "2026-02-01T00:00:00Z"
  group_by = ["tenant", "day"]
}

output "cost" {
  value = { for i in data.fluxvm_usage.january.items : "${coalesce(i.tenant, "operator")} ${i.day}" => i.amount_micros / 1000000 }
}
