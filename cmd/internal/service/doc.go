// Package service makes the daemons services of the host's init system (fluxctl service), and tells that system how they
// are (Notify). What the services are is written in examples/deploy; this package fills in paths and runs systemctl or
// launchctl. It refuses to know what a daemon does.
package service
