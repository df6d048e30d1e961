package central

import (
	"encoding/csv"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func vmPrice(vcpu, gib int64, onLeased bool) body {
	return body{"guest_os": "linux", "vcpu_hour_micros": vcpu, "gib_hour_micros": gib, "on_leased": onLeased}
}

var testPrices = body{"currency": "EUR", "vm": []body{vmPrice(7_000_000, 3_000_001, false)},
	"lease": []body{{"label": "host=n3", "hour_micros": 900_000}}, "pool": []body{vmPrice(1_000_003, 0, false)}}

// cost is what a stretch costs up to a moment, worked out anew.
func cost(row api.LedgerRow, until api.Time) int64 {
	if row.Kind == api.LedgerAdjustment {
		return row.AmountMicros
	}
	perHour := new(big.Int)
	if row.Kind == api.LedgerLease {
		perHour.SetInt64(row.Rate.HourMicros * 1024)
	} else {
		cpus := new(big.Int).Mul(big.NewInt(int64(row.VCPUs)*1024), big.NewInt(row.Rate.VCPUHourMicros))
		perHour.Add(cpus, new(big.Int).Mul(big.NewInt(row.MemoryMiB), big.NewInt(row.Rate.GiBHourMicros)))
	}
	total := perHour.Mul(perHour, big.NewInt(int64(until-row.StartedAt)))
	return total.Div(total, big.NewInt(3_600_000*1024)).Int64()
}

// Failure mode 13. A node is silent for ten minutes; a VM there is deleted meanwhile, another's time runs out, and the
// leader dies. Whoever leads when the node is back has its list from before.
func TestTheLedgerIsWhatRanOverSilenceAndFailover(t *testing.T) {
	for _, dies := range []string{"while the node is silent", "when the node is back", "before it writes down what the node says"} {
		t.Run(dies, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, r *rig) {
				r.ready("n1", "n2")
				r.must(operatorToken, "PUT", "/fleet/prices", testPrices)
				r.must(operatorToken, "PATCH", "/fleet/policy", body{"allow_shared_pool_claims": true})
				token := r.tenant("acme", nil)
				r.pool("shared", body{"image": "tiny", "min_ready": 1, "node_selector": body{"host": "n1"}})
				launch := func(name, node string, more body) string {
					b := body{"name": name, "image": "tiny", "node": node, "balloon": body{}}
					maps.Copy(b, more)
					return into[api.LaunchAnswer](t, r.must(token, "POST", "/fleet/vms", b)).VM.ID
				}
				deleted, kept := launch("deleted", "n1", nil), launch("kept", "n1", nil)
				expired := launch("expired", "n1", body{"ttl_seconds": 120})
				claimed := into[api.LaunchAnswer](t, r.must(token, "POST", "/fleet/vms", body{"name": "claimed", "pool": "shared"}))
				if !claimed.Warm {
					t.Errorf("the claim got %+v", claimed)
				}
				n2 := r.node("n2")
				n2.with(func() { n2.failBoots = true })
				broken := launch("broken", "n2", nil)
				r.eventually("the broken one to have failed", time.Minute, func() bool { return r.member(r.leader()).state.View().VM(broken).State == api.StateFailed })
				r.must(token, "DELETE", "/fleet/vms/"+broken, nil)
				n2.with(func() { n2.failBoots = false })
				for _, id := range []string{deleted, kept, expired} {
					r.running(id)
				}
				r.full("shared") // of a spare that boots as its node falls silent nobody hears when it ran first
				n1, kill := r.node("n1"), func(now string) {
					if now == dies {
						old := r.leader()
						r.crash(old)
						r.newLeader(old)
						r.start(old)
						r.serving()
					}
				}
				n1.with(func() { n1.silent = true })
				r.wait(6 * time.Minute)
				if row := r.member(r.leader()).state.View().VM(deleted); row.State != api.StateUnknown {
					t.Errorf("after six minutes of silence the VM is %s", row.State)
				}
				if got := r.as(token, "DELETE", "/fleet/vms/"+deleted, nil); got.status != 204 {
					t.Errorf("deleting a VM of a silent node: %s", got)
				}
				r.wait(2 * time.Minute)
				kill("while the node is silent")
				r.wait(2 * time.Minute)
				if n1.has(expired) != nil || n1.has(deleted) == nil {
					t.Error("the node is to end on its own what expires, and nothing else")
				}
				if dies == "before it writes down what the node says" {
					old := r.leader()
					r.network.Isolate(old) // it may not commit, and the others hear the node
					n1.with(func() { n1.silent = false })
					r.newLeader(old)
					r.wait(5 * time.Second)
					r.network.Rejoin(old)
				} else {
					n1.with(func() { n1.silent = false })
					r.wait(time.Duration(r.random(30)) * time.Millisecond)
				}
				kill("when the node is back")
				r.eventually("the deleted and the expired to be gone", 2*time.Minute, func() bool {
					view := r.member(r.leader()).state.View()
					return view.VM(deleted) == nil && view.VM(expired) == nil && view.VM(kept).State == api.StateRunning && n1.has(deleted) == nil
				})
				r.billedAsRun()
				open := map[string]int{}
				for _, row := range everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?") {
					open[row.VMID] += count(row.EndedAt == 0)
					if row.EndedAt != 0 && row.AmountMicros != cost(row, row.EndedAt) || row.EndedAt == 0 && row.AmountMicros != 0 {
						t.Errorf("row %+v should cost %d", row, cost(row, row.EndedAt))
					}
				}
				if open[deleted]+open[expired]+open[broken] != 0 || open[kept] != 1 || open[claimed.VM.ID] != 1 {
					t.Errorf("open stretches by VM: %v", open)
				}
				var kinds []string
				for _, row := range everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?vm_id="+claimed.VM.ID+"&") {
					kinds = append(kinds, row.Kind+" "+deref(row.Tenant)+" "+row.EndReason)
				}
				if want := []string{"pool  claimed", "vm acme "}; !slices.Equal(kinds, want) {
					t.Errorf("the claimed VM's stretches are %q, want %q", kinds, want)
				}
			})
		})
	}
}

