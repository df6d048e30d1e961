package fsm

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What can happen to the model's VMs.

func (m *model) launch(*rapid.T) {
	l := Launch{Tenant: m.pick(modelTenants, "tenant"), Name: m.pick(modelNames, "name"), Image: m.pick([]string{"img", "img", "img", "mute", "mac", "mac", "sim:?img", "none"}, "image")}
	if m.chance(3, "pool named") {
		l.Pool = m.pick(modelPools, "pool")
		if !m.chance(4, "image too") {
			l.Image = ""
		}
	}
	switch rapid.IntRange(0, 15).Draw(m.r, "more") {
	case 6:
		l.VCPUs, l.MemoryMiB = 2, 2048
	case 7:
		l.VCPUs = 3
	case 8:
		l.ColdField, l.Boot = "cloud_init", &Boot{CloudInit: &api.CloudInit{Hostname: "h"}}
	case 4, 5:
		l.Resched, l.ColdField = true, "reschedulable"
	case 9:
		l.Selector = map[string]string{"mac": "yes"}
	case 10:
		l.Backend = "qemu"
	case 11:
		l.Node = m.pick(modelNodes, "node")
	}
	if m.chance(3, "ttl") {
		l.TTLSeconds = rapid.SampledFrom([]int64{600, 3600, 9000}).Draw(m.r, "seconds")
	}
	if m.chance(3, "labels") {
		l.Labels = map[string]string{"job": m.next("j")}
	}
	if m.chance(5, "claim") {
		l.Claim = &Claim{Hostname: "h", Secrets: []string{"TOKEN"}}
	}
	c := LaunchVM{ID: m.next("vm"), Launch: l, Candidates: m.candidates(), Reasons: map[string]int{api.WhyLabel: 1}, Keep: !m.chance(4, "an older leader")}
	if m.chance(6, "a host that hands nothing out") {
		c.NoHandOut = []string{m.pick(modelNodes, "no hand-out")}
	}
	if m.chance(8, "an id that is taken") {
		c.ID = m.takenID(c.ID)
	}
	if before, r, op, applied := m.keyed(KindLaunchVM, l.Tenant, l, c); applied {
		m.launched(before, r, op, c)
	}
}

// takenID is the id of some VM, so that a command finds out late that it must refuse.
func (m *model) takenID(otherwise string) string {
	for v := range m.f.view().VMs("") {
		otherwise = v.ID
	}
	return otherwise
}

// launched holds the outcome of a launch to what a second reading of the rules says.
func (m *model) launched(before View, r Result, op *Op, c LaunchVM) {
	l := c.Launch
	if r.Err != nil {
		m.refused(before, r.Err, c)
		return
	}
	done := r.Value.(*Operation)
	v := m.f.vm(done.Ref)
	if v.Name != l.Name || v.Tenant != l.Tenant || v.Node != done.Node || before.VMNamed(l.Tenant, l.Name) != nil || done.Name != l.Name {
		m.r.Fatalf("launch %+v led to %+v and VM %+v", l, done, v)
	}
	var want api.Time
	if ttl, ok := lifetime(before, l); !ok {
		m.r.Fatalf("launch %+v asks for more time than its tenant may have, and led to %+v", l, v)
	} else if ttl != 0 {
		want = m.f.view().Meta().Now + api.Time(ttl)*1000
	}
	if v.ExpiresAt != want {
		m.r.Fatalf("launch %+v expires at %s, want %s", l, v.ExpiresAt, want)
	}
	m.give(v.ID, requestOf(op, c.ID))
	m.remember(KindLaunchVM, op, c, *done)
	spare := eligible(before, c)
	if spare == nil {
		m.saw("cold")
		if done.Warm || done.Pool != "" || done.Ref != c.ID || done.ColdReason == "" || v.ClaimedFrom != "" || v.Pool != l.Pool {
			m.r.Fatalf("nothing was ready, and launch %+v led to %+v", l, done)
		}
		m.placed(before, v)
		return
	}
	m.saw("claim")
	if l.Pool != "" {
		m.saw("claim by name")
	}
	if l.Tenant != "" {
		m.saw("claim of the tenant")
	}
	if spare.Tenant != l.Tenant {
		m.saw("claim of a shared spare by a tenant")
	}
	if done.Ref != spare.ID || !done.Warm || done.Pool != spare.Pool || done.ColdReason != "" || v.Warm || !v.HandOver || !v.NeedsOrder() || v.ClaimedFrom != spare.Pool || v.Node != spare.Node {
		m.r.Fatalf("launch %+v led to %+v with VM %+v, want spare %+v", l, done, v, spare)
	}
}

