package node

import (
	"errors"
	"fmt"

	"github.com/prometheus/procfs"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// rollup is the sum of the processes' smaps_rollup. One that ended meanwhile counts nothing; nil when none is left.
func rollup(pids []int) (*api.MemoryUsage, error) { return rollupIn(procfs.DefaultMountPoint, pids) }

func rollupIn(proc string, pids []int) (*api.MemoryUsage, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return nil, fmt.Errorf("reading processes: %w", err)
	}
	var out *api.MemoryUsage
	var failed error
	for _, pid := range pids {
		p, err := fs.Proc(pid)
		if err != nil {
			continue
		}
		s, err := p.ProcSMapsRollup()
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("reading the memory of process %d: %w", pid, err))
			continue
		}
		if out == nil {
			out = &api.MemoryUsage{}
		}
		out.RSSKiB += int64(s.Rss >> 10)
		out.PSSKiB += int64(s.Pss >> 10)
		out.PrivateKiB += int64((s.PrivateClean + s.PrivateDirty) >> 10)
		out.SharedKiB += int64((s.SharedClean + s.SharedDirty) >> 10)
		out.SwapKiB += int64(s.Swap >> 10)
	}
	if out != nil {
		return out, nil
	}
	return nil, failed
}
