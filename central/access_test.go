package central

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// sample is how a test uses one route. Words in braces stand for objects: the caller's own, another tenant's, absent.
type sample struct {
	path string
	body any
	want int // the answer to one who may, about an object that is there; 0: any success
}

// samples has a row for every route. One that is missing fails the test below.
var samples = map[string]sample{
	"GET /healthz":                           {path: "/healthz"},
	"GET /readyz":                            {path: "/readyz"},
	"GET /metrics":                           {path: "/metrics"},
	"GET /openapi.json":                      {path: "/openapi.json"},
	"POST /fleet/register":                   {path: "/fleet/register"}, // its body is the node's
	"GET /fleet/events":                      {path: "/fleet/events"},
	"GET /fleet/cluster":                     {path: "/fleet/cluster"},
	"GET /fleet/cluster/checksum":            {path: "/fleet/cluster/checksum"},
	"POST /fleet/cluster/replicas":           {path: "/fleet/cluster/replicas", body: body{"name": "central-9", "cluster_addr": "central-9:1"}, want: 201},
	"DELETE /fleet/cluster/replicas/{name}":  {path: "/fleet/cluster/replicas/central-9", want: 204},
	"POST /fleet/cluster/transfer":           {path: "/fleet/cluster/transfer", want: 204},
	"POST /fleet/cluster/snapshot":           {path: "/fleet/cluster/snapshot"},
	"POST /fleet/cluster/restore":            {path: "/fleet/cluster/restore", want: 409}, // it is not fresh
	"POST /fleet/join-tokens":                {path: "/fleet/join-tokens", body: body{"kind": "node"}, want: 201},
	"GET /fleet/activity":                    {path: "/fleet/activity"},
	"GET /fleet/capacity":                    {path: "/fleet/capacity"},
	"GET /fleet/nodes":                       {path: "/fleet/nodes"},
	"GET /fleet/nodes/{name}":                {path: "/fleet/nodes/{node}"},
	"PATCH /fleet/nodes/{name}":              {path: "/fleet/nodes/{node}", body: body{"reason": "a word"}},
	"DELETE /fleet/nodes/{name}":             {path: "/fleet/nodes/{emptynode}", want: 204},
	"POST /fleet/nodes/{name}/cordon":        {path: "/fleet/nodes/{node}/cordon"},
	"POST /fleet/nodes/{name}/uncordon":      {path: "/fleet/nodes/{node}/uncordon"},
	"POST /fleet/nodes/{name}/drain":         {path: "/fleet/nodes/{emptynode}/drain"},
	"POST /fleet/nodes/{name}/scrub":         {path: "/fleet/nodes/{node}/scrub", want: 409}, // there is none to repeat
	"POST /fleet/nodes/{name}/lost":          {path: "/fleet/nodes/{node}/lost", want: 409},  // it is healthy
	"POST /fleet/nodes/{name}/replace":       {path: "/fleet/nodes/{node}/replace", body: body{"reason": "a new disk"}, want: 409},
	"GET /fleet/nodes/{name}/vms":            {path: "/fleet/nodes/{node}/vms"},
	"GET /fleet/images":                      {path: "/fleet/images"},
	"POST /fleet/images":                     {path: "/fleet/images", body: body{"name": "made", "path": "sim:?made"}, want: 201},
	"GET /fleet/images/{name}":               {path: "/fleet/images/tiny"},
	"PATCH /fleet/images/{name}":             {path: "/fleet/images/{image}", body: body{"title": "A title"}},
	"DELETE /fleet/images/{name}":            {path: "/fleet/images/{image}", want: 204},
	"GET /fleet/pools":                       {path: "/fleet/pools"},
	"POST /fleet/pools":                      {path: "/fleet/pools", body: body{"name": "made-{caller}", "image": "tiny", "min_ready": 0}, want: 201},
	"GET /fleet/pools/{name}":                {path: "/fleet/pools/{pool}"},
	"PATCH /fleet/pools/{name}":              {path: "/fleet/pools/{pool}", body: body{"max_total": 9}},
	"DELETE /fleet/pools/{name}":             {path: "/fleet/pools/{pool}", want: 204},
	"GET /fleet/pools/{name}/status":         {path: "/fleet/pools/{pool}/status"},
	"POST /fleet/pools/{name}/roll":          {path: "/fleet/pools/{pool}/roll", body: body{"image": "tiny"}, want: 202},
	"GET /fleet/vms":                         {path: "/fleet/vms"},
	"POST /fleet/vms":                        {path: "/fleet/vms", body: body{"image": "tiny", "node": "home"}, want: 201},
	"GET /fleet/vms/{id}":                    {path: "/fleet/vms/{vm}"},
	"PATCH /fleet/vms/{id}":                  {path: "/fleet/vms/{vm}", body: body{"labels": body{"a": "b"}}},
	"DELETE /fleet/vms/{id}":                 {path: "/fleet/vms/{vm}", want: 204},
	"DELETE /fleet/vms/{node}/{id}":          {path: "/fleet/vms/{home}/{vm2}", want: 204},
	"POST /fleet/vms/{id}/exec":              {path: "/fleet/vms/{vm}/exec", body: body{"argv": []string{"true"}}},
	"GET /fleet/vms/{id}/console":            {path: "/fleet/vms/{vm}/console"},
	"GET /fleet/tenants":                     {path: "/fleet/tenants"},
	"POST /fleet/tenants":                    {path: "/fleet/tenants", body: body{"name": "made"}, want: 201},
	"GET /fleet/tenants/{name}":              {path: "/fleet/tenants/{tenant}"},
	"PATCH /fleet/tenants/{name}":            {path: "/fleet/tenants/{tenant}", body: body{"max_ttl_seconds": 86400}},
	"DELETE /fleet/tenants/{name}":           {path: "/fleet/tenants/{emptytenant}", want: 204},
	"GET /fleet/tenants/{name}/usage":        {path: "/fleet/tenants/{tenant}/usage"},
	"GET /fleet/tenants/{name}/keys":         {path: "/fleet/tenants/{tenant}/keys"},
	"POST /fleet/tenants/{name}/keys":        {path: "/fleet/tenants/{tenant}/keys", body: body{"role": "viewer"}, want: 201},
	"DELETE /fleet/tenants/{name}/keys/{id}": {path: "/fleet/tenants/{tenant}/keys/{key}", want: 204},
	"GET /fleet/operator-keys":               {path: "/fleet/operator-keys"},
	"POST /fleet/operator-keys":              {path: "/fleet/operator-keys", body: body{"role": "viewer"}, want: 201},
	"DELETE /fleet/operator-keys/{id}":       {path: "/fleet/operator-keys/{opkey}", want: 204},
	"GET /fleet/policy":                      {path: "/fleet/policy"},
	"PATCH /fleet/policy":                    {path: "/fleet/policy", body: body{"max_boots_per_node": 5}},
	"GET /fleet/prices":                      {path: "/fleet/prices"},
	"PUT /fleet/prices":                      {path: "/fleet/prices", body: body{"currency": "EUR", "vm": []body{}, "lease": []body{}, "pool": []body{}}},
	"GET /fleet/leases":                      {path: "/fleet/leases"},
	"POST /fleet/leases":                     {path: "/fleet/leases", body: body{"tenant": "acme", "node": "free-{caller}", "duration": "2h"}, want: 201},
	"GET /fleet/leases/{id}":                 {path: "/fleet/leases/{lease}"},
	"PATCH /fleet/leases/{id}":               {path: "/fleet/leases/{lease}", body: body{"auto_renew": true}},
	"DELETE /fleet/leases/{id}":              {path: "/fleet/leases/{lease}", want: 202},
	"GET /fleet/ledger":                      {path: "/fleet/ledger"},
	"POST /fleet/ledger":                     {path: "/fleet/ledger", body: body{"tenant": "acme", "amount_micros": -5, "reason": "a gift"}, want: 201},
	"GET /fleet/usage":                       {path: "/fleet/usage"},
}

