package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) vms() *cobra.Command {
	var filter client.Filter
	var labels []string
	cmd := &cobra.Command{
		Use: "vms", Short: "List VMs, warm ones too",
		Example: `  fluxctl fleet vms
  fluxctl fleet vms --pool ios-ci --state running -o wide
  fluxctl fleet vms --label team=ios -o json`,
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
		var err error
		if filter.Labels, err = pairs("label", labels); err != nil {
			return err
		}
		vms, err := list(ctx, a, "the list of VMs", func(ctx context.Context) iter.Seq2[api.VM, error] { return c.VMs(ctx, filter) })
		if err != nil {
			return err
		}
		if ok, err := a.json(api.List[api.VM]{Items: vms}); ok {
			return err
		}
		if len(vms) == 0 {
			a.note("No VMs. Launch one: fluxctl fleet launch NAME --image IMAGE")
			return nil
		}
		g := a.grid("NAME", "STATE", "NODE", "IMAGE", "SIZE", "WARM", "AGE", "EXPIRES").
			wider("ID", "TENANT", "BACKEND", "IP", "DISK", "LABELS", "REASON")
		now := a.env.Now()
		for _, v := range vms {
			expires := until(v.ExpiresAt, now)
			if !v.ExpiresAt.IsZero() {
				expires = "in " + expires
			}
			g.row(v.Name, string(v.State), v.Node, v.Image, sizeWords(v.VCPUs, v.MemoryMiB), warmWords(v), since(v.CreatedAt, now), expires,
				v.ID, owner(v.Tenant), v.Backend, v.IP, diskWords(v.DiskSizeGiB), labelWords(v.Labels), v.Reason)
		}
		g.print()
		return nil
	})
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&filter.Node, "node", "", "only on this `NODE`")
	flags.StringVar(&filter.Pool, "pool", "", "only of this warm `POOL`")
	flags.StringVar(&filter.Tenant, "tenant", "", "only of this `TENANT`")
	flags.StringVar(&filter.State, "state", "", "only in this `STATE`, such as running")
	flags.StringArrayVar(&labels, "label", nil, "only with this label, `KEY=VALUE`; may be repeated")
	a.completeFlag(cmd, "node", a.nodeNames)
	a.completeFlag(cmd, "pool", a.poolNames)
	a.completeFlag(cmd, "tenant", a.tenantNames)
	fixed(cmd, "state", string(api.StatePlaced), string(api.StateBooting), string(api.StateRunning), string(api.StateDeleting),
		string(api.StateStopped), string(api.StatePaused), string(api.StateFailed), string(api.StateUnknown), string(api.StateLost))
	return cmd
}

// warmWords says what a VM has to do with a warm pool.
func warmWords(v api.VM) string {
	switch {
	case v.WarmPool != "":
		return v.WarmPool + ", " + spareWords(v)
	case v.ClaimedFrom != "":
		return "from " + v.ClaimedFrom
	}
	return ""
}

// spareWords is the state of a warm VM. One that runs and is neither ready nor booting never came up.
func spareWords(v api.VM) string {
	if v.WarmState == "" && v.State == api.StateRunning {
		return string(api.StateFailed)
	}
	return cmp.Or(v.WarmState, string(v.State))
}

func diskWords(gib int64) string {
	if gib == 0 {
		return ""
	}
	return sizeMiB(gib << 10)
}

func (a *app) vm() *cobra.Command {
	return &cobra.Command{
		Use: "vm NAME", Short: "Show one VM, by name or id",
		Example: "  fluxctl fleet vm build-42\n  fluxctl fleet vm build-42 -o json",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.vmNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			v, err := during(ctx, a, args[0], func(ctx context.Context) (api.VM, error) { return c.VM(ctx, args[0]) })
			if err != nil {
				return err
			}
			if ok, err := a.json(v); ok {
				return err
			}
			a.fields(v.Name,
				field{"state", string(v.State)}, field{"reason", v.Reason}, field{"node", v.Node}, field{"owner", owner(v.Tenant)},
				field{"image", v.Image}, field{"guest", v.GuestOS}, field{"size", sizeWords(v.VCPUs, v.MemoryMiB)}, field{"disk", diskWords(v.DiskSizeGiB)},
				field{"ip", v.IP}, field{"warm", warmWords(v)}, field{"cold", v.ColdReason}, field{"labels", labelWords(v.Labels)},
				field{"created", a.moment(v.CreatedAt)}, field{"ready", a.moment(v.ReadyAt)}, field{"claimed", a.moment(v.ClaimedAt)},
				field{"expires", a.moment(v.ExpiresAt)}, field{"reschedulable", yesWord(v.Reschedulable)}, field{"backend", v.Backend}, field{"id", v.ID})
			return nil
		}),
	}
}

