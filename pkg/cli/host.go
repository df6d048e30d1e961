package cli

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) hostCommand() *cobra.Command {
	return a.group("vm", "VMs of one host, without a fleet",
		"These verbs speak to one host's own API (FLUXVM_API, default "+client.DefaultHostURL+"). A VM that central ordered is\nbetter handled with the fleet verbs: central brings back what it misses.",
		`  fluxctl vm create scratch --image /var/lib/fluxvm/images/debian-13 --memory 512M
  fluxctl vm exec scratch -- uname -a
  fluxctl vm rm scratch`,
		a.listMachines(), a.getMachine(), a.createMachine(), a.removeMachines(),
		a.orderMachine("start", "Boot a stopped VM", "Started", (*client.Host).Start),
		a.orderMachine("stop", "Shut a VM down; its disk stays", "Stopped", (*client.Host).Stop),
		a.orderMachine("pause", "Halt a VM's processors; its memory stays", "Paused", (*client.Host).Pause),
		a.orderMachine("resume", "Let a paused VM run on", "Resumed", (*client.Host).Resume),
		a.execMachine(), a.console(), a.forkMachine(), a.snapshotMachine(), a.listSnapshots(), a.removeSnapshots())
}

// onHost is a command's work with a client of one host.
func (a *app) onHost(work func(ctx context.Context, h *client.Host, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		h, err := a.host()
		if err != nil {
			return err
		}
		return hinted(work(cmd.Context(), h, args), "FLUXVM_API names the host; to serve VMs on this one: fluxctl serve")
	}
}

// machine finds a VM by id or name. A host does not keep names apart: two of one name are told apart by id.
func machine(ctx context.Context, h *client.Host, name string) (api.Machine, error) {
	if api.CheckUUID("id", name) == nil {
		return h.Machine(ctx, name)
	}
	var found []api.Machine
	for m, err := range h.Machines(ctx) {
		if err != nil {
			return api.Machine{}, err
		}
		if m.Name == name {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 0:
		return api.Machine{}, api.Errorf(api.CodeNotFound, "this host has no VM %q; fluxctl vm ls lists them", name)
	case 1:
		return found[0], nil
	}
	return api.Machine{}, api.Errorf(api.CodeConflict, "this host has %d VMs named %q; give an id from fluxctl vm ls -o wide", len(found), name)
}

func (a *app) listMachines() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the host's VMs", Example: "  fluxctl vm ls\n  fluxctl vm ls -o wide",
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, _ []string) error {
			machines, err := list(ctx, a, "the list of VMs", func(ctx context.Context) iter.Seq2[api.Machine, error] { return h.Machines(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Machine]{Items: machines}); ok {
				return err
			}
			if len(machines) == 0 {
				a.note("No VMs on this host. Create one: fluxctl vm create NAME --image IMAGE --memory 512M")
				return nil
			}
			g := a.grid("NAME", "STATE", "BACKEND", "IMAGE", "SIZE", "AGENT", "AGE").wider("ID", "IP", "LABELS", "REASON")
			for _, m := range machines {
				g.row(m.Name, string(m.State), m.Backend, m.Image, sizeWords(m.VCPUs, m.MemoryMiB), yesWord(m.Agent), since(m.CreatedAt, a.env.Now()),
					m.ID, m.IP, labelWords(m.Labels), m.Reason)
			}
			g.print()
			return nil
		}),
	}
}

func (a *app) getMachine() *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show one VM of the host, by name or id", Example: "  fluxctl vm get scratch",
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			m, err := during(ctx, a, args[0], func(ctx context.Context) (api.Machine, error) { return machine(ctx, h, args[0]) })
			if err != nil {
				return err
			}
			if ok, err := a.json(m); ok {
				return err
			}
			a.fields(m.Name,
				field{"state", string(m.State)}, field{"reason", m.Reason}, field{"image", m.Image}, field{"guest", m.GuestOS},
				field{"size", sizeWords(m.VCPUs, m.MemoryMiB)}, field{"disk", diskWords(m.DiskSizeGiB)}, field{"ip", m.IP}, field{"agent", yesWord(m.Agent)},
				field{"labels", labelWords(m.Labels)}, field{"created", a.moment(m.CreatedAt)}, field{"started", a.moment(m.StartedAt)},
				field{"ready", a.moment(m.ReadyAt)}, field{"expires", a.moment(m.ExpiresAt)}, field{"backend", m.Backend}, field{"id", m.ID})
			return nil
		}),
	}
}

