// Package provider is Terraform's view of a FluxVM fleet: images, warm pools, virtual machines, tenants with
// their keys, leases and the policy as resources, what changes by itself as data sources, and the key of one run as an
// ephemeral resource.
//
// It owns how plans read: what is replaced, what changes in place, what counts as drift, how long an apply waits
// and what a failure says. Every create carries one idempotency key over its tries, an object's identity is saved
// before anything is waited for, and a wait that runs out is a warning.
//
// It refuses to know how the fleet works: pkg/client does the talking, pkg/api says what is valid.
// cmd/terraform-provider-fluxvm serves it to Terraform.
package provider
