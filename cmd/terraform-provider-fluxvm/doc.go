// Command terraform-provider-fluxvm serves the FluxVM provider to Terraform and OpenTofu, which start it.
//
// It owns the plugin's address and its -debug flag, and refuses to own anything else: the provider is in package
// provider.
package main
