package cli

import (
	"context"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// completeWithin is how long the shell may be kept waiting for names; without an answer there are none.
const completeWithin = 1500 * time.Millisecond

// names lists what an argument or flag may be called.
type names func(ctx context.Context) []string

// completeArgs completes up to most arguments, each name once.
func (a *app) completeArgs(list names, most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		out := slices.DeleteFunc(a.namesFor(cmd, list), func(s string) bool { return slices.Contains(args, s) })
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completeFlag(cmd *cobra.Command, flag string, list names) {
	must(cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return a.namesFor(cmd, list), cobra.ShellCompDirectiveNoFileComp
	}))
}

// fixed completes a flag from a closed list.
func fixed(cmd *cobra.Command, flag string, values ...string) {
	must(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// must holds for wiring that cannot fail at run time: a flag that is not defined is a fault of this package.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (a *app) namesFor(cmd *cobra.Command, list names) []string {
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	return list(ctx)
}

func (a *app) contextNames(context.Context) []string {
	f, err := a.readContexts()
	if err != nil {
		return nil
	}
	return slices.Sorted(maps.Keys(f.Context))
}

func (a *app) vmNames(ctx context.Context) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.VM, error] { return c.VMs(ctx, completeFilter()) },
		func(v api.VM) string { return v.Name })
}

func (a *app) poolNames(ctx context.Context) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.Pool, error] { return c.Pools(ctx, completeFilter()) },
		func(p api.Pool) string { return p.Name })
}

func (a *app) nodeNames(ctx context.Context) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.Node, error] { return c.Nodes(ctx, completeFilter()) },
		func(n api.Node) string { return n.Name })
}

func (a *app) imageNames(ctx context.Context) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.Image, error] { return c.Images(ctx) },
		func(i api.Image) string { return i.Name })
}

func (a *app) tenantNames(ctx context.Context) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.Tenant, error] { return c.Tenants(ctx) },
		func(t api.Tenant) string { return t.Name })
}

func (a *app) leaseIDs(ctx context.Context) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.Lease, error] { return c.Leases(ctx, completeFilter()) },
		func(l api.Lease) string { return l.ID })
}

func (a *app) keyIDs(ctx context.Context, k *keyring) []string {
	return fleetNames(a, func(c *client.Client) iter.Seq2[api.Key, error] { return k.list(ctx, c) },
		func(key api.Key) string { return key.ID })
}

func (a *app) machineNames(ctx context.Context) []string {
	h, err := a.host()
	if err != nil {
		return nil
	}
	return collectNames(h.Machines(ctx), func(m api.Machine) string { return m.Name })
}

// completeFilter lets the nearest replica answer: a name a moment late is better than a shell that waits.
func completeFilter() client.Filter { return client.Filter{Stale: true, PageSize: 500} }

func fleetNames[T any](a *app, list func(*client.Client) iter.Seq2[T, error], name func(T) string) []string {
	c, err := a.fleet()
	if err != nil {
		return nil
	}
	return collectNames(list(c), name)
}

func collectNames[T any](items iter.Seq2[T, error], name func(T) string) []string {
	var out []string
	for item, err := range items {
		if err != nil {
			break
		}
		out = append(out, name(item))
	}
	slices.Sort(out)
	return out
}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion bash|zsh|fish", Short: "Print the completion script of a shell",
		Long: "The script completes commands, flags, and the names of VMs, pools, nodes, images and tenants from the fleet.",
		Example: `  source <(fluxctl completion bash)
  fluxctl completion zsh > "${fpath[1]}/_fluxctl"
  fluxctl completion fish > ~/.config/fish/completions/fluxctl.fish`,
		Args: takes("bash, zsh or fish"), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(a.env.Out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(a.env.Out)
			case "fish":
				return cmd.Root().GenFishCompletion(a.env.Out, true)
			}
			return usagef("there is no completion for %q; choose bash, zsh or fish", args[0])
		},
	}
}
