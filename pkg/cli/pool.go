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

func (a *app) pools() *cobra.Command {
	return &cobra.Command{
		Use: "pools", Short: "List warm pools: ready and booting VMs, claims, average start",
		Example: "  fluxctl fleet pools\n  fluxctl fleet pools -o wide",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			pools, err := list(ctx, a, "the list of pools", func(ctx context.Context) iter.Seq2[api.Pool, error] { return c.Pools(ctx, client.Filter{}) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Pool]{Items: pools}); ok {
				return err
			}
			if len(pools) == 0 {
				a.note("No warm pools. Create one: fluxctl fleet pool-create NAME --image IMAGE")
				return nil
			}
			g := a.grid("NAME", "OWNER", "IMAGE", "SIZE", "READY", "BOOTING", "CLAIMED-24H", "AVG-START", "STATE").
				wider("MAX", "RUNNING", "STALE", "LAST-CLAIM", "LAST-FILL", "NODES", "SELECTOR")
			now := a.env.Now()
			for _, p := range pools {
				s := p.Status
				g.row(p.Name, p.Owner, p.Image, sizeWords(p.Size.VCPUs, p.Size.MemoryMiB), fmt.Sprintf("%d/%d", s.Ready, p.MinReady), strconv.Itoa(s.Booting),
					strconv.FormatInt(s.Claimed24h, 10), averageStart(s), string(s.State),
					strconv.Itoa(p.MaxTotal), strconv.Itoa(s.ClaimedRunning), strconv.Itoa(s.Stale), since(s.LastClaimAt, now), since(s.LastFillAt, now),
					strings.Join(p.Nodes, ","), labelWords(p.NodeSelector))
			}
			g.print()
			for _, p := range pools {
				if why := a.poolTrouble(p); why != "" {
					a.trouble(p.Name + ": " + why)
				}
			}
			return nil
		}),
	}
}

func averageStart(s api.PoolStatus) string {
	if s.AvgClaimMS == 0 && s.LastClaimAt.IsZero() {
		return ""
	}
	return seconds(s.AvgClaimMS)
}

// poolTrouble says why a pool is not full and when it tries again; empty where nothing is wrong.
func (a *app) poolTrouble(p api.Pool) string {
	s := p.Status
	rolls := s.Roll != nil && s.Roll.State == api.RollPaused
	if !rolls && (s.WaitReason == nil && s.LastError == nil && s.State != api.PoolBackingOff || s.State == api.PoolReady || s.State == api.PoolPaused) {
		return ""
	}
	words := waitWords(deref(s.WaitReason), p)
	if reasons := reasonWords(s.Reasons); reasons != "" { // the error says the same
		words = strings.TrimSpace(words + " (" + reasons + ")")
	} else if s.LastError != nil && *s.LastError != "" {
		if words != "" {
			words += ": "
		}
		words += *s.LastError
	}
	if words == "" {
		words = "waits after a failed boot"
	}
	switch {
	case !s.BackoffUntil.IsZero() && s.BackoffUntil > api.TimeOf(a.env.Now()):
		words += "; retries in " + until(s.BackoffUntil, a.env.Now())
	case s.State == api.PoolBackingOff:
		words += "; retries now"
	}
	if rolls {
		words = fmt.Sprintf("the roll to %s is paused (%s); VMs of %s are kept. Go back: fluxctl fleet pool-roll %s --abort", s.Roll.Image, words, s.Roll.From, p.Name)
	}
	return words
}

func waitWords(reason string, p api.Pool) string {
	switch reason {
	case api.WaitNoCapacity:
		if n := p.Status.Reasons[api.WhyLeased]; p.Tenant != nil && n > 0 && len(p.Status.Reasons) == 1 {
			return "it runs only on nodes that " + p.Owner + " leases, and there is none; lease one"
		}
		return "no node has room"
	case api.WaitBootFailed:
		return "its VMs do not boot"
	case api.WaitMaxTotal:
		return fmt.Sprintf("at its limit of %d VMs; refills as taken ones end, or raise it with pool-set --max", p.MaxTotal)
	case api.WaitMacOSLimit:
		return "every Mac runs its two macOS guests"
	case api.WaitPressure:
		return "its nodes are under memory pressure"
	case api.WaitImage:
		return "image " + p.Image + " cannot be booted"
	case api.WaitQuota:
		return "the quota of " + p.Owner + " is used up"
	}
	return strings.ReplaceAll(reason, "_", " ")
}

func (a *app) pool() *cobra.Command {
	return &cobra.Command{
		Use: "pool NAME", Short: "Show one warm pool and its VMs",
		Example: "  fluxctl fleet pool ios-ci",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.poolNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			p, err := during(ctx, a, args[0], func(ctx context.Context) (api.Pool, error) { return c.Pool(ctx, args[0]) })
			if err != nil {
				return err
			}
			if ok, err := a.json(p); ok {
				return err
			}
			a.showPool(p)
			return nil
		}),
	}
}

