//go:build linux

package qemu

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// diskFile is a micro-VM's disk, in its directory.
const diskFile = "disk.raw"

// FluxVM runs micro-VMs. Its methods are as machine.Driver says.
type FluxVM struct{ *Engine }

// microVM is a running micro-VM. Beside what every VM can do it can be saved.
type microVM struct {
	*vm
	driver *FluxVM
}

// FluxVM is the driver of micro-VMs.
func (e *Engine) FluxVM() *FluxVM { return &FluxVM{e} }

// Name is flux-vm.
func (d *FluxVM) Name() string { return api.BackendFluxVM }

// Features are the same on every host.
func (d *FluxVM) Features() machine.Features {
	return machine.Features{Agent: true, Pause: true, Balloon: true, BalloonReclaims: true, Survives: true}
}

// Start boots the machine. A QEMU that an earlier daemon left in dir without noting it is ended first.
func (d *FluxVM) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.start(ctx, spec, dir)
	if err != nil {
		return nil, fmt.Errorf("starting a VM: %w", err)
	}
	return &microVM{m, d}, nil
}

func (d *FluxVM) start(ctx context.Context, spec machine.Spec, dir string) (*vm, error) {
	img, err := openImage(spec.Image)
	if err != nil {
		return nil, err
	}
	h, err := d.inspected(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.clear(spec, dir); err != nil {
		return nil, err
	}
	if spec.DiskSizeGiB > 0 {
		if err := makeDisk(filepath.Join(dir, diskFile), spec.DiskSizeGiB); err != nil {
			return nil, err
		}
	}
	return d.boot(ctx, h, d.arguments(h, img, spec, memory{}), spec, dir, nil)
}

// Adopt takes over a VM that an earlier daemon started.
func (d *FluxVM) Adopt(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.adopt(ctx, spec, dir)
	if err != nil {
		return nil, err
	}
	return &microVM{m, d}, nil
}

// arguments are QEMU's for a micro-VM: the fewest devices, and a kernel without firmware's help.
func (d *FluxVM) arguments(h host, img image, spec machine.Spec, mem memory) []string {
	name := spec.Name
	if name == "" {
		name = spec.ID
	}
	kernel := "console=ttyS0 quiet panic=-1 fluxvm.hostname=" + name
	if img.cmdline != "" {
		kernel += " " + img.cmdline
	}
	b := board{
		onReset: "shutdown", chipset: mem.arguments(spec.MemoryMiB), network: d.network(spec),
		boots: []string{"-kernel", img.kernel, "-initrd", img.initrd, "-append", kernel},
	}
	if spec.DiskSizeGiB > 0 {
		// Without discards: launch hides those of a restored machine from the kernel, and a copy must have the devices
		// of its original.
		b.devices = []string{"-drive", "file=" + diskFile + ",format=raw,if=none,id=disk0,discard=ignore,cache=writeback", "-device", "virtio-blk-pci,drive=disk0,discard=off,write-zeroes=off"}
	}
	return d.Engine.arguments(h, spec, b)
}

// network is empty unless the request asks for one, for a device costs boot time.
func (d *FluxVM) network(spec machine.Spec) string {
	n := spec.Network
	if n == nil || n.Mode != "nat" && len(n.Forwards) == 0 {
		return ""
	}
	return d.userNetwork(n.Forwards)
}

// memory is where a machine's memory lies. The zero value: with nobody else, and the machine boots.
type memory struct {
	file   string // in it, and the machine waits for a saved state; relative to the machine's directory
	shared bool   // what the guest writes goes to the file
	eager  bool   // all of it is read at the start, and nothing is shared
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
	return []string{"-M", board + ",memory-backend=pc.ram", "-object", backend, "-incoming", "defer"}
}
