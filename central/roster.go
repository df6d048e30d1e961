package central

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// rosterPeriod is how often the leader asks every member how it is.
const rosterPeriod = 2 * time.Second

// roster is what the leader last heard of each member in this reign: which commands it understands, and whether
// its disk has room.
type roster struct {
	mu sync.Mutex
	of map[string]rosterEntry
}

type rosterEntry struct {
	status
	silent bool // it did not answer when last asked
}

func (o *roster) note(known map[string]status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := map[string]rosterEntry{}
	for name, was := range o.of {
		was.silent = true
		next[name] = was
	}
	for name, now := range known {
		next[name] = rosterEntry{status: now}
	}
	o.of = next
}

func (o *roster) get() map[string]rosterEntry {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.of)
}

// passRoster asks all members, and hands leadership over if this replica's disk is nearly full and another's is not.
func (g *reign) passRoster(ctx context.Context) error {
	known := g.r.statuses(ctx)
	g.roster.note(known)
	if !known[g.r.cfg.Name].DiskLow {
		return nil
	}
	target := g.r.log.AppliedIndex()
	for _, m := range g.r.log.Members() {
		if s, heard := known[m.Name]; m.Voter && m.Name != g.r.cfg.Name && heard && !s.DiskLow && s.Applied+promoteWithin >= target {
			g.r.logger.Warn("the disk is nearly full; handing leadership over", "to", m.Name)
			return g.r.log.Transfer(ctx, m.Name)
		}
	}
	return nil
}

// mayPropose refuses a command that a member could not carry out, or that the disks have no room for.
func (g *reign) mayPropose(kind fsm.Kind) error {
	newer, adds := kind > g.r.cfg.baseline, addsRows(kind)
	if !newer && !adds {
		return nil
	}
	heard := g.roster.get()
	var old, low []string
	voters, silent := 0, 0
	for _, m := range g.r.log.Members() {
		s, known := heard[m.Name]
		if newer && (!known || max(s.Newest, g.r.cfg.baseline) < kind) {
			old = append(old, m.Name)
		}
		if !m.Voter {
			continue
		}
		switch voters++; {
		case s.silent:
			silent++
		case s.DiskLow:
			low = append(low, m.Name)
		}
	}
	switch {
	case len(old) > 0:
		return api.Errorf(api.CodeUnavailable, "this needs every replica to know command kind %d, which %s does not, or has not said so: upgrade it, or start it, or remove it from the cluster", kind, strings.Join(old, ", "))
	case adds && len(low) > 0 && voters-len(low)-silent <= voters/2:
		slices.Sort(low)
		return api.Errorf(api.CodeStorageFull, "the disk of %s is nearly full, and too few replicas have room: make room in the data directories; reads and deletes go on", strings.Join(low, ", "))
	}
	return nil
}

// addsRows says whether a kind is somebody's wish for more. While disks are nearly full only such are refused: what ends
// things, and what the fleet has to write down of things that are, goes on.
func addsRows(kind fsm.Kind) bool {
	switch kind {
	case fsm.KindCreateImage, fsm.KindPatchImage, fsm.KindCreateJoinToken, fsm.KindAdmitReplica, fsm.KindCreatePool, fsm.KindPatchPool, fsm.KindRollPool,
		fsm.KindFillPool, fsm.KindFillPools, fsm.KindLaunchVM, fsm.KindPatchVM, fsm.KindCreateTenant, fsm.KindPatchTenant, fsm.KindCreateKey, fsm.KindPatchPolicy, fsm.KindPutPrices,
		fsm.KindCreateLease, fsm.KindPatchLease, fsm.KindAdjustLedger:
		return true
	}
	return false
}