func (a *app) showPool(p api.Pool) {
	s := p.Status
	stale := ""
	if s.Stale > 0 {
		stale = strconv.Itoa(s.Stale) + ", booted from an earlier image"
	}
	a.fields(p.Name,
		field{"state", string(s.State)}, field{"waits", a.poolTrouble(p)}, field{"owner", p.Owner}, field{"image", p.Image}, field{"guest", p.GuestOS},
		field{"size", sizeWords(p.Size.VCPUs, p.Size.MemoryMiB)}, field{"disk", diskWords(p.Size.DiskSizeGiB)},
		field{"keeps", fmt.Sprintf("%d ready, %d at most with those taken", p.MinReady, p.MaxTotal)},
		field{"now", fmt.Sprintf("%d ready, %d booting, %d taken and running", s.Ready, s.Booting, s.ClaimedRunning)},
		field{"roll", rollWords(s.Roll)}, field{"stale", stale}, field{"claims", claimWords(s)}, field{"average start", averageStart(s)},
		field{"last claim", a.moment(s.LastClaimAt)}, field{"last fill", a.moment(s.LastFillAt)},
		field{"nodes", strings.Join(p.Nodes, ",")}, field{"node selector", labelWords(p.NodeSelector)}, field{"readiness", p.Readiness},
		field{"keeps failed", keptWords(p.KeepFailedSeconds, "its last failed VM for ")}, field{"recycles", keptWords(p.MaxAgeSeconds, "VMs that wait longer than ")}, field{"identity", rotateWords(p.RotateIdentity)},
		field{"created", a.moment(p.CreatedAt)})
	if len(p.Warm) == 0 {
		return
	}
	fmt.Fprintln(a.env.Out)
	g := a.grid("VM", "STATE", "NODE", "SINCE").wider("IMAGE", "ID")
	for _, w := range p.Warm {
		g.row(w.Name, w.State, w.Node, since(w.Since, a.env.Now()), w.Image, w.ID)
	}
	g.print()
	for _, w := range p.Warm {
		if w.State == string(api.StateFailed) {
			a.trouble(w.Name + " failed: " + w.Reason + "; see what it said: fluxctl fleet console " + w.Name)
		}
	}
}

func rollWords(r *api.Roll) string {
	if r == nil {
		return ""
	}
	return r.State + ", from " + r.From
}

func claimWords(s api.PoolStatus) string {
	words := fmt.Sprintf("%d in 24 h", s.Claimed24h)
	if s.WarmHitRate != nil {
		words += fmt.Sprintf("; %.0f %% of the launches that matched", *s.WarmHitRate*100)
	}
	return words
}

func keptWords(secs int64, what string) string {
	if secs == 0 {
		return ""
	}
	return what + (time.Duration(secs) * time.Second).String()
}

func rotateWords(on bool) string {
	if !on {
		return ""
	}
	return "made new when a VM is taken"
}

