//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const balloonObject = "/machine/peripheral/" + balloonID

// balloonDevice is the balloon of one VM.
type balloonDevice struct {
	there      bool
	reporting  bool // freed pages go back to the host without any target
	deflate    bool // rather than kill a process the guest takes pages back
	statsEvery int  // seconds between what the guest tells of its memory, once it was asked for; 0: it never is
}

// balloonOf is the device that the request means: every micro-VM has one, a whole VM that asked for one.
func balloonOf(spec machine.Spec) balloonDevice {
	b := balloonDevice{there: spec.Backend != api.BackendQEMU, reporting: true, deflate: true, statsEvery: 5}
	if asked := spec.Balloon; asked != nil {
		b.there = true
		if asked.FreePageReporting != nil {
			b.reporting = *asked.FreePageReporting
		}
		if asked.DeflateOnOOM != nil {
			b.deflate = *asked.DeflateOnOOM
		}
		if asked.StatsIntervalSecs != nil {
			b.statsEvery = *asked.StatsIntervalSecs
		}
	}
	return b
}

func (b balloonDevice) arguments() []string {
	if !b.there {
		return nil
	}
	return []string{"-device", fmt.Sprintf("virtio-balloon-pci,id=%s,bus=pcie.0,deflate-on-oom=%s,free-page-reporting=%s", balloonID, onOff(b.deflate), onOff(b.reporting))}
}

// Balloon is what the guest has given up. QEMU counts what the guest keeps.
func (m *vm) Balloon(ctx context.Context) (int64, error) {
	if !m.balloon.there {
		return 0, machine.ErrNoBalloon
	}
	var b struct{ Actual int64 }
	if err := m.monitor.execute(ctx, "query-balloon", nil, &b); err != nil {
		return 0, m.failed(err)
	}
	return max(0, m.spec.MemoryMiB-b.Actual>>20), nil
}

// SetBalloon moves the device's target.
func (m *vm) SetBalloon(ctx context.Context, mib int64) error {
	if !m.balloon.there {
		return machine.ErrNoBalloon
	}
	if err := m.monitor.execute(ctx, "balloon", map[string]any{"value": (m.spec.MemoryMiB - mib) << 20}, nil); err != nil {
		return m.failed(err)
	}
	return nil
}

// GuestMemory is what the guest's balloon driver last told. The first call makes it tell.
func (m *vm) GuestMemory(ctx context.Context) (*api.GuestMemory, error) {
	if !m.balloon.there || m.balloon.statsEvery == 0 {
		return nil, nil
	}
	m.mu.Lock()
	asked := m.stats
	m.mu.Unlock()
	if !asked {
		arguments := map[string]any{"path": balloonObject, "property": "guest-stats-polling-interval", "value": m.balloon.statsEvery}
		if err := m.monitor.execute(ctx, "qom-set", arguments, nil); err != nil {
			return nil, m.failed(err)
		}
		m.mu.Lock()
		m.stats = true
		m.mu.Unlock()
	}
	var told struct {
		LastUpdate int64 `json:"last-update"`
		Stats      struct {
			Total     int64 `json:"stat-total-memory"`
			Free      int64 `json:"stat-free-memory"`
			Available int64 `json:"stat-available-memory"`
		}
	}
	if err := m.monitor.execute(ctx, "qom-get", map[string]any{"path": balloonObject, "property": "guest-stats"}, &told); err != nil {
		var refused *qmpError
		if errors.As(err, &refused) {
			return nil, nil // it has not told yet
		}
		return nil, fmt.Errorf("reading the guest's memory: %w", m.failed(err))
	}
	if told.LastUpdate == 0 || told.Stats.Total <= 0 {
		return nil, nil
	}
	return &api.GuestMemory{TotalMiB: told.Stats.Total >> 20, FreeMiB: told.Stats.Free >> 20, AvailableMiB: told.Stats.Available >> 20,
		UpdatedAt: api.TimeOf(time.Unix(told.LastUpdate, 0))}, nil
}
