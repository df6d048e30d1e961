// Package central is one replica of the control plane: the fleet's HTTP API, a member of the consensus, the memory
// of what nodes report, and, while it leads, the reconcilers that bring about what the state asks for.
//
// It owns no truth: that is package fsm's, reached by proposing commands. It runs no machine: that is the node
// daemons', reached by fenced, repeatable HTTP orders. Decisions (rank, decidePool, observe) are pure functions;
// the code around them only fetches views and carries actions out.
//
// cmd/fluxvm-agent and pkg/fleettest start replicas with New and Run.
package central
