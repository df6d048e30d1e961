package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) activity() *cobra.Command {
	var most int
	var filter client.ActivityFilter
	cmd := &cobra.Command{
		Use: "activity", Short: "Show who did what, with what result; the latest last",
		Example: `  fluxctl fleet activity
  fluxctl fleet activity --tenant acme --limit 200 -o wide
  fluxctl fleet activity --actor warm-pool --target ios-ci`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			if most < 1 {
				return usagef("--limit must be at least 1")
			}
			items, err := list(ctx, a, "the activity log", func(ctx context.Context) iter.Seq2[api.Activity, error] {
				return limited(c.Activity(ctx, filter), most)
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Activity]{Items: items}); ok {
				return err
			}
			if len(items) == 0 {
				if filter == (client.ActivityFilter{}) {
					a.note("Nothing has been done yet.")
				} else {
					a.note("Nothing of that kind has been done yet.")
				}
				return nil
			}
			g := a.grid("TIME", "ACTOR", "ACTION", "TARGET", "OUTCOME").wider("DETAIL", "ID")
			for _, i := range slices.Backward(items) { // the list begins with the newest
				detail, _ := json.Marshal(i.Detail) // came as JSON and goes back as it
				g.row(i.At.Std().Format("2006-01-02 15:04:05"), i.Actor, i.Action, i.Target, i.Outcome, string(detail), i.ID)
			}
			g.print()
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&filter.Tenant, "tenant", "", "only what concerns this `TENANT`")
	flags.StringVar(&filter.Actor, "actor", "", "only what this `ACTOR` did, such as warm-pool, lease or a tenant")
	flags.StringVar(&filter.Action, "action", "", "only this `ACTION`, such as 'POST /fleet/vms'")
	flags.StringVar(&filter.Target, "target", "", "only what was done to the thing of this `NAME`")
	flags.IntVar(&most, "limit", 50, "show this `NUMBER` of them")
	a.completeFlag(cmd, "tenant", a.tenantNames)
	return cmd
}

// limited ends a list after its first items.
func limited[T any](items iter.Seq2[T, error], most int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		n := 0
		for item, err := range items {
			if !yield(item, err) {
				return
			}
			if n++; n == most {
				return
			}
		}
	}
}

// A stream of past events that is silent for so long counts as read to its end; the first event may take longer.
const (
	streamPause = time.Second
	streamStart = 3 * time.Second
)

// pastEvents shows what happened after an event, up to now.
func (a *app) pastEvents(ctx context.Context, c *client.Client, from string) error {
	quiet, cancel := context.WithCancel(ctx)
	defer cancel()
	pause := time.AfterFunc(streamStart, cancel)
	defer pause.Stop()
	err := a.printEvents(c.Events(quiet, from), func() { pause.Reset(streamPause) })
	if quiet.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

func (a *app) events() *cobra.Command {
	var follow bool
	var from string
	cmd := &cobra.Command{
		Use: "events", Short: "Show the changes that the fleet still remembers, or follow them",
		Example: `  fluxctl fleet events
  fluxctl fleet events --follow
  fluxctl fleet events --follow --from 1042.0 -o json`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			if follow {
				if from == "" {
					from = client.FromNow
				}
				err := a.printEvents(c.Events(ctx, from), func() {})
				if ctx.Err() != nil {
					return nil // told to stop
				}
				return err
			}
			if from != "" {
				return a.pastEvents(ctx, c, from)
			}
			err := a.pastEvents(ctx, c, "0.0") // before the first event
			if isCode(err, api.CodeCursorGone) {
				err = a.pastEvents(ctx, c, "") // the first ones are forgotten
			}
			return err
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens from now until interrupted")
	cmd.Flags().StringVar(&from, "from", "", "begin after the event with this `ID`")
	return cmd
}

// eventLine is an event as -o json prints it, one a line.
type eventLine struct {
	ID     string          `json:"id"`
	Event  string          `json:"event"`
	Action string          `json:"action"`
	Object json.RawMessage `json:"object"`
}

func (a *app) printEvents(events iter.Seq2[client.Event, error], seen func()) error {
	for e, err := range events {
		if isCode(err, api.CodeCursorGone) {
			return &hintError{err, "leave --from out to see what is still remembered"}
		}
		if err != nil {
			return err
		}
		seen()
		if a.output == outputJSON {
			err = json.NewEncoder(a.env.Out).Encode(eventLine{e.ID, e.Kind, e.Action, e.Object})
		} else {
			_, err = fmt.Fprintln(a.env.Out, a.eventText(e))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// eventText is one event on one line; what an object says about itself depends on its kind.
func (a *app) eventText(e client.Event) string {
	var object struct {
		Name     string          `json:"name"`
		ID       string          `json:"id"`
		Node     string          `json:"node"`
		State    string          `json:"state"`
		Reason   string          `json:"reason"`
		MinReady *int            `json:"min_ready"`
		Status   *api.PoolStatus `json:"status"`
		Leader   string          `json:"leader"`
	}
	if err := json.Unmarshal(e.Object, &object); err != nil && len(e.Object) > 0 {
		return oneLine(fmt.Sprintf("%-8s %-7s %s %s", e.ID, e.Kind, e.Action, errors.Unwrap(err)))
	}
	name := object.Name
	if name == "" {
		name = object.ID
	}
	text := oneLine(fmt.Sprintf("%-10s %-7s %-7s  %s", e.ID, e.Kind, e.Action, name))
	state := object.State
	if object.Status != nil && object.MinReady != nil {
		state = string(object.Status.State)
	}
	if state != "" && e.Action != "deleted" {
		text += "  " + a.paint.state(oneLine(state))
	}
	for _, more := range []struct{ before, value string }{{"on", object.Node}, {"leader", object.Leader}} {
		if more.value != "" {
			text += " " + more.before + " " + oneLine(more.value)
		}
	}
	if object.Status != nil && object.MinReady != nil {
		text += fmt.Sprintf(" %d/%d", object.Status.Ready, *object.MinReady)
	}
	if object.Reason != "" {
		text += " (" + oneLine(object.Reason) + ")"
	}
	return text
}
