package fsm

import (
	"encoding/binary"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/hashicorp/go-memdb"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// State is the whole replicated state of one replica.
type State struct {
	now     atomic.Pointer[generation]
	events  *Ring
	touched touched
	newest  Kind
}

// generation is one store; a restore replaces it as a whole.
type generation struct {
	db      *memdb.MemDB
	abandon chan struct{} // closed when a restore has replaced it
}

// New gives an empty state.
func New() *State { return NewKnowing(Newest) }

// NewKnowing is New of a program that understands no kind above the given one, as an older release would.
func NewKnowing(newest Kind) *State {
	s := &State{events: newRing(), newest: newest}
	s.now.Store(newGeneration())
	return s
}

func newGeneration() *generation {
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		panic(fmt.Sprintf("fsm: the schema does not hold together: %v", err)) // a constant of the program
	}
	return &generation{db: db, abandon: make(chan struct{})}
}

// Events are the recent changes, for streams.
func (s *State) Events() *Ring { return s.events }

// View is the state at one moment. It never changes and costs nothing to keep for a while.
func (s *State) View() View {
	g := s.now.Load()
	return View{txn: g.db.Txn(false), abandon: g.abandon}
}

// View reads one state. The zero value is of no use.
type View struct {
	txn     *memdb.Txn
	abandon chan struct{}
}

// Abandoned is closed when a restore has replaced the state behind this view.
func (v View) Abandoned() <-chan struct{} { return v.abandon }

// The tables.
const (
	tableMeta     = "meta"
	tableImage    = "image"
	tableNode     = "node"
	tableUse      = "use"
	tablePool     = "pool"
	tableClaims   = "claims"
	tableVM       = "vm"
	tableOp       = "operation"
	tableActivity = "activity"
	tableJoin     = "join"
	tableTenant   = "tenant"
	tableKey      = "key"
	tablePolicy   = "policy"
	tablePrices   = "prices"
	tableLease    = "lease"
	tableLedger   = "ledger"
)

// key makes an index from a function of the row. A row whose key is nil is not in the index.
type key[T any] func(*T) []byte

// FromObject gives the row's key.
func (k key[T]) FromObject(raw any) (bool, []byte, error) {
	row, ok := raw.(*T)
	if !ok {
		return false, nil, fmt.Errorf("a row of type %T in the wrong table", raw)
	}
	out := k(row)
	return out != nil, out, nil
}

// FromArgs takes a ready-made key.
func (k key[T]) FromArgs(args ...any) ([]byte, error) {
	if len(args) != 1 {
		return nil, fmt.Errorf("an index takes one key, got %d", len(args))
	}
	switch a := args[0].(type) {
	case []byte:
		return a, nil
	case string:
		return text(a), nil
	}
	return nil, fmt.Errorf("an index takes a key, got %T", args[0])
}

// PrefixFromArgs takes a ready-made prefix.
func (k key[T]) PrefixFromArgs(args ...any) ([]byte, error) {
	if s, ok := args[0].(string); ok {
		return []byte(s), nil
	}
	return k.FromArgs(args...)
}

// text joins parts, each ended by a zero byte: no part of a key may be mistaken for another's beginning.
func text(parts ...string) (out []byte) {
	for _, p := range parts {
		out = append(append(out, p...), 0)
	}
	return out
}

func number(prefix []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(prefix, n) }

func table[T any](name string, id key[T], others ...*memdb.IndexSchema) *memdb.TableSchema {
	t := &memdb.TableSchema{Name: name, Indexes: map[string]*memdb.IndexSchema{"id": {Name: "id", Unique: true, Indexer: id}}}
	for _, o := range others {
		o.AllowMissing = true
		t.Indexes[o.Name] = o
	}
	return t
}

