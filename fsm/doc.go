// Package fsm is the replicated truth of a fleet as a pure function of the log: which images, nodes, pools and VMs
// there are, who holds what, and which request had which effect. Everything that must have one winner is decided
// here, inside one command, on committed rows.
//
// It refuses to know the time, to make ids, to read or write anything, to log, to start goroutines: time and ids
// arrive inside the command. A refusal is a value (*api.Error) and changes nothing. It reaches no node; it only
// records what a node must be told (VM.Order) and what the node has confirmed (VM.Told).
//
// Central calls Apply from the Raft apply goroutine only. Views may be read from any goroutine and never block it.
package fsm
