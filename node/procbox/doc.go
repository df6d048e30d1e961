//go:build linux

// Package procbox is the backend for hosts without a hypervisor: a box is a tree of processes in namespaces of its own
// (user, mount, process ids, host name, IPC, network, control groups) with fluxvm-guest as its process 1 and agent. It
// runs on the host's kernel: what it is kept from is what that kernel keeps it from. It needs Linux 5.12 and control
// groups of either version with a memory controller.
//
// # Images
//
// Without an image, or with the image "host", a box sees the host's programs (/usr and what belongs to it), read-only.
// An image is the absolute path of a directory that holds the root of a Linux system: /etc is copied from it and the
// rest is seen read-only. /root, /home, /tmp, /run and /etc can be written to; they are in memory, bounded with the rest
// of the box, and gone after a stop.
//
// # What holds a box
//
// Root in a box is a user that no file of the host belongs to: the daemon's own where the daemon is not root, else one of
// the box's own. What runs in it has no capabilities, may not get any by running programs or by making user
// namespaces, and has a network with a loopback only. Its control group bounds memory, processes and processor time.
//
// # Machine directories
//
//	box.pid       process 1, its start time and the host's boot     ga.sock   where the agent listens
//	console.log   what process 1 and the agent say, bounded         cgroup    the control group
//
// Nothing of the directory can be reached from the box: it is handed open files. The package refuses to know of the
// daemon; node calls it through node/machine, and only commands name it.
package procbox
