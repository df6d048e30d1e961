//go:build linux

package qemu

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// Files of a whole VM, in its directory.
const (
	overlayFile = "disk.qcow2"
	seedName    = "seed.iso"
)

// mostExtraDisks is how many disks a whole VM may have beside its image's.
const mostExtraDisks = 8

// Whole runs whole VMs: disk images that firmware boots. Its methods are as machine.Driver says.
type Whole struct{ *Engine }

// Whole is the driver of whole VMs.
func (e *Engine) Whole() *Whole { return &Whole{e} }

// Name is qemu.
func (d *Whole) Name() string { return api.BackendQEMU }

// Features are the same on every host.
func (d *Whole) Features() machine.Features {
	return machine.Features{Agent: true, Pause: true, BalloonAsked: true, BalloonReclaims: true, Survives: true}
}

// Ready says why no VM could run on this host, nil when one can.
func (d *Whole) Ready(ctx context.Context) error {
	if _, err := tool(); err != nil {
		return err
	}
	return d.Engine.Ready(ctx)
}

// tool is what makes disks.
func tool() (string, error) {
	path, err := exec.LookPath("qemu-img")
	if err != nil {
		return "", fmt.Errorf("finding qemu-img: %w; install it (Debian: apt-get install qemu-utils)", err)
	}
	return path, nil
}

// Check refuses, with the field's name, what a whole VM cannot be.
func (d *Whole) Check(spec machine.Spec) error {
	if spec.GuestOS != "" && spec.GuestOS != api.GuestLinux {
		return api.Invalid("guest_os", "qemu runs linux guests; %s needs the vz backend on a Mac", spec.GuestOS)
	}
	confidential := spec.SecurityProfile != "" && spec.SecurityProfile != "standard"
	refused := []struct {
		field string
		asked bool
		do    string
	}{
		{"apple", spec.Apple != nil, "qemu is no Mac; leave apple out"},
		{"networks", len(spec.Networks) > 0, "qemu joins no named networks; leave networks out"},
		{"balloon", spec.Balloon != nil && spec.Hugepages, "huge pages cannot be given back to the host; leave balloon out, or hugepages"},
		{"balloon", spec.Balloon != nil && len(spec.VFIODevices) > 0, "a device that is passed through pins all of the guest's memory; leave balloon out, or vfio_devices"},
		{"balloon", spec.Balloon != nil && confidential, "a confidential guest's memory cannot be taken; leave balloon out, or use security_profile standard"},
		{"security_profile", confidential, "this host runs security_profile standard only"},
		{"hugepages", spec.Hugepages, "this host gives guests no huge pages; leave hugepages out"},
		{"vfio_devices", len(spec.VFIODevices) > 0, "this host passes no devices through; leave vfio_devices out"},
		{"extra_disks", len(spec.ExtraDisks) > mostExtraDisks, fmt.Sprintf("extra_disks may be %d at most", mostExtraDisks)},
	}
	for _, r := range refused {
		if r.asked {
			return api.Invalid(r.field, "%s", r.do)
		}
	}
	for _, x := range spec.ExtraDisks {
		if x.SizeGiB < 1 {
			return api.Invalid("extra_disks", "size_gib of extra_disks must be at least 1")
		}
	}
	if b := spec.Balloon; b != nil && b.StatsIntervalSecs != nil && (*b.StatsIntervalSecs < 0 || *b.StatsIntervalSecs > 3600) {
		return api.Invalid("balloon.stats_interval_secs", "balloon.stats_interval_secs must be from 0 (never) to 3600")
	}
	if spec.MemoryMiB < leastMemoryMiB {
		return api.Invalid("memory_mib", "memory_mib must be at least %d for qemu", leastMemoryMiB)
	}
	if spec.VCPUs > mostVCPUs {
		return api.Invalid("vcpus", "vcpus must be at most %d for qemu", mostVCPUs)
	}
	if err := checkNetwork(api.BackendQEMU, spec.Network); err != nil {
		return err
	}
	_, err := diskFor(spec)
	return err
}

// diskFor is the image, once the size that is asked for holds it.
func diskFor(spec machine.Spec) (diskImage, error) {
	img, err := openDisk(spec.Image)
	if err == nil && spec.DiskSizeGiB > 0 && spec.DiskSizeGiB<<30 < img.bytes {
		return img, api.Invalid("disk_size_gib", "the image has %d GiB, so disk_size_gib must be at least that; leave it out for the image's own size", (img.bytes+1<<30-1)>>30)
	}
	return img, err
}

// Start boots the machine from its disk, which it makes at its first start.
func (d *Whole) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.start(ctx, spec, dir)
	if err != nil {
		return nil, fmt.Errorf("starting a VM: %w", err)
	}
	return m, nil
}

func (d *Whole) start(ctx context.Context, spec machine.Spec, dir string) (*vm, error) {
	img, err := diskFor(spec)
	if err != nil {
		return nil, err
	}
	imager, err := tool()
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
	if err := makeOverlay(ctx, imager, filepath.Join(dir, overlayFile), &img, spec.DiskSizeGiB); err != nil {
		return nil, err
	}
	for i, x := range spec.ExtraDisks {
		if err := makeOverlay(ctx, imager, filepath.Join(dir, extraFile(i)), nil, x.SizeGiB); err != nil {
			return nil, err
		}
	}
	if err := writeSeed(filepath.Join(dir, seedName), spec); err != nil {
		return nil, err
	}
	return d.boot(ctx, h, d.arguments(h, spec), spec, dir, nil)
}

// Adopt takes over a VM that an earlier daemon started.
func (d *Whole) Adopt(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.adopt(ctx, spec, dir)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func extraFile(i int) string { return fmt.Sprintf("extra-%d.qcow2", i+1) }

// arguments are QEMU's for a whole VM: a PC whose firmware boots the first disk.
func (d *Whole) arguments(h host, spec machine.Spec) []string {
	b := board{onReset: "reset", chipset: []string{"-M", "q35,graphics=off"}, boots: []string{"-boot", "strict=on"}}
	disk := func(id, file, options string) {
		b.devices = append(b.devices, "-drive", "file="+file+",if=none,id="+id+options)
	}
	disk("disk0", overlayFile, ",format=qcow2,discard=unmap,cache=writeback")
	b.devices = append(b.devices, "-device", "virtio-blk-pci,drive=disk0,bootindex=0")
	for i := range spec.ExtraDisks {
		id := fmt.Sprintf("extra%d", i+1)
		disk(id, extraFile(i), ",format=qcow2,discard=unmap,cache=writeback")
		b.devices = append(b.devices, "-device", "virtio-blk-pci,drive="+id+",serial="+id)
	}
	disk("seed", seedName, ",format=raw,readonly=on")
	b.devices = append(b.devices, "-device", "virtio-blk-pci,drive=seed,serial=seed")
	if n := spec.Network; n == nil || n.Mode != "none" {
		var forwards []api.PortForward
		if n != nil {
			forwards = n.Forwards
		}
		b.network = d.userNetwork(forwards)
	}
	return d.Engine.arguments(h, spec, b)
}
