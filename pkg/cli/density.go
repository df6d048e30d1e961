package cli

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) balloonCommand() *cobra.Command {
	var mib int64
	cmd := &cobra.Command{
		Use: "balloon NAME [--set-mib N]", Short: "Read or set how much memory a VM of the host gives back",
		Long: "Reads a VM's balloon, or sets how many MiB its guest is asked to give back. The guest needs the virtio_balloon\ndriver to follow, and keeps " + fmt.Sprint(api.BalloonFloorMiB) + " MiB at least: look at the actual size before counting on it.",
		Example: `  fluxctl balloon scratch
  fluxctl balloon scratch --set-mib 256
  fluxctl balloon scratch --set-mib 0`,
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
	}
	cmd.Flags().Int64Var(&mib, "set-mib", 0, "take this `NUMBER` of MiB from the guest; 0 gives everything back")
	cmd.RunE = a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
		set := cmd.Flags().Changed("set-mib")
		b, err := during(ctx, a, "the balloon of "+args[0], func(ctx context.Context) (api.Balloon, error) {
			m, err := machine(ctx, h, args[0])
			if err != nil {
				return api.Balloon{}, err
			}
			if set {
				return h.SetBalloon(ctx, m.ID, mib)
			}
			return h.Balloon(ctx, m.ID)
		})
		if err != nil {
			return err
		}
		if ok, err := a.json(b); ok {
			return err
		}
		if set {
			a.done(fmt.Sprintf("Asked %s to give back %s of %s", args[0], sizeMiB(b.TargetMiB), sizeMiB(b.MemoryMiB)), "it has given "+actualWords(b))
		} else {
			a.fields(args[0], field{"memory", sizeMiB(b.MemoryMiB)}, field{"target", sizeMiB(b.TargetMiB)}, field{"actual", actualWords(b)})
		}
		switch b.Driver {
		case api.BalloonAbsent:
			a.trouble("the guest does not follow: load virtio_balloon in it")
		case api.BalloonStuck:
			a.trouble("the guest stopped short of the target: it needs the rest itself")
		}
		return nil
	})
	return cmd
}

func actualWords(b api.Balloon) string {
	if b.ActualMiB == nil {
		return "unknown: the backend cannot tell"
	}
	return sizeMiB(*b.ActualMiB)
}

