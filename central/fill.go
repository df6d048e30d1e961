package central

import (
	"slices"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	bootDeadline    = 15 * time.Minute // a spare still booting after that is replaced
	maxBootsPerPass = 4                // of one pool
	rollPauseAfter  = 2                // boots that failed in a row stop a roll
	reasonTrim      = "the pool keeps fewer"
)

// drop is a spare that has to go, and why.
type drop struct {
	vm     *fsm.VM
	reason string
	failed bool // it stands for a boot that failed
}

// reasonAged is why a good spare goes.
const reasonAged = "it is older than max_age_seconds"

// poolPlan is what one pass does to a pool.
type poolPlan struct {
	drops []drop
	keep  []fsm.FailedSpare // failed ones that their nodes cannot know of and that are to be kept
	fill  int
	want  int       // as fill, if it did not back off for want of room
	wait  *fsm.Wait // nil: no news
	roll  bool      // its roll is done
}

// decidePool looks at a pool and says what its spares should become. It is pure: now is the leader's time.
func decidePool(view fsm.View, p *fsm.Pool, now api.Time) (plan poolPlan) {
	var ready, booting []*fsm.VM // oldest first
	kept := view.KeptFailed(p, now)
	for s := range view.Spares(p.Name) {
		state := s.WarmState()
		reason, failed := spareFault(view, p, s, now)
		switch {
		case kept != nil && s.ID == kept.ID && mayStay(view, p, s):
		case s.FailedAt != 0:
			plan.drops = append(plan.drops, drop{vm: s, reason: "it failed: " + s.Reason})
		case failed && p.KeepFailed > 0 && s.State == api.StateRunning:
			plan.keep = append(plan.keep, fsm.FailedSpare{ID: s.ID, Reason: reason})
		case reason != "":
			plan.drops = append(plan.drops, drop{s, reason, failed})
		case s.State == api.StateUnknown: // its node is silent; another takes its place until it is back
		case state == "ready":
			ready = append(ready, s)
		default:
			booting = append(booting, s)
		}
	}
	slices.SortStableFunc(booting, func(a, b *fsm.VM) int { return int(a.CreatedAt - b.CreatedAt) })
	trim := func(list []*fsm.VM) []*fsm.VM { // the newest
		last := list[len(list)-1]
		plan.drops = append(plan.drops, drop{vm: last, reason: reasonTrim})
		return list[:len(list)-1]
	}
	for len(ready)+len(booting) > p.MinReady {
		if len(booting) > 0 {
			booting = trim(booting)
		} else {
			ready = trim(ready)
		}
	}
	ready, booting = rollOne(p, ready, booting, &plan)
	ready = recycleOne(p, ready, booting, &plan, now)
	plan.roll = p.RollFrom != "" && view.Rolled(p)
	plan.fill = min(p.MinReady-len(ready)-len(booting), maxBootsPerPass)
	room := p.MaxTotal - len(ready) - len(booting) - view.Count(p).Claimed
	switch {
	case plan.fill <= 0 || now < p.BackoffUntil:
		if p.WaitsForRoom {
			plan.want = min(plan.fill, room)
		}
		plan.fill = 0
		if p.WaitReason == api.WaitMaxTotal {
			plan.wait = &fsm.Wait{}
		}
	case room <= 0:
		plan.fill = 0
		if p.WaitReason != api.WaitMaxTotal {
			plan.wait = &fsm.Wait{Reason: api.WaitMaxTotal}
		}
	default:
		plan.fill = min(plan.fill, room)
		plan.fitQuota(view, p)
	}
	return plan
}

// fitQuota cuts what is to be booted to what the tenant's quota has room for.
func (plan *poolPlan) fitQuota(view fsm.View, p *fsm.Pool) {
	room := view.QuotaRoom(p, plan.fill)
	switch {
	case room > 0 && p.WaitReason == api.WaitQuota:
		plan.wait = &fsm.Wait{}
	case room == 0 && p.WaitReason != api.WaitQuota:
		plan.wait = &fsm.Wait{Reason: api.WaitQuota}
	}
	plan.fill = room
}

// recycleOne drops the oldest ready spare that is too old, but only while all that are wanted are ready: one at a time.
func recycleOne(p *fsm.Pool, ready, booting []*fsm.VM, plan *poolPlan, now api.Time) []*fsm.VM {
	if p.MaxAge == 0 || p.Failures > 0 || p.RollFrom != "" || len(booting) > 0 || len(ready) < p.MinReady || len(ready) == 0 {
		return ready
	}
	if oldest := ready[0]; now-oldest.SpareSince >= api.Time(p.MaxAge*1000) {
		plan.drops = append(plan.drops, drop{vm: oldest, reason: reasonAged})
		return ready[1:]
	}
	return ready
}

// mayStay says whether the pool may have anything on a spare's host at all.
func mayStay(view fsm.View, p *fsm.Pool, s *fsm.VM) bool {
	why, _ := hostFault(view, p, s)
	return why == ""
}

// spareFault says why a spare cannot stay: it is broken, or stands where the pool may no longer have it.
func spareFault(view fsm.View, p *fsm.Pool, s *fsm.VM, now api.Time) (reason string, failed bool) {
	switch {
	case s.State == api.StateFailed:
		return "it failed: " + s.Reason, false // counted when it was reported
	case s.State == api.StateStopped || s.State == api.StatePaused || s.State == api.StateLost:
		return "it is " + string(s.State), s.SpareSince == 0
	case s.WarmState() == "booting" && now.Sub(s.CreatedAt) > bootDeadline:
		if s.State == api.StateRunning {
			return "its guest agent did not answer within 15 minutes", true
		}
		return "it did not boot within 15 minutes", true
	}
	return hostFault(view, p, s)
}

// hostFault says why a spare cannot stay where it is.
func hostFault(view fsm.View, p *fsm.Pool, s *fsm.VM) (reason string, failed bool) {
	node := view.Node(s.Node)
	switch {
	case node == nil:
		return "its node is gone", false
	case p.Tenant == "" && node.Lease != "":
		return "its node was leased", false
	case p.Tenant != "" && !view.Leases(p.Tenant, node):
		return "its tenant does not lease its node any more", false
	case node.Draining:
		return "its node is draining", false
	case !node.Rename:
		return "its node cannot rename VMs, so it could not be handed over", false
	case len(p.Nodes) > 0 && !slices.Contains(p.Nodes, s.Node), !api.Matches(p.NodeSelector, node.Labels):
		return "its node is no longer one of the pool's", false
	}
	return "", false
}

// rollOne drops spares of an image that the pool has left: those that still boot at once, ready ones only as far
// as max_unavailable goes, and none while the new image fails to boot.
func rollOne(p *fsm.Pool, ready, booting []*fsm.VM, plan *poolPlan) (_, _ []*fsm.VM) {
	stale := func(s *fsm.VM) bool { return s.Image != p.Image }
	if p.Failures >= rollPauseAfter {
		return ready, booting
	}
	const why = "the pool rolled to another image"
	keep := booting[:0:0]
	for _, s := range booting {
		if stale(s) {
			plan.drops = append(plan.drops, drop{vm: s, reason: why})
		} else {
			keep = append(keep, s)
		}
	}
	booting = keep
	missing := p.MinReady - len(ready)
	for i := 0; i < len(ready) && missing < max(p.MaxUnavailable, 1); {
		if !stale(ready[i]) {
			i++
			continue
		}
		plan.drops = append(plan.drops, drop{vm: ready[i], reason: why})
		ready = slices.Delete(ready, i, i+1)
		missing++
	}
	return ready, booting
}