// lifetime is how many seconds a launch gets, 0 for no end, and whether it may have what it asks for.
func lifetime(v View, l Launch) (int64, bool) {
	ttl, t := l.TTLSeconds, v.Tenant(l.Tenant)
	if t == nil {
		return ttl, true
	}
	if ttl == 0 && t.DefaultTTL != nil {
		ttl = *t.DefaultTTL
	}
	if t.MaxTTL == nil {
		return ttl, true
	}
	if ttl == 0 {
		ttl = *t.MaxTTL
	}
	return ttl, ttl <= *t.MaxTTL
}

// usable says whether a caller may take VMs of a pool.
func usable(v View, p *Pool, tenant string) bool {
	if p.Tenant != "" || tenant == "" {
		return p.Tenant == tenant
	}
	policy := policyFor(v, tenant)
	return policy.AllowSharedPoolClaims && !policy.IsolateTenantNetworks && (p.GuestOS == api.GuestLinux || !policy.RequireLeaseForMacOS)
}

// eligible is the spare that a launch should take: the oldest ready one that may be handed out and is what was asked,
// of the caller's own pools if there is one.
func eligible(v View, c LaunchVM) (best *VM) {
	l := c.Launch
	if l.ColdField != "" {
		return nil
	}
	for s := range v.VMs("") {
		p, n := v.Pool(s.Pool), v.Node(s.Node)
		if !s.Warm || s.State != api.StateRunning || s.SpareSince == 0 || p == nil || n == nil || !usable(v, p, l.Tenant) {
			continue
		}
		if n.Lease != "" && (s.Tenant == "" || v.Lease(n.Lease).State != api.LeaseActive || v.Lease(n.Lease).Tenant != s.Tenant) || n.Lease == "" && s.Tenant != "" {
			continue
		}
		if l.Pool != "" && l.Pool != p.Name || l.Pool == "" && v.Image(l.Image).Name != p.Image {
			continue
		}
		if l.VCPUs != 0 && l.VCPUs != p.VCPUs || l.MemoryMiB != 0 && l.MemoryMiB != p.MemoryMiB || (p.StaleUse == "never" || l.Image != "") && s.Image != p.Image {
			continue
		}
		if n.State != api.NodeHealthy || !n.Rename || n.Draining || slices.Contains(c.NoHandOut, n.Name) {
			continue
		}
		if l.Node != "" && l.Node != n.Name || l.Selector["mac"] == "yes" && n.Labels["mac"] != "yes" || l.Backend != "" && l.Backend != s.Backend {
			continue
		}
		if l.Claim != nil && (!s.CanClaim || !n.Claim) {
			continue
		}
		if best != nil && best.Tenant != s.Tenant {
			if s.Tenant != "" {
				best = s
			}
			continue
		}
		if best == nil || s.SpareSince < best.SpareSince || s.SpareSince == best.SpareSince && s.ID < best.ID {
			best = s
		}
	}
	return best
}