// The node has already ended the VM when the order to delete it comes, and its list comes later.
func TestADeletedVMIsBilledUntilItReallyEnded(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		token := r.tenant("acme", nil)
		a := into[api.LaunchAnswer](t, r.must(token, "POST", "/fleet/vms", body{"image": "tiny", "name": "a"}))
		r.running(a.VM.ID)
		n1 := r.node("n1")
		n1.with(func() { n1.mute = true })
		n1.with(func() { n1.end(a.VM.ID, "its guest shut down") })
		r.wait(20 * time.Second)
		r.must(token, "DELETE", "/fleet/vms/a", nil)
		r.wait(5 * time.Second)
		n1.with(func() { n1.mute = false })
		r.eventually("the VM to be gone", time.Minute, func() bool { return len(r.vms()) == 0 })
		r.billedAsRun()
	})
}

// billing is a fleet with a ledger worth exporting: two tenants, pools, a lease, adjustments, over three days.
func billing(r *rig) (acme, globex string) {
	r.ready("n1", "n2", "n3")
	r.must(operatorToken, "PUT", "/fleet/prices", testPrices)
	r.must(operatorToken, "PATCH", "/fleet/policy", body{"allow_shared_pool_claims": true})
	acme, globex = r.tenant("acme", nil), r.tenant("globex", nil)
	r.lease("acme", "n3", "100h")
	r.pool("shared", body{"image": "tiny", "min_ready": 1})
	for day := range 3 {
		for i := range 4 {
			for _, token := range []string{acme, globex} {
				b := body{"name": fmt.Sprint("vm-", day, "-", i), "image": "tiny", "vcpus": 1 + i, "memory_mib": 500 + 100*i}
				if i == 0 {
					b = body{"name": fmt.Sprint("vm-", day, "-", i), "pool": "shared"}
				}
				id := into[api.LaunchAnswer](r.t, r.must(token, "POST", "/fleet/vms", b)).VM.ID
				r.running(id)
				if i%2 == 1 {
					r.must(token, "DELETE", "/fleet/vms/"+id, nil)
				}
			}
			r.wait(1234 * time.Millisecond)
		}
		r.must(operatorToken, "POST", "/fleet/ledger", body{"tenant": "globex", "amount_micros": -1000 - day, "reason": "an outage, \"half\" a day"})
		r.must(operatorToken, "PUT", "/fleet/prices", body{"currency": "EUR", "vm": []body{vmPrice(11_000_000+int64(day), 0, false)}, "lease": []body{}, "pool": []body{}})
		r.skip(20 * time.Hour)
		r.wait(time.Second)
	}
	r.applied()
	return acme, globex
}

