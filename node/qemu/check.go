//go:build linux

package qemu

import (
	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	// leastMemoryMiB is what a small kernel and the agent need to boot.
	leastMemoryMiB = 96

	// mostVCPUs is what the q35 machine takes without an emulated interrupt remapper.
	mostVCPUs = 255
)

// Check refuses, with the field's name, what a micro-VM cannot be.
func (d *FluxVM) Check(spec machine.Spec) error {
	if spec.GuestOS != "" && spec.GuestOS != api.GuestLinux {
		return api.Invalid("guest_os", "flux-vm runs linux guests; %s needs the vz backend on a Mac", spec.GuestOS)
	}
	refused := []struct {
		field string
		asked bool
		do    string
	}{
		{"apple", spec.Apple != nil, "flux-vm is no Mac; leave apple out"},
		{"cloud_init", spec.CloudInit != nil, "flux-vm images have no cloud-init; leave cloud_init out, or use backend qemu with a disk image"},
		{"networks", len(spec.Networks) > 0, "flux-vm joins no named networks; leave networks out"},
		{"extra_disks", len(spec.ExtraDisks) > 0, "flux-vm has no extra disks; use disk_size_gib"},
		{"security_profile", spec.SecurityProfile != "" && spec.SecurityProfile != "standard", "flux-vm has the security profile standard only"},
		{"balloon", spec.Balloon != nil, "every flux-vm VM has a balloon; leave balloon out"},
		{"hugepages", spec.Hugepages, "flux-vm has no huge pages; leave hugepages out"},
		{"vfio_devices", len(spec.VFIODevices) > 0, "flux-vm passes no devices through; leave vfio_devices out"},
	}
	for _, r := range refused {
		if r.asked {
			return api.Invalid(r.field, "%s", r.do)
		}
	}
	if spec.MemoryMiB < leastMemoryMiB {
		return api.Invalid("memory_mib", "memory_mib must be at least %d for flux-vm", leastMemoryMiB)
	}
	if spec.VCPUs > mostVCPUs {
		return api.Invalid("vcpus", "vcpus must be at most %d for flux-vm", mostVCPUs)
	}
	if err := checkNetwork(api.BackendFluxVM, spec.Network); err != nil {
		return err
	}
	_, err := openImage(spec.Image)
	return err
}

func checkNetwork(backend string, n *api.Network) error {
	if n == nil {
		return nil
	}
	if n.Mode != "" && n.Mode != "nat" && n.Mode != "none" {
		return api.Invalid("network.mode", "network.mode must be nat or none for %s, not %s", backend, n.Mode)
	}
	if n.Bridge != "" {
		return api.Invalid("network.bridge", "%s joins no bridge; leave network.bridge out", backend)
	}
	if n.Mode == "none" && len(n.Forwards) > 0 {
		return api.Invalid("network.forwards", "network.forwards need network.mode nat")
	}
	for _, f := range n.Forwards {
		if f.HostPort == 0 {
			return api.Invalid("network.forwards", "host_port of network.forwards must be named")
		}
	}
	return nil
}
