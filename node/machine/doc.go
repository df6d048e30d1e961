// Package machine is the contract between the host daemon and the drivers that run machines: what a driver is
// asked, from which goroutine, and what it promises. It holds no behaviour. Drivers import it and never the
// daemon; the daemon imports it and never a driver (cmd/fluxvm-agent brings the two together).
package machine
