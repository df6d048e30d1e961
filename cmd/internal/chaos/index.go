package chaos

import (
	"fmt"
	"sync"
)

// indexes holds the log indexes that answers carry to what they promise: a current read is as new as every answer that
// came before it was asked for, and what one run of a replica shows of its own state only gets newer.
type indexes struct {
	mu       sync.Mutex
	promised uint64
	shown    map[string]uint64 // by replica and start
}

func newIndexes() *indexes { return &indexes{shown: map[string]uint64{}} }

// asked is called before a current read; what it gives goes to answered.
func (x *indexes) asked() (floor uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.promised
}

// answered takes the index of an answer; floor is 0 for a write.
func (x *indexes) answered(floor, index uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.promised = max(x.promised, index)
	if index < floor {
		return fmt.Errorf("a current read shows index %d, and %d had been answered before it was asked for", index, floor)
	}
	return nil
}

// askedOf is asked for what one run of a replica shows by itself.
func (x *indexes) askedOf(run string) (floor uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.shown[run]
}

// answeredBy is answered for it.
func (x *indexes) answeredBy(run string, floor, index uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.shown[run] = max(x.shown[run], index)
	if index < floor {
		return fmt.Errorf("%s shows index %d after it had shown %d", run, index, floor)
	}
	return nil
}