// rbac is a fleet with two tenants that have one of everything.
type rbac struct {
	*rig
	tokens  map[string]string            // by who shows them
	objects map[string]map[string]string // own for operator and for tenant, foreign, absent
	asked   int
}

// filled puts a caller's objects into a sample.
func (f *rbac) filled(s sample, side, caller string) (path string, b any) {
	words := []string{"{caller}", caller}
	for k, v := range f.objects[side] {
		words = append(words, "{"+k+"}", v)
	}
	fill := strings.NewReplacer(words...)
	if s.body != nil {
		b = []byte(fill.Replace(asJSON(s.body)))
	}
	return fill.Replace(s.path), b
}

// ask sends a sample from one replica after the other. Reads are asked for as stale ones, too.
func (f *rbac) ask(rt route, who, side string) (got reply) {
	f.t.Helper()
	path, b := f.filled(samples[rt.method+" "+rt.path], side, who)
	if rt.path == "/fleet/register" {
		b = f.beatOf(map[string]string{"operator": "n4", "tenant": "n4", "foreign": "n2", "absent": "nowhere"}[side])
	}
	f.asked++
	url, replica := path, f.names[f.asked%len(f.names)]
	if rt.method == "GET" && f.asked%2 == 0 && !rt.local {
		url += "?stale=true"
	}
	if rt.path == "/fleet/register" { // only the leader knows for sure who is nobody
		replica = f.leader()
	}
	if rt.path == "/fleet/events" {
		s, status, stop := f.followAs(f.tokens[who], replica, "")
		stop()
		return reply{status: status, header: s.header}
	}
	got, err := f.try(replica, f.tokens[who], rt.method, url, b)
	if err != nil {
		f.t.Fatalf("%s %s as %s: %v", rt.method, url, who, err)
	}
	return got
}

