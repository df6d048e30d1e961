package provider

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/diag"
	"github.com/hashicorp/terraform-plugin-framework/types"
	"github.com/hashicorp/terraform-plugin-testing/helper/resource"
	"github.com/hashicorp/terraform-plugin-testing/knownvalue"
	"github.com/hashicorp/terraform-plugin-testing/plancheck"
	"github.com/hashicorp/terraform-plugin-testing/statecheck"
	"github.com/hashicorp/terraform-plugin-testing/terraform"
	"github.com/hashicorp/terraform-plugin-testing/tfjsonpath"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const theLease = "fluxvm_lease.one"

func leaseBlock(extra string) string {
	return tenantBlock("") + "resource \"fluxvm_lease\" \"one\" {\n  tenant = fluxvm_tenant.acme.name\n" + extra + "\n}\n"
}

// leaseID gives the id of the lease in the state, and whether it is another than before.
func (f fleet) leaseID(s *terraform.State) string {
	return s.RootModule().Resources[theLease].Primary.ID
}

// term checks how long the fleet has the lease last.
func (f fleet) term(t *testing.T, want time.Duration) resource.TestCheckFunc {
	return func(s *terraform.State) error {
		lease, err := f.client.Lease(t.Context(), f.leaseID(s))
		if got := lease.EndsAt.Sub(lease.StartsAt); err != nil || got != want {
			return fmt.Errorf("the lease lasts %v (%v), want %v", got, err, want)
		}
		return nil
	}
}

func TestAccLeaseLife(t *testing.T) {
	f := leaseFleet(t, 0)
	step := func(extra string, action plancheck.ResourceActionType, check resource.TestCheckFunc, checks ...statecheck.StateCheck) resource.TestStep {
		return resource.TestStep{Config: f.config(leaseBlock(extra)), ConfigPlanChecks: plans(theLease, action), Check: check, ConfigStateChecks: checks}
	}
	const node = "  node = \"HOST(0)\"\n"
	update := plancheck.ResourceActionUpdate
	importID := func(s *terraform.State) (string, error) { return f.leaseID(s), nil }
	imports := func(extra string) []resource.TestStep {
		return []resource.TestStep{
			{ResourceName: theLease, ImportState: true, ImportStateIdFunc: importID, ImportStateVerify: true, ImportStateVerifyIgnore: []string{"node_selector", "ends_at"}}, // the fleet keeps no selector, and writes the time its way,
			{ResourceName: theLease, ImportState: true, ImportStateIdFunc: importID, ImportStateKind: resource.ImportBlockWithID, Config: f.config(leaseBlock(extra))},
		}
	}
	until := time.Now().Add(30 * time.Hour).UTC().Truncate(time.Second)
	at := func(t time.Time) string { return "  ends_at = \"" + t.Format(time.RFC3339) + "\"" }
	data := "data \"fluxvm_leases\" \"mine\" {\n  tenant = fluxvm_lease.one.tenant\n  state = \"active\"\n}"
	steps := []resource.TestStep{
		step(node+"  duration = \"2h\"", plancheck.ResourceActionCreate, f.term(t, 2*time.Hour), is(theLease, "state", text("active")), is(theLease, "reason", none()), is(theLease, "starts_at", some()),
			is(theLease, "ends_at", some()), is(theLease, "earliest_end", some()), is(theLease, "nodes", knownvalue.ListExact([]knownvalue.Check{text(f.hosts[0])})), is(theLease, "node_selector", none())),
		{Config: f.config(leaseBlock(node + "  duration = \"120m\"")), ConfigPlanChecks: plansNothing()},
		{Config: f.config(leaseBlock(node+"  duration = \"2h\""), data), ConfigStateChecks: []statecheck.StateCheck{
			statecheck.ExpectKnownValue("data.fluxvm_leases.mine", tfjsonpath.New("leases").AtSliceIndex(0).AtMapKey("nodes"), knownvalue.ListSizeExact(1))}},
	}
	steps = append(steps, imports(node+"  duration = \"2h\"")...)
	steps = append(steps,
		step(node+"  duration = \"3h\"", update, f.term(t, 3*time.Hour)),
		step(node+"  duration = \"90m\"\n  auto_renew = true", update, f.term(t, 90*time.Minute), is(theLease, "auto_renew", yes())),
		resource.TestStep{Config: f.config(leaseBlock(node + "  duration = \"90m\"\n  auto_renew = true\n  drain = true")), ConfigPlanChecks: plansNothing()},
		step(node+"  duration = \"90m\"", update, f.term(t, 90*time.Minute), is(theLease, "auto_renew", knownvalue.Bool(false))),
		step(node+at(until), update, nil, is(theLease, "ends_at", text(until.Format(time.RFC3339)))),
		resource.TestStep{Config: f.config(leaseBlock(node + at(until.In(time.FixedZone("", 7200))))), ConfigPlanChecks: plansNothing()},
	)
	steps = append(steps, imports(node + at(until))[1],
		step("  node_selector = { \"fluxvm.dev/dev-node\" = \"HOST(0)\" }\n"+at(until), update, nil, is(theLease, "node", text(f.hosts[0])), is(theLease, "node_selector", knownvalue.MapSizeExact(1))),
	)
	steps = append(steps, imports("  node_selector = { \"fluxvm.dev/dev-node\" = \"HOST(0)\" }\n" + at(until))[1],
		step("  node_selector = { \"fluxvm.dev/dev-node\" = \"HOST(1)\" }\n  duration = \"1h\"", plancheck.ResourceActionReplace, nil, is(theLease, "node", text(f.hosts[1]))),
		step(node+"  duration = \"1h\"", plancheck.ResourceActionReplace, nil, is(theLease, "node", text(f.hosts[0]))),
	)
	f.run(t, steps...)
}

