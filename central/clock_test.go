package central

import (
	"testing"
	"time"
	"unsafe"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// jumped gives t as a process reads it after its wall clock was set by d: the monotonic part goes on as before.
// The standard library has no way to say that, so this writes what time.Time documents as its first word: a flag,
// 33 bits of seconds since 1885 and 30 of nanoseconds.
func jumped(t time.Time, d time.Duration) time.Time {
	word := (*uint64)(unsafe.Pointer(&t))
	*word += uint64(int64(d/time.Second)) << 30
	return t
}

func TestJumpedMovesTheWallClockOnly(t *testing.T) {
	now := time.Now()
	for _, d := range []time.Duration{time.Hour, -time.Hour} {
		then := jumped(now, d)
		if got := then.Sub(now); got != 0 {
			t.Errorf("monotonic distance: got %s, want 0", got)
		}
		if got := then.Unix() - now.Unix(); got != int64(d/time.Second) {
			t.Errorf("wall clock: moved by %d s, want %s", got, d)
		}
	}
}

// handClock is moved by hand: what passes, and what the wall clock is off by.
type handClock struct {
	start  time.Time
	passed time.Duration
	jump   time.Duration
}

func (c *handClock) wall() time.Time { return jumped(c.start.Add(c.passed), c.jump) }

func TestLeaderClock(t *testing.T) {
	start := api.TimeOf(time.Now())
	hour := api.Time(time.Hour.Milliseconds())
	type step struct {
		pass      time.Duration
		jump      time.Duration // the wall clock is set to be off by that
		commit    api.Time      // relative to start; 0: none
		replayed  bool
		want      api.Time // relative to start
		tolerance api.Time
	}
	for name, steps := range map[string][]step{
		"the wall clock is all there is at first":    {{want: 0, tolerance: 5}, {pass: time.Second, want: 1000, tolerance: 5}},
		"a live commit is the anchor":                {{commit: hour, want: hour}, {pass: time.Minute, want: hour + 60_000}},
		"a jump forward changes nothing":             {{commit: 100, want: 100}, {jump: time.Hour, want: 100}, {pass: time.Second, want: 1100}},
		"a jump back changes nothing":                {{commit: 100, want: 100}, {jump: -time.Hour, want: 100}, {pass: time.Second, want: 1100}},
		"a commit takes nothing off what has passed": {{commit: 100, want: 100}, {pass: time.Second, want: 1100}, {pass: 50 * time.Millisecond, commit: 1100, want: 1150}, {commit: 700, want: 1150}},
		"a commit from ahead takes over":             {{commit: 100, want: 100}, {pass: time.Second, commit: hour, want: hour}, {pass: time.Second, want: hour + 1000}},
		"replay never goes below what was committed": {{commit: hour, replayed: true, want: hour}, {commit: 5, replayed: true, want: hour}},
		"replay then live":                           {{commit: -hour, replayed: true, want: 0, tolerance: 5}, {commit: 500, want: 500}, {jump: time.Hour, want: 500}, {pass: time.Second, want: 1500}},
		"a snapshot does not unseat a live anchor":   {{commit: 100, want: 100}, {jump: time.Hour, commit: 50, replayed: true, want: 100}, {commit: 400, replayed: true, want: 400}, {pass: time.Second, want: 1400}},
	} {
		t.Run(name, func(t *testing.T) {
			hand := &handClock{start: time.Now()}
			start = api.TimeOf(hand.start)
			c := &leaderClock{wall: hand.wall}
			last := api.Time(0)
			for i, s := range steps {
				hand.passed += s.pass
				hand.jump = s.jump
				if s.commit != 0 {
					c.committed(start+s.commit, s.replayed)
				}
				got := c.now()
				if diff := got - start - s.want; diff < -s.tolerance || diff > s.tolerance {
					t.Errorf("step %d: got %d, want %d", i, got-start, s.want)
				}
				if got < last {
					t.Errorf("step %d: the clock went back by %d", i, last-got)
				}
				last = got
			}
		})
	}
}

func TestLeaderClockKeepsPaceUnderLoad(t *testing.T) {
	hand := &handClock{start: time.Now()}
	c := &leaderClock{wall: hand.wall}
	start := api.TimeOf(hand.start)
	c.committed(start, false)
	for range 1000 { // one command after the other, each taking 3 ms
		at := c.now()
		hand.passed += 3 * time.Millisecond
		c.committed(at, false)
	}
	if got := c.now() - start; got != 3000 {
		t.Errorf("after 3 s of commits without a break the clock shows %d ms", got)
	}
}
