package central

import (
	"fmt"
	"testing"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// BenchmarkGrowth shows how parts of the work grow: go test ./central -run '^$' -bench Growth
func BenchmarkGrowth(b *testing.B) {
	for _, hosts := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("placement/hosts=%d", hosts), func(b *testing.B) {
			g, state, do := crowded(b, hosts)
			for i := 0; b.Loop(); i++ {
				body, err := g.rankLaunch(state.View(), fmt.Sprint("vm-", i), fsm.Launch{Image: "linux", Name: fmt.Sprint("vm-", i), VCPUs: 1, MemoryMiB: 1, ColdField: "balloon"})
				if err != nil {
					b.Fatal(err)
				}
				if i%16 == 0 && i/16 < 15*hosts { // as it would be with some of them placed
					b.StopTimer()
					do(fsm.KindLaunchVM, body)
					b.StartTimer()
				}
			}
		})
	}
	for _, hosts := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("placement-by-labels/hosts=%d", hosts), func(b *testing.B) { // of each host more is looked at than its room
			g, state, _ := crowded(b, hosts)
			l := fsm.Launch{Image: "linux", Name: "vm", VCPUs: 1, MemoryMiB: 1, ColdField: "balloon", Selector: map[string]string{"zone": "lab"}}
			for b.Loop() {
				if body, err := g.rankLaunch(state.View(), "vm", l); err != nil || len(body.Candidates) != maxCandidates {
					b.Fatal(body, err)
				}
			}
		})
	}
	for _, pools := range []int{4, 16, 60} {
		b.Run(fmt.Sprintf("pass/pools=%d", pools), func(b *testing.B) {
			_, state, do := crowded(b, 200)
			ready, id := api.MaxMinReady, 0
			for p := range pools {
				name := fmt.Sprint("p", p)
				do(fsm.KindCreatePool, fsm.CreatePool{Request: api.PoolRequest{Name: name, Image: "linux", MinReady: &ready}})
				for range ready {
					id++
					vm := fmt.Sprintf("s-%05d", id)
					node := fmt.Sprintf("host-%05d", id%200)
					do(fsm.KindFillPool, fsm.FillPool{Pool: name, Spares: []fsm.Spare{{ID: vm, Name: vm, Candidates: []string{node}}}})
					do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: vm, Node: node, Told: state.View().VM(vm).Order, State: api.StateRunning, Agent: true}}})
				}
			}
			for b.Loop() {
				view := state.View()
				for p := range view.Pools("") {
					if plan := decidePool(view, p, view.Meta().Now); plan.fill != 0 || len(plan.drops) > 0 {
						b.Fatalf("%+v", plan)
					}
				}
			}
		})
	}
	for _, vms := range []int{100, 1000, 10_000} {
		list := func(b *testing.B, first bool) {
			_, state, do := crowded(b, vms/10)
			for i := range vms {
				do(fsm.KindLaunchVM, fsm.LaunchVM{ID: fmt.Sprintf("vm-%05d", i), Launch: fsm.Launch{Image: "linux", Name: fmt.Sprint("vm-", i), VCPUs: 1, MemoryMiB: 1, ColdField: "balloon"}, Candidates: []string{fmt.Sprintf("host-%05d", i%(vms/10))}})
			}
			var kept encodedVMs
			for b.Loop() {
				if first {
					kept.of = nil
				}
				for after, more := "", true; more; {
					list := listPage(page{limit: maxLimit, after: after}, state.View().VMs(after), func(v *fsm.VM) string { return v.ID }, all[*fsm.VM], kept.vm)
					if joined(list); list.NextCursor != nil {
						after = fmt.Sprintf("vm-%05d", min(vms-1, indexAfter(after)+maxLimit))
					} else {
						more = false
					}
				}
			}
		}
		b.Run(fmt.Sprintf("list/vms=%d", vms), func(b *testing.B) { list(b, false) })
		b.Run(fmt.Sprintf("first-list/vms=%d", vms), func(b *testing.B) { list(b, true) })
	}
}

// indexAfter is the number in the id of the last VM of a page, -1 before the first.
func indexAfter(id string) (n int) {
	if _, err := fmt.Sscanf(id, "vm-%d", &n); err != nil {
		return -1
	}
	return n
}
