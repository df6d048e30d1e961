package central

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// listing is a beat with the whole list.
func (f *fleet) listing(node string, at time.Time, digest string, vms ...api.ReportedVM) *beat {
	f.hear(api.Register{Name: node, Instance: "i", BootID: "1", VMsDigest: digest, HasVMs: true, VMs: vms}, "secret", at)
	return f.get(node)
}

func on(id string, state api.VMState) api.ReportedVM {
	return api.ReportedVM{ID: id, State: state, Agent: state == api.StateRunning, Cluster: "this", VCPUs: 1, MemoryMiB: 128}
}

func TestNewsIsWhatARowDoesNotSay(t *testing.T) {
	confirmed := func(w *world, state api.VMState) { w.vm("a", "linux", "n1", 1, 128); w.report("a", state) }
	with := func(vm api.ReportedVM, change func(*api.ReportedVM)) api.ReportedVM { change(&vm); return vm }
	for name, c := range map[string]struct {
		set  func(*world)
		says api.ReportedVM
		want string // state of the news; empty for none
	}{
		"nothing new": {func(w *world) { confirmed(w, api.StateRunning) }, on("a", api.StateRunning), ""},
		"it runs now": {func(w *world) { confirmed(w, api.StateBooting) }, on("a", api.StateRunning), "running"},
		"it stopped":  {func(w *world) { confirmed(w, api.StateRunning) }, on("a", api.StateStopped), "stopped"},
		"its agent answers now": {func(w *world) {
			w.vm("a", "linux", "n1", 1, 128)
			w.do(fsm.KindReportVMs, fsm.ReportVMs{Reports: []fsm.VMReport{{ID: "a", Node: "n1", Told: w.row("a").Order, State: api.StateRunning}}})
		}, on("a", api.StateRunning), "running"},
		"it has an address":            {func(w *world) { confirmed(w, api.StateRunning) }, with(on("a", api.StateRunning), func(vm *api.ReportedVM) { vm.IP = "10.0.0.9" }), "running"},
		"another reason":               {func(w *world) { confirmed(w, api.StateFailed) }, with(on("a", api.StateFailed), func(vm *api.ReportedVM) { vm.Reason = "kernel panic" }), "failed"},
		"not while its node is silent": {func(w *world) { confirmed(w, api.StateRunning); w.health("n1", api.NodeUnreachable) }, on("a", api.StateRunning), ""},
		"of an unknown one": {func(w *world) {
			confirmed(w, api.StateRunning)
			w.health("n1", api.NodeUnreachable)
			w.health("n1", api.NodeHealthy)
		}, on("a", api.StateRunning), "running"},
		"an unconfirmed order is not news":   {func(w *world) { w.vm("a", "linux", "n1", 1, 128) }, on("a", api.StateRunning), ""},
		"placed says nothing":                {func(w *world) { confirmed(w, api.StateBooting) }, on("a", api.StatePlaced), ""},
		"nor does the end it is coming to":   {func(w *world) { confirmed(w, api.StateRunning) }, on("a", api.StateDeleting), ""},
		"nor a state that is not its to say": {func(w *world) { confirmed(w, api.StateRunning) }, on("a", "hibernated"), ""},
		"a deleted one may still run": {func(w *world) {
			confirmed(w, api.StateRunning)
			w.do(fsm.KindDeleteVMs, fsm.DeleteVMs{IDs: []string{"a"}})
		}, on("a", api.StateRunning), ""},
		"a tombstone ends it": {func(w *world) { confirmed(w, api.StateRunning) }, on("a", api.StateGone), "gone"},
		"and one that is being deleted": {func(w *world) {
			confirmed(w, api.StateRunning)
			w.do(fsm.KindDeleteVMs, fsm.DeleteVMs{IDs: []string{"a"}})
		}, on("a", api.StateGone), "gone"},
		"not one whose order is unconfirmed": {func(w *world) { w.vm("a", "linux", "n1", 1, 128) }, on("a", api.StateGone), ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.image("linux", api.GuestLinux)
			w.node(host("n1"))
			c.set(w)
			now := time.Now()
			news, strangers := observe(w.view(), "n1", newFleet(now).listing("n1", now, "1", c.says), now)
			got := ""
			if len(news) > 0 {
				got = string(news[0].State)
			}
			if got != c.want || len(news) > 1 || len(strangers) > 0 {
				t.Errorf("news %+v and strangers %v, want %q and none", news, strangers, c.want)
			}
			if c.want == "" || c.want == "gone" {
				return
			}
			w.do(fsm.KindReportVMs, fsm.ReportVMs{Reports: news})
			if news, _ := observe(w.view(), "n1", newFleet(now).listing("n1", now, "1", c.says), now); len(news) > 0 {
				t.Errorf("committed it is still news: %+v", news)
			}
		})
	}
}

