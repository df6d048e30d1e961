package api

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sampleBeat() Register {
	return Register{Name: "studio-1", UUID: "0198c0de-0000-7000-8000-000000000001", BootID: "b", Instance: "i", URL: "http://10.0.0.5:7788", Backends: []string{"vz"},
		Capabilities: Capabilities{Rename: true, Claim: true}, VCPUsTotal: 12, MemoryMiBTotal: 65536, CPUOvercommit: 8, Labels: map[string]string{"zone": "lab", "kairon.zyvor.dev/chip": "m4-max"},
		Images: []string{"/images/a"}, VMsDigest: "d", Apple: &AppleHost{Chip: "m4-max", MacOSLimit: 2}}
}

// What passes the short check must be what the thorough ones take, or a field would be read that nobody checked.
func FuzzWhatIsExactPassesTheThoroughChecks(f *testing.F) {
	beat, err := json.Marshal(sampleBeat())
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{string(beat), `{}`, ` { "name" : "a" , "vms":[{"id":"x","state":"running"},{"id":"y"}], "labels":{"a":"b"} } `,
		`{"name":"a","Name":"b"}`, `{"name":"a","name":"b"}`, `{"labels":{"a":"1","a":"2"}}`, `{"n\u0061me":"a"}`, `[]`, `{} {}`, `{"apple":null,"density":{}}`, `{"labels":[1,{"a":1,"a":2}]}`,
		`{"apple":{"x":1}}`, `{"vms":[[{"q":1}]]}`, "{\"labels\":{\"\xff\":\"1\",\"\xfe\":\"2\"}}", `{"density":{"host_pressure_level":"warn"}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, v := range []any{&Register{}, &LaunchRequest{}, &PoolPatch{}} {
			if !json.Valid(raw) || !isExact(raw, reflect.TypeOf(v)) {
				continue
			}
			if err := checkShape(raw); err != nil {
				t.Errorf("%q is exact and has a wrong shape: %v", raw, err)
			}
			if err := checkNames(raw, reflect.TypeOf(v)); err != nil {
				t.Errorf("%q is exact and has a wrong name: %v", raw, err)
			}
		}
	})
}

func TestABeatIsExactAndReadWhole(t *testing.T) {
	beat := sampleBeat()
	beat.VMs, beat.HasVMs = []ReportedVM{{ID: "a", State: StateRunning}, {ID: "b", State: StateGone, EndedMSAgo: 5}}, true
	raw, err := json.Marshal(beat)
	if err != nil {
		t.Fatal(err)
	}
	if !isExact(raw, reflect.TypeFor[*Register]()) {
		t.Error("a beat takes the long way")
	}
	var got Register
	if err := Decode(raw, &got); err != nil || !cmp.Equal(got, beat) {
		t.Errorf("%v\n%s", err, cmp.Diff(beat, got))
	}
}

func BenchmarkDecodeBeat(b *testing.B) {
	raw, err := json.Marshal(sampleBeat())
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := Decode(raw, &Register{}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestReportsAreBounded(t *testing.T) {
	for what, change := range map[string]func(*Register){
		"backends":              func(r *Register) { r.Backends = make([]string, 17) },
		"the name of a backend": func(r *Register) { r.Backends = []string{strings.Repeat("x", 129)} },
		"images":                func(r *Register) { r.Images = make([]string, 4097) },
		"the path of an image":  func(r *Register) { r.Images = []string{strings.Repeat("x", 1025)} },
		"the version":           func(r *Register) { r.Version = strings.Repeat("x", 129) },
		"the digest":            func(r *Register) { r.VMsDigest = strings.Repeat("x", 129) },
		"an id with a path":     func(r *Register) { r.VMs = []ReportedVM{{ID: "../../etc"}} },
		"an id that is a path":  func(r *Register) { r.VMs = []ReportedVM{{ID: ".."}} },
		"a VM without id":       func(r *Register) { r.VMs = []ReportedVM{{}} },
		"less than no memory":   func(r *Register) { r.VMs = []ReportedVM{{ID: "a", MemoryMiB: -1}} },
		"a state":               func(r *Register) { r.VMs = []ReportedVM{{ID: "a", State: VMState(strings.Repeat("x", 129))}} },
		"a word of confinement": func(r *Register) { r.Confinement = map[string][]string{"vz": {strings.Repeat("x", 129)}} },
	} {
		r := sampleBeat()
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		change(&r)
		if err := r.Check(); err == nil {
			t.Errorf("%s: taken", what)
		}
	}
}
