// Command fluxvm-agent runs the parts of a fleet: a replica of the control plane (central), the daemon of a host
// (node), or a whole fleet for trying things out (dev). It holds flags, signals and wiring only.
package main