func newRBAC(r *rig) *rbac {
	for _, n := range []string{"n1", "n2", "n3", "n4", "home", "free-operator", "free-tenant", "l-operator", "l-tenant"} {
		r.addNode(n, nil)
	}
	r.registered()
	r.image("tiny")
	r.image("spare")
	f := &rbac{rig: r, tokens: map[string]string{"operator": operatorToken, "nobody": "", "guess": "fvx_" + strings.Repeat("x", 43), "node": r.node("n4").secret()}, objects: map[string]map[string]string{}}
	f.tokens["tenant"] = r.tenant("acme", nil)
	globex := r.tenant("globex", nil)
	r.tenant("empty", nil)
	f.tokens["operator's viewer"] = r.key("", api.RoleViewer, 0).Secret
	f.tokens["second operator"] = r.key("", api.RoleOperator, 0).Secret
	f.tokens["tenant's viewer"] = r.key("acme", api.RoleViewer, 0).Secret
	expired, revoked := r.key("acme", api.RoleTenant, time.Second), r.key("", api.RoleOperator, 0)
	f.tokens["expired"], f.tokens["revoked"] = expired.Secret, revoked.Secret
	r.must(operatorToken, "DELETE", "/fleet/operator-keys/"+revoked.ID, nil)
	leases := map[string]api.Lease{}
	for node, tenant := range map[string]string{"n1": "acme", "n2": "globex", "l-operator": "acme", "l-tenant": "acme"} {
		leases[node] = r.lease(tenant, node, "2h")
	}
	vm := func(token, name string) string {
		got := into[api.LaunchAnswer](r.t, r.must(token, "POST", "/fleet/vms", body{"name": name, "image": "tiny", "node": "home"}))
		r.running(got.VM.ID)
		return got.VM.ID
	}
	pool := func(token, name string) string {
		r.must(token, "POST", "/fleet/pools", body{"name": name, "image": "tiny", "min_ready": 0})
		return name
	}
	for _, who := range []string{"operator", "tenant"} {
		f.objects[who] = map[string]string{"vm": vm(f.tokens["tenant"], "vm-"+who), "vm2": vm(f.tokens["tenant"], "vm2-"+who), "home": "home", "pool": pool(f.tokens["tenant"], "pool-"+who),
			"key": r.key("acme", api.RoleViewer, 0).ID, "opkey": r.key("", api.RoleViewer, 0).ID, "lease": leases["l-"+who].ID, "node": "n1", "emptynode": "n3", "tenant": "acme", "emptytenant": "empty", "image": "spare"}
	}
	f.objects["foreign"] = map[string]string{"vm": vm(globex, "vm"), "vm2": vm(globex, "vm2"), "home": "home", "pool": pool(globex, "theirs"), "key": r.key("globex", api.RoleViewer, 0).ID,
		"opkey": r.key("", api.RoleViewer, 0).ID, "lease": leases["n2"].ID, "node": "n2", "emptynode": "n3", "tenant": "globex", "emptytenant": "globex", "image": "spare"}
	f.objects["absent"] = map[string]string{"vm": "00000000-0000-4000-8000-000000000000", "vm2": "no-vm", "home": "home", "pool": "no-pool", "key": "no-key", "opkey": "no-key",
		"lease": "no-lease", "node": "nowhere", "emptynode": "nowhere", "tenant": "nobody", "emptytenant": "nobody", "image": "no-image"}
	r.wait(2 * time.Second) // the short-lived key expires
	r.applied()
	return f
}

// beatOf is the body of a node's beat, as anyone could make it up.
func (f *rbac) beatOf(name string) api.Register {
	out := f.node("n4").facts
	if n := f.node(name); n != nil {
		out = n.facts
	} else {
		out.UUID = "0198c0de-0000-7000-8000-0000000000ee"
	}
	out.Name, out.VMsDigest, out.VMs, out.HasVMs = name, "d", []api.ReportedVM{}, true
	return out
}

