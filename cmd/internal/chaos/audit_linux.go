package chaos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// backup takes one and holds it to its checksum, to the indexes promised, and to the replicas' own sums.
func (f *fleet) backup(ctx context.Context, from target) bool {
	floor := f.clients.index.asked()
	a := f.call.once(ctx, from, request{token: operatorToken, method: http.MethodPost, path: "/fleet/cluster/snapshot", timeout: 15 * time.Second})
	if a.what != done {
		return false
	}
	head, err := api.ReadBackup(bytes.NewReader(a.body))
	if err != nil {
		f.rec.broken(checkAnswer, "a backup that %s gave as whole: %v", from.run, err)
		return false
	}
	f.rec.held(checkIndex, f.clients.index.answered(floor, head.Index))
	sum := sha256.Sum256(a.body)
	f.rec.sum("a backup", head.Index, hex.EncodeToString(sum[:]))
	f.rec.did("backup")
	return true
}

// sums compares the replicas' states where they are at one index. It gives the indexes seen.
func (f *fleet) sums(ctx context.Context) (at map[uint64]int) {
	at = map[uint64]int{}
	for _, p := range f.members() {
		a := f.call.once(ctx, p.target(), request{token: operatorToken, method: http.MethodGet, path: "/fleet/cluster/checksum", timeout: 5 * time.Second})
		var got api.Checksum
		if a.what == done && a.read(&got) == nil {
			f.rec.sum(got.Name, got.Index, got.SHA256)
			at[got.Index]++
		}
	}
	return at
}

// equal waits until every replica has shown its state at one index.
func (f *fleet) equal(ctx context.Context) string {
	return until(ctx, time.Minute, func() string {
		for _, n := range f.sums(ctx) {
			if n == len(f.members()) {
				return ""
			}
		}
		return "the replicas were never seen at one index"
	})
}

// settle deletes what clients still have, one after the other as they would, after making sure that it is there.
func (f *fleet) settle(ctx context.Context) {
	rows, err := f.rows(ctx)
	if err != nil {
		f.rec.broken(checkAudit, "listing VMs: %v", err)
		return
	}
	c := f.clients
	for _, v := range c.kept {
		row, there := rows[v.id]
		switch rebooted := c.reboots[v.node]; {
		case !there && rebooted.Before(v.since.Add(-time.Minute)):
			f.rec.broken(checkAudit, "VM %s (%s) was given to a client and is not there", v.id, v.name)
		case there && row.Name != v.name:
			f.rec.broken(checkAudit, "VM %s was given to a client as %s and is called %s", v.id, v.name, row.Name)
		}
	}
	known := map[string]bool{}
	for _, v := range c.kept {
		known[v.id] = true
	}
	for _, v := range c.gone {
		if row, there := rows[v.id]; there && row.State != api.StateDeleting {
			f.rec.broken(checkAudit, "VM %s (%s) was deleted and is %s", v.id, v.name, row.State)
		}
	}
	for id, row := range rows {
		if row.WarmPool == "" && row.State != api.StateDeleting && !known[id] && !strings.HasPrefix(row.Name, "w-") {
			f.rec.broken(checkAudit, "VM %s (%s, %s on %s) is there and nobody has it", id, row.Name, row.State, row.Node)
		}
	}
	rng := rand.New(rand.NewPCG(f.cfg.Seed, 1<<40))
	for id, row := range rows {
		if row.WarmPool == "" {
			c.remove(ctx, held{id: id, name: row.Name, token: operatorToken}, rng)
		}
	}
}

func (f *fleet) rows(ctx context.Context) (map[string]api.VM, error) {
	rows := map[string]api.VM{}
	for vm, err := range f.admin.VMs(ctx, client.Filter{PageSize: 500}) {
		if err != nil {
			return nil, err
		}
		rows[vm.ID] = vm
	}
	return rows, nil
}

// unsettled says what a fleet at rest would not show: only ready spares, as many as each pool wants, and each host with
// exactly the VMs whose rows are there.
func (f *fleet) unsettled(ctx context.Context) string {
	rows, err := f.rows(ctx)
	if err != nil {
		return err.Error()
	}
	ready := map[string]int{}
	for id, vm := range rows {
		if vm.State != api.StateRunning || vm.WarmState != "ready" {
			return fmt.Sprintf("VM %s (%s) on %s is %s, warm state %q, since %s", vm.Name, id, vm.Node, vm.State, vm.WarmState, vm.CreatedAt)
		}
		ready[vm.WarmPool]++
	}
	for i := range pools {
		if ready[poolName(i)] != spares {
			return fmt.Sprintf("pool %s has %d spares and wants %d", poolName(i), ready[poolName(i)], spares)
		}
	}
	for _, h := range f.hosts {
		machines, err := f.machines(ctx, h)
		if err != nil {
			return err.Error()
		}
		for _, m := range machines {
			if row, ok := rows[m.ID]; !ok || row.Node != h.name || row.Name != m.Name {
				return fmt.Sprintf("%s has VM %s (%s, %s), of which no row says so", h.name, m.ID, m.Name, m.State)
			}
			delete(rows, m.ID)
		}
		for id, row := range rows {
			if row.Node == h.name {
				return fmt.Sprintf("%s lacks VM %s (%s)", h.name, id, row.Name)
			}
		}
	}
	return ""
}

