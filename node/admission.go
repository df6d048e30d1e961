package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// pressureRefusal says why the host's memory does not allow a VM of the size now; empty if it does. A threshold
// whose input the host lacks is passed over. reservedMiB is promised to VMs that were admitted and have not landed.
func pressureRefusal(p Policy, m api.HostMemory, reservedMiB, memoryMiB int64) string {
	switch {
	case p.MinHostMemAvailableMiB != nil && m.MemAvailableMiB-reservedMiB-memoryMiB < *p.MinHostMemAvailableMiB:
		promised := ""
		if reservedMiB > 0 {
			promised = fmt.Sprintf(" (%d MiB of them promised to VMs that are starting)", reservedMiB)
		}
		return fmt.Sprintf("host under memory pressure: %d MiB available%s, %d MiB requested, policy.min_host_mem_available_mib reserve is %d MiB",
			m.MemAvailableMiB, promised, memoryMiB, *p.MinHostMemAvailableMiB)
	case p.MaxHostMemPSISomeAvg10 != nil && m.PSI != nil && m.PSI.SomeAvg10 > *p.MaxHostMemPSISomeAvg10:
		return fmt.Sprintf("host under memory pressure: PSI some avg10 is %.2f %%, policy.max_host_mem_psi_some_avg10 is %.2f %%", m.PSI.SomeAvg10, *p.MaxHostMemPSISomeAvg10)
	case p.MaxHostMemPSIFullAvg10 != nil && m.PSI != nil && m.PSI.FullAvg10 > *p.MaxHostMemPSIFullAvg10:
		return fmt.Sprintf("host under memory pressure: PSI full avg10 is %.2f %%, policy.max_host_mem_psi_full_avg10 is %.2f %%", m.PSI.FullAvg10, *p.MaxHostMemPSIFullAvg10)
	case p.DenyHostPressureLevel != "" && m.PressureLevel != nil && pressureRank(*m.PressureLevel) >= pressureRank(p.DenyHostPressureLevel):
		return fmt.Sprintf("host under memory pressure: the level is %s, policy.deny_host_pressure_level is %s", *m.PressureLevel, p.DenyHostPressureLevel)
	}
	return ""
}

func pressureRank(level string) int {
	switch level {
	case api.PressureCritical:
		return 2
	case api.PressureWarn:
		return 1
	}
	return 0
}

// usage is what the host's VMs take together.
type usage struct {
	vms, vcpus, macos int
	memoryMiB         int64
}

// quotaRefusal says which quota a VM of the size would break, and its scope; empty if none. Totals are the host's.
func quotaRefusal(p Policy, used usage, vcpusTotal int, memoryTotal int64, vcpus int, memoryMiB int64) (scope, why string) {
	maxVCPUs, maxMemory := p.MaxVCPUs, p.MaxMemoryMiB
	if p.EnforceHostTotals && maxVCPUs == 0 {
		maxVCPUs = vcpusTotal
	}
	if p.EnforceHostTotals && maxMemory == 0 {
		maxMemory = memoryTotal
	}
	switch {
	case p.MaxVMs > 0 && used.vms+1 > p.MaxVMs:
		return "vms", fmt.Sprintf("the host has %d VMs and policy.max_vms is %d: delete one or raise it", used.vms, p.MaxVMs)
	case maxVCPUs > 0 && used.vcpus+vcpus > maxVCPUs:
		return "vcpus", fmt.Sprintf("%d vCPUs requested, %d of %d in use on this host: delete a VM or raise policy.max_vcpus", vcpus, used.vcpus, maxVCPUs)
	case maxMemory > 0 && used.memoryMiB+memoryMiB > maxMemory:
		return "memory", fmt.Sprintf("%d MiB requested, %d of %d MiB in use on this host: delete a VM or raise policy.max_memory_mib", memoryMiB, used.memoryMiB, maxMemory)
	}
	return "", ""
}

// reservations are what admitted VMs have yet to take of the host's memory. Without them, creates at one moment
// would all be measured against memory that only one of them can have.
type reservations struct {
	mu     sync.Mutex
	byVM   map[string]int64 // MiB
	sumMiB int64
}

func newReservations() *reservations { return &reservations{byVM: map[string]int64{}} }

// release ends the VM's reservation: it has landed, or it never will. It is no error that there is none.
func (r *reservations) release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sumMiB -= r.byVM[id]
	delete(r.byVM, id)
}

// total is what is reserved in MiB.
func (r *reservations) total() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sumMiB
}

// take reserves for the VM unless policy refuses it, as one step.
func (r *reservations) take(p Policy, m api.HostMemory, id string, memoryMiB int64) (why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why = pressureRefusal(p, m, r.sumMiB-r.byVM[id], memoryMiB); why == "" {
		r.sumMiB += memoryMiB - r.byVM[id]
		r.byVM[id] = memoryMiB
	}
	return why
}

// admitPressure reserves memory for a VM that starts. It waits for pressure to clear, as long as policy says unless
// atOnce, and refuses if it does not. Who does not go on to start the VM releases the reservation.
func (d *Daemon) admitPressure(ctx context.Context, id string, memoryMiB int64, atOnce bool) error {
	p := d.cfg.Settings.Policy
	wait := time.Duration(p.PressureDeferSecs) * time.Second
	if atOnce {
		wait = 0
	}
	end := time.Now().Add(wait)
	for {
		m, err := d.cfg.Facts.Memory()
		if err != nil {
			// An input that cannot be read is skipped, as one that does not exist.
			d.log.Warn("memory pressure is not known: starts are not checked against it", "error", err)
			return nil
		}
		why := d.reserved.take(p, m, id, memoryMiB)
		if why == "" {
			return nil
		}
		left := time.Until(end)
		if left <= 0 {
			return api.Errorf(api.CodeHostPressure, "%s", why)
		}
		select {
		case <-ctx.Done():
			return api.Errorf(api.CodeHostPressure, "%s", why)
		case <-d.closing:
			return endingRefusal()
		case <-time.After(min(time.Second, left)):
		}
	}
}

// admitStart is admitPressure for what is no create: a claim, a start of what was stopped, or going on from disk. It is
// passed unless policy gates all starts.
func (d *Daemon) admitStart(c *call, v *vm, memoryMiB int64) error {
	if !d.cfg.Settings.Policy.GateAllStarts {
		return nil
	}
	if err := d.admitPressure(c.Context(), v.id, memoryMiB, c.Header.Get(api.HeaderDefer) == "0"); err != nil {
		v.mu.Lock()
		req := v.rec.Spec
		v.mu.Unlock()
		return d.deny(c, req, "pressure", err)
	}
	return nil
}
