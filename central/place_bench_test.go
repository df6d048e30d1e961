package central

import (
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// crowded is a leader's view of so many hosts that have all reported. What is needed of a log and of ports is not there.
func crowded(t testing.TB, hosts int) (*reign, *fsm.State, func(kind fsm.Kind, body any)) {
	t.Helper()
	state := fsm.New()
	index := uint64(0)
	do := func(kind fsm.Kind, body any) {
		t.Helper()
		index++
		raw, err := fsm.Encode(fsm.Envelope{Kind: kind, Now: 1_000_000 + api.Time(index), Term: 1, Actor: "test"}, body)
		if err != nil {
			t.Fatal(err)
		}
		if result, err := state.Apply(index, raw); err != nil || result.Err != nil {
			t.Fatal(err, result.Err)
		}
	}
	do(fsm.KindInitCluster, fsm.InitCluster{ClusterID: "this", Epoch: 1, OperatorHash: "h"})
	do(fsm.KindCreateImage, fsm.CreateImage{Image: api.ImageRequest{Name: "linux", Path: "sim:?linux", VCPUs: 1, MemoryMiB: 512, HasAgent: true}})
	r := &Replica{state: state, fleet: newFleet(time.Now()), calls: newNodeCaller(nil, time.Now), wall: time.Now}
	r.hosts = newHosts(state, r.fleet, r.calls.lanes)
	for i := range hosts {
		n := host(fmt.Sprintf("host-%05d", i))
		do(fsm.KindRegisterNode, fsm.RegisterNode{Node: n, Operator: true})
		r.fleet.hear(api.Register{Name: n.Name, UUID: n.UUID, Instance: "1", URL: n.URL, HasVMs: true, CPUOvercommit: 1, Density: api.Density{HostMemAvailableMiB: int64(60_000 - i%97)}}, "secret", time.Now())
	}
	return &reign{r: r}, state, do
}

// TestPlacementBench compares the ranking of 10,000 hosts for a launch with a bare scan of their rows, in turns. Between
// two rankings something is placed, as it is in a fleet at work. It is a measurement, run only when it is named.
func TestPlacementBench(t *testing.T) {
	if !strings.Contains(flag.Lookup("test.run").Value.String(), t.Name()) {
		t.Skip("a measurement; run it by its name")
	}
	g, state, do := crowded(t, 10_000)
	const pairs, blockTime = 6, 2 * time.Second
	median := func(block func() time.Duration) float64 {
		var took []time.Duration
		for began := time.Now(); time.Since(began) < blockTime; {
			took = append(took, block())
		}
		slices.Sort(took)
		return float64(took[len(took)/2]) / float64(time.Millisecond)
	}
	placed, free := 0, int64(0)
	scan := func() time.Duration {
		began := time.Now()
		for n := range state.View().Nodes("") {
			if n.State == api.NodeHealthy {
				free += n.MemoryMiBTotal
			}
		}
		return time.Since(began)
	}
	l := fsm.Launch{Image: "linux", ColdField: "balloon"}
	place := func() time.Duration {
		began := time.Now()
		body, err := g.rankLaunch(state.View(), fmt.Sprint("vm-", placed), l)
		took := time.Since(began)
		if err != nil || len(body.Candidates) != maxCandidates {
			t.Fatalf("ranked %v, %v", body.Candidates, err)
		}
		body.Launch.Name = body.ID
		do(fsm.KindLaunchVM, body)
		placed++
		return took
	}
	var out struct{ Ratios, BaselineMS []float64 }
	for range pairs {
		base := median(scan)
		out.BaselineMS = append(out.BaselineMS, base)
		out.Ratios = append(out.Ratios, median(place)/base)
	}
	if free == 0 || placed == 0 {
		t.Fatal("nothing was measured")
	}
	raw, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("BENCH %s\n", raw)
}