func schema() *memdb.DBSchema {
	out := &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{}}
	for _, t := range []*memdb.TableSchema{
		table(tableMeta, func(*Meta) []byte { return text("meta") }),
		table(tableImage, func(r *Image) []byte { return text(r.Name) },
			&memdb.IndexSchema{Name: "path", Indexer: key[Image](func(r *Image) []byte { return text(r.Path) })}),
		table(tableNode, func(r *Node) []byte { return text(r.Name) },
			&memdb.IndexSchema{Name: "draining", Indexer: key[Node](drainingKey)}),
		table(tableUse, func(r *Use) []byte { return text(r.Node) }),
		table(tablePool, func(r *Pool) []byte { return text(r.Name) }),
		table(tableClaims, func(r *ClaimStat) []byte { return number(text(r.Pool), uint64(r.Minute)) }),
		table(tableVM, func(r *VM) []byte { return text(r.ID) },
			&memdb.IndexSchema{Name: "name", Unique: true, Indexer: key[VM](nameKey)},
			&memdb.IndexSchema{Name: "node", Indexer: key[VM](func(r *VM) []byte { return text(r.Node) })},
			&memdb.IndexSchema{Name: "spare", Indexer: key[VM](spareKey)},
			&memdb.IndexSchema{Name: "tenant", Indexer: key[VM](tenantKey)},
			&memdb.IndexSchema{Name: "claimed", Indexer: key[VM](claimedKey)},
			&memdb.IndexSchema{Name: "due", Indexer: key[VM](dueKey)},
			&memdb.IndexSchema{Name: "open", Indexer: key[VM](openKey)}),
		table(tableOp, func(r *Operation) []byte { return text(r.Scope, r.Key) },
			&memdb.IndexSchema{Name: "at", Indexer: key[Operation](func(r *Operation) []byte { return number(nil, uint64(r.At)) })}),
		table(tableActivity, func(r *Activity) []byte { return number(nil, r.Seq) }),
		table(tableJoin, func(r *JoinToken) []byte { return text(r.ID) },
			&memdb.IndexSchema{Name: "hash", Unique: true, Indexer: key[JoinToken](func(r *JoinToken) []byte { return text(r.Hash) })}),
		table(tableTenant, func(r *Tenant) []byte { return text(r.Name) }),
		table(tableKey, func(r *Key) []byte { return text(r.ID) },
			&memdb.IndexSchema{Name: "hash", Unique: true, Indexer: key[Key](func(r *Key) []byte { return text(r.Hash) })},
			&memdb.IndexSchema{Name: "tenant", Indexer: key[Key](func(r *Key) []byte { return text(r.Tenant) })}),
		table(tablePolicy, func(*Policy) []byte { return text("policy") }),
		table(tablePrices, func(*Prices) []byte { return text("prices") }),
		table(tableLease, func(r *Lease) []byte { return text(r.ID) },
			&memdb.IndexSchema{Name: "live", Indexer: key[Lease](liveKey)}),
		table(tableLedger, func(r *LedgerRow) []byte { return number(nil, r.Seq) },
			&memdb.IndexSchema{Name: "open", Unique: true, Indexer: key[LedgerRow](stretchKey)},
			&memdb.IndexSchema{Name: "tenant", Indexer: key[LedgerRow](func(r *LedgerRow) []byte { return number(text(r.Tenant), r.Seq) })}),
	} {
		out.Tables[t.Name] = t
	}
	return out
}

func drainingKey(r *Node) []byte {
	if !r.Draining {
		return nil
	}
	return text("draining")
}

func nameKey(r *VM) []byte {
	if !r.Live() {
		return nil
	}
	return text(r.Tenant, r.Name)
}

// spareKey orders a pool's spares: ready ones first, the oldest first.
func spareKey(r *VM) []byte {
	if !r.Warm || !r.Live() {
		return nil
	}
	if r.WarmState() == "ready" {
		return append(number(text(r.Pool, "0"), uint64(r.SpareSince)), r.ID...)
	}
	return append(number(text(r.Pool, "1"), uint64(r.CreatedAt)), r.ID...)
}

