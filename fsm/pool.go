package fsm

import (
	"github.com/fluxvm/fluxvm/pkg/api"
)

// How long a pool waits after boots that failed: 5 s, 10 s, 20 s … 10 min.
const (
	firstBackoffMS = 5_000
	maxBackoffMS   = 600_000
)

// createPool adds a pool. Its value is the *Pool.
func (t *tx) createPool(c CreatePool) (any, error) {
	r := c.Request
	if c.Tenant != "" && t.Tenant(c.Tenant) == nil {
		return nil, api.Invalid("tenant", "there is no tenant of that name; fluxctl fleet tenants lists them")
	}
	if t.Pool(r.Name) != nil {
		return nil, api.Errorf(api.CodeNameTaken, "there is a pool %s already; choose another name", r.Name)
	}
	all, own := 0, 0
	for p := range t.Pools("") {
		all++
		if p.Tenant == c.Tenant {
			own++
		}
	}
	switch {
	case all >= api.MaxPools:
		return nil, api.Errorf(api.CodeQuotaExceeded, "the fleet has %d pools, and no more are allowed; delete one first", all)
	case c.Tenant != "" && own >= api.MaxPoolsPerTenant:
		return nil, api.Errorf(api.CodeQuotaExceeded, "tenant %s has %d pools, and no more are allowed; delete one first", c.Tenant, own)
	}
	if err := t.mayHold(c.Tenant, api.Holding{Pools: 1}); err != nil {
		return nil, err
	}
	image := t.images.find(byID, text(r.Image))
	if image == nil {
		return nil, api.Invalid("image", "there is no image of that name in the catalog; fluxctl fleet images lists them")
	}
	row := &Pool{Name: r.Name, Tenant: c.Tenant, Image: image.Name, GuestOS: image.GuestOS, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, DiskGiB: r.DiskSizeGiB,
		MinReady: 1, NodeSelector: r.NodeSelector, Nodes: r.Nodes, Readiness: r.Readiness, CreatedAt: t.now,
		KeepFailed: r.KeepFailedSeconds, MaxAge: r.MaxAgeSeconds, RotateIdentity: r.RotateIdentity}
	if row.VCPUs == 0 {
		row.VCPUs = image.VCPUs
	}
	if row.MemoryMiB == 0 {
		row.MemoryMiB = image.MemoryMiB
	}
	if row.DiskGiB == 0 {
		row.DiskGiB = image.DiskSizeGiB
	}
	if row.Readiness == "" {
		row.Readiness = api.ReadinessAgent
		if !image.HasAgent {
			row.Readiness = api.ReadinessRunning
		}
	}
	if row.Readiness == api.ReadinessAgent && !image.HasAgent {
		return nil, api.Invalid("readiness", "image %s has no guest agent, so readiness must be %s", image.Name, api.ReadinessRunning)
	}
	if row.RotateIdentity && row.Readiness != api.ReadinessAgent {
		return nil, api.Invalid("rotate_identity", "rotate_identity is the guest agent's work, so readiness must be %s, which needs an image with one", api.ReadinessAgent)
	}
	if r.MinReady != nil {
		row.MinReady = *r.MinReady
	}
	if row.MaxTotalSet = r.MaxTotal != nil; row.MaxTotalSet {
		row.MaxTotal = *r.MaxTotal
	} else {
		row.MaxTotal = maxTotalFor(row.MinReady)
	}
	if err := row.checkSize(); err != nil {
		return nil, err
	}
	if err := t.checkNodes(row); err != nil {
		return nil, err
	}
	if _, err := t.remember(Operation{Ref: row.Name}); err != nil {
		return nil, err
	}
	t.putPool(row, true)
	t.log(t.env.Actor, "POST /fleet/pools", row.Name, row.Tenant, "ok", "image", row.Image)
	return row, nil
}

func (p *Pool) checkSize() error {
	if p.MaxTotal < p.MinReady {
		return api.Invalid("max_total", "max_total must not be below min_ready (%d)", p.MinReady)
	}
	return nil
}

// checkNodes refuses to name hosts for a tenant's pool that the tenant does not lease.
func (t *tx) checkNodes(p *Pool) error {
	for _, name := range p.Nodes {
		if p.Tenant == "" && t.Node(name) == nil {
			return api.Invalid("nodes", "there is no node %s; fluxctl fleet nodes lists them", name)
		}
		if p.Tenant != "" && !t.Leases(p.Tenant, t.Node(name)) {
			return api.Invalid("nodes", "the pool of a tenant may name only hosts that the tenant leases")
		}
	}
	return nil
}

