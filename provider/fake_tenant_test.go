package provider

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// fakeTenancy is the part of the fake fleet that tenants are about. Three hosts can be leased; node-3 is a Mac
// with a minimum term. Its VMs run on node-1, whoever leases that.
type fakeTenancy struct {
	tenants map[string]api.Tenant
	keys    map[string]api.Key
	leases  map[string]*fakeLease
	policy  api.Policy
	blocked bool              // others' VMs are on the hosts
	callers map[string]string // tenants by the secrets of their keys
	caller  string            // whose request is being answered
}

type fakeLease struct {
	api.Lease
	length  time.Duration
	minimum time.Duration
	scrubs  time.Time // ending until then
	ends    time.Time // scrubbing until then
}

func newFakeTenancy() fakeTenancy {
	return fakeTenancy{tenants: map[string]api.Tenant{}, keys: map[string]api.Key{}, leases: map[string]*fakeLease{}, policy: api.DefaultPolicy(), callers: map[string]string{}}
}

const fakeMac = "node-3"

var fakeHosts = [...]string{"node-1", "node-2", "node-3"}

func fakeLabels(host string) map[string]string {
	labels := map[string]string{api.LabelDevNode: host}
	if host != fakeMac {
		labels["zone"] = "lab"
	}
	return labels
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func ownerOf(tenant string) string { return cmp.Or(tenant, "operator") }

func (v *fakeVM) owner() string {
	if v.Tenant == nil {
		return "operator"
	}
	return *v.Tenant
}

func (t *fakeTenancy) known(tenant string) error {
	if _, ok := t.tenants[tenant]; tenant != "" && !ok {
		return api.Invalid("tenant", "there is no tenant of that name")
	}
	return nil
}

// mayLaunch counts a tenant's VMs, its spares with them.
func (f *fakeFleet) mayLaunch(tenant string) error {
	if err := f.tenancy.known(tenant); err != nil || tenant == "" {
		return err
	}
	limit, have := f.tenancy.tenants[tenant].Quota.MaxVMs, int64(0)
	for _, vm := range f.vms {
		if vm.owner() == tenant && !vm.spare {
			have++
		}
	}
	if limit != nil && have >= *limit {
		return api.Errorf(api.CodeQuotaExceeded, "this takes 1 and %d are in use of a quota of %d (max_vms)", have, *limit)
	}
	return nil
}

func (f *fakeFleet) listVMs(q url.Values) api.List[api.VM] {
	out := api.List[api.VM]{Items: []api.VM{}}
	for _, id := range slices.Sorted(maps.Keys(f.vms)) {
		if vm := f.vms[id]; q.Get("tenant") == "" || q.Get("tenant") == vm.owner() {
			out.Items = append(out.Items, vm.VM)
		}
	}
	return out
}

// routeTenancy is route for tenants, keys, leases, policy, usage and hosts; ok is false for anything else.
func (f *fakeFleet) routeTenancy(r *http.Request, parts []string, raw []byte) (status int, out any, err error, ok bool) {
	name := append(parts, "")[1]
	ok = true
	switch t := &f.tenancy; {
	case parts[0] == "tenants" && len(parts) == 1:
		status, out, err = t.createTenant(raw, f.version())
	case parts[0] == "tenants" && len(parts) > 2 && parts[2] == "keys":
		status, out, err = t.onKeys(r.Method, name, append(parts, "")[3], raw)
	case parts[0] == "tenants" && len(parts) > 2:
		status, out, err = f.tenantUsage(name)
	case parts[0] == "tenants":
		status, out, err = f.onTenant(r.Method, name, raw)
	case parts[0] == "leases" && r.Method == http.MethodPost:
		status, out, err = t.createLease(raw, f.version())
	case parts[0] == "leases" && name == "":
		status, out = 200, t.listLeases(r.URL.Query())
	case parts[0] == "leases":
		status, out, err = t.onLease(r.Method, name, raw, f.version())
	case parts[0] == "policy":
		status, out, err = t.onPolicy(r.Method, raw)
	case parts[0] == "nodes" && slices.Contains(fakeHosts[:], name):
		status, out = 200, api.Node{Name: name, Labels: fakeLabels(name)}
	case parts[0] == "usage":
		status, out = 200, f.usage(r.URL.Query().Get("group_by"))
	default:
		ok = false
	}
	return status, out, err, ok
}

func (t *fakeTenancy) createTenant(raw []byte, version uint64) (int, any, error) {
	var q api.TenantRequest
	if err := api.Decode(raw, &q); err != nil {
		return 0, nil, err
	}
	if err := q.Check(); err != nil {
		return 0, nil, err
	}
	if _, ok := t.tenants[q.Name]; ok {
		return 0, nil, api.Errorf(api.CodeNameTaken, "there is a tenant %s already; choose another name", q.Name)
	}
	row := api.Tenant{Name: q.Name, Quota: q.Quota, DefaultTTLSeconds: q.DefaultTTLSeconds, MaxTTLSeconds: q.MaxTTLSeconds, CreatedAt: api.TimeOf(time.Now()), Version: version}
	t.tenants[q.Name] = row
	return 201, row, nil
}

func (f *fakeFleet) onTenant(method, name string, raw []byte) (int, any, error) {
	row, ok := f.tenancy.tenants[name]
	if !ok {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no tenant %s", name)
	}
	switch method {
	case http.MethodDelete:
		if h := f.holding(name); h.VMs+h.Leases+h.Pools > 0 {
			return 0, nil, api.Errorf(api.CodeConflict, "tenant %s still holds %d VMs, %d leases and %d pools; delete those first", name, h.VMs, h.Leases, h.Pools)
		}
		delete(f.tenancy.tenants, name)
		return 204, nil, nil
	case http.MethodPatch:
		var p api.TenantPatch
		if err := api.Decode(raw, &p); err != nil {
			return 0, nil, err
		}
		for field, o := range map[**int64]api.Optional[int64]{
			&row.Quota.MaxVMs: p.Quota.MaxVMs, &row.Quota.MaxVCPUs: p.Quota.MaxVCPUs, &row.Quota.MaxMemoryMiB: p.Quota.MaxMemoryMiB, &row.Quota.MaxMacOSGuests: p.Quota.MaxMacOSGuests,
			&row.Quota.MaxLeases: p.Quota.MaxLeases, &row.Quota.MaxPools: p.Quota.MaxPools, &row.DefaultTTLSeconds: p.DefaultTTLSeconds, &row.MaxTTLSeconds: p.MaxTTLSeconds,
		} {
			if *field = either(*field, o); o.Null {
				*field = nil
			}
		}
		f.tenancy.tenants[name] = row
	}
	return 200, row, nil
}

func either(have *int64, o api.Optional[int64]) *int64 {
	if o.Set {
		return &o.V
	}
	return have
}

func (f *fakeFleet) holding(tenant string) (h api.Holding) {
	for _, vm := range f.vms {
		if vm.owner() == tenant {
			h.VMs++
		}
	}
	for _, p := range f.pools {
		if p.Owner == tenant {
			h.Pools++
		}
	}
	for _, l := range f.tenancy.leases {
		if l.Tenant == tenant && l.State != api.LeaseEnded {
			h.Leases++
		}
	}
	return h
}

func (f *fakeFleet) tenantUsage(name string) (int, any, error) {
	return 200, api.TenantUsage{Tenant: name, Used: f.holding(name)}, nil
}

func (t *fakeTenancy) onKeys(method, tenant, id string, raw []byte) (int, any, error) {
	if _, ok := t.tenants[tenant]; !ok {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no tenant %s", tenant)
	}
	switch method {
	case http.MethodPost:
		var q api.KeyRequest
		if err := api.Decode(raw, &q); err != nil {
			return 0, nil, err
		}
		if err := q.Check(false); err != nil {
			return 0, nil, err
		}
		key := api.Key{ID: uuid.NewString(), Tenant: &tenant, Role: q.Role, CreatedAt: api.TimeOf(time.Now())}
		if q.ExpiresInSecs > 0 {
			key.ExpiresAt = key.CreatedAt.Add(time.Duration(q.ExpiresInSecs)*time.Second - 40*time.Millisecond)
		}
		t.keys[key.ID] = key
		key.Secret = "fvx_" + strings.ReplaceAll(uuid.NewString(), "-", "")
		t.callers[key.Secret] = tenant
		return 201, key, nil
	case http.MethodDelete:
		if _, ok := t.keys[id]; !ok {
			return 0, nil, api.Errorf(api.CodeNotFound, "there is no key %s", id)
		}
		delete(t.keys, id)
		return 204, nil, nil
	}
	out := api.List[api.Key]{Items: []api.Key{}}
	for _, id := range slices.Sorted(maps.Keys(t.keys)) {
		if *t.keys[id].Tenant == tenant {
			out.Items = append(out.Items, t.keys[id])
		}
	}
	return 200, out, nil
}

func (t *fakeTenancy) onPolicy(method string, raw []byte) (int, any, error) {
	if method == http.MethodPatch {
		var p api.PolicyPatch
		if err := api.Decode(raw, &p); err != nil {
			return 0, nil, err
		}
		if err := p.Check(); err != nil {
			return 0, nil, err
		}
		usual := api.DefaultPolicy()
		orUsual(&t.policy.AllowSharedPoolClaims, p.AllowSharedPoolClaims, usual.AllowSharedPoolClaims)
		orUsual(&t.policy.RequireLeaseForMacOS, p.RequireLeaseForMacOS, usual.RequireLeaseForMacOS)
		orUsual(&t.policy.IsolateTenantNetworks, p.IsolateTenantNetworks, usual.IsolateTenantNetworks)
		orUsual(&t.policy.MinLeaseHours, p.MinLeaseHours, usual.MinLeaseHours)
		orUsual(&t.policy.MaxBootsPerNode, p.MaxBootsPerNode, usual.MaxBootsPerNode)
	}
	return 200, t.policy, nil
}

func orUsual[V any](field *V, o api.Optional[V], usual V) {
	if assign(field, o); o.Null {
		*field = usual
	}
}

func (t *fakeTenancy) leased(host string) bool {
	for _, l := range t.leases {
		if l.State != api.LeaseEnded && slices.Contains(l.Nodes, host) {
			return true
		}
	}
	return false
}

func (t *fakeTenancy) createLease(raw []byte, version uint64) (int, any, error) {
	var q api.LeaseRequest
	if err := api.Decode(raw, &q); err != nil {
		return 0, nil, err
	}
	if err := cmp.Or(q.Check(), t.known(q.Tenant)); err != nil {
		return 0, nil, err
	}
	now := api.TimeOf(time.Now())
	l := &fakeLease{Lease: api.Lease{ID: uuid.NewString(), Tenant: q.Tenant, AutoRenew: q.AutoRenew, CreatedAt: now, Version: version, BlockedBy: []string{}}}
	reasons := map[string]int{}
	for _, host := range fakeHosts {
		switch {
		case len(l.Nodes) == max(1, q.Count), q.Node != "" && q.Node != host:
		case !api.Matches(q.NodeSelector, fakeLabels(host)):
			reasons[api.WhyLabel]++
		case t.leased(host):
			reasons[api.WhyLeased]++
		case t.blocked && !q.Drain:
			reasons[api.WhyMemory]++
		default:
			l.Nodes = append(l.Nodes, host)
			if host == fakeMac {
				l.minimum = time.Duration(t.policy.MinLeaseHours) * time.Hour
			}
		}
	}
	if len(l.Nodes) < max(1, q.Count) {
		e := api.Errorf(api.CodeNoCapacity, "no healthy, uncordoned nodes are free to be leased")
		e.Reasons = reasons
		return 0, nil, e
	}
	var ok bool
	if l.length, ok = api.ParseDuration(q.Duration); !ok {
		l.length = q.EndsAt.Sub(now)
	}
	if l.length < max(l.minimum, time.Second) {
		return 0, nil, api.Invalid("duration", "a lease of these hosts lasts at least %d h; give a longer duration or a later ends_at", int(l.minimum.Hours()))
	}
	l.State, l.EndsAt = api.LeasePending, now.Add(l.length)
	t.leases[l.ID] = l
	if q.Drain && t.blocked {
		l.BlockedBy = []string{"other-vm"}
		return 202, l.Lease, nil
	}
	l.start()
	return 201, l.Lease, nil
}

func (l *fakeLease) start() {
	l.State, l.StartsAt, l.BlockedBy = api.LeaseActive, api.TimeOf(time.Now()), []string{}
	l.EndsAt, l.EarliestEnd = l.StartsAt.Add(l.length), l.StartsAt.Add(l.minimum)
}

func (l *fakeLease) beginEnd(now time.Time) {
	l.State, l.scrubs, l.ends = api.LeaseEnding, now.Add(60*time.Millisecond), now.Add(180*time.Millisecond)
}

func (t *fakeTenancy) onLease(method, id string, raw []byte, version uint64) (int, any, error) {
	l, ok := t.leases[id]
	if !ok {
		return 0, nil, api.Errorf(api.CodeNotFound, "there is no lease %s", id)
	}
	now := api.TimeOf(time.Now())
	switch method {
	case http.MethodDelete:
		switch {
		case l.State == api.LeaseEnded:
			return 204, nil, nil
		case l.State == api.LeasePending:
			l.State, l.Reason, l.EndsAt = api.LeaseEnded, "ended before it began", now
		case l.State == api.LeaseActive && l.EarliestEnd > now:
			l.EndsAt, l.AutoRenew, l.Reason = l.EarliestEnd, false, "ends when its minimum term is over"
		case l.State == api.LeaseActive:
			l.EndsAt, l.AutoRenew = now, false
			l.beginEnd(now.Std())
		}
		return 202, l.Lease, nil
	case http.MethodPatch:
		var p api.LeasePatch
		if err := api.Decode(raw, &p); err != nil {
			return 0, nil, err
		}
		if l.State != api.LeaseActive {
			return 0, nil, api.Errorf(api.CodeConflict, "lease %s is %s; only an active one can be changed", id, l.State)
		}
		if p.EndsAt.Set && p.EndsAt.V < max(l.EarliestEnd, now) {
			return 0, nil, api.Invalid("ends_at", "ends_at must not be before %s, the end of its minimum term, or now", max(l.EarliestEnd, now))
		}
		if p.EndsAt.Set {
			l.Reason = ""
		}
		assign(&l.EndsAt, p.EndsAt)
		assign(&l.AutoRenew, p.AutoRenew)
		l.Version = version
	}
	return 200, l.Lease, nil
}

func (t *fakeTenancy) listLeases(q url.Values) api.List[api.Lease] {
	out := api.List[api.Lease]{Items: []api.Lease{}}
	for _, id := range slices.Sorted(maps.Keys(t.leases)) {
		l := t.leases[id].Lease
		if tenant, node, state := q.Get("tenant"), q.Get("node"), q.Get("state"); (tenant == "" || l.Tenant == tenant) && (node == "" || slices.Contains(l.Nodes, node)) && (state == "" || string(l.State) == state) {
			out.Items = append(out.Items, l)
		}
	}
	return out
}

// passLeases starts, renews, ends and scrubs.
func (f *fakeFleet) passLeases(now time.Time) {
	for _, l := range f.tenancy.leases {
		switch {
		case l.State == api.LeasePending && !f.tenancy.blocked:
			l.start()
		case l.State == api.LeaseActive && !now.Before(l.EndsAt.Std()) && l.AutoRenew:
			l.EndsAt = api.TimeOf(now).Add(l.length)
		case l.State == api.LeaseActive && !now.Before(l.EndsAt.Std()):
			l.beginEnd(now)
		case l.State == api.LeaseEnding && now.After(l.scrubs):
			l.State = api.LeaseScrubbing
		case l.State == api.LeaseScrubbing && now.After(l.ends):
			l.State = api.LeaseEnded
		}
	}
}

// usage has an hour of a VM for each tenant.
func (f *fakeFleet) usage(groupBy string) api.Usage {
	out := api.Usage{Items: []api.UsageItem{}}
	for _, name := range slices.Sorted(maps.Keys(f.tenancy.tenants)) {
		item := api.UsageItem{VMSeconds: 3600, VCPUSeconds: 7200, GiBSeconds: 1800, AmountMicros: 5}
		if groupBy == "" || strings.Contains(groupBy, "tenant") {
			item.Tenant = &name
		}
		if strings.Contains(groupBy, "day") {
			item.Day = "2026-01-02"
		}
		out.Items = append(out.Items, item)
		out.Total.VMSeconds += 3600
	}
	return out
}

// block puts others' VMs onto the hosts, or takes them off.
func (f *fakeFleet) block(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenancy.blocked = on
}
