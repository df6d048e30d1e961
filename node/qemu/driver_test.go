//go:build linux

package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// The contract, held at compile time.
var (
	_ machine.Driver   = (*FluxVM)(nil)
	_ machine.Driver   = (*Whole)(nil)
	_ machine.Restorer = (*FluxVM)(nil)
	_ machine.Confiner = (*FluxVM)(nil)
	_ machine.Confiner = (*Whole)(nil)
	_ machine.Saver    = (*microVM)(nil)
	_ machine.Machine  = (*vm)(nil)
)

// imageDir is an image of the named files, good enough for whatever does not boot it.
func imageDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCheckNamesWhatAMicroVMCannotBe(t *testing.T) {
	d := testDriver(t)
	whole := imageDir(t, map[string]string{"vmlinuz": "", "initrd.img": ""})
	tests := map[string]struct {
		field  string
		change func(*machine.Spec)
	}{
		"fits":  {"", func(*machine.Spec) {}},
		"linux": {"", func(s *machine.Spec) { s.GuestOS = "linux" }},
		"nat": {"", func(s *machine.Spec) {
			s.Network = &api.Network{Mode: "nat", Forwards: []api.PortForward{{HostPort: 8080, GuestPort: 80}}}
		}},
		"no network":       {"", func(s *machine.Spec) { s.Network = &api.Network{Mode: "none"} }},
		"standard profile": {"", func(s *machine.Spec) { s.SecurityProfile = "standard" }},
		"macos":            {"guest_os", func(s *machine.Spec) { s.GuestOS = "macos" }},
		"apple":            {"apple", func(s *machine.Spec) { s.Apple = &api.Apple{} }},
		"cloud-init":       {"cloud_init", func(s *machine.Spec) { s.CloudInit = &api.CloudInit{} }},
		"named networks":   {"networks", func(s *machine.Spec) { s.Networks = []api.NetworkRef{{Name: "lab"}} }},
		"bridge":           {"network.mode", func(s *machine.Spec) { s.Network = &api.Network{Mode: "bridge"} }},
		"vmnet":            {"network.mode", func(s *machine.Spec) { s.Network = &api.Network{Mode: "vmnet"} }},
		"bridge under nat": {"network.bridge", func(s *machine.Spec) { s.Network = &api.Network{Bridge: "br0"} }},
		"forwards without nat": {"network.forwards", func(s *machine.Spec) {
			s.Network = &api.Network{Mode: "none", Forwards: []api.PortForward{{HostPort: 1, GuestPort: 1}}}
		}},
		"forward from anywhere": {"network.forwards", func(s *machine.Spec) { s.Network = &api.Network{Forwards: []api.PortForward{{GuestPort: 1}}} }},
		"extra disks":           {"extra_disks", func(s *machine.Spec) { s.ExtraDisks = []api.ExtraDisk{{SizeGiB: 1}} }},
		"confidential":          {"security_profile", func(s *machine.Spec) { s.SecurityProfile = "confidential-snp" }},
		"balloon":               {"balloon", func(s *machine.Spec) { s.Balloon = &api.BalloonDevice{} }},
		"huge pages":            {"hugepages", func(s *machine.Spec) { s.Hugepages = true }},
		"vfio":                  {"vfio_devices", func(s *machine.Spec) { s.VFIODevices = []string{"0000:01:00.0"} }},
		"little memory":         {"memory_mib", func(s *machine.Spec) { s.MemoryMiB = 64 }},
		"many processors":       {"vcpus", func(s *machine.Spec) { s.VCPUs = 512 }},
		"no image":              {"image", func(s *machine.Spec) { s.Image = "" }},
		"relative image":        {"image", func(s *machine.Spec) { s.Image = "images/tiny" }},
		"absent image":          {"image", func(s *machine.Spec) { s.Image = "/no/such/image" }},
		"image without initrd":  {"image", func(s *machine.Spec) { s.Image = imageDir(t, map[string]string{"vmlinuz": ""}) }},
		"image without kernel":  {"image", func(s *machine.Spec) { s.Image = imageDir(t, map[string]string{"initrd": ""}) }},
		"image.json is no JSON": {"image", func(s *machine.Spec) {
			s.Image = imageDir(t, map[string]string{"vmlinuz": "", "initrd": "", "image.json": "["})
		}},
		"image for another host": {"image", func(s *machine.Spec) {
			s.Image = imageDir(t, map[string]string{"vmlinuz": "", "initrd": "", "image.json": `{"arch": "arm64"}`})
		}},
		"image with two lines": {"image", func(s *machine.Spec) {
			s.Image = imageDir(t, map[string]string{"vmlinuz": "", "initrd": "", "image.json": `{"cmdline": "a\nb"}`})
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := testSpec(whole)
			tt.change(&spec)
			err := d.Check(spec)
			if tt.field == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			var refusal *api.Error
			if !errors.As(err, &refusal) || refusal.Code != api.CodeInvalid || refusal.Field != tt.field {
				t.Errorf("got %v, want a refusal of %s", err, tt.field)
			}
		})
	}
}

