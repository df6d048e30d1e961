# Its secret is in the state, which store_secret says yes to. A replacement is there before this key is revoked.
resource "fluxvm_tenant_key" "runner" {
  tenant       = "acme"
  expires_in   = "90d"
  store_secret = true

  lifecycle {
    create_before_destroy = true
  }
}

# Made with fluxctl fleet key-create acme --role viewer, which showed the secret, and then imported: the secret is not
# in the state.
resource "fluxvm_tenant_key" "dashboard" {
  tenant = "acme"
  role   = "viewer"
}

output "runner_token" {
  value     = fluxvm_tenant_key.runner.secret
  sensitive = true
}
