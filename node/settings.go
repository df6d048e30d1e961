package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Settings are the tables of the configuration file that shape admission and sandboxes.
type Settings struct {
	Policy  Policy  `toml:"policy"`
	Sandbox Sandbox `toml:"sandbox"`
}

// Policy is [policy]: what a create must keep to. Unset thresholds are not checked.
type Policy struct {
	// Quotas over all VMs of the host, checked before pressure. EnforceHostTotals takes the host's own totals
	// where no quota is set.
	EnforceHostTotals bool  `toml:"enforce_host_totals"`
	MaxVCPUs          int   `toml:"max_vcpus"`
	MaxMemoryMiB      int64 `toml:"max_memory_mib"`
	MaxVMs            int   `toml:"max_vms"`

	MinHostMemAvailableMiB *int64   `toml:"min_host_mem_available_mib"`
	MaxHostMemPSISomeAvg10 *float64 `toml:"max_host_mem_psi_some_avg10"` // percent
	MaxHostMemPSIFullAvg10 *float64 `toml:"max_host_mem_psi_full_avg10"` // percent
	DenyHostPressureLevel  string   `toml:"deny_host_pressure_level"`    // warn or critical
	PressureDeferSecs      int      `toml:"pressure_defer_secs"`         // how long a create waits for pressure to clear
	GateAllStarts          bool     `toml:"gate_all_starts"`             // also forks, claims, wakes, and starts of what was stopped
}

// Sandbox is [sandbox].
type Sandbox struct {
	IdleBalloonSecs    int  `toml:"idle_balloon_secs"` // 0: no idle reclaim
	IdleBalloonPercent *int `toml:"idle_balloon_percent"`
	AutopauseIdleSecs  int  `toml:"autopause_idle_secs"` // 0: no autopause
	AutopauseScanSecs  *int `toml:"autopause_scan_secs"`
	WarmSlots          int  `toml:"warm_slots"` // sandboxes kept booted for those to come

	Image       string `toml:"image"`        // of sandboxes that name none
	WarmProfile string `toml:"warm_profile"` // of the warm slots; empty: the default one
}

// idlePercent is the share of a guest's memory that idle reclaim takes.
func (s Sandbox) idlePercent() int64 {
	if s.IdleBalloonPercent == nil {
		return 50
	}
	return int64(*s.IdleBalloonPercent)
}

// scanEvery is how often the idle scanner runs.
func (s Sandbox) scanEvery() time.Duration {
	if s.AutopauseScanSecs == nil {
		return 10 * time.Second
	}
	return time.Duration(*s.AutopauseScanSecs) * time.Second
}

// scans says whether there is an idle scanner.
func (s Sandbox) scans() bool { return s.IdleBalloonSecs > 0 || s.AutopauseIdleSecs > 0 }

func (s Settings) check() error {
	p, b := s.Policy, s.Sandbox
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(p.MaxVCPUs < 0 || p.MaxMemoryMiB < 0 || p.MaxVMs < 0, "policy: max_vcpus, max_memory_mib and max_vms must not be negative")
	refuse(p.MinHostMemAvailableMiB != nil && *p.MinHostMemAvailableMiB < 0, "policy.min_host_mem_available_mib must not be negative")
	for name, v := range map[string]*float64{"some": p.MaxHostMemPSISomeAvg10, "full": p.MaxHostMemPSIFullAvg10} {
		refuse(v != nil && !(*v >= 0 && *v <= 100), "policy.max_host_mem_psi_%s_avg10 must be from 0 to 100 percent", name)
	}
	refuse(p.DenyHostPressureLevel != "" && p.DenyHostPressureLevel != api.PressureWarn && p.DenyHostPressureLevel != api.PressureCritical,
		"policy.deny_host_pressure_level must be %s or %s", api.PressureWarn, api.PressureCritical)
	refuse(p.PressureDeferSecs < 0 || p.PressureDeferSecs > 3600, "policy.pressure_defer_secs must be from 0 to 3600")
	refuse(b.IdleBalloonSecs < 0 || b.AutopauseIdleSecs < 0, "sandbox: idle_balloon_secs and autopause_idle_secs must not be negative")
	refuse(b.IdleBalloonPercent != nil && (*b.IdleBalloonPercent < 1 || *b.IdleBalloonPercent > 90), "sandbox.idle_balloon_percent must be from 1 to 90")
	refuse(b.AutopauseScanSecs != nil && *b.AutopauseScanSecs < 1, "sandbox.autopause_scan_secs must be at least 1")
	refuse(b.WarmSlots < 0 || b.WarmSlots > 64, "sandbox.warm_slots must be from 0 to 64")
	_, err := api.FindSandboxProfile(b.WarmProfile)
	refuse(err != nil, "sandbox.warm_profile must be tiny, small or standard")
	return errors.Join(errs...)
}
