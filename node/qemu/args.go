//go:build linux

package qemu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

// Names in a machine's directory; QEMU runs there and is told no paths.
const (
	pidFile       = "qemu.pid"
	logFile       = "qemu.log"
	groupFile     = "cgroup"
	monitorSocket = "qmp.sock"
	agentSocket   = "ga.sock"
	consoleFile   = "console.log"
)

const (
	consoleDevice = "con0"
	balloonID     = "balloon0"

	// consoleRing is how much of the guest's console QEMU keeps, in bytes; a power of two.
	consoleRing = 256 << 10
)

// filterArgs deny QEMU the system calls that a VM never needs, and starting other programs. keepUser goes with them
// where QEMU has no other user to become.
const (
	filterArgs = "on,obsolete=deny,spawn=deny,resourcecontrol=deny"
	keepUser   = ",elevateprivileges=deny"
)

// board is in what the two drivers' machines differ.
type board struct {
	onReset string   // what a guest that restarts itself does: shutdown or reset
	chipset []string // with where the memory lies
	boots   []string // what the firmware or the kernel begins with
	devices []string
	network string
}

// arguments are QEMU's for the machine.
func (e *Engine) arguments(h host, spec machine.Spec, b board) []string {
	args := []string{
		"-uuid", spec.ID, "-nodefaults", "-no-user-config", "-display", "none",
		// At its end the guest is held, so that its last words and the reason can be read; see doc.go. It begins once the
		// daemon says so, which is after QEMU has let go of what it needs no more.
		"-action", "reboot=" + b.onReset + ",shutdown=pause", "-S",
	}
	args = append(args, b.chipset...)
	args = append(args, h.processor(e.cfg)...)
	args = append(args, "-smp", strconv.Itoa(max(1, spec.VCPUs)), "-m", fmt.Sprintf("%dM", spec.MemoryMiB))
	args = append(args, b.boots...)
	args = append(args,
		"-qmp", "unix:"+monitorSocket+",server=on,wait=off",
		"-chardev", fmt.Sprintf("ringbuf,id=%s,size=%d", consoleDevice, consoleRing), "-serial", "chardev:"+consoleDevice,
		"-device", "virtio-serial-pci",
		"-chardev", "socket,path="+agentSocket+",server=on,wait=off,id=ga0",
		"-device", "virtserialport,chardev=ga0,name="+guest.PortName,
	)
	args = append(args, balloonOf(spec).arguments()...)
	args = append(args, "-device", "virtio-rng-pci", "-device", "vmgenid,guid=auto") // the latter tells a kernel that knows it that it was copied
	args = append(args, b.devices...)
	if b.network != "" {
		args = append(args, "-netdev", b.network, "-device", "virtio-net-pci,netdev=net0,romfile=")
	}
	return append(args, h.confinement(spec.ID, !e.cfg.OpenNetwork)...)
}

// confinement are the arguments that take from QEMU what it does not need. All that it uses is open by the time it
// changes its user: from then on it can open its own disks again and no other file. A network that resolves names has to.
func (h host) confinement(id string, ownDisksOnly bool) (args []string) {
	filter := filterArgs
	if h.drop == "" {
		filter += keepUser
	}
	if h.filter {
		args = []string{"-sandbox", filter}
	}
	user := strconv.Itoa(process.UserOf(id))
	switch {
	case h.drop == dropRunAs && ownDisksOnly:
		return append(args, "-runas", user+":"+user, "-chroot", ".")
	case h.drop == dropRunAs:
		return append(args, "-runas", user+":"+user)
	case h.drop == dropRunWith && ownDisksOnly:
		return append(args, "-run-with", "user="+user+":"+user+",chroot=.")
	case h.drop == dropRunWith:
		return append(args, "-run-with", "user="+user+":"+user)
	}
	return args
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// processor are the arguments that the proof of an accelerator shares with real machines.
func (h host) processor(cfg Config) []string {
	if h.accel == accelKVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", fmt.Sprintf("tcg,thread=multi,tb-size=%d", cfg.TranslationMiB), "-cpu", "max"}
}

// userNetwork is a network in which the guest reaches nobody unless the configuration opens it.
func (e *Engine) userNetwork(forwards []api.PortForward) string {
	var b strings.Builder
	b.WriteString("user,id=net0")
	if !e.cfg.OpenNetwork {
		b.WriteString(",restrict=on")
	}
	for _, f := range forwards {
		fmt.Fprintf(&b, ",hostfwd=tcp:127.0.0.1:%d-:%d", f.HostPort, f.GuestPort)
	}
	return b.String()
}
