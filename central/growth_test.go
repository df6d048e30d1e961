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
		for range 3 { // one at a time, each once all is quiet
			before = r.entries()
			got := r.call(r.leader(), "POST", "/fleet/vms", body{"pool": "p0"})
			if n := r.entries() - before; n != 1 || !strings.Contains(string(got.body), `"warm":true`) {
				t.Errorf("%.0f entries before the answer %s, want one and a warm VM", n, got)
			}
			r.full("p0")
			r.wait(time.Second)
		}
	})
}

// growth holds what something allocates at 4n to what it allocates at n and each allocations for each of the 3n more.
// A third of an allocation each is let pass: trees are higher, and of what a sync.Pool keeps the race detector drops some.
func growth(t *testing.T, what string, n int, each float64, at func(n int) func()) {
	t.Helper()
	small, large := testing.AllocsPerRun(20, at(n)), testing.AllocsPerRun(20, at(4*n))
	most := small + (each+1./3)*float64(3*n)
	t.Logf("%s: %.0f allocations at %d, %.0f at %d", what, small, n, large, 4*n)
	if large > most {
		t.Errorf("%s: %.0f allocations at %d and %.0f at %d, want %.0f at most", what, small, n, large, 4*n, most)
	}
}

func TestPlacementAllocatesNothingForAHost(t *testing.T) {
	growth(t, "placement", 250, 0, func(hosts int) func() {
		g, state, _ := crowded(t, hosts)
		return func() {
			if body, err := g.rankLaunch(state.View(), "id", fsm.Launch{Image: "linux", Name: "a", ColdField: "balloon"}); err != nil || len(body.Candidates) != maxCandidates {
				t.Fatal(body, err)
			}
		}
	})
}

func TestAListOfVMsAllocatesNothingForAVMThatItHasShownBefore(t *testing.T) {
	growth(t, "list", 100, 0, func(vms int) func() {
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
	})
}

func TestABeatAllocatesForEachVMOnce(t *testing.T) {
	growth(t, "beat", 50, 5, func(vms int) func() {
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
	})
}

// walks holds how many rows are gone through for something at 4n to how many are at n.
func walks(t *testing.T, what string, n int, at func(n int) (*fsm.State, func()), most func(small uint64) uint64) {
	t.Helper()
	count := func(n int) uint64 {
		state, do := at(n)
		do() // what is kept is there then
		before := state.View().Walked()
		do()
		return state.View().Walked() - before
	}
	small, large := count(n), count(4*n)
	t.Logf("%s: %d rows at %d, %d at %d", what, small, n, large, 4*n)
	if large > most(small) {
		t.Errorf("%s: %d rows are gone through at %d and %d at %d, want %d at most", what, small, n, large, 4*n, most(small))
	}
}

func asMany(small uint64) uint64 { return small }

// bigFleet is crowded with VMs of one tenant, which has a quota, and with one full pool of its own.
func bigFleet(t *testing.T, hosts, vms int) (*reign, *fsm.State, func(fsm.Kind, any)) {
	t.Helper()
	g, state, do := crowded(t, hosts)
	limit := int64(1 << 20)
	do(fsm.KindCreateTenant, fsm.CreateTenant{Request: api.TenantRequest{Name: "acme", Quota: api.Quota{MaxVMs: &limit, MaxVCPUs: &limit, MaxMemoryMiB: &limit}}})
	for i := range vms {
		do(fsm.KindLaunchVM, fsm.LaunchVM{ID: fmt.Sprintf("vm-%05d", i), Launch: small(fmt.Sprint("vm-", i)), Candidates: []string{fmt.Sprintf("host-%05d", i%hosts)}})
	}
	return g, state, do
}

func small(name string) fsm.Launch {
	return fsm.Launch{Tenant: "acme", Image: "linux", Name: name, VCPUs: 1, MemoryMiB: 1, ColdField: "balloon"}
}

// spares fills pools: spare i of a pool is on host i.
func spares(t *testing.T, state *fsm.State, do func(fsm.Kind, any), pools, each int) {
	t.Helper()
	for p := range pools {
		name := fmt.Sprint("p", p)
		do(fsm.KindCreatePool, fsm.CreatePool{Request: api.PoolRequest{Name: name, Image: "linux", MinReady: &each}})
		for i := range each {
			vm, node := fmt.Sprintf("%s-%02d", name, i), fmt.Sprintf("host-%05d", i)
			do(fsm.KindFillPool, fsm.FillPool{Pool: name, Spares: []fsm.Spare{{ID: vm, Name: vm, Candidates: []string{node}}}})
			do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: vm, Node: node, Told: state.View().VM(vm).Order, State: api.StateRunning, Agent: true}}})
		}
	}
}

// launching launches, each time another VM: ranked, committed, its tenant's quota checked.
func launching(t *testing.T, g *reign, state *fsm.State, do func(fsm.Kind, any), of func(name string) fsm.Launch) func() {
	i := 0
	return func() {
		i++
		l := of(fmt.Sprint("new-", i))
		body, err := g.rankLaunch(state.View(), l.Name, l)
		if err != nil {
			t.Fatal(err)
		}
		do(fsm.KindLaunchVM, body)
	}
}