func (a *app) createMachine() *cobra.Command {
	var req api.MachineRequest
	var memory mibValue
	var disk gibValue
	var ttl durationValue
	var labels []string
	var cloudInit string
	cmd := &cobra.Command{
		Use: "create NAME --image IMAGE --memory SIZE", Short: "Create a VM on the host and boot it",
		Example: `  fluxctl vm create scratch --image /var/lib/fluxvm/images/debian-13 --memory 512M
  fluxctl vm create build --image /images/ci --vcpus 4 --memory 8G --ttl 2h --backend flux-vm`,
		Args: takes("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			req.Name = args[0]
			if err := api.CheckName("name", req.Name, api.MaxVMName); err != nil {
				return err
			}
			if memory == 0 {
				return usagef("say how much memory the VM gets: --memory 512M")
			}
			req.MemoryMiB, req.DiskSizeGiB = int64(memory), int64(disk)
			if ttl != 0 {
				ms := ttl.seconds() * 1000
				req.ExpiresInMS = &ms
			}
			var err error
			if req.Labels, err = pairs("label", labels); err != nil {
				return err
			}
			if cloudInit != "" {
				if req.CloudInit, err = readCloudInit(a.env.In, cloudInit); err != nil {
					return err
				}
			}
			m, err := during(ctx, a, req.Name, func(ctx context.Context) (api.Machine, error) { return h.Create(ctx, req) })
			if err != nil {
				return err
			}
			if ok, err := a.json(m); ok {
				return err
			}
			a.done(fmt.Sprintf("Created %s (%s, %s)", m.Name, m.Backend, sizeWords(m.VCPUs, m.MemoryMiB)), string(m.State)+", id "+m.ID)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&req.Image, "image", "", "boot this `IMAGE`: a path or a name that the backend understands")
	flags.Var(&memory, "memory", "memory, such as 512M or 16G")
	flags.Var((*vcpusValue)(&req.VCPUs), "vcpus", "`NUMBER` of vCPUs (default 1)")
	flags.Var(&disk, "disk", "disk size, such as 64G (default the image's)")
	flags.StringVar(&req.Backend, "backend", "", "run it with this `BACKEND` (default the host's)")
	flags.StringVar(&req.GuestOS, "guest-os", "", "`OS` of the guest: linux or macos (default linux)")
	flags.Var(&ttl, "ttl", "delete the VM after this time, such as 90m, 2h or 1d")
	flags.StringArrayVar(&labels, "label", nil, "label the VM with `KEY=VALUE`; may be repeated")
	flags.StringVar(&cloudInit, "cloud-init", "", "first-boot configuration: a #cloud-config `FILE`, or - for standard input")
	flags.BoolVar(&req.NoAgent, "no-agent", false, "the image holds no guest agent")
	fixed(cmd, "backend", api.BackendAuto, api.BackendVZ, api.BackendFluxVM, api.BackendQEMU, api.BackendProcbox, api.BackendSim)
	fixed(cmd, "guest-os", api.GuestLinux, api.GuestMacOS)
	return cmd
}

func (a *app) removeMachines() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Delete VMs of the host and their disks, without asking", Example: "  fluxctl vm rm scratch",
		Args: takes("NAME", "[NAME]…"), ValidArgsFunction: a.completeArgs(a.machineNames, 100),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			return a.removeEach(ctx, args, func(ctx context.Context, name string) (string, error) {
				m, err := machine(ctx, h, name)
				if err != nil {
					return "", err
				}
				return m.Name, h.Delete(ctx, m.ID)
			})
		}),
	}
}

func (a *app) orderMachine(verb, short, done string, order func(*client.Host, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Example: "  fluxctl vm " + verb + " scratch",
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			m, err := during(ctx, a, args[0]+" to "+verb, func(ctx context.Context) (api.Machine, error) {
				m, err := machine(ctx, h, args[0])
				if err != nil {
					return m, err
				}
				if err := order(h, ctx, m.ID); err != nil {
					return m, err
				}
				return h.Machine(ctx, m.ID)
			})
			if err != nil {
				return err
			}
			if ok, err := a.json(m); ok {
				return err
			}
			a.done(done+" "+m.Name, "now "+string(m.State))
			return nil
		}),
	}
}

func (a *app) execMachine() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use: "exec NAME -- CMD…", Short: "Run a command in a VM of the host and end with its exit code",
		Example: "  fluxctl vm exec scratch -- uname -a\n  fluxctl vm exec scratch --timeout 10m --env CI=1 -- make test",
		Args:    afterDash, ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			req, err := f.request(a.env.In, args[1:])
			if err != nil {
				return err
			}
			answer, err := during(ctx, a, args[1]+" on "+args[0], func(ctx context.Context) (api.ExecAnswer, error) {
				m, err := machine(ctx, h, args[0])
				if err != nil {
					return api.ExecAnswer{}, err
				}
				return h.Exec(ctx, m.ID, req)
			})
			if err != nil {
				return err
			}
			return a.finishExec(answer, req)
		}),
	}
	f.register(cmd)
	return cmd
}

func (a *app) console() *cobra.Command {
	return &cobra.Command{
		Use: "console NAME", Short: "Print what a guest wrote to its serial console", Example: "  fluxctl vm console scratch",
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.machineNames, 1),
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			text, err := during(ctx, a, "the console of "+args[0], func(ctx context.Context) ([]byte, error) {
				m, err := machine(ctx, h, args[0])
				if err != nil {
					return nil, err
				}
				return h.Console(ctx, m.ID)
			})
			if err != nil {
				return err
			}
			return a.showConsole(text)
		}),
	}
}

func (a *app) showConsole(text []byte) error {
	if ok, err := a.json(map[string]string{"console": string(text)}); ok {
		return err
	}
	if a.outTerminal {
		text = []byte(printable(string(text)))
	}
	_, err := a.env.Out.Write(text)
	return err
}

// fleetConsole is console for a VM of the fleet, also for a failed spare that its pool keeps.
func (a *app) fleetConsole() *cobra.Command {
	return &cobra.Command{
		Use: "console NAME", Short: "Print what a VM's guest wrote to its serial console",
		Long: `Print what a VM's guest wrote to its serial console: also that of a warm VM that failed, as long as its pool keeps it
(pool-create --keep-failed).`,
		Example: `  fluxctl fleet console build-42
  fluxctl fleet console warm-ios-ci-1a2b3c4d`,
		Args: takes("NAME"), ValidArgsFunction: a.completeArgs(a.vmNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			text, err := during(ctx, a, "the console of "+args[0], func(ctx context.Context) ([]byte, error) { return c.VMConsole(ctx, args[0]) })
			if err != nil {
				return err
			}
			return a.showConsole(text)
		}),
	}
}

// printable drops what a guest could steer the reader's terminal with; a file or pipe gets the bytes as they are.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}
