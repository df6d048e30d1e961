package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) usage() *cobra.Command {
	var by []string
	var tenant string
	var from, to instantValue
	cmd := &cobra.Command{
		Use: "usage", Short: "Sum up what was used and what it costs",
		Example: `  fluxctl fleet usage --from 2026-03-01 --to 2026-04-01
  fluxctl fleet usage --by tenant,day --from 2026-03-01
  fluxctl fleet usage --by pool --tenant acme`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			for _, g := range by {
				if !slices.Contains(groups(), g) {
					return usagef("--by: %q must be of %s", g, strings.Join(groups(), ", "))
				}
			}
			q := client.UsageQuery{Tenant: tenant, From: api.Time(from), To: api.Time(to), GroupBy: by}
			u, err := during(ctx, a, "the usage", func(ctx context.Context) (api.Usage, error) { return c.Usage(ctx, q) })
			if err != nil {
				return err
			}
			if ok, err := a.json(u); ok {
				return err
			}
			a.showUsage(u, by, a.currency(ctx, c))
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&by, "by", []string{"tenant"}, "group by `GROUP`: tenant, pool and day, with commas between them")
	flags.StringVar(&tenant, "tenant", "", "only of this `TENANT`; operator is the operator's own")
	flags.Var(&from, "from", "count from this time on, such as 2026-03-01 (UTC); default the beginning of this month")
	flags.Var(&to, "to", "count up to this time; default now")
	a.completeFlag(cmd, "tenant", a.tenantNames)
	fixed(cmd, "by", groups()...)
	return cmd
}

func groups() []string { return []string{"tenant", "pool", "day"} }

func (a *app) showUsage(u api.Usage, by []string, currency string) {
	columns := []string{}
	for _, g := range by {
		columns = append(columns, strings.ToUpper(g))
	}
	g := a.grid(append(columns, "VM-HOURS", "VCPU-HOURS", "GIB-HOURS", "LEASE-HOURS", inCurrency("AMOUNT", currency))...)
	line := func(groups []string, i api.UsageItem) {
		g.row(append(groups, hours(i.VMSeconds), hours(i.VCPUSeconds), hours(i.GiBSeconds), hours(i.LeaseSeconds), money(i.AmountMicros))...)
	}
	if len(by) == 0 {
		u.Items = nil // the one sum is the total
	}
	for _, i := range u.Items {
		of := map[string]string{"tenant": owner(i.Tenant), "pool": i.Pool, "day": i.Day}
		cells := []string{}
		for _, name := range by {
			cells = append(cells, of[name])
		}
		line(cells, i)
	}
	total := make([]string, len(by))
	if len(by) > 0 {
		total[0] = "total"
	}
	line(total, u.Total)
	g.print()
}

func (a *app) ledger() *cobra.Command {
	var f client.LedgerFilter
	var from, to instantValue
	var asCSV bool
	cmd := &cobra.Command{
		Use: "ledger", Short: "List every billed stretch, or export them",
		Long: "List every billed stretch. Its amount is known once it has ended. -o csv writes what the API gives as text/csv, with\namounts in millionths of the currency, so that nothing is rounded on the way.",
		Example: `  fluxctl fleet ledger --tenant acme --from 2026-03-01 --to 2026-04-01
  fluxctl fleet ledger --vm 0190f3f0-0000-7000-8000-000000000042 -o wide
  fluxctl fleet ledger -o csv > ledger.csv`,
		Annotations: map[string]string{outputCSV: "yes"},
		Args:        takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			f.From, f.To = api.Time(from), api.Time(to)
			if asCSV || a.output == outputCSV {
				return a.perform(ctx, "the ledger", func(ctx context.Context) error { return a.exportLedger(c.Ledger(ctx, f)) })
			}
			rows, err := list(ctx, a, "the ledger", func(ctx context.Context) iter.Seq2[api.LedgerRow, error] { return c.Ledger(ctx, f) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.LedgerRow]{Items: rows}); ok {
				return err
			}
			if len(rows) == 0 {
				a.note("Nothing was billed.")
				return nil
			}
			a.showLedger(rows, a.currency(ctx, c))
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.Tenant, "tenant", "", "only of this `TENANT`")
	flags.StringVar(&f.Kind, "kind", "", "only of this `KIND`: vm, lease, pool or adjustment")
	flags.StringVar(&f.VMID, "vm", "", "only of the VM with this `ID`")
	flags.StringVar(&f.LeaseID, "lease", "", "only of the lease with this `ID`")
	flags.Var(&from, "from", "what ran at this time or later, such as 2026-03-01 (UTC)")
	flags.Var(&to, "to", "what began before this time")
	flags.BoolVar(&asCSV, "csv", false, "the same as -o csv")
	a.completeFlag(cmd, "tenant", a.tenantNames)
	a.completeFlag(cmd, "lease", a.leaseIDs)
	fixed(cmd, "kind", api.LedgerVM, api.LedgerLease, api.LedgerPool, api.LedgerAdjustment)
	return cmd
}

