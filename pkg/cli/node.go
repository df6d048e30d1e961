package cli

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) nodes() *cobra.Command {
	return &cobra.Command{
		Use: "nodes", Short: "List the nodes and what is free on them",
		Example: "  fluxctl fleet nodes\n  fluxctl fleet nodes -o wide",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			nodes, err := list(ctx, a, "the list of nodes", func(ctx context.Context) iter.Seq2[api.Node, error] { return c.Nodes(ctx, client.Filter{}) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Node]{Items: nodes}); ok {
				return err
			}
			if len(nodes) == 0 {
				a.note("No nodes. Start one: fluxvm-agent node --central URL --join-token-file FILE (fluxctl cluster join-token makes the token)")
				return nil
			}
			g := a.grid("NAME", "STATE", "VMS", "FREE-VCPUS", "FREE-MEMORY", "MACOS", "PRESSURE", "WARM", "LEASE", "SEEN", "WHY").
				wider("BACKENDS", "VCPUS", "MEMORY", "AVAILABLE", "OVERCOMMIT", "CHIP", "LABELS", "URL")
			for _, n := range nodes {
				g.row(n.Name, nodeState(n), strconv.Itoa(n.VMCount), strconv.Itoa(n.FreeVCPUs), sizeMiB(n.FreeMemoryMiB), macosWords(n), deref(n.Density.HostPressureLevel),
					strconv.Itoa(n.Density.WarmSlotsReady), shortID(deref(n.Lease)), since(n.LastSeenAt, a.env.Now()), nodeWhy(n),
					strings.Join(n.Backends, ","), strconv.Itoa(n.VCPUsTotal), sizeMiB(n.MemoryMiBTotal), sizeMiB(n.Density.HostMemAvailableMiB), strconv.Itoa(n.CPUOvercommit), chipWords(n), labelWords(n.Labels), n.URL)
			}
			g.print()
			return nil
		}),
	}
}

// nodeWhy is why a node is as it is: what somebody wrote, who cordoned it, how far its drain is.
func nodeWhy(n api.Node) string {
	parts := []string{}
	if n.Reason != "" {
		parts = append(parts, n.Reason)
	}
	if n.CordonedBy != "" {
		parts = append(parts, "by "+n.CordonedBy)
	}
	if n.Drain != nil {
		parts = append(parts, drainWords(*n.Drain))
	}
	if level := n.Density.HostPressureLevel; level != nil && *level == api.PressureCritical {
		parts = append(parts, "critical memory pressure: gets no VMs")
	}
	return strings.Join(parts, "; ")
}

// shortID is enough of an id to tell it from others in a table: its end, for ids begin with the time.
func shortID(id string) string { return id[max(0, len(id)-8):] }

func chipWords(n api.Node) string {
	if n.Apple == nil {
		return ""
	}
	return n.Apple.Chip
}

// nodeState is what matters first about a node: its health when that is bad, else whether it takes VMs.
func nodeState(n api.Node) string {
	switch {
	case n.State != api.NodeHealthy:
		return string(n.State)
	case n.Draining:
		return "draining"
	case n.Cordoned:
		return "cordoned"
	}
	return string(n.State)
}

func macosWords(n api.Node) string {
	if n.Apple == nil {
		return ""
	}
	limit := cmp.Or(n.Apple.MacOSLimit, api.MacOSPerHost)
	return fmt.Sprintf("%d/%d", limit-min(limit, n.FreeMacOS), limit)
}

func (a *app) node() *cobra.Command {
	return &cobra.Command{
		Use: "node NAME", Short: "Show one node and its VMs",
		Example: "  fluxctl fleet node studio-1",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := during(ctx, a, args[0], func(ctx context.Context) (api.Node, error) { return c.Node(ctx, args[0]) })
			if err != nil {
				return err
			}
			if ok, err := a.json(n); ok {
				return err
			}
			vms, err := list(ctx, a, "its VMs", func(ctx context.Context) iter.Seq2[api.VM, error] { return c.NodeVMs(ctx, n.Name) })
			if err != nil {
				return err
			}
			a.showNode(n, vms)
			return nil
		}),
	}
}

