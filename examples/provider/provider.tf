terraform {
  required_providers {
    fluxvm = {
      source = "fluxvm/fluxvm"
    }
  }
}

# Everything can come from the environment: FLUXVM_FLEET_URL, FLUXVM_TOKEN, FLUXVM_CA_CERT.
provider "fluxvm" {
  endpoints = [
    "https://central-1.example.com:7799",
    "https://central-2.example.com:7799",
    "https://central-3.example.com:7799",
  ]
  ca_cert = "/etc/fluxvm/ca.pem"
}