func TestALaunchGoesThroughAsManyRowsInALargeFleet(t *testing.T) {
	inHosts := func(hosts int) (*fsm.State, func()) {
		g, state, do := bigFleet(t, hosts, 50)
		return state, launching(t, g, state, do, small)
	}
	inVMs := func(vms int) (*fsm.State, func()) { // all are of the tenant that launches
		g, state, do := bigFleet(t, 100, vms)
		return state, launching(t, g, state, do, small)
	}
	inPools := func(pools int) (*fsm.State, func()) {
		g, state, do := bigFleet(t, 40, 0)
		spares(t, state, do, pools, 8)
		return state, launching(t, g, state, do, func(name string) fsm.Launch { return fsm.Launch{Name: name, Pool: "p0"} })
	}
	walks(t, "launch, by hosts", 100, inHosts, asMany)
	walks(t, "launch, by VMs of its tenant", 100, inVMs, asMany)
	walks(t, "claim, by pools", 4, inPools, asMany)
	for what, at := range map[string]func(int) (*fsm.State, func()){"launch, by hosts": inHosts, "launch, by VMs of its tenant": inVMs} {
		growth(t, what, 100, 0, func(n int) func() { _, do := at(n); return do })
	}
}

func TestAPageGoesThroughWhatItShowsAndNoMore(t *testing.T) {
	walks(t, "page", 150, func(vms int) (*fsm.State, func()) {
		_, state, _ := bigFleet(t, 40, vms)
		return state, func() {
			after := fmt.Sprintf("vm-%05d", vms-110)
			list := listPage(page{limit: 100, after: after}, state.View().VMs(after), func(v *fsm.VM) string { return v.ID }, all[*fsm.VM], func(v *fsm.VM) string { return v.ID })
			if len(list.Items) != 100 || list.NextCursor == nil {
				t.Fatal(len(list.Items))
			}
		}
	}, asMany)
}

func TestAHostsReportIsHeldToItsOwnVMsAlone(t *testing.T) {
	looking := func(g *reign, state *fsm.State) (*fsm.State, func()) {
		return state, func() {
			if news, strangers := observe(state.View(), "host-00000", g.r.fleet.get("host-00000"), time.Now()); len(news)+len(strangers) > 0 {
				t.Fatal(news, strangers)
			}
		}
	}
	walks(t, "report, by VMs elsewhere", 100, func(vms int) (*fsm.State, func()) {
		g, state, do := bigFleet(t, vms, vms) // one on each host
		do(fsm.KindLaunchVM, fsm.LaunchVM{ID: "one-more", Launch: small("one-more"), Candidates: []string{"host-00000"}})
		heard(g, state)
		return looking(g, state)
	}, asMany)
	walks(t, "report, by VMs of the host", 3, func(vms int) (*fsm.State, func()) {
		g, state, _ := bigFleet(t, 1, vms)
		heard(g, state)
		return looking(g, state)
	}, func(small uint64) uint64 { return 4 * small })
}

// heard lets the first host report the VMs that it has.
func heard(g *reign, state *fsm.State) {
	report := api.Register{Name: "host-00000", UUID: "uuid-host-00000", Instance: "1", BootID: "1", HasVMs: true, CPUOvercommit: 1}
	for v := range state.View().VMsOn(report.Name) {
		report.VMs = append(report.VMs, api.ReportedVM{ID: v.ID, Name: v.Name, State: api.StateRunning})
	}
	g.r.fleet.hear(report, "secret", time.Now())
}

func TestAPassGoesThroughThePoolsAndTheSparesOfThoseThatChanged(t *testing.T) {
	passing := func(t *testing.T, pools, each int) (*fsm.State, func(), func()) {
		g, state, do := bigFleet(t, 40, 0)
		g.r.cfg.PoolInterval, g.r.clock = time.Hour, &leaderClock{wall: time.Now}
		spares(t, state, do, pools, each)
		pass := func() {
			if err := g.passPools(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		g.r.clock.committed(state.View().Meta().Now, false)
		pass() // the first looks at all
		return state, pass, func() {
			spare := state.View().VM("p0-00")
			do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: spare.ID, Node: spare.Node, Told: spare.Order, State: api.StateRunning, Agent: true, IP: fmt.Sprint("10.0.0.", state.View().Index()%200)}}})
			pass()
		}
	}
	walks(t, "pass in which nothing has happened, by spares", 4, func(each int) (*fsm.State, func()) {
		state, pass, _ := passing(t, 4, each)
		return state, pass
	}, asMany)
	walks(t, "pass in which nothing has happened, by pools", 3, func(pools int) (*fsm.State, func()) {
		state, pass, _ := passing(t, pools, 4)
		return state, pass
	}, func(small uint64) uint64 { return 4 * small })
	walks(t, "pass after a change of one pool, by spares of the others", 2, func(others int) (*fsm.State, func()) {
		state, _, changed := passing(t, others, 4)
		return state, changed
	}, func(small uint64) uint64 { return small + 3*2 }) // the pools themselves
}