func TestAVMIsGoneOnlyAfterTwoListsWellApart(t *testing.T) {
	w := newWorld(t)
	w.image("linux", api.GuestLinux)
	w.node(host("n1"))
	for _, id := range []string{"missing", "unconfirmed", "back"} {
		w.vm(id, "linux", "n1", 1, 128)
	}
	w.report("missing", api.StateRunning)
	w.report("back", api.StateRunning)
	start := time.Now()
	f := newFleet(start)
	gone := func(b *beat, now time.Time) (out []string) {
		news, _ := observe(w.view(), "n1", b, now)
		for _, n := range news {
			if n.State == api.StateGone {
				out = append(out, n.ID)
			}
		}
		slices.Sort(out)
		return out
	}
	after := func(d time.Duration) time.Time { return start.Add(d) }
	first := f.listing("n1", start, "1")
	for _, d := range []time.Duration{0, time.Second, time.Hour} { // one list, looked at again and again
		if got := gone(first, after(d)); got != nil {
			t.Errorf("after one list and %s: gone %v", d, got)
		}
	}
	if got := gone(f.listing("n1", after(time.Second), "2", on("back", api.StateRunning)), after(time.Second)); got != nil {
		t.Errorf("after two lists 1 s apart: gone %v", got)
	}
	third := f.listing("n1", after(4*time.Second), "3")
	if diff := cmp.Diff([]string{"missing"}, gone(third, after(4*time.Second))); diff != "" {
		t.Errorf("after lists 4 s apart (-want +got):\n%s", diff)
	}
	last := f.listing("n1", after(8*time.Second), "4")
	if diff := cmp.Diff([]string{"back", "missing"}, gone(last, after(8*time.Second))); diff != "" {
		t.Errorf("one that had been back is counted anew (-want +got):\n%s", diff)
	}
}

func TestStrangersOfThisClusterAreRemovedAfterTenMinutesAndWhatIsElsewhereSoon(t *testing.T) {
	w := newWorld(t)
	w.image("linux", api.GuestLinux)
	w.node(host("n1"))
	w.node(host("n2"))
	w.vm("known", "linux", "n1", 1, 128)
	w.vm("elsewhere", "linux", "n2", 1, 128)
	start := time.Now()
	f := newFleet(start)
	other := on("other", api.StateRunning)
	other.Cluster = "that"
	direct := on("direct", api.StateRunning)
	direct.Cluster = ""
	list := []api.ReportedVM{on("known", api.StateRunning), on("stranger", api.StateRunning), on("elsewhere", api.StateRunning), on("buried", api.StateGone), other, direct}
	for at, want := range map[time.Duration][]string{0: nil, 2 * time.Second: nil, 3 * time.Second: {"elsewhere"}, 9 * time.Minute: {"elsewhere"}} {
		f = newFleet(start)
		observe(w.view(), "n1", f.listing("n1", start, "1", list...), start)
		if _, got := observe(w.view(), "n1", f.listing("n1", start.Add(at), "1", list...), start.Add(at)); !slices.Equal(got, want) {
			t.Errorf("after %s: strangers %v, want %v", at, got, want)
		}
	}
	observe(w.view(), "n1", f.listing("n1", start, "1", list...), start)
	_, got := observe(w.view(), "n1", f.listing("n1", start.Add(11*time.Minute), "1", list...), start.Add(11*time.Minute))
	slices.Sort(got)
	if diff := cmp.Diff([]string{"elsewhere", "stranger"}, got); diff != "" {
		t.Errorf("strangers (-want +got):\n%s", diff)
	}
	// One beat alone is not enough, however long ago it was.
	f = newFleet(start)
	alone := f.listing("n1", start, "1", list...)
	observe(w.view(), "n1", alone, start)
	if _, got := observe(w.view(), "n1", alone, start.Add(time.Hour)); len(got) > 0 {
		t.Errorf("after one beat: strangers %v, want none", got)
	}
}