// amounts computes what stretches that are over must cost, again and again until ctx ends.
func (f *fleet) amounts(ctx context.Context) {
	seen := map[string]bool{}
	for last := api.Time(0); ctx.Err() == nil; pause(ctx, 5*time.Second) {
		from := last
		for row, err := range f.admin.Ledger(ctx, client.LedgerFilter{From: from}) {
			if err != nil {
				break
			}
			if row.EndedAt == 0 || row.Kind == api.LedgerAdjustment || seen[row.ID] {
				continue
			}
			seen[row.ID], last = true, max(last, row.EndedAt-api.Time(time.Minute.Milliseconds()))
			f.charged(row)
		}
	}
}

// charged holds a stretch to what it must cost.
func (f *fleet) charged(row api.LedgerRow) {
	if want := costOf(row); row.AmountMicros != want {
		f.rec.broken(checkLedger, "row %s of VM %s lasts %d ms and costs %d, want %d", row.ID, row.VMID, row.EndedAt-row.StartedAt, row.AmountMicros, want)
	}
}

// ledger holds the whole of it to what was acknowledged, and computes every amount anew.
func (f *fleet) ledger(ctx context.Context) {
	ends, given := map[string]api.Time{}, map[string]int64{}
	rows := 0
	for row, err := range f.admin.Ledger(ctx, client.LedgerFilter{}) {
		if err != nil {
			f.rec.broken(checkLedger, "reading the ledger: %v", err)
			return
		}
		rows++
		if row.Kind == api.LedgerAdjustment {
			if given[row.EndReason] != 0 {
				f.rec.broken(checkLedger, "adjustment %s is there twice", row.EndReason)
			}
			given[row.EndReason] = row.AmountMicros
			continue
		}
		if end, known := ends[row.VMID]; known && (end == 0 || end > row.StartedAt) {
			f.rec.broken(checkLedger, "row %s of VM %s begins at %s, before the one ahead of it ended", row.ID, row.VMID, row.StartedAt)
		}
		ends[row.VMID] = row.EndedAt
		if row.EndedAt != 0 {
			f.charged(row)
		}
	}
	for reason, amount := range f.clients.adjusted {
		if given[reason] != amount {
			f.rec.broken(checkLedger, "adjustment %s of %d was acknowledged and is %d", reason, amount, given[reason])
		}
	}
	for reason := range given {
		if _, ok := f.clients.adjusted[reason]; !ok {
			f.rec.broken(checkLedger, "adjustment %s is there and nobody was told so", reason)
		}
	}
	live, err := f.rows(ctx)
	if err != nil {
		f.rec.broken(checkLedger, "listing VMs: %v", err)
	}
	for vm, end := range ends {
		if _, there := live[vm]; end == 0 && !there {
			f.rec.broken(checkLedger, "VM %s is gone and still billed", vm)
		}
	}
	if rows == 0 {
		f.rec.broken(checkLedger, "the ledger is empty")
	}
}

// costOf is what a stretch must cost: its milliseconds times its rate per hour, rounded down once.
func costOf(row api.LedgerRow) int64 {
	perHour := new(big.Int).Mul(big.NewInt(int64(row.VCPUs)*1024), big.NewInt(row.Rate.VCPUHourMicros))
	perHour.Add(perHour, new(big.Int).Mul(big.NewInt(row.MemoryMiB), big.NewInt(row.Rate.GiBHourMicros)))
	all := perHour.Mul(perHour, big.NewInt(int64(row.EndedAt-row.StartedAt)))
	return all.Div(all, big.NewInt(3_600_000*1024)).Int64()
}

// settling is how long a fleet may take to come to rest: a VM that no row knows is removed after ten minutes.
const settling = 12 * time.Minute

// audit looks at the whole, once nothing is broken any more and no client works.
func (f *fleet) audit(ctx context.Context) {
	if why := f.await(ctx, recovery); why != "" {
		f.rec.broken(checkRecovery, "in the end: %s", why)
		return
	}
	f.settle(ctx)
	said := ""
	why := until(ctx, settling, func() string {
		why := f.unsettled(ctx)
		if why != said && why != "" {
			said = why
			f.rec.log("not settled yet: %s", why)
		}
		return why
	})
	if why != "" {
		f.rec.broken(checkAudit, "after %s: %s", settling, why)
	}
	f.ledger(ctx)
	a := f.clients.current(ctx, f.members()[0].target(), operatorToken, "/fleet/tenants/"+acme+"/usage")
	var use api.TenantUsage
	if a.what != done || a.read(&use) != nil || use.Used.VMs != 0 {
		f.rec.broken(checkQuota, "%s has no VM and is said to have %d (%v)", acme, use.Used.VMs, a.err)
	}
	if why := f.equal(ctx); why != "" {
		f.rec.broken(checkReplicas, "%s", why)
	}
}