func (m *model) refused(before View, e *api.Error, c LaunchVM) {
	l := c.Launch
	switch e.Code {
	case api.CodeNameTaken:
		m.saw("name taken")
		if before.VMNamed(l.Tenant, l.Name) == nil {
			m.r.Fatalf("launch %+v: %v, and nobody has it", l, e)
		}
	case api.CodeNoCapacity:
		m.saw("no capacity")
		if s := eligible(before, c); s != nil {
			m.r.Fatalf("launch %+v: %v, and spare %+v is ready", l, e, s)
		}
		plan, err := before.Resolve(&l)
		if err != nil {
			m.r.Fatal(err)
		}
		for _, name := range c.Candidates {
			if n := before.Node(name); n != nil {
				why := before.Fit(n, plan.Need)
				if why == "" {
					m.r.Fatalf("launch %+v: %v, and it fits on %s", l, e, name)
				}
				if why == api.WhyMacOSLimit {
					m.saw("macOS limit")
				}
			}
		}
	case api.CodeConflict:
		if before.VM(c.ID) == nil || eligible(before, c) != nil {
			m.r.Fatalf("launch %+v: %v", l, e)
		}
	case api.CodeQuotaExceeded:
		m.saw("launch over quota")
		plan, err := before.Resolve(&l)
		more, s := holds(plan.GuestOS, plan.VCPUs, plan.MemoryMiB), eligible(before, c)
		if s != nil {
			more = holds(s.GuestOS, s.VCPUs, s.MemoryMiB)
		}
		if err != nil || mayHaveMore(before, l.Tenant, more) {
			m.r.Fatalf("launch %+v: %v, and %+v is held (%v)", l, e, recount(before, l.Tenant), err)
		}
		if s != nil && s.Tenant == l.Tenant {
			m.r.Fatalf("launch %+v: %v, and spare %+v counts already", l, e, s)
		}
	case api.CodePolicyDenied:
		if e.Field == "ttl_seconds" {
			m.saw("TTL too long")
			if _, ok := lifetime(before, l); ok {
				m.r.Fatalf("launch %+v: %v", l, e)
			}
			return
		}
		m.saw("macOS without a lease")
		for lease := range before.AllLeases("") {
			if lease.Tenant == l.Tenant && lease.State == api.LeaseActive && slices.ContainsFunc(lease.Nodes, func(n string) bool { return before.Node(n).Mac }) {
				m.r.Fatalf("launch %+v: %v, and there is %+v", l, e, lease)
			}
		}
		if l.Tenant == "" || !policyFor(before, l.Tenant).RequireLeaseForMacOS {
			m.r.Fatalf("launch %+v: %v", l, e)
		}
	case api.CodeNotFound:
		if p := before.Pool(l.Pool); p != nil && usable(before, p, l.Tenant) {
			m.r.Fatalf("launch %+v: %v, and it is there", l, e)
		}
	case api.CodeInvalid:
		if e.Field == "" {
			m.r.Fatalf("launch %+v: %v names no field", l, e)
		}
	default:
		m.r.Fatalf("launch %+v: %v", l, e)
	}
}

// requestOf names a request; one without a key has the id that was made for it.
func requestOf(op *Op, id string) string {
	if op == nil {
		return id
	}
	return op.Scope + "/" + op.Key + "/" + id // a key is free again after a day, and then names another request
}

// give notes who was told of a VM. No VM may be anyone else's, ever.
func (m *model) give(id, request string) {
	if other := m.holder[id]; other != "" && other != request {
		m.r.Fatalf("VM %s was given to %s and to %s", id, other, request)
	}
	m.holder[id] = request
}

// keyOf is the request that a VM belongs to by its key, if a repeat would still find it.
func (m *model) keyOf(v *VM) *asked {
	if v.Key == "" {
		return nil
	}
	a := m.asked[v.Scope+"/"+v.Key]
	if a == nil || a.want.Ref != v.ID {
		return nil
	}
	return a
}

