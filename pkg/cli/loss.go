package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// loss is what a verb for a node that is gone says and does.
type loss struct {
	use, short, long, question, done, detail string
	give                                     func(*client.Client) func(ctx context.Context, name, reason string) (api.Node, error)
}

func (a *app) loseNode() *cobra.Command {
	return a.giveUp(loss{use: "node-lost", short: "Give up a silent node that will not come back",
		long: "Give up a silent node: its reschedulable VMs boot elsewhere, its pools refill, its other VMs are lost and no longer\n" +
			"count or cost anything. Should the node come back with them, those that are not elsewhere by then are taken over again.",
		question: "Give up %s and all VMs on it?", done: "Gave up %s: its VMs are lost or boot elsewhere", detail: "Forget it: fluxctl fleet node-rm %s",
		give: func(c *client.Client) func(context.Context, string, string) (api.Node, error) { return c.LoseNode }})
}

func (a *app) replaceNode() *cobra.Command {
	return a.giveUp(loss{use: "node-replace", short: "Let a host made anew take over the name of a silent node",
		long: "Give up a silent node like node-lost does, and void its identity: the next host that joins under its name, with a join\n" +
			"token, is the node from then on. For a host with a new disk, or one that has lost its data directory.",
		question: "Give up what %s was, and all VMs on it?", done: "%s may be taken over by the next host that joins under its name", detail: "Make a token for it: fluxctl cluster join-token --pattern '%s'",
		give: func(c *client.Client) func(context.Context, string, string) (api.Node, error) { return c.ReplaceNode }})
}

func (a *app) giveUp(l loss) *cobra.Command {
	var yes bool
	var reason string
	cmd := &cobra.Command{
		Use: l.use + " NAME", Short: l.short, Long: l.long,
		Example: fmt.Sprintf("  fluxctl fleet %[1]s studio-1 --yes\n  fluxctl fleet %[1]s studio-1 --reason \"the disk is broken\"", l.use),
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.confirm(ctx, yes, fmt.Sprintf(l.question, args[0])); err != nil {
				return err
			}
			n, err := during(ctx, a, args[0], func(ctx context.Context) (api.Node, error) { return l.give(c)(ctx, args[0], reason) })
			return a.doneNode(n, err, fmt.Sprintf(l.done, args[0]), fmt.Sprintf(l.detail, args[0]))
		}),
	}
	cmd.Flags().StringVar(&reason, "reason", "", "say why: a `TEXT` for whoever looks next")
	yesFlag(cmd, &yes)
	return cmd
}

func (a *app) removeNode() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "node-rm NAME", Short: "Forget a node that holds no VMs, or is lost",
		Example: "  fluxctl fleet node-rm studio-1",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.nodeNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.confirm(ctx, yes, fmt.Sprintf("Forget %s?", args[0])); err != nil {
				return err
			}
			_, err := during(ctx, a, args[0], func(ctx context.Context) (struct{}, error) { return struct{}{}, c.DeleteNode(ctx, args[0]) })
			if err != nil {
				return err
			}
			if ok, err := a.json(map[string][]string{"deleted": args}); ok {
				return err
			}
			a.done("Forgot node "+args[0], "A host that reports under that name needs a join token again")
			return nil
		}),
	}
	yesFlag(cmd, &yes)
	return cmd
}
