package cli

import (
	"context"
	"iter"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) imageCommand() *cobra.Command {
	return a.group("image", "Images on one host",
		"These verbs put images below one host's data directory (FLUXVM_API). In the fleet's catalog such an image has the path\nlocal:NAME, and VMs of it go to the hosts that have it.",
		`  fluxctl image import macos-27 --from /Volumes/images/macos-27 --digest sha256:…
  fluxctl fleet image-add macos-27 --path local:macos-27 --guest-os macos --vcpus 4 --memory 8G
  fluxctl image ls`,
		a.importImage(), a.listHostImages(), a.removeHostImages())
}

func (a *app) importImage() *cobra.Command {
	var req api.ImportRequest
	cmd := &cobra.Command{
		Use: "import NAME --from PATH --digest DIGEST", Short: "Copy an image to the host, once its digest is right",
		Long: `Copy an image to the host, once its digest is right. What it is copied from is a directory on the host, an archive
(.tar, .tar.gz) of one, or a raw disk; the latter two also at an https URL. A file's digest is what sha256sum prints; a
directory's is printed, in it, by: LC_ALL=C sha256sum * | sha256sum
A Mac without sha256sum has shasum -a 256.`,
		Example: `  fluxctl image import debian-13 --from /srv/debian-13.tar.gz --digest sha256:…
  fluxctl image import debian-13 --from https://images.example.com/debian-13.tar.gz --digest sha256:…`,
		Args: takes("NAME"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			req.Name = args[0]
			if err := req.Check(); err != nil {
				return err
			}
			image, err := during(ctx, a, req.Name, func(ctx context.Context) (api.HostImage, error) { return h.ImportImage(ctx, req) })
			if err != nil {
				return err
			}
			if ok, err := a.json(image); ok {
				return err
			}
			a.done("Imported "+req.Name+" ("+sizeKiB(image.Bytes>>10)+")", "Let the fleet launch it: fluxctl fleet image-add "+req.Name+" --path "+image.Path)
			return nil
		}),
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&req.From, "from", "", "`PATH` on the host, or an https URL")
	flags.StringVar(&req.Digest, "digest", "", "`DIGEST` of what is imported: sha256:…")
	return cmd
}

func (a *app) listHostImages() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List the host's images", Example: "  fluxctl image ls\n  fluxctl image ls -o wide",
		Args: takes(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, _ []string) error {
			images, err := list(ctx, a, "the list of images", func(ctx context.Context) iter.Seq2[api.HostImage, error] { return h.Images(ctx) })
			if err != nil {
				return err
			}
			if ok, err := a.json(api.List[api.HostImage]{Items: images}); ok {
				return err
			}
			if len(images) == 0 {
				a.note("No images on this host. Import one: fluxctl image import NAME --from PATH --digest DIGEST")
				return nil
			}
			g := a.grid("IMAGE", "SIZE", "BACKEND", "VMS").wider("DIGEST")
			for _, i := range images {
				g.row(i.Path, bytesWord(i.Bytes), i.Backend, strconv.Itoa(i.VMs), i.Digest)
			}
			g.print()
			return nil
		}),
	}
}

func (a *app) removeHostImages() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Remove imported images from the host, without asking", Example: "  fluxctl image rm debian-12",
		Args: takes("NAME", "[NAME]…"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.onHost(func(ctx context.Context, h *client.Host, args []string) error {
			return a.removeEach(ctx, args, func(ctx context.Context, name string) (string, error) {
				name = strings.TrimPrefix(name, api.LocalImage)
				return "image " + name, h.RemoveImage(ctx, name)
			})
		}),
	}
}

// bytesWord is empty for an image whose files nobody has counted.
func bytesWord(n int64) string {
	if n == 0 {
		return ""
	}
	return sizeKiB(n >> 10)
}