func TestHealthOfANode(t *testing.T) {
	listed := &beat{vms: map[string]*api.ReportedVM{}}
	const healthy, suspect, gone, lost = api.NodeHealthy, api.NodeSuspect, api.NodeUnreachable, api.NodeLost
	for _, c := range []struct {
		was            api.NodeState
		silence, reign time.Duration
		beat           *beat
		want           api.NodeState
	}{
		{healthy, 0, 0, listed, healthy},
		{healthy, 29 * time.Second, time.Hour, listed, healthy},
		{healthy, 30 * time.Second, time.Hour, listed, suspect},
		{healthy, 30 * time.Second, 0, nil, suspect},
		{healthy, time.Hour, 4 * time.Minute, listed, suspect}, // a new leader waits a whole window
		{suspect, time.Hour, 4 * time.Minute, listed, suspect},
		{suspect, 5 * time.Minute, 5 * time.Minute, listed, gone},
		{healthy, 5 * time.Minute, 5 * time.Minute, nil, gone},
		{gone, time.Hour, time.Hour, nil, gone},
		{gone, time.Hour, time.Minute, nil, gone},
		{lost, time.Hour, time.Hour, nil, lost},
		{suspect, time.Second, time.Hour, nil, suspect}, // back, but what it has is not known yet
		{suspect, time.Second, time.Hour, &beat{}, suspect},
		{suspect, time.Second, time.Hour, listed, healthy},
		{gone, time.Second, time.Hour, &beat{}, gone},
		{gone, time.Second, time.Hour, listed, healthy},
		{lost, time.Second, time.Hour, listed, healthy},
		{healthy, time.Second, time.Hour, &beat{fault: "twins"}, suspect},
		{gone, time.Second, time.Hour, &beat{fault: "twins"}, gone},
		{suspect, time.Second, time.Hour, &beat{vms: listed.vms, report: api.Register{BootID: "another"}}, suspect}, // its boot is not committed
	} {
		if got, _ := healthOf(&fsm.Node{State: c.was}, c.silence, c.reign, 0, c.beat); got != c.want {
			t.Errorf("%s, silent for %s in a reign of %s, listed %t: got %s, want %s", c.was, c.silence, c.reign, c.beat != nil && c.beat.vms != nil, got, c.want)
		}
	}
}

func TestAPolicyCallsAHostLostAfterAWholeWindowUnderOneLeader(t *testing.T) {
	const after = 10 * time.Minute
	for _, c := range []struct {
		was            api.NodeState
		silence, reign time.Duration
		want           api.NodeState
	}{
		{api.NodeUnreachable, after - 1, time.Hour, api.NodeUnreachable},
		{api.NodeUnreachable, time.Hour, after - 1, api.NodeUnreachable},
		{api.NodeUnreachable, after, after, api.NodeLost},
		{api.NodeSuspect, after, after, api.NodeLost},
		{api.NodeLost, time.Hour, 0, api.NodeLost},
	} {
		if got, _ := healthOf(&fsm.Node{State: c.was}, c.silence, c.reign, after, nil); got != c.want {
			t.Errorf("%s, silent for %s in a reign of %s: got %s, want %s", c.was, c.silence, c.reign, got, c.want)
		}
	}
}

func TestABeatAsksForTheListOnlyWhenItHasChanged(t *testing.T) {
	now := time.Now()
	f := newFleet(now)
	beat := func(digest, instance string) bool {
		now = now.Add(time.Second)
		want, _ := f.hear(api.Register{Name: "n", Instance: instance, VMsDigest: digest}, "", now)
		return want
	}
	if !beat("1", "i") {
		t.Error("a first beat without the list must be asked for it")
	}
	f.listing("n", now, "1", on("a", api.StateRunning))
	if beat("1", "i") {
		t.Error("the list is known and was asked for again")
	}
	if !beat("2", "i") || f.get("n").vms != nil {
		t.Error("another digest: the list must be asked for, and the old one not be used")
	}
	f.listing("n", now, "2", on("a", api.StateRunning))
	if !beat("2", "j") {
		t.Error("another daemon with the same digest must be asked for its list")
	}
	if got := f.get("n").credential; got != "secret" {
		t.Errorf("credential: got %q, want the one heard before", got)
	}
	if got := f.silence("n", now.Add(time.Minute)); got != time.Minute {
		t.Errorf("silence: got %s, want 1m", got)
	}
	if got := f.silence("never", f.started.Add(time.Hour)); got != time.Hour {
		t.Errorf("silence of a node not heard: got %s, want the time since the start", got)
	}
}

