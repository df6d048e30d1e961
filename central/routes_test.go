package central

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/api/apitest"
)

func TestRoutesAreThoseOfTheFile(t *testing.T) {
	file, err := apitest.Routes()
	if err != nil {
		t.Fatal(err)
	}
	var have []apitest.Route
	for _, rt := range (*Replica)(nil).routes() {
		have = append(have, apitest.Route{Method: rt.method, Path: rt.path})
	}
	slices.SortFunc(have, func(a, b apitest.Route) int { return strings.Compare(a.Path+" "+a.Method, b.Path+" "+b.Method) })
	if diff := cmp.Diff(file, have); diff != "" {
		t.Errorf("routes (-openapi.json +mux):\n%s", diff)
	}
}

// path fills in what a route leaves open.
func (rt route) example() string {
	return strings.NewReplacer("{name}", "x", "{id}", "y", "{node}", "z").Replace(rt.path)
}

func TestEveryRouteButTheOpenOnesNeedsAToken(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		for _, rt := range r.member(r.leader()).routes() {
			if rt.who == forAnyone {
				continue
			}
			for _, replica := range []string{r.leader(), r.follower()} {
				for _, token := range []string{"", "fvx_op_guess", r.node("n1").secret()} {
					if rt.who == forNodes && token != "" {
						continue // the handler knows the nodes
					}
					got, err := r.try(replica, token, rt.method, rt.example(), nil)
					if err != nil || got.status != 401 || got.code() != api.CodeUnauthenticated {
						t.Errorf("%s %s with token %q on %s: %v %s, want 401", rt.method, rt.path, token, replica, err, got)
					}
				}
			}
		}
	})
}

func TestEveryRouteOnAnEmptyFleetAnswersAsTheFileSays(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		for _, rt := range r.member(r.leader()).routes() {
			if rt.path == "/fleet/events" {
				continue // it does not end
			}
			for _, replica := range []string{r.leader(), r.follower()} {
				r.serving()
				var b any
				if rt.method == "POST" || rt.method == "PATCH" {
					b = []byte(`{}`)
				}
				if got := r.call(replica, rt.method, rt.example(), b); got.status >= 500 { // the transport checks the rest
					t.Errorf("%s %s on %s: %s", rt.method, rt.path, replica, got)
				}
			}
		}
	})
}

