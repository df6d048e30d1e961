//go:build linux || darwin

// fluxvm-guest runs inside guests. As process 1 it is the whole init system of a micro-VM: it mounts the kernel's
// file systems, loads the modules that the image lists, names the host, brings the network up, starts the agent as
// a child and reaps what dies. Under any other process id it is the agent alone, for guests with an init of
// their own.
//
// Init and agent are two processes on purpose: init reaps every child there is, which would race the agent waiting
// for the commands it runs; and an agent that dies is simply started again.
//
// What the image may hold for it:
//
//	/lib/modules/fluxvm.list   kernel modules, one path a line, in the order to load them
//	/bin/busybox               for the network's DHCP, with /etc/udhcpc.script
//
// and on the kernel's command line: fluxvm.hostname=NAME.
package main