func TestWhatANodeSaysAtLengthIsCut(t *testing.T) {
	now := time.Now()
	long := on("a", api.StateFailed)
	long.Reason, long.IP = "x"+strings.Repeat("é", 50_000), strings.Repeat("1", 1000)
	b := newFleet(now).listing("n", now, "1", long)
	vm := b.vms["a"]
	if len(vm.Reason) != longestReason-1 || len(vm.IP) != longestIP || !strings.HasSuffix(vm.Reason, "é") {
		t.Errorf("kept %d bytes of the reason and %d of the address", len(vm.Reason), len(vm.IP))
	}
}

func TestManyReportsFitIntoTheLog(t *testing.T) {
	var sizes []int
	o := newOutcomes(func(_ context.Context, body fsm.ReportVMs) error {
		if _, err := fsm.Encode(fsm.Envelope{Kind: fsm.KindReportVMs}, body); err != nil {
			return err
		}
		sizes = append(sizes, len(body.Reports))
		return nil
	}, func(err error) { t.Error(err) })
	var reports []fsm.VMReport
	for i := range maxReports {
		reports = append(reports, fsm.VMReport{ID: fmt.Sprint(i), Node: "n", State: api.StateFailed, Reason: strings.Repeat("\x01", longestReason)})
	}
	if err := o.commitAll(t.Context(), reports); err != nil {
		t.Fatal(err)
	}
	sum := 0
	for _, n := range sizes {
		sum += n
	}
	if sum != maxReports || len(sizes) < 2 {
		t.Errorf("committed %v reports, want %d in several commands", sizes, maxReports)
	}
}

func TestSparesOfSilentNodesAreNotHandedOut(t *testing.T) {
	w := newWorld(t)
	w.image("linux", api.GuestLinux)
	now := time.Now()
	f := newFleet(now.Add(-time.Hour))
	for node, ago := range map[string]time.Duration{"fresh": time.Second, "silent": twoBeats + 1, "nearly": twoBeats, "suspect": time.Hour} {
		w.node(host(node))
		f.listing(node, now.Add(-ago), "1")
		w.pool(node, "linux", 1, nil)
		w.spare(node, "spare-"+node, node, api.StateRunning)
	}
	w.node(host("idle")) // silent, too, and without spares
	f.listing("idle", now.Add(-time.Hour), "1")
	w.health("suspect", api.NodeSuspect) // the state says it already
	wall := func() time.Time { return now }
	calls := newNodeCaller(nil, wall)
	g := &reign{r: &Replica{fleet: f, wall: wall, calls: calls, hosts: newHosts(w.state, f, calls.lanes)}}
	got, err := g.rankLaunch(w.view(), "id", fsm.Launch{Name: "a", Image: "linux"})
	if diff := cmp.Diff([]string{"silent"}, got.NoHandOut); err != nil || diff != "" {
		t.Errorf("not to be handed out from (-want +got), %v:\n%s", err, diff)
	}
}

func TestOrdersEndWithTheirReign(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := newOrders(&reign{ctx: ctx})
	cancel()
	o.close()
	if how, err := o.settle(t.Context(), "a"); !errors.Is(err, errDeposed) {
		t.Errorf("got %+v, %v; want that this replica no longer leads", how, err)
	}
	if len(o.active) != 0 {
		t.Errorf("orders go on after the reign: %v", o.active)
	}
}

// Failure mode 6. Letters are instances of one node's daemon, in the order in which their reports come.
func TestTwinsAreTheInstancesThatReportInTurn(t *testing.T) {
	for reports, want := range map[string]bool{
		"aabbcc":       false, // it is started anew
		"aabbccaccccc": false, // and a report of its first life comes late
		"bbabbbbbb":    false, // so does one of a life that was not heard of
		"bbcabbcbbbb":  true,
		"aabbabab":     true,
		"aababab":      true,
		"ababab":       true,
	} {
		now := time.Now()
		f, found := newFleet(now), false
		for _, instance := range strings.Split(reports, "") {
			report := api.Register{Name: "n", BootID: "1", Instance: instance, VMsDigest: "1", HasVMs: true}
			switch f.twin(&report, now) {
			case twinFound:
				found = true
			case twinNone:
				f.hear(report, "", now)
			}
			now = now.Add(5 * time.Second)
		}
		if found != want {
			t.Errorf("%s: twins found: %t", reports, found)
		}
	}
}