func (a *app) memoryCommand() *cobra.Command {
	return &cobra.Command{
		Use: "memory [NAME]", Short: "Show what a VM takes of the host's memory, or what the host has",
		Long:    "Shows what a VM's process holds of the host's memory. PSS counts shared pages by the VM's share of them: it is\nthe number to add up over VMs. Without a name it shows the host's own memory and pressure.",
		Example: "  fluxctl memory scratch\n  fluxctl memory",
		Args:    takes("[NAME]"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			if len(args) == 0 {
				return a.hostMemory(ctx, h)
			}
			r, err := during(ctx, a, "the memory of "+args[0], func(ctx context.Context) (api.MemoryReport, error) {
				m, err := machine(ctx, h, args[0])
				if err != nil {
					return api.MemoryReport{}, err
				}
				return h.Memory(ctx, m.ID)
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(r); ok {
				return err
			}
			fields := []field{{"configured", sizeMiB(r.ConfiguredMiB)}}
			if u := r.Usage; u != nil {
				fields = append(fields, field{"pss", sizeKiB(u.PSSKiB)}, field{"private", sizeKiB(u.PrivateKiB)}, field{"shared", sizeKiB(u.SharedKiB)},
					field{"rss", sizeKiB(u.RSSKiB)}, field{"swap", sizeKiB(u.SwapKiB)})
			} else {
				fields = append(fields, field{"usage", "none: no process of its own can be read"})
			}
			if b := r.Balloon; b != nil {
				fields = append(fields, field{"balloon", fmt.Sprintf("%s of %s asked for", actualWords(*b), sizeMiB(b.TargetMiB))})
			}
			if g := r.Guest; g != nil {
				fields = append(fields, field{"in the guest", fmt.Sprintf("%s free, %s available of %s", sizeMiB(g.FreeMiB), sizeMiB(g.AvailableMiB), sizeMiB(g.TotalMiB))})
			}
			a.fields(args[0], fields...)
			return nil
		}),
	}
}

func (a *app) hostMemory(ctx context.Context, h *client.Host) error {
	m, err := during(ctx, a, "the host's memory", h.HostMemory)
	if err != nil {
		return err
	}
	if ok, err := a.json(m); ok {
		return err
	}
	fields := []field{{"total", sizeMiB(m.MemTotalMiB)}, {"available", sizeMiB(m.MemAvailableMiB)}}
	if m.PSI != nil {
		fields = append(fields, field{"stalled", fmt.Sprintf("some %.2f %%, full %.2f %% (10 s)", m.PSI.SomeAvg10, m.PSI.FullAvg10)})
	}
	if m.PressureLevel != nil {
		fields = append(fields, field{"pressure", *m.PressureLevel})
	}
	a.fields("memory", fields...)
	return nil
}

func sizeKiB(kib int64) string { return sizeMiB((kib + 512) / 1024) }

func (a *app) sandboxCommand() *cobra.Command {
	return a.group("sandbox", "Sandboxes of one host: small VMs that come and go",
		"Sandboxes are VMs of one host (FLUXVM_API) with a size by name, which the host takes memory back from while they\nidle. They are VMs in every other way: the vm verbs know them, too.",
		`  fluxctl sandbox create try-it --profile tiny --ttl 30m
  fluxctl sandbox exec try-it -- uname -a
  fluxctl sandbox density`,
		a.createSandbox(), a.listSandboxes(), a.execSandbox(),
		a.orderSandbox("hibernate", "Save a sandbox to disk and free its memory", "Hibernated", (*client.Host).Hibernate),
		a.orderSandbox("wake", "Let a hibernated or paused sandbox go on", "Woke", (*client.Host).Wake),
		a.removeSandboxes(), a.density())
}

func (a *app) createSandbox() *cobra.Command {
	var req api.SandboxRequest
	var memory mibValue
	var ttl durationValue
	var labels []string
	cmd := &cobra.Command{
		Use: "create [NAME]", Short: "Create a sandbox; one that waits booted is taken at once",
		Example: `  fluxctl sandbox create
  fluxctl sandbox create try-it --profile standard --ttl 2h
  fluxctl sandbox create try-it --image /images/tools --memory 384M`,
		Args: takes("[NAME]"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			if len(args) > 0 {
				req.Name = args[0]
				if err := api.CheckName("name", req.Name, api.MaxVMName); err != nil {
					return err
				}
			}
			req.MemoryMiB = int64(memory)
			if ttl != 0 {
				req.TTLSeconds = ttl.seconds()
			}
			var err error
			if req.Labels, err = pairs("label", labels); err != nil {
				return err
			}
			m, err := during(ctx, a, cmp.Or(req.Name, "the sandbox"), func(ctx context.Context) (api.Machine, error) { return h.CreateSandbox(ctx, req) })
			if err != nil {
				return err
			}
			if ok, err := a.json(m); ok {
				return err
			}
			a.done(fmt.Sprintf("Created sandbox %s (%s, %s)", m.Name, m.Backend, sizeWords(m.VCPUs, m.MemoryMiB)), string(m.State)+", id "+m.ID)
			return nil
		}),
	}
	var names []string
	for _, p := range api.SandboxProfiles {
		names = append(names, p.Name)
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&req.Profile, "profile", "", "size by `NAME`: "+strings.Join(names, ", ")+" (default "+api.DefaultSandboxProfile+")")
	flags.StringVar(&req.Image, "image", "", "boot this `IMAGE` (default the host's for sandboxes)")
	flags.Var(&memory, "memory", "memory, such as 384M, in place of the profile's")
	flags.Var((*vcpusValue)(&req.VCPUs), "vcpus", "`NUMBER` of vCPUs in place of the profile's")
	flags.StringVar(&req.Backend, "backend", "", "run it with this `BACKEND` (default the host's)")
	flags.Var(&ttl, "ttl", "delete the sandbox after this time, such as 30m or 2h")
	flags.StringArrayVar(&labels, "label", nil, "label the sandbox with `KEY=VALUE`; may be repeated")
	fixed(cmd, "profile", names...)
	fixed(cmd, "backend", api.BackendAuto, api.BackendVZ, api.BackendFluxVM, api.BackendQEMU, api.BackendProcbox, api.BackendSim)
	return cmd
}

func (a *app) listSandboxes() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the host's sandboxes", Example: "  fluxctl sandbox ls",
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, _ []string) error {
			all, err := list(ctx, a, "the list of sandboxes", func(ctx context.Context) iter.Seq2[api.Machine, error] { return h.Sandboxes(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Machine]{Items: all}); ok {
				return err
			}
			if len(all) == 0 {
				a.note("No sandboxes on this host. Create one: fluxctl sandbox create")
				return nil
			}
			g := a.grid("NAME", "STATE", "SIZE", "AGENT", "AGE", "EXPIRES").wider("ID", "BACKEND", "IMAGE", "REASON")
			for _, m := range all {
				g.row(m.Name, string(m.State), sizeWords(m.VCPUs, m.MemoryMiB), yesWord(m.Agent), since(m.CreatedAt, a.env.Now()), until(m.ExpiresAt, a.env.Now()),
					m.ID, m.Backend, m.Image, m.Reason)
			}
			g.print()
			return nil
		}),
	}
}

func (a *app) execSandbox() *cobra.Command {
	cmd := a.execMachine()
	cmd.Short = "Run a command in a sandbox and end with its exit code; one that sleeps is woken"
	cmd.Example = "  fluxctl sandbox exec try-it -- uname -a"
	cmd.ValidArgsFunction = a.completeArgs(a.sandboxNames, 1)
	return cmd
}

func (a *app) orderSandbox(verb, short, done string, order func(*client.Host, context.Context, string) error) *cobra.Command {
	cmd := a.orderMachine(verb, short, done, order)
	cmd.Example = "  fluxctl sandbox " + verb + " try-it"
	cmd.ValidArgsFunction = a.completeArgs(a.sandboxNames, 1)
	return cmd
}

