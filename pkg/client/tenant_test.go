package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// asked runs one call against a server that answers body, and gives its method, URL and body.
func asked(t *testing.T, status int, body any, tenant string, work func(context.Context, *Client) error) string {
	t.Helper()
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if (r.Header.Get(api.HeaderIdempotencyKey) != "") != (r.Method == http.MethodPost) {
			t.Errorf("%s %s has the idempotency key %q; a POST has one, nothing else does", r.Method, r.URL, r.Header.Get(api.HeaderIdempotencyKey))
		}
		got = strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(raw))
		if body == nil {
			w.WriteHeader(status)
			return
		}
		answer(status, body)(w, r)
	}))
	defer s.Close()
	c, err := New(Config{Endpoints: []string{s.URL}, Tenant: tenant})
	if err != nil {
		t.Fatal(err)
	}
	if err := work(t.Context(), c); err != nil {
		t.Errorf("%s: %v", got, err)
	}
	return got
}

func TestTenantsAndMoneyAreAskedForAsTheContractSays(t *testing.T) {
	at := api.Time(1_772_323_200_000)
	for _, c := range []struct {
		want   string
		answer any
		work   func(context.Context, *Client) error
	}{
		{"GET /fleet/tenants", api.List[api.Tenant]{}, func(ctx context.Context, c *Client) error { _, err := All(c.Tenants(ctx)); return err }},
		{"GET /fleet/tenants/acme", api.Tenant{}, func(ctx context.Context, c *Client) error { _, err := c.Tenant(ctx, "acme"); return err }},
		{`POST /fleet/tenants {"name":"acme","default_ttl_seconds":60}`, api.Tenant{}, func(ctx context.Context, c *Client) error {
			ttl := int64(60)
			_, err := c.CreateTenant(ctx, api.TenantRequest{Name: "acme", DefaultTTLSeconds: &ttl}, "")
			return err
		}},
		{`PATCH /fleet/tenants/acme {"quota":{"max_vms":0,"max_pools":null}}`, api.Tenant{}, func(ctx context.Context, c *Client) error {
			_, err := c.PatchTenant(ctx, "acme", api.TenantPatch{Quota: api.QuotaPatch{MaxVMs: api.Some[int64](0), MaxPools: api.Null[int64]()}})
			return err
		}},
		{"DELETE /fleet/tenants/acme", nil, func(ctx context.Context, c *Client) error { return c.DeleteTenant(ctx, "acme") }},
		{"GET /fleet/tenants/acme/usage", api.TenantUsage{}, func(ctx context.Context, c *Client) error { _, err := c.TenantUsage(ctx, "acme"); return err }},
		{"GET /fleet/tenants/acme/keys", api.List[api.Key]{}, func(ctx context.Context, c *Client) error { _, err := All(c.TenantKeys(ctx, "acme")); return err }},
		{`POST /fleet/tenants/acme/keys {"role":"viewer","expires_in_secs":60}`, api.Key{}, func(ctx context.Context, c *Client) error {
			_, err := c.CreateTenantKey(ctx, "acme", api.KeyRequest{Role: api.RoleViewer, ExpiresInSecs: 60}, "")
			return err
		}},
		{"DELETE /fleet/tenants/acme/keys/k%2F1", nil, func(ctx context.Context, c *Client) error { return c.RevokeTenantKey(ctx, "acme", "k/1") }},
		{"GET /fleet/operator-keys", api.List[api.Key]{}, func(ctx context.Context, c *Client) error { _, err := All(c.OperatorKeys(ctx)); return err }},
		{`POST /fleet/operator-keys {"role":"operator"}`, api.Key{}, func(ctx context.Context, c *Client) error {
			_, err := c.CreateOperatorKey(ctx, api.KeyRequest{Role: api.RoleOperator}, "")
			return err
		}},
		{"DELETE /fleet/operator-keys/k-1", nil, func(ctx context.Context, c *Client) error { return c.RevokeOperatorKey(ctx, "k-1") }},
		{"GET /fleet/policy", api.Policy{}, func(ctx context.Context, c *Client) error { _, err := c.Policy(ctx); return err }},
		{`PATCH /fleet/policy {"allow_shared_pool_claims":false,"min_lease_hours":null}`, api.Policy{}, func(ctx context.Context, c *Client) error {
			_, err := c.PatchPolicy(ctx, api.PolicyPatch{AllowSharedPoolClaims: api.Some(false), MinLeaseHours: api.Null[int64]()})
			return err
		}},
		{"GET /fleet/prices", api.Prices{}, func(ctx context.Context, c *Client) error { _, err := c.Prices(ctx); return err }},
		{`PUT /fleet/prices {"currency":"EUR","vm":[],"lease":[],"pool":[]}`, api.Prices{Currency: "EUR"}, func(ctx context.Context, c *Client) error {
			_, err := c.PutPrices(ctx, api.Prices{Currency: "EUR", VM: []api.VMPrice{}, Version: 9})
			return err
		}},
		{"GET /fleet/leases?node=studio-1&state=active", api.List[api.Lease]{}, func(ctx context.Context, c *Client) error {
			_, err := All(c.Leases(ctx, Filter{Node: "studio-1", State: string(api.LeaseActive)}))
			return err
		}},
		{"GET /fleet/leases/l-1", api.Lease{}, func(ctx context.Context, c *Client) error { _, err := c.Lease(ctx, "l-1"); return err }},
		{`POST /fleet/leases {"tenant":"acme","node":"studio-1","duration":"7d"}`, api.Lease{}, func(ctx context.Context, c *Client) error {
			_, err := c.CreateLease(ctx, api.LeaseRequest{Tenant: "acme", Node: "studio-1", Duration: "7d"}, "")
			return err
		}},
		{`PATCH /fleet/leases/l-1 {"ends_at":"2026-03-01T00:00:00.000Z","auto_renew":false}`, api.Lease{}, func(ctx context.Context, c *Client) error {
			_, err := c.PatchLease(ctx, "l-1", api.LeasePatch{EndsAt: api.Some(at), AutoRenew: api.Some(false)})
			return err
		}},
		{`POST /fleet/nodes/studio-1/scrub {"override":true,"reason":"wiped by hand"}`, api.Node{}, func(ctx context.Context, c *Client) error {
			_, err := c.ScrubNode(ctx, "studio-1", ScrubOptions{Override: true, Reason: "wiped by hand"})
			return err
		}},
		{"GET /fleet/ledger?from=2026-03-01T00%3A00%3A00.000Z&kind=vm&limit=500&tenant=acme&vm_id=v-1", api.List[api.LedgerRow]{}, func(ctx context.Context, c *Client) error {
			_, err := All(c.Ledger(ctx, LedgerFilter{Tenant: "acme", Kind: api.LedgerVM, VMID: "v-1", From: at}))
			return err
		}},
		{`POST /fleet/ledger {"tenant":"acme","amount_micros":-5,"reason":"credit"}`, api.LedgerRow{}, func(ctx context.Context, c *Client) error {
			_, err := c.Adjust(ctx, api.AdjustmentRequest{Tenant: "acme", AmountMicros: -5, Reason: "credit"}, "")
			return err
		}},
		{"GET /fleet/usage?tenant=beta", api.Usage{}, func(ctx context.Context, c *Client) error {
			_, err := c.Usage(ctx, UsageQuery{Tenant: "beta"})
			return err
		}},
		{"GET /fleet/usage?group_by=tenant%2Cday&to=2026-03-01T00%3A00%3A00.000Z", api.Usage{}, func(ctx context.Context, c *Client) error {
			_, err := c.Usage(ctx, UsageQuery{To: at, GroupBy: []string{"tenant", "day"}})
			return err
		}},
		{"GET /fleet/activity?actor=warm-pool&target=ios-ci", api.List[api.Activity]{}, func(ctx context.Context, c *Client) error {
			_, err := All(c.Activity(ctx, ActivityFilter{Actor: "warm-pool", Target: "ios-ci"}))
			return err
		}},
	} {
		status := 200
		if c.answer == nil {
			status = 204
		}
		if got := asked(t, status, c.answer, "", c.work); got != c.want {
			t.Errorf("\ngot  %s\nwant %s", got, c.want)
		}
	}
}