func (m *model) move(*rapid.T) {
	v := m.anyVM(func(v *VM) bool { return v.State == api.StatePlaced || v.ID[len(v.ID)-1] == '7' })
	c := MoveVM{ID: v.ID, From: v.Node, Refusal: "host full", Why: m.pick([]string{"", api.WhyMemory, api.WhyImage, api.WhyPressure}, "why"), Candidates: m.candidates(), Reasons: map[string]int{api.WhyCPU: 1}}
	if m.chance(6, "late") {
		c.From = m.pick(modelNodes, "from")
	}
	key := m.keyOf(v)
	before, r := m.send(KindMoveVM, c)
	moved := r.Value.(Moved)
	switch {
	case c.From != v.Node || v.State != api.StatePlaced || v.Told != 0:
		if moved.VM != before.VM(v.ID) || m.f.vm(v.ID) != v || moved.Ended != nil {
			m.r.Fatalf("VM %+v has moved on, and got %+v", v, moved)
		}
	case moved.Ended != nil:
		m.saw("gave up")
		if m.f.view().VM(v.ID) != nil || moved.Ended.Code != api.CodeNoCapacity {
			m.r.Fatalf("VM %s ended with %+v", v.ID, moved.Ended)
		}
		m.freed(key)
	default:
		m.saw("moved")
		m.placed(before, moved.VM)
		if n := len(moved.VM.Tried); n == 0 || len(moved.VM.TriedFor) != n || moved.VM.Tried[n-1] != c.From || moved.VM.TriedFor[n-1] != c.Why {
			m.r.Fatalf("VM %s tried %v for %v after %s said %q", v.ID, moved.VM.Tried, moved.VM.TriedFor, c.From, c.Why)
		}
		if moved.VM.ID != v.ID || moved.VM.Node == v.Node || moved.VM.Name != v.Name || moved.VM.ExpiresAt != v.ExpiresAt || m.f.vm(v.ID) != moved.VM {
			m.r.Fatalf("VM %+v moved as %+v", v, moved.VM)
		}
		if key != nil {
			key.want.Node, key.note = moved.VM.Node, " after a move"
		}
	}
}

// freed holds a request that came to nothing to leaving its key free.
func (m *model) freed(a *asked) {
	if a == nil {
		return
	}
	delete(m.asked, a.op.Scope+"/"+a.op.Key)
	if op := m.f.view().Operation(a.op.Scope, a.op.Key); op != nil {
		m.r.Fatalf("VM %s ended, and its key still leads to %+v", a.want.Ref, op)
	}
}

func (m *model) failHandOver(*rapid.T) {
	v := m.anyVM(func(v *VM) bool { return v.HandOver || v.ClaimedFrom != "" && v.ID[len(v.ID)-1] == '3' })
	c := FailHandOver{ID: v.ID, NewID: m.next("vm"), Refusal: "404", Candidates: m.candidates()}
	if m.chance(4, "no other host") {
		c.Candidates = nil
	}
	if m.chance(8, "an id that is taken") {
		c.NewID = m.takenID(c.NewID)
	}
	key := m.keyOf(v)
	m.books.failing = v.ID
	before, r := m.send(KindFailHandOver, c)
	m.books.failing = ""
	if r.Err != nil && r.Err.Code == api.CodeConflict && before.VM(c.NewID) != nil {
		return
	}
	if r.Err != nil {
		m.r.Fatalf("hand-over of %+v: %v", v, r.Err)
	}
	moved := r.Value.(Moved)
	if !v.HandOver {
		if m.f.vm(v.ID) != v || moved.VM != v || m.f.view().VM(c.NewID) != before.VM(c.NewID) {
			m.r.Fatalf("VM %+v was handed over, and got %+v", v, moved)
		}
		return
	}
	if spare := m.f.vm(v.ID); spare.Live() || spare.HandOver || spare.Key != "" || spare.ClaimedFrom != "" || !spare.NeedsOrder() {
		m.r.Fatalf("a broken spare is left as %+v", spare)
	}
	if moved.Ended != nil {
		m.saw("hand-over ended")
		m.freed(key)
		return
	}
	m.saw("hand-over moved")
	n := moved.VM
	m.placed(before, n)
	if n.ID != c.NewID || n.Name != v.Name || n.Tenant != v.Tenant || n.ExpiresAt != v.ExpiresAt || n.Key != v.Key || n.ColdReason != "rename_failed" || n.VCPUs != v.VCPUs || n.MemoryMiB != v.MemoryMiB || len(n.Labels) != len(v.Labels) {
		m.r.Fatalf("the launch of %+v goes on as %+v", v, n)
	}
	m.give(n.ID, m.holder[v.ID])
	if key != nil {
		w := &key.want
		w.Ref, w.Node, w.Warm, w.Pool, w.ColdReason, w.ClaimMS = n.ID, n.Node, false, "", "rename_failed", 0
		key.note = " after a failed hand-over"
	}
}

