package node

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// hostFacts reads /proc.
type hostFacts struct{}

func (hostFacts) BootID() string {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(raw))
}

func (hostFacts) Uptime() time.Duration { return clockReading(unix.CLOCK_BOOTTIME) }

func (hostFacts) Chip() string { return "" }

func (hostFacts) Memory() (api.HostMemory, error) { return memoryBelow(procfs.DefaultMountPoint) }

// memoryBelow reads meminfo and memory pressure below the mount point of /proc.
func memoryBelow(proc string) (api.HostMemory, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	info, err := fs.Meminfo()
	if err != nil {
		return api.HostMemory{}, factsError("memory", err)
	}
	if info.MemTotalBytes == nil || info.MemAvailableBytes == nil {
		return api.HostMemory{}, factsError("memory", errors.New("the kernel does not report MemAvailable"))
	}
	out := api.HostMemory{MemTotalMiB: int64(*info.MemTotalBytes >> 20), MemAvailableMiB: int64(*info.MemAvailableBytes >> 20)}
	// A kernel without PSI is no failure: its thresholds are passed over.
	if psi, err := fs.PSIStatsForResource("memory"); err == nil && psi.Some != nil && psi.Full != nil {
		out.PSI = &api.PSI{SomeAvg10: psi.Some.Avg10, FullAvg10: psi.Full.Avg10}
	}
	return out, nil
}