func TestAnOperatorsTenantIsMeantWhereNoneIsNamed(t *testing.T) {
	for want, work := range map[string]func(context.Context, *Client) error{
		`POST /fleet/leases {"tenant":"acme","node":"n"}`: func(ctx context.Context, c *Client) error {
			_, err := c.CreateLease(ctx, api.LeaseRequest{Node: "n"}, "")
			return err
		},
		"GET /fleet/leases?tenant=acme":           func(ctx context.Context, c *Client) error { _, err := All(c.Leases(ctx, Filter{})); return err },
		"GET /fleet/ledger?limit=500&tenant=acme": func(ctx context.Context, c *Client) error { _, err := All(c.Ledger(ctx, LedgerFilter{})); return err },
		"GET /fleet/activity?tenant=acme": func(ctx context.Context, c *Client) error {
			_, err := All(c.Activity(ctx, ActivityFilter{}))
			return err
		},
	} {
		if got := asked(t, 200, api.List[struct{}]{}, "acme", work); got != want {
			t.Errorf("\ngot  %s\nwant %s", got, want)
		}
	}
}

func TestNoNameNeverMeansTheOperatorsOwn(t *testing.T) {
	got := asked(t, 200, api.Key{}, "", func(ctx context.Context, c *Client) error {
		_, err := c.CreateTenantKey(ctx, "", api.KeyRequest{Role: api.RoleViewer}, "")
		return err
	})
	if want := `POST /fleet/tenants/%00/keys {"role":"viewer"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestALeaseThatEndsIsGivenUntilItIsOver(t *testing.T) {
	ending := api.Lease{ID: "l-1", State: api.LeaseEnding, EarliestEnd: 7000}
	r, url := serve(t, answer(202, ending), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	c := newClient(t, url)
	first, err1 := c.EndLease(t.Context(), "l-1")
	second, err2 := c.EndLease(t.Context(), "l-1")
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&ending, first); diff != "" || second != nil {
		t.Errorf("first %s, second %v", diff, second)
	}
	if got := r.requests()[0]; got.Method != "DELETE" || got.URL != "/fleet/leases/l-1" {
		t.Errorf("got %+v", got)
	}
	_, url = serve(t, refuse(api.Errorf(api.CodeNotFound, "no such lease")))
	if _, err := newClient(t, url).EndLease(t.Context(), "l-1"); !IsNotFound(err) {
		t.Errorf("got %v, want not_found", err)
	}
	_, url = serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	if lease, err := newClient(t, url).EndLease(t.Context(), "l-1"); lease != nil || err == nil || !strings.Contains(err.Error(), "check the address") {
		t.Errorf("got %v, %v, want a word about the address", lease, err)
	}
}

func TestPricesArePutAgainWhenTheAnswerIsLost(t *testing.T) {
	put, first := serve(t, loseAnswer)
	_, second := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(204)
			return
		}
		answer(200, api.Prices{Currency: "EUR", Version: 8})(w, r)
	})
	got, err := newClient(t, first, second).PutPrices(t.Context(), api.Prices{Currency: "EUR"})
	if err != nil || got.Version != 8 || len(put.requests()) != 1 {
		t.Errorf("got %+v, %v after %d lost answers", got, err, len(put.requests()))
	}
}
