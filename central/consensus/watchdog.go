package consensus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

const (
	probeEvery   = 10 * time.Second
	probeLimit   = 10 * time.Second
	probeMisses  = 3
	handingLimit = 3 // election timeouts that a transfer may keep writes refused
	removedAfter = time.Minute
)

// Removed is what a replica says that ends because it is no member any more.
func Removed(name string) string {
	return fmt.Sprintf("replica %q was removed from the cluster: empty its data directory and start it with --join to come back", name)
}

// watch ends the process when it leads but can do nothing with it, or has no place in the cluster any more.
func (n *Node) watch() {
	ticker := time.NewTicker(n.cfg.ElectionTimeout)
	defer ticker.Stop()
	var h health
	wasMember := false
	for {
		select {
		case <-n.life.Done():
			return
		case <-ticker.C:
		}
		_, member := n.member(n.cfg.Name)
		wasMember = wasMember || member
		silence, heard := n.LastContact()
		if n.raft.State() == raft.Shutdown || wasMember && !member && heard && silence > removedAfter {
			if n.life.Err() == nil {
				n.exit(ExitConfig, Removed(n.cfg.Name))
			}
			return
		}
		if fault := n.examine(&h); fault != "" {
			n.exit(ExitFault, fault)
			return
		}
	}
}

// examine probes a leader that shows no progress, or that refused something because of a transfer.
func (n *Node) examine(h *health) (fault string) {
	term, leading := n.leading()
	handing := n.handing.Swap(false)
	if !leading || !h.due(time.Now(), term, n.AppliedIndex(), handing) {
		return ""
	}
	ctx, cancel := context.WithTimeout(n.life, probeLimit)
	defer cancel()
	err := n.barrier(ctx)
	if n.life.Err() != nil {
		return ""
	}
	return h.note(time.Now(), err)
}

// health is what the watchdog remembers of the term that this replica leads in.
type health struct {
	term    uint64
	applied uint64
	probed  time.Time // when progress was last seen or asked for
	misses  int
	handing int // probes in a row, an election timeout apart, that found a transfer in the way
}

// due says whether to probe now. Commands that get applied are progress enough.
func (h *health) due(now time.Time, term, applied uint64, handing bool) bool {
	if term != h.term {
		*h = health{term: term, applied: applied, probed: now}
	}
	if handing || h.handing > 0 {
		return true
	}
	if applied != h.applied {
		h.applied, h.probed, h.misses = applied, now, 0
	}
	return now.Sub(h.probed) >= probeEvery
}

// note takes the outcome of a probe and gives the fault to end with, if any.
func (h *health) note(now time.Time, err error) (fault string) {
	h.probed = now
	switch {
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		// Counted, since a process that was stopped has seen nothing meanwhile.
		if h.handing++; h.handing > handingLimit {
			return fmt.Sprintf("a transfer of leadership has refused writes for %d election timeouts: starting again to end it", handingLimit)
		}
	case err == nil, errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost):
		h.misses, h.handing = 0, 0
	default:
		h.handing = 0
		if h.misses++; h.misses == probeMisses {
			return fmt.Sprintf("as leader it could not commit %d times in a row for %s each (%v): starting again so that another replica can lead", probeMisses, probeLimit, err)
		}
	}
	return ""
}
