package central

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// asks draws needs and places them by rank and the log, as launches do, on hosts of all kinds.
func TestPlacementNeverOvercommitsAndIsDeterministic(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		w.image("linux", api.GuestLinux)
		w.image("macos", api.GuestMacOS)
		of := map[string]weather{}
		for i := range 3 + rng.IntN(8) {
			n := host(fmt.Sprintf("n%02d", i))
			n.Mac, n.CPUOvercommit, n.MemoryMiBTotal, n.VCPUsTotal = rng.IntN(2) == 0, 1+rng.IntN(4), int64(4096<<rng.IntN(5)), 2<<rng.IntN(4)
			n.Labels = map[string]string{"zone": fmt.Sprint(rng.IntN(2))}
			w.node(n)
			reported := weather{known: true, vcpus: rng.IntN(4), memoryMiB: int64(rng.IntN(4096)), macOS: rng.IntN(2), density: api.Density{WarmSlotsReady: rng.IntN(3), HostMemAvailableMiB: int64(rng.IntN(3))}}
			switch rng.IntN(6) {
			case 0:
				reported.density.HostPressureLevel = level(api.PressureCritical)
			case 1:
				reported.density.HostPressureLevel = level(api.PressureWarn)
			case 2:
				reported.mute = true
			}
			of[n.Name] = reported
		}
		at := func(node string) weather { return of[node] }
		placed := 0
		for i := range 120 {
			n := need{guestOS: api.GuestLinux, imagePath: "sim:?linux", vcpus: 1 + rng.IntN(4), memoryMiB: int64(256 << rng.IntN(5))}
			image := "linux"
			if rng.IntN(4) == 0 {
				n.guestOS, n.imagePath, image = api.GuestMacOS, "sim:?macos", "macos"
			}
			if rng.IntN(3) == 0 {
				n.selector = map[string]string{"zone": fmt.Sprint(rng.IntN(2))}
			}
			view := w.view()
			candidates, reasons := rank(view, at, n, nil)
			again, reasonsAgain := rank(view, at, n, nil)
			if !slices.Equal(candidates, again) || !cmp.Equal(reasons, reasonsAgain) {
				t.Fatalf("seed %d: two rankings of one state: %v %v, then %v %v", seed, candidates, reasons, again, reasonsAgain)
			}
			total := len(candidates)
			for _, count := range reasons {
				total += count
			}
			if total != len(of) {
				t.Fatalf("seed %d: %d of %d hosts are told of: %v %v", seed, total, len(of), candidates, reasons)
			}
			if len(candidates) == 0 {
				continue
			}
			placed++
			w.vm(fmt.Sprint("vm", i), image, candidates[rng.IntN(len(candidates))], n.vcpus, n.memoryMiB)
			for name, reported := range of {
				node, use := w.view().Node(name), w.view().Use(name)
				if use.MemoryMiB > node.MemoryMiBTotal || use.VCPUs > node.VCPUsTotal*node.CPUOvercommit || use.MacOS > api.MacOSPerHost {
					t.Fatalf("seed %d: host %s of %d MiB and %d vCPUs holds %+v", seed, name, node.MemoryMiBTotal, node.VCPUsTotal*node.CPUOvercommit, use)
				}
				if use.VMs > 0 && (reported.mute || reported.density.HostPressureLevel != nil && *reported.density.HostPressureLevel == api.PressureCritical) {
					t.Fatalf("seed %d: host %s got %d VMs though it is mute or under critical pressure", seed, name, use.VMs)
				}
			}
		}
		if placed == 0 {
			t.Errorf("seed %d placed nothing", seed)
		}
	}
}

func TestAThousandParallelAsksNeverGiveAMacAThirdGuest(t *testing.T) {
	scenario(t, 3, func(t *testing.T, r *rig) {
		const macs, asks = 5, 1000
		for i := range macs {
			r.addNode(fmt.Sprint("mac", i), func(n *modelNode) { n.facts.Apple = &api.AppleHost{Chip: "m4"} })
		}
		r.registered()
		if got := r.insist("POST", "/fleet/images", api.ImageRequest{Name: "macos", Path: "sim:?macos", GuestOS: api.GuestMacOS, VCPUs: 2, MemoryMiB: 4096, HasAgent: true}, "image"); got.status != http.StatusCreated {
			t.Fatal(got)
		}
		var all sync.WaitGroup
		var made, refused atomic.Int64
		for i := range asks {
			replica := r.names[i%len(r.names)]
			all.Go(func() {
				switch got := r.call(replica, "POST", "/fleet/vms", body{"name": fmt.Sprint("m", i), "image": "macos"}); {
				case got.status == http.StatusCreated:
					made.Add(1)
				case got.code() == api.CodeNoCapacity:
					refused.Add(1)
				default:
					t.Errorf("ask %d: %s", i, got)
				}
			})
		}
		all.Wait()
		if made.Load() != macs*api.MacOSPerHost || made.Load()+refused.Load() != asks {
			t.Errorf("%d made and %d refused, want %d made of %d", made.Load(), refused.Load(), macs*api.MacOSPerHost, asks)
		}
		for name := range r.nodes {
			if n := r.node(name).count(); n != api.MacOSPerHost {
				t.Errorf("%s runs %d macOS guests", name, n)
			}
		}
	})
}

func TestADryRunTellsOfEachHost(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2", "n3")
		r.call(r.leader(), "POST", "/fleet/nodes/n1/cordon", nil)
		r.node("n2").with(func() { r.node("n2").facts.Density.HostPressureLevel = level(api.PressureWarn) })
		r.node("n3").with(func() { r.node("n3").facts.Images = []string{"sim:?tiny", "sim:?other"} })
		r.eventually("the beats to be heard", 60e9, func() bool {
			w := r.member(r.leader()).fleet.weather
			return w("n2").density.HostPressureLevel != nil && len(w("n3").images) == 2
		})
		dry := func() api.DryRunAnswer {
			return into[api.DryRunAnswer](t, r.call(r.leader(), "POST", "/fleet/vms?dry_run=true", body{"image": "tiny", "memory_mib": 1024}))
		}
		want := []api.HostVerdict{{Node: "n3", Rank: 1, FreeMemoryMiB: 64512, Residual: 984}, {Node: "n2", Rank: 2, FreeMemoryMiB: 64512, Residual: 984}, {Node: "n1", Reason: api.WhyCordoned}}
		if got := dry(); cmp.Diff(want, got.Hosts) != "" || *got.Node != "n3" {
			t.Errorf("hosts (-want +got):\n%s", cmp.Diff(want, got.Hosts))
		}
		r.node("n3").with(func() { r.node("n3").facts.Images = []string{"sim:?other"} })
		r.eventually("a host that lacks the image to be ruled out", 60e9, func() bool { return dry().Reasons[api.WhyImage] == 1 })
		r.insist("POST", "/fleet/tenants", body{"name": "acme"}, "acme")
		key := into[api.Key](t, r.insist("POST", "/fleet/tenants/acme/keys", body{"role": "tenant"}, "key"))
		got, err := r.try(r.leader(), key.Secret, "POST", "/fleet/vms?dry_run=true", body{"image": "tiny"})
		if err != nil || len(into[api.DryRunAnswer](t, got).Hosts) != 0 {
			t.Errorf("a tenant without leases: %s, %v; want no host told of", got, err)
		}
	})
}