// mayUse is who may use a route, written down anew: by the words of its entry in the table and the method alone.
func mayUse(who string, rt route) bool {
	switch who {
	case "operator", "second operator":
		return true
	case "operator's viewer":
		return rt.who != forNodes && rt.method == "GET"
	case "tenant":
		return rt.who == forTenants
	case "tenant's viewer":
		return rt.who == forTenants && rt.method == "GET"
	}
	return false
}

func TestEveryRouteForEveryRole(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		routes := r.member(r.leader()).routes()
		rows := maps.Clone(samples)
		for _, rt := range routes {
			if _, ok := rows[rt.method+" "+rt.path]; !ok {
				t.Errorf("%s %s has no row in samples: add one", rt.method, rt.path)
			}
			delete(rows, rt.method+" "+rt.path)
		}
		if len(rows) > 0 || t.Failed() {
			t.Fatalf("samples of no route: %v", slices.Collect(maps.Keys(rows)))
		}
		f := newRBAC(r)
		before := r.member(r.leader()).state.View().Meta().ActivitySeq
		for _, rt := range routes {
			f.refusals(rt)
		}
		view := r.member(r.leader()).state.View()
		for a := range view.Activities(0) {
			if a.Seq > before {
				t.Errorf("refusals had an effect: %+v", *a)
			}
		}
		slices.SortStableFunc(routes, func(a, b route) int { return turn(a) - turn(b) }) // what is deleted is used before
		for _, rt := range routes {
			f.successes(rt)
		}
		if f.asked < 9*len(routes) {
			t.Errorf("only %d requests for %d routes", f.asked, len(routes))
		}
	})
}

func turn(rt route) int {
	switch {
	case rt.method == "GET":
		return 0
	case rt.path == "/fleet/nodes/{name}/drain":
		return 2
	case rt.method == "DELETE":
		return 3
	case rt.path == "/fleet/cluster/transfer": // what is asked while the next one gets ready is refused
		return 4
	}
	return 1
}

// refusals asks a route as all who may not use it, and about what is not the caller's.
func (f *rbac) refusals(rt route) {
	f.t.Helper()
	what := rt.method + " " + rt.path
	if rt.who == forAnyone {
		return
	}
	for _, who := range slices.Sorted(maps.Keys(f.tokens)) {
		anyone := who == "nobody" || who == "guess" || who == "expired" || who == "revoked" || who == "node"
		for _, side := range []string{"operator", "foreign", "absent"} {
			if rt.who == forNodes && (who == "node" && side == "operator" || mayUse(who, rt)) || !anyone && mayUse(who, rt) {
				continue
			}
			status, code := http.StatusForbidden, api.CodeForbidden
			if anyone {
				status, code = http.StatusUnauthorized, api.CodeUnauthenticated
			}
			if got := f.ask(rt, who, side); got.status != status || got.body != nil && got.code() != code {
				f.t.Errorf("%s as %s about what is %s: %s, want %d", what, who, side, got, status)
			}
		}
	}
	if rt.who != forTenants || rt.path == samples[what].path {
		return
	}
	for _, who := range []string{"tenant", "tenant's viewer"} {
		if mayUse(who, rt) && samples[what].path != "/fleet/images/tiny" {
			f.foreignIsAbsent(rt, who)
		}
	}
	if rt.method == "GET" {
		for _, who := range []string{"operator", "operator's viewer"} {
			if got := f.ask(rt, who, "absent"); got.status != 404 && samples[what].path != "/fleet/images/tiny" {
				f.t.Errorf("%s as %s about nothing: %s, want 404", what, who, got)
			}
		}
	}
}

// foreignIsAbsent compares, byte by byte, what is said of another tenant's object and of none. Only the name that was
// asked for and the request's id may differ.
func (f *rbac) foreignIsAbsent(rt route, who string) {
	f.t.Helper()
	said, asked := map[string]string{}, f.asked
	for _, side := range []string{"foreign", "absent"} {
		f.asked = asked // both on one replica and both as fresh
		got := f.ask(rt, who, side)
		if got.status != http.StatusNotFound || got.code() != api.CodeNotFound {
			f.t.Errorf("%s %s as %s about what is %s: %s, want 404", rt.method, rt.path, who, side, got)
		}
		text := strings.ReplaceAll(string(got.body), got.header.Get(api.HeaderRequestID), "ID")
		for _, name := range f.objects[side] {
			text = strings.ReplaceAll(text, " "+name, " NAME")
		}
		var headers []string
		for k := range got.header {
			headers = append(headers, k)
		}
		slices.Sort(headers)
		said[side] = fmt.Sprint(got.status, text, headers)
	}
	if diff := cmp.Diff(said["foreign"], said["absent"]); diff != "" {
		f.t.Errorf("%s %s as %s (-foreign +absent):\n%s", rt.method, rt.path, who, diff)
	}
}

