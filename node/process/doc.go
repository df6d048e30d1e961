// Package process is what drivers share whose machines are processes of this host: the way to the guest agent and the
// end of a log on any system; on Linux a process held by its pidfd and found again by a later daemon, the control groups
// that bound it, a user of its own, and sockets in the machine's directory.
//
// It knows nothing of QEMU, namespaces or the daemon. Drivers import it; node does not.
package process
