package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

func (a *app) replicaNames(ctx context.Context) []string {
	c, err := a.fleet()
	if err != nil {
		return nil
	}
	k, err := c.Cluster(ctx)
	if err != nil {
		return nil
	}
	var names []string
	for _, r := range k.Replicas {
		names = append(names, r.Name)
	}
	return names
}

func (a *app) removeReplica() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Take a replica out of the cluster",
		Long:    "Take a replica out of the cluster, dead or alive. A process that still runs ends by itself; its data directory is\nof no use afterwards. To replace it, let another one join (fluxctl cluster join-token --kind replica).",
		Example: "  fluxctl cluster remove central-2\n  fluxctl cluster remove central-2 --yes",
		Args:    takes("NAME"), ValidArgsFunction: a.completeArgs(a.replicaNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			if err := a.confirm(ctx, yes, fmt.Sprintf("Take replica %s out of the cluster for good?", args[0])); err != nil {
				return err
			}
			k, err := during(ctx, a, args[0], func(ctx context.Context) (api.Cluster, error) {
				if err := c.RemoveReplica(ctx, args[0]); err != nil {
					return api.Cluster{}, err
				}
				return c.Cluster(ctx)
			})
			return a.doneCluster(k, err, "Removed "+args[0]+"; the cluster has "+count(len(k.Replicas), "replica")+" now")
		}),
	}
	yesFlag(cmd, &yes)
	return cmd
}

func (a *app) transfer() *cobra.Command {
	return &cobra.Command{
		Use: "transfer [NAME]", Short: "Hand leadership to another replica",
		Long:    "Hand leadership to another replica: the named one, or the one that lacks least.",
		Example: "  fluxctl cluster transfer\n  fluxctl cluster transfer central-3",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: a.completeArgs(a.replicaNames, 1),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			to := ""
			if len(args) > 0 {
				to = args[0]
			}
			k, err := during(ctx, a, "the leadership", func(ctx context.Context) (api.Cluster, error) {
				if err := c.Transfer(ctx, to); err != nil {
					return api.Cluster{}, err
				}
				return c.Cluster(ctx)
			})
			return a.doneCluster(k, err, k.Leader+" leads now")
		}),
	}
}

func (a *app) doneCluster(k api.Cluster, err error, sentence string) error {
	if err != nil {
		return err
	}
	if ok, err := a.json(k); ok {
		return err
	}
	a.done(sentence, fmt.Sprintf("term %d, index %d", k.Term, k.Index))
	return nil
}

func (a *app) backup() *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Save the whole state of the control plane",
		Long: "Save the whole state of the control plane into a file, checked against its own checksum. VMs and their disks are\n" +
			"not in it: they live on the hosts. It holds hashes of tokens and what VMs were given at boot; keep it accordingly.\n" +
			"A file of that name is replaced once the new one is whole.",
		Example: "  fluxctl cluster backup fleet-$(date +%F).snapshot",
		Args:    takes("FILE"),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			head, err := during(ctx, a, "the backup", func(ctx context.Context) (api.Backup, error) { return saveBackup(ctx, c, args[0]) })
			if err != nil {
				return err
			}
			if ok, err := a.json(head); ok {
				return err
			}
			a.done("Saved cluster "+head.ClusterID+" to "+args[0], fmt.Sprintf("index %d, epoch %d, %s; its checksum is right", head.Index, head.Epoch, a.moment(head.Time)))
			return nil
		}),
	}
}

// saveBackup writes the file whole or not at all.
func saveBackup(ctx context.Context, c *client.Client, path string) (head api.Backup, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return head, fmt.Errorf("%s cannot be written: %w", path, err)
	}
	head, err = c.Backup(ctx, f)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(f.Name()))
	}
	return head, err
}

func (a *app) restore() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make a fresh cluster the one that a backup was taken of",
		Long: "Make a fresh cluster the one that a backup was taken of. Its tokens and keys are those of the backup from then on.\n" +
			"Hosts are taken over one by one as they report: VMs started after the backup become the operator's, and nothing\n" +
			"is ended on a host before its whole list is known.",
		Example: "  fluxctl cluster restore fleet-2026-11-29.snapshot",
		Args:    takes("FILE"),
		RunE: a.onFleet(func(ctx context.Context, c *client.Client, args []string) error {
			raw, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			head, err := api.ReadBackup(bytes.NewReader(raw))
			if err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := a.confirm(ctx, yes, fmt.Sprintf("Restore cluster %s as of %s?", head.ClusterID, a.moment(head.Time))); err != nil {
				return err
			}
			head, err = during(ctx, a, "the restore", func(ctx context.Context) (api.Backup, error) { return c.Restore(ctx, raw) })
			if err != nil {
				return err
			}
			if ok, err := a.json(head); ok {
				return err
			}
			a.done("Restored cluster "+head.ClusterID, fmt.Sprintf("index %d, now in epoch %d; hosts are taken over as they report: fluxctl fleet nodes", head.Index, head.Epoch))
			return nil
		}),
	}
	yesFlag(cmd, &yes)
	return cmd
}
