package central

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestWhatIsKeptOfHostsRanksThemAsGatheringAnewDoes(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 11))
		w := newWorld(t)
		w.image("linux", api.GuestLinux)
		w.image("macos", api.GuestMacOS)
		w.do(fsm.KindCreateTenant, fsm.CreateTenant{Request: api.TenantRequest{Name: "acme"}})
		h := newHosts(w.state, newFleet(time.Now()), newLanes(time.Now))
		names, old := []string{}, w.view()
		reported := func(name string) weather {
			out := h.fleet.weather(name)
			out.mute = h.lanes.skips("http://" + name)
			return out
		}
		name := func() string { return names[rng.IntN(len(names))] }
		reports := func(name string) {
			r := api.Register{Name: name, Instance: "1", HasVMs: true, CPUOvercommit: 1, Density: api.Density{WarmSlotsReady: rng.IntN(3), HostMemAvailableMiB: int64(rng.IntN(3))}}
			if rng.IntN(3) == 0 {
				r.VMs = []api.ReportedVM{{ID: "own", GuestOS: []string{"", api.GuestMacOS}[rng.IntN(2)], VCPUs: rng.IntN(4), MemoryMiB: int64(rng.IntN(4096))}}
			}
			if level := []string{"", "", "", "", "", "", api.PressureWarn, api.PressureCritical}[rng.IntN(8)]; level != "" {
				r.Density.HostPressureLevel = &level
			}
			if rng.IntN(6) == 0 {
				r.Images = [][]string{{"sim:?linux"}, {api.LocalImage + "x"}}[rng.IntN(2)]
			}
			h.fleet.hear(r, "secret", time.Now())
			for range openAfter {
				leave, err := h.lanes.enter(t.Context(), "http://"+name, "GET", "/")
				if err != nil {
					break
				}
				if rng.IntN(6) > 0 {
					leave(nil)
				} else {
					leave(context.DeadlineExceeded)
				}
			}
		}
		join := func() {
			n := host(fmt.Sprintf("n%02d", rng.IntN(80)))
			if rng.IntN(3) == 0 { // most are alike
				n.Mac, n.CPUOvercommit, n.MemoryMiBTotal, n.VCPUsTotal = rng.IntN(2) == 0, 1+rng.IntN(4), int64(4096<<rng.IntN(5)), 2<<rng.IntN(4)
			}
			n.Labels = map[string]string{"zone": fmt.Sprint(rng.IntN(2))}
			if w.view().Node(n.Name) == nil {
				names = append(names, n.Name)
			}
			w.node(n)
			reports(n.Name)
		}
		for range []int{5, 200}[seed%2] { // few, and more than a command names
			join()
		}
		for i := range 150 {
			switch rng.IntN(12) {
			case 0:
				join()
			case 1:
				w.patchNode(name(), rng.IntN(2) == 0, false)
			case 2:
				w.health(name(), []api.NodeState{api.NodeHealthy, api.NodeHealthy, api.NodeSuspect}[rng.IntN(3)])
			case 3:
				w.try(fsm.KindCreateLease, fsm.CreateLease{ID: fmt.Sprint("l", i), Tenant: "acme", Candidates: []string{name()}, Count: 1, DurationMS: 3_600_000})
			case 4:
				if at := rng.IntN(len(names)); len(names) > 2 && w.try(fsm.KindDeleteNode, fsm.DeleteNode{Name: names[at]}).Err == nil {
					names = append(names[:at:at], names[at+1:]...)
				}
			case 5:
				reports(name())
			case 6:
				for l := range w.view().LiveLeases() {
					w.try(fsm.KindEndLease, fsm.EndLease{ID: l.ID})
					break
				}
			case 7:
				w.now += 3_600_000
				for l := range w.view().LiveLeases() {
					w.try(fsm.KindAdvanceLease, fsm.AdvanceLease{ID: l.ID})
				}
			case 8:
				if rng.IntN(5) == 0 { // a restore
					var saved bytes.Buffer
					if _, err := w.view().WriteTo(&saved); err != nil {
						t.Fatal(err)
					}
					w.patchNode(name(), rng.IntN(2) == 0, false)
					h.rank(w.view(), linux(), nil)
					if err := w.state.Restore(&saved); err != nil {
						t.Fatal(err)
					}
				}
			}
			n := need{guestOS: api.GuestLinux, imagePath: "sim:?linux", vcpus: 1 + rng.IntN(4), memoryMiB: int64(256 << rng.IntN(5)), spare: rng.IntN(4) == 0}
			image := "linux"
			switch rng.IntN(6) {
			case 0:
				n.guestOS, n.imagePath, image = api.GuestMacOS, "sim:?macos", "macos"
			case 1:
				n.selector = map[string]string{"zone": fmt.Sprint(rng.IntN(2))}
			case 2:
				n.node = name()
			case 3:
				n.tenant, n.leased = "acme", rng.IntN(2) == 0
			case 4:
				n.nodes, n.tried = []string{name(), name()}, map[string]string{name(): api.WhyImage}
			}
			taken := map[string]load{}
			if rng.IntN(2) == 0 {
				taken[name()] = load{vms: 1, vcpus: 2, macOS: 1, memoryMiB: 1024}
			}
			view := w.view()
			if rng.IntN(8) == 0 && old.Abandoned() == view.Abandoned() {
				view = old // someone looked a moment ago
			}
			want, wantReasons := rank(view, reported, n, taken)
			got, reasons := h.rank(view, n, taken)
			if diff := cmp.Diff(want, got) + cmp.Diff(wantReasons, reasons); diff != "" {
				t.Fatalf("seed %d, step %d: hosts for %+v, and reasons (-gathered +kept):\n%s", seed, i, n, diff)
			}
			old = view
			if len(got) > 0 && rng.IntN(2) == 0 {
				w.try(fsm.KindLaunchVM, fsm.LaunchVM{ID: fmt.Sprint("vm", i), Launch: fsm.Launch{Name: fmt.Sprint("vm", i), Image: image, VCPUs: n.vcpus, MemoryMiB: n.memoryMiB, ColdField: "balloon"}, Candidates: got})
			}
		}
	}
}