// csvPages reads the ledger as CSV, page by page.
func (r *rig) csvPages(token string, limit int) (records [][]string) {
	r.t.Helper()
	path := "/fleet/ledger"
	if limit > 0 {
		path += fmt.Sprint("?limit=", limit)
	}
	for next := path; ; {
		got := r.must(token, "GET", next, nil, "Accept", "text/csv")
		page, err := csv.NewReader(strings.NewReader(string(got.body))).ReadAll()
		if err != nil || len(page) == 0 || !slices.Equal(page[0], api.LedgerColumns()) {
			r.t.Fatalf("%s: %v in %s", next, err, got)
		}
		if limit > 0 && len(page)-1 > limit {
			r.t.Errorf("a page of %d with limit %d", len(page)-1, limit)
		}
		records = append(records, page[1:]...)
		cursor := got.header.Get("X-Fluxvm-Next-Cursor")
		if cursor == "" {
			return records
		}
		next = fmt.Sprint("/fleet/ledger?limit=", limit, "&cursor=", cursor)
	}
}

func TestTheLedgersExportIsTheSameHoweverItIsRead(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		acme, globex := billing(r)
		whole := everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?limit=500")
		if len(whole) < 30 {
			t.Fatalf("only %d rows", len(whole))
		}
		for _, limit := range []int{1, 7, len(whole) - 1, len(whole)} {
			if diff := cmp.Diff(whole, everything[api.LedgerRow](r, operatorToken, fmt.Sprint("/fleet/ledger?limit=", limit))); diff != "" {
				t.Errorf("in pages of %d (-whole +pages):\n%s", limit, diff)
			}
		}
		var records [][]string
		for _, row := range whole {
			records = append(records, row.Record())
		}
		for _, limit := range []int{0, 1, 10} {
			if diff := cmp.Diff(records, r.csvPages(operatorToken, limit)); diff != "" {
				t.Errorf("as CSV in pages of %d (-JSON +CSV):\n%s", limit, diff)
			}
		}
		before := map[string]string{} // of what is closed, nothing may ever change
		closed := url.QueryEscape(r.member(r.leader()).clock.now().String())
		for _, accept := range []string{"application/json", "text/csv"} {
			for _, token := range []string{operatorToken, acme, globex} {
				path := "/fleet/ledger?limit=500&to=" + closed
				first := string(r.must(token, "GET", path, nil, "Accept", accept).body)
				before[accept+token] = first
				for _, replica := range r.names {
					got, err := r.try(replica, token, "GET", path+"&stale=true", nil, "Accept", accept)
					if err != nil || string(got.body) != first {
						t.Errorf("%s exports another ledger (-leader +%s):\n%s", replica, replica, cmp.Diff(first, string(got.body)))
					}
				}
			}
		}
		own := map[string]int{}
		for _, row := range whole {
			own[deref(row.Tenant)]++
		}
		for tenant, token := range map[string]string{"acme": acme, "globex": globex} {
			for _, path := range []string{"/fleet/ledger?", "/fleet/ledger?tenant=" + tenant + "&", "/fleet/ledger?tenant=globex&", "/fleet/ledger?tenant=operator&"} {
				rows := everything[api.LedgerRow](r, token, path)
				if len(rows) != own[tenant] || slices.ContainsFunc(rows, func(row api.LedgerRow) bool { return deref(row.Tenant) != tenant }) {
					t.Errorf("%s shows %s %d rows, want its own %d", path, tenant, len(rows), own[tenant])
				}
			}
		}
		if own[""] == 0 || len(everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?tenant=operator&")) != own[""] {
			t.Errorf("the operator's own rows: %v", own)
		}
		for kind, want := range map[string]bool{"vm": true, "lease": true, "pool": true, "adjustment": true} {
			rows := everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?kind="+kind+"&")
			if (len(rows) > 0) != want || slices.ContainsFunc(rows, func(row api.LedgerRow) bool { return row.Kind != kind }) {
				t.Errorf("of kind %s: %+v", kind, rows)
			}
		}
		old := r.leader()
		r.crash(old)
		r.newLeader(old)
		r.skip(5 * time.Hour)
		for _, vm := range r.vms() {
			if !vm.Ephemeral || vm.WarmPool == "" {
				r.insist("DELETE", "/fleet/vms/"+vm.ID, nil, "")
			}
		}
		r.must(operatorToken, "POST", "/fleet/ledger", body{"tenant": "acme", "amount_micros": 5, "reason": "later"})
		after := map[string]api.LedgerRow{}
		for _, row := range everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?") {
			after[row.ID] = row
		}
		for _, row := range whole {
			now := after[row.ID]
			if row.EndedAt == 0 {
				row.EndedAt, row.EndReason, row.AmountMicros = now.EndedAt, now.EndReason, now.AmountMicros // it may close, and nothing else
			}
			if diff := cmp.Diff(row, now); diff != "" {
				t.Errorf("row %s has changed (-then +now):\n%s", row.ID, diff)
			}
		}
	})
}