func TestNewRefusesAConfigurationThatCannotWork(t *testing.T) {
	for _, cfg := range []Config{{Accel: "xen"}, {TranslationMiB: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
}

func TestReadySaysHowToGetQEMU(t *testing.T) {
	d, err := New(Config{Binary: "no-such-qemu"})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install qemu-system-x86") {
		t.Errorf("got %v, want what to install", err)
	}
}

func TestArgumentsFollowTheRequest(t *testing.T) {
	spec := testSpec("/images/tiny")
	has := func(args []string, flag, value string) bool {
		for i := range len(args) - 1 {
			if args[i] == flag && strings.Contains(args[i+1], value) {
				return true
			}
		}
		return false
	}
	plain := testDriver(t).arguments(host{accel: accelTCG, filter: true}, image{kernel: "/images/tiny/vmlinuz", cmdline: "debug"}, spec, memory{})
	for flag, value := range map[string]string{
		"-uuid": spec.ID, "-accel": "tb-size=32", "-cpu": "max", "-smp": "1", "-m": "160M", "-sandbox": "spawn=deny",
		"-append": "fluxvm.hostname=tiny-1 debug", "-device": "virtio-balloon-pci", "-serial": "chardev:con0",
	} {
		if !has(plain, flag, value) {
			t.Errorf("no %s with %s in %q", flag, value, plain)
		}
	}
	if has(plain, "-device", "virtio-net") || has(plain, "-device", "virtio-blk") {
		t.Errorf("devices that nobody asked for in %q", plain)
	}
	spec.VCPUs, spec.DiskSizeGiB = 4, 10
	spec.Network = &api.Network{Mode: "nat", Forwards: []api.PortForward{{HostPort: 8080, GuestPort: 80}}}
	full := testDriver(t).arguments(host{accel: accelKVM}, image{}, spec, memory{})
	for flag, value := range map[string]string{
		"-accel": "kvm", "-cpu": "host", "-smp": "4", "-drive": "file=disk.raw",
		"-netdev": "user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:8080-:80", "-device": "virtio-net-pci",
	} {
		if !has(full, flag, value) {
			t.Errorf("no %s with %s in %q", flag, value, full)
		}
	}
	if slices.Contains(full, "-sandbox") {
		t.Errorf("a system call filter that this QEMU lacks in %q", full)
	}
	open, err := New(Config{OpenNetwork: true})
	if err != nil {
		t.Fatal(err)
	}
	if open := open.FluxVM().arguments(host{}, image{}, spec, memory{}); has(open, "-netdev", "restrict") {
		t.Errorf("a restricted network in %q", open)
	}
}

func TestConfinementIsToldAsItHolds(t *testing.T) {
	for _, c := range []struct {
		host *host
		open bool
		want []string
	}{
		{nil, false, nil},
		{&host{}, false, nil},
		{&host{filter: true}, false, []string{"syscall_filter"}},
		{&host{drop: dropRunAs, filter: true}, false, []string{"own_user", "no_capabilities", "own_files", "syscall_filter"}},
		{&host{drop: dropRunWith}, true, []string{"own_user", "no_capabilities"}},
	} {
		e := Engine{cfg: Config{OpenNetwork: c.open}, host: c.host}
		if diff := cmp.Diff(c.want, e.Confinement()); diff != "" {
			t.Errorf("%+v: %s", c.host, diff)
		}
	}
}

func TestVirtualisationIsAFlagOfItsOwn(t *testing.T) {
	for info, want := range map[string]bool{
		"":                           false,
		"flags\t\t: fpu vme de":      false,
		"flags\t\t: fpu vmx de\n":    true,
		"x: y\nflags\t\t: fpu svm\n": true,
		"flags: svm_lock vmx_x":      false,
		"vmx flags\t: ept vmx":       false,
		"model name\t: vmx svm":      false,
	} {
		if got := hasVirtualisation(info); got != want {
			t.Errorf("%q: got %v, want %v", info, got, want)
		}
	}
}

func TestProofTellsAGuestThatRunsFromOneThatDoesNot(t *testing.T) {
	binary, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skip("SKIPPED, no accelerator was proved: there is no qemu-system-x86_64; get it with: apt-get install qemu-system-x86")
	}
	processor := host{accel: accelTCG}.processor(Config{TranslationMiB: 32})
	if err := runProof(t.Context(), binary, processor, proofFirmware(), bootWithin); err != nil {
		t.Errorf("a guest that runs: %v", err)
	}
	stuck := make([]byte, 64<<10)
	copy(stuck[len(stuck)-16:], []byte{0xeb, 0xfe}) // jmp to itself
	if err := runProof(t.Context(), binary, processor, stuck, 500*time.Millisecond); err == nil || !strings.Contains(err.Error(), "no instruction within") {
		t.Errorf("a guest that hangs: got %v, want the deadline", err)
	}
	if err := runProof(t.Context(), binary, []string{"-accel", "no-such"}, proofFirmware(), bootWithin); err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("a QEMU that refuses: got %v, want its reason", err)
	}
}

func TestStartOfWhatCannotRunLeavesNoProcessAndSaysWhy(t *testing.T) {
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil {
		t.Skip("SKIPPED, no QEMU was started: there is no qemu-system-x86_64; get it with: apt-get install qemu-system-x86")
	}
	d := testDriver(t)
	dir := t.TempDir()
	spec := testSpec(imageDir(t, map[string]string{"vmlinuz": "no kernel", "initrd": ""}))
	if _, err := d.Start(within(t), spec, dir); err == nil || !strings.Contains(err.Error(), "QEMU ended with code 1") {
		t.Errorf("got %v, want QEMU's own reason", err)
	}
	if got := found(t, dir, spec.ID); got != 0 {
		t.Errorf("process %d was left behind", got)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Start(cancelled, spec, dir); err == nil {
		t.Error("a start that was given up succeeded")
	}
	if got := found(t, dir, spec.ID); got != 0 {
		t.Errorf("process %d was left behind by a start that was given up", got)
	}
}

// found is the process that runs the machine, 0 without one.
func found(t *testing.T, dir, id string) int {
	t.Helper()
	p, err := process.Find(markOf(id, dir))
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return 0
	}
	p.Close()
	return p.PID
}
