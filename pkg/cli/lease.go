package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) leases() *cobra.Command {
	var filter client.Filter
	cmd := &cobra.Command{
		Use: "leases", Short: "List leases of whole nodes, and what they wait for",
		Example: "  fluxctl fleet leases\n  fluxctl fleet leases --tenant acme --state active -o wide",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			leases, err := list(ctx, a, "the list of leases", func(ctx context.Context) iter.Seq2[api.Lease, error] { return c.Leases(ctx, filter) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Lease]{Items: leases}); ok {
				return err
			}
			if len(leases) == 0 {
				a.note("No leases. Make one: fluxctl fleet lease --tenant TENANT --node NODE --for 7d")
				return nil
			}
			g := a.grid("ID", "TENANT", "STATE", "NODES", "ENDS", "RENEWS", "AGE").wider("STARTED", "EARLIEST-END", "REASON")
			now := a.env.Now()
			for _, l := range leases {
				g.row(l.ID, l.Tenant, string(l.State), strings.Join(l.Nodes, ","), endWords(l, now), yesWord(l.AutoRenew), since(l.CreatedAt, now),
					l.StartsAt.String(), l.EarliestEnd.String(), l.Reason)
			}
			g.print()
			for _, l := range leases {
				if why := leaseTrouble(l); why != "" {
					a.trouble(l.ID + ": " + why)
				}
			}
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&filter.Tenant, "tenant", "", "only of this `TENANT`")
	flags.StringVar(&filter.Node, "node", "", "only of this `NODE`")
	flags.StringVar(&filter.State, "state", "", "only in this `STATE`, such as active")
	a.completeFlag(cmd, "tenant", a.tenantNames)
	a.completeFlag(cmd, "node", a.nodeNames)
	fixed(cmd, "state", string(api.LeasePending), string(api.LeaseActive), string(api.LeaseEnding), string(api.LeaseScrubbing), string(api.LeaseScrubFailed), string(api.LeaseEnded))
	return cmd
}

func endWords(l api.Lease, now time.Time) string {
	switch {
	case l.EndsAt.IsZero():
		return ""
	case l.EndsAt > api.TimeOf(now):
		return "in " + until(l.EndsAt, now)
	}
	return since(l.EndsAt, now) + " ago"
}

// leaseTrouble says what a lease waits for and who can help; empty where nothing is to be done.
func leaseTrouble(l api.Lease) string {
	switch l.State {
	case api.LeasePending:
		if len(l.BlockedBy) > 0 {
			return "waits for " + count(len(l.BlockedBy), "VM") + " of others to leave " + strings.Join(l.Nodes, ", ")
		}
	case api.LeaseEnding:
		if len(l.BlockedBy) > 0 {
			return "waits for " + count(len(l.BlockedBy), "VM") + " to be gone from " + strings.Join(l.Nodes, ", ") + " before the scrub"
		}
	case api.LeaseScrubFailed:
		var failed, why []string
		for _, s := range l.Scrubs {
			if s.State == api.ScrubFailed {
				failed = append(failed, s.Node)
				if s.Reason != "" && !slices.Contains(why, s.Reason) {
					why = append(why, s.Reason)
				}
			}
		}
		text := "the scrub of " + strings.Join(failed, ", ") + " failed"
		if len(failed) == 0 {
			failed, text = l.Nodes, "a scrub failed"
		}
		if len(why) > 0 {
			text += ": " + strings.Join(why, "; ")
		}
		return text + "; nobody gets the node before it is clean: fluxctl fleet scrub " + strings.Join(failed[:min(1, len(failed))], "")
	}
	return ""
}

// leaseFlags are what a person may say about a lease to make.
type leaseFlags struct {
	req      api.LeaseRequest
	selector []string
	length   durationValue
	until    instantValue
}

// asked says whether anything was said at all.
func (f *leaseFlags) asked() bool {
	return f.req.Tenant != "" || f.req.Node != "" || len(f.selector) > 0 || f.req.Count != 0 || f.length != 0 || f.until != 0 || f.req.AutoRenew || f.req.Drain
}

func (f *leaseFlags) request() (api.LeaseRequest, error) {
	req := f.req
	var err error
	if req.NodeSelector, err = pairs("node-selector", f.selector); err != nil {
		return req, err
	}
	switch {
	case (req.Node == "") == (req.NodeSelector == nil):
		return req, usagef("say what to lease: --node NODE, or --node-selector KEY=VALUE with --count NUMBER")
	case req.Node != "" && req.Count > 1:
		return req, usagef("--count goes with --node-selector; --node is one node")
	case (f.length == 0) == (f.until == 0):
		return req, usagef("say for how long: --for DURATION, such as --for 7d, or --until TIME")
	}
	req.EndsAt = api.Time(f.until)
	if f.length != 0 {
		req.Duration = exactDuration(time.Duration(f.length))
	}
	checked := req
	if checked.Tenant == "" {
		checked.Tenant = "own" // a tenant's token says whose it is, which only the fleet can read
	}
	return req, checked.Check()
}

