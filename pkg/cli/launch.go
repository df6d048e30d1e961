package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// launchFlags are what a person may say about a VM to launch.
type launchFlags struct {
	req       api.LaunchRequest
	memory    mibValue
	disk      gibValue
	ttl       durationValue
	selector  []string
	labels    []string
	cloudInit string
	claim     claimFlags
	wait      bool
	dryRun    bool
	room      durationValue
	key       string
}

func (a *app) launch() *cobra.Command {
	var f launchFlags
	cmd := &cobra.Command{
		Use: "launch [NAME] --image IMAGE | --pool POOL", Short: "Start a VM, from a warm pool when one matches",
		Long: `Start a VM. When a warm pool matches and the launch asks for nothing that a booted VM cannot have, a VM that is
already running is handed over at once. --cloud-init and --reschedulable mean a normal boot.

--hostname, --env, --file and --secret do not: the guest agent brings them into the guest, also into a warm one. The
guest finds env in /run/fluxvm/env and secrets, in memory only, in /run/fluxvm/secrets.`,
		Example: `  fluxctl fleet launch build-42 --image macos-27-xcode --ttl 2h
  fluxctl fleet launch --pool ios-ci --wait
  fluxctl fleet launch build-43 --image macos-27-xcode --wait-for-capacity 5m
  fluxctl fleet launch --pool ios-ci --hostname build-42 --env STAGE=test --secret TOKEN=@token.txt --file job.json:/etc/job.json
  fluxctl fleet launch big --image debian-13 --vcpus 8 --memory 32G --node-selector zone=lab --dry-run`,
		Args: takes("[NAME]"), ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
		req, err := f.request(a.env.In, args)
		if err != nil {
			return err
		}
		if f.dryRun {
			return a.dryRun(ctx, c, req)
		}
		return a.runLaunch(ctx, c, req, f)
	})
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.req.Image, "image", "", "boot this `IMAGE`: a catalog name or a path")
	flags.StringVar(&f.req.Pool, "pool", "", "take a VM of this warm `POOL`; image and size are its own")
	flags.Var(&f.ttl, "ttl", "delete the VM after this time, such as 90m, 2h or 1d")
	flags.Var((*vcpusValue)(&f.req.VCPUs), "vcpus", "`NUMBER` of vCPUs (default the image's)")
	flags.Var(&f.memory, "memory", "memory, such as 512M or 16G (default the image's)")
	flags.Var(&f.disk, "disk", "disk size, such as 64G (default the image's)")
	flags.StringVar(&f.req.Node, "node", "", "run on this `NODE`")
	flags.StringArrayVar(&f.selector, "node-selector", nil, "run on a node with this label, `KEY=VALUE`; may be repeated")
	flags.StringArrayVar(&f.labels, "label", nil, "label the VM with `KEY=VALUE`; may be repeated")
	flags.StringVar(&f.cloudInit, "cloud-init", "", "first-boot configuration: a #cloud-config `FILE`, or - for standard input")
	f.claim.add(cmd)
	flags.StringVar(&f.req.Tenant, "tenant", "", "make it this `TENANT`'s VM (operator only)")
	flags.BoolVar(&f.req.Reschedulable, "reschedulable", false, "boot it again elsewhere when its node is lost")
	flags.BoolVar(&f.wait, "wait", false, "return once the guest agent answers")
	flags.Var(&f.room, "wait-for-capacity", "when no node has room, wait this long for one, such as 5m (1h at most)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "say where it would go, and change nothing")
	flags.StringVar(&f.key, "key", "", "idempotency `KEY`: the same key and launch again give the same VM (default a new one)")
	a.completeFlag(cmd, "image", a.imageNames)
	a.completeFlag(cmd, "pool", a.poolNames)
	a.completeFlag(cmd, "node", a.nodeNames)
	a.completeFlag(cmd, "tenant", a.tenantNames)
	return cmd
}

