package node

import (
	"context"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// memoryReport is what the VM takes of the host. What cannot be read is null: a report never fails for it.
func (v *vm) memoryReport(ctx context.Context) api.MemoryReport {
	out := api.MemoryReport{VMID: v.id, ConfiguredMiB: v.size.MemoryMiB}
	m := v.machineNow()
	if m == nil {
		return out
	}
	if usage, err := usageOf(m); err != nil {
		v.log.Debug("the VM's memory cannot be read", "error", err)
	} else {
		out.Usage = usage
	}
	if b, err := v.readBalloon(ctx); err == nil {
		out.Balloon = &b
	}
	if o, ok := m.(machine.Observed); ok {
		var err error
		if out.Guest, err = o.GuestMemory(ctx); err != nil {
			v.log.Debug("the guest does not tell of its memory", "error", err)
		}
	}
	return out
}

// usageOf adds up what the machine's processes hold; nil without one.
func usageOf(m machine.Machine) (*api.MemoryUsage, error) {
	var pids []int
	if g, ok := m.(machine.Grouped); ok {
		var err error
		if pids, err = g.PIDs(); err != nil {
			return nil, err
		}
	} else if pid := m.PID(); pid > 0 {
		pids = []int{pid}
	}
	return rollup(pids)
}

// holds is the PSS of the VM's processes and the target of its balloon, 0 where there is none.
func (v *vm) holds() (pssKiB, targetMiB int64) {
	v.mu.Lock()
	r := v.run
	if r != nil {
		targetMiB = r.balloon.target
	}
	v.mu.Unlock()
	if r == nil {
		return 0, 0
	}
	if usage, err := usageOf(r.Machine); err == nil && usage != nil {
		pssKiB = usage.PSSKiB
	}
	return pssKiB, targetMiB
}

func (d *Daemon) getMemory(c *call) (answer, error) {
	v, err := d.named(c)
	if err != nil {
		return answer{}, err
	}
	return ok(v.memoryReport(c.Context()))
}
