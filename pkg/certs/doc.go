// Package certs says who is at the other end of a TLS connection. It makes the fleet's certificates, reads the identity
// that they carry, and keeps a process's own ones fresh while it runs.
//
// An identity is a role and a name, written as a URI into the certificate (fluxvm://replica/central-1): addresses
// change, identities do not, and one that may speak for a node says nothing about replicas. Who is a member, and which
// node lives where, is not known here: callers say what they accept. It issues no certificate by itself and stores no
// key of an authority.
//
// fluxctl tls makes authorities and certificates; central and node daemons open a Source each.
package certs
