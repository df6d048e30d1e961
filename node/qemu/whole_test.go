//go:build linux

package qemu

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// imager makes disk images, or skips the test loudly.
func imager(t *testing.T) func(args ...string) {
	t.Helper()
	program, err := exec.LookPath("qemu-img")
	if err != nil {
		t.Skip("SKIPPED, no disk image was looked at: there is no qemu-img; get it with: apt-get install qemu-utils")
	}
	return func(args ...string) {
		t.Helper()
		if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
			t.Fatalf("qemu-img %q: %v: %s", args, err, out)
		}
	}
}

func TestAnImageThatNamesAnotherFileIsRefused(t *testing.T) {
	img, dir := imager(t), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name string, raw []byte) {
		t.Helper()
		if err := os.WriteFile(at(name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	img("create", "-f", "qcow2", at("plain"), "3M")
	img("create", "-f", "qcow2", "-o", "compat=0.10", at("old"), "3M")
	img("create", "-f", "qcow2", "-o", "compression_type=zstd,extended_l2=on", at("new"), "3M")
	img("create", "-f", "raw", at("raw"), "3M")
	img("create", "-f", "qcow2", "-b", at("plain"), "-F", "qcow2", at("overlay"))
	img("create", "-f", "qcow2", "-o", "compat=0.10", "-b", at("raw"), "-F", "raw", at("old-overlay"))
	img("create", "-f", "qcow2", "-o", "data_file="+at("data"), at("elsewhere"), "3M")
	img("create", "-f", "vmdk", at("vmdk"), "3M")
	img("create", "-f", "vdi", at("vdi"), "3M")
	img("create", "-f", "qed", at("qed"), "3M")
	write("empty", nil)
	write("odd", []byte("odd"))
	plain, err := os.ReadFile(at("plain"))
	if err != nil {
		t.Fatal(err)
	}
	write("cut", plain[:80])
	unknown := bytes.Clone(plain)
	unknown[qcow2Incompatible] = 0x80
	write("unknown", unknown)
	endless := bytes.Clone(plain[:200])
	endless[qcow2HeaderLength+2], endless[qcow2HeaderLength+3] = 0xff, 0xff
	write("endless", endless)
	crypt := bytes.Clone(plain)
	crypt[qcow2Crypt+3] = 2
	write("crypt", crypt)

	for name, format := range map[string]string{"plain": formatQCOW2, "old": formatQCOW2, "new": formatQCOW2, "raw": formatRaw} {
		got, err := openDisk(at(name))
		if err != nil || got.format != format || got.bytes != 3<<20 {
			t.Errorf("%s: got %+v, %v; want %s of 3 MiB", name, got, err, format)
		}
	}
	for name, of := range map[string]string{"imported": "plain", "imported-overlay": "overlay"} {
		raw, err := os.ReadFile(at(of))
		if err == nil {
			err = os.Mkdir(at(name), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(at(name), importedDisk), raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := openDisk(at("imported")); err != nil || got.path != filepath.Join(at("imported"), importedDisk) || got.format != formatQCOW2 {
		t.Errorf("an imported disk: got %+v, %v", got, err)
	}
	for name, why := range map[string]string{
		"imported-overlay": "backing file", "overlay": "backing file", "old-overlay": "backing file", "elsewhere": "another file", "vmdk": "is vmdk", "vdi": "is vdi", "qed": "is qed",
		"empty": "neither", "odd": "neither", "cut": "cut off", "unknown": "not known", "endless": "cut off", "crypt": "encrypted", "absent": "cannot be read", ".": "must be a qcow2 or raw file",
	} {
		_, err := openDisk(at(name))
		var refusal *api.Error
		if !errors.As(err, &refusal) || refusal.Field != "image" || !strings.Contains(refusal.Detail, why) {
			t.Errorf("%s: got %v, want a refusal with %q", name, err, why)
		}
	}
	if _, err := openDisk("relative"); err == nil {
		t.Error("a relative path was taken")
	}
}

func FuzzQCOW2Header(f *testing.F) {
	f.Add([]byte(qcow2Magic + strings.Repeat("\x00", 200)))
	f.Add([]byte(qcow2Magic + "\x00\x00\x00\x03" + strings.Repeat("\x00", 92) + "\x00\x00\x00\x68" + strings.Repeat("\xff", 100)))
	f.Fuzz(func(t *testing.T, head []byte) {
		if size, why := checkQCOW2(head); why == "" && (size <= 0 || !bytes.Equal(head[qcow2Backing:qcow2Backing+8], make([]byte, 8))) {
			t.Errorf("an image of %d bytes was taken", size)
		}
	})
}

func wholeSpec(image string) machine.Spec {
	spec := testSpec(image)
	spec.Backend, spec.MemoryMiB = api.BackendQEMU, 256
	return spec
}

func TestCheckNamesWhatAWholeVMCannotBe(t *testing.T) {
	img := imager(t)
	disk := filepath.Join(t.TempDir(), "disk")
	img("create", "-f", "qcow2", disk, "2G")
	d := testEngine(t).Whole()
	minus := -1
	for name, tt := range map[string]struct {
		field  string
		change func(*machine.Spec)
	}{
		"fits":        {"", func(*machine.Spec) {}},
		"cloud-init":  {"", func(s *machine.Spec) { s.CloudInit = &api.CloudInit{User: "u"} }},
		"balloon":     {"", func(s *machine.Spec) { s.Balloon = &api.BalloonDevice{} }},
		"larger disk": {"", func(s *machine.Spec) { s.DiskSizeGiB = 3 }},
		"extra disk":  {"", func(s *machine.Spec) { s.ExtraDisks = []api.ExtraDisk{{SizeGiB: 1}} }},
		"forward": {"", func(s *machine.Spec) {
			s.Network = &api.Network{Forwards: []api.PortForward{{HostPort: 8080, GuestPort: 80}}}
		}},
		"smaller disk":           {"disk_size_gib", func(s *machine.Spec) { s.DiskSizeGiB = 1 }},
		"empty extra":            {"extra_disks", func(s *machine.Spec) { s.ExtraDisks = []api.ExtraDisk{{}} }},
		"many extras":            {"extra_disks", func(s *machine.Spec) { s.ExtraDisks = make([]api.ExtraDisk, 9) }},
		"balloon and huge pages": {"balloon", func(s *machine.Spec) { s.Balloon, s.Hugepages = &api.BalloonDevice{}, true }},
		"balloon and vfio":       {"balloon", func(s *machine.Spec) { s.Balloon, s.VFIODevices = &api.BalloonDevice{}, []string{"0000:01:00.0"} }},
		"balloon and confidential": {"balloon", func(s *machine.Spec) {
			s.Balloon, s.SecurityProfile = &api.BalloonDevice{}, "confidential-snp"
		}},
		"balloon with odd statistics": {"balloon.stats_interval_secs", func(s *machine.Spec) { s.Balloon = &api.BalloonDevice{StatsIntervalSecs: &minus} }},
		"huge pages":                  {"hugepages", func(s *machine.Spec) { s.Hugepages = true }},
		"vfio":                        {"vfio_devices", func(s *machine.Spec) { s.VFIODevices = []string{"0000:01:00.0"} }},
		"confidential":                {"security_profile", func(s *machine.Spec) { s.SecurityProfile = "confidential-tdx" }},
		"macos":                       {"guest_os", func(s *machine.Spec) { s.GuestOS = "macos" }},
		"bridge":                      {"network.mode", func(s *machine.Spec) { s.Network = &api.Network{Mode: "bridge"} }},
		"little memory":               {"memory_mib", func(s *machine.Spec) { s.MemoryMiB = 64 }},
		"a directory":                 {"image", func(s *machine.Spec) { s.Image = filepath.Dir(disk) }},
	} {
		spec := wholeSpec(disk)
		tt.change(&spec)
		err := d.Check(spec)
		var refusal *api.Error
		if tt.field == "" && err != nil || tt.field != "" && (!errors.As(err, &refusal) || refusal.Field != tt.field) {
			t.Errorf("%s: got %v, want a refusal of %q", name, err, tt.field)
		}
	}
}

func TestAWholeVMHasTheBalloonThatWasAskedFor(t *testing.T) {
	no, ten := false, 10
	for want, asked := range map[string]*api.BalloonDevice{
		"": nil,
		"virtio-balloon-pci,id=balloon0,bus=pcie.0,deflate-on-oom=on,free-page-reporting=on":   {},
		"virtio-balloon-pci,id=balloon0,bus=pcie.0,deflate-on-oom=off,free-page-reporting=off": {FreePageReporting: &no, DeflateOnOOM: &no, StatsIntervalSecs: &ten},
	} {
		spec := wholeSpec("/images/disk")
		spec.Balloon = asked
		got := strings.Join(testEngine(t).Whole().arguments(host{}, spec), " ")
		if want == "" && strings.Contains(got, "balloon") || !strings.Contains(got, want) {
			t.Errorf("%+v: got %q, want %q in it", asked, got, want)
		}
		if asked != nil && asked.StatsIntervalSecs != nil && balloonOf(spec).statsEvery != ten {
			t.Errorf("statistics every %d s", balloonOf(spec).statsEvery)
		}
	}
}

func TestTheSeedTellsCloudInitWhatWasAsked(t *testing.T) {
	spec := wholeSpec("/images/disk")
	spec.CloudInit = &api.CloudInit{Hostname: "web", User: "ada", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAA"}, Packages: []string{"nginx"}, RunCmd: []string{"echo 'it: works'"},
		WriteFiles: []api.CloudInitFile{{Path: "/etc/x", Content: "a\nb", Permissions: "0640"}}}
	files, err := seedOf(spec)
	if err != nil {
		t.Fatal(err)
	}
	want := []seedFile{
		{"meta-data", `{"instance-id":"` + spec.ID + `","local-hostname":"web"}` + "\n"},
		{"user-data", "#cloud-config\n" + `{"hostname":"web","packages":["nginx"],"runcmd":["echo 'it: works'"],"users":["default",{"lock_passwd":true,"name":"ada","shell":"/bin/bash","ssh_authorized_keys":["ssh-ed25519 AAAA"],"sudo":"ALL=(ALL) NOPASSWD:ALL"}],"write_files":[{"path":"/etc/x","content":"a\nb","permissions":"0640"}]}` + "\n"},
	}
	for i, f := range files {
		if f != want[i] {
			t.Errorf("got %+v\nwant %+v", f, want[i])
		}
	}
	spec.CloudInit = nil
	if files, _ = seedOf(spec); files[1].text != "#cloud-config\n"+`{"hostname":"tiny-1"}`+"\n" {
		t.Errorf("without cloud_init: got %q", files[1].text)
	}
	disk := seedDisk(files)
	if len(disk)%isoSector != 0 || string(disk[isoDescriptor*isoSector+40:][:6]) != seedLabel {
		t.Errorf("the disk has %d bytes and the label %q", len(disk), disk[isoDescriptor*isoSector+40:][:6])
	}
}
