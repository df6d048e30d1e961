package vz

import (
	"os"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// mostExtraDisks is how many disks a VM may have beside its own.
const mostExtraDisks = 8

// Check refuses, with the field's name, what a VM on this Mac cannot be.
func (d *Driver) Check(spec machine.Spec) error {
	img, err := openImage(spec.Image)
	if err != nil {
		return err
	}
	if spec.GuestOS != "" && spec.GuestOS != img.guestOS() {
		return api.Invalid("guest_os", "image %q holds a %s guest; set guest_os to that, or use another image", spec.Image, img.guestOS())
	}
	refused := []struct {
		field string
		asked bool
		do    string
	}{
		{"cloud_init", spec.CloudInit != nil, "vz makes no cloud-init seed; leave cloud_init out and use claim, which the guest agent carries out"},
		{"networks", len(spec.Networks) > 0, "vz joins no named networks; leave networks out"},
		{"security_profile", spec.SecurityProfile != "" && spec.SecurityProfile != "standard", "vz has the security profile standard only"},
		{"balloon", spec.Balloon != nil, "every vz VM has a balloon; leave balloon out"},
		{"hugepages", spec.Hugepages, "vz has no huge pages; leave hugepages out"},
		{"vfio_devices", len(spec.VFIODevices) > 0, "vz passes no devices through; leave vfio_devices out"},
		{"extra_disks", len(spec.ExtraDisks) > mostExtraDisks, "vz takes 8 extra disks at most"},
	}
	for _, r := range refused {
		if r.asked {
			return api.Invalid(r.field, "%s", r.do)
		}
	}
	if err := d.checkSize(spec, img); err != nil {
		return err
	}
	if err := checkNetwork(spec.Network); err != nil {
		return err
	}
	return d.checkApple(spec.Apple, img)
}

func (d *Driver) checkSize(spec machine.Spec, img image) error {
	l := d.cfg.Limits
	if least := max(l.MinVCPUs, img.MinVCPUs, 1); spec.VCPUs < least {
		return api.Invalid("vcpus", "vcpus must be at least %d for this image on this Mac", least)
	}
	if spec.VCPUs > l.MaxVCPUs {
		return api.Invalid("vcpus", "vcpus must be at most %d on this Mac", l.MaxVCPUs)
	}
	if least := max(l.MinMemoryMiB, img.MinMemoryMiB); spec.MemoryMiB < least {
		return api.Invalid("memory_mib", "memory_mib must be at least %d for this image on this Mac", least)
	}
	if spec.MemoryMiB > l.MaxMemoryMiB {
		return api.Invalid("memory_mib", "memory_mib must be at most %d on this Mac", l.MaxMemoryMiB)
	}
	for _, e := range spec.ExtraDisks {
		if e.SizeGiB < 1 {
			return api.Invalid("extra_disks", "size_gib of an extra disk must be at least 1")
		}
	}
	if img.disk == "" || spec.DiskSizeGiB == 0 {
		return nil
	}
	info, err := os.Stat(img.disk)
	if err != nil {
		return api.Invalid("image", "the image's disk cannot be read: %v", err)
	}
	if have := (info.Size() + 1<<30 - 1) >> 30; spec.DiskSizeGiB < have {
		return api.Invalid("disk_size_gib", "disk_size_gib must be at least %d, the size of the image's disk; a disk cannot shrink", have)
	}
	return nil
}

func checkNetwork(n *api.Network) error {
	switch {
	case n == nil:
		return nil
	case n.Mode == "bridge" || n.Mode == "vmnet" || n.Bridge != "":
		return api.Invalid("network.mode", "vz guests join the Mac's NAT network; bridging needs an entitlement that Apple gives out singly: use nat or none")
	case n.Mode != "" && n.Mode != "nat" && n.Mode != "none":
		return api.Invalid("network.mode", "network.mode must be nat or none for vz, not %s", n.Mode)
	case len(n.Forwards) > 0:
		return api.Invalid("network.forwards", "vz forwards no ports; the Mac reaches the guest at its own address, which the VM shows as ip")
	}
	return nil
}

func (d *Driver) checkApple(a *api.Apple, img image) error {
	switch {
	case a == nil:
		return nil
	case len(a.Networks) > 0 || a.VMNet != "" || a.BridgeInterface != "":
		return api.Invalid("apple", "vz guests join the Mac's NAT network only; leave apple.networks, apple.vmnet and apple.bridge_interface out")
	case (a.Rosetta || a.NestedVirtualization) && img.kind == BootMacOS:
		return api.Invalid("apple", "rosetta and nested_virtualization are for linux guests; leave them out")
	case a.Rosetta && !d.cfg.Limits.Rosetta:
		return api.Invalid("apple.rosetta", "Rosetta is not installed on this Mac; run softwareupdate --install-rosetta there, or leave it out")
	case a.NestedVirtualization && !d.cfg.Limits.Nested:
		return api.Invalid("apple.nested_virtualization", "nested virtualization needs macOS 15 on an M3 or later; leave it out or use another Mac")
	}
	return nil
}
