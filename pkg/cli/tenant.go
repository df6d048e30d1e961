package cli

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// noLimit is typed, and shown, where there is no limit; 0 allows not a single one.
const noLimit = "none"

// limitValue is a flag that holds a limit: a number, a size or a duration, or noLimit.
type limitValue struct {
	limit api.Optional[int64]
	kind  string // NUMBER, SIZE or DURATION
}

func (v *limitValue) Set(s string) error {
	if s == noLimit {
		v.limit = api.Null[int64]()
		return nil
	}
	n, err := v.read(s)
	v.limit = api.Some(n)
	return err
}

func (v *limitValue) read(s string) (int64, error) {
	switch {
	case v.kind == "DURATION":
		var d durationValue
		err := d.Set(s)
		return d.seconds(), err
	case v.kind == "SIZE" && s != "0":
		return parseSize(s, 1<<20, "MiB")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, usagef("%q is no limit; write a whole number, or %s for no limit", s, noLimit)
	}
	return n, nil
}
func (v *limitValue) String() string {
	if !v.limit.Set {
		return ""
	}
	return v.limit.String()
}
func (v *limitValue) Type() string { return v.kind }

// orNil is the limit as an object holds it.
func (v *limitValue) orNil() *int64 {
	if !v.limit.Set || v.limit.Null {
		return nil
	}
	return &v.limit.V
}

// tenantFlags are the limits that a person may set for a tenant.
type tenantFlags struct {
	vms, vcpus, memory, macos, leases, pools, defaultTTL, maxTTL limitValue

	policy []string // NAME=VALUE
}

// asFleet is typed where a tenant has no policy of its own.
const asFleet = "fleet"

// tenantSettingNames are the settings of the policy that a tenant may have of its own.
const tenantSettingNames = "allow_shared_pool_claims, require_lease_for_macos, isolate_tenant_networks, min_lease_hours"

func (f *tenantFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	for _, l := range []struct {
		value             *limitValue
		name, kind, usage string
	}{
		{&f.vms, "max-vms", "NUMBER", "most VMs at once"},
		{&f.vcpus, "max-vcpus", "NUMBER", "most vCPUs of its VMs together"},
		{&f.memory, "max-memory", "SIZE", "most memory of its VMs together, such as 64G"},
		{&f.macos, "max-macos", "NUMBER", "most macOS guests at once"},
		{&f.leases, "max-leases", "NUMBER", "most leases at once"},
		{&f.pools, "max-pools", "NUMBER", "most warm pools"},
		{&f.defaultTTL, "default-ttl", "DURATION", "how long its VMs live when a launch does not say, such as 2h"},
		{&f.maxTTL, "max-ttl", "DURATION", "how long its VMs may live, such as 7d"},
	} {
		l.value.kind = l.kind
		flags.Var(l.value, l.name, l.usage)
	}
	flags.StringArrayVar(&f.policy, "policy", nil, "a setting of the policy that differs from the fleet's, `NAME=VALUE`; the value "+asFleet+" takes it off; may be repeated")
	fixed(cmd, "policy", strings.Split(strings.ReplaceAll(tenantSettingNames+",", ",", "="), " ")...)
}

func (f *tenantFlags) policyPatch() (p api.TenantPolicyPatch, err error) {
	return p, readSettings("policy", f.policy, asFleet, tenantSettingNames, &p)
}

func (f *tenantFlags) request(name string) (api.TenantRequest, error) {
	p, err := f.policyPatch()
	if err != nil {
		return api.TenantRequest{}, err
	}
	r := api.TenantRequest{Name: name, DefaultTTLSeconds: f.defaultTTL.orNil(), MaxTTLSeconds: f.maxTTL.orNil(), Quota: api.Quota{
		MaxVMs: f.vms.orNil(), MaxVCPUs: f.vcpus.orNil(), MaxMemoryMiB: f.memory.orNil(),
		MaxMacOSGuests: f.macos.orNil(), MaxLeases: f.leases.orNil(), MaxPools: f.pools.orNil(),
	}}
	r.Policy = api.TenantPolicy{AllowSharedPoolClaims: p.AllowSharedPoolClaims.OrNil(), RequireLeaseForMacOS: p.RequireLeaseForMacOS.OrNil(),
		IsolateTenantNetworks: p.IsolateTenantNetworks.OrNil(), MinLeaseHours: p.MinLeaseHours.OrNil()}
	return r, r.Check()
}

func (f *tenantFlags) patch() (api.TenantPatch, error) {
	p, err := f.policyPatch()
	if err != nil {
		return api.TenantPatch{}, err
	}
	patch := api.TenantPatch{Policy: p, DefaultTTLSeconds: f.defaultTTL.limit, MaxTTLSeconds: f.maxTTL.limit, Quota: api.QuotaPatch{
		MaxVMs: f.vms.limit, MaxVCPUs: f.vcpus.limit, MaxMemoryMiB: f.memory.limit,
		MaxMacOSGuests: f.macos.limit, MaxLeases: f.leases.limit, MaxPools: f.pools.limit,
	}}
	return patch, patch.Check()
}

