package central

import (
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// DefaultDiskReserve is the room in bytes below which a replica takes in nothing new: enough for a few snapshots and for
// what has to be written down until somebody has made room.
const DefaultDiskReserve = 128 << 20

// storage watches the room on the disk of the data directory.
type storage struct {
	reserve uint64
	free    func() (uint64, error)
	logger  hclog.Logger

	mu  sync.Mutex
	low bool
}

// isLow looks. Once it is low, a quarter more than the reserve must be free before it is not: else it would go to and fro.
func (s *storage) isLow() bool {
	if s.free == nil {
		return false
	}
	free, err := s.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return s.low // whoever writes next learns what is wrong
	}
	was := s.low
	if was {
		s.low = free < s.reserve+s.reserve/4
	} else {
		s.low = free < s.reserve
	}
	if s.low != was {
		if s.low {
			s.logger.Error("the disk of the data directory is nearly full: make room", "free", mib(free), "reserve", mib(s.reserve))
		} else {
			s.logger.Info("the disk of the data directory has room again", "free", mib(free))
		}
	}
	return s.low
}

func mib(bytes uint64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// freeBytes gives what is free on the disk of a directory for those who are not root.
func freeBytes(dir string) func() (uint64, error) {
	return func() (uint64, error) {
		var s unix.Statfs_t
		if err := unix.Statfs(dir, &s); err != nil {
			return 0, fmt.Errorf("asking for the room on the disk of %s: %w", dir, err)
		}
		return uint64(s.Bavail) * uint64(s.Bsize), nil
	}
}
