// Package cli is fluxctl: its commands, how they read what a person types, and how they say what happened.
//
// It owns words, tables, exit codes, contexts and completion. It refuses to own any rule of the fleet: what may be
// done is decided by the API, which it reaches through pkg/client. Nothing here reads the process's own streams,
// environment or clock: cmd/fluxctl hands them over as an Env, and so do the tests.
package cli
