//go:build chaos

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/fluxvm/fluxvm/central"
)

// underTest takes from the environment what the chaos campaign does to a replica and no flag can do: FLUXVM_CHAOS_CLOCK
// names a file with the seconds that the wall clock is off, FLUXVM_CHAOS_SNAPSHOTS is THRESHOLD,TRAILING,INTERVAL.
func underTest(cfg *central.Config) error {
	if file := os.Getenv("FLUXVM_CHAOS_CLOCK"); file != "" {
		cfg.Wall = (&setClock{file: file}).now
	}
	text := os.Getenv("FLUXVM_CHAOS_SNAPSHOTS")
	if text == "" {
		return nil
	}
	parts := strings.Split(text, ",")
	if len(parts) != 3 {
		return fmt.Errorf("FLUXVM_CHAOS_SNAPSHOTS=%s must be THRESHOLD,TRAILING,INTERVAL, such as 200,400,5s", text)
	}
	var err error
	if cfg.SnapshotThreshold, err = strconv.ParseUint(parts[0], 10, 64); err != nil {
		return fmt.Errorf("reading FLUXVM_CHAOS_SNAPSHOTS: %w", err)
	}
	if cfg.TrailingLogs, err = strconv.ParseUint(parts[1], 10, 64); err != nil {
		return fmt.Errorf("reading FLUXVM_CHAOS_SNAPSHOTS: %w", err)
	}
	if cfg.SnapshotInterval, err = time.ParseDuration(parts[2]); err != nil {
		return fmt.Errorf("reading FLUXVM_CHAOS_SNAPSHOTS: %w", err)
	}
	return nil
}

// setClock is a wall clock that someone sets while the process runs. What it measures goes on undisturbed.
type setClock struct {
	file string

	mu     sync.Mutex
	looked time.Time
	off    time.Duration
}

func (c *setClock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := time.Now()
	if t.Sub(c.looked) > 100*time.Millisecond {
		c.looked = t
		raw, err := os.ReadFile(c.file)
		seconds, bad := strconv.Atoi(strings.TrimSpace(string(raw)))
		if err == nil && bad == nil {
			c.off = time.Duration(seconds) * time.Second
		}
	}
	return jumped(t, c.off)
}

// jumped gives t as a process reads it after its wall clock was set by d: the monotonic part goes on as before. The
// standard library has no way to say that, so this writes what time.Time documents as its first word: a flag, 33 bits of
// seconds since 1885 and 30 of nanoseconds.
func jumped(t time.Time, d time.Duration) time.Time {
	word := (*uint64)(unsafe.Pointer(&t))
	*word += uint64(int64(d/time.Second)) << 30
	return t
}