func TestAccLeaseOfSeveralHosts(t *testing.T) {
	f := leaseFleet(t, 8)
	two := "  node_selector = { zone = \"lab\" }\n  node_count = 2\n  duration = \"7d\""
	importID := func(s *terraform.State) (string, error) { return f.leaseID(s), nil }
	f.run(t,
		resource.TestStep{Config: f.config(leaseBlock(two)), ConfigStateChecks: []statecheck.StateCheck{is(theLease, "nodes", knownvalue.ListSizeExact(2)), is(theLease, "node", none())}},
		resource.TestStep{ResourceName: theLease, ImportState: true, ImportStateIdFunc: importID, ImportStateKind: resource.ImportBlockWithID, Config: f.config(leaseBlock(two))},
		resource.TestStep{Config: f.config(leaseBlock(strings.Replace(two, "7d", "8d", 1))), ConfigPlanChecks: plans(theLease, plancheck.ResourceActionUpdate), Check: f.term(t, 8*24*time.Hour)},
		resource.TestStep{Config: f.config(leaseBlock("  node_selector = { zone = \"lab\" }\n  node_count = 4\n  duration = \"7d\"")),
			ConfigPlanChecks: plans(theLease, plancheck.ResourceActionReplace), ExpectError: regexp.MustCompile(`(?s)no healthy,\s+uncordoned\s+nodes`)},
	)
}

func TestAccLeaseDriftIsPlannedBack(t *testing.T) {
	f := leaseFleet(t, 1)
	config := f.config(leaseBlock("  node = \"HOST(0)\"\n  duration = \"2h\""))
	mine := func() api.Lease {
		return must[[]api.Lease](t)(client.All(f.client.Leases(t.Context(), client.Filter{Tenant: f.name("acme"), State: "active"})))[0]
	}
	back := func(args ...string) resource.TestStep {
		return resource.TestStep{Config: config, ConfigPlanChecks: plans(theLease, plancheck.ResourceActionUpdate), Check: f.term(t, 2*time.Hour), PreConfig: func() {
			f.fluxctl(t, append([]string{"fleet", "lease-set", mine().ID}, args...)...)
		}}
	}
	f.run(t,
		resource.TestStep{Config: config},
		back("--extend", "1h"),
		back("--until", time.Now().Add(90*time.Minute).UTC().Format(time.RFC3339)),
		back("--auto-renew"),
		resource.TestStep{Config: config, ConfigPlanChecks: plans(theLease, plancheck.ResourceActionCreate), PreConfig: func() { // ended by someone else
			l := mine()
			f.fluxctl(t, "fleet", "lease-end", l.ID, "--yes")
			f.lasts(t, l.ID)
		}},
		resource.TestStep{Config: config, ConfigPlanChecks: plansNothing()},
	)
}

// lasts waits until a lease has ended and its hosts are free.
func (f fleet) lasts(t *testing.T, id string) {
	eventually(t, "the lease to end", func() bool {
		l, err := f.client.Lease(t.Context(), id)
		return err == nil && l.State == api.LeaseEnded
	})
}

