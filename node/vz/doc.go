// Package vz is the vz backend: Linux and macOS guests on a Mac, by Apple's Virtualization framework. It needs a Mac
// with Apple silicon and macOS 14 or later.
//
// # Images
//
// An image is a directory, named by its absolute path. Nothing is written to it, and many VMs are cloned from it:
//
//	disk.img                    a raw disk; each VM gets a clone of it
//	hardware-model              macOS guests: what VZMacHardwareModel calls its data representation
//	aux.img                     macOS guests: the auxiliary storage that the installation left
//	vmlinuz, initrd(.img)       Linux guests that boot a kernel directly; it must be an uncompressed Image for arm64
//	image.json                  optional; see manifest
//
// With hardware-model it is a macOS guest's, with vmlinuz a Linux kernel's, else the disk boots by EFI.
//
// # Machine directories
//
//	machine.json   the plan that the helper carries out       disk.img, extra-N.img   the disks
//	machine-id     the machine identifier, made once          aux.img, efi-vars       what the firmware writes
//	vz.lock        held while the helper lives; its pid       vz.sock                 where the helper listens
//	vz-end.json    why the guest ended, if it did             vz.log                  what the helper said
//	console.log    the end of the guest's console, bounded
//
// # One helper a VM
//
// A guest of the framework dies with the process that made it. So each VM is held by a process of its own, the helper,
// which outlives the daemon; the next daemon finds it by the lock and the socket and takes the VM over. The helper knows
// the plan and nothing else: no quota, no deadline, no HTTP. It obeys whoever can open the socket, which only the
// daemon's user can.
//
// Everything here but host_darwin_arm64.go is plain Go and is tested on any system, with a guest behind the same
// interface (Guest) that runs nothing. That one file turns a Plan into calls of the framework and decides nothing.
//
// The package refuses to know of the daemon, its store, quotas and deadlines; node calls it through node/machine, and
// only packages below cmd name it.
package vz