// expected sums the ledger up anew, for a span.
func expected(rows []api.LedgerRow, from, to, now api.Time, by string) map[string]api.UsageItem {
	const day = api.Time(24 * 3600 * 1000)
	ms := map[string][4]int64{}
	out := map[string]api.UsageItem{}
	add := func(row api.LedgerRow, from, to api.Time) {
		key := ""
		for part := range strings.SplitSeq(by, ",") {
			key += "/" + map[string]string{"tenant": deref(row.Tenant), "pool": row.Pool, "day": from.Std().Format(time.DateOnly)}[part]
		}
		item, sums := out[key], ms[key]
		item.AmountMicros += cost(row, to) - cost(row, from)
		n := int64(to - from)
		switch row.Kind {
		case api.LedgerAdjustment:
			item.AmountMicros += row.AmountMicros
		case api.LedgerLease:
			sums[3] += n
		default:
			sums[0], sums[1], sums[2] = sums[0]+n, sums[1]+n*int64(row.VCPUs), sums[2]+n*row.MemoryMiB
		}
		item.VMSeconds, item.VCPUSeconds, item.GiBSeconds, item.LeaseSeconds = sums[0]/1000, sums[1]/1000, sums[2]/1000/1024, sums[3]/1000
		out[key], ms[key] = item, sums
	}
	for _, row := range rows {
		end := row.EndedAt
		if end == 0 {
			end = now
		}
		if row.Kind == api.LedgerAdjustment {
			if row.StartedAt >= from && row.StartedAt < to {
				add(row, row.StartedAt, row.StartedAt)
			}
			continue
		}
		for a, z := max(row.StartedAt, from), min(end, to); a < z; a = (a/day + 1) * day {
			add(row, a, min(z, (a/day+1)*day))
		}
	}
	return out
}

