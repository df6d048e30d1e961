// Package fleettest runs a whole fleet in one process: replicas of central with real logs on disk and nodes with real
// daemons, over loopback. `fluxvm-agent dev` is made of it, and tests are.
//
// It owns no behaviour of its own: what it starts is what fluxvm-agent central and node start. Being the one place
// that knows both sides, it may import them; only tests and cmd/fluxvm-agent may import it.
package fleettest
