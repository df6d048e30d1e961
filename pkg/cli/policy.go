package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// setting is one field of the policy.
type setting struct {
	name, means string
	value       func(api.Policy) string
}

// settings are the policy's fields in the order they are shown.
func settings() []setting {
	return []setting{
		{"allow_shared_pool_claims", "tenants may take VMs of shared pools", func(p api.Policy) string { return strconv.FormatBool(p.AllowSharedPoolClaims) }},
		{"require_lease_for_macos", "a tenant's macOS guests run on nodes it leases only", func(p api.Policy) string { return strconv.FormatBool(p.RequireLeaseForMacOS) }},
		{"isolate_tenant_networks", "each tenant has a network of its own, so no shared pools", func(p api.Policy) string { return strconv.FormatBool(p.IsolateTenantNetworks) }},
		{"min_lease_hours", "shortest lease of a Mac", func(p api.Policy) string { return number(p.MinLeaseHours) }},
		{"max_boots_per_node", "warm VMs that one node boots at a time", func(p api.Policy) string { return strconv.Itoa(p.MaxBootsPerNode) }},
		{"lost_after_seconds", "silence after which a node is lost", func(p api.Policy) string {
			if p.LostAfterSeconds == nil {
				return "never"
			}
			return number(*p.LostAfterSeconds)
		}},
	}
}

func settingNames() string {
	var out []string
	for _, s := range settings() {
		out = append(out, s.name)
	}
	return strings.Join(out, ", ")
}

func (a *app) policy() *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use: "policy", Short: "Show what the operator allows, or change it",
		Example: `  fluxctl fleet policy
  fluxctl fleet policy --set allow_shared_pool_claims=true
  fluxctl fleet policy --set min_lease_hours=default`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			ask, change := c.Policy, len(set) > 0
			if change {
				patch, err := policyPatch(set)
				if err != nil {
					return err
				}
				ask = func(ctx context.Context) (api.Policy, error) { return c.PatchPolicy(ctx, patch) }
			}
			p, err := during(ctx, a, "the policy", ask)
			if err != nil {
				return err
			}
			if ok, err := a.json(p); ok {
				return err
			}
			if change {
				a.done("Changed the policy")
			}
			g := a.grid("SETTING", "VALUE", "DEFAULT", "MEANS")
			for _, s := range settings() {
				g.row(s.name, s.value(p), s.value(api.DefaultPolicy()), s.means)
			}
			g.print()
			return nil
		}),
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "change a setting, `NAME=VALUE`; the value default puts it back; may be repeated")
	a.completeFlag(cmd, "set", func(context.Context) []string {
		var out []string
		for _, s := range settings() {
			out = append(out, s.name+"=")
		}
		return out
	})
	return cmd
}

// policyPatch reads NAME=VALUE terms.
func policyPatch(terms []string) (api.PolicyPatch, error) {
	var patch api.PolicyPatch
	if err := readSettings("set", terms, "default", settingNames(), &patch); err != nil {
		return patch, err
	}
	return patch, patch.Check()
}

// readSettings reads NAME=VALUE terms of a flag into a patch. The word unset stands for null.
func readSettings(flag string, terms []string, unset, names string, patch any) error {
	given, err := pairs(flag, terms)
	if err != nil {
		return err
	}
	body := map[string]json.RawMessage{}
	for name, value := range given {
		body[name] = json.RawMessage(value)
		if value == unset {
			body[name] = json.RawMessage("null")
		} else if !json.Valid(body[name]) || value == "null" {
			return usagef("--%s %s: %q must be true, false, a whole number or %s", flag, name, value, unset)
		}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if err := api.Decode(raw, patch); err != nil {
		var bad *api.Error
		if errors.As(err, &bad) {
			if _, known := body[bad.Field]; known && !slices.Contains(strings.Split(names, ", "), bad.Field) {
				return usagef("--%s: there is no setting %q; choose of %s", flag, bad.Field, names)
			}
		}
		return usagef("--%s: a value has the wrong kind; fluxctl fleet policy shows how each is written", flag)
	}
	return nil
}

func (a *app) prices() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "prices", Short: "Show what VMs, leases and idle warm VMs cost, or replace it",
		Long: `Show the prices of an hour, or replace all of them with --file: JSON as -o json shows it, with amounts in millionths of
the currency. What runs already keeps the rate it began with.`,
		Example: `  fluxctl fleet prices
  fluxctl fleet prices -o json > prices.json
  fluxctl fleet prices --file prices.json`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			ask := c.Prices
			if file != "" {
				p, err := readPrices(a.env.In, file)
				if err != nil {
					return err
				}
				ask = func(ctx context.Context) (api.Prices, error) { return c.PutPrices(ctx, p) }
			}
			p, err := during(ctx, a, "the prices", ask)
			if err != nil {
				return err
			}
			if ok, err := a.json(p); ok {
				return err
			}
			if file != "" {
				a.done("Changed the prices: they hold for what begins from now on")
			}
			a.showPrices(p)
			return nil
		}),
	}
	cmd.Flags().StringVar(&file, "file", "", "replace the prices with those of a JSON `FILE`, or - for standard input")
	return cmd
}

func readPrices(in io.Reader, file string) (api.Prices, error) {
	var p api.Prices
	var raw []byte
	var err error
	if file == "-" {
		raw, err = io.ReadAll(io.LimitReader(in, api.MaxBody+1))
	} else {
		raw, err = os.ReadFile(file)
	}
	if err != nil {
		return p, usagef("cannot read --file: %v", err)
	}
	p, err = api.DecodePrices(raw)
	var bad *api.Error
	switch {
	case errors.As(err, &bad):
		return p, usagef("--file %s: %s", file, bad.Detail)
	case err != nil:
		return p, usagef("--file %s: %v", file, err)
	}
	return p, nil
}

func (a *app) showPrices(p api.Prices) {
	if len(p.VM)+len(p.Lease)+len(p.Pool) == 0 {
		a.note("Nothing costs anything. Set prices: fluxctl fleet prices --file prices.json")
		return
	}
	g := a.grid("PRICE", "OF", inCurrency("VCPU-HOUR", p.Currency), inCurrency("GIB-HOUR", p.Currency), inCurrency("HOUR", p.Currency), "ON-LEASED")
	vms := func(kind string, list []api.VMPrice) {
		for _, v := range list {
			g.row(kind, v.GuestOS, money(v.VCPUHourMicros), money(v.GiBHourMicros), "", yesWord(v.OnLeased))
		}
	}
	vms("VM", p.VM)
	for _, l := range p.Lease {
		g.row("leased node", cmp.Or(l.Label, "any"), "", "", money(l.HourMicros), "")
	}
	vms("idle warm VM", p.Pool)
	g.print()
}

// rateWords says what an hour of a stretch costs, in units of the currency.
func rateWords(r api.Rate) string {
	var out []string
	for _, part := range []struct {
		micros int64
		of     string
	}{{r.VCPUHourMicros, "vCPU"}, {r.GiBHourMicros, "GiB"}} {
		if part.micros != 0 {
			out = append(out, fmt.Sprintf("%s/%s·h", money(part.micros), part.of))
		}
	}
	if r.HourMicros != 0 {
		out = append(out, money(r.HourMicros)+"/h")
	}
	if len(out) == 0 {
		return "free"
	}
	return strings.Join(out, " + ")
}
