package node

import (
	"context"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// hostFacts asks the kernel by sysctl, and vm_stat for what sysctl does not tell.
type hostFacts struct{}

func (hostFacts) BootID() string {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return "unknown"
	}
	return id
}

func (hostFacts) Uptime() time.Duration { return clockReading(unix.CLOCK_MONOTONIC_RAW) }

func (hostFacts) Chip() string {
	brand, err := unix.Sysctl("machdep.cpu.brand_string")
	if err != nil {
		return ""
	}
	return chipName(brand)
}

func (hostFacts) Memory() (api.HostMemory, error) {
	total, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	raw, err := exec.CommandContext(ctx, "/usr/bin/vm_stat").Output()
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	available, err := availableMiB(string(raw))
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	level, err := unix.SysctlUint32("kern.memorystatus_vm_pressure_level")
	if err != nil {
		return api.HostMemory{}, factsError("memory pressure", err)
	}
	return api.HostMemory{MemTotalMiB: int64(total >> 20), MemAvailableMiB: min(int64(total>>20), available), PressureLevel: pressureLevel(level)}, nil
}
