// Package chaos runs a whole fleet of real processes, breaks it on purpose while clients work on it, and holds what
// they saw to what the fleet promises.
//
// Each replica and each host is a process in a network namespace of its own, each replica's data on a small disk of its
// own. One campaign is a pure function of its seed as far as faults and clients' choices go; how they fall into each
// other's time is the machine's. It checks three kinds of things: histories (every read as new as was promised, every
// name and every setting one atomic register), the hosts' own truth (no VM twice, no order of a deposed leader, no
// spare for two launches), and at the end, with all faults healed, the whole: what was acknowledged is there, nothing
// else is, sums agree, replicas are equal.
//
// It owns no part of the product and is linked into no program; go test runs it (make chaos). The checkers are tested
// by histories that break them, the campaign as a whole by programs with one fault built in (make chaos-bugs).
// Everything but the checkers needs Linux, root and unshare.
package chaos