// request is the body that the flags ask for.
func (f *launchFlags) request(in io.Reader, args []string) (api.LaunchRequest, error) {
	req := f.req
	if len(args) > 0 {
		req.Name = args[0]
	}
	if req.Image == "" && req.Pool == "" {
		return req, usagef("say what to launch: --image IMAGE or --pool POOL")
	}
	var err error
	if req.NodeSelector, err = pairs("node-selector", f.selector); err != nil {
		return req, err
	}
	if req.Labels, err = pairs("label", f.labels); err != nil {
		return req, err
	}
	if f.cloudInit != "" {
		if req.CloudInit, err = readCloudInit(in, f.cloudInit); err != nil {
			return req, err
		}
	}
	if req.Claim, err = f.claim.claim(); err != nil {
		return req, err
	}
	req.MemoryMiB, req.DiskSizeGiB, req.TTLSeconds = int64(f.memory), int64(f.disk), f.ttl.seconds()
	req.WaitForCapacitySecs = f.room.seconds()
	return req, req.Check()
}

// readCloudInit reads a #cloud-config file, in YAML or JSON, of which FluxVM knows a closed set of keys.
func readCloudInit(in io.Reader, path string) (*api.CloudInit, error) {
	var raw []byte
	var err error
	if path == "-" {
		raw, err = io.ReadAll(io.LimitReader(in, api.MaxBody+1))
	} else {
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, usagef("cannot read --cloud-init: %v", err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return nil, usagef("--cloud-init %s is no #cloud-config: %v", path, err)
	}
	body, err := json.Marshal(tree)
	if err != nil {
		return nil, usagef("--cloud-init %s: %v", path, err)
	}
	var out api.CloudInit
	if err := api.Decode(body, &out); err != nil {
		var bad *api.Error
		if errors.As(err, &bad) && bad.Field != "" {
			return nil, usagef("--cloud-init %s: the key %q or its value is not supported; use hostname, user, ssh_authorized_keys, packages, runcmd (text lines) and write_files (path, content, permissions)", path, bad.Field)
		}
		return nil, usagef("--cloud-init %s must hold keys such as packages or runcmd", path)
	}
	return &out, nil
}

func (a *app) dryRun(ctx context.Context, c *client.Client, req api.LaunchRequest) error {
	answer, err := during(ctx, a, "the fleet's plan", func(ctx context.Context) (api.DryRunAnswer, error) { return c.DryRun(ctx, req) })
	if err != nil {
		return err
	}
	if ok, err := a.json(answer); ok {
		return errors.Join(err, noRoom(answer))
	}
	name := req.Name
	if name == "" {
		name = "the VM"
	}
	switch {
	case answer.Node == nil:
		refused := api.Errorf(api.CodeNoCapacity, "no node would take %s; free room, add a node or ask for less", name)
		refused.Reasons = answer.Reasons
		a.verdicts(answer.Hosts)
		return refused
	case answer.Warm:
		a.done(name+" would go to "+*answer.Node, "Taken from warm pool "+deref(answer.Pool))
	default:
		a.done(name+" would go to "+*answer.Node, "Booted normally")
	}
	a.verdicts(answer.Hosts)
	return nil
}

// verdicts shows what placement makes of each host.
func (a *app) verdicts(hosts []api.HostVerdict) {
	if len(hosts) == 0 {
		return
	}
	g := a.grid("RANK", "NODE", "LEFT-MEMORY", "WHY-NOT").wider("RESIDUAL")
	for _, h := range hosts {
		if h.Rank == 0 {
			g.row("-", h.Node, "", strings.ReplaceAll(h.Reason, "_", " "), "")
			continue
		}
		g.row(strconv.Itoa(h.Rank), h.Node, sizeMiB(h.FreeMemoryMiB), "", fmt.Sprintf("%d.%d%%", h.Residual/10, h.Residual%10))
	}
	g.print()
}

// noRoom makes a dry run that fits nowhere end with the exit code of the launch it stands for.
func noRoom(answer api.DryRunAnswer) error {
	if answer.Node == nil {
		return &exitError{api.CodeNoCapacity.Exit()}
	}
	return nil
}

func (a *app) runLaunch(ctx context.Context, c *client.Client, req api.LaunchRequest, f launchFlags) error {
	if f.key == "" {
		f.key = uuid.NewString()
	} else if err := api.CheckKey(f.key); err != nil {
		return err
	}
	what := req.Name
	if what == "" {
		what = "the VM"
	}
	if f.wait {
		what += " to be ready"
	} else if f.room != 0 {
		what += ", or room for it"
	}
	answer, err := during(ctx, a, what, func(ctx context.Context) (api.LaunchAnswer, error) {
		answer, _, err := c.Launch(ctx, req, client.LaunchOptions{Key: f.key, WaitReady: f.wait})
		return answer, err
	})
	if isCode(err, api.CodeOutcomeUnknown) || errors.Is(err, context.Canceled) {
		return &hintError{err, "it may have been carried out; the same command with --key " + f.key + " tells, and launches no second VM"}
	}
	if err != nil {
		return err
	}
	if ok, err := a.json(answer); ok {
		return errors.Join(err, notReady(answer.VM, f.wait))
	}
	if err := notReady(answer.VM, f.wait); err != nil {
		return err
	}
	vm := answer.VM
	title := vm.Image
	if image, err := c.Image(ctx, vm.Image); err == nil && image.Title != "" {
		title = image.Title // best effort: a VM from a path has no catalog entry
	}
	how := "Booted normally: " + coldWords(answer, req)
	if answer.Warm {
		how = "Started instantly from warm pool " + answer.Pool
		if answer.ClaimMS != nil {
			how += " (" + seconds(*answer.ClaimMS) + ")"
		}
	}
	a.done(fmt.Sprintf("Launched %s on %s (%s, %s)", vm.Name, answer.Node, title, sizeWords(vm.VCPUs, vm.MemoryMiB)), how)
	if a.output == outputWide {
		a.details("id "+vm.ID, "key "+f.key)
	}
	return nil
}

// notReady is the failure of a launch whose VM has ended, or was waited for and came to another end.
func notReady(vm api.VM, waited bool) error {
	ended := vm.State == api.StateGone || vm.State == api.StateDeleting
	switch {
	case ended && !waited: // a repeat under its key is told so with 201
		return fmt.Errorf("VM %s was launched and has ended since: %s", vm.Name, cmp.Or(vm.Reason, "it is "+string(vm.State)))
	case !waited:
		return nil
	}
	switch vm.State {
	case api.StateFailed, api.StateGone, api.StateDeleting, api.StateLost:
		return fmt.Errorf("VM %s never became ready: it is %s (%s); see fluxctl fleet vm %s", vm.Name, vm.State, cmp.Or(vm.Reason, "no reason was given"), vm.Name)
	}
	return nil
}

// coldWords says why no warm VM was taken.
func coldWords(answer api.LaunchAnswer, req api.LaunchRequest) string {
	switch answer.ColdReason {
	case "", "no_pool":
		return "no warm pool matches"
	case "pool_empty":
		if req.Pool != "" {
			return "warm pool " + req.Pool + " has nothing ready"
		}
		return "the matching warm pool has nothing ready"
	case "rename_failed":
		return "its node could not hand the warm VM over"
	case "node":
		return "no ready warm VM is on " + req.Node
	case "nodeSelector":
		return "no ready warm VM is on a matching node"
	case "claim":
		return "the guest agent of the ready warm VMs is too old to take hostname, env, files or secrets; update fluxvm-guest in the image"
	}
	if slices.Contains([]string{"vcpus", "memory_mib", "disk_size_gib", "apple.guest_os"}, answer.ColdReason) {
		return "the warm VMs of that image have another " + answer.ColdReason
	}
	return "a warm VM cannot have " + answer.ColdReason
}
