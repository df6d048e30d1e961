package cli

import (
	"cmp"
	"context"
	"iter"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) images() *cobra.Command {
	return &cobra.Command{
		Use: "images", Short: "List the catalog of images",
		Example: "  fluxctl fleet images\n  fluxctl fleet images -o wide",
		Args:    takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, _ []string) error {
			images, err := list(ctx, a, "the list of images", func(ctx context.Context) iter.Seq2[api.Image, error] { return c.Images(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.Image]{Items: images}); ok {
				return err
			}
			if len(images) == 0 {
				a.note("No images. Add one: fluxctl fleet image-add NAME --path PATH")
				return nil
			}
			g := a.grid("NAME", "TITLE", "GUEST", "SIZE", "DISK", "AGENT").wider("PATH", "AGE")
			for _, i := range images {
				g.row(i.Name, i.Title, i.GuestOS, sizeWords(i.VCPUs, i.MemoryMiB), diskWords(i.DiskSizeGiB), yesWord(i.HasAgent), i.Path, since(i.CreatedAt, a.env.Now()))
			}
			g.print()
			return nil
		}),
	}
}

func (a *app) addImage() *cobra.Command {
	var req api.ImageRequest
	var memory mibValue
	var disk gibValue
	var noAgent bool
	cmd := &cobra.Command{
		Use: "image-add NAME --path PATH", Short: "Add an image to the catalog",
		Long: `Add an image to the catalog. The path is understood on the nodes, by the backend that boots it: a directory with
vmlinuz and an initramfs for flux-vm, a disk image for qemu, "host" for procbox, sim: for the simulator. The size is what VMs of the image take unless told
otherwise.`,
		Example: `  fluxctl fleet image-add debian-13 --path /var/lib/fluxvm/images/debian-13 --title "Debian 13" --memory 1G
  fluxctl fleet image-add macos-27-xcode --path /images/macos-27-xcode --guest-os macos --vcpus 6 --memory 16G`,
		Args: takes("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if req.Name = args[0]; req.Path == "" {
				return usagef("say where the image is on the nodes: --path PATH")
			}
			req.MemoryMiB, req.DiskSizeGiB, req.HasAgent = int64(memory), int64(disk), !noAgent
			if err := req.Check(); err != nil {
				return err
			}
			image, err := during(ctx, a, req.Name, func(ctx context.Context) (api.Image, error) { return c.CreateImage(ctx, req, "") })
			if err != nil {
				return err
			}
			if ok, err := a.json(image); ok {
				return err
			}
			a.done("Added image "+image.Name+" ("+cmp.Or(image.Title, image.GuestOS)+", "+sizeWords(image.VCPUs, image.MemoryMiB)+")",
				"Keep some booted: fluxctl fleet pool-create NAME --image "+image.Name)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&req.Path, "path", "", "`PATH` of the image on the nodes")
	flags.StringVar(&req.Title, "title", "", "`TEXT` that people call it by")
	flags.StringVar(&req.GuestOS, "guest-os", "", "`OS` of its guests: linux or macos (default linux)")
	flags.Var((*vcpusValue)(&req.VCPUs), "vcpus", "`NUMBER` of vCPUs of its VMs (default 1)")
	flags.Var(&memory, "memory", "memory of its VMs, such as 16G (default 512M)")
	flags.Var(&disk, "disk", "disk size of its VMs, such as 64G (default the image's own)")
	flags.BoolVar(&noAgent, "no-agent", false, "the image holds no guest agent: no exec, and running is as ready as it gets")
	fixed(cmd, "guest-os", api.GuestLinux, api.GuestMacOS)
	return cmd
}

func (a *app) removeImage() *cobra.Command {
	return &cobra.Command{
		Use: "image-rm NAME…", Short: "Take images out of the catalog; files and VMs stay",
		Example: "  fluxctl fleet image-rm debian-12",
		Args:    takes("NAME", "[NAME]…"), ValidArgsFunction: a.completeArgs(a.imageNames, 100),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			return a.removeEach(ctx, args, func(ctx context.Context, name string) (string, error) {
				return "image " + name + " from the catalog", c.DeleteImage(ctx, name)
			})
		}),
	}
}