func TestUsageSumsUpToTheLedger(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		acme, _ := billing(r)
		rows := everything[api.LedgerRow](r, operatorToken, "/fleet/ledger?limit=500")
		now := r.member(r.leader()).clock.now()
		first, cut := rows[0].StartedAt, rows[len(rows)/2].StartedAt
		for i := range rows { // a moment at which an adjustment was made belongs to one span only
			if rows[i].Kind == api.LedgerAdjustment {
				cut = rows[i].StartedAt
			}
		}
		spans := [][2]api.Time{{first, now}, {first, cut}, {cut, now}, {now - 1000, now}, {first - 1_000_000, first}}
		for _, by := range []string{"tenant", "pool", "day", "tenant,pool", "tenant,pool,day", "day,tenant"} {
			for _, span := range spans {
				got := into[api.Usage](t, r.must(operatorToken, "GET", fmt.Sprintf("/fleet/usage?group_by=%s&from=%s&to=%s", by, span[0], span[1]), nil))
				want := expected(rows, span[0], span[1], now, by)
				sum := int64(0)
				for _, item := range got.Items {
					key := ""
					for part := range strings.SplitSeq(by, ",") {
						key += "/" + map[string]string{"tenant": deref(item.Tenant), "pool": item.Pool, "day": item.Day}[part]
					}
					sum += item.AmountMicros
					item.Tenant, item.Pool, item.Day = nil, "", ""
					if diff := cmp.Diff(want[key], item); diff != "" {
						t.Errorf("by %s from %s to %s, %s (-ledger +usage):\n%s", by, span[0], span[1], key, diff)
					}
					delete(want, key)
				}
				if len(want) > 0 || sum != got.Total.AmountMicros {
					t.Errorf("by %s from %s to %s: not there %v; items sum up to %d of %d", by, span[0], span[1], want, sum, got.Total.AmountMicros)
				}
			}
		}
		for _, row := range rows {
			if row.EndedAt == 0 || row.EndedAt == row.StartedAt {
				continue
			}
			for _, later := range everything[api.LedgerRow](r, operatorToken, fmt.Sprintf("/fleet/ledger?from=%s&", row.EndedAt)) {
				if later.ID == row.ID {
					t.Errorf("%+v is among the rows from its end on", row)
				}
			}
		}
		whole := func(from, to api.Time) int64 {
			return into[api.Usage](t, r.must(operatorToken, "GET", fmt.Sprintf("/fleet/usage?from=%s&to=%s", from, to), nil)).Total.AmountMicros
		}
		if all, parts := whole(first, now), whole(first, cut)+whole(cut, now); all != parts {
			t.Errorf("the whole costs %d, its two parts %d", all, parts)
		}
		mine := into[api.Usage](t, r.must(acme, "GET", fmt.Sprintf("/fleet/usage?tenant=globex&from=%s&to=%s", first, now), nil))
		if len(mine.Items) != 1 || deref(mine.Items[0].Tenant) != "acme" || mine.Items[0].AmountMicros != expected(rows, first, now, now, "tenant")["/acme"].AmountMicros {
			t.Errorf("a tenant sees usage %+v, want its own", mine)
		}
		for path, field := range map[string]string{"/fleet/usage?group_by=colour": "group_by", "/fleet/usage?from=yesterday": "from", "/fleet/usage?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z": "to", "/fleet/ledger?cursor=x": "cursor"} {
			if got := r.as(operatorToken, "GET", path, nil); got.status != 400 || !strings.Contains(string(got.body), `"field":"`+field+`"`) {
				t.Errorf("%s: %s, want 400 for %s", path, got, field)
			}
		}
	})
}