// tenantKey finds what counts in a tenant's quota.
func tenantKey(r *VM) []byte {
	if !r.Live() || r.State == api.StateLost {
		return nil
	}
	return text(r.Tenant)
}

func liveKey(r *Lease) []byte {
	if !r.Live() {
		return nil
	}
	return text("live")
}

// stretchKey finds the open stretch of a VM, or of a lease on a node.
func stretchKey(r *LedgerRow) []byte {
	if r.EndedAt != 0 || r.Kind == api.LedgerAdjustment {
		return nil
	}
	if r.Kind == api.LedgerLease {
		return text("lease", r.LeaseID, r.Node)
	}
	return text("vm", r.VMID)
}

func claimedKey(r *VM) []byte {
	if r.ClaimedFrom == "" || r.State == api.StateLost {
		return nil
	}
	return text(r.ClaimedFrom)
}

func dueKey(r *VM) []byte {
	if r.ExpiresAt == 0 || !r.Live() {
		return nil
	}
	return number(nil, uint64(r.ExpiresAt))
}

func openKey(r *VM) []byte {
	if !r.NeedsOrder() {
		return nil
	}
	return text("open")
}

// find gives the first row of an index, nil if there is none.
func find[T any](v View, table, index string, key any) *T {
	raw, err := v.txn.First(table, index, key)
	if err != nil {
		panic(fmt.Sprintf("fsm: reading %s by %s: %v", table, index, err)) // only a wrong table or index name can do that
	}
	if raw == nil {
		return nil
	}
	return raw.(*T)
}

// each gives the rows of an index in order. Without a key it gives all.
func each[T any](v View, table, index string, key ...any) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it, err := v.txn.Get(table, index, key...)
		if err != nil {
			panic(fmt.Sprintf("fsm: reading %s by %s: %v", table, index, err))
		}
		for raw := it.Next(); raw != nil; raw = it.Next() {
			if !yield(raw.(*T)) {
				return
			}
		}
	}
}

// from gives the rows of an index that are not before the key.
func from[T any](v View, table, index string, key any) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it, err := v.txn.LowerBound(table, index, key)
		if err != nil {
			panic(fmt.Sprintf("fsm: reading %s by %s: %v", table, index, err))
		}
		for raw := it.Next(); raw != nil; raw = it.Next() {
			if !yield(raw.(*T)) {
				return
			}
		}
	}
}

// Meta is the cluster's own row; zero before InitCluster.
func (v View) Meta() Meta {
	if m := find[Meta](v, tableMeta, "id", "meta"); m != nil {
		return *m
	}
	return Meta{}
}

// Index is that of the last command applied; Now the newest time known.
func (v View) Index() uint64 { return v.Meta().Index }

// Image finds a catalog entry by name, or by path when no name is it.
func (v View) Image(nameOrPath string) *Image {
	if i := find[Image](v, tableImage, "id", nameOrPath); i != nil {
		return i
	}
	return find[Image](v, tableImage, "path", nameOrPath)
}

// Images are in the order of their names, from the given one on.
func (v View) Images(start string) iter.Seq[*Image] {
	return from[Image](v, tableImage, "id", []byte(start))
}

// Node finds a host by name.
func (v View) Node(name string) *Node { return find[Node](v, tableNode, "id", name) }

// Nodes are in the order of their names, from the given one on.
func (v View) Nodes(start string) iter.Seq[*Node] {
	return from[Node](v, tableNode, "id", []byte(start))
}

// DrainingNodes are the nodes that are drained, by name.
func (v View) DrainingNodes() iter.Seq[*Node] {
	return each[Node](v, tableNode, "draining", "draining")
}

// Use is what the rows of a node take of it.
func (v View) Use(node string) Use {
	if u := find[Use](v, tableUse, "id", node); u != nil {
		return *u
	}
	return Use{Node: node}
}