func TestAccEndedLeaseIsPlannedAnew(t *testing.T) {
	f := leaseFleet(t, 2)
	id := ""
	short := resource.TestStep{Config: f.config(leaseBlock("  node = \"HOST(0)\"\n  duration = \"1h\"")), Check: func(s *terraform.State) error {
		id = f.leaseID(s)
		return nil
	}}
	f.run(t, short,
		resource.TestStep{Config: short.Config, ConfigPlanChecks: plans(theLease, plancheck.ResourceActionCreate), PreConfig: func() {
			must[api.Lease](t)(f.client.PatchLease(t.Context(), id, api.LeasePatch{EndsAt: api.Some(api.TimeOf(time.Now().Add(2 * time.Second)))}))
			f.lasts(t, id)
		}},
	)
}

func TestAccLeaseWithoutAHostFailsAtOnce(t *testing.T) {
	f := newFleet(t)
	f.run(t, resource.TestStep{Config: f.config(leaseBlock("  node_selector = { nowhere = \"true\" }\n  duration = \"1h\"")),
		ExpectError: regexp.MustCompile(`(?s)no healthy,\s+uncordoned\s+nodes.*Ruled\s+out:\s+\d+\s+hosts?:\s+no\s+label`)})
}

// The tenant of a lease that goes on stays, so it is not this test's to remove.
func TestAccMinimumTermHoldsALease(t *testing.T) {
	f := leaseFleet(t, 3)
	ctx := t.Context()
	must[api.Tenant](t)(f.client.CreateTenant(ctx, api.TenantRequest{Name: f.name("mac")}, ""))
	lease := func(extra string) string {
		return f.config("resource \"fluxvm_lease\" \"one\" {\n  tenant = \"NAME(mac)\"\n  node = \"HOST(mac)\"\n" + extra + "\n}\n")
	}
	soon := func(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }
	id := ""
	f.run(t,
		resource.TestStep{Config: lease("  duration = \"1h\""), ExpectError: regexp.MustCompile(`lasts\s+at\s+least\s+24\s+h`)},
		resource.TestStep{Config: lease("  duration = \"2d\""), Check: func(s *terraform.State) error { id = f.leaseID(s); return nil }},
		resource.TestStep{Config: lease("  duration = \"2h\""), ConfigPlanChecks: plansNothing()},                     // with a warning,
		resource.TestStep{Config: lease("  ends_at = \"" + soon(time.Hour) + "\""), ConfigPlanChecks: plansNothing()}, // with a warning
		resource.TestStep{Config: lease("  duration = \"2d\""), ConfigPlanChecks: plans(theLease, plancheck.ResourceActionUpdate), Check: f.term(t, 48*time.Hour),
			PreConfig: func() { must[*api.Lease](t)(f.client.EndLease(ctx, id)) }}, // asked to end by someone else: taken back
	)
	held := must[api.Lease](t)(f.client.Lease(ctx, id))
	if held.State != api.LeaseActive || held.EndsAt != held.EarliestEnd {
		t.Errorf("after the destroy the lease is %s until %s, want active until %s", held.State, held.EndsAt, held.EarliestEnd)
	}
}