// report brings news of some VMs, most times what an orderly boot brings, else anything a node can say, also late,
// of VMs that are elsewhere, or of none that is known.
func (m *model) report(*rapid.T) {
	var c ReportVMs
	for range rapid.IntRange(1, 4).Draw(m.r, "reports") {
		v := m.anyVM(func(v *VM) bool { return c.Reports == nil || v.NeedsOrder() || v.State == api.StateBooting })
		if slices.ContainsFunc(c.Reports, func(r VMReport) bool { return r.ID == v.ID }) {
			continue
		}
		r := VMReport{ID: v.ID, Node: v.Node, Told: v.Order, State: api.StateRunning, Agent: true, IP: "10.0.0.1",
			CanClaim: !m.chance(5, "an old agent"), Claimed: v.Claim != nil && v.ReadyAt != 0}
		if v.State == api.StateDeleting {
			r.State = api.StateGone
			if m.chance(2, "a while ago") {
				r.EndedMS = rapid.SampledFrom([]int64{5, 900_000, 1 << 50, -7}).Draw(m.r, "ended")
			}
		}
		switch rapid.IntRange(0, 13).Draw(m.r, "news") {
		case 5:
			r.State, r.Agent = rapid.SampledFrom([]api.VMState{api.StateBooting, api.StateStopped, api.StatePaused, api.StateFailed, api.StateDeleting}).Draw(m.r, "state"), false
		case 6:
			r.State, r.Reason, r.EndedMS = api.StateGone, "it ended", rapid.SampledFrom([]int64{0, 25, 3_000}).Draw(m.r, "ended")
		case 7:
			r.Agent = false
		case 8: // an order before, or one that never was
			r.Told = uint64(rapid.Int64Range(0, int64(v.Order)+3).Draw(m.r, "told"))
		case 9:
			r.Node = m.pick(modelNodes, "node")
		case 10:
			r.State, r.Agent = "", false
		case 11:
			r.ID = "stranger"
		case 12:
			r.State, r.Agent, r.Reason = api.StateFailed, false, "no kernel"
		}
		if m.chance(2, "claim time") {
			r.ClaimMS = new(int64(900))
		}
		if m.thirdMacOS(v, r) {
			r.State = "" // the host itself starts no third one
		}
		c.Reports = append(c.Reports, r)
	}
	clear(m.books.ended)
	for _, r := range c.Reports {
		if v := m.f.view().VM(r.ID); r.State == api.StateGone && v != nil && v.Node == r.Node {
			m.books.ended[r.ID] = api.Time(r.EndedMS)
		}
	}
	before, _ := m.send(KindReportVMs, c)
	clear(m.books.ended)
	for _, r := range c.Reports {
		m.reported(before, r, len(c.Reports))
	}
}

// thirdMacOS says that a report would start a macOS guest that does not count now. The state cannot refuse what is so
// already; that it never gets there is the host's part.
func (m *model) thirdMacOS(v *VM, r VMReport) bool {
	return v.GuestOS == api.GuestMacOS && !v.isMacOS() && r.State != "" && r.State != api.StateGone
}

func (m *model) reported(before View, r VMReport, reports int) {
	was, is := before.VM(r.ID), m.f.view().VM(r.ID)
	if was != nil && was.HandOver && (is == nil || !is.HandOver) {
		op := m.f.view().Operation(was.Scope, was.Key)
		if a := m.keyOf(was); a != nil && op != nil {
			a.want.ClaimMS = op.ClaimMS
		}
	}
	switch {
	case was == nil || reports > 1 && is == nil:
		return
	case was.Node != r.Node:
		m.saw("stale report")
		if reports == 1 && was != is {
			m.r.Fatalf("node %s changed VM %+v to %+v", r.Node, was, is)
		}
		return
	case is == nil:
		if r.State != api.StateGone {
			m.r.Fatalf("report %+v removed VM %+v", r, was)
		}
		return
	}
	if was.State == api.StateLost && is.State != api.StateLost && is.Live() {
		m.saw("lost VM back")
	}
	if was.SpareSince == 0 && is.SpareSince != 0 {
		m.saw("ready spare")
	}
	if is.Warm && is.State == api.StateFailed && was.State != api.StateFailed {
		m.saw("failed spare")
	}
	if was.Claim != nil && is.Claim == nil {
		m.saw("claim given")
		if reports == 1 && !r.Claimed {
			m.r.Fatalf("report %+v says nothing of the claim of VM %+v, and it is gone", r, was)
		}
	}
	if was.State == api.StateDeleting && is.State != api.StateDeleting {
		m.r.Fatalf("report %+v brought VM %+v back to life", r, was)
	}
}

