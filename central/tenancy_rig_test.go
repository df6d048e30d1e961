package central

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// as is call with another token than the operator's.
func (r *rig) as(token, method, path string, b any, header ...string) reply {
	r.t.Helper()
	got, err := r.try(r.leader(), token, method, path, b, header...)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

// must is as for requests that have to succeed.
func (r *rig) must(token, method, path string, b any, header ...string) reply {
	r.t.Helper()
	got := r.as(token, method, path, b, header...)
	if got.status >= 300 {
		r.t.Fatalf("%s %s: %s", method, path, got)
	}
	return got
}

// key makes an API key of a tenant, or of the operator for an empty name.
func (r *rig) key(tenant, role string, lives time.Duration) api.Key {
	r.t.Helper()
	path := "/fleet/operator-keys"
	if tenant != "" {
		path = "/fleet/tenants/" + tenant + "/keys"
	}
	return into[api.Key](r.t, r.must(operatorToken, "POST", path, api.KeyRequest{Role: role, ExpiresInSecs: int64(lives.Seconds())}))
}

// tenant makes a tenant and gives the secret of a key of its own.
func (r *rig) tenant(name string, quota body) string {
	r.t.Helper()
	b := body{"name": name}
	if quota != nil {
		b["quota"] = quota
	}
	r.must(operatorToken, "POST", "/fleet/tenants", b)
	return r.key(name, api.RoleTenant, 0).Secret
}

// insistAs repeats a request, under its key, on every replica in turn until the fleet has decided on it.
func (r *rig) insistAs(token, method, path string, b any, key string) (got reply) {
	r.t.Helper()
	i := r.random(len(r.names))
	r.eventually(method+" "+path+" to be decided", 5*time.Minute, func() bool {
		i++
		var err error
		got, err = r.try(r.names[i%len(r.names)], token, method, path, b, api.HeaderIdempotencyKey, key)
		return err == nil && got.status != 0 && !slices.Contains([]api.Code{api.CodeNotLeader, api.CodeUnavailable, api.CodeOutcomeUnknown, api.CodeInternal}, got.code())
	})
	return got
}

// lease has one made that must be active at once.
func (r *rig) lease(tenant, node, duration string) api.Lease {
	r.t.Helper()
	l := into[api.Lease](r.t, r.must(operatorToken, "POST", "/fleet/leases", body{"tenant": tenant, "node": node, "duration": duration}))
	if l.State != api.LeaseActive {
		r.t.Fatalf("the lease of %s is %s (%s)", node, l.State, l.Reason)
	}
	return l
}

// leaseRow is a lease as the leader has it.
func (r *rig) leaseRow(id string) *fsm.Lease { return r.member(r.leader()).state.View().Lease(id) }

// leaseIn waits until a lease is in the state.
func (r *rig) leaseIn(id string, state api.LeaseState, within time.Duration) *fsm.Lease {
	r.t.Helper()
	r.eventually(fmt.Sprintf("lease %s to be %s", id, state), within, func() bool { return r.leaseRow(id).State == state })
	return r.leaseRow(id)
}

// free says whether nobody holds the host.
func (r *rig) free(node string) bool {
	return r.member(r.leader()).state.View().Node(node).Lease == ""
}

// running waits until a VM runs, as the leader has it.
func (r *rig) running(id string) {
	r.t.Helper()
	r.eventually("VM "+id+" to run", time.Minute, func() bool {
		row := r.member(r.leader()).state.View().VM(id)
		return row != nil && row.State == api.StateRunning && row.ReadyAt != 0
	})
}

// everything are all items of a list, page by page.
func everything[T any](r *rig, token, path string) (all []T) {
	r.t.Helper()
	for next := ""; ; {
		page := into[api.List[T]](r.t, r.must(token, "GET", path+next, nil))
		all = append(all, page.Items...)
		if page.NextCursor == nil {
			return all
		}
		next = "&cursor=" + *page.NextCursor
	}
}

// quotaHistory walks through every index a replica remembers and holds what each tenant had there to its limits.
func (r *rig) quotaHistory(replica string, limits map[string]fsm.Tenant) {
	r.t.Helper()
	events, _, ok := r.member(replica).state.Events().After(0, -1, 1<<20)
	if !ok {
		r.t.Fatalf("%s has forgotten the beginning", replica)
	}
	live, most := map[string]*fsm.VM{}, map[string]int64{}
	for i, e := range events {
		row, isVM := e.Row.(*fsm.VM)
		if isVM {
			if delete(live, row.ID); e.Action != fsm.ActionDeleted && row.Live() {
				live[row.ID] = row
			}
		}
		if i+1 < len(events) && events[i+1].Index == e.Index {
			continue // one command is one step
		}
		for name, t := range limits {
			var vms, vcpus int64
			for _, vm := range live {
				if vm.Tenant == name {
					vms, vcpus = vms+1, vcpus+int64(vm.VCPUs)
				}
			}
			most[name] = max(most[name], vms)
			if q := t.Quota; q.MaxVMs != nil && vms > *q.MaxVMs || q.MaxVCPUs != nil && vcpus > *q.MaxVCPUs {
				r.t.Fatalf("at index %d tenant %s holds %d VMs with %d vCPUs, of a quota of %s", e.Index, name, vms, vcpus, asJSON(q))
			}
		}
	}
	for name, t := range limits {
		if t.Quota.MaxVMs != nil && most[name] < *t.Quota.MaxVMs {
			r.t.Errorf("tenant %s never held more than %d VMs of its %d: the test did too little", name, most[name], *t.Quota.MaxVMs)
		}
	}
}

// recounted holds what the API says that a tenant uses to what it lists.
func (r *rig) recounted(tenant string) {
	r.t.Helper()
	var want api.Holding
	for _, vm := range everything[api.VM](r, operatorToken, "/fleet/vms?limit=500&tenant="+tenant) {
		if vm.State == api.StateDeleting {
			continue
		}
		want.VMs, want.VCPUs, want.MemoryMiB = want.VMs+1, want.VCPUs+int64(vm.VCPUs), want.MemoryMiB+vm.MemoryMiB
	}
	got := into[api.TenantUsage](r.t, r.must(operatorToken, "GET", "/fleet/tenants/"+tenant+"/usage", nil)).Used
	if got.VMs != want.VMs || got.VCPUs != want.VCPUs || got.MemoryMiB != want.MemoryMiB {
		r.t.Errorf("tenant %s is said to use %+v, and its VMs sum up to %+v", tenant, got, want)
	}
}

// at is a moment of the scenario in the fleet's own time.
func (r *rig) at(t time.Time) api.Time { return api.TimeOf(realStart.Add(t.Sub(r.began))) }

// billedAsRun holds the ledger to what really ran on the nodes: for each VM its stretches follow one another without a
// gap, at most the last is open, and they begin and end within a second of the machine itself.
func (r *rig) billedAsRun() {
	r.t.Helper()
	rows := map[string][]api.LedgerRow{}
	for _, row := range everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?limit=500") {
		if row.VMID != "" {
			rows[row.VMID] = append(rows[row.VMID], row)
		}
	}
	near := func(a api.Time, b time.Time) bool { d := a.Sub(r.at(b)); return d > -time.Second && d < time.Second }
	for _, n := range r.nodes {
		n.mu.Lock()
		for id, ran := range n.ran {
			mine := rows[id]
			delete(rows, id)
			if len(mine) == 0 {
				r.t.Errorf("VM %s ran on %s and nobody was billed", id, n.name)
				continue
			}
			for i := 1; i < len(mine); i++ {
				if mine[i].StartedAt != mine[i-1].EndedAt {
					r.t.Errorf("VM %s: a stretch ends at %s and the next begins at %s", id, mine[i-1].EndedAt, mine[i].StartedAt)
				}
			}
			first, last := mine[0], mine[len(mine)-1]
			if !near(first.StartedAt, ran.from) {
				r.t.Errorf("VM %s is billed from %s and ran from %s", id, first.StartedAt, r.at(ran.from))
			}
			switch {
			case ran.to.IsZero() != (last.EndedAt == 0):
				r.t.Errorf("VM %s runs: %t; its bill is open: %t", id, ran.to.IsZero(), last.EndedAt == 0)
			case last.EndedAt != 0 && !near(last.EndedAt, ran.to):
				r.t.Errorf("VM %s is billed until %s (%s) and ran until %s", id, last.EndedAt, last.EndReason, r.at(ran.to))
			}
		}
		n.mu.Unlock()
	}
	for id := range rows {
		r.t.Errorf("VM %s never ran and is billed: %+v", id, rows[id])
	}
}

func asJSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// followAs reads an event stream with a token until the function it gives is called.
func (r *rig) followAs(token, replica, query string) (*stream, int, func()) {
	r.t.Helper()
	return r.followWith(http.Header{"Authorization": {"Bearer " + token}}, replica, query)
}

// blocked is a scrub that waits for open, or for its caller to give up.
func blocked(open <-chan struct{}) func(context.Context, int, string) (api.ScrubAnswer, error) {
	return func(ctx context.Context, _ int, _ string) (api.ScrubAnswer, error) {
		select {
		case <-open:
			return api.ScrubAnswer{}, nil
		case <-ctx.Done():
			return api.ScrubAnswer{}, ctx.Err()
		}
	}
}
