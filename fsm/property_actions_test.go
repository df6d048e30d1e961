package fsm

import (
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What can happen to the model's fleet, but for VMs.

func (m *model) initCluster(*rapid.T) {
	if _, r := m.send(KindInitCluster, InitCluster{ClusterID: m.next("c"), Epoch: 9}); r.Value != "c-1" || m.f.view().Meta().Epoch != 1 {
		m.r.Fatalf("got %v, want the cluster to keep its id and epoch", r.Value)
	}
}

// tick jumps: the leader's clock may be wrong, and then another leader's is right again.
func (m *model) tick(*rapid.T) {
	jump := rapid.SampledFrom([]api.Time{1_000, -3_600_000, 30_000, 700_000, -5_000, 3_600_000, 13 * 3_600_000, 25 * 3_600_000}).Draw(m.r, "jump")
	if m.f.now+jump < m.f.view().Meta().Now {
		m.saw("time back")
	}
	m.f.now += jump
	m.send(KindTick, Tick{})
	if m.f.now < m.f.view().Meta().Now && m.chance(2, "right again") {
		m.f.now = m.f.view().Meta().Now
	}
}

// repair makes hosts, images and pools whole again, so that a long run does not end in ruins.
func (m *model) repair(*rapid.T) {
	v := m.f.view()
	for _, name := range modelImages {
		if v.Image(name) == nil {
			m.send(KindCreateImage, CreateImage{Image: m.image(name)})
		}
	}
	for _, name := range modelNodes {
		n := v.Node(name)
		if facts := m.facts(name); n == nil || !n.SameFacts(&facts) {
			m.send(KindRegisterNode, RegisterNode{Operator: true, Node: facts})
		}
		if n != nil && n.State != api.NodeHealthy {
			m.send(KindNodeHealth, NodeHealth{Changes: []NodeChange{{Name: name, State: api.NodeHealthy, ConfirmedAt: m.f.now}}})
		}
		if n != nil && n.Cordoned {
			m.send(KindPatchNode, PatchNode{Name: name, Action: "POST /fleet/nodes/{name}/uncordon", Cordoned: new(false)})
		}
	}
	for _, name := range []string{"acme", "beta"} {
		switch have := v.Tenant(name); {
		case have == nil:
			m.send(KindCreateTenant, CreateTenant{Request: api.TenantRequest{Name: name}})
		case have.Quota != (api.Quota{}) && m.chance(3, "quota off"):
			none := api.Null[int64]()
			m.send(KindPatchTenant, PatchTenant{Name: name, Patch: api.TenantPatch{Quota: api.QuotaPatch{MaxVMs: none, MaxVCPUs: none, MaxMemoryMiB: none, MaxMacOSGuests: none, MaxLeases: none, MaxPools: none}}})
		}
	}
	if m.held["n2"] == "" && m.held["mac-1"] == "" {
		m.lease("acme", []string{"n2", "mac-1"}, 1, true)
	}
	for i, name := range modelPools {
		if v.Pool(name) == nil {
			m.send(KindCreatePool, CreatePool{Tenant: []string{"", "acme", "", "", "acme"}[i], Request: api.PoolRequest{Name: name, Image: []string{"img", "img", "mute", "mac", "mac"}[i], MinReady: new(2), MaxTotal: new([]int{2, 8, 2, 3, 4}[i])}})
		}
	}
}

func (m *model) image(name string) api.ImageRequest {
	r := api.ImageRequest{Name: name, Path: "sim:?" + name, HasAgent: name != "mute", VCPUs: 2, MemoryMiB: 2048, DiskSizeGiB: 8}
	if strings.HasPrefix(name, "mac") {
		r.GuestOS = api.GuestMacOS
	}
	return r
}

func (m *model) createImage(*rapid.T) {
	c := CreateImage{Image: m.image(m.pick(append(modelImages, "img-2", "mac-2"), "image"))}
	if _, r, op, applied := m.keyed(KindCreateImage, "", c, c); applied {
		m.kept(r, KindCreateImage, op, c, c.Image.Name)
	}
}

func (m *model) patchImage(*rapid.T) {
	c := PatchImage{Name: m.pick(modelImages, "image"), Patch: api.ImagePatch{Title: api.Some(m.next("title"))}}
	if m.chance(3, "size") {
		c.Patch.VCPUs, c.Patch.MemoryMiB = api.Some(rapid.IntRange(0, 4).Draw(m.r, "vcpus")), api.Null[int64]()
	}
	if m.chance(4, "a version of the past") {
		c.IfMatch = 1
	}
	if before, r := m.send(KindPatchImage, c); r.Err == nil && before.Image(c.Name) == nil {
		m.r.Fatalf("changed image %s, which is not there", c.Name)
	}
}

func (m *model) deleteImage(*rapid.T) {
	name := m.pick(append(modelImages, "img-2", "mac-2"), "image")
	before, r := m.send(KindDeleteImage, DeleteImage{Name: name})
	for p := range before.Pools("") {
		if p.Image == name && r.Err == nil {
			m.r.Fatalf("image %s went, and pool %s boots from it", name, p.Name)
		}
	}
}

func (m *model) facts(name string) Node {
	n := host(name, strings.HasPrefix(name, "mac"))
	n.Labels = map[string]string{"name": name, "mac": map[bool]string{true: "yes", false: "no"}[n.Mac]}
	n.VCPUsTotal, n.MemoryMiBTotal = 12, 13_000 // six VMs
	n.Claim = name != "n3"
	if name == "n2" {
		n.Backends = []string{"qemu", "sim"}
	}
	return n
}

func (m *model) registerNode(*rapid.T) {
	c := RegisterNode{Node: m.facts(m.pick(append(modelNodes, "n3", "idle"), "node")), Operator: m.chance(2, "operator")}
	c.Node.CPUOvercommit = rapid.SampledFrom([]int{8, 1, 4}).Draw(m.r, "overcommit")
	c.Node.Rename = !m.chance(8, "too old to rename")
	c.Node.BootID = m.pick([]string{"b", "b2"}, "boot")
	if m.chance(4, "another host") {
		c.Node.UUID = "u-other"
	}
	if !c.Operator && len(m.tokens) > 0 {
		c.TokenHash, c.Node.CredentialHash = m.pick(m.tokens, "token"), m.pick([]string{"s1", "s2"}, "credential")
	}
	before, r := m.send(KindRegisterNode, c)
	have := before.Node(c.Node.Name)
	if r.Err == nil && have != nil && have.UUID != c.Node.UUID && have.UUID != "" {
		m.r.Fatalf("another host took over as %s", c.Node.Name)
	}
	if r.Err == nil && !c.Operator && have == nil && before.JoinTokenByHash(c.TokenHash) == nil {
		m.r.Fatalf("node %s came in without a token", c.Node.Name)
	}
}

func (m *model) patchNode(*rapid.T) {
	c := PatchNode{Name: m.pick(modelNodes, "node"), Action: "PATCH /fleet/nodes/{name}"}
	switch rapid.IntRange(0, 3).Draw(m.r, "how") {
	case 0, 1:
		c.Cordoned = new(false)
	case 2:
		c.Cordoned, c.Reason = new(true), new("repair")
	case 3:
		c.Draining, c.By = new(true), "operator"
		if m.chance(2, "with a deadline") {
			c.Drain = &DrainHost{DeadlineSeconds: 60, Force: m.chance(2, "force")}
		}
	}
	if _, r, op, applied := m.keyed(KindPatchNode, "", c, c); applied {
		m.kept(r, KindPatchNode, op, c, c.Name)
	}
}

func (m *model) deleteNode(*rapid.T) {
	name := m.pick([]string{"idle", "n3", "idle", "n1"}, "node")
	force := m.chance(3, "force")
	m.books.lost = name
	defer func() { m.books.lost = "" }()
	if before, r := m.send(KindDeleteNode, DeleteNode{Name: name, Force: force}); r.Err == nil {
		if m.held[name] != "" {
			m.r.Fatalf("node %s went, and lease %s has it", name, m.held[name])
		}
		for v := range before.VMsOn(name) {
			if v.State != api.StateLost && (!force || before.Node(name).State == api.NodeHealthy) || m.f.view().VM(v.ID) != nil {
				m.r.Fatalf("node %s went, by force: %t, with VM %s %s", name, force, v.ID, v.State)
			}
		}
	}
}

func (m *model) nodeHealth(*rapid.T) {
	c := NodeHealth{}
	for range rapid.IntRange(1, 3).Draw(m.r, "changes") {
		state := rapid.SampledFrom([]api.NodeState{api.NodeHealthy, api.NodeHealthy, api.NodeHealthy, api.NodeSuspect, api.NodeUnreachable, api.NodeLost}).Draw(m.r, "state")
		c.Changes = append(c.Changes, NodeChange{Name: m.pick(append(modelNodes, "n3"), "node"), State: state, ConfirmedAt: m.f.now})
	}
	m.send(KindNodeHealth, c)
	for v := range m.f.view().VMs("") {
		if v.State == api.StateUnknown {
			m.saw("unknown VM")
			return
		}
	}
}

func (m *model) joinToken(*rapid.T) {
	hash := m.next("hash")
	c := CreateJoinToken{Token: JoinToken{ID: m.next("token"), Hash: hash, Kind: m.pick([]string{"node", "replica"}, "kind"),
		NamePattern: m.pick([]string{"*", "n*", "mac-?"}, "pattern"), UsesLeft: rapid.IntRange(1, 2).Draw(m.r, "uses"), ExpiresAt: m.f.view().Meta().Now + 3_600_000}}
	if _, r, op, applied := m.keyed(KindCreateJoinToken, "", c, c); applied {
		m.kept(r, KindCreateJoinToken, op, c, c.Token.ID)
		m.tokens = append(m.tokens, hash)
	}
}

func (m *model) admitReplica(*rapid.T) {
	c := AdmitReplica{Name: m.pick([]string{"central-4", "n-central"}, "replica"), Addr: "10.0.0.4:7800"}
	if c.Operator = m.chance(3, "by the operator"); !c.Operator {
		c.TokenHash = m.pick(append(m.tokens, "no-token"), "token")
	}
	before, r, op, applied := m.keyed(KindAdmitReplica, "", c, c)
	if !applied || r.Err != nil {
		return
	}
	if have := before.JoinTokenByHash(c.TokenHash); !c.Operator && (have == nil || have.Kind != "replica") {
		m.r.Fatalf("a replica was admitted by the token %+v", have)
	}
	m.saw("replica by " + map[bool]string{true: "operator", false: "token"}[c.Operator])
	m.kept(r, KindAdmitReplica, op, c, c.Name)
}

// adoptNode changes nothing, for no host waits to be adopted; restore_test.go has those that do.
func (m *model) adoptNode(*rapid.T) {
	c := AdoptNode{Name: m.pick(modelNodes, "node"), Done: true, VMs: []AdoptedVM{{ID: m.next("found"), Name: "found", VCPUs: 1, MemoryMiB: 512, State: api.StateRunning}}}
	m.send(KindAdoptNode, c)
	if m.f.view().VM(c.VMs[0].ID) != nil {
		m.r.Fatalf("node %s adopted a VM and waited for none", c.Name)
	}
}

func (m *model) createPool(*rapid.T) {
	r := api.PoolRequest{Name: m.pick(append(modelPools, "s", "t", "u"), "pool"), Image: m.pick(modelImages, "image"), MinReady: new(rapid.IntRange(0, 3).Draw(m.r, "min_ready"))}
	if m.chance(3, "max_total given") {
		r.MaxTotal = new(rapid.IntRange(0, 4).Draw(m.r, "max_total"))
	}
	if m.chance(4, "size given") {
		r.VCPUs, r.MemoryMiB = 1, 1024
	}
	if m.chance(4, "readiness given") {
		r.Readiness = m.pick([]string{api.ReadinessRunning, api.ReadinessAgent}, "readiness")
	}
	c := CreatePool{Tenant: m.pick(modelTenants, "tenant"), Request: r}
	before, result, op, applied := m.keyed(KindCreatePool, c.Tenant, c, c)
	if !applied {
		return
	}
	m.kept(result, KindCreatePool, op, c, r.Name)
	if result.Err != nil && result.Err.Code == api.CodeQuotaExceeded {
		m.saw("pool over quota")
		if mayHaveMore(before, c.Tenant, api.Holding{Pools: 1}) {
			m.r.Fatalf("pool %+v: %v, and there is room", c, result.Err)
		}
	}
	if result.Err == nil && before.Pool(r.Name) != nil {
		m.r.Fatalf("there are two pools %s", r.Name)
	}
}

func (m *model) patchPool(*rapid.T) {
	c := PatchPool{Name: m.pick(modelPools, "pool"), Tenant: m.pick(modelTenants, "by")}
	if m.chance(2, "min_ready given") {
		c.Patch.MinReady = api.Some(rapid.IntRange(0, 3).Draw(m.r, "min_ready"))
	}
	if m.chance(3, "max_total given") {
		c.Patch.MaxTotal = api.Some(rapid.IntRange(0, 5).Draw(m.r, "max_total"))
	} else if m.chance(3, "max_total taken off") {
		c.Patch.MaxTotal = api.Null[int]()
	}
	if m.chance(4, "nodes given") {
		c.Patch.Nodes = api.Some([]string{"n1"})
	}
	if m.chance(5, "a version of the past") {
		c.IfMatch = 1
	}
	before, r := m.send(KindPatchPool, c)
	m.byItsOwner(before, r, c.Tenant, c.Name)
	if r.Err == nil && m.f.view().Pool(c.Name).BackoffUntil != 0 {
		m.r.Fatalf("pool %s still backs off after a change", c.Name)
	}
}

// byItsOwner holds a change of a pool to having come from the operator or from whose it is; to others it is not there.
func (m *model) byItsOwner(before View, r Result, by, name string) {
	p := before.Pool(name)
	if p == nil || by == "" || p.Tenant == by {
		return
	}
	m.saw("pool of another")
	if r.Err == nil || r.Err.Code != api.CodeNotFound {
		m.r.Fatalf("got %+v for a change of pool %s, which is %q's, by %s", r, name, p.Tenant, by)
	}
}

func (m *model) deletePool(*rapid.T) {
	if !m.chance(3, "really") {
		m.skip()
	}
	name := m.pick(append(modelPools, "s", "t", "u"), "pool")
	c := DeletePool{Name: name, Tenant: m.pick(modelTenants, "by")}
	before, r := m.send(KindDeletePool, c)
	m.byItsOwner(before, r, c.Tenant, name)
	if r.Err != nil {
		return
	}
	m.saw("pool deleted")
	for v := range before.Claimed(name) {
		if m.f.vm(v.ID) != v { // rows are immutable: an unchanged one is the same
			m.r.Fatalf("pool %s went and changed VM %s, which was taken from it", name, v.ID)
		}
	}
	for v := range before.Spares(name) {
		if m.f.vm(v.ID).Live() {
			m.r.Fatalf("pool %s went and left its spare %s", name, v.ID)
		}
	}
}

func (m *model) rollPool(*rapid.T) {
	c := RollPool{Name: m.pick(modelPools, "pool"), Tenant: m.pick(modelTenants, "by"), Roll: api.RollRequest{Image: m.pick([]string{"img-2", "mac-2", "img", "mac"}, "image"), StaleUse: m.pick([]string{"", "allow", "never"}, "stale")}}
	before, r, op, applied := m.keyed(KindRollPool, "", c, c)
	if !applied {
		return
	}
	m.byItsOwner(before, r, c.Tenant, c.Name)
	m.kept(r, KindRollPool, op, c, c.Name)
	if r.Err == nil {
		m.saw("roll")
		if p := m.f.view().Pool(c.Name); p.Image != c.Roll.Image || p.Failures != 0 {
			m.r.Fatalf("got %+v after a roll to %s", p, c.Roll.Image)
		}
	}
}

// fillPool asks for more than the pool may have, as a leader with an old view would.
func (m *model) fillPool(*rapid.T) {
	c := FillPool{Pool: m.pick(modelPools, "pool")}
	for range rapid.IntRange(0, 4).Draw(m.r, "spares") {
		id := m.next("spare")
		c.Spares = append(c.Spares, Spare{ID: id, Name: "warm-" + c.Pool + "-" + id, Candidates: m.candidates()})
	}
	switch rapid.IntRange(0, 7).Draw(m.r, "wait") {
	case 5:
		c.Wait = &Wait{Reason: api.WaitMaxTotal}
	case 6:
		c.Wait = &Wait{}
	case 7:
		c.Wait = &Wait{Reason: api.WaitNoCapacity, Reasons: map[string]int{api.WhyCPU: 1}, Error: "no room"}
	}
	kind, body := KindFillPool, any(c)
	if len(c.Spares)%2 == 1 { // among others
		kind, body = KindFillPools, FillPools{Fills: []FillPool{{Pool: "absent"}, c}}
	}
	before, r := m.send(kind, body)
	if r.Err != nil || kind == KindFillPools && before.Pool(c.Pool) == nil {
		return
	}
	placed, after := r.Value.([]string), m.f.view()
	p, was, is := before.Pool(c.Pool), before.Count(before.Pool(c.Pool)), after.Count(after.Pool(c.Pool))
	switch {
	case is.Booting != was.Booting+len(placed) || is.Ready != was.Ready || is.Claimed != was.Claimed:
		m.r.Fatalf("placed %v: pool %s went from %+v to %+v", placed, p.Name, was, is)
	case len(placed) == 0:
		if len(c.Spares) > 0 {
			m.saw("fill held back")
		}
		return
	case is.Total() > p.MaxTotal || is.Ready+is.Booting > p.MinReady:
		m.r.Fatalf("placed %v: pool %s has %+v, with min_ready %d and max_total %d", placed, p.Name, is, p.MinReady, p.MaxTotal)
	case p.Tenant != "" && !mayHaveMore(before, p.Tenant, holds(p.GuestOS, p.VCPUs*len(placed), p.MemoryMiB*int64(len(placed)))):
		m.r.Fatalf("placed %v, over the quota of %s", placed, p.Tenant)
	case after.Meta().Now < p.BackoffUntil:
		m.r.Fatalf("placed %v while pool %s backs off", placed, p.Name)
	}
	for _, id := range placed {
		m.saw("spare placed")
		v := m.f.vm(id)
		m.placed(before, v)
		if !v.Warm || v.Pool != p.Name || v.Tenant != p.Tenant || v.Image != p.Image || v.VCPUs != p.VCPUs || v.MemoryMiB != p.MemoryMiB || v.Key != "" {
			m.r.Fatalf("pool %+v got the spare %+v", p, v)
		}
	}
}

// placed holds a VM that has just got its node to what that node may take.
func (m *model) placed(before View, v *VM) {
	n, u := m.f.view().Node(v.Node), m.f.view().Use(v.Node)
	switch {
	case n == nil || n.State != api.NodeHealthy || n.Cordoned || n.Draining:
		m.r.Fatalf("VM %s was placed on %+v", v.ID, n)
	case u.MemoryMiB > n.MemoryMiBTotal || u.VCPUs > n.VCPUsTotal*n.CPUOvercommit:
		m.r.Fatalf("VM %s made node %+v hold %+v", v.ID, n, u)
	case v.GuestOS == api.GuestMacOS && !n.Mac:
		m.r.Fatalf("VM %s runs macOS on %s, which is no Mac", v.ID, n.Name)
	case v.State != api.StatePlaced || v.Told != 0 || v.Order != m.f.index || !v.NeedsOrder():
		m.r.Fatalf("VM %s is placed as %+v: its node would not be told", v.ID, v)
	case before.VM(v.ID) != nil && before.VM(v.ID).State == api.StatePlaced && slices.Contains(before.VM(v.ID).Tried, v.Node):
		m.r.Fatalf("VM %s went back to %s, which refused it", v.ID, v.Node)
	}
	own := false
	for l := range before.AllLeases("") {
		own = own || l.State == api.LeaseActive && l.Tenant == v.Tenant && slices.Contains(l.Nodes, v.Node)
	}
	switch needs := v.Tenant != "" && (v.Warm || v.GuestOS == api.GuestMacOS && policyFor(before, v.Tenant).RequireLeaseForMacOS); {
	case needs && !own:
		m.r.Fatalf("VM %+v was placed on a host that its tenant does not lease", v)
	case m.held[v.Node] != "" && !own:
		m.r.Fatalf("VM %+v was placed on a host that lease %s has", v, m.held[v.Node])
	case own:
		m.saw("placed on its tenant's host")
	}
	if v.Launch != nil && v.Launch.Backend != "" && v.Launch.Backend != v.Backend || v.Launch == nil && !v.Warm {
		m.r.Fatalf("VM %+v was asked as %+v", v, v.Launch)
	}
	if v.GuestOS == api.GuestMacOS {
		m.saw("macOS placed")
	}
}

// candidates are hosts in the order of somebody's liking; some may be gone or full.
func (m *model) candidates() []string {
	all := rapid.Permutation(append(slices.Clone(modelNodes), "n3")).Draw(m.r, "candidates")
	return all[:rapid.IntRange(1, len(all)).Draw(m.r, "how many")]
}

func (m *model) anyVM(which func(*VM) bool) *VM {
	found := map[string]*VM{}
	for v := range m.f.view().VMs("") {
		if which(v) {
			found[v.ID] = v
		}
	}
	if len(found) == 0 {
		m.skip()
	}
	return found[m.pick(slices.Sorted(maps.Keys(found)), "VM")]
}
