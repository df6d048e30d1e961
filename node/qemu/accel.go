//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fluxvm/fluxvm/node/process"
)

// Accelerators.
const (
	accelKVM = "kvm"
	accelTCG = "tcg"
)

// host is what this host can do, found out once.
type host struct {
	binary string
	accel  string
	filter bool   // QEMU was built with its system call filter
	drop   string // how QEMU is told to become another user; empty where it cannot
	groups process.Groups
}

// Ways of telling QEMU to become another user once it has opened what it needs.
const (
	dropRunAs   = "-runas"
	dropRunWith = "-run-with" // QEMU 9.1 and later
)

const (
	// proofWithin is how long a guest may take over its first three instructions.
	proofWithin = 10 * time.Second

	// proofCode is what QEMU ends with when the guest has run them: isa-debug-exit makes it 2n+1.
	proofCode = 2*0x10 + 1
)

// inspect finds QEMU and settles how it runs guests.
func inspect(ctx context.Context, cfg Config) (host, string, error) {
	binary, err := exec.LookPath(cfg.Binary)
	if err != nil {
		return host{}, "", fmt.Errorf("finding QEMU: %w; install it (Debian: apt-get install qemu-system-x86) or name the program", err)
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return host{}, "", fmt.Errorf("finding QEMU: %w", err)
	}
	h := host{binary: binary, accel: cfg.Accel}
	// Options are read in order: -version ends the program well only if -sandbox was known.
	h.filter = exec.CommandContext(ctx, binary, "-sandbox", filterArgs+keepUser, "-version").Run() == nil
	h.drop = dropping(ctx, binary)
	if h.groups, err = process.FindGroups(); err != nil {
		return host{}, "", err
	}
	if err := ctx.Err(); err != nil {
		return host{}, "", fmt.Errorf("asking QEMU for its version: %w", err)
	}
	if cfg.Accel == accelTCG {
		return h, "the configuration says so", nil
	}
	err = proveKVM(ctx, binary, cfg)
	switch {
	case err == nil:
		h.accel = accelKVM
		return h, "a guest ran its first instructions", nil
	case ctx.Err() != nil:
		return host{}, "", fmt.Errorf("proving KVM: %w", ctx.Err())
	case cfg.Accel == accelKVM:
		return host{}, "", fmt.Errorf("KVM was asked for and does not work here: %w; let the accelerator be chosen, or use tcg", err)
	}
	h.accel = accelTCG
	return h, "KVM does not work here: " + err.Error(), nil
}

// dropping is how this QEMU can become another user, which only root can let it.
func dropping(ctx context.Context, binary string) string {
	if os.Geteuid() != 0 {
		return ""
	}
	user := process.UserOf("")
	try := exec.CommandContext(ctx, binary, "-version") // in a container root may not have that user to give
	try.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	if try.Run() != nil {
		return ""
	}
	for how, args := range map[string][]string{
		dropRunWith: {"-run-with", fmt.Sprintf("user=%d:%d,chroot=.", user, user), "-version"},
		dropRunAs:   {"-runas", fmt.Sprintf("%d:%d", user, user), "-chroot", ".", "-version"},
	} {
		if exec.CommandContext(ctx, binary, args...).Run() == nil {
			return how
		}
	}
	return ""
}

// proveKVM is nil only when a guest has run instructions under KVM. That /dev/kvm opens, or even makes a VM, proves
// nothing: on hosts without nested virtualisation it does both and no guest ever runs.
func proveKVM(ctx context.Context, binary string, cfg Config) error {
	dev, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_ = dev.Close()
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	if !hasVirtualisation(string(info)) {
		return errors.New("the processor shows neither vmx nor svm in /proc/cpuinfo")
	}
	return runProof(ctx, binary, host{accel: accelKVM}.processor(cfg), proofFirmware(), proofWithin)
}

func hasVirtualisation(cpuinfo string) bool {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "flags" {
			continue
		}
		for _, flag := range strings.Fields(value) {
			if flag == "vmx" || flag == "svm" {
				return true
			}
		}
	}
	return false
}

// proofFirmware is a whole firmware of 64 KiB whose reset vector tells isa-debug-exit that it runs.
func proofFirmware() []byte {
	rom := make([]byte, 64<<10)
	copy(rom[len(rom)-16:], []byte{
		0xb0, 0x10, // mov al, 0x10
		0xe6, 0xf4, // out 0xf4, al
		0xf4,       // hlt
		0xeb, 0xfd, // jmp to the hlt
	})
	return rom
}

// runProof runs the firmware and wants QEMU to end with proofCode. It never takes much longer than within: a
// process that the kernel will not let go is left behind, with the goroutine that waits for it.
func runProof(ctx context.Context, binary string, processor []string, firmware []byte, within time.Duration) error {
	dir, err := os.MkdirTemp("", "fluxvm-proof-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rom := filepath.Join(dir, "rom")
	if err := os.WriteFile(rom, firmware, 0o600); err != nil {
		return err
	}
	args := append([]string{
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-m", "32M",
		"-bios", rom, "-device", "isa-debug-exit,iobase=0xf4,iosize=4",
	}, processor...)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var said strings.Builder
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(within + 2*cmd.WaitDelay):
		return errors.New("a guest ran no instruction and its process cannot be killed")
	}
	switch {
	case cmd.ProcessState.ExitCode() == proofCode:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("a guest ran no instruction within %s", within)
	}
	return fmt.Errorf("a guest ran no instruction: QEMU %s: %s", cmd.ProcessState, process.LastLine(said.String()))
}
