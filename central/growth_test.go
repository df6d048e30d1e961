package central

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// The tests of this file hold what make bench measures to what no noise can explain: counts.

// entries is how many commands the leader has carried out.
func (r *rig) entries() (n float64) {
	r.t.Helper()
	_, rest, _ := strings.Cut(string(r.call(r.leader(), "GET", "/metrics", nil).body), "\nfluxvm_commands_applied_total ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestAClaimTakesOneEntryAndSharesTheRest(t *testing.T) {
	const pools, claims = 16, 64
	scenario(t, 3, func(t *testing.T, r *rig) {
		for i := range 4 {
			r.addNode(fmt.Sprint("n", i), nil)
		}
		r.registered()
		r.image("tiny")
		for i := range pools {
			r.pool(fmt.Sprint("p", i), body{"image": "tiny", "min_ready": claims / pools})
		}
		for i := range pools {
			r.full(fmt.Sprint("p", i))
		}
		before := r.entries()
		var answers []<-chan reply
		for i := range claims {
			answers = append(answers, r.ask(r.leader(), "POST", "/fleet/vms", body{"pool": fmt.Sprint("p", i%pools)}))
		}
		warm := 0
		for _, one := range answers {
			if got := <-one; strings.Contains(string(got.body), `"warm":true`) {
				warm++
			} else {
				t.Error(got)
			}
		}
		answered := r.entries()
		for i := range pools {
			r.full(fmt.Sprint("p", i))
		}
		r.wait(time.Second)
		all := r.entries() - before
		t.Logf("%d warm claims: %.0f entries when the last was answered, %.0f with outcomes and refill", warm, answered-before, all)
		if answered-before < claims || all > 1.5*claims {
			t.Errorf("%.0f entries for %d claims, want one for each and half as many more at most", all, claims)
		}
	})
}

// growth holds what something allocates at 4n to what it allocates at n.
func growth(t *testing.T, what string, n int, at func(n int) func(), most func(small float64) float64) {
	t.Helper()
	small, large := testing.AllocsPerRun(20, at(n)), testing.AllocsPerRun(20, at(4*n))
	t.Logf("%s: %.0f allocations at %d, %.0f at %d", what, small, n, large, 4*n)
	if large > most(small) {
		t.Errorf("%s: %.0f allocations at %d and %.0f at %d, want %.0f at most", what, small, n, large, 4*n, most(small))
	}
}

func TestPlacementAllocatesNothingForAHost(t *testing.T) {
	growth(t, "placement", 250, func(hosts int) func() {
		g, state, _ := crowded(t, hosts)
		return func() {
			if body, err := g.rankLaunch(state.View(), "id", fsm.Launch{Image: "linux", Name: "a", ColdField: "balloon"}); err != nil || len(body.Candidates) != maxCandidates {
				t.Fatal(body, err)
			}
		}
	}, func(small float64) float64 { return small + 2 })
}

func TestAListOfVMsAllocatesNothingForAVMThatItHasShownBefore(t *testing.T) {
	growth(t, "list", 100, func(vms int) func() {
		_, state, do := crowded(t, 40)
		for i := range vms {
			do(fsm.KindLaunchVM, fsm.LaunchVM{ID: fmt.Sprintf("vm-%04d", i), Launch: fsm.Launch{Image: "linux", Name: fmt.Sprint("vm-", i), VCPUs: 1, MemoryMiB: 1, ColdField: "balloon"}, Candidates: []string{fmt.Sprintf("host-%05d", i%40)}})
		}
		var kept encodedVMs
		return func() {
			list := listPage(page{limit: maxLimit}, state.View().VMs(""), func(v *fsm.VM) string { return v.ID }, all[*fsm.VM], kept.vm)
			if raw := joined(list); len(list.Items) != vms || len(raw) < 100*vms {
				t.Fatal(len(list.Items), len(raw))
			}
		}
	}, func(small float64) float64 { return small + 16 }) // slices that grow
}

func TestABeatAllocatesForEachVMOnce(t *testing.T) {
	growth(t, "beat", 50, func(vms int) func() {
		report := api.Register{Name: "n", UUID: "u", Instance: "1", HasVMs: true, CPUOvercommit: 1}
		for i := range vms {
			report.VMs = append(report.VMs, api.ReportedVM{ID: fmt.Sprint("vm-", i), Name: fmt.Sprint("name-", i), State: api.StateRunning, VCPUs: 1, MemoryMiB: 512, Agent: true, IP: "10.0.0.1"})
		}
		raw, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		f := newFleet(time.Now())
		return func() {
			var heard api.Register
			if err := api.Decode(raw, &heard); err != nil {
				t.Fatal(err)
			}
			f.hear(heard, "secret", time.Now())
		}
	}, func(small float64) float64 { return 5 * small })
}
