package central

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	restorePath   = "/fleet/cluster/restore"
	maxBackup     = 4 << 30
	adoptsPerPart = 64
	restoreGap    = 1024 // more than is committed while a restore is under way
)

// restoreCluster answers POST /fleet/cluster/restore: the state of a fresh cluster becomes that of a backup, in a newer
// epoch. The backup is verified as a whole before anything changes.
func (q *request) restoreCluster() error {
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	if err := fresh(g.view()); err != nil {
		return err
	}
	spool, err := os.CreateTemp(q.r.cfg.DataDir, "restore-*")
	if err != nil {
		return fmt.Errorf("keeping the backup: %w", err)
	}
	defer func() { _ = errors.Join(spool.Close(), os.Remove(spool.Name())) }()
	// Seconds of the wall clock keep two restores of one backup apart: hosts may have seen orders of the first one.
	epoch := uint64(max(0, q.r.wall().Unix()))
	meta, err := fsm.PrepareRestore(http.MaxBytesReader(q.w, q.Request.Body, maxBackup), spool, "restore", epoch, q.r.log.Status().LastIndex+restoreGap)
	if errors.Is(err, syscall.ENOSPC) {
		return err
	}
	if err != nil {
		return api.Errorf(api.CodeInvalid, "the backup cannot be restored, and nothing was changed: %v", err)
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("reading the backup again: %w", err)
	}
	if err := q.r.log.Restore(q.Context(), meta.Index, spool); err != nil {
		return err
	}
	q.r.logger.Info("restored the cluster from a backup", "cluster", meta.ClusterID, "index", meta.Index, "epoch", meta.Epoch)
	return q.send(http.StatusOK, api.Backup{Format: api.BackupFormat + "1", ClusterID: meta.ClusterID, Epoch: meta.Epoch, Index: meta.Index, Time: meta.Now})
}

// fresh refuses a restore over something that would be lost.
func fresh(view fsm.View) error {
	for range view.Nodes("") {
		return notFresh("nodes")
	}
	for range view.VMs("") {
		return notFresh("VMs")
	}
	for range view.Tenants("") {
		return notFresh("tenants")
	}
	for range view.Pools("") {
		return notFresh("pools")
	}
	return nil
}

func notFresh(what string) error {
	return api.Errorf(api.CodeConflict, "this cluster has %s, which a restore would lose: restore to a new cluster (fluxvm-agent central --bootstrap with an empty --data)", what)
}

// adopting says that the node's list has not been merged since a restore.
func (g *reign) adopting(view fsm.View, node string) bool {
	n := view.Node(node)
	return n != nil && n.Adopting
}

// adopt merges what a node lists, once it has sent its whole list.
func (g *reign) adopt(ctx context.Context, view fsm.View, node *fsm.Node) error {
	b := g.r.fleet.get(node.Name)
	if b == nil || b.vms == nil {
		return nil
	}
	cluster := view.Meta().ClusterID
	var gone []fsm.VMReport
	taken := map[string]bool{}
	for row := range view.VMsOn(node.Name) {
		vm := b.vms[row.ID]
		one := fsm.VMReport{ID: row.ID, Node: node.Name, State: api.StateGone}
		switch there := vm != nil && vm.State != api.StateGone; {
		case there && row.Warm && vm.Name != row.Name: // somebody got it after the backup, and nobody else may
			one.Reason, taken[row.ID] = "it was handed over after the backup", true
		case there || row.Told == 0:
			continue
		default:
			one.Reason = "its node no longer had it after the restore"
			if vm != nil {
				one.EndedMS = b.sinceEnd(vm, g.r.wall()).Milliseconds()
			}
		}
		gone = append(gone, one)
	}
	var found []fsm.AdoptedVM // sent after gone, so that what was taken is none of its pool's when it is found
	for id, vm := range b.vms {
		if row := view.VM(id); vm.Cluster != cluster || vm.State == api.StateGone || row != nil && row.Node == node.Name && !taken[id] {
			continue
		}
		found = append(found, fsm.AdoptedVM{ID: id, Name: vm.Name, Backend: node.Backend(""), GuestOS: vm.GuestOS, VCPUs: vm.VCPUs, MemoryMiB: vm.MemoryMiB, State: shown(vm.State)})
	}
	slices.SortFunc(found, func(a, b fsm.AdoptedVM) int { return strings.Compare(a.ID, b.ID) })
	for first := true; first || len(gone)+len(found) > 0; first = false {
		m := min(len(gone), adoptsPerPart)
		n := min(len(found), adoptsPerPart-m)
		part := fsm.AdoptNode{Name: node.Name, Gone: gone[:m], VMs: found[:n], Done: m == len(gone) && n == len(found)}
		if _, err := g.propose(ctx, fsm.KindAdoptNode, actorCentral, nil, part); err != nil {
			return err
		}
		gone, found = gone[m:], found[n:]
	}
	g.r.logger.Info("merged a node's list after the restore", "node", node.Name, "vms", len(b.vms))
	poke(g.poolPoke)
	return nil
}
