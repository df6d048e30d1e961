// Package api holds the words that every part of FluxVM fleet shares: the wire types of the fleet API (central)
// and of the host API (node), the rules their values obey, and the closed set of error codes.
//
// It refuses to know how anything is carried or kept: no network, no files, no clock, no log. Central, nodes,
// the command line and the Terraform provider all import it, and so does the replicated state machine.
package api