// exactDuration is the duration in the largest unit that tells all of it.
func exactDuration(d time.Duration) string {
	for _, u := range durationUnits[1:] {
		if d%u.unit == 0 {
			return fmt.Sprintf("%d%s", d/u.unit, u.letter)
		}
	}
	return d.String()
}

func (a *app) lease() *cobra.Command {
	var f leaseFlags
	cmd := &cobra.Command{
		Use: "lease ID | --tenant TENANT --node NODE --for DURATION", Short: "Show a lease, or lease whole nodes to a tenant",
		Long: `With an ID, show that lease. With flags, make one: its nodes are the tenant's alone from then on. Without --drain it is
active at once or refused; with it, it waits until the VMs of others have left. Macs have a minimum term.`,
		Example: `  fluxctl fleet lease --tenant acme --node studio-1 --for 7d
  fluxctl fleet lease --tenant acme --node-selector chip=m4-max --count 2 --for 24h --auto-renew
  fluxctl fleet lease l-1`,
		Args: takes("[ID]"), ValidArgsFunction: a.completeArgs(a.leaseIDs, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 1 {
				if f.asked() {
					return usagef("give the ID of a lease to show it, or flags to make one, not both")
				}
				return a.getLease(ctx, c, args[0])
			}
			req, err := f.request()
			if err != nil {
				return err
			}
			l, err := during(ctx, a, "the lease", func(ctx context.Context) (api.Lease, error) { return c.CreateLease(ctx, req, "") })
			if err != nil {
				return err
			}
			if ok, err := a.json(l); ok {
				return err
			}
			a.madeLease(l)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.req.Tenant, "tenant", "", "lease to this `TENANT` (default the token's own)")
	flags.StringVar(&f.req.Node, "node", "", "lease this `NODE`")
	flags.StringArrayVar(&f.selector, "node-selector", nil, "lease nodes with this label, `KEY=VALUE`; may be repeated")
	flags.IntVar(&f.req.Count, "count", 0, "`NUMBER` of nodes that --node-selector gives (default 1)")
	flags.Var(&f.length, "for", "how long, such as 24h or 7d")
	flags.Var(&f.until, "until", "when it ends, such as 2026-03-08 (UTC)")
	flags.BoolVar(&f.req.AutoRenew, "auto-renew", false, "go on for the same time whenever it would end")
	flags.BoolVar(&f.req.Drain, "drain", false, "wait until the VMs of others have left, rather than be refused")
	a.completeFlag(cmd, "tenant", a.tenantNames)
	a.completeFlag(cmd, "node", a.nodeNames)
	return cmd
}

func (a *app) madeLease(l api.Lease) {
	nodes, early := strings.Join(l.Nodes, ", "), ""
	if l.EarliestEnd > l.StartsAt && !l.StartsAt.IsZero() {
		early = "Ends and is billed no earlier than " + a.moment(l.EarliestEnd)
	}
	watch := "Watch it: fluxctl fleet lease " + l.ID
	if l.State == api.LeasePending {
		a.done(fmt.Sprintf("Lease %s of %s to %s begins once the VMs of others have left: %s to go", l.ID, nodes, l.Tenant, count(len(l.BlockedBy), "VM")), watch)
		return
	}
	a.done(fmt.Sprintf("Leased %s to %s until %s", nodes, l.Tenant, a.moment(l.EndsAt)), "Lease "+l.ID+"; to end it: fluxctl fleet lease-end "+l.ID, early)
}

func (a *app) getLease(ctx context.Context, c *client.Client, id string) error {
	l, err := during(ctx, a, id, func(ctx context.Context) (api.Lease, error) { return c.Lease(ctx, id) })
	if err != nil {
		return err
	}
	if ok, err := a.json(l); ok {
		return err
	}
	a.fields(l.ID, field{"state", string(l.State)}, field{"reason", l.Reason}, field{"waits", leaseTrouble(l)}, field{"tenant", l.Tenant}, field{"nodes", strings.Join(l.Nodes, ", ")},
		field{"started", a.moment(l.StartsAt)}, field{"ends", a.moment(l.EndsAt)}, field{"earliest end", a.moment(l.EarliestEnd)}, field{"renews", yesWord(l.AutoRenew)},
		field{"blocked by", strings.Join(l.BlockedBy, ", ")}, field{"created", a.moment(l.CreatedAt)})
	if len(l.Scrubs) == 0 {
		return nil
	}
	fmt.Fprintln(a.env.Out)
	g := a.grid("SCRUB", "STATE", "SINCE", "REASON")
	for _, s := range l.Scrubs {
		g.row(s.Node, s.State, since(s.StartedAt, a.env.Now()), s.Reason)
	}
	g.print()
	return nil
}

func (a *app) setLease() *cobra.Command {
	var more durationValue
	var until instantValue
	var renew bool
	cmd := &cobra.Command{
		Use: "lease-set ID", Short: "Extend a lease, or turn its renewal on or off",
		Example: `  fluxctl fleet lease-set l-1 --extend 7d
  fluxctl fleet lease-set l-1 --until 2026-04-01
  fluxctl fleet lease-set l-1 --auto-renew=false`,
		Args: takes("ID"), ValidArgsFunction: a.completeArgs(a.leaseIDs, 1),
	}
	flags := cmd.Flags()
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		var p api.LeasePatch
		if flags.Changed("auto-renew") {
			p.AutoRenew = api.Some(renew)
		}
		switch {
		case more != 0 && until != 0:
			return usagef("give --extend or --until, not both")
		case until != 0:
			p.EndsAt = api.Some(api.Time(until))
		case more == 0 && !p.AutoRenew.Set:
			return usagef("say what to change: --extend, --until or --auto-renew")
		}
		l, err := during(ctx, a, args[0], func(ctx context.Context) (api.Lease, error) {
			if more != 0 {
				l, err := c.Lease(ctx, args[0])
				if err != nil {
					return l, err
				}
				p.EndsAt = api.Some(l.EndsAt.Add(time.Duration(more)))
			}
			return c.PatchLease(ctx, args[0], p)
		})
		if err != nil {
			return err
		}
		if ok, err := a.json(l); ok {
			return err
		}
		what := "ends " + a.moment(l.EndsAt)
		if l.AutoRenew {
			what = "renews " + a.moment(l.EndsAt)
		}
		a.done("Changed lease " + l.ID + ": " + what)
		return nil
	})
	flags.SortFlags = false
	flags.Var(&more, "extend", "let it end this much later, such as 7d")
	flags.Var(&until, "until", "when it ends, such as 2026-04-01 (UTC)")
	flags.BoolVar(&renew, "auto-renew", false, "go on for the same time whenever it would end; =false stops that")
	return cmd
}