// Pool finds a pool by name.
func (v View) Pool(name string) *Pool { return find[Pool](v, tablePool, "id", name) }

// Pools are in the order of their names, from the given one on.
func (v View) Pools(start string) iter.Seq[*Pool] {
	return from[Pool](v, tablePool, "id", []byte(start))
}

// VM finds a VM by id.
func (v View) VM(id string) *VM { return find[VM](v, tableVM, "id", id) }

// VMNamed finds the live VM that holds the name among a tenant's.
func (v View) VMNamed(tenant, name string) *VM {
	return find[VM](v, tableVM, "name", text(tenant, name))
}

// VMs are in the order of their ids, from the given one on.
func (v View) VMs(start string) iter.Seq[*VM] { return from[VM](v, tableVM, "id", []byte(start)) }

// VMsOn are a node's VMs.
func (v View) VMsOn(node string) iter.Seq[*VM] { return each[VM](v, tableVM, "node", node) }

// Spares are a pool's untaken VMs: the ready ones first, the oldest first.
func (v View) Spares(pool string) iter.Seq[*VM] {
	return each[VM](v, tableVM, "spare_prefix", text(pool))
}

// Claimed are the VMs taken from a pool that are still there.
func (v View) Claimed(pool string) iter.Seq[*VM] { return each[VM](v, tableVM, "claimed", pool) }

// Open are the VMs whose nodes have to be told something.
func (v View) Open() iter.Seq[*VM] { return each[VM](v, tableVM, "open", "open") }

// Due are the live VMs with a deadline, the earliest first.
func (v View) Due() iter.Seq[*VM] { return from[VM](v, tableVM, "due", number(nil, 0)) }

// Operation finds a keyed request.
func (v View) Operation(scope, key string) *Operation {
	return find[Operation](v, tableOp, "id", text(scope, key))
}

// Activities are the entries, newest first, that came before the given number (0: all).
func (v View) Activities(before uint64) iter.Seq[*Activity] {
	if before == 0 {
		before = 1 << 62
	}
	return func(yield func(*Activity) bool) {
		it, err := v.txn.ReverseLowerBound(tableActivity, "id", number(nil, before-1))
		if err != nil {
			panic(fmt.Sprintf("fsm: reading activity: %v", err))
		}
		for raw := it.Next(); raw != nil; raw = it.Next() {
			if !yield(raw.(*Activity)) {
				return
			}
		}
	}
}

// JoinTokenByHash finds a token that was not used up.
func (v View) JoinTokenByHash(hash string) *JoinToken {
	return find[JoinToken](v, tableJoin, "hash", hash)
}

// Claims24h sums a pool's claims of the last day up to the state's own time.
func (v View) Claims24h(pool string) (claims, timed, sumMS int64) {
	const day = 24 * 60
	first := int64(v.Meta().Now)/60_000 - day + 1
	for s := range from[ClaimStat](v, tableClaims, "id", number(text(pool), uint64(max(first, 0)))) {
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
	for s := range from[ClaimStat](v, tableClaims, "id", number(text(pool), uint64(max(first, 0)))) {
		if s.Pool != pool {
			break
		}
		cold += s.Cold
	}
	return cold
}

// Watch gives a channel that is closed when any row of the table that shows changes. kind is an event kind.
func (v View) Watch(kind string) <-chan struct{} {
	it, err := v.txn.Get(tableOf(kind), "id")
	if err != nil {
		panic(fmt.Sprintf("fsm: watching %s: %v", kind, err))
	}
	return it.WatchCh()
}

func tableOf(kind string) string {
	switch kind {
	case EventVM:
		return tableVM
	case EventPool:
		return tablePool
	case EventNode:
		return tableNode
	case EventLease:
		return tableLease
	case EventTenant:
		return tableTenant
	case "image":
		return tableImage
	}
	return tableMeta
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