func (a *app) showNode(n api.Node, vms []api.VM) {
	apple := ""
	if n.Apple != nil {
		apple = strings.TrimSpace(n.Apple.Chip + " " + macosWords(n) + " macOS guests")
	}
	a.fields(n.Name,
		field{"state", nodeState(n)}, field{"reason", n.Reason}, field{"cordoned by", n.CordonedBy}, field{"drain", drainField(n)}, field{"lease", deref(n.Lease)},
		field{"vCPUs", fmt.Sprintf("%d free of %d × %d", n.FreeVCPUs, n.VCPUsTotal, max(1, n.CPUOvercommit))},
		field{"memory", fmt.Sprintf("%s free of %s", sizeMiB(n.FreeMemoryMiB), sizeMiB(n.MemoryMiBTotal))},
		field{"Mac", apple}, field{"pressure", deref(n.Density.HostPressureLevel)},
		field{"available", sizeMiB(n.Density.HostMemAvailableMiB)}, field{"warm", count(n.Density.WarmSlotsReady, "VM") + " ready"},
		field{"sandboxes", fmt.Sprintf("%d active, %d paused, %d hibernated", n.Density.ActiveSandboxes, n.Density.PausedSandboxes, n.Density.HibernatedSandboxes)},
		field{"backends", strings.Join(n.Backends, ", ")}, field{"confined by", confinementWords(n.Confinement)}, field{"labels", labelWords(n.Labels)},
		field{"seen", a.moment(n.LastSeenAt)}, field{"url", n.URL}, field{"uuid", n.UUID})
	if len(vms) == 0 {
		return
	}
	fmt.Fprintln(a.env.Out)
	g := a.grid("VM", "STATE", "IMAGE", "SIZE", "WARM", "AGE").wider("ID", "TENANT", "REASON")
	for _, v := range vms {
		g.row(v.Name, string(v.State), v.Image, sizeWords(v.VCPUs, v.MemoryMiB), warmWords(v), since(v.CreatedAt, a.env.Now()), v.ID, owner(v.Tenant), v.Reason)
	}
	g.print()
}

// confinementWords is what holds each backend's VMs.
func confinementWords(by map[string][]string) string {
	var out []string
	for _, backend := range slices.Sorted(maps.Keys(by)) {
		out = append(out, backend+": "+strings.Join(by[backend], " "))
	}
	return strings.Join(out, "; ")
}

func drainField(n api.Node) string {
	if n.Drain == nil {
		return ""
	}
	return drainWords(*n.Drain)
}

func (a *app) cordon() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "cordon NAME", Short: "Send new VMs elsewhere; those on the node stay",
		Example: `  fluxctl fleet cordon studio-1 --reason "macOS update"`,
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			p := api.NodePatch{Cordoned: api.Some(true)}
			if reason != "" {
				p.Reason = api.Some(reason)
			}
			if err := p.Check(); err != nil {
				return err
			}
			n, err := during(ctx, a, args[0], func(ctx context.Context) (api.Node, error) { return c.PatchNode(ctx, args[0], p) })
			return a.doneNode(n, err, "Cordoned "+args[0]+": new VMs go elsewhere", count(n.VMCount, "VM")+" on it keep running; undo: fluxctl fleet uncordon "+args[0])
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "say why: a `TEXT` for whoever looks next")
	return cmd
}

func (a *app) uncordon() *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NAME", Short: "Let new VMs on the node again; ends a drain",
		Example: "  fluxctl fleet uncordon studio-1",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := during(ctx, a, args[0], func(ctx context.Context) (api.Node, error) {
				if err := c.Uncordon(ctx, args[0]); err != nil {
					return api.Node{}, err
				}
				return c.Node(ctx, args[0])
			})
			return a.doneNode(n, err, "Uncordoned "+args[0]+": new VMs may run there", "")
		}),
	}
}

func (a *app) drain() *cobra.Command {
	var yes, force, wait bool
	var reason string
	var deadline durationValue
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Cordon a node and remove the VMs that may be removed",
		Long: `Cordon a node and empty it: reschedulable VMs boot elsewhere, warm ones and those with a TTL are removed. The others are
listed as blocking; --force deletes them as well, at the deadline if there is one. Run it again to change deadline or
force; fluxctl fleet uncordon ends the drain.`,
		Example: `  fluxctl fleet drain studio-1 --reason "macOS update"
  fluxctl fleet drain studio-1 --deadline 2h --force --yes
  fluxctl fleet drain studio-1 --wait --yes`,
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			how := api.DrainRequest{DeadlineSeconds: deadline.seconds(), Force: force}
			if reason != "" {
				how.Reason = &reason
			}
			if err := how.Check(); err != nil {
				return err
			}
			what := "its ephemeral VMs"
			if force {
				what = "all its VMs"
			}
			if err := a.confirm(ctx, yes, fmt.Sprintf("Drain %s and delete %s?", args[0], what)); err != nil {
				return err
			}
			n, err := during(ctx, a, args[0], func(ctx context.Context) (api.Node, error) { return c.Drain(ctx, args[0], how) })
			if err == nil && wait {
				n, err = a.awaitDrain(ctx, c, n)
			}
			if err != nil {
				return err
			}
			if ok, err := a.json(n); ok {
				return err
			}
			a.showDrain(n)
			return nil
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "say why: a `TEXT` for whoever looks next")
	cmd.Flags().Var(&deadline, "deadline", "when it is to be done, such as 2h")
	cmd.Flags().BoolVar(&force, "force", false, "delete what blocks, too: at the deadline, or at once without one")
	cmd.Flags().BoolVar(&wait, "wait", false, "return once nothing is left, or only what blocks")
	yesFlag(cmd, &yes)
	return cmd
}