func (a *app) removeSandboxes() *cobra.Command {
	cmd := a.removeMachines()
	cmd.Short, cmd.Example = "Delete sandboxes and their disks, without asking", "  fluxctl sandbox rm try-it"
	cmd.ValidArgsFunction = a.completeArgs(a.sandboxNames, 100)
	return cmd
}

func (a *app) density() *cobra.Command {
	return &cobra.Command{
		Use: "density", Short: "Show how the host is loaded with sandboxes", Example: "  fluxctl sandbox density",
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, _ []string) error {
			d, err := during(ctx, a, "the host's load", h.Density)
			if err != nil {
				return err
			}
			if ok, err := a.json(d); ok {
				return err
			}
			pressure := "none reported"
			if d.HostPressureLevel != nil {
				pressure = *d.HostPressureLevel
			}
			a.fields("density", field{"active", fmt.Sprint(d.ActiveSandboxes)}, field{"paused", fmt.Sprint(d.PausedSandboxes)},
				field{"hibernated", fmt.Sprint(d.HibernatedSandboxes)}, field{"warm slots", fmt.Sprint(d.WarmSlotsReady)},
				field{"available", sizeMiB(d.HostMemAvailableMiB)}, field{"pressure", pressure})
			return nil
		}),
	}
}

func (a *app) sandboxNames(ctx context.Context) []string {
	h, err := a.host()
	if err != nil {
		return nil
	}
	return collectNames(h.Sandboxes(ctx), func(m api.Machine) string { return m.Name })
}

func (a *app) forkMachine() *cobra.Command {
	return &cobra.Command{
		Use: "fork NAME [COPY]", Short: "Copy a running VM, its memory and disk, into a new one",
		Long:    "Copies a running VM into a new one that goes on from the same moment, with a host name, machine-id, SSH host keys,\ntime and randomness of its own. The VM halts for a moment meanwhile.",
		Example: "  fluxctl vm fork scratch\n  fluxctl vm fork scratch attempt-2",
		Args:    takes("NAME", "[COPY]"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			var req api.ForkRequest
			if len(args) > 1 {
				req.Name = args[1]
				if err := api.CheckName("name", req.Name, api.MaxVMName); err != nil {
					return err
				}
			}
			m, err := during(ctx, a, "the copy of "+args[0], func(ctx context.Context) (api.Machine, error) {
				m, err := machine(ctx, h, args[0])
				if err != nil {
					return m, err
				}
				return h.Fork(ctx, m.ID, req)
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(m); ok {
				return err
			}
			a.done("Forked "+args[0]+" into "+m.Name, string(m.State)+", id "+m.ID)
			return nil
		}),
	}
}

func (a *app) snapshotMachine() *cobra.Command {
	return &cobra.Command{
		Use: "snapshot NAME SNAPSHOT", Short: "Write a running VM down, for others to start from",
		Example: "  fluxctl vm snapshot scratch ready-to-test\n  fluxctl vm create t1 --image snapshot:ready-to-test --memory 512M",
		Args:    takes("NAME", "SNAPSHOT"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			s, err := during(ctx, a, "the snapshot of "+args[0], func(ctx context.Context) (api.Snapshot, error) {
				m, err := machine(ctx, h, args[0])
				if err != nil {
					return api.Snapshot{}, err
				}
				return h.Snapshot(ctx, m.ID, args[1])
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(s); ok {
				return err
			}
			a.done("Wrote "+args[0]+" down as snapshot "+s.Name, "VMs start from it with --image "+s.Image+" --memory "+fmt.Sprint(s.MemoryMiB)+"M")
			return nil
		}),
	}
}

func (a *app) listSnapshots() *cobra.Command {
	return &cobra.Command{
		Use: "snapshots", Short: "List the host's snapshots", Example: "  fluxctl vm snapshots",
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, _ []string) error {
			all, err := list(ctx, a, "the list of snapshots", func(ctx context.Context) iter.Seq2[api.Snapshot, error] { return h.Snapshots(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Snapshot]{Items: all}); ok {
				return err
			}
			if len(all) == 0 {
				a.note("No snapshots on this host. Take one: fluxctl vm snapshot VM NAME")
				return nil
			}
			g := a.grid("NAME", "BACKEND", "SIZE", "DISK", "AGE").wider("IMAGE")
			for _, s := range all {
				g.row(s.Name, s.Backend, sizeWords(s.VCPUs, s.MemoryMiB), diskWords(s.DiskSizeGiB), since(s.CreatedAt, a.env.Now()), s.Image)
			}
			g.print()
			return nil
		}),
	}
}

func (a *app) removeSnapshots() *cobra.Command {
	return &cobra.Command{
		Use: "snapshot-rm SNAPSHOT…", Short: "Delete snapshots, without asking; VMs that started from them go on",
		Example: "  fluxctl vm snapshot-rm ready-to-test",
		Args:    takes("SNAPSHOT", "[SNAPSHOT]…"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			return a.removeEach(ctx, args, func(ctx context.Context, name string) (string, error) { return name, h.DeleteSnapshot(ctx, name) })
		}),
	}
}
