// Package guard holds an HTTP listener's callers to limits: how often one may ask or be refused, how many requests may
// be under way, how long a body may take, and by which name a listener on loopback may be called.
//
// It knows no token and no route. Central and the node daemon ask it before and after they find out who calls.
package guard
