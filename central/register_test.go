package central

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func facts(name string) api.Register {
	return api.Register{Name: name, UUID: "0198c0de-0000-7000-8000-000000000001", BootID: "b", Instance: "i", URL: "http://" + name, Backends: []string{"sim"},
		VCPUsTotal: 4, MemoryMiBTotal: 4096, CPUOvercommit: 1, Labels: map[string]string{}, Images: []string{}, HasVMs: true}
}

func with(report api.Register, change func(*api.Register)) api.Register {
	change(&report)
	return report
}

func TestANodeSpeaksForItselfAlone(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		leader, follower := r.leader(), r.follower()
		token := into[api.JoinToken](t, r.call(leader, "POST", "/fleet/join-tokens", body{"kind": "node", "name_pattern": "studio-*"})).Token
		register := func(replica, token string, report api.Register) reply {
			got, err := r.try(replica, token, "POST", "/fleet/register", report)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		joining := with(facts("studio-1"), func(f *api.Register) { f.Credential = "mine" })
		later := func(f func() reply) reply { r.wait(time.Second); return f() }
		for _, c := range []struct {
			what   string
			got    reply
			status int
		}{
			{"a token that nobody made", register(leader, "fvj_guess", joining), 401},
			{"a credential that nobody knows", register(leader, "mine", facts("studio-1")), 401},
			{"a name the token is not for", register(leader, token, with(joining, func(f *api.Register) { f.Name = "mini-1" })), 403},
			{"a name that is no name", register(leader, token, with(joining, func(f *api.Register) { f.Name = "../studio-1" })), 400},
			{"a follower takes no new ones in", register(follower, token, joining), 503},
			{"the token is good for one", register(leader, token, joining), 200},
			{"and for one only", register(leader, token, with(joining, func(f *api.Register) { f.Name, f.Credential = "studio-2", "other" })), 401},
			{"its own credential", register(leader, "mine", facts("studio-1")), 200},
			{"its own credential on a follower", later(func() reply { return register(follower, "mine", facts("studio-1")) }), 200},
			{"its own credential under another name", register(leader, "mine", facts("studio-2")), 409},
			{"another's name", register(leader, "other", facts("studio-1")), 401},
			{"another host of another name", register(leader, "mine", with(facts("studio-2"), func(f *api.Register) { f.UUID = "0198c0de-0000-7000-8000-000000000002" })), 401},
			{"another host of that name", register(leader, "mine", with(facts("studio-1"), func(f *api.Register) { f.UUID = "0198c0de-0000-7000-8000-000000000002" })), 401},
			{"the operator vouching for it", register(leader, operatorToken, with(facts("studio-1"), func(f *api.Register) { f.UUID = "0198c0de-0000-7000-8000-000000000002" })), 409},
		} {
			if c.got.status != c.status {
				t.Errorf("%s: %s, want %d", c.what, c.got, c.status)
			}
		}
		if row := r.member(leader).state.View().Node("studio-1"); row == nil || row.CredentialHash != hashToken("mine") {
			t.Errorf("the node is kept as %+v", row)
		}
	})
}

func TestANodeShowsWhatHoldsItsVMs(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		want := map[string][]string{api.BackendFluxVM: {api.ConfinedByUser, api.ConfinedByGroup + "memory"}}
		r.addNode("n1", func(n *modelNode) { n.facts.Confinement = want })
		r.wait(30 * time.Second)
		if got := into[api.Node](t, r.call(r.leader(), "GET", "/fleet/nodes/n1", nil)).Confinement; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestAHostIsToldWhichOtherNodeItIsOrStandsAt(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		n1, n2 := r.node("n1"), r.node("n2")
		register := func(token string, report api.Register) reply {
			got, err := r.try(r.leader(), token, "POST", "/fleet/register", report)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		renamed := with(n1.facts, func(f *api.Register) { f.Name, f.HasVMs = "n9", true })
		if got := register(n1.secret(), renamed); got.code() != api.CodeConflict || !strings.Contains(got.String(), "--name n1") {
			t.Errorf("renamed, without a token: %s", got)
		}
		fresh := with(facts("n3"), func(f *api.Register) {
			f.UUID, f.URL, f.Credential = "0198c0de-0000-7000-8000-0000000000aa", n1.facts.URL, "c3"
		})
		if got := register(operatorToken, fresh); got.code() != api.CodeConflict || !strings.Contains(got.String(), "the address of node n1") || r.member(r.leader()).state.View().Node("n3") != nil {
			t.Errorf("a new host at the address of another: %s", got)
		}
		moved := with(n2.facts, func(f *api.Register) { f.URL, f.Seq = n1.facts.URL, 1<<40 })
		if got := register(n2.secret(), moved); got.code() != api.CodeConflict || !strings.Contains(got.String(), "--advertise-url") {
			t.Errorf("a known one that says the address of another is its own: %s", got)
		}
		n1.with(func() { n1.silent = true })
		r.eventually("n1 to be suspect", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeSuspect })
		if got := register(operatorToken, fresh); got.status != http.StatusOK {
			t.Errorf("at the address of one that is silent: %s", got)
		}
		n1.with(func() { n1.silent = false })
		r.insist("DELETE", "/fleet/nodes/n3", nil, "")
		r.eventually("n1 to be back", time.Minute, func() bool { return r.nodeState("n1").State == api.NodeHealthy })
	})
}

