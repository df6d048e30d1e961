// Package consensus keeps one ordered log of commands the same on every replica of a fleet.
//
// It owns hashicorp/raft and everything needed to run it safely: the bolt store and its guards, the identity of
// a data directory, the cluster port, leadership, verified reads, and the watchdogs that end a process which can
// neither lead nor follow. What a command means, who may propose one, and what a client is told is not its
// business: the replicated state comes in as an FSM and commands are bytes.
//
// Callers are the parts of one central replica. Every method of Node may be called from any goroutine; the
// methods of an FSM are called one at a time, from Open while it restores and later from raft's own goroutine.
//
// A failed operation is an *api.Error that says which of two things is true: nothing was applied (not_leader,
// unavailable, too_large, conflict), or nobody can say yet (outcome_unknown).
package consensus
