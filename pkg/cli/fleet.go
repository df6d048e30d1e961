package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) fleetCommand() *cobra.Command {
	fleet := a.group("fleet", "VMs, warm pools, nodes, tenants and leases of the fleet", "",
		`  fluxctl fleet launch build-42 --image macos-27-xcode --ttl 2h
  fluxctl fleet exec build-42 -- uname -a
  fluxctl fleet pools`)
	for _, topic := range []struct {
		title string
		verbs []*cobra.Command
	}{
		{"VMs:", []*cobra.Command{a.launch(), a.vms(), a.vm(), a.removeVMs(), a.execVM(), a.fleetConsole()}},
		{"Warm pools:", []*cobra.Command{a.pools(), a.pool(), a.createPool(), a.setPool(), a.rollPool(), a.removePool()}},
		{"Nodes and leases:", []*cobra.Command{a.nodes(), a.node(), a.cordon(), a.uncordon(), a.drain(), a.loseNode(), a.replaceNode(), a.removeNode(), a.leases(), a.lease(), a.setLease(), a.endLease(), a.scrub()}},
		{"Images:", []*cobra.Command{a.images(), a.addImage(), a.removeImage()}},
		{"Tenants:", []*cobra.Command{a.tenants(), a.tenant(), a.createTenant(), a.setTenant(), a.removeTenant(), a.keys(), a.createKey(), a.revokeKey(), a.policy()}},
		{"Money:", []*cobra.Command{a.prices(), a.usage(), a.ledger(), a.adjustLedger()}},
		{"The whole fleet:", []*cobra.Command{a.capacity(), a.activity(), a.events()}},
	} {
		fleet.AddGroup(&cobra.Group{ID: topic.title, Title: topic.title})
		for _, verb := range topic.verbs {
			verb.GroupID = topic.title
			fleet.AddCommand(verb)
		}
	}
	return fleet
}

// onFleet is a command's work with a client of the fleet.
func (a *app) onFleet(work func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.fleet()
		if err != nil {
			return err
		}
		return hinted(work(cmd.Context(), c, args), "FLUXVM_FLEET_URL or a context names the replicas; to try a fleet here: fluxvm-agent dev")
	}
}

// list reads a whole list, showing that it takes its time when it does.
func list[T any](ctx context.Context, a *app, what string, items func(context.Context) iter.Seq2[T, error]) ([]T, error) {
	return during(ctx, a, what, func(ctx context.Context) ([]T, error) { return client.All(items(ctx)) })
}

func isCode(err error, code api.Code) bool { return errors.Is(err, &api.Error{Code: code}) }

// hinted adds the way on to errors that a person meets before anything works.
func hinted(err error, whenSilent string) error {
	var silent *client.UnreachableError
	var already *hintError
	switch {
	case err == nil, errors.As(err, &already):
		return err
	case isCode(err, api.CodeUnauthenticated):
		return &hintError{err, "set FLUXVM_TOKEN or FLUXVM_TOKEN_FILE, or choose a context: fluxctl context use NAME"}
	case errors.As(err, &silent) && silent.Unknown:
		return &hintError{err, "it may have been carried out: look before doing it again"}
	case errors.As(err, &silent) && !errors.Is(err, context.Canceled):
		return &hintError{err, whenSilent}
	}
	return err
}

// labelWords shows labels as they are typed: k=v, sorted.
func labelWords(labels map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

// deref gives the text, empty for none.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// owner is the tenant of a thing, or the operator.
func owner(tenant *string) string {
	if tenant == nil {
		return "operator"
	}
	return *tenant
}

// moment shows an instant with how far from now it is.
func (a *app) moment(t api.Time) string {
	if t.IsZero() {
		return ""
	}
	now := api.TimeOf(a.env.Now())
	text := t.Std().Format("2006-01-02 15:04:05 UTC")
	if t > now {
		return fmt.Sprintf("%s (in %s)", text, shortDuration(t.Sub(now)))
	}
	return fmt.Sprintf("%s (%s ago)", text, shortDuration(now.Sub(t)))
}
