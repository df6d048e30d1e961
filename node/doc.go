// Package node is the daemon of one host. It owns the host's VMs: their records, their machines, their deadlines,
// and the HTTP API (/v1) by which the host is spoken to; and it tells every replica of central how the host is.
//
// It refuses to decide anything about the fleet: which host a VM goes to, who owns it, what it costs and when a
// pool is refilled are central's. It knows drivers only through package machine and imports none.
//
// Each VM has one goroutine that brings its machine to what its record wants, so orders on one VM never overlap
// and orders on many never wait for each other. A record is on disk before its effect begins, which is why a
// daemon that was killed finds every machine again. Deadlines count on the host's own monotonic clock: neither a
// jump of the wall clock nor a silent central moves one.
//
// The daemon is built by New, which does no I/O, and lives in Run. Commands and package fleettest call it.
package node