func (a *app) tenants() *cobra.Command {
	return &cobra.Command{
		Use: "tenants", Short: "List tenants and their limits",
		Example: "  fluxctl fleet tenants\n  fluxctl fleet tenants -o wide",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			tenants, err := list(ctx, a, "the list of tenants", func(ctx context.Context) iter.Seq2[api.Tenant, error] { return c.Tenants(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Tenant]{Items: tenants}); ok {
				return err
			}
			if len(tenants) == 0 {
				a.note("No tenants. Create one: fluxctl fleet tenant-create NAME")
				return nil
			}
			g := a.grid("NAME", "MAX-VMS", "MAX-VCPUS", "MAX-MEMORY", "MAX-MACOS", "MAX-LEASES", "MAX-POOLS", "AGE").wider("DEFAULT-TTL", "MAX-TTL")
			for _, t := range tenants {
				q := t.Quota
				g.row(t.Name, limitWords(q.MaxVMs, number), limitWords(q.MaxVCPUs, number), limitWords(q.MaxMemoryMiB, memoryLimit), limitWords(q.MaxMacOSGuests, number),
					limitWords(q.MaxLeases, number), limitWords(q.MaxPools, number), since(t.CreatedAt, a.env.Now()), limitWords(t.DefaultTTLSeconds, ttl), limitWords(t.MaxTTLSeconds, ttl))
			}
			g.print()
			return nil
		}),
	}
}

func limitWords(limit *int64, show func(int64) string) string {
	if limit == nil {
		return noLimit
	}
	return show(*limit)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func ttl(secs int64) string { return shortDuration(time.Duration(secs) * time.Second) }

// memoryLimit shows memory as it is typed for a limit: 0 has no unit.
func memoryLimit(mib int64) string {
	if mib == 0 {
		return "0"
	}
	return sizeMiB(mib)
}

// heldTenant is a tenant with what it holds, as -o json shows it.
type heldTenant struct {
	api.Tenant
	Used api.Holding `json:"used"`
}

func (a *app) tenant() *cobra.Command {
	return &cobra.Command{
		Use: "tenant NAME", Short: "Show one tenant and how much of its quota is used",
		Example: "  fluxctl fleet tenant acme",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.tenantNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			t, err := during(ctx, a, args[0], func(ctx context.Context) (heldTenant, error) {
				t, err := c.Tenant(ctx, args[0])
				if err != nil {
					return heldTenant{}, err
				}
				u, err := c.TenantUsage(ctx, t.Name)
				return heldTenant{t, u.Used}, err
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(t); ok {
				return err
			}
			a.showTenant(t)
			return nil
		}),
	}
}

func (a *app) showTenant(t heldTenant) {
	a.fields(t.Name, field{"default TTL", limitWords(t.DefaultTTLSeconds, ttl)}, field{"max TTL", limitWords(t.MaxTTLSeconds, ttl)}, field{"own policy", ownPolicy(t.Policy)}, field{"created", a.moment(t.CreatedAt)})
	fmt.Fprintln(a.env.Out)
	g := a.grid("RESOURCE", "USED", "LIMIT", "SHARE")
	for _, r := range []struct {
		name  string
		used  int64
		limit *int64
		show  func(int64) string
	}{
		{"VMs", t.Used.VMs, t.Quota.MaxVMs, number},
		{"vCPUs", t.Used.VCPUs, t.Quota.MaxVCPUs, number},
		{"memory", t.Used.MemoryMiB, t.Quota.MaxMemoryMiB, memoryLimit},
		{"macOS guests", t.Used.MacOSGuests, t.Quota.MaxMacOSGuests, number},
		{"leases", t.Used.Leases, t.Quota.MaxLeases, number},
		{"pools", t.Used.Pools, t.Quota.MaxPools, number},
	} {
		g.row(r.name, r.show(r.used), limitWords(r.limit, r.show), quotaBar(r.used, r.limit))
	}
	g.print()
}

// quotaBar draws how much of a limit is used, in ten cells. A limit that was lowered may be exceeded; one of 0 has no
// share. Only what is full looks full.
func quotaBar(used int64, limit *int64) string {
	const cells = 10
	if limit == nil || *limit == 0 {
		return ""
	}
	share := float64(used) / float64(*limit)
	full := int(min(share, 1) * cells)
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full) + fmt.Sprintf(" %d%%", int(share*100))
}