func (a *app) endLease() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "lease-end ID", Short: "End a lease: its tenant's VMs go, then its nodes are scrubbed",
		Long:    "End a lease as soon as its minimum term allows. The tenant's VMs on its nodes are deleted, the nodes are scrubbed, and\nonly then are they free for others.",
		Example: "  fluxctl fleet lease-end l-1\n  fluxctl fleet lease-end l-1 --yes",
		Args:    takes("ID"), ValidArgsFunction: a.completeArgs(a.leaseIDs, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.confirm(ctx, yes, fmt.Sprintf("End lease %s and delete its tenant's VMs on its nodes?", args[0])); err != nil {
				return err
			}
			l, err := during(ctx, a, args[0]+" to end", func(ctx context.Context) (*api.Lease, error) { return c.EndLease(ctx, args[0]) })
			if err != nil {
				return err
			}
			if l == nil {
				if ok, err := a.json(map[string][]string{"ended": {args[0]}}); ok {
					return err
				}
				a.done("Lease " + args[0] + " is over; its nodes are free")
				return nil
			}
			if ok, err := a.json(l); ok {
				return err
			}
			a.endedLease(*l)
			return nil
		}),
	}
	yesFlag(cmd, &yes)
	return cmd
}

func (a *app) endedLease(l api.Lease) {
	watch := "Watch it: fluxctl fleet lease " + l.ID
	switch {
	case l.State == api.LeaseEnded:
		a.done("Lease " + l.ID + " is over; its nodes are free")
	case l.EarliestEnd > api.TimeOf(a.env.Now()) && (l.State == api.LeaseActive || l.State == api.LeasePending):
		a.done("Lease "+l.ID+" ends "+a.moment(l.EarliestEnd)+", when its minimum term is over", watch)
	default:
		a.done(fmt.Sprintf("Lease %s ends: the VMs of %s on %s go, then a scrub", l.ID, l.Tenant, strings.Join(l.Nodes, ", ")), watch)
	}
}

func (a *app) scrub() *cobra.Command {
	var opts client.ScrubOptions
	var yes bool
	cmd := &cobra.Command{
		Use: "scrub NODE", Short: "Try the failed scrub of a node again after a lease",
		Long: `Try the failed scrub of a node again after a lease. Nobody gets the node before it is clean. --override takes your word
for that, as after the disk was wiped by hand.`,
		Example: `  fluxctl fleet scrub studio-1
  fluxctl fleet scrub studio-1 --override --reason "disk replaced"`,
		Args: takes("NODE"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			sentence, detail := "Scrubbing "+args[0]+" again", "Watch it: fluxctl fleet leases --node "+args[0]
			if opts.Override {
				if opts.Reason == "" {
					return usagef("say why %s is clean: --reason TEXT", args[0])
				}
				if err := a.confirm(ctx, yes, fmt.Sprintf("Take %s as clean without a scrub? What its last tenant left there may reach the next.", args[0])); err != nil {
					return err
				}
				sentence, detail = "Took "+args[0]+" as clean, without a scrub", ""
			}
			n, err := during(ctx, a, args[0], func(ctx context.Context) (api.Node, error) { return c.ScrubNode(ctx, args[0], opts) })
			return a.doneNode(n, err, sentence, detail)
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&opts.Override, "override", false, "take the node as clean without a scrub; asks first")
	flags.StringVar(&opts.Reason, "reason", "", "say why: a `TEXT` for whoever looks next")
	yesFlag(cmd, &yes)
	return cmd
}