func (m *model) patchVM(*rapid.T) {
	v := m.anyVM(func(*VM) bool { return true })
	c := PatchVM{ID: v.ID}
	if m.chance(2, "rename") {
		c.Patch.Name = api.Some(m.pick(modelNames, "name"))
	}
	if m.chance(2, "labels") {
		c.Patch.Labels = api.Some(map[string]*string{"k": new("v"), "job": nil})
	} else if m.chance(4, "no labels") {
		c.Patch.Labels = api.Null[map[string]*string]()
	}
	if m.chance(3, "ttl") {
		c.Patch.TTLSeconds = api.Some(rapid.SampledFrom([]int64{60, 3000}).Draw(m.r, "seconds"))
	} else if m.chance(3, "no ttl") {
		c.Patch.TTLSeconds = api.Null[int64]()
	}
	if m.chance(3, "a version") {
		c.IfMatch = v.Version - uint64(rapid.IntRange(0, 1).Draw(m.r, "how old"))
	}
	_, r := m.send(KindPatchVM, c)
	switch {
	case r.Err == nil:
		if is := m.f.vm(v.ID); !v.Live() || is.Order != m.f.index || c.Patch.Name.Set && is.Name != c.Patch.Name.V || c.Patch.Labels.Null && len(is.Labels) > 0 {
			m.r.Fatalf("patch %+v made %+v of %+v", c, is, v)
		}
	case r.Err.Code == api.CodeConflict && c.IfMatch == v.Version:
		m.r.Fatalf("patch %+v of %+v: %v", c, v, r.Err)
	case r.Err.Code == api.CodePolicyDenied:
		m.saw("patch TTL too long")
		if _, ok := lifetime(m.f.view(), Launch{Tenant: v.Tenant, TTLSeconds: c.Patch.TTLSeconds.V}); ok && !c.Patch.TTLSeconds.Null {
			m.r.Fatalf("patch %+v of %+v: %v", c, v, r.Err)
		}
	}
}

func (m *model) deleteVMs(*rapid.T) {
	if !m.chance(2, "really") {
		m.skip()
	}
	c := DeleteVMs{Reason: "asked for", Action: m.pick([]string{"", "DELETE /fleet/vms/{id}"}, "action")}
	for range rapid.IntRange(1, 3).Draw(m.r, "how many") {
		c.IDs = append(c.IDs, m.anyVM(func(*VM) bool { return true }).ID)
	}
	if m.chance(3, "as of a while ago") {
		c.AsOf = m.f.index - min(m.f.index-1, uint64(rapid.IntRange(0, 40).Draw(m.r, "how old")))
	}
	before, r := m.send(KindDeleteVMs, c)
	for _, id := range c.IDs {
		v := m.f.vm(id)
		if was := before.VM(id); c.AsOf != 0 && was.Version > c.AsOf {
			if m.saw("changed since"); was.Live() != v.Live() {
				m.r.Fatalf("VM %+v has changed since %d and was ended", was, c.AsOf)
			}
			continue
		}
		if r.Err == nil && v.Live() {
			m.r.Fatalf("VM %+v lives on", v)
		}
		if was := before.VM(id); r.Err == nil && was.Live() {
			if other := m.f.view().VMNamed(was.Tenant, was.Name); other != nil {
				m.r.Fatalf("the name of VM %s is still held by %s", id, other.ID)
			}
		}
	}
}