// putPool stores a pool; shows says whether the change is one a reader should hear of.
func (t *tx) putPool(row *Pool, shows bool) {
	action := ActionChanged
	if t.Pool(row.Name) == nil {
		action = ActionCreated
	}
	if shows {
		row.Version = t.index
	}
	t.pools.put(row)
	if shows {
		t.event(EventPool, action, row.Tenant, row)
	}
}

// poolOf finds the pool that a change is about. A name can be another tenant's since its caller was let in.
func (t *tx) poolOf(tenant, name string) (*Pool, error) {
	if p := t.Pool(name); p != nil && (tenant == "" || p.Tenant == tenant) {
		return p, nil
	}
	return nil, api.NotFound("pool", name)
}

// patchPool changes what is kept ready and where. Its value is the *Pool.
func (t *tx) patchPool(c PatchPool) (any, error) {
	have, err := t.poolOf(c.Tenant, c.Name)
	if err != nil {
		return nil, err
	}
	if err := checkVersion("pool", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := *have
	if p := c.Patch.MinReady; p.Set {
		row.MinReady = 1
		if !p.Null {
			row.MinReady = p.V
		}
	}
	if p := c.Patch.MaxTotal; p.Set {
		row.MaxTotalSet, row.MaxTotal = !p.Null, p.V
	}
	if !row.MaxTotalSet {
		row.MaxTotal = maxTotalFor(row.MinReady)
	}
	set(&row.NodeSelector, c.Patch.NodeSelector)
	set(&row.Nodes, c.Patch.Nodes)
	set(&row.KeepFailed, c.Patch.KeepFailedSeconds)
	set(&row.MaxAge, c.Patch.MaxAgeSeconds)
	if err := row.checkSize(); err != nil {
		return nil, err
	}
	if c.Patch.Nodes.Set { // those of a lease that has ended since are no reason to refuse another change
		if err := t.checkNodes(&row); err != nil {
			return nil, err
		}
	}
	row.tryAgain()
	t.putPool(&row, true)
	t.log(t.env.Actor, "PATCH /fleet/pools/{name}", row.Name, row.Tenant, "ok")
	return &row, nil
}

// tryAgain forgets why the pool waited.
func (p *Pool) tryAgain() {
	p.Failures, p.BackoffUntil, p.WaitReason, p.Reasons, p.LastError = 0, 0, "", nil, ""
	p.Crashing, p.WaitsForRoom = false, false
}

// deletePool removes the pool and asks for the end of its spares. A taken VM only forgets where it came from when
// it goes; it keeps running.
func (t *tx) deletePool(c DeletePool) (any, error) {
	have, err := t.poolOf(c.Tenant, c.Name)
	if err != nil {
		return nil, err
	}
	if err := checkVersion("pool", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	for _, v := range t.spares(c.Name) {
		t.endVM(v, "its pool was deleted")
	}
	var stats []*ClaimStat
	for s := range t.claims.from(byID, text(c.Name)) {
		if s.Pool != c.Name {
			break
		}
		stats = append(stats, s)
	}
	for _, s := range stats {
		t.claims.remove(s)
	}
	t.pools.remove(have)
	t.event(EventPool, ActionDeleted, have.Tenant, have)
	t.log(t.env.Actor, "DELETE /fleet/pools/{name}", c.Name, have.Tenant, "ok")
	return nil, nil
}

// spares collects a pool's spares, so that they can be changed.
func (t *tx) spares(pool string) (out []*VM) {
	for v := range t.Spares(pool) {
		out = append(out, v)
	}
	return out
}

// rollPool moves the pool to another image. Its value is the *Pool.
func (t *tx) rollPool(c RollPool) (any, error) {
	have, err := t.poolOf(c.Tenant, c.Name)
	if err != nil {
		return nil, err
	}
	row, err := t.rolled(have, c.Roll)
	if err != nil {
		return nil, err
	}
	row.tryAgain()
	if _, err := t.remember(Operation{Ref: row.Name}); err != nil {
		return nil, err
	}
	t.putPool(row, true)
	t.log(t.env.Actor, "POST /fleet/pools/{name}/roll", row.Name, row.Tenant, "ok", "image", row.Image)
	return row, nil
}

// rolled is the pool as it begins to roll, or to roll back.
func (t *tx) rolled(have *Pool, roll api.RollRequest) (*Pool, error) {
	if roll.Abort {
		return t.abortRoll(have)
	}
	image := t.images.find(byID, text(roll.Image))
	switch {
	case image == nil:
		return nil, api.Invalid("image", "there is no image of that name in the catalog; fluxctl fleet images lists them")
	case image.GuestOS != have.GuestOS:
		return nil, api.Invalid("image", "pool %s runs %s guests; roll it to an image of the same guest_os", have.Name, have.GuestOS)
	case have.Readiness == api.ReadinessAgent && !image.HasAgent:
		return nil, api.Invalid("image", "pool %s counts a VM as ready when its guest agent answers; roll it to an image that has one", have.Name)
	}
	row := *have
	if image.Name != have.Image {
		row.RollFrom = have.Image
	}
	row.Image, row.MaxUnavailable, row.StaleUse = image.Name, 1, roll.StaleUse
	if roll.MaxUnavailable != nil {
		row.MaxUnavailable = *roll.MaxUnavailable
	}
	return &row, nil
}

// Count is a pool in numbers.
type Count struct {
	Ready   int
	Booting int
	Failed  int // spares that ended and wait for their removal
	Stale   int // ready ones booted from an image the pool has left
	Claimed int // taken and still there
}

// Total is what max_total bounds.
func (c Count) Total() int { return c.Ready + c.Booting + c.Claimed }

// Count counts a pool's VMs.
func (v View) Count(p *Pool) (c Count) {
	for vm := range v.Spares(p.Name) {
		switch vm.WarmState() {
		case "ready":
			c.Ready++
			if vm.Image != p.Image {
				c.Stale++
			}
		case "booting":
			c.Booting++
		default:
			c.Failed++
		}
	}
	for vm := range v.Claimed(p.Name) {
		if vm.Live() {
			c.Claimed++
		}
	}
	return c
}

// fillPool places spares and records what keeps it from placing more. Its value is the ids that were placed.
func (t *tx) fillPool(c FillPool) (any, error) {
	p := t.Pool(c.Pool)
	if p == nil {
		return nil, api.NotFound("pool", c.Pool)
	}
	t.failSpares(c.Pool, c.Failed)
	if c.Room && p.WaitsForRoom {
		free := *p
		free.BackoffUntil, free.WaitsForRoom = 0, false
		t.putPool(&free, true)
		p = &free
	}
	image := t.images.find(byID, text(p.Image))
	var placed []string
	count := t.Count(p)
	for _, s := range c.Spares {
		if image == nil || t.now < p.BackoffUntil || count.Ready+count.Booting >= p.MinReady || count.Total() >= p.MaxTotal || t.VMNamed(p.Tenant, s.Name) != nil || t.VM(s.ID) != nil {
			break
		}
		if t.mayHold(p.Tenant, holds(p.GuestOS, p.VCPUs, p.MemoryMiB)) != nil {
			break
		}
		node := t.firstFit(s.Candidates, nil, p.need())
		if node == nil {
			continue
		}
		row := &VM{ID: s.ID, Name: s.Name, Tenant: p.Tenant, Backend: node.Backend(""), Image: image.Name, ImagePath: image.Path, GuestOS: p.GuestOS,
			VCPUs: p.VCPUs, MemoryMiB: p.MemoryMiB, DiskGiB: p.DiskGiB, NoAgent: !image.HasAgent, CreatedAt: t.now, Pool: p.Name, Warm: true}
		t.place(row, node)
		t.putVM(nil, row)
		placed = append(placed, row.ID)
		count.Booting++
	}
	row := *p
	if len(placed) > 0 {
		row.LastFillAt = t.now
	}
	shows := t.wait(&row, c.Wait)
	if row.RollFrom != "" && t.Rolled(&row) {
		row.RollFrom, shows = "", true
	}
	t.putPool(&row, shows)
	return placed, nil
}

// fillPools fills several pools. Its value is the ids that were placed, in all of them.
func (t *tx) fillPools(c FillPools) (any, error) {
	var placed []string
	for _, one := range c.Fills {
		if t.Pool(one.Pool) == nil { // deleted meanwhile
			continue
		}
		ids, err := t.fillPool(one)
		if err != nil {
			return nil, err
		}
		placed = append(placed, ids.([]string)...)
	}
	return placed, nil
}

// need is what one spare wants. A tenant's pool lives on the hosts that the tenant leases.
func (p *Pool) need() Need {
	return Need{Tenant: p.Tenant, Leased: p.Tenant != "", GuestOS: p.GuestOS, VCPUs: p.VCPUs, MemoryMiB: p.MemoryMiB, Claim: p.RotateIdentity}
}

// QuotaRoom is how many more spares of the pool, up to want, the quota of its tenant has room for.
func (v View) QuotaRoom(p *Pool, want int) int {
	for n := want; n > 0; n-- {
		one := holds(p.GuestOS, p.VCPUs, p.MemoryMiB)
		more := api.Holding{VMs: int64(n) * one.VMs, VCPUs: int64(n) * one.VCPUs, MemoryMiB: int64(n) * one.MemoryMiB, MacOSGuests: int64(n) * one.MacOSGuests}
		if v.mayHold(p.Tenant, more) == nil {
			return n
		}
	}
	return 0
}

// firstFit gives the first candidate that exists, was not tried and can take the VM.
func (t *tx) firstFit(candidates, tried []string, need Need) *Node {
next:
	for _, name := range candidates {
		for _, gone := range tried {
			if name == gone {
				continue next
			}
		}
		if n := t.Node(name); n != nil && t.Fit(n, need) == "" {
			return n
		}
	}
	return nil
}

// place gives a row its node. The node has to be told.
func (t *tx) place(row *VM, n *Node) {
	row.Node, row.State, row.Order, row.Told, row.Placed = n.Name, api.StatePlaced, t.index, 0, t.env.Term
}

// wait records why the pool is not filled and says whether that shows. nil is no news.
func (t *tx) wait(p *Pool, w *Wait) (shows bool) {
	if w == nil {
		return false
	}
	shows = p.WaitReason != w.Reason || p.LastError != w.Error && w.Error != ""
	p.WaitReason, p.Reasons = w.Reason, w.Reasons
	if w.Error == "" {
		return shows
	}
	p.LastError = w.Error
	if p.BackoffUntil != 0 && t.now-p.BackoffUntil > streakEndsMS {
		p.Failures, p.Crashing = 0, false
	}
	p.WaitsForRoom = w.Reasons != nil
	if t.now < p.BackoffUntil { // the same wave of boots; one wait is enough
		return shows
	}
	p.Failures++
	p.BackoffUntil = t.now + min(api.Time(firstBackoffMS)<<min(p.Failures-1, 20), maxBackoffMS)
	if p.Failures == 1 {
		t.log("warm-pool", "boot", p.Name, p.Tenant, "failed", "error", w.Error)
	}
	return true
}

// spareFailed records the boot of a spare that failed.
func (t *tx) spareFailed(pool, reason, why string) {
	if p := t.Pool(pool); p != nil {
		row := *p
		shows := t.wait(&row, &Wait{Reason: reason, Error: why})
		t.putPool(&row, shows)
	}
}

// spareReady forgets failures: the pool can boot.
func (t *tx) spareReady(pool string) {
	p := t.Pool(pool)
	if p == nil || p.Failures == 0 && p.WaitReason == "" && p.LastError == "" {
		return
	}
	row := *p
	if row.Crashing { // they did boot before, too; what was handed over was good
		row.WaitReason, row.Reasons = "", nil
	} else {
		row.tryAgain()
	}
	t.putPool(&row, true)
}

// claimed counts a claim in the minute of now.
func (t *tx) claimed(pool string) {
	if t.amend(pool, t.now, func(s *ClaimStat) { s.Claims++ }) {
		return
	}
	minute := int64(t.now) / 60_000
	t.dropOldStats(pool, minute)
	t.claims.put(&ClaimStat{Pool: pool, Minute: minute, Claims: 1})
}

// claimedFrom is the pool that a VM was taken from; nil when it is gone, also if a later one has its name.
func (t *tx) claimedFrom(v *VM) *Pool {
	if p := t.Pool(v.ClaimedFrom); p != nil && p.CreatedAt <= v.ClaimedAt {
		return p
	}
	return nil
}

// amend changes the count of the minute of a claim, if it is still kept.
func (t *tx) amend(pool string, at api.Time, change func(*ClaimStat)) bool {
	have := t.claims.find(byID, number(text(pool), uint64(int64(at)/60_000)))
	if have == nil {
		return false
	}
	row := *have
	change(&row)
	t.claims.put(&row)
	return true
}

// dropOldStats removes a pool's counts of more than a day ago.
func (t *tx) dropOldStats(pool string, minute int64) {
	var old []*ClaimStat
	for s := range t.claims.from(byID, text(pool)) {
		if s.Pool != pool || s.Minute > minute-24*60 {
			break
		}
		old = append(old, s)
	}
	for _, s := range old {
		t.claims.remove(s)
	}
}
