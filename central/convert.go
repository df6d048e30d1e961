package central

import (
	"cmp"
	"strconv"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// orNull is null for the operator's, which rows keep as empty.
func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func notNil(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// wireVM is a VM as the API shows it.
func wireVM(v *fsm.VM) api.VM {
	out := api.VM{
		ID: v.ID, Name: v.Name, Tenant: orNull(v.Tenant), Node: v.Node, Backend: v.Backend, Image: v.Image, GuestOS: v.GuestOS,
		VCPUs: v.VCPUs, MemoryMiB: v.MemoryMiB, DiskSizeGiB: v.DiskGiB, State: v.State, Reason: v.Reason, Labels: notNil(v.Labels),
		CreatedAt: v.CreatedAt, ReadyAt: v.ReadyAt, ExpiresAt: v.ExpiresAt, IP: v.IP, Pool: v.Pool,
		ClaimedFrom: v.ClaimedFrom, ClaimedAt: v.ClaimedAt, ColdReason: v.ColdReason,
		Ephemeral: v.Ephemeral(), Reschedulable: v.Reschedulable, Version: v.Version,
	}
	if v.Claim != nil && out.Reason == "" {
		out.Reason = waitsForClaim(v)
	}
	if v.Warm {
		out.WarmPool = v.Pool
		if state := v.WarmState(); state == "ready" || state == "booting" { // the others are told by state
			out.WarmState = state
		}
	}
	return out
}

// waitsForClaim says why a VM's guest is not yet what its launch asked for.
func waitsForClaim(v *fsm.VM) string {
	switch {
	case v.ReadyAt == 0:
		return "its guest agent has not answered yet, and then gets the launch's claim"
	case len(v.Claim.Secrets) > 0:
		return "its guest waits for the launch's claim; if the leader changed meanwhile, a repeat of the launch with its Idempotency-Key brings the secrets again"
	}
	return "its guest waits for the launch's claim"
}

// wirePool is a pool with its status and spares. hideNodes leaves out what only its owner and the operator may see.
func wirePool(view fsm.View, p *fsm.Pool, hideNodes bool) api.Pool {
	out := api.Pool{
		Name: p.Name, Owner: p.Owner(), Tenant: orNull(p.Tenant), Image: p.Image, GuestOS: p.GuestOS,
		Size: api.Size{VCPUs: p.VCPUs, MemoryMiB: p.MemoryMiB, DiskSizeGiB: p.DiskGiB}, MinReady: p.MinReady, MaxTotal: p.MaxTotal, MaxTotalSet: p.MaxTotalSet,
		NodeSelector: notNil(p.NodeSelector), Nodes: p.Nodes, Readiness: p.Readiness, CreatedAt: p.CreatedAt,
		KeepFailedSeconds: p.KeepFailed, MaxAgeSeconds: p.MaxAge, RotateIdentity: p.RotateIdentity, Version: p.Version,
		Status: poolStatus(view, p), Warm: []api.WarmVM{},
	}
	if hideNodes {
		out.Nodes, out.NodeSelector = nil, map[string]string{}
	}
	if out.Nodes == nil {
		out.Nodes = []string{}
	}
	for s := range view.Spares(p.Name) {
		state := s.WarmState()
		if state != "ready" && state != "booting" && s.FailedAt == 0 {
			continue
		}
		warm := api.WarmVM{Node: s.Node, ID: s.ID, Name: s.Name, State: state, Image: s.Image, Since: s.CreatedAt}
		if state == "ready" {
			warm.Since = s.SpareSince
		}
		if s.FailedAt != 0 {
			warm.Since, warm.Reason = s.FailedAt, s.Reason
		}
		if hideNodes {
			warm.Node = ""
		}
		out.Warm = append(out.Warm, warm)
	}
	return out
}

// poolStatus sums a pool up from committed rows alone, so that every replica says the same.
func poolStatus(view fsm.View, p *fsm.Pool) api.PoolStatus {
	count := view.Count(p)
	claims, timed, sumMS := view.Claims24h(p.Name)
	cold := view.Cold24h(p.Name)
	out := api.PoolStatus{
		State: api.PoolFilling, Ready: count.Ready, Booting: count.Booting, Stale: count.Stale, ClaimedRunning: count.Claimed, Claimed24h: claims,
		LastClaimAt: p.LastClaimAt, LastFillAt: p.LastFillAt, LastError: orNull(p.LastError), BackoffUntil: p.BackoffUntil,
		WaitReason: orNull(p.WaitReason), Reasons: p.Reasons,
	}
	out.Cold24h = cold
	if timed > 0 {
		out.AvgClaimMS = sumMS / timed
	}
	if claims+cold > 0 {
		rate := float64(claims) / float64(claims+cold)
		out.WarmHitRate = &rate
	}
	if p.RollFrom != "" {
		out.Roll = &api.Roll{Image: p.Image, From: p.RollFrom, State: api.RollRolling}
		if p.Failures >= rollPauseAfter {
			out.Roll.State = api.RollPaused
		}
	}
	switch {
	case p.MinReady == 0:
		out.State = api.PoolPaused
	case count.Ready >= p.MinReady:
		out.State = api.PoolReady
	case p.BackoffUntil != 0:
		out.State = api.PoolBackingOff
	}
	return out
}

// wireNode is a host with what is free on it.
func wireNode(view fsm.View, n *fsm.Node, b *beat, seen api.Time) api.Node {
	use, w := view.Use(n.Name), b.weather()
	overcommit := max(n.CPUOvercommit, 1)
	out := api.Node{
		Name: n.Name, UUID: n.UUID, URL: n.URL, State: n.State, Reason: cmp.Or(n.Fault, n.Reason), Cordoned: n.Cordoned, CordonedBy: n.CordonedBy, Draining: n.Draining, Lease: orNull(n.Lease),
		Backends: n.Backends, Capabilities: api.Capabilities{Rename: n.Rename, Claim: n.Claim}, VCPUsTotal: n.VCPUsTotal, MemoryMiBTotal: n.MemoryMiBTotal, CPUOvercommit: overcommit,
		VMCount: max(use.VMs, w.vms), FreeVCPUs: max(0, n.VCPUsTotal*overcommit-max(use.VCPUs, w.vcpus)), FreeMemoryMiB: max(0, n.MemoryMiBTotal-max(use.MemoryMiB, w.memoryMiB)),
		Labels: notNil(n.Labels), Density: w.density, LastSeenAt: seen, Version: n.Version,
	}
	if n.Mac {
		out.FreeMacOS = max(0, api.MacOSPerHost-max(use.MacOS, w.macOS))
		out.Apple = &api.AppleHost{Chip: n.Chip, MacOSGuests: max(use.MacOS, w.macOS), MacOSLimit: api.MacOSPerHost}
	}
	if b != nil {
		out.Confinement = b.report.Confinement
	}
	if out.Backends == nil {
		out.Backends = []string{}
	}
	return out
}

// wireActivity is an entry of the activity log.
func wireActivity(a *fsm.Activity) api.Activity {
	out := api.Activity{ID: strconv.FormatUint(a.Seq, 10), At: a.At, Actor: a.Actor, Action: a.Action, Target: a.Target, Outcome: a.Outcome, Detail: map[string]any{}}
	for k, v := range a.Detail {
		out.Detail[k] = v
	}
	return out
}

// wireLaunch answers a launch from its operation and its VM. A VM that is gone since is shown as that.
func wireLaunch(view fsm.View, op *fsm.Operation, claimMS int64) api.LaunchAnswer {
	out := api.LaunchAnswer{Node: op.Node, Warm: op.Warm, Pool: op.Pool, ColdReason: op.ColdReason}
	if op.Warm {
		if op.ClaimMS > 0 {
			claimMS = op.ClaimMS
		}
		out.ClaimMS = &claimMS
	}
	if v := view.VM(op.Ref); v != nil {
		out.VM, out.Node = wireVM(v), v.Node
		return out
	}
	guestOS := cmp.Or(op.GuestOS, api.GuestLinux)
	out.VM = api.VM{ID: op.Ref, Name: op.Name, Tenant: orNull(op.Scope), Node: op.Node, Image: op.Image, GuestOS: guestOS, VCPUs: op.VCPUs, MemoryMiB: op.MemoryMiB, DiskSizeGiB: op.DiskGiB, State: api.StateGone, Reason: "it has ended since",
		Labels: map[string]string{}, CreatedAt: op.At, ClaimedFrom: op.Pool, ColdReason: op.ColdReason}
	return out
}