func (a *app) createTenant() *cobra.Command {
	var f tenantFlags
	cmd := &cobra.Command{
		Use: "tenant-create NAME", Short: "Add a tenant; what is not limited has no limit",
		Example: `  fluxctl fleet tenant-create acme --max-vms 20 --max-memory 128G --max-ttl 7d
  fluxctl fleet key-create acme > acme.key`,
		Args: takes("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			req, err := f.request(args[0])
			if err != nil {
				return err
			}
			t, err := during(ctx, a, req.Name, func(ctx context.Context) (api.Tenant, error) { return c.CreateTenant(ctx, req, "") })
			if err != nil {
				return err
			}
			if ok, err := a.json(t); ok {
				return err
			}
			a.done("Created tenant "+t.Name+": "+quotaWords(t), policyWords(t.Policy), "Give it a key: fluxctl fleet key-create "+t.Name+" > FILE")
			return nil
		}),
	}
	f.register(cmd)
	return cmd
}

// quotaWords says a tenant's limits in a line.
func quotaWords(t api.Tenant) string {
	var out []string
	for _, l := range []struct {
		name  string
		limit *int64
		show  func(int64) string
	}{
		{"VMs", t.Quota.MaxVMs, number}, {"vCPUs", t.Quota.MaxVCPUs, number}, {"memory", t.Quota.MaxMemoryMiB, memoryLimit},
		{"macOS guests", t.Quota.MaxMacOSGuests, number}, {"leases", t.Quota.MaxLeases, number}, {"pools", t.Quota.MaxPools, number},
		{"default TTL", t.DefaultTTLSeconds, ttl}, {"max TTL", t.MaxTTLSeconds, ttl},
	} {
		if l.limit != nil {
			out = append(out, l.name+" "+l.show(*l.limit))
		}
	}
	if len(out) == 0 {
		return "no limits"
	}
	return "limits " + strings.Join(out, ", ")
}

// policyWords says in a line where a tenant's policy differs from the fleet's; empty where it does not.
func policyWords(p api.TenantPolicy) string {
	words := ownPolicy(p)
	if words == "" {
		return ""
	}
	return "Its own policy: " + words
}

// ownPolicy lists the settings that are a tenant's own.
func ownPolicy(p api.TenantPolicy) string {
	var out []string
	for _, s := range []struct {
		name string
		own  *bool
	}{{"allow_shared_pool_claims", p.AllowSharedPoolClaims}, {"require_lease_for_macos", p.RequireLeaseForMacOS}, {"isolate_tenant_networks", p.IsolateTenantNetworks}} {
		if s.own != nil {
			out = append(out, s.name+"="+strconv.FormatBool(*s.own))
		}
	}
	if p.MinLeaseHours != nil {
		out = append(out, "min_lease_hours="+number(*p.MinLeaseHours))
	}
	return strings.Join(out, ", ")
}

func (a *app) setTenant() *cobra.Command {
	var f tenantFlags
	cmd := &cobra.Command{
		Use: "tenant-set NAME", Short: "Change a tenant's limits and policy",
		Long: "Change a tenant's limits. What it holds already stays, even beyond a limit; only more of it is refused. none takes a\nlimit off, 0 allows nothing of the kind. --policy makes it differ from\nfluxctl fleet policy.",
		Example: `  fluxctl fleet tenant-set acme --max-vms 40
  fluxctl fleet tenant-set acme --max-vms none --default-ttl 2h
  fluxctl fleet tenant-set acme --policy allow_shared_pool_claims=true --policy min_lease_hours=fleet`,
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.tenantNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			p, err := f.patch()
			switch {
			case err != nil:
				return err
			case p == (api.TenantPatch{}):
				return usagef("say what to change, such as --max-vms 40; see fluxctl fleet tenant-set --help")
			}
			t, err := during(ctx, a, args[0], func(ctx context.Context) (api.Tenant, error) { return c.PatchTenant(ctx, args[0], p) })
			if err != nil {
				return err
			}
			if ok, err := a.json(t); ok {
				return err
			}
			a.done("Changed tenant "+t.Name+": "+quotaWords(t), policyWords(t.Policy))
			return nil
		}),
	}
	f.register(cmd)
	return cmd
}

func (a *app) removeTenant() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "tenant-rm NAME", Short: "Remove a tenant that owns nothing any more, and its keys",
		Example: "  fluxctl fleet tenant-rm acme\n  fluxctl fleet tenant-rm acme --yes",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.tenantNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.confirm(ctx, yes, fmt.Sprintf("Remove tenant %s and its keys?", args[0])); err != nil {
				return err
			}
			return a.removeEach(ctx, args, func(ctx context.Context, name string) (string, error) {
				return "tenant " + name, c.DeleteTenant(ctx, name)
			})
		}),
	}
	yesFlag(cmd, &yes)
	return cmd
}