// successes asks a route as all who may use it, about what is theirs.
func (f *rbac) successes(rt route) {
	f.t.Helper()
	what, s := rt.method+" "+rt.path, samples[rt.method+" "+rt.path]
	callers := []string{"operator"}
	if rt.who == forTenants || rt.who == forAnyone {
		callers = append(callers, "tenant")
	}
	if rt.method == "GET" {
		callers = append(callers, "operator's viewer", "second operator")
		if rt.who == forTenants {
			callers = append(callers, "tenant's viewer")
		}
	}
	if rt.who == forNodes {
		callers = append(callers, "node")
	}
	for _, who := range callers {
		side := who
		if f.objects[side] == nil {
			side = "tenant"
		}
		got := f.ask(rt, who, side)
		if s.want == 0 && (got.status < 200 || got.status > 299) || s.want != 0 && got.status != s.want {
			f.t.Errorf("%s as %s: %s, want %d", what, who, got, s.want)
		}
	}
}

func TestATenantActsForItselfOnly(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		acme, globex := r.tenant("acme", nil), r.tenant("globex", nil)
		theirs := r.key("globex", api.RoleTenant, 0)
		for path, b := range map[string]body{
			"/fleet/vms":    {"image": "tiny"},
			"/fleet/pools":  {"name": "p", "image": "tiny"},
			"/fleet/leases": {"node": "n1", "duration": "2h"},
		} {
			said := map[string]string{}
			for _, named := range []string{"globex", "nobody", "operator"} {
				b["tenant"] = named
				got := r.as(acme, "POST", path, b)
				if got.status != 403 || got.code() != api.CodeForbidden {
					t.Errorf("POST %s for tenant %s: %s, want 403", path, named, got)
				}
				said[named] = strings.ReplaceAll(string(got.body), got.header.Get(api.HeaderRequestID), "ID")
			}
			if said["globex"] != said["nobody"] {
				t.Errorf("POST %s tells a tenant from none: %s and %s", path, said["globex"], said["nobody"])
			}
		}
		if got := r.as(acme, "DELETE", "/fleet/tenants/acme/keys/"+theirs.ID, nil); got.status != 404 {
			t.Errorf("revoking another's key by way of one's own tenant: %s, want 404", got)
		}
		if got := r.as(acme, "POST", "/fleet/tenants/acme/keys", body{"role": "operator"}); got.status != 400 {
			t.Errorf("a tenant that makes itself an operator: %s, want 400", got)
		}
		for _, token := range []string{acme, globex, operatorToken} { // names are each tenant's own, and so are Idempotency-Keys
			r.must(token, "POST", "/fleet/vms", body{"image": "tiny", "name": "a"}, api.HeaderIdempotencyKey, "k")
		}
		if vms := r.vms(); len(vms) != 3 {
			t.Errorf("one key of three callers made %d VMs, want 3", len(vms))
		}
		for token, owner := range map[string]string{acme: "acme", globex: "globex", theirs.Secret: "globex"} {
			for _, path := range []string{"/fleet/vms?", "/fleet/vms?tenant=acme&", "/fleet/vms?tenant=globex&"} {
				for _, vm := range everything[api.VM](r, token, path) {
					if vm.Tenant == nil || *vm.Tenant != owner {
						t.Errorf("%s%s shows %s to %s", path, "", vm.Name, owner)
					}
				}
			}
			if vm := into[api.VM](t, r.must(token, "GET", "/fleet/vms/a", nil)); *vm.Tenant != owner {
				t.Errorf("to %s the VM called a is %s's", owner, *vm.Tenant)
			}
		}
		var secrets []string
		for k := range r.member(r.leader()).state.View().Keys("globex") {
			secrets = append(secrets, asJSON(k))
		}
		if strings.Contains(strings.Join(secrets, ""), theirs.Secret) || !strings.HasPrefix(theirs.Secret, keyPrefix) {
			t.Error("a key's secret is kept in clear, or has no typed prefix")
		}
		if listed := r.as(globex, "GET", "/fleet/tenants/globex/keys", nil); strings.Contains(string(listed.body), "secret") || strings.Contains(string(listed.body), "hash") {
			t.Errorf("the list of keys shows secrets: %s", listed)
		}
	})
}