func (a *app) createPool() *cobra.Command {
	var req api.PoolRequest
	var minReady, maxTotal int
	var memory mibValue
	var disk gibValue
	var selector []string
	var keepFailed, maxAge durationValue
	cmd := &cobra.Command{
		Use: "pool-create NAME --image IMAGE", Short: "Keep VMs of an image booted and ready to be taken",
		Example: `  fluxctl fleet pool-create ios-ci --image macos-27-xcode --min-ready 2
  fluxctl fleet pool-create linux-ci --image debian-13 --min-ready 4 --max 16 --vcpus 2 --memory 4G --node-selector zone=lab`,
		Args: takes("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := cmd.Flags()
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		if req.Name = args[0]; req.Image == "" {
			return usagef("say what the pool keeps booted: --image IMAGE")
		}
		if flags.Changed("min-ready") {
			req.MinReady = &minReady
		}
		if flags.Changed("max") {
			req.MaxTotal = &maxTotal
		}
		req.MemoryMiB, req.DiskSizeGiB = int64(memory), int64(disk)
		req.KeepFailedSeconds, req.MaxAgeSeconds = keepFailed.seconds(), maxAge.seconds()
		var err error
		if req.NodeSelector, err = pairs("node-selector", selector); err != nil {
			return err
		}
		if err := req.Check(); err != nil {
			return err
		}
		p, err := during(ctx, a, req.Name, func(ctx context.Context) (api.Pool, error) { return c.CreatePool(ctx, req, "") })
		if err != nil {
			return err
		}
		if ok, err := a.json(p); ok {
			return err
		}
		a.done(fmt.Sprintf("Created warm pool %s: %s.", p.Name, keepsWords(p)), p.Note)
		return nil
	})
	flags.SortFlags = false
	flags.StringVar(&req.Image, "image", "", "catalog name of the `IMAGE` to keep booted")
	flags.IntVar(&minReady, "min-ready", 1, "`NUMBER` of VMs to keep ready; 0 pauses the pool")
	flags.IntVar(&maxTotal, "max", 0, "most `VMs`, counting those taken and still running (default 4 × min-ready, at least min-ready + 4)")
	flags.Var((*vcpusValue)(&req.VCPUs), "vcpus", "`NUMBER` of vCPUs of each (default the image's)")
	flags.Var(&memory, "memory", "memory of each, such as 16G (default the image's)")
	flags.Var(&disk, "disk", "disk size of each, such as 64G (default the image's)")
	flags.StringVar(&req.Tenant, "tenant", "", "make it this `TENANT`'s pool (operator only)")
	flags.StringArrayVar(&selector, "node-selector", nil, "only on nodes with this label, `KEY=VALUE`; may be repeated")
	flags.StringArrayVar(&req.Nodes, "node", nil, "only on this `NODE`; may be repeated")
	flags.StringVar(&req.Readiness, "readiness", "", "`WHEN` a VM counts as ready: agent, once its agent answers, or running (default agent where the image has one)")
	flags.Var(&keepFailed, "keep-failed", "keep the last VM that failed for this time, for its console, such as 1h")
	flags.Var(&maxAge, "max-age", "replace VMs that have waited longer than this, such as 1d")
	flags.BoolVar(&req.RotateIdentity, "rotate-identity", false, "give each VM that is taken a machine id and SSH host keys of its own")
	a.completeFlag(cmd, "image", a.imageNames)
	a.completeFlag(cmd, "node", a.nodeNames)
	a.completeFlag(cmd, "tenant", a.tenantNames)
	fixed(cmd, "readiness", api.ReadinessAgent, api.ReadinessRunning)
	return cmd
}

// keepsWords says what a pool keeps, as in "keeps 2 of macos-27-xcode booted (6 vCPUs, 16 GiB each)".
func keepsWords(p api.Pool) string {
	if p.MinReady == 0 {
		return "paused, keeps nothing booted until --min-ready is above 0"
	}
	return fmt.Sprintf("keeps %d of %s booted (%s each)", p.MinReady, p.Image, sizeWords(p.Size.VCPUs, p.Size.MemoryMiB))
}

func (a *app) setPool() *cobra.Command {
	var minReady, maxTotal int
	var selector, nodes []string
	var anyNode bool
	var keepFailed, maxAge durationValue
	cmd := &cobra.Command{
		Use: "pool-set NAME", Short: "Change how many VMs a warm pool keeps, and where",
		Long: "Change how many VMs a warm pool keeps, and where. A failing pool tries again at once. Image and size never change\nthis way: pool-roll moves a pool to another image.",
		Example: `  fluxctl fleet pool-set ios-ci --min-ready 4
  fluxctl fleet pool-set ios-ci --min-ready 0        # pauses it
  fluxctl fleet pool-set ios-ci --max 12 --node-selector zone=lab`,
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.poolNames, 1),
	}
	flags := cmd.Flags()
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		var p api.PoolPatch
		if flags.Changed("min-ready") {
			p.MinReady = api.Some(minReady)
		}
		if flags.Changed("max") {
			p.MaxTotal = api.Some(maxTotal)
		}
		if flags.Changed("node-selector") {
			terms, err := pairs("node-selector", selector)
			if err != nil {
				return err
			}
			p.NodeSelector = api.Some(terms)
		}
		if flags.Changed("node") {
			p.Nodes = api.Some(nodes)
		}
		if anyNode && (p.NodeSelector.Set || p.Nodes.Set) {
			return usagef("give --any-node, or --node and --node-selector, not both")
		}
		if anyNode {
			p.NodeSelector, p.Nodes = api.Null[map[string]string](), api.Null[[]string]()
		}
		if flags.Changed("keep-failed") {
			p.KeepFailedSeconds = api.Some(keepFailed.seconds())
		}
		if flags.Changed("max-age") {
			p.MaxAgeSeconds = api.Some(maxAge.seconds())
		}
		if !p.MinReady.Set && !p.MaxTotal.Set && !p.NodeSelector.Set && !p.Nodes.Set && !p.KeepFailedSeconds.Set && !p.MaxAgeSeconds.Set {
			return usagef("say what to change: --min-ready, --max, --node-selector, --node, --any-node, --keep-failed or --max-age")
		}
		if err := p.Check(); err != nil {
			return err
		}
		pool, err := during(ctx, a, args[0], func(ctx context.Context) (api.Pool, error) { return c.PatchPool(ctx, args[0], p) })
		if err != nil {
			return err
		}
		if ok, err := a.json(pool); ok {
			return err
		}
		a.done(fmt.Sprintf("Changed warm pool %s: %s.", pool.Name, keepsWords(pool)), poolDetail(pool))
		return nil
	})
	flags.SortFlags = false
	flags.IntVar(&minReady, "min-ready", 0, "`NUMBER` of VMs to keep ready; 0 pauses the pool")
	flags.IntVar(&maxTotal, "max", 0, "most `VMs`, counting those taken and still running")
	flags.StringArrayVar(&selector, "node-selector", nil, "only on nodes with this label, `KEY=VALUE`; may be repeated; replaces the selector")
	flags.StringArrayVar(&nodes, "node", nil, "only on this `NODE`; may be repeated; replaces the list")
	flags.Var(&keepFailed, "keep-failed", "keep the last VM that failed for this time, for its console; 0s keeps none")
	flags.Var(&maxAge, "max-age", "replace VMs that have waited longer than this; 0s never does")
	flags.BoolVar(&anyNode, "any-node", false, "on any node again: drops the selector and the list")
	a.completeFlag(cmd, "node", a.nodeNames)
	return cmd
}