// awaitDrain looks until the drain is done, has ended, or can get no further.
func (a *app) awaitDrain(ctx context.Context, c *client.Client, n api.Node) (api.Node, error) {
	for first := true; ; first = false {
		if d := n.Drain; d == nil || d.Done || d.ToDelete+d.ToMove == 0 && !(d.Force && !d.Overdue) {
			return n, nil
		} else if !first {
			a.note("%s: %s", n.Name, drainWords(*d))
		}
		timer := time.NewTimer(2 * time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return n, ctx.Err()
		case <-timer.C:
		}
		var err error
		if n, err = during(ctx, a, n.Name+" to be empty", func(ctx context.Context) (api.Node, error) { return c.Node(ctx, n.Name) }); err != nil {
			return n, err
		}
	}
}

// drainWords is how far a drain is, in a few words.
func drainWords(d api.NodeDrain) string {
	out := fmt.Sprintf("%d of %s left", d.ToDelete+d.ToMove+d.Blocked, count(d.Total, "VM"))
	for _, part := range []struct {
		n    int
		what string
	}{{d.ToDelete, "to delete"}, {d.ToMove, "to move"}, {d.Blocked, "blocking"}} {
		if part.n > 0 {
			out += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return out
}

func (a *app) showDrain(n api.Node) {
	d := n.Drain
	switch {
	case d == nil:
		a.done("The drain of " + n.Name + " has ended")
		return
	case d.Done:
		a.done("Drained "+n.Name+": no VMs left on it", "Undo: fluxctl fleet uncordon "+n.Name)
		return
	case d.Overdue:
		a.trouble("Draining " + n.Name + " is overdue: " + drainWords(*d))
	default:
		a.done("Draining " + n.Name + ": " + drainWords(*d))
	}
	if d.Deadline != 0 {
		a.details("Deadline " + a.moment(d.Deadline))
	}
	if len(d.Blocking) > 0 {
		g := a.grid("BLOCKING", "OWNER", "WHY").wider("ID")
		for _, b := range d.Blocking {
			g.row(b.Name, owner(b.Tenant), b.Why, b.ID)
		}
		g.print()
	}
	a.details("Watch it: fluxctl fleet node " + n.Name)
}

func (a *app) doneNode(n api.Node, err error, sentence, detail string) error {
	if err != nil {
		return err
	}
	if ok, err := a.json(n); ok {
		return err
	}
	a.done(sentence, detail)
	return nil
}

func (a *app) capacity() *cobra.Command {
	return &cobra.Command{
		Use: "capacity", Short: "Show what the fleet has and what is free",
		Example: "  fluxctl fleet capacity",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			k, err := during(ctx, a, "the fleet's capacity", func(ctx context.Context) (api.Capacity, error) { return c.Capacity(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(k); ok {
				return err
			}
			sentence := fmt.Sprintf("%d of %s healthy, %s", k.Healthy, count(k.Nodes, "node"), count(k.VMs, "VM"))
			if k.Healthy < k.Nodes || k.Nodes == 0 {
				a.trouble(sentence)
			} else {
				a.done(sentence)
			}
			g := a.grid("RESOURCE", "TOTAL", "USED", "FREE")
			g.row("vCPUs", strconv.Itoa(k.VCPUsTotal), strconv.Itoa(k.VCPUsTotal-k.VCPUsFree), strconv.Itoa(k.VCPUsFree))
			g.row("memory", sizeMiB(k.MemoryMiBTotal), sizeMiB(k.MemoryMiBTotal-k.MemoryMiBFree), sizeMiB(k.MemoryMiBFree))
			if k.MacOSTotal > 0 {
				g.row("macOS guests", strconv.Itoa(k.MacOSTotal), strconv.Itoa(k.MacOSTotal-k.MacOSFree), strconv.Itoa(k.MacOSFree))
			}
			g.print()
			return nil
		}),
	}
}