func TestHostileInputIsRefusedClearly(t *testing.T) {
	deep := func(n int) []byte { return []byte(strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n)) }
	type refusal struct {
		method, path string
		body         []byte
		header       []string
		status       int
		code         api.Code
		says         string
		allow        string
	}
	cases := map[string]refusal{
		"33 levels":                 {"POST", "/fleet/vms", deep(33), nil, 400, api.CodeInvalid, "deeper than 32 levels at byte", ""},
		"over a mebibyte":           {"POST", "/fleet/vms", bytes.Repeat([]byte(" "), api.MaxBody+1), nil, 413, api.CodeTooLarge, "1048576 bytes", ""},
		"a mebibyte of nothing":     {"POST", "/fleet/vms", bytes.Repeat([]byte(" "), api.MaxBody), nil, 400, api.CodeInvalid, "one JSON object", ""},
		"an unknown field":          {"POST", "/fleet/vms", []byte(`{"image":"tiny","token":"s3cret"}`), nil, 400, api.CodeInvalid, `unknown field \"token\" before byte`, ""},
		"sizing is not yet known":   {"POST", "/fleet/pools", []byte(`{"name":"q","image":"tiny","sizing":{}}`), nil, 400, api.CodeInvalid, `unknown field \"sizing\"`, ""},
		"trailing data":             {"POST", "/fleet/vms", []byte(`{"image":"tiny"} {"s3cret":1}`), nil, 400, api.CodeInvalid, "more data begins at byte", ""},
		"no object":                 {"POST", "/fleet/vms", []byte(`["s3cret"]`), nil, 400, api.CodeInvalid, "not an array", ""},
		"half an object":            {"POST", "/fleet/vms", []byte(`{"image":"s3cret`), nil, 400, api.CodeInvalid, "byte", ""},
		"no JSON":                   {"POST", "/fleet/vms", []byte("s3cret=1"), nil, 400, api.CodeInvalid, "byte 1", ""},
		"not UTF-8":                 {"POST", "/fleet/vms", []byte("{\"image\":\"\xff\xfe\"}"), nil, 400, api.CodeInvalid, "", ""},
		"a number for text":         {"POST", "/fleet/vms", []byte(`{"image":53537}`), nil, 400, api.CodeInvalid, "image must be text (byte", ""},
		"too large a number":        {"POST", "/fleet/vms", []byte(`{"image":"tiny","vcpus":99999999999999999999}`), nil, 400, api.CodeInvalid, "vcpus", ""},
		"below zero":                {"POST", "/fleet/vms", []byte(`{"image":"tiny","memory_mib":-1}`), nil, 400, api.CodeInvalid, "memory_mib", ""},
		"the last duplicate counts": {"POST", "/fleet/vms", []byte(`{"image":"tiny","vcpus":1,"vcpus":-5}`), nil, 400, api.CodeInvalid, "vcpus", ""},
		"33 labels":                 {"POST", "/fleet/vms", labels(33), nil, 400, api.CodeInvalid, "labels", ""},
		"a label of ours":           {"POST", "/fleet/vms", []byte(`{"image":"tiny","labels":{"fluxvm.dev/warm-pool":"p"}}`), nil, 400, api.CodeInvalid, "fluxvm.dev/", ""},
		"a body for a cordon":       {"POST", "/fleet/nodes/n1/cordon", []byte(`{"force":true}`), nil, 400, api.CodeInvalid, "force", ""},
		"an endless reason":         {"POST", "/fleet/nodes/n1/drain", []byte(`{"reason":"` + strings.Repeat("x", 501) + `"}`), nil, 400, api.CodeInvalid, "reason", ""},
		"a wrong method":            {"PUT", "/fleet/vms", []byte(`{}`), nil, 405, api.CodeInvalid, "GET, POST", "GET, POST"},
		"two routes on one path":    {"GET", "/fleet/vms/a/exec", nil, nil, 405, api.CodeInvalid, "", "POST, DELETE"},
		"no such route":             {"GET", "/fleet/vmss", nil, nil, 404, api.CodeNotFound, "no such route in the fleet's API", ""},
		"a path that climbs":        {"GET", "/fleet/../../etc/passwd", nil, nil, 404, api.CodeNotFound, "no such route in the fleet's API", ""},
		"a double slash":            {"GET", "//fleet//vms", nil, nil, 404, api.CodeNotFound, "no such route in the fleet's API", ""},
		"a slash in a VM's name":    {"GET", "/fleet/vms/a%2Fb", nil, nil, 404, api.CodeNotFound, "there is no VM a/b; fluxctl fleet vms lists them", ""},
		"dots in a VM's name":       {"DELETE", "/fleet/vms/..%2f..%2fn1", nil, nil, 404, api.CodeNotFound, "there is no VM", ""},
		"a zero byte in a name":     {"GET", "/fleet/vms/%00", nil, nil, 404, api.CodeNotFound, "there is no VM", ""},
		"a slash in a pool's":       {"PATCH", "/fleet/pools/a%2Fstatus", []byte(`{}`), nil, 404, api.CodeNotFound, "there is no pool", ""},
		"a slash in an image's":     {"DELETE", "/fleet/images/a%2Fb", nil, nil, 404, api.CodeNotFound, "there is no image", ""},
		"an image by its path":      {"GET", "/fleet/images/sim:%3Ftiny", nil, nil, 404, api.CodeNotFound, "there is no image", ""},
		"a slash in a node's":       {"POST", "/fleet/nodes/n1%2F..%2Fn1/cordon", nil, nil, 404, api.CodeNotFound, "there is no node", ""},
		"an If-Match of no sense":   {"PATCH", "/fleet/pools/p", []byte(`{"min_ready":1}`), []string{"If-Match", "yesterday"}, 409, api.CodeConflict, "If-Match", ""},
		"an If-Match of version 0":  {"PATCH", "/fleet/pools/p", []byte(`{"min_ready":1}`), []string{"If-Match", `"0"`}, 409, api.CodeConflict, "If-Match", ""},
		"an If-Match below zero":    {"PATCH", "/fleet/pools/p", []byte(`{"min_ready":1}`), []string{"If-Match", "-1"}, 409, api.CodeConflict, "If-Match", ""},
		"a limit of 501":            {"GET", "/fleet/vms?limit=501", nil, nil, 400, api.CodeInvalid, "limit", ""},
		"a limit of 0":              {"GET", "/fleet/pools?limit=0", nil, nil, 400, api.CodeInvalid, "limit", ""},
		"a limit in words":          {"GET", "/fleet/nodes?limit=all", nil, nil, 400, api.CodeInvalid, "limit", ""},
		"a made-up cursor":          {"GET", "/fleet/vms?cursor=AAAA", nil, nil, 400, api.CodeInvalid, "cursor", ""},
		"no base64":                 {"GET", "/fleet/images?cursor=%25%25", nil, nil, 400, api.CodeInvalid, "cursor", ""},
		"a cursor of another list":  {"GET", "/fleet/activity?cursor=" + *cursor("tiny"), nil, nil, 400, api.CodeInvalid, "cursor", ""},
		"an index of no sense":      {"GET", "/fleet/vms?index=-1", nil, nil, 400, api.CodeInvalid, "index", ""},
		"a wait of an hour":         {"GET", "/fleet/vms?index=1&wait=1h", nil, nil, 400, api.CodeInvalid, "wait", ""},
		"stale, perhaps":            {"GET", "/fleet/vms?stale=perhaps", nil, nil, 400, api.CodeInvalid, "stale", ""},
		"a label filter without =":  {"GET", "/fleet/vms?label=a", nil, nil, 400, api.CodeInvalid, "label", ""},
		"a state that no VM has":    {"GET", "/fleet/vms?state=stoped", nil, nil, 400, api.CodeInvalid, "state must be one of placed, booting, running, stopped", ""},
		"a state that no pool has":  {"GET", "/fleet/pools?state=running", nil, nil, 400, api.CodeInvalid, "state must be one of ready, filling", ""},
		"a state that no lease has": {"GET", "/fleet/leases?state=over", nil, nil, 400, api.CodeInvalid, "state must be one of pending, active", ""},
		"a kind that no row has":    {"GET", "/fleet/ledger?kind=vms", nil, nil, 400, api.CodeInvalid, "kind must be one of vm, lease, pool, adjustment", ""},
		"wait for what":             {"POST", "/fleet/vms?wait=long", []byte(`{"image":"tiny"}`), nil, 400, api.CodeInvalid, "wait", ""},
		"an unknown parameter":      {"GET", "/fleet/vms?tennant=acme", nil, nil, 400, api.CodeInvalid, `unknown query parameter \"tennant\"; this route takes cursor, index, label, limit, node, pool, stale, state, tenant, wait`, ""},
		"a parameter of reads":      {"POST", "/fleet/pools?stale=true", []byte(`{"name":"q","image":"tiny"}`), nil, 400, api.CodeInvalid, `unknown query parameter \"stale\"; this route takes none`, ""},
		"an unknown one of stale":   {"GET", "/fleet/nodes?stale=true&sort=name", nil, nil, 400, api.CodeInvalid, `unknown query parameter \"sort\"`, ""},
		"an unknown one of events":  {"GET", "/fleet/events?since=1.0", nil, nil, 400, api.CodeInvalid, `unknown query parameter \"since\"; this route takes from`, ""},
		"a key of 256 bytes":        {"POST", "/fleet/vms", []byte(`{"image":"tiny"}`), []string{api.HeaderIdempotencyKey, strings.Repeat("k", 256)}, 400, api.CodeInvalid, "1-255", ""},
		"a key with a space":        {"POST", "/fleet/vms", []byte(`{"image":"tiny"}`), []string{api.HeaderIdempotencyKey, "a b"}, 400, api.CodeInvalid, "ASCII", ""},
		"another's tenant":          {"POST", "/fleet/vms", []byte(`{"image":"tiny","tenant":"acme"}`), nil, 400, api.CodeInvalid, "tenant", ""},
		"an unknown image":          {"POST", "/fleet/pools", []byte(`{"name":"q","image":"nope"}`), nil, 400, api.CodeInvalid, `"field":"image"`, ""},
		"an unknown node":           {"POST", "/fleet/vms", []byte(`{"image":"tiny","node":"n9"}`), nil, 400, api.CodeInvalid, `"field":"node"`, ""},
		"an event id of no sense":   {"GET", "/fleet/events?from=later", nil, nil, 400, api.CodeInvalid, "from", ""},
		"an exec without a command": {"POST", "/fleet/vms/x/exec", []byte(`{"argv":[]}`), nil, 400, api.CodeInvalid, "argv", ""},
		"a request id with spaces":  {"GET", "/fleet/vms/x", nil, []string{api.HeaderRequestID, "a b\tc"}, 404, api.CodeNotFound, "", ""},
	}
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.call(r.leader(), "POST", "/fleet/pools", body{"name": "p", "image": "tiny", "min_ready": 0})
		before := r.member(r.leader()).state.View().Index()
		for name, c := range cases {
			for _, replica := range []string{r.leader(), r.follower()} {
				var b any
				if c.body != nil {
					b = c.body
				}
				got := r.call(replica, c.method, c.path, b, c.header...)
				if got.status != c.status || got.code() != c.code || !strings.Contains(string(got.body), c.says) {
					t.Errorf("%s: got %s, want %d %s with %q", name, got, c.status, c.code, c.says)
				}
				if got.header.Get("Allow") != c.allow {
					t.Errorf("%s: Allow is %q, want %q", name, got.header.Get("Allow"), c.allow)
				}
				for _, secret := range []string{"s3cret", "53537"} {
					if bytes.Contains(got.body, []byte(secret)) {
						t.Errorf("%s: the answer repeats what was sent: %s", name, got)
					}
				}
			}
		}
		if vms := r.vms(); len(vms) > 0 {
			t.Errorf("something was made after all: %+v", vms)
		}
		if after := r.member(r.leader()).state.View().Index(); after > before+200 {
			t.Errorf("refusals grew the log from %d to %d", before, after)
		}
	})
}

func labels(n int) []byte {
	all := map[string]string{}
	for i := range n {
		all[strings.Repeat("k", i+1)] = "v"
	}
	raw, err := json.Marshal(body{"image": "tiny", "labels": all})
	if err != nil {
		panic(err)
	}
	return raw
}
