package central

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func level(s string) *string { return &s }

func under(pressure string) weather {
	return weather{known: true, density: api.Density{HostPressureLevel: level(pressure)}}
}

// linux is a VM of 2 vCPUs and 4 GiB.
func linux() need {
	return need{guestOS: api.GuestLinux, imagePath: "sim:?linux", vcpus: 2, memoryMiB: 4096}
}

func macOS() need {
	return need{guestOS: api.GuestMacOS, imagePath: "sim:?macos", vcpus: 4, memoryMiB: 8192}
}

func mac(name string) fsm.Node {
	n := host(name)
	n.Mac, n.Chip = true, "m4"
	return n
}

func smaller(n fsm.Node, memoryMiB int64) fsm.Node {
	n.MemoryMiBTotal = memoryMiB
	return n
}

func TestHostsAreOrderedByTheContract(t *testing.T) {
	for name, c := range map[string]struct {
		need    need
		set     func(*world)
		weather map[string]weather
		taken   map[string]load
		want    []string
	}{
		"name decides among equals": {linux(), func(w *world) { w.node(host("b")); w.node(host("a")) }, nil, nil, []string{"a", "b"}},
		"normal and none before warn, whatever is left": {linux(), func(w *world) {
			w.node(host("empty"))
			w.node(smaller(host("normal"), 8192))
			w.node(smaller(host("none"), 8192))
		}, map[string]weather{"empty": under(api.PressureWarn), "normal": under(api.PressureNormal)}, nil, []string{"none", "normal", "empty"}},
		"most residual memory": {linux(), func(w *world) {
			w.node(host("full"))
			w.node(host("half"))
			w.node(host("idle"))
			w.vm("1", "linux", "full", 1, 48000)
			w.vm("2", "linux", "half", 1, 30000)
		}, nil, nil, []string{"idle", "half", "full"}},
		"the scarcer of memory and vCPUs counts": {linux(), func(w *world) {
			w.node(host("cpus"))
			w.node(host("memory"))
			w.vm("1", "linux", "cpus", 12, 1024)
			w.vm("2", "linux", "memory", 1, 32768)
		}, nil, nil, []string{"memory", "cpus"}},
		"what a host reports beyond its rows counts": {linux(), func(w *world) { w.node(host("a")); w.node(host("b")) },
			map[string]weather{"a": {known: true, memoryMiB: 30000}}, nil, []string{"b", "a"}},
		"VMs that were made on a host count": {linux(), func(w *world) { w.node(host("a")); w.node(host("b")) },
			map[string]weather{"a": totals(map[string]*api.ReportedVM{"1": {State: api.StateStopped}}, 1)}, nil, []string{"b", "a"}},
		"what is about to be placed counts": {linux(), func(w *world) { w.node(host("a")); w.node(host("b")) }, nil,
			map[string]load{"a": load{}.plus(linux())}, []string{"b", "a"}},
		"fewer VMs": {linux(), func(w *world) {
			w.node(host("one"))
			w.node(host("two"))
			w.vm("1", "linux", "one", 2, 2048)
			w.vm("2", "linux", "two", 1, 1024)
			w.vm("3", "linux", "two", 1, 1024)
		}, nil, nil, []string{"one", "two"}},
		"more warm slots, then more available memory": {linux(), func(w *world) { w.node(host("a")); w.node(host("b")); w.node(host("c")) }, map[string]weather{
			"a": {density: api.Density{WarmSlotsReady: 1, HostMemAvailableMiB: 10}},
			"b": {density: api.Density{WarmSlotsReady: 1, HostMemAvailableMiB: 20}},
			"c": {density: api.Density{WarmSlotsReady: 2, HostMemAvailableMiB: 1}},
		}, nil, []string{"c", "b", "a"}},
		"macOS guests take the tightest fit": {macOS(), func(w *world) {
			w.node(mac("large"))
			w.node(smaller(mac("small"), 16384))
			w.node(smaller(mac("middle"), 32768))
		}, nil, nil, []string{"small", "middle", "large"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.image("linux", api.GuestLinux)
			c.set(w)
			got, _ := rank(w.view(), func(node string) weather { return c.weather[node] }, c.need, c.taken)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("hosts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReasonsCountTheHostsThatAreRuledOut(t *testing.T) {
	with := func(n need, change func(*need)) need { change(&n); return n }
	for name, c := range map[string]struct {
		need    need
		set     func(*world)
		weather map[string]weather
		taken   map[string]load
		want    map[string]int
		fits    []string
	}{
		"selector of the launch": {with(linux(), func(n *need) { n.selector = map[string]string{"zone": "attic"} }), func(w *world) { w.node(host("a")); w.node(host("b")) }, nil, nil, map[string]int{api.WhyLabel: 2}, nil},
		"selector of the pool":   {with(linux(), func(n *need) { n.poolSelector = map[string]string{"zone": "attic"} }), func(w *world) { w.node(host("a")) }, nil, nil, map[string]int{api.WhyLabel: 1}, nil},
		"nodes of the pool":      {with(linux(), func(n *need) { n.nodes = []string{"b"} }), func(w *world) { w.node(host("a")); w.node(host("b")) }, nil, nil, map[string]int{api.WhyLabel: 1}, []string{"b"}},
		"a named node counts alone": {with(linux(), func(n *need) { n.node, n.memoryMiB = "b", 1<<20 }), func(w *world) { w.node(host("a")); w.node(host("b")) }, nil, nil,
			map[string]int{api.WhyMemory: 1}, nil},
		"tried before":                {with(linux(), func(n *need) { n.tried = map[string]string{"a": api.WhyImage} }), func(w *world) { w.node(host("a")); w.node(host("b")) }, nil, nil, map[string]int{api.WhyImage: 1}, []string{"b"}},
		"a host that does not answer": {linux(), func(w *world) { w.node(host("a")) }, map[string]weather{"a": {mute: true}}, nil, map[string]int{api.WhyUnhealthy: 1}, nil},
		"a host without the image": {linux(), func(w *world) { w.node(host("a")); w.node(host("b")); w.node(host("c")) },
			map[string]weather{"a": {images: []string{"/img"}}, "b": {images: []string{"/img", "sim:?linux"}}}, nil, map[string]int{api.WhyImage: 1}, []string{"b", "c"}},
		"critical is out":                 {linux(), func(w *world) { w.node(host("a")); w.node(host("b")) }, map[string]weather{"a": under(api.PressureCritical)}, nil, map[string]int{api.WhyPressure: 1}, []string{"b"}},
		"cordoned":                        {linux(), func(w *world) { w.node(host("a")); w.patchNode("a", true, false) }, nil, nil, map[string]int{api.WhyCordoned: 1}, nil},
		"draining":                        {linux(), func(w *world) { w.node(host("a")); w.patchNode("a", true, true) }, nil, nil, map[string]int{api.WhyCordoned: 1}, nil},
		"suspect":                         {linux(), func(w *world) { w.node(host("a")); w.health("a", api.NodeSuspect) }, nil, nil, map[string]int{api.WhyUnhealthy: 1}, nil},
		"memory":                          {linux(), func(w *world) { w.node(smaller(host("a"), 4095)) }, nil, nil, map[string]int{api.WhyMemory: 1}, nil},
		"memory fits to the last MiB":     {linux(), func(w *world) { w.node(smaller(host("a"), 4096)) }, nil, nil, map[string]int{}, []string{"a"}},
		"vCPUs":                           {with(linux(), func(n *need) { n.vcpus = 17 }), func(w *world) { w.node(host("a")) }, nil, nil, map[string]int{api.WhyCPU: 1}, nil},
		"vCPUs with overcommit":           {with(linux(), func(n *need) { n.vcpus = 17 }), func(w *world) { a := host("a"); a.CPUOvercommit = 2; w.node(a) }, nil, nil, map[string]int{}, []string{"a"}},
		"macOS guests get no overcommit":  {with(macOS(), func(n *need) { n.vcpus = 17 }), func(w *world) { a := mac("a"); a.CPUOvercommit = 2; w.node(a) }, nil, nil, map[string]int{api.WhyCPU: 1}, nil},
		"reported memory beyond the rows": {linux(), func(w *world) { w.node(host("a")) }, map[string]weather{"a": {memoryMiB: 65536 - 4095}}, nil, map[string]int{api.WhyMemory: 1}, nil},
		"reported vCPUs beyond the rows":  {linux(), func(w *world) { w.node(host("a")) }, map[string]weather{"a": {vcpus: 15}}, nil, map[string]int{api.WhyCPU: 1}, nil},
		"reported memory and what is about to be placed": {linux(), func(w *world) { w.node(host("a")) }, map[string]weather{"a": {memoryMiB: 65536 - 4096}},
			map[string]load{"a": load{}.plus(linux())}, map[string]int{api.WhyMemory: 1}, nil},
		"reported vCPUs and a macOS guest": {macOS(), func(w *world) { a := mac("a"); a.CPUOvercommit = 2; w.node(a) }, map[string]weather{"a": {vcpus: 25}}, nil, map[string]int{api.WhyCPU: 1}, nil},
		"macOS on what is no Mac":          {macOS(), func(w *world) { w.node(host("a")) }, nil, nil, map[string]int{api.WhyBackend: 1}, nil},
		"a third macOS guest by rows": {macOS(), func(w *world) {
			w.node(mac("a"))
			w.vm("1", "macos", "a", 1, 1024)
			w.vm("2", "macos", "a", 1, 1024)
		}, nil, nil, map[string]int{api.WhyMacOSLimit: 1}, nil},
		"a third macOS guest by the host's own list": {macOS(), func(w *world) { w.node(mac("a")) }, map[string]weather{"a": {macOS: 2}}, nil, map[string]int{api.WhyMacOSLimit: 1}, nil},
		"a third macOS guest about to be placed":     {macOS(), func(w *world) { w.node(mac("a")); w.vm("1", "macos", "a", 1, 1024) }, nil, map[string]load{"a": load{}.plus(macOS())}, map[string]int{api.WhyMacOSLimit: 1}, nil},
		"a backend it has not":                       {with(linux(), func(n *need) { n.backend, n.imagePath = api.BackendQEMU, "/img" }), func(w *world) { w.node(host("a")) }, nil, nil, map[string]int{api.WhyBackend: 1}, nil},
		"a sim image elsewhere":                      {linux(), func(w *world) { a := host("a"); a.Backends = []string{api.BackendQEMU}; w.node(a) }, nil, nil, map[string]int{api.WhyBackend: 1}, nil},
		"a real image on sim":                        {with(linux(), func(n *need) { n.imagePath = "/img" }), func(w *world) { w.node(host("a")) }, nil, nil, map[string]int{api.WhyBackend: 1}, nil},
		"spares need a host that renames":            {with(linux(), func(n *need) { n.spare = true }), func(w *world) { a := host("a"); a.Rename = false; w.node(a) }, nil, nil, map[string]int{api.WhyBackend: 1}, nil},
		"launches do not":                            {linux(), func(w *world) { a := host("a"); a.Rename = false; w.node(a) }, nil, nil, map[string]int{}, []string{"a"}},
		"the start limit holds spares back": {with(linux(), func(n *need) { n.spare = true }), func(w *world) {
			w.node(host("a"))
			for i := range api.DefaultPolicy().MaxBootsPerNode - 1 {
				w.vm(fmt.Sprint(i), "linux", "a", 1, 128)
			}
		}, nil, map[string]load{"a": {vms: 1}}, map[string]int{api.WhyStartLimit: 1}, nil},
		"the start limit does not hold launches back": {linux(), func(w *world) {
			w.node(host("a"))
			for i := range api.DefaultPolicy().MaxBootsPerNode {
				w.vm(fmt.Sprint(i), "linux", "a", 1, 128)
			}
		}, nil, nil, map[string]int{}, []string{"a"}},
		"every host counts once": {linux(), func(w *world) {
			w.node(smaller(host("tight"), 1024))
			w.node(host("cordoned"))
			w.patchNode("cordoned", true, false)
			w.node(host("critical"))
			w.node(host("good"))
		}, map[string]weather{"critical": under(api.PressureCritical), "tight": under(api.PressureCritical)}, nil,
			map[string]int{api.WhyMemory: 1, api.WhyCordoned: 1, api.WhyPressure: 1}, []string{"good"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.image("linux", api.GuestLinux)
			w.image("macos", api.GuestMacOS)
			c.set(w)
			fits, reasons := rank(w.view(), func(node string) weather { return c.weather[node] }, c.need, c.taken)
			if diff := cmp.Diff(c.want, reasons); diff != "" {
				t.Errorf("reasons (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.fits, fits); diff != "" {
				t.Errorf("hosts that fit (-want +got):\n%s", diff)
			}
		})
	}
}

func TestACommandNamesThirtyTwoHostsAtMost(t *testing.T) {
	w := newWorld(t)
	for i := range maxCandidates + 8 {
		w.node(host(fmt.Sprintf("n%02d", i)))
	}
	got, reasons := rank(w.view(), func(string) weather { return weather{} }, linux(), nil)
	if len(got) != maxCandidates || len(reasons) != 0 || got[0] != "n00" {
		t.Errorf("got %d hosts beginning with %s and reasons %v, want %d, n00 and none", len(got), got[0], reasons, maxCandidates)
	}
}

func TestNoRoomSaysWhyAPoolWaits(t *testing.T) {
	for name, c := range map[string]struct {
		reasons map[string]int
		want    string // empty: it waits quietly
		detail  string
	}{
		"no nodes":           {map[string]int{}, api.WaitNoCapacity, "the fleet has no nodes"},
		"full":               {map[string]int{api.WhyMemory: 2, api.WhyCPU: 1}, api.WaitNoCapacity, "cpu 1, memory 2"},
		"two macOS guests":   {map[string]int{api.WhyMacOSLimit: 1, api.WhyBackend: 3}, api.WaitMacOSLimit, "macos_limit 1"},
		"macOS and memory":   {map[string]int{api.WhyMacOSLimit: 1, api.WhyMemory: 1}, api.WaitNoCapacity, "memory 1"},
		"pressure":           {map[string]int{api.WhyPressure: 1, api.WhyCordoned: 1}, api.WaitPressure, "pressure 1"},
		"pressure and vCPUs": {map[string]int{api.WhyPressure: 1, api.WhyCPU: 1}, api.WaitNoCapacity, "cpu 1"},
		"busy starting":      {map[string]int{api.WhyStartLimit: 1, api.WhyMemory: 5}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := noRoom(c.reasons)
			if c.want == "" {
				if got != nil {
					t.Errorf("got %+v, want no news", got)
				}
				return
			}
			if got == nil || got.Reason != c.want || !contains(got.Error, c.detail) || !cmp.Equal(got.Reasons, c.reasons) {
				t.Errorf("got %+v, want reason %s and an error with %q", got, c.want, c.detail)
			}
		})
	}
}

func TestColdFieldRulesWarmVMsOut(t *testing.T) {
	yes := true
	for want, body := range map[string]api.LaunchRequest{
		"":                       {Image: "i", Name: "a", TTLSeconds: 5, Node: "n", NodeSelector: map[string]string{"a": "b"}, Labels: map[string]string{"a": "b"}, SecurityProfile: "standard", Network: &api.Network{Mode: "nat"}},
		"cloud_init":             {CloudInit: &api.CloudInit{}, Balloon: &api.BalloonDevice{FreePageReporting: &yes}},
		"network":                {Network: &api.Network{Mode: "bridge"}},
		"apple.networks":         {Apple: &api.Apple{Networks: []api.NetworkRef{{Name: "a"}}}},
		"apple.vmnet":            {Apple: &api.Apple{VMNet: "a"}},
		"apple.bridge_interface": {Apple: &api.Apple{BridgeInterface: "en0"}},
		"networks":               {Networks: []api.NetworkRef{{Name: "a"}}},
		"extra_disks":            {ExtraDisks: []api.ExtraDisk{{SizeGiB: 1}}},
		"security_profile":       {SecurityProfile: "measured"},
		"reschedulable":          {Reschedulable: true},
		"balloon":                {Balloon: &api.BalloonDevice{}},
	} {
		l := launchOf(&body, "", "0198c0de-0000-7000-8000-000000000001")
		if l.ColdField != want {
			t.Errorf("cold field: got %q, want %q", l.ColdField, want)
		}
		if want != "" && want != "reschedulable" && l.Boot == nil {
			t.Errorf("%s: what the create order needs is not in the launch", want)
		}
		if body.Name == "" && l.Name != "vm-000000000001" {
			t.Errorf("name: got %q, want one made from the id", l.Name)
		}
	}
}

func TestImportedImagesAreWantedWhereTheyAreReported(t *testing.T) {
	for _, c := range []struct {
		path     string
		reported []string
		lacks    bool
	}{
		{"/img", nil, false}, // nobody knows
		{"/img", []string{"/other"}, true},
		{"/img", []string{"local:mac"}, false}, // an imported one says nothing of others
		{"/img", []string{"local:mac", "/img"}, false},
		{"local:mac", nil, true},
		{"local:mac", []string{"/img"}, true},
		{"local:mac", []string{"local:mac"}, false},
	} {
		if got := lacks(c.reported, c.path); got != c.lacks {
			t.Errorf("%s among %q: got %v", c.path, c.reported, got)
		}
	}
}

// rank is hosts.rank on facts that are gathered anew: what is kept is held to it.
func rank(view fsm.View, of func(node string) weather, n need, taken map[string]load) (candidates []string, reasons map[string]int) {
	fits, others := judge(view, of, n, taken)
	reasons = map[string]int{}
	for _, o := range others {
		reasons[o.why]++
	}
	for _, f := range fits[:min(len(fits), maxCandidates)] {
		candidates = append(candidates, f.name)
	}
	return candidates, reasons
}
