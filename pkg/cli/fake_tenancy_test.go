package cli

import (
	"net/http"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func acme() api.Tenant {
	return api.Tenant{Name: "acme", Quota: api.Quota{MaxVMs: ptr(int64(10)), MaxMemoryMiB: ptr(int64(65536)), MaxLeases: ptr(int64(0)), MaxPools: ptr(int64(4))},
		DefaultTTLSeconds: ptr(int64(7200)), CreatedAt: ago(48 * time.Hour), Version: 4}
}

func acmeUsage() api.TenantUsage {
	return api.TenantUsage{Tenant: "acme", Quota: acme().Quota, Used: api.Holding{VMs: 3, VCPUs: 12, MemoryMiB: 49152, Pools: 5}}
}

func acmeKey() api.Key {
	return api.Key{ID: "k-1", Tenant: ptr("acme"), Role: api.RoleTenant, CreatedAt: ago(48 * time.Hour), LastUsedAt: ago(time.Minute)}
}

func newKey(tenant *string, role string) api.Key {
	return api.Key{ID: "k-2", Tenant: tenant, Role: role, Secret: "fvx_secret", CreatedAt: ago(0), ExpiresAt: api.TimeOf(noon.Add(24 * time.Hour))}
}

func studioLease() api.Lease {
	return api.Lease{ID: "l-1", Tenant: "acme", Nodes: []string{"studio-1"}, State: api.LeaseActive, StartsAt: ago(0), EndsAt: api.TimeOf(noon.Add(7 * 24 * time.Hour)),
		EarliestEnd: api.TimeOf(noon.Add(24 * time.Hour)), BlockedBy: []string{}, CreatedAt: ago(0), Version: 6}
}

// dirtyLease has a host that nobody gets; its reason tries to steer the terminal.
func dirtyLease() api.Lease {
	l := studioLease()
	l.ID, l.Nodes, l.State, l.StartsAt, l.EndsAt, l.EarliestEnd, l.CreatedAt = "l-0", []string{"studio-2", "studio-3"}, api.LeaseScrubFailed, ago(72*time.Hour), ago(time.Hour), ago(48*time.Hour), ago(72*time.Hour)
	l.Scrubs = []api.Scrub{{Node: "studio-2", State: api.ScrubDone, StartedAt: ago(time.Hour)}, {Node: "studio-3", State: api.ScrubFailed, StartedAt: ago(time.Hour), Reason: "disk busy\x1b[31m"}}
	return l
}

func euros() api.Prices {
	return api.Prices{Currency: "EUR", VM: []api.VMPrice{{GuestOS: "linux", VCPUHourMicros: 10_000, GiBHourMicros: 5_000}, {GuestOS: "macos", VCPUHourMicros: 125_000, OnLeased: true}},
		Lease: []api.LeasePrice{{Label: "chip=m4-max", HourMicros: 900_000}, {HourMicros: 500_000}}, Pool: []api.VMPrice{}, Version: 3}
}

func vmRow() api.LedgerRow {
	return api.LedgerRow{ID: "17", Tenant: ptr("acme"), Kind: api.LedgerVM, VMID: vmID, Name: "build-42", Node: "studio-1", Pool: "ios-ci", GuestOS: "macos", VCPUs: 6, MemoryMiB: 16384,
		StartedAt: ago(2 * time.Hour), EndedAt: ago(time.Hour), EndReason: "deleted", Rate: api.Rate{VCPUHourMicros: 125_000, GiBHourMicros: 5_000}, AmountMicros: 830_000}
}

func leaseRow() api.LedgerRow {
	return api.LedgerRow{ID: "18", Tenant: ptr("acme"), Kind: api.LedgerLease, LeaseID: "l-1", Node: "studio-1", StartedAt: ago(time.Hour), Rate: api.Rate{HourMicros: 900_000}}
}

func creditRow() api.LedgerRow {
	return api.LedgerRow{ID: "19", Tenant: ptr("acme"), Kind: api.LedgerAdjustment, StartedAt: ago(0), EndedAt: ago(0), EndReason: "outage", AmountMicros: -12_500_000}
}

func marchUsage() api.Usage {
	return api.Usage{Items: []api.UsageItem{{Tenant: ptr("acme"), VMSeconds: 7200, VCPUSeconds: 43200, GiBSeconds: 115200, LeaseSeconds: 3600, AmountMicros: 1_730_000}, {VMSeconds: 36}},
		Total: api.UsageItem{VMSeconds: 7236, VCPUSeconds: 43200, GiBSeconds: 115200, LeaseSeconds: 3600, AmountMicros: 1_730_000}}
}

// tenancy answers all that is about who owns what and what it costs.
func tenancy() answers {
	return answers{
		"GET /fleet/tenants":                     page(acme(), api.Tenant{Name: "zeta", CreatedAt: ago(time.Hour), Version: 5}),
		"GET /fleet/tenants/{name}":              acme(),
		"POST /fleet/tenants":                    acme(),
		"PATCH /fleet/tenants/{name}":            acme(),
		"DELETE /fleet/tenants/{name}":           nil,
		"GET /fleet/tenants/{name}/usage":        acmeUsage(),
		"GET /fleet/tenants/{name}/keys":         page(acmeKey(), api.Key{ID: "k-3", Tenant: ptr("acme"), Role: api.RoleViewer, CreatedAt: ago(time.Hour), ExpiresAt: api.TimeOf(noon.Add(time.Hour))}),
		"POST /fleet/tenants/{name}/keys":        newKey(ptr("acme"), api.RoleTenant),
		"DELETE /fleet/tenants/{name}/keys/{id}": nil,
		"GET /fleet/operator-keys":               page(api.Key{ID: "k-9", Role: api.RoleViewer, CreatedAt: ago(time.Hour)}),
		"POST /fleet/operator-keys":              newKey(nil, api.RoleViewer),
		"DELETE /fleet/operator-keys/{id}":       nil,
		"GET /fleet/policy":                      api.DefaultPolicy(),
		"PATCH /fleet/policy":                    api.Policy{AllowSharedPoolClaims: true, RequireLeaseForMacOS: true, MinLeaseHours: 24, MaxBootsPerNode: 4, Version: 8},
		"GET /fleet/prices":                      euros(),
		"PUT /fleet/prices":                      euros(),
		"GET /fleet/leases":                      page(studioLease(), dirtyLease()),
		"GET /fleet/leases/{id}":                 dirtyLease(),
		"POST /fleet/leases":                     studioLease(),
		"PATCH /fleet/leases/{id}":               studioLease(),
		"DELETE /fleet/leases/{id}": func(w http.ResponseWriter, _ *http.Request) {
			l := studioLease()
			l.State, l.EarliestEnd = api.LeaseEnding, ago(0)
			writeJSON(w, http.StatusAccepted, l)
		},
		"POST /fleet/nodes/{name}/scrub": studio(),
		"GET /fleet/ledger":              page(vmRow(), leaseRow(), creditRow()),
		"POST /fleet/ledger":             creditRow(),
		"GET /fleet/usage":               marchUsage(),
	}
}
