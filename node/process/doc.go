//go:build linux

// Package process is what drivers share whose machines are processes of this host: a process held by its pidfd and
// found again by a later daemon, the control groups that bound it, a user of its own, and the way to the guest agent
// through a socket in the machine's directory.
//
// It knows nothing of QEMU, namespaces or the daemon. Drivers import it; node does not.
package process