func TestAnAdjustmentIsMadeOnceWithItsReason(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		token := r.tenant("acme", nil)
		ask := body{"tenant": "acme", "amount_micros": -2_500_000, "reason": "a refund"}
		first := into[api.LedgerRow](t, r.must(operatorToken, "POST", "/fleet/ledger", ask, api.HeaderIdempotencyKey, "k"))
		r.must(operatorToken, "POST", "/fleet/ledger", ask)
		again := into[api.LedgerRow](t, r.must(operatorToken, "POST", "/fleet/ledger", ask, api.HeaderIdempotencyKey, "k"))
		if diff := cmp.Diff(first, again); diff != "" || first.Kind != api.LedgerAdjustment || first.AmountMicros != -2_500_000 || first.EndReason != "a refund" || first.EndedAt != first.StartedAt {
			t.Errorf("the adjustment is %+v, its repeat differs by:\n%s", first, diff)
		}
		if rows := everything[api.LedgerRow](r, token, "/fleet/ledger?"); len(rows) != 2 {
			t.Errorf("%d rows for two adjustments and a repeat", len(rows))
		}
		r.wait(time.Second)
		if got := into[api.Usage](t, r.must(token, "GET", "/fleet/usage", nil)); got.Total.AmountMicros != -5_000_000 {
			t.Errorf("usage sums up to %+v", got.Total)
		}
		for _, bad := range []body{{"tenant": "acme", "amount_micros": 5}, {"tenant": "acme", "reason": "nothing"}, {"tenant": "nobody", "amount_micros": 5, "reason": "r"}} {
			if got := r.as(operatorToken, "POST", "/fleet/ledger", bad); got.status != 400 && got.status != 404 {
				t.Errorf("adjusting by %v: %s", bad, got)
			}
		}
		entry := everything[api.Activity](r, token, "/fleet/activity?")[0]
		if entry.Action != "POST /fleet/ledger" || entry.Actor != "operator" || entry.Detail["reason"] != "a refund" {
			t.Errorf("the tenant's activity log begins with %+v", entry)
		}
	})
}

func TestRatesAreFrozenAtOpeningAndLeasedHostsAreFree(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2", "n3")
		r.must(operatorToken, "PUT", "/fleet/prices", testPrices)
		token := r.tenant("acme", nil)
		l := r.lease("acme", "n3", "1h")
		launch := func(name, node string) string {
			id := into[api.LaunchAnswer](t, r.must(token, "POST", "/fleet/vms", body{"name": name, "image": "tiny", "node": node})).VM.ID
			r.running(id)
			return id
		}
		rate := func(query string) api.Rate {
			rows := everything[api.LedgerRow](r, token, "/fleet/ledger?"+query+"&")
			return rows[len(rows)-1].Rate
		}
		old, free := launch("old", "n1"), launch("free", "n3")
		paid := api.Rate{VCPUHourMicros: 7_000_000, GiBHourMicros: 3_000_001}
		if got := rate("vm_id=" + old); got != paid {
			t.Errorf("a VM on a shared host is charged %+v", got)
		}
		if got := rate("vm_id=" + free); got != (api.Rate{}) {
			t.Errorf("a VM on its tenant's leased host is charged %+v", got)
		}
		if got := rate("lease_id=" + l.ID); got != (api.Rate{HourMicros: 900_000}) {
			t.Errorf("the lease is charged %+v", got)
		}
		r.must(operatorToken, "PUT", "/fleet/prices", body{"currency": "EUR", "vm": []body{vmPrice(1, 0, true)}, "lease": []body{}, "pool": []body{}})
		next, nextOnLeased := launch("next", "n1"), launch("next-on-leased", "n3")
		for vm, want := range map[string]api.Rate{old: paid, free: {}, next: {VCPUHourMicros: 1}, nextOnLeased: {VCPUHourMicros: 1}} {
			if got := rate("vm_id=" + vm); got != want {
				t.Errorf("after new prices VM %s is charged %+v, want %+v", vm, got, want)
			}
		}
		// A host that is leased while its tenant's VM runs there: from then on the VM is charged as on a leased host.
		r.must(operatorToken, "PUT", "/fleet/prices", testPrices)
		moved := launch("moved", "n2")
		r.lease("acme", "n2", "1h")
		var rates []api.Rate
		for _, row := range everything[api.LedgerRow](r, token, "/fleet/ledger?vm_id="+moved+"&") {
			rates = append(rates, row.Rate)
		}
		if !slices.Equal(rates, []api.Rate{paid, {}}) {
			t.Errorf("a VM whose host was leased under it is charged %+v", rates)
		}
		r.billedAsRun()
	})
}