// FuzzRegister sends reports that no node would. It runs in real time, on one replica: a bubble cannot outlast one
// input, and what is under test waits for nothing.
func FuzzRegister(f *testing.F) {
	r, stop := lone(f)
	defer stop()
	handler := r.Handler()
	plain, err := json.Marshal(facts("seed"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(plain)
	for _, change := range []func(*api.Register){
		func(n *api.Register) {
			n.VMs = []api.ReportedVM{{ID: "a", State: "running", VCPUs: -5, MemoryMiB: -1 << 60}, {ID: "a", State: "gone"}, {}}
		},
		func(n *api.Register) {
			n.VMs = []api.ReportedVM{{ID: "../../x", State: "\x00", VCPUs: 1 << 62, MemoryMiB: 1 << 62, Cluster: "this"}}
		},
		func(n *api.Register) { n.Density.HostPressureLevel = level("apocalyptic") },
		func(n *api.Register) { n.Density.HostMemAvailableMiB, n.Density.WarmSlotsReady = -1, -1 },
		func(n *api.Register) { n.Apple = &api.AppleHost{MacOSGuests: -9, MacOSLimit: 1 << 40} },
		func(n *api.Register) { n.VCPUsTotal, n.MemoryMiBTotal, n.CPUOvercommit = 1<<20, 1<<40, 100 },
		func(n *api.Register) { n.Backends, n.Labels, n.Images = nil, nil, nil },
		func(n *api.Register) { n.Backends = []string{"", "\u2028", strings.Repeat("x", 1<<16)} },
		func(n *api.Register) { n.URL = "http://[::1%25]:-1/\\" },
		func(n *api.Register) { n.URL, n.VMCount, n.Seq = "file:///etc/passwd", -1, 1<<63 },
		func(n *api.Register) { n.Name = ".." },
		func(n *api.Register) { n.Credential = strings.Repeat("c", 1<<17) },
		func(n *api.Register) { n.HasVMs, n.VMsDigest = false, strings.Repeat("d", 1000) },
	} {
		raw, err := json.Marshal(with(facts("seed"), change))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte(`{"name":"a","name":"b"}`))
	f.Add([]byte(`{"apple":{"macos_guests":null},"density":null,"labels":{"":""}}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		req, err := http.NewRequest("POST", "http://a/fleet/register", bytes.NewReader(raw)) // the file asks for more of a report than central does
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+operatorToken)
		if got, err := (direct{handler}).RoundTrip(req); err != nil || got.StatusCode >= 500 {
			t.Fatalf("%v %+v", err, got)
		}
		for _, path := range []string{"/fleet/nodes", "/fleet/capacity"} {
			if got, err := send(t, handler, operatorToken, "GET", path, nil); err != nil || got.status != 200 {
				t.Fatalf("%s: %v %s", path, err, got)
			}
		}
		if got, err := send(t, handler, operatorToken, "POST", "/fleet/vms?dry_run=true", body{"image": "tiny"}); err != nil || got.status != 200 {
			t.Fatalf("placing: %v %s", err, got)
		}
		if err := r.state.View().Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// lone is a cluster of one, in memory, that leads and has an image.
func lone(t testing.TB) (*Replica, func()) {
	network := consensus.NewNetwork()
	refuse := roundTrip(func(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed })
	r, err := New(Config{Name: "a", Network: network, Bootstrap: true, OperatorToken: operatorToken, ElectionTimeout: 100 * time.Millisecond, URL: "http://a", Peers: refuse, Nodes: refuse})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); !r.Leads(); pause(ctx, 5*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to lead")
		}
	}
	if got, err := send(t, r.Handler(), operatorToken, "POST", "/fleet/images", api.ImageRequest{Name: "tiny", Path: "sim:?tiny"}); err != nil || got.status != 201 {
		t.Fatalf("making an image: %v %s", err, got)
	}
	return r, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
