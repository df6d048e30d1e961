//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	// statsEvery is how often the guest tells of its memory, in seconds, once it was asked for.
	statsEvery = 5

	balloonObject = "/machine/peripheral/" + balloonDevice
)

// Balloon is what the guest has given up. QEMU counts what the guest keeps.
func (m *vm) Balloon(ctx context.Context) (int64, error) {
	var b struct{ Actual int64 }
	if err := m.monitor.execute(ctx, "query-balloon", nil, &b); err != nil {
		return 0, m.failed(err)
	}
	return max(0, m.spec.MemoryMiB-b.Actual>>20), nil
}

// SetBalloon moves the device's target.
func (m *vm) SetBalloon(ctx context.Context, mib int64) error {
	if err := m.monitor.execute(ctx, "balloon", map[string]any{"value": (m.spec.MemoryMiB - mib) << 20}, nil); err != nil {
		return m.failed(err)
	}
	return nil
}

// GuestMemory is what the guest's balloon driver last told. The first call makes it tell.
func (m *vm) GuestMemory(ctx context.Context) (*api.GuestMemory, error) {
	m.mu.Lock()
	asked := m.stats
	m.mu.Unlock()
	if !asked {
		arguments := map[string]any{"path": balloonObject, "property": "guest-stats-polling-interval", "value": statsEvery}
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