// exportLedger writes rows as they come: a ledger may be longer than what fits into memory.
func (a *app) exportLedger(rows iter.Seq2[api.LedgerRow, error]) error {
	w := csv.NewWriter(a.env.Out)
	if err := w.Write(api.LedgerColumns()); err != nil {
		return err
	}
	for row, err := range rows {
		if err != nil {
			w.Flush()
			return cmp.Or(w.Error(), err)
		}
		if err := w.Write(row.Record()); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

func (a *app) showLedger(rows []api.LedgerRow, currency string) {
	g := a.grid("STARTED", "ENDED", "TENANT", "KIND", "NAME", "NODE", "SIZE", "END", inCurrency("AMOUNT", currency)).wider("RATE", "POOL", "GUEST", "VM", "LEASE", "ID")
	for _, r := range rows {
		ended, amount, size := "open", "", ""
		if !r.EndedAt.IsZero() {
			ended, amount = r.EndedAt.Std().Format("2006-01-02 15:04:05"), money(r.AmountMicros)
		}
		if r.VCPUs > 0 {
			size = sizeWords(r.VCPUs, r.MemoryMiB)
		}
		g.row(r.StartedAt.Std().Format("2006-01-02 15:04:05"), ended, owner(r.Tenant), r.Kind, cmp.Or(r.Name, r.LeaseID), r.Node, size, r.EndReason, amount,
			rateWords(r.Rate), r.Pool, r.GuestOS, r.VMID, r.LeaseID, r.ID)
	}
	g.print()
}

func (a *app) adjustLedger() *cobra.Command {
	var req api.AdjustmentRequest
	var amount moneyValue
	cmd := &cobra.Command{
		Use: "ledger-adjust TENANT --amount AMOUNT --reason TEXT", Short: "Charge or credit a tenant by hand",
		Long:    "Charge or credit a tenant by hand. It becomes a row of the ledger; no other row ever changes.",
		Example: `  fluxctl fleet ledger-adjust acme --amount -12.50 --reason "outage of 3 March"`,
		Args:    takes("TENANT"), ValidArgsFunction: a.completeArgs(a.tenantNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			req.Tenant, req.AmountMicros = args[0], int64(amount)
			switch {
			case amount == 0:
				return usagef("say how much: --amount AMOUNT; below 0 is a credit, as in --amount -12.50")
			case req.Reason == "":
				return usagef("say why: --reason TEXT")
			}
			if err := req.Check(); err != nil {
				return err
			}
			row, err := during(ctx, a, "the ledger", func(ctx context.Context) (api.LedgerRow, error) { return c.Adjust(ctx, req, "") })
			if err != nil {
				return err
			}
			if ok, err := a.json(row); ok {
				return err
			}
			what, in := "Charged", a.currency(ctx, c)
			micros := row.AmountMicros
			if micros < 0 {
				what, micros = "Credited", -micros
			}
			a.done(strings.TrimSpace(fmt.Sprintf("%s %s %s %s", what, owner(row.Tenant), money(micros), in)), "Ledger row "+row.ID)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(&amount, "amount", "how much, in units of the currency; below 0 is a credit")
	flags.StringVar(&req.Reason, "reason", "", "say why: a `TEXT` for whoever reads the ledger")
	return cmd
}
