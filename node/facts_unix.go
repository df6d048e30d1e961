//go:build linux || darwin

package node

import (
	"time"

	"golang.org/x/sys/unix"
)

func clockReading(clock int32) time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(clock, &at); err != nil {
		return 0
	}
	return time.Duration(at.Nano())
}