func poolDetail(p api.Pool) string {
	out := fmt.Sprintf("%d at most with those taken", p.MaxTotal)
	if len(p.Nodes) > 0 {
		out += "; nodes " + strings.Join(p.Nodes, ", ")
	}
	if len(p.NodeSelector) > 0 {
		out += "; node selector " + labelWords(p.NodeSelector)
	}
	return out
}

func (a *app) rollPool() *cobra.Command {
	var req api.RollRequest
	var unavailable int
	cmd := &cobra.Command{
		Use: "pool-roll NAME --image IMAGE | --abort", Short: "Move a warm pool to another image, a few VMs at a time",
		Example: `  fluxctl fleet pool-roll ios-ci --image macos-27-xcode-2
  fluxctl fleet pool-roll ios-ci --image macos-27-xcode-2 --max-unavailable 2 --stale-use never
  fluxctl fleet pool-roll ios-ci --abort                    # back to the image before`,
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.poolNames, 1),
	}
	flags := cmd.Flags()
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		if req.Image == "" && !req.Abort {
			return usagef("say which image to move to: --image IMAGE, or --abort to go back")
		}
		if flags.Changed("max-unavailable") {
			req.MaxUnavailable = &unavailable
		}
		if err := req.Check(); err != nil {
			return err
		}
		p, err := during(ctx, a, args[0], func(ctx context.Context) (api.Pool, error) { return c.RollPool(ctx, args[0], req) })
		if err != nil {
			return err
		}
		if ok, err := a.json(p); ok {
			return err
		}
		verb, to := "Rolling", req.Image
		if req.Abort {
			verb, to = "Rolling back", p.Image
		}
		a.done(fmt.Sprintf("%s warm pool %s to %s: %s to replace.", verb, p.Name, to, count(p.Status.Stale, "VM")), "Watch it: fluxctl fleet pool "+p.Name)
		return nil
	})
	flags.SortFlags = false
	flags.StringVar(&req.Image, "image", "", "catalog name of the `IMAGE` to move to")
	flags.BoolVar(&req.Abort, "abort", false, "go back to the image that the pool is rolling away from")
	flags.IntVar(&unavailable, "max-unavailable", 1, "`NUMBER` of VMs replaced at a time")
	flags.StringVar(&req.StaleUse, "stale-use", "", "`RULE` for VMs of the old image: allow launches to take them, or never (default allow)")
	a.completeFlag(cmd, "image", a.imageNames)
	fixed(cmd, "stale-use", "allow", "never")
	return cmd
}

func (a *app) removePool() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "pool-rm NAME", Short: "Delete a warm pool and its warm VMs; taken VMs keep running",
		Example: "  fluxctl fleet pool-rm ios-ci\n  fluxctl fleet pool-rm ios-ci --yes",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.poolNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.confirm(ctx, yes, fmt.Sprintf("Delete warm pool %s and its warm VMs?", args[0])); err != nil {
				return err
			}
			if err := a.perform(ctx, args[0]+" to go", func(ctx context.Context) error { return c.DeletePool(ctx, args[0]) }); err != nil {
				return err
			}
			if ok, err := a.json(map[string][]string{"deleted": {args[0]}}); ok {
				return err
			}
			a.done("Deleted warm pool "+args[0], "Its warm VMs are being deleted; taken ones keep running")
			return nil
		}),
	}
	yesFlag(cmd, &yes)
	return cmd
}

func yesFlag(cmd *cobra.Command, yes *bool) {
	cmd.Flags().BoolVarP(yes, "yes", "y", false, "do it without asking")
}