func yesWord(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

func (a *app) removeVMs() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Delete VMs and their disks, without asking",
		Example: "  fluxctl fleet rm build-42\n  fluxctl fleet rm build-42 build-43",
		Args:    takes("NAME", "[NAME]…"), ValidArgsFunction: a.completeArgs(a.vmNames, 100),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			return a.removeEach(ctx, args, func(ctx context.Context, name string) (string, error) {
				// By id: while a lost answer is asked for again, another VM may already have the name.
				v, err := c.VM(ctx, name)
				if err != nil {
					return "", err
				}
				return v.Name + " on " + v.Node, c.DeleteVM(ctx, v.ID)
			})
		}),
	}
}

// removeEach deletes one after the other and goes on over failures, which it says at once; the first decides the
// exit code.
func (a *app) removeEach(ctx context.Context, args []string, remove func(ctx context.Context, name string) (string, error)) error {
	var failed error
	deleted := []string{}
	for _, name := range args {
		said, err := during(ctx, a, name+" to go", func(ctx context.Context) (string, error) { return remove(ctx, name) })
		switch {
		case err == nil:
			deleted = append(deleted, name)
			if a.output != outputJSON {
				a.done("Deleted " + said)
			}
		case len(args) == 1 || ctx.Err() != nil:
			return err
		default:
			a.reportError(hinted(err, ""))
			failed = cmp.Or(failed, error(&exitError{exitCode(err)}))
		}
	}
	_, err := a.json(map[string][]string{"deleted": deleted})
	return cmp.Or(failed, err)
}

// execFlags are the flags of exec, in the fleet and on a host.
type execFlags struct {
	timeout durationValue
	env     []string
	stdin   bool
}

func (f *execFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(&f.timeout, "timeout", "end the command after this time (default 60s)")
	flags.StringArrayVar(&f.env, "env", nil, "set `KEY=VALUE` in its environment; may be repeated")
	flags.BoolVarP(&f.stdin, "stdin", "i", false, "give it this command's standard input, up to its end")
}

// afterDash checks NAME -- CMD…
func afterDash(cmd *cobra.Command, args []string) error {
	switch at := cmd.ArgsLenAtDash(); {
	case len(args) == 0:
		return usagef("%s needs NAME; see %s --help", cmd.CommandPath(), cmd.CommandPath())
	case at != 1:
		return usagef("put -- between the name and the command: %s %s -- CMD", cmd.CommandPath(), args[0])
	case len(args) < 2:
		return usagef("say what to run after --: %s %s -- CMD", cmd.CommandPath(), args[0])
	}
	return nil
}

func (f *execFlags) request(in io.Reader, argv []string) (api.ExecRequest, error) {
	req := api.ExecRequest{Argv: argv, TimeoutSecs: int(f.timeout.seconds())}
	var err error
	if req.Env, err = pairs("env", f.env); err != nil {
		return req, err
	}
	if f.stdin {
		raw, err := io.ReadAll(io.LimitReader(in, api.MaxBody+1))
		if err != nil {
			return req, fmt.Errorf("reading standard input: %w", err)
		}
		if len(raw) > api.MaxBody/2 {
			return req, usagef("standard input has more than %d KiB; put the data where the guest can fetch it", api.MaxBody/2>>10)
		}
		req.Stdin = string(raw)
	}
	return req, req.Check()
}

// finishExec hands on what the command left and ends with its exit code.
func (a *app) finishExec(answer api.ExecAnswer, req api.ExecRequest) error {
	if ok, err := a.json(answer); !ok {
		if _, err := io.WriteString(a.env.Out, answer.Stdout); err != nil {
			return err
		}
		if _, err := io.WriteString(a.env.Err, answer.Stderr); err != nil {
			return fmt.Errorf("writing the errors: %w", err)
		}
		if answer.Truncated {
			a.note("The output was cut at 1 MiB.")
		}
	} else if err != nil {
		return err
	}
	if answer.TimedOut {
		limit := time.Duration(cmp.Or(req.TimeoutSecs, 60)) * time.Second
		fmt.Fprintf(a.env.Err, "%s %s ran longer than %s and was ended; allow it more with --timeout\n", a.errPaint.bad("✗"), oneLine(req.Argv[0]), shortDuration(limit))
		return &exitError{124} // as timeout(1) does
	}
	if answer.ExitCode != 0 {
		return &exitError{answer.ExitCode}
	}
	return nil
}

func (a *app) execVM() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use: "exec NAME -- CMD…", Short: "Run a command in a VM and end with its exit code",
		Example: `  fluxctl fleet exec build-42 -- uname -a
  fluxctl fleet exec build-42 --timeout 10m --env CI=1 -- make test
  fluxctl fleet exec build-42 -i -- sh -s < setup.sh`,
		Args: afterDash, ValidArgsFunction: a.completeArgs(a.vmNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			req, err := f.request(a.env.In, args[1:])
			if err != nil {
				return err
			}
			answer, err := during(ctx, a, args[1]+" on "+args[0], func(ctx context.Context) (api.ExecAnswer, error) { return c.Exec(ctx, args[0], req) })
			if err != nil {
				return err
			}
			return a.finishExec(answer, req)
		}),
	}
	f.register(cmd)
	return cmd
}
