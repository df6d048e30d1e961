// Package client speaks to FluxVM: Client to the fleet API of the central replicas, Host to one node's own API.
//
// It owns what every caller needs and would get wrong alone: finding a replica that answers, waiting out an
// election, sending a request again only when that is safe, one idempotency key for all tries of one POST, pages
// that read as one list, and an event stream that survives the loss of a replica. Failures are *api.Error (use
// errors.As or errors.Is with a code); when no replica gave an answer the error is also an *UnreachableError.
//
// It refuses to keep state, to log, and to decide what a refusal means for its caller. The command line, the
// Terraform provider and the runner scaler are its users. All methods may be called from many goroutines.
package client
