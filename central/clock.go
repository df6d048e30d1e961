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
	was  api.Time  // the newest committed time before this process took part
	seen time.Time // when this process saw it committed, with the monotonic clock; zero while it only replayed
}

// committed takes over the time of an applied command. replayed says that it is from before this process started:
// how long ago it was committed is not known then.
func (c *leaderClock) committed(at api.Time, replayed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := c.wall()
	if c.seen.IsZero() && !replayed {
		c.was = c.base
	}
	switch anchored := !c.seen.IsZero(); {
	case anchored && at <= c.base.Add(wall.Sub(c.seen)):
		// A command carries the time at which it was proposed. Going back to that would lose, at every commit, what
		// the commit took: under load the clock would all but stand still.
	case anchored || !replayed:
		c.base, c.seen = max(c.base, at), wall
	default:
		c.base = max(c.base, at)
	}
}

// before is the newest time committed before this process took part: what it was told of then was true then.
func (c *leaderClock) before() api.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.was
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