func TestAccLeaseWaitsForTheVMsOfOthers(t *testing.T) {
	f := leaseFleet(t, 4)
	ctx := t.Context()
	vm := ""
	occupy := func() {
		answer, _, err := f.client.Launch(ctx, api.LaunchRequest{Image: f.name("tiny"), Node: f.hosts[0]}, client.LaunchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		vm = answer.VM.ID
	}
	vacate := func() {
		if err := f.client.DeleteVM(ctx, vm); err != nil {
			t.Error(err)
		}
	}
	lease := func(extra string) string {
		return f.config(imageBlock(f.image), leaseBlock("  node = \"HOST(0)\"\n  duration = \"2h\"\n"+extra))
	}
	drained := lease("  drain = true\n  timeouts = { create = \"2s\" }")
	f.run(t,
		resource.TestStep{Config: f.config(imageBlock(f.image), tenantBlock(""))},
		resource.TestStep{Config: lease(""), PreConfig: occupy, ExpectError: regexp.MustCompile(`no healthy,\s+uncordoned`)},
		resource.TestStep{Config: drained, ConfigStateChecks: []statecheck.StateCheck{is(theLease, "state", text("pending")), is(theLease, "reason", some()), is(theLease, "starts_at", none())}},
		resource.TestStep{Config: drained, ConfigPlanChecks: plansNothing()},
		resource.TestStep{Config: lease("  drain = true\n  timeouts = { update = \"50s\" }\n  auto_renew = true"), PreConfig: vacate, ConfigPlanChecks: plans(theLease, plancheck.ResourceActionUpdate),
			Check: f.term(t, 2*time.Hour), ConfigStateChecks: []statecheck.StateCheck{is(theLease, "state", text("active")), is(theLease, "auto_renew", yes())}},
	)
}

func TestAccRenewedLeaseStaysAsItIs(t *testing.T) {
	f := leaseFleet(t, 5)
	config := f.config(leaseBlock("  node = \"HOST(0)\"\n  duration = \"3s\"\n  auto_renew = true"))
	var first api.Lease
	f.run(t,
		resource.TestStep{Config: config, Check: func(s *terraform.State) (err error) {
			first, err = f.client.Lease(t.Context(), f.leaseID(s))
			return err
		}},
		resource.TestStep{Config: config, ConfigPlanChecks: plansNothing(), PreConfig: func() {
			eventually(t, "the lease to be renewed", func() bool {
				l, err := f.client.Lease(t.Context(), first.ID)
				return err == nil && l.EndsAt > first.EndsAt
			})
		}},
		resource.TestStep{Config: f.config(leaseBlock("  node = \"HOST(0)\"\n  duration = \"1h\"")), ConfigPlanChecks: plans(theLease, plancheck.ResourceActionUpdate),
			ConfigStateChecks: []statecheck.StateCheck{is(theLease, "auto_renew", knownvalue.Bool(false))}},
	)
}

func TestLengthsReadBack(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{"7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "45s": 45 * time.Second, "2h": 2 * time.Hour, "1d1.5s": 24*time.Hour + 1500*time.Millisecond, "1h0m5s": time.Hour + 5*time.Second} {
		got := lengthText(d)
		if back, ok := api.ParseDuration(got); got != want || !ok || back != d {
			t.Errorf("%v is written %q and read as %v, want %q", d, got, back, want)
		}
	}
}

func TestEndOfALeaseIsPlannedFromWhatIsThere(t *testing.T) {
	t.Parallel()
	state := leaseModel{Duration: types.StringValue("2d"), EndsAt: types.StringValue("2026-01-03T00:00:00.000Z"), EarliestEnd: types.StringValue("2026-01-02T00:00:00.000Z"), AutoRenew: types.BoolValue(true)}
	for name, c := range map[string]struct {
		duration, endsAt string
		renews           bool
		moves, warns     bool
	}{
		"same length":          {duration: "48h", renews: true},
		"other length":         {duration: "3d", moves: true},
		"same time":            {endsAt: "2026-01-03T02:00:00+02:00"},
		"later":                {endsAt: "2026-01-04T00:00:00Z", moves: true},
		"earlier":              {endsAt: "2026-01-02T12:00:00Z", moves: true},
		"renewed past it":      {endsAt: "2026-01-02T12:00:00Z", renews: true},
		"before the minimum":   {endsAt: "2026-01-01T00:00:00Z", warns: true},
		"renewed and later on": {endsAt: "2026-01-04T00:00:00Z", renews: true, moves: true},
	} {
		var diags diag.Diagnostics
		config := leaseModel{Duration: textOrNull(c.duration), EndsAt: textOrNull(c.endsAt)}
		plan := leaseModel{AutoRenew: types.BoolValue(c.renews)}
		planTerm(config, &plan, state, &diags)
		if moves := !plan.EndsAt.Equal(state.EndsAt); moves != c.moves || (diags.WarningsCount() > 0) != c.warns || diags.HasError() {
			t.Errorf("%s: moves %v with %v, want %v and a warning %v", name, moves, diags, c.moves, c.warns)
		}
	}
}

func TestLeasesThatAreOverSayWhy(t *testing.T) {
	t.Parallel()
	if got := whyOver(api.Lease{State: api.LeaseScrubbing}); got != "" {
		t.Errorf("while its hosts are cleaned a lease is dropped: %s", got)
	}
	for want, l := range map[string]api.Lease{
		"no such lease":        {},
		"disk full":            {State: api.LeaseScrubFailed, Reason: "disk full"},
		"It ended at 1970-01-": {State: api.LeaseEnded, EndsAt: 1},
	} {
		if got := whyOver(l); !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", l.State, got, want)
		}
	}
}
