package fsm

import "github.com/fluxvm/fluxvm/pkg/api"

// streakEndsMS is how long after its last back-off a pool's streak of failures is over, whatever came since: longer
// than a boot that takes its whole time.
const streakEndsMS = 30 * 60_000

// spareCrashed records that a spare which had been ready failed. A pool whose spares boot and then die must back off
// like one whose spares never boot, so becoming ready alone does not end such a streak: a hand-over does, or time.
func (t *tx) spareCrashed(v *VM, why string) {
	p := t.Pool(v.Pool)
	if p == nil {
		return
	}
	row := *p
	row.Crashing = true
	shows := t.wait(&row, &Wait{Reason: api.WaitBootFailed, Error: "a ready VM failed: " + why})
	t.putPool(&row, shows)
}

// failSpares takes booting spares for failed that run and never became ready: their nodes cannot know.
func (t *tx) failSpares(pool string, failed []FailedSpare) {
	for _, f := range failed {
		v := t.VM(f.ID)
		if v == nil || !v.Warm || v.Pool != pool || !v.Live() || v.SpareSince != 0 || v.FailedAt != 0 {
			continue
		}
		row := *v
		row.FailedAt, row.Reason = t.now, f.Reason
		t.putVM(v, &row)
	}
}

// KeptFailed is the failed spare that is kept for its console: the last one, for keep_failed_seconds; nil for none.
func (v View) KeptFailed(p *Pool, now api.Time) (kept *VM) {
	if p.KeepFailed == 0 {
		return nil
	}
	for s := range v.Spares(p.Name) {
		if s.FailedAt != 0 && (kept == nil || s.FailedAt > kept.FailedAt || s.FailedAt == kept.FailedAt && s.ID > kept.ID) {
			kept = s
		}
	}
	if kept != nil && now-kept.FailedAt >= api.Time(p.KeepFailed*1000) {
		return nil
	}
	return kept
}

// Rolled says that nothing is left to do of a roll: all spares are of the pool's image, and ready.
func (v View) Rolled(p *Pool) bool {
	ready := 0
	for s := range v.Spares(p.Name) {
		switch state := s.WarmState(); {
		case state != "ready" && state != "booting":
		case s.Image != p.Image:
			return false
		case state == "ready":
			ready++
		}
	}
	return ready >= p.MinReady
}

// abortRoll goes back to the image that the pool rolled away from. What is left of that image counts again, and the
// spares of the new one are replaced as by any roll.
func (t *tx) abortRoll(p *Pool) (*Pool, error) {
	image := t.images.find(byID, text(p.RollFrom))
	switch {
	case p.RollFrom == "":
		return nil, api.Errorf(api.CodeConflict, "pool %s is not rolling, so there is nothing to abort; roll it to the image that you want", p.Name)
	case image == nil:
		return nil, api.Errorf(api.CodeConflict, "image %s, which pool %s rolled away from, is no longer in the catalog; roll it to another one", p.RollFrom, p.Name)
	}
	row := *p
	row.Image, row.RollFrom, row.StaleUse = p.RollFrom, p.Image, ""
	return &row, nil
}

// agentGone lets pools whose image has no agent any more count spares as ready once they run.
func (t *tx) agentGone(image string) {
	var pools []*Pool
	for p := range t.Pools("") {
		if p.Image == image && p.Readiness == api.ReadinessAgent {
			pools = append(pools, p)
		}
	}
	for _, p := range pools {
		row := *p
		row.Readiness, row.RotateIdentity = api.ReadinessRunning, false
		row.tryAgain()
		t.putPool(&row, true)
		for _, s := range t.spares(p.Name) {
			if s.State == api.StateRunning && s.SpareSince == 0 && s.FailedAt == 0 {
				ready := *s
				ready.SpareSince = t.now
				t.putVM(s, &ready)
			}
		}
	}
}

// missed counts a launch that a pool should have answered and that boots normally.
func (t *tx) missed(pool string) {
	if t.amend(pool, t.now, func(s *ClaimStat) { s.Cold++ }) {
		return
	}
	minute := int64(t.now) / 60_000
	t.dropOldStats(pool, minute)
	t.claims.put(&ClaimStat{Pool: pool, Minute: minute, Cold: 1})
}
