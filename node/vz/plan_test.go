package vz

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// filesIn makes an image directory of the files; a size is that of a sparse one.
func filesIn(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func macBundle(t *testing.T) string {
	return filesIn(t, map[string]string{"hardware-model": "hw", auxiliaryFile: "aux", diskFile: "disk"})
}

func kernel() string { return strings.Repeat("\x00", 56) + "ARM\x64\x00\x00\x00\x00" }

func TestPlans(t *testing.T) {
	share := t.TempDir()
	mac, efi := macBundle(t), filesIn(t, map[string]string{diskFile: "d", "image.json": `{"arch": "arm64", "shares": [{"tag": "tools", "path": "` + share + `"}]}`})
	direct := filesIn(t, map[string]string{"vmlinuz": kernel(), "initrd.img": "i", "image.json": `{"cmdline": "quiet"}`})
	const id = "0c1d2e3f-0000-4000-8000-000000000001"
	base := Plan{ID: id, VCPUs: 4, MemoryMiB: 8192, MAC: macOf(id), Cached: true, Entropy: true}
	for name, c := range map[string]struct {
		image  string
		change func(*machine.Spec)
		want   func(*Plan)
	}{
		"macOS": {mac, func(s *machine.Spec) { s.GuestOS = api.GuestMacOS }, func(p *Plan) {
			p.Boot = Boot{Kind: BootMacOS, Identifier: identifierFile, HardwareModel: filepath.Join(mac, "hardware-model"), Auxiliary: auxiliaryFile}
			p.Disks, p.Display, p.Cached, p.Entropy = []string{diskFile}, &Display{1920, 1200, 80}, false, false
		}},
		"EFI with Rosetta": {efi, func(s *machine.Spec) { s.Apple = &api.Apple{Rosetta: true, NestedVirtualization: true} }, func(p *Plan) {
			p.Boot = Boot{Kind: BootEFI, Identifier: identifierFile, Variables: variablesFile}
			p.Disks, p.Rosetta, p.Nested, p.Shares = []string{diskFile}, true, true, []Share{{"tools", share}}
		}},
		"a kernel without disk or network": {direct, func(s *machine.Spec) { s.Network = &api.Network{Mode: "none"} }, func(p *Plan) {
			p.Boot = Boot{Kind: BootLinux, Identifier: identifierFile, Kernel: filepath.Join(direct, "vmlinuz"), Initrd: filepath.Join(direct, "initrd.img"),
				Cmdline: "console=hvc0 panic=-1 fluxvm.hostname=vm quiet"}
			p.MAC = ""
		}},
		"a kernel with disks": {direct, func(s *machine.Spec) { s.DiskSizeGiB, s.ExtraDisks = 3, []api.ExtraDisk{{SizeGiB: 1}, {SizeGiB: 2}} }, func(p *Plan) {
			p.Boot = Boot{Kind: BootLinux, Identifier: identifierFile, Kernel: filepath.Join(direct, "vmlinuz"), Initrd: filepath.Join(direct, "initrd.img"),
				Cmdline: "console=hvc0 panic=-1 fluxvm.hostname=vm quiet"}
			p.Disks = []string{diskFile, "extra-0.img", "extra-1.img"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := machine.Spec{MachineRequest: api.MachineRequest{ID: id, Name: "vm", Image: c.image, VCPUs: 4, MemoryMiB: 8192}}
			c.change(&spec)
			d := Driver{cfg: Config{Limits: Limits{MaxVCPUs: 8, MaxMemoryMiB: 1 << 20, Rosetta: true, Nested: true}}}
			if err := d.Check(spec); err != nil {
				t.Fatal(err)
			}
			img, err := openImage(spec.Image)
			if err != nil {
				t.Fatal(err)
			}
			want := base
			c.want(&want)
			got := planOf(spec, img)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			abs := got.below("/vm")
			for _, p := range append(abs.Disks, abs.Boot.Identifier) {
				if !strings.HasPrefix(p, "/vm/") {
					t.Errorf("%q is not below the machine's directory", p)
				}
			}
			if abs.Boot.Kernel != got.Boot.Kernel || abs.Boot.HardwareModel != got.Boot.HardwareModel {
				t.Error("the image's own files moved")
			}
		})
	}
}

func TestWhatAMacCannotRunIsRefusedByField(t *testing.T) {
	mac, linux := macBundle(t), filesIn(t, map[string]string{diskFile: "d"})
	big := filesIn(t, map[string]string{diskFile: ""})
	if err := os.Truncate(filepath.Join(big, diskFile), 20<<30+1); err != nil {
		t.Fatal(err)
	}
	image := func(files map[string]string) func(*machine.Spec) {
		return func(s *machine.Spec) { s.Image = filesIn(t, files) }
	}
	d := Driver{cfg: Config{Limits: testLimits()}}
	for name, c := range map[string]struct {
		field  string
		change func(*machine.Spec)
	}{
		"no image":               {"image", func(s *machine.Spec) { s.Image = "" }},
		"a relative image":       {"image", func(s *machine.Spec) { s.Image = "images/x" }},
		"an empty image":         {"image", image(nil)},
		"half a bundle":          {"image", image(map[string]string{"hardware-model": "h", diskFile: "d"})},
		"no hardware model":      {"image", image(map[string]string{"hardware-model": "", auxiliaryFile: "a", diskFile: "d"})},
		"a packed kernel":        {"image", image(map[string]string{"vmlinuz": "\x1f\x8b" + kernel()})},
		"a kernel for a PC":      {"image", image(map[string]string{"vmlinuz": "MZ" + strings.Repeat("x", 70)})},
		"a PC's image":           {"image", image(map[string]string{diskFile: "d", "image.json": `{"arch": "amd64"}`})},
		"an unknown key":         {"image", image(map[string]string{diskFile: "d", "image.json": `{"sahres": []}`})},
		"a share of nothing":     {"image", image(map[string]string{diskFile: "d", "image.json": `{"shares": [{"tag": "x", "path": "/no/such"}]}`})},
		"a share named rosetta":  {"image", image(map[string]string{diskFile: "d", "image.json": `{"shares": [{"tag": "rosetta", "path": "/"}]}`})},
		"two lines for a kernel": {"image", image(map[string]string{diskFile: "d", "image.json": `{"cmdline": "a\nb"}`})},
		"macOS of Linux's image": {"guest_os", func(s *machine.Spec) { s.GuestOS = api.GuestMacOS }},
		"Linux of a Mac's image": {"guest_os", func(s *machine.Spec) { s.Image, s.GuestOS = mac, api.GuestLinux }},
		"a small macOS":          {"memory_mib", func(s *machine.Spec) { s.Image, s.MemoryMiB = mac, 2048 }},
		"a slow macOS":           {"vcpus", func(s *machine.Spec) { s.Image, s.VCPUs, s.MemoryMiB = mac, 1, 8192 }},
		"too many vCPUs":         {"vcpus", func(s *machine.Spec) { s.VCPUs = 9 }},
		"too little memory":      {"memory_mib", func(s *machine.Spec) { s.MemoryMiB = 64 }},
		"too much memory":        {"memory_mib", func(s *machine.Spec) { s.MemoryMiB = 1 << 20 }},
		"a disk that shrinks":    {"disk_size_gib", func(s *machine.Spec) { s.Image, s.DiskSizeGiB = big, 20 }},
		"cloud-init":             {"cloud_init", func(s *machine.Spec) { s.CloudInit = &api.CloudInit{} }},
		"named networks":         {"networks", func(s *machine.Spec) { s.Networks = []api.NetworkRef{{}} }},
		"a confidential guest":   {"security_profile", func(s *machine.Spec) { s.SecurityProfile = "confidential-snp" }},
		"balloon settings":       {"balloon", func(s *machine.Spec) { s.Balloon = &api.BalloonDevice{} }},
		"huge pages":             {"hugepages", func(s *machine.Spec) { s.Hugepages = true }},
		"devices":                {"vfio_devices", func(s *machine.Spec) { s.VFIODevices = []string{"x"} }},
		"many disks":             {"extra_disks", func(s *machine.Spec) { s.ExtraDisks = make([]api.ExtraDisk, 9) }},
		"a disk of nothing":      {"extra_disks", func(s *machine.Spec) { s.ExtraDisks = make([]api.ExtraDisk, 1) }},
		"a bridge":               {"network.mode", func(s *machine.Spec) { s.Network = &api.Network{Mode: "bridge"} }},
		"another mode":           {"network.mode", func(s *machine.Spec) { s.Network = &api.Network{Mode: "tap"} }},
		"forwarded ports":        {"network.forwards", func(s *machine.Spec) { s.Network = &api.Network{Forwards: make([]api.PortForward, 1)} }},
		"vmnet":                  {"apple", func(s *machine.Spec) { s.Apple = &api.Apple{VMNet: "shared"} }},
		"Rosetta where none is":  {"apple.rosetta", func(s *machine.Spec) { s.Apple = &api.Apple{Rosetta: true} }},
		"nesting where none is":  {"apple.nested_virtualization", func(s *machine.Spec) { s.Apple = &api.Apple{NestedVirtualization: true} }},
		"Rosetta in macOS":       {"apple", func(s *machine.Spec) { s.Image, s.MemoryMiB, s.Apple = mac, 8192, &api.Apple{Rosetta: true} }},
	} {
		spec := testSpec(linux)
		if err := d.Check(spec); err != nil {
			t.Fatalf("before any change: %v", err)
		}
		c.change(&spec)
		var e *api.Error
		if err := d.Check(spec); !errors.As(err, &e) || e.Code != api.CodeInvalid || e.Field != c.field {
			t.Errorf("%s: got %v, want the field %s refused", name, err, c.field)
		}
	}
}

func TestAddressesAreTheVMsOwn(t *testing.T) {
	a, b := macOf("a"), macOf("b")
	if a == b || a != macOf("a") {
		t.Errorf("got %s and %s", a, b)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		if second := macOf(id)[1]; !strings.ContainsRune("26ae", rune(second)) {
			t.Errorf("%s is not a single host's local address", macOf(id))
		}
	}
}

func TestTheNewestLeaseOfAnAddressCounts(t *testing.T) {
	const file = `{
	name=old
	ip_address=192.168.64.2
	hw_address=1,2:42:ac:11:0:2
	identifier=1,2:42:ac:11:0:2
	lease=0x65000000
}
{
	name=new
	ip_address=192.168.64.9
	hw_address=1,2:42:ac:11:0:2
	lease=0x66000000
}
{
	ip_address=192.168.64.3
	hw_address=ff,f1:f5:dd:7f:0:2:0:0
	lease=0x67000000
}
{
	ip_address=not an address
	hw_address=1,2:42:ac:11:0:2
	lease=0x68000000
}
`
	for mac, want := range map[string]string{"02:42:ac:11:00:02": "192.168.64.9", "02:42:ac:11:00:03": "", "": ""} {
		if got := leasedIP(strings.NewReader(file), mac); got != want {
			t.Errorf("%q: got %q, want %q", mac, got, want)
		}
	}
	l := leases{path: filepath.Join(t.TempDir(), "none"), mac: "02:42:ac:11:00:02"}
	if got := l.ip(); got != "" {
		t.Errorf("got %q without a file", got)
	}
}

func TestFrameworkNumbersAreKnown(t *testing.T) {
	for code, want := range map[int]api.Code{codeLimitExceeded: api.CodeHostFull, codeOutOfDiskSpace: api.CodeStorageFull} {
		err := explained(&FrameworkError{Domain: errorDomain, Code: code, Text: "x"})
		if !errors.Is(err, &api.Error{Code: want}) {
			t.Errorf("%d: got %v, want %s", code, err, want)
		}
		if other := explained(&FrameworkError{Domain: posixDomain, Code: code, Text: "x"}); errors.Is(other, &api.Error{Code: want}) {
			t.Errorf("%d of another domain is taken for the framework's", code)
		}
	}
}

func TestAFullDiskIsKnownOnBothEndsOfTheSocket(t *testing.T) {
	_, full := os.ReadFile(t.TempDir()) // some error with a path
	full.(*os.PathError).Err = syscall.ENOSPC
	told := asFrameworkError(full)
	for what, err := range map[string]error{"the daemon's own": full, "the helper's": told, "the framework's": &FrameworkError{Domain: errorDomain, Code: codeOutOfDiskSpace}} {
		if err := explained(err); !errors.Is(err, &api.Error{Code: api.CodeStorageFull}) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if !strings.Contains(told.Text, "no space left") || !errors.Is(told, syscall.ENOSPC) {
		t.Errorf("got %+v", told)
	}
	unsigned := &FrameworkError{Domain: errorDomain, Code: codeInvalidConfiguration, Text: "The process doesn’t have the “com.apple.security.virtualization” entitlement."}
	if err := explained(unsigned); !strings.Contains(err.Error(), "build-mac") {
		t.Errorf("got %v for a program that is not signed", err)
	}
}

func TestDisksAreMadeOnceAndKept(t *testing.T) {
	dir, image := t.TempDir(), testImage(t, "")
	img, err := openImage(image)
	if err != nil {
		t.Fatal(err)
	}
	spec := testSpec(image)
	if err := prepare(spec, img, dir); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(dir, diskFile)
	if err := os.WriteFile(disk, []byte("written by the guest"), 0o600); err != nil {
		t.Fatalf("the guest could not write its disk: %v", err)
	}
	if err := prepare(spec, img, dir); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(disk); err != nil || string(raw) != "written by the guest" {
		t.Errorf("the disk was made anew: %q, %v", raw, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.part")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}
