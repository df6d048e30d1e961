package vz

import (
	"crypto/sha256"
	"fmt"
	"net"
	"path/filepath"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// Files of a machine's directory.
const (
	planFile       = "machine.json"
	diskFile       = "disk.img"
	auxiliaryFile  = "aux.img"
	variablesFile  = "efi-vars"
	identifierFile = "machine-id"
	lockFile       = "vz.lock"
	socketFile     = "vz.sock"
	endFile        = "vz-end.json"
	logFile        = "vz.log"
	consoleFile    = "console.log"
)

// BootKind is how a guest starts.
type BootKind string

// The kinds there are.
const (
	BootMacOS BootKind = "macos"
	BootEFI   BootKind = "efi"
	BootLinux BootKind = "linux" // a kernel given by the host
)

// Boot is what a guest starts from. Fields beside the kind's own are empty.
type Boot struct {
	Kind       BootKind `json:"kind"`
	Identifier string   `json:"identifier"` // file of the machine identifier

	HardwareModel string `json:"hardware_model,omitempty"` // macos: file
	Auxiliary     string `json:"auxiliary,omitempty"`      // macos: file, of this VM alone

	Variables    string `json:"variables,omitempty"`     // efi: file, of this VM alone
	NewVariables bool   `json:"new_variables,omitempty"` // efi: the file is still to be made

	Kernel  string `json:"kernel,omitempty"`
	Initrd  string `json:"initrd,omitempty"`
	Cmdline string `json:"cmdline,omitempty"`
}

// Share is a directory of the host that the guest sees by virtio-fs, and can only read: what one tenant's guest could
// leave in it, the next one's would find.
type Share struct {
	Tag  string `json:"tag"`
	Path string `json:"path"`
}

// Display is the screen of a macOS guest, which does not start without one. Nobody sees it.
type Display struct {
	Width, Height, PixelsPerInch int64
}

// Plan is a VM as the helper makes it. Every guest has a serial port, a balloon and vsock.
type Plan struct {
	ID        string   `json:"id"`
	VCPUs     uint     `json:"vcpus"`
	MemoryMiB uint64   `json:"memory_mib"`
	Boot      Boot     `json:"boot"`
	Disks     []string `json:"disks"`         // raw, in the order in which the guest sees them
	Cached    bool     `json:"cached"`        // disks go through the Mac's cache; see planOf
	Entropy   bool     `json:"entropy"`       // a source of randomness
	MAC       string   `json:"mac,omitempty"` // of the NAT device; empty: no network
	Shares    []Share  `json:"shares,omitempty"`
	Rosetta   bool     `json:"rosetta,omitempty"`
	Nested    bool     `json:"nested,omitempty"`
	Display   *Display `json:"display,omitempty"`
	Restore   string   `json:"restore,omitempty"` // saved state to go on from; empty: boot
}

// planOf is the plan of a spec that Check lets pass. Files of the VM are named relative to its directory.
func planOf(spec machine.Spec, img image) Plan {
	p := Plan{
		ID: spec.ID, VCPUs: uint(spec.VCPUs), MemoryMiB: uint64(spec.MemoryMiB), Shares: img.Shares,
		Boot: Boot{Kind: img.kind, Identifier: identifierFile},
	}
	if img.disk != "" || spec.DiskSizeGiB > 0 {
		p.Disks = append(p.Disks, diskFile)
	}
	for i := range spec.ExtraDisks {
		p.Disks = append(p.Disks, extraDisk(i))
	}
	if hasNetwork(spec.Network) {
		p.MAC = macOf(spec.ID)
	}
	if a := spec.Apple; a != nil {
		p.Rosetta, p.Nested = a.Rosetta, a.NestedVirtualization
	}
	// Linux guests lose parts of their file systems where the framework chooses how to read, which macOS guests do not; and
	// the framework saves no macOS guest that has a source of randomness, of which macOS needs none.
	p.Cached, p.Entropy = img.kind != BootMacOS, img.kind != BootMacOS
	switch img.kind {
	case BootMacOS:
		p.Boot.HardwareModel, p.Boot.Auxiliary = img.hardwareModel, auxiliaryFile
		p.Display = &Display{Width: 1920, Height: 1200, PixelsPerInch: 80}
	case BootEFI:
		p.Boot.Variables = variablesFile
	case BootLinux:
		p.Boot.Kernel, p.Boot.Initrd = img.kernel, img.initrd
		p.Boot.Cmdline = "console=hvc0 panic=-1 fluxvm.hostname=" + spec.Name
		if img.Cmdline != "" {
			p.Boot.Cmdline += " " + img.Cmdline
		}
	}
	return p
}

func extraDisk(i int) string { return fmt.Sprintf("extra-%d.img", i) }

// hasNetwork says whether the guest has a network device: unless it is to have none.
func hasNetwork(n *api.Network) bool { return n == nil || n.Mode != "none" }

// macOf is the VM's own address on the Mac's NAT network: a saved state goes on only under the same one. It is locally
// administered and never a group's.
func macOf(id string) string {
	sum := sha256.Sum256([]byte("fluxvm vz " + id))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac.String()
}

// below is the plan with the VM's own files where they are.
func (p Plan) below(dir string) Plan {
	abs := func(name string) string {
		if name == "" || filepath.IsAbs(name) {
			return name
		}
		return filepath.Join(dir, name)
	}
	disks := make([]string, len(p.Disks))
	for i, d := range p.Disks {
		disks[i] = abs(d)
	}
	p.Disks = disks
	for _, f := range []*string{&p.Boot.Identifier, &p.Boot.HardwareModel, &p.Boot.Auxiliary, &p.Boot.Variables, &p.Boot.Kernel, &p.Boot.Initrd, &p.Restore} {
		*f = abs(*f)
	}
	return p
}
