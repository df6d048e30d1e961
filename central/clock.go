package central

import (
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// leaderClock is the time that commands carry: the last committed time plus what this process measured since it
// saw that commit, so that a jump of the wall clock expires nothing early. It never goes back.
type leaderClock struct {
	wall func() time.Time

	mu   sync.Mutex
	base api.Time  // the newest committed time
	seen time.Time // when this process saw it committed, with the monotonic clock; zero if it only replayed it
}

// committed takes over the time of an applied command. replayed says that it is from before this process started:
// how long ago it was committed is not known then.
func (c *leaderClock) committed(at api.Time, replayed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at <= c.base && !c.seen.IsZero() {
		return
	}
	c.base = max(c.base, at)
	if replayed {
		c.seen = time.Time{}
	} else {
		c.seen = c.wall()
	}
}

// now is the leader's time. Without a commit seen live the wall clock is all there is.
func (c *leaderClock) now() api.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := c.wall()
	if c.seen.IsZero() {
		return max(c.base, api.TimeOf(wall))
	}
	return c.base.Add(wall.Sub(c.seen))
}
