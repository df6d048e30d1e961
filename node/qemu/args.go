//go:build linux

package qemu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

// Names in a machine's directory; QEMU runs there and is told no paths.
const (
	pidFile       = "qemu.pid"
	logFile       = "qemu.log"
	monitorSocket = "qmp.sock"
	agentSocket   = "ga.sock"
	consoleFile   = "console.log"
	diskFile      = "disk.raw"

	incomingSocket = "in.sock"    // where a saved state comes in
	stateSocket    = "state.sock" // where the state of devices goes out
	ramFile        = "ram"        // of a saved state: the guest's memory
	stateFile      = "state"      // and all the rest of it
)

const (
	consoleDevice = "con0"
	balloonDevice = "balloon0"

	// consoleRing is how much of the guest's console QEMU keeps, in bytes; a power of two.
	consoleRing = 256 << 10
)

// sandboxArgs deny QEMU the system calls that a micro-VM never needs, and starting other programs.
const sandboxArgs = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

// memory is where a machine's memory lies. The zero value: with nobody else, and the machine boots.
type memory struct {
	file   string // in it, and the machine waits for a saved state; relative to the machine's directory
	shared bool   // what the guest writes goes to the file
	eager  bool   // all of it is read at the start, and nothing is shared
}

// arguments are QEMU's for the machine.
func arguments(h host, cfg Config, img image, spec machine.Spec, mem memory) []string {
	name := spec.Name
	if name == "" {
		name = spec.ID
	}
	kernel := "console=ttyS0 quiet panic=-1 fluxvm.hostname=" + name
	if img.cmdline != "" {
		kernel += " " + img.cmdline
	}
	args := []string{
		"-uuid", spec.ID, "-nodefaults", "-no-user-config", "-display", "none",
		// At its end the guest is held, so that its last words and the reason can be read; see doc.go.
		"-action", "reboot=shutdown,shutdown=pause",
	}
	args = append(args, mem.arguments(spec.MemoryMiB)...)
	args = append(args, h.processor(cfg)...)
	args = append(args,
		"-smp", strconv.Itoa(max(1, spec.VCPUs)), "-m", fmt.Sprintf("%dM", spec.MemoryMiB),
		"-kernel", img.kernel, "-initrd", img.initrd, "-append", kernel,
		"-qmp", "unix:"+monitorSocket+",server=on,wait=off",
		"-chardev", fmt.Sprintf("ringbuf,id=%s,size=%d", consoleDevice, consoleRing), "-serial", "chardev:"+consoleDevice,
		"-device", "virtio-serial-pci",
		"-chardev", "socket,path="+agentSocket+",server=on,wait=off,id=ga0",
		"-device", "virtserialport,chardev=ga0,name="+guest.PortName,
		"-device", "virtio-balloon-pci,id="+balloonDevice+",deflate-on-oom=on,free-page-reporting=on",
		"-device", "virtio-rng-pci",
		"-device", "vmgenid,guid=auto", // tells a kernel that knows it that it was copied
	)
	if spec.DiskSizeGiB > 0 {
		// Without discards: launch hides those of a restored machine from the kernel, and a copy must have the devices
		// of its original.
		args = append(args, "-drive", "file="+diskFile+",format=raw,if=none,id=disk0,discard=ignore,cache=writeback", "-device", "virtio-blk-pci,drive=disk0,discard=off,write-zeroes=off")
	}
	if net := userNetwork(cfg, spec); net != "" {
		args = append(args, "-netdev", net, "-device", "virtio-net-pci,netdev=net0,romfile=")
	}
	if h.sandbox {
		args = append(args, "-sandbox", sandboxArgs)
	}
	return args
}

func (m memory) arguments(sizeMiB int64) []string {
	const board = "q35,sata=off,smbus=off,vmport=off"
	if m.file == "" {
		return []string{"-M", board}
	}
	// The id is the name that a machine without a file gives to its memory: states of both go into both.
	backend := fmt.Sprintf("memory-backend-file,id=pc.ram,size=%dM,mem-path=%s,share=%s", sizeMiB, m.file, onOff(m.shared))
	if m.eager {
		backend += ",prealloc=on"
	}
	return []string{"-M", board + ",memory-backend=pc.ram", "-object", backend, "-S", "-incoming", "defer"}
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

// userNetwork is the guest's network; empty unless the request asks for one, for a device costs boot time.
func userNetwork(cfg Config, spec machine.Spec) string {
	n := spec.Network
	if n == nil || n.Mode != "nat" && len(n.Forwards) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("user,id=net0")
	if !cfg.OpenNetwork {
		b.WriteString(",restrict=on")
	}
	for _, f := range n.Forwards {
		fmt.Fprintf(&b, ",hostfwd=tcp:127.0.0.1:%d-:%d", f.HostPort, f.GuestPort)
	}
	return b.String()
}
