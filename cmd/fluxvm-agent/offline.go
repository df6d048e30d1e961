package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fluxvm/fluxvm/central"
	"github.com/fluxvm/fluxvm/central/consensus"
)

// dataFlag is where a replica that does not run keeps its data, as central's own --data.
func dataFlag(cmd *cobra.Command, data *string) {
	where := "/var/lib/fluxvm/central"
	if dir := os.Getenv("FLUXVM_CENTRAL_DATA"); dir != "" {
		where = dir
	}
	cmd.Flags().StringVar(data, "data", where, "data directory of a replica that is stopped")
}

func checkCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Read a stopped replica's data from end to end and say what it holds",
		Long: `Reads the data directory of a stopped replica: identity, log, snapshots. It replays the log, holds the state to its
rules, and changes nothing. Two replicas with the same index have the same sum.

Exit codes: 0 all is well, 78 something is damaged, 79 this program is too old for the log, 1 it could not be read.`,
		Example: `  fluxvm-agent central check --data /var/lib/fluxvm/central`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := central.Inspect(data)
			if err != nil {
				return err
			}
			describe(cmd.OutOrStdout(), data, in)
			if len(in.Faults) > 0 {
				return &consensus.ExitError{Code: consensus.ExitConfig, Message: fmt.Sprintf("%s: remove this replica from the cluster (fluxctl cluster remove %s), empty its data directory and let it join again; if it is the last one, restore a backup", strings.Join(in.Faults, "; "), in.Name)}
			}
			fmt.Fprintln(cmd.OutOrStdout(), "All is well.")
			return nil
		},
	}
	dataFlag(cmd, &data)
	return cmd
}

func describe(w io.Writer, data string, in *central.Inspection) {
	meta := in.State.Meta()
	fmt.Fprintf(w, "%s holds replica %s of cluster %s.\n", data, in.Name, in.ClusterID)
	var members []string
	for _, m := range in.Members {
		one := m.Name + " at " + m.Addr
		if !m.Voter {
			one += " (no vote)"
		}
		members = append(members, one)
	}
	fmt.Fprintf(w, "  members    %s\n", strings.Join(members, ", "))
	fmt.Fprintf(w, "  log        entries %d to %d, newest term %d; %d KiB, %d KiB of them free\n", in.First, in.Last, in.Term, in.LogBytes>>10, in.LogFreeBytes>>10)
	fmt.Fprintf(w, "  snapshots  at %v; %d commands replayed\n", in.Snapshots, in.Commands)
	nodes, vms, pools, tenants := 0, 0, 0, 0
	for range in.State.Nodes("") {
		nodes++
	}
	for range in.State.VMs("") {
		vms++
	}
	for range in.State.Pools("") {
		pools++
	}
	for range in.State.Tenants("") {
		tenants++
	}
	fmt.Fprintf(w, "  state      index %d of %s, epoch %d; %d nodes, %d VMs, %d pools, %d tenants\n", meta.Index, meta.Now, meta.Epoch, nodes, vms, pools, tenants)
	fmt.Fprintf(w, "  sum        %s\n", in.Hash)
}

func recoverCommand() *cobra.Command {
	var data string
	var peers []string
	var yes bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Go on with what a stopped replica holds, after a majority is lost for good",
		Long: `Makes this replica, and with --peers others that still have their data, the whole cluster. Only for when a majority
of the replicas is lost for good: as long as it can come back, wait for it. Run it on one replica alone, the one whose
check shows the newest term and then the newest index; the others of --peers take over what it has.

It shows what will be and asks for the cluster's id; --yes is for scripts.`,
		Example: `  fluxvm-agent central recover --data /var/lib/fluxvm/central
  fluxvm-agent central recover --data /var/lib/fluxvm/central --peers central-1,central-4 --yes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := central.Inspect(data)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			describe(out, data, in)
			servers, err := in.Survivors(peers)
			if err != nil {
				return err
			}
			foretell(out, in, servers)
			if !yes {
				fmt.Fprintf(out, "\nTo do this, type the cluster's id: ")
				line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
				if err != nil && !errors.Is(err, io.EOF) {
					return fmt.Errorf("reading the answer: %w", err)
				}
				if strings.TrimSpace(line) != in.ClusterID || in.ClusterID == "" {
					fmt.Fprintln(out)
					return errors.New("nothing was changed: that is not the cluster's id (in a script give --yes)")
				}
			}
			epoch, err := in.Recover(data, servers, time.Now())
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "Done; the epoch is %d. Start this replica as ever, without --bootstrap or --join, then the others of the set.\n", epoch)
			return nil
		},
	}
	dataFlag(cmd, &data)
	cmd.Flags().StringSliceVar(&peers, "peers", nil, "replicas to go on with, as NAME or NAME=CLUSTERADDR: this one and others that still have their data (default: this one alone)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// foretell says what a recovery makes, and what it may cost.
func foretell(w io.Writer, in *central.Inspection, servers []consensus.Server) {
	var stay, out []string
	for _, s := range servers {
		stay = append(stay, s.Name+" at "+s.Addr)
	}
	for _, m := range in.Members {
		if !slices.ContainsFunc(servers, func(s consensus.Server) bool { return s.Name == m.Name }) {
			out = append(out, m.Name)
		}
	}
	fmt.Fprintf(w, "\nThe cluster will be %s.\n", strings.Join(stay, ", "))
	if len(out) > 0 {
		fmt.Fprintf(w, "Left out: %s. Never start them on the data they have now: together they could lead a cluster of their own. Empty their\ndata directories and let them join.\n", strings.Join(out, ", "))
	}
	fmt.Fprintf(w, "May be lost: whatever was acknowledged after index %d (%s) and did not reach this replica. The end of its log may also\nhold changes that nobody was told of; they will count.\n", in.LastIndex(), in.State.Meta().Now)
	fmt.Fprintf(w, "The epoch rises, so that hosts refuse every older leader. Each host is unreachable until it has sent its whole list and is\nmerged; VMs that this replica does not know become the operator's.\n")
}

func compactCommand() *cobra.Command {
	var data string
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "Give back the free space in a stopped replica's log file",
		Long: `Rewrites the log's file of a stopped replica without the free space in it, which it otherwise keeps for reuse. The disk
needs room for both files meanwhile. central check shows how much is free.`,
		Example: `  fluxvm-agent central compact --data /var/lib/fluxvm/central`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			before, after, err := consensus.Compact(data)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The log's file has %d KiB now; it had %d KiB.\n", after>>10, before>>10)
			return nil
		},
	}
	dataFlag(cmd, &data)
	return cmd
}
