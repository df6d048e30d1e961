package fsm

import (
	"iter"
	"sync/atomic"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// State is the whole replicated state of one replica.
type State struct {
	now     atomic.Pointer[published]
	work    View // the same, as the command under way has it
	events  *Ring
	touched touched
	newest  Kind
}

// published is a state that everyone may read.
type published struct {
	*tables
	abandon chan struct{} // closed when a restore has replaced the state
}

// New gives an empty state.
func New() *State { return NewKnowing(Newest) }

// NewKnowing is New of a program that understands no kind above the given one, as an older release would.
func NewKnowing(newest Kind) *State {
	s := &State{events: newRing(), newest: newest}
	s.replace(newTables())
	return s
}

// replace makes the tables the state, as a restore does.
func (s *State) replace(work *tables) {
	old := s.now.Load()
	abandon := make(chan struct{})
	s.work = View{&published{work, abandon}}
	now, _ := work.publish(&tables{})
	s.now.Store(&published{now, abandon})
	if old != nil {
		close(old.abandon)
	}
}

// publish shows what was done since it was last called.
func (s *State) publish() {
	old := s.now.Load()
	now, outdated := s.work.publish(old.tables)
	s.now.Store(&published{now, old.abandon})
	for _, c := range outdated {
		close(c)
	}
}

// Events are the recent changes, for streams.
func (s *State) Events() *Ring { return s.events }

// View is the state at one moment. It never changes and costs nothing to keep for a while.
func (s *State) View() View { return View{s.now.Load()} }

// View reads one state. The zero value is of no use.
type View struct{ *published }

// Abandoned is closed when a restore has replaced the state behind this view.
func (v View) Abandoned() <-chan struct{} { return v.abandon }

// Walked counts the rows that have been gone through, by commands and by whoever reads, since the state was made or
// restored. Rows that are looked up do not count: what grows with the fleet shows here.
func (v View) Walked() uint64 { return v.walked.Load() }

// tables is all there is.
type tables struct {
	journal *journal // of the writer's
	walked  *atomic.Uint64

	meta       *table[Meta]
	images     *table[Image]
	nodes      *table[Node]
	uses       *table[Use]     // derived from VMs
	holdings   *table[holding] // derived from VMs
	pools      *table[Pool]
	claims     *table[ClaimStat]
	vms        *table[VM]
	operations *table[Operation]
	activity   *table[Activity]
	joins      *table[JoinToken]
	tenants    *table[Tenant]
	keys       *table[Key]
	policy     *table[Policy]
	prices     *table[Prices]
	leases     *table[Lease]
	ledger     *table[LedgerRow]
}

// The indexes of tables that have more than that by identity, in the order in which newTables lists them.
const (
	imagePath = 1

	nodeDraining = 1

	vmName    = 1
	vmNode    = 2
	vmSpare   = 3
	vmClaimed = 4
	vmDue     = 5
	vmOpen    = 6

	operationAt = 1

	joinHash = 1

	keyHash   = 1
	keyTenant = 2

	leaseLive = 1

	ledgerOpen   = 1
	ledgerTenant = 2
)

// newTables gives empty tables to write in.
func newTables() *tables {
	j, n := &journal{}, &atomic.Uint64{}
	return &tables{
		journal:  j,
		walked:   n,
		meta:     newTable(j, n, func(*Meta) string { return text("meta") }),
		images:   newTable(j, n, func(r *Image) string { return text(r.Name) }, byMany(func(r *Image) string { return text(r.Path) })),
		nodes:    newTable(j, n, func(r *Node) string { return text(r.Name) }, byMany(drainingKey)),
		uses:     newTable(j, n, func(r *Use) string { return text(r.Node) }),
		holdings: newTable(j, n, func(r *holding) string { return text(r.tenant) }),
		pools:    newTable(j, n, func(r *Pool) string { return text(r.Name) }),
		claims:   newTable(j, n, func(r *ClaimStat) string { return number(text(r.Pool), uint64(r.Minute)) }),
		vms: newTable(j, n, func(r *VM) string { return text(r.ID) }, one(nameKey), byMany(func(r *VM) string { return text(r.Node) }),
			byMany(spareKey), byMany(claimedKey), byMany(dueKey), byMany(openKey)),
		operations: newTable(j, n, func(r *Operation) string { return text(r.Scope, r.Key) }, byMany(func(r *Operation) string { return number("", uint64(r.At)) })),
		activity:   newTable(j, n, func(r *Activity) string { return number("", r.Seq) }),
		joins:      newTable(j, n, func(r *JoinToken) string { return text(r.ID) }, one(func(r *JoinToken) string { return text(r.Hash) })),
		tenants:    newTable(j, n, func(r *Tenant) string { return text(r.Name) }),
		keys: newTable(j, n, func(r *Key) string { return text(r.ID) }, one(func(r *Key) string { return text(r.Hash) }),
			byMany(func(r *Key) string { return text(r.Tenant) })),
		policy: newTable(j, n, func(*Policy) string { return text("policy") }),
		prices: newTable(j, n, func(*Prices) string { return text("prices") }),
		leases: newTable(j, n, func(r *Lease) string { return text(r.ID) }, byMany(liveKey)),
		ledger: newTable(j, n, func(r *LedgerRow) string { return number("", r.Seq) }, one(stretchKey),
			one(func(r *LedgerRow) string { return number(text(r.Tenant), r.Seq) })),
	}
}

// publish gives the tables as they are now, and the channels of those that have changed since before.
func (w *tables) publish(before *tables) (now *tables, outdated []chan struct{}) {
	o := &outdated
	return &tables{
		walked: w.walked,
		meta:   w.meta.publish(before.meta, o), images: w.images.publish(before.images, o), nodes: w.nodes.publish(before.nodes, o),
		uses: w.uses.publish(before.uses, o), holdings: w.holdings.publish(before.holdings, o), pools: w.pools.publish(before.pools, o),
		claims: w.claims.publish(before.claims, o), vms: w.vms.publish(before.vms, o), operations: w.operations.publish(before.operations, o),
		activity: w.activity.publish(before.activity, o), joins: w.joins.publish(before.joins, o), tenants: w.tenants.publish(before.tenants, o),
		keys: w.keys.publish(before.keys, o), policy: w.policy.publish(before.policy, o), prices: w.prices.publish(before.prices, o),
		leases: w.leases.publish(before.leases, o), ledger: w.ledger.publish(before.ledger, o),
	}, outdated
}

func drainingKey(r *Node) string {
	if !r.Draining {
		return ""
	}
	return text("draining")
}

func nameKey(r *VM) string {
	if !r.Live() {
		return ""
	}
	return text(r.Tenant, r.Name)
}

// spareKey orders a pool's spares: ready ones first, the oldest first.
func spareKey(r *VM) string {
	if !r.Warm || !r.Live() {
		return ""
	}
	if r.WarmState() == "ready" {
		return number(text(r.Pool, "0"), uint64(r.SpareSince))
	}
	return number(text(r.Pool, "1"), uint64(r.CreatedAt))
}

func liveKey(r *Lease) string {
	if !r.Live() {
		return ""
	}
	return text("live")
}

// stretchKey finds the open stretch of a VM, or of a lease on a node.
func stretchKey(r *LedgerRow) string {
	if r.EndedAt != 0 || r.Kind == api.LedgerAdjustment {
		return ""
	}
	if r.Kind == api.LedgerLease {
		return text("lease", r.LeaseID, r.Node)
	}
	return text("vm", r.VMID)
}

func claimedKey(r *VM) string {
	if r.ClaimedFrom == "" || r.State == api.StateLost {
		return ""
	}
	return text(r.ClaimedFrom)
}

func dueKey(r *VM) string {
	if r.ExpiresAt == 0 || !r.Live() {
		return ""
	}
	return number("", uint64(r.ExpiresAt))
}

func openKey(r *VM) string {
	if !r.NeedsOrder() {
		return ""
	}
	return text("open")
}

// Meta is the cluster's own row; zero before InitCluster.
func (v View) Meta() Meta {
	if m := v.meta.find(byID, text("meta")); m != nil {
		return *m
	}
	return Meta{}
}

// Index is that of the last command applied; Now the newest time known.
func (v View) Index() uint64 { return v.Meta().Index }

// Image finds a catalog entry by name, or by path when no name is it.
func (v View) Image(nameOrPath string) *Image {
	if i := v.images.find(byID, text(nameOrPath)); i != nil {
		return i
	}
	return v.images.find(imagePath, text(nameOrPath))
}

// Images are in the order of their names, from the given one on.
func (v View) Images(start string) iter.Seq[*Image] {
	return v.images.from(byID, start)
}

// Node finds a host by name.
func (v View) Node(name string) *Node { return v.nodes.find(byID, text(name)) }

// Nodes are in the order of their names, from the given one on.
func (v View) Nodes(start string) iter.Seq[*Node] {
	return v.nodes.from(byID, start)
}

// DrainingNodes are the nodes that are drained, by name.
func (v View) DrainingNodes() iter.Seq[*Node] {
	return v.nodes.each(nodeDraining, text("draining"))
}

// Use is what the rows of a node take of it.
func (v View) Use(node string) Use {
	if u := v.uses.find(byID, text(node)); u != nil {
		return *u
	}
	return Use{Node: node}
}

// Pool finds a pool by name.
func (v View) Pool(name string) *Pool { return v.pools.find(byID, text(name)) }

// Pools are in the order of their names, from the given one on.
func (v View) Pools(start string) iter.Seq[*Pool] {
	return v.pools.from(byID, start)
}

// VM finds a VM by id.
func (v View) VM(id string) *VM { return v.vms.find(byID, text(id)) }

// VMNamed finds the live VM that holds the name among a tenant's.
func (v View) VMNamed(tenant, name string) *VM {
	return v.vms.find(vmName, text(tenant, name))
}

// VMs are in the order of their ids, from the given one on.
func (v View) VMs(start string) iter.Seq[*VM] { return v.vms.from(byID, start) }

// VMsOn are a node's VMs.
func (v View) VMsOn(node string) iter.Seq[*VM] { return v.vms.each(vmNode, text(node)) }

// Spares are a pool's untaken VMs: the ready ones first, the oldest first.
func (v View) Spares(pool string) iter.Seq[*VM] {
	return v.vms.each(vmSpare, text(pool))
}

// Claimed are the VMs taken from a pool that are still there.
func (v View) Claimed(pool string) iter.Seq[*VM] { return v.vms.each(vmClaimed, text(pool)) }

// Open are the VMs whose nodes have to be told something.
func (v View) Open() iter.Seq[*VM] { return v.vms.each(vmOpen, text("open")) }

// Due are the live VMs with a deadline, the earliest first.
func (v View) Due() iter.Seq[*VM] { return v.vms.from(vmDue, number("", 0)) }

// Operation finds a keyed request.
func (v View) Operation(scope, key string) *Operation {
	return v.operations.find(byID, text(scope, key))
}

// Activities are the entries, newest first, that came before the given number (0: all).
func (v View) Activities(before uint64) iter.Seq[*Activity] {
	if before == 0 {
		before = 1 << 62
	}
	return v.activity.back(byID, number("", before-1))
}

// JoinTokenByHash finds a token that was not used up.
func (v View) JoinTokenByHash(hash string) *JoinToken {
	return v.joins.find(joinHash, text(hash))
}

// Claims24h sums a pool's claims of the last day up to the state's own time.
func (v View) Claims24h(pool string) (claims, timed, sumMS int64) {
	const day = 24 * 60
	first := int64(v.Meta().Now)/60_000 - day + 1
	for s := range v.claims.from(byID, number(text(pool), uint64(max(first, 0)))) {
		if s.Pool != pool {
			break
		}
		claims, timed, sumMS = claims+s.Claims, timed+s.Timed, sumMS+s.SumMS
	}
	return claims, timed, sumMS
}

// Cold24h counts the launches of the last day that matched a pool and booted normally.
func (v View) Cold24h(pool string) (cold int64) {
	first := int64(v.Meta().Now)/60_000 - 24*60 + 1
	for s := range v.claims.from(byID, number(text(pool), uint64(max(first, 0)))) {
		if s.Pool != pool {
			break
		}
		cold += s.Cold
	}
	return cold
}

// Watch gives a channel that is closed when any row of the table that shows changes. kind is an event kind.
func (v View) Watch(kind string) <-chan struct{} {
	switch kind {
	case EventVM:
		return v.vms.changed
	case EventPool:
		return v.pools.changed
	case EventNode:
		return v.nodes.changed
	case EventLease:
		return v.leases.changed
	case EventTenant:
		return v.tenants.changed
	case "image":
		return v.images.changed
	}
	return v.meta.changed
}

// Need is one VM that wants a host.
type Need struct {
	Tenant    string
	Leased    bool // only a host that the tenant leases will do
	GuestOS   string
	Backend   string // one that is named must be there
	VCPUs     int
	MemoryMiB int64
	Claim     bool // the host's daemon must be able to give a claim
}

// Fit says why a host cannot take the need by committed rows alone; empty when it can. A macOS guest needs a Mac
// with one of its two places free. A leased host is its tenant's alone, from the lease's creation until the scrub
// of that lease is confirmed.
func (v View) Fit(n *Node, need Need) string {
	return Fit(n, v.Use(n.Name), v.LeaseOf(n), need)
}

// LeaseOf is the lease that has the host, nil for none.
func (v View) LeaseOf(n *Node) *Lease {
	if n.Lease == "" {
		return nil
	}
	return v.Lease(n.Lease)
}

// Fit is View.Fit on what a view says of the host.
func Fit(n *Node, use Use, lease *Lease, need Need) string {
	overcommit := max(n.CPUOvercommit, 1)
	weight := need.VCPUs
	if need.GuestOS == api.GuestMacOS {
		weight *= overcommit
	}
	switch {
	case n.Cordoned || n.Draining:
		return api.WhyCordoned
	case n.State != api.NodeHealthy:
		return api.WhyUnhealthy
	}
	if why := held(n, lease, need); why != "" {
		return why
	}
	switch {
	case need.GuestOS == api.GuestMacOS && !n.Mac:
		return api.WhyBackend
	case !hasBackend(n, need.Backend), need.Claim && !n.Claim:
		return api.WhyBackend
	case need.GuestOS == api.GuestMacOS && use.MacOS >= api.MacOSPerHost:
		return api.WhyMacOSLimit
	case use.VCPUs+weight > n.VCPUsTotal*overcommit:
		return api.WhyCPU
	case use.MemoryMiB+need.MemoryMiB > n.MemoryMiBTotal:
		return api.WhyMemory
	}
	return ""
}

// held says why a host's lease, or the lack of one, keeps the need away.
func held(n *Node, l *Lease, need Need) string {
	if n.Lease == "" {
		if need.Leased {
			return api.WhyLeased
		}
		return ""
	}
	switch {
	case l == nil:
		return api.WhyLeased
	case l.State == api.LeaseScrubbing || l.State == api.LeaseScrubFailed:
		return api.WhyScrub
	case l.State == api.LeaseActive && l.Tenant == need.Tenant && need.Tenant != "":
		return ""
	}
	return api.WhyLeased
}

// Leases says whether the tenant has the host, and may use it now.
func (v View) Leases(tenant string, n *Node) bool {
	return tenant != "" && n != nil && v.LeaseOf(n).UsableBy(tenant)
}

// UsableBy says whether the lease lets the tenant use its hosts now; nil lets nobody.
func (l *Lease) UsableBy(tenant string) bool {
	return l != nil && tenant != "" && l.Tenant == tenant && l.State == api.LeaseActive
}

func hasBackend(n *Node, backend string) bool {
	if backend == "" || backend == api.BackendAuto {
		return true
	}
	for _, b := range n.Backends {
		if b == backend {
			return true
		}
	}
	return false
}
