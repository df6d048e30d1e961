//go:build linux

// Package qemu is two backends on one engine. Whole, the backend qemu, runs disk images as PCs: firmware, a disk of its
// own over the image, a cloud-init seed, a network with forwarded ports, a balloon when asked for. FluxVM, the backend
// flux-vm, runs micro-VMs: the fewest devices, direct kernel boot, a balloon always there, and saved states from which
// others start. Both have the guest agent of pkg/guest on a virtio-serial port. They need Linux 5.10 on x86-64 and QEMU
// 6.0 or later.
//
// # Images
//
// An image of qemu is a qcow2 or raw disk image, named by its absolute path, that names no other file. One of flux-vm is
// a directory:
//
//	vmlinuz                  a Linux kernel for x86-64 with a serial console
//	initrd or initrd.img     what it boots into; fluxvm-guest as /init makes a whole guest (scripts/guest-image)
//	image.json               optional: {"cmdline": "words for the kernel's command line", "arch": "amd64"}
//
// Nothing is written to an image, and many VMs share it. A micro-VM whose disk_size_gib is not 0 has an empty disk of
// that size as /dev/vda.
//
// # Machine directories
//
//	qemu.pid       process, its start time and the host's boot, so that a reused process id is never touched
//	qemu.log       what QEMU itself said since the last start
//	qmp.sock       QEMU's monitor        ga.sock   the guest agent's port
//	console.log    the end of the guest's console, bounded
//	cgroup         where its control group is
//	disk.raw       a micro-VM's disk, where there is one
//	disk.qcow2     a whole VM's, over the image; extra-N.qcow2 the further ones; seed.iso what cloud-init is to do
//
// # Saved states
//
// A machine is saved by handing its memory, over QEMU's migration, to a second QEMU whose memory is a file and which
// never runs the guest; that one writes the state of the devices beside it:
//
//	ram            the guest's memory, which nobody writes any more     state      everything else
//	disk.raw       the disk of that moment, where the original goes on
//
// A restored machine has ram as its memory, mapped so that what it writes is its own; the rest is shared, through the
// page cache, with all that were restored from hard links of it. What keeps the balloon from making holes in that file
// is in mask.go.
//
// # What holds a QEMU
//
// It starts with the guest halted, opens what it needs by names in its directory, and then, where the daemon is root,
// becomes a user of its own in a root that is that directory, of which it can open its disks again and nothing else.
// System calls that no VM needs are filtered, and its control group bounds memory and threads. Streams for saved states
// are handed to it open. Only then does the daemon let the guest run.
//
// The sockets are dialled through /proc/self/fd, so that a deep data directory does not meet the 108 bytes of a socket's
// path.
//
// A machine is a process in a session of its own, no child that dies with the daemon. The guest's console goes to
// a ring inside QEMU, and QEMU holds still at the guest's end instead of leaving. So neither a guest that floods
// its console nor one that ends while no daemon runs costs disk, or the reason why it ended.
//
// The package refuses to know of the daemon, its store, quotas and deadlines; node calls it through
// node/machine, and only cmd/fluxvm-agent names it.
package qemu
