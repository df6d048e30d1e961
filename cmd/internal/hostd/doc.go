// Package hostd is the command that runs a host's daemon: flags, environment, configuration file, signals, and the
// choice of drivers. `fluxvm-agent node` and `fluxctl serve` are this one command, with and without a fleet.
//
// It refuses to do what the daemon does (package node) and holds no state.
package hostd
