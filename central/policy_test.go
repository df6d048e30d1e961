package central

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestSharedPoolsAreHiddenUnlessPolicyLetsTenantsUseThem(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		acme, poor := r.tenant("acme", nil), r.tenant("poor", body{"max_vms": 0})
		made := into[api.Pool](t, r.must(operatorToken, "POST", "/fleet/pools", body{"name": "shared", "image": "tiny", "min_ready": 2}))
		if made.Owner != "operator" || made.Tenant != nil || !strings.Contains(made.Note, "allow_shared_pool_claims") {
			t.Errorf("a shared pool is made as %s, want a note that tenants may not use it", asJSON(made))
		}
		r.full("shared")
		for name, c := range map[string]struct {
			policy body
			seen   bool
		}{
			"by default":         {body{}, false},
			"allowed":            {body{"allow_shared_pool_claims": true}, true},
			"networks isolated":  {body{"allow_shared_pool_claims": true, "isolate_tenant_networks": true}, false},
			"not allowed at all": {body{"allow_shared_pool_claims": false, "isolate_tenant_networks": false}, false},
		} {
			r.must(operatorToken, "PATCH", "/fleet/policy", body{"allow_shared_pool_claims": nil, "isolate_tenant_networks": nil})
			r.must(operatorToken, "PATCH", "/fleet/policy", c.policy)
			listed := everything[api.Pool](r, acme, "/fleet/pools?")
			if (len(listed) == 1) != c.seen {
				t.Errorf("%s: a tenant sees %d pools", name, len(listed))
			}
			for _, path := range []string{"/fleet/pools/shared", "/fleet/pools/shared/status"} {
				if got := r.as(acme, "GET", path, nil); (got.status == 200) != c.seen || got.status != 200 && got.status != 404 {
					t.Errorf("%s: %s: %s", name, path, got)
				}
			}
			for method, path := range map[string]string{"PATCH": "/fleet/pools/shared", "DELETE": "/fleet/pools/shared", "POST": "/fleet/pools/shared/roll"} {
				want, b := 404, body{"min_ready": 0}
				if c.seen {
					want = 403
				}
				if method == "POST" {
					b = body{"image": "tiny"}
				}
				if got := r.as(acme, method, path, b); got.status != want {
					t.Errorf("%s: %s by a tenant: %s, want %d", name, method, got, want)
				}
			}
			if c.seen {
				p := listed[0]
				if len(p.Nodes) > 0 || len(p.NodeSelector) > 0 || len(p.Warm) != 2 || p.Warm[0].Node != "" {
					t.Errorf("%s: a tenant sees where its spares are: %s", name, asJSON(p))
				}
				before := r.status("shared")
				if got := r.as(poor, "POST", "/fleet/vms", body{"pool": "shared"}); got.code() != api.CodeQuotaExceeded || r.status("shared").Claimed24h != before.Claimed24h {
					t.Errorf("a claim over the quota: %s", got)
				}
				if h := r.member(r.leader()).state.View().Holding("acme"); h.VMs != 0 {
					t.Errorf("idle spares count in the tenant's quota: %+v", h)
				}
				got := into[api.LaunchAnswer](t, r.must(acme, "POST", "/fleet/vms", body{"pool": "shared", "name": "a"}))
				if h := r.member(r.leader()).state.View().Holding("acme"); !got.Warm || deref(got.VM.Tenant) != "acme" || h.VMs != 1 {
					t.Errorf("a claim by a tenant: %s, which then holds %+v", asJSON(got), h)
				}
			} else {
				if got := r.as(acme, "POST", "/fleet/vms", body{"pool": "shared"}); got.status != 404 {
					t.Errorf("%s: a launch that names it: %s, want 404", name, got)
				}
				got := into[api.LaunchAnswer](t, r.must(acme, "POST", "/fleet/vms", body{"image": "tiny"}))
				if got.Warm || got.ColdReason != "no_pool" {
					t.Errorf("%s: a launch of its image: %s, want a cold boot for no_pool", name, asJSON(got))
				}
				r.must(acme, "DELETE", "/fleet/vms/"+got.VM.ID, nil)
			}
			r.full("shared")
		}
		r.must(operatorToken, "PATCH", "/fleet/policy", body{"allow_shared_pool_claims": true, "isolate_tenant_networks": false, "require_lease_for_macos": true})
		for image, guestOS := range map[string]string{"tiny": "linux", "mac": "macos"} {
			if guestOS == "macos" {
				r.must(operatorToken, "POST", "/fleet/images", body{"name": image, "path": "sim:?mac", "guest_os": guestOS, "vcpus": 2, "memory_mib": 4096, "has_agent": true})
			}
			p := into[api.Pool](t, r.must(operatorToken, "POST", "/fleet/pools", body{"name": "of-" + image, "image": image, "min_ready": 0}))
			if seen := r.as(acme, "GET", "/fleet/pools/of-"+image, nil).status == 200; seen != (guestOS == "linux") || (p.Note == "") != seen {
				t.Errorf("a shared pool of %s guests is seen by tenants: %t, its note is %q", guestOS, seen, p.Note)
			}
		}
		r.must(operatorToken, "PATCH", "/fleet/policy", body{"require_lease_for_macos": false})
		if got := r.as(acme, "GET", "/fleet/pools/of-mac", nil); got.status != 200 {
			t.Errorf("with no lease required a shared pool of macOS guests: %s", got)
		}
	})
}

func TestMacOSGuestsOfATenantRunOnItsLeasedMacs(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		for _, n := range []string{"mac1", "mac2"} {
			r.addNode(n, func(m *modelNode) { m.facts.Apple = &api.AppleHost{Chip: "m4", MacOSLimit: api.MacOSPerHost} })
		}
		r.addNode("pc", nil)
		r.registered()
		r.must(operatorToken, "POST", "/fleet/images", body{"name": "mac", "path": "sim:?mac", "guest_os": "macos", "vcpus": 2, "memory_mib": 4096, "has_agent": true})
		r.image("tiny")
		acme, globex := r.tenant("acme", body{"max_macos_guests": 3}), r.tenant("globex", nil)
		launch := func(token string, more body) reply {
			b := body{"image": "mac"}
			for k, v := range more {
				b[k] = v
			}
			return r.as(token, "POST", "/fleet/vms", b)
		}
		if got := launch(acme, nil); got.code() != api.CodePolicyDenied || !strings.Contains(string(got.body), "require_lease_for_macos") {
			t.Errorf("without a lease: %s, want policy_denied", got)
		}
		r.lease("acme", "pc", "1h") // no Mac
		if got := launch(acme, nil); got.code() != api.CodePolicyDenied {
			t.Errorf("with a lease of no Mac: %s, want policy_denied", got)
		}
		l := r.lease("acme", "mac2", "24h")
		for range 2 {
			if got := into[api.LaunchAnswer](t, launch(acme, nil)); got.Node != "mac2" {
				t.Errorf("it went to %s, want the leased Mac", got.Node)
			}
		}
		if got := launch(acme, nil); got.code() != api.CodeNoCapacity || !strings.Contains(string(got.body), `"macos_limit":1`) || !strings.Contains(string(got.body), `"leased":1`) {
			t.Errorf("a third guest: %s, want no_capacity with why", got)
		}
		for token, want := range map[string]api.Code{acme: api.CodeNoCapacity, globex: api.CodePolicyDenied} {
			if got := launch(token, body{"node": "mac1"}); got.code() != want {
				t.Errorf("on a Mac that nobody leases: %s, want %s", got, want)
			}
		}
		r.must(operatorToken, "PATCH", "/fleet/policy", body{"require_lease_for_macos": false})
		if got := into[api.LaunchAnswer](t, launch(acme, nil)); got.Node != "mac1" {
			t.Errorf("with no lease required it went to %s", got.Node)
		}
		if got := launch(acme, nil); got.code() != api.CodeQuotaExceeded || !strings.Contains(string(got.body), "max_macos_guests") {
			t.Errorf("a fourth guest of a quota of three: %s", got)
		}
		r.must(operatorToken, "PATCH", "/fleet/policy", body{"require_lease_for_macos": nil})
		if row := r.leaseRow(l.ID); row.EarliestEnd.Sub(row.StartsAt) != 24*time.Hour {
			t.Errorf("a Mac's lease may end after %s", row.EarliestEnd.Sub(row.StartsAt))
		}
	})
}

func TestATenantsPoolLivesOnItsLeasedHostsWithinItsQuota(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2", "n3")
		acme := r.tenant("acme", body{"max_vms": 3})
		if got := r.as(acme, "POST", "/fleet/pools", body{"name": "own", "image": "tiny", "nodes": []string{"n2"}}); got.status != 400 || !strings.Contains(string(got.body), `"field":"nodes"`) {
			t.Errorf("a pool on a host that is not leased: %s", got)
		}
		r.must(acme, "POST", "/fleet/pools", body{"name": "own", "image": "tiny", "min_ready": 5, "max_total": 9})
		waits := func(reason string) bool {
			s := r.status("own")
			return s.WaitReason != nil && *s.WaitReason == reason
		}
		r.eventually("the pool to wait for a host", time.Minute, func() bool { return waits(api.WaitNoCapacity) && r.status("own").Reasons["leased"] == 3 })
		l := r.lease("acme", "n2", "1h")
		r.eventually("the pool to be as full as the quota lets it", time.Minute, func() bool { return r.status("own").Ready == 3 && waits(api.WaitQuota) })
		if h := r.member(r.leader()).state.View().Holding("acme"); h.VMs != 3 || h.Pools != 1 || h.Leases != 1 {
			t.Errorf("the tenant holds %+v, want its spares counted", h)
		}
		if got := r.as(acme, "POST", "/fleet/vms", body{"image": "tiny", "cloud_init": body{"hostname": "a"}}); got.code() != api.CodeQuotaExceeded {
			t.Errorf("a cold launch with the quota used up by spares: %s", got)
		}
		claimed := into[api.LaunchAnswer](t, r.must(acme, "POST", "/fleet/vms", body{"image": "tiny", "name": "a"})) // it counts already
		if !claimed.Warm || claimed.Node != "n2" {
			t.Errorf("a claim of its own spare: %s", asJSON(claimed))
		}
		r.wait(10 * time.Second)
		if s := r.status("own"); s.Ready != 2 || !waits(api.WaitQuota) {
			t.Errorf("after the claim: %s, want no refill over the quota", asJSON(s))
		}
		r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"quota": body{"max_vms": 5}})
		r.eventually("two more spares", time.Minute, func() bool { return r.status("own").Ready == 4 && waits(api.WaitQuota) })
		r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"quota": body{"max_vms": nil}})
		r.full("own")
		if s := r.status("own"); s.WaitReason != nil || s.Ready != 5 {
			t.Errorf("without a quota: %s", asJSON(s))
		}
		for vm := range r.member(r.leader()).state.View().VMs("") {
			if vm.Warm && vm.Node != "n2" {
				t.Errorf("spare %s is on %s", vm.Name, vm.Node)
			}
		}
		// Its own hosts come first, though others are emptier.
		for i := range 3 {
			if got := into[api.LaunchAnswer](t, r.must(acme, "POST", "/fleet/vms", body{"name": fmt.Sprint("cold-", i), "image": "tiny", "balloon": body{}})); got.Node != "n2" {
				t.Errorf("a launch of a tenant with a leased host went to %s", got.Node)
			}
		}
		if got := r.launch(r.leader(), body{"image": "tiny", "balloon": body{}}); got.Node == "n2" {
			t.Error("the operator's VM went to a leased host")
		}
		r.must(acme, "DELETE", "/fleet/leases/"+l.ID, nil)
		r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
		r.eventually("the pool to wait for a host again", time.Minute, func() bool { return r.status("own").Ready == 0 && waits(api.WaitNoCapacity) })
		r.scrubbedFor("n2", l.ID)
		r.billedAsRun()
	})
}

func TestTTLsOfATenantAreHeldToItsLimits(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		token := r.tenant("acme", nil)
		r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"default_ttl_seconds": 600, "max_ttl_seconds": 3600})
		left := func(b body) time.Duration {
			vm := into[api.LaunchAnswer](t, r.must(token, "POST", "/fleet/vms", b)).VM
			return vm.ExpiresAt.Sub(vm.CreatedAt)
		}
		if got := left(body{"image": "tiny", "name": "a"}); got != 10*time.Minute {
			t.Errorf("without a ttl it lives %s, want the default", got)
		}
		if got := left(body{"image": "tiny", "ttl_seconds": 3600}); got != time.Hour {
			t.Errorf("with the longest ttl it lives %s", got)
		}
		if got := r.as(token, "POST", "/fleet/vms", body{"image": "tiny", "ttl_seconds": 3601}); got.code() != api.CodePolicyDenied || !strings.Contains(string(got.body), `"field":"ttl_seconds"`) {
			t.Errorf("too long a ttl: %s", got)
		}
		for _, ttl := range []any{nil, 3601} {
			if got := r.as(token, "PATCH", "/fleet/vms/a", body{"ttl_seconds": ttl}); got.code() != api.CodePolicyDenied {
				t.Errorf("PATCH to ttl %v: %s", ttl, got)
			}
		}
		r.must(token, "PATCH", "/fleet/vms/a", body{"ttl_seconds": 1800})
		r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"default_ttl_seconds": nil, "max_ttl_seconds": nil})
		if got := left(body{"image": "tiny"}); got > 0 {
			t.Errorf("without limits it lives %s", got)
		}
	})
}

func TestATenantSeesItsOwnEventsAndActivity(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2", "n3")
		acme, globex := r.tenant("acme", nil), r.tenant("globex", nil)
		r.applied()
		streams := map[string]*stream{}
		for name, token := range map[string]string{"acme": acme, "globex": globex, "operator": operatorToken} {
			s, status, stop := r.followAs(token, r.follower(), "")
			if status != 200 {
				t.Fatalf("the stream of %s: %d", name, status)
			}
			defer stop()
			streams[name] = s
		}
		r.pool("shared", body{"image": "tiny", "min_ready": 1, "node_selector": body{"host": "n3"}})
		l := r.lease("acme", "n1", "1h")
		r.tenantPool(acme, "own", 1)
		for name, token := range map[string]string{"acme": acme, "globex": globex} {
			vm := into[api.LaunchAnswer](t, r.must(token, "POST", "/fleet/vms", body{"name": "of-" + name, "image": "tiny", "balloon": body{}})).VM
			r.running(vm.ID)
			r.must(token, "DELETE", "/fleet/vms/of-"+name, nil)
		}
		r.launch(r.leader(), body{"name": "of-operator", "image": "tiny"})
		r.must(acme, "DELETE", "/fleet/leases/"+l.ID, nil)
		r.leaseIn(l.ID, api.LeaseEnded, time.Minute)
		r.wait(10 * time.Second)
		kinds := func(name string) map[string]bool {
			out := map[string]bool{}
			_, says := streams[name].so(0)
			for _, one := range says {
				kind, _, _ := strings.Cut(one, " ")
				out[kind] = true
				for _, other := range []string{"acme", "globex", "operator"} {
					if name != "operator" && other != name && strings.Contains(one, "of-"+other) || name == "globex" && (kind != "vm" || strings.Contains(one, "warm-")) || strings.Contains(one, "shared") && name != "operator" {
						t.Errorf("the stream of %s says %q", name, one)
					}
				}
			}
			return out
		}
		if got := kinds("acme"); !got["vm"] || !got["pool"] || !got["lease"] || got["node"] {
			t.Errorf("acme's stream has %v, want its VMs, pool and lease", got)
		}
		if got := kinds("globex"); !got["vm"] || len(got) != 1 {
			t.Errorf("globex's stream has %v, want its VM", got)
		}
		if got := kinds("operator"); !got["vm"] || !got["pool"] || !got["lease"] || !got["node"] {
			t.Errorf("the operator's stream has %v, want all", got)
		}
		owner := map[string]string{}
		for a := range r.member(r.leader()).state.View().Activities(0) {
			owner[fmt.Sprint(a.Seq)] = a.Tenant
		}
		for name, token := range map[string]string{"acme": acme, "globex": globex} {
			for _, path := range []string{"/fleet/activity?", "/fleet/activity?tenant=acme&", "/fleet/activity?tenant=globex&", "/fleet/activity?actor=operator&"} {
				for _, a := range everything[api.Activity](r, token, path) {
					if owner[a.ID] != name {
						t.Errorf("%s shows %s: %+v", path, name, a)
					}
				}
			}
		}
		acts := map[string]bool{}
		for _, a := range everything[api.Activity](r, acme, "/fleet/activity?limit=3") {
			actor, _, _ := strings.Cut(a.Actor, ":")
			acts[actor+" "+a.Action+" "+a.Outcome] = true
		}
		for _, want := range []string{"operator POST /fleet/leases ok", "tenant DELETE /fleet/leases/{id} ok", "lease scrub ok", "lease ended ok", "tenant POST /fleet/pools ok", "tenant POST /fleet/vms ok", "tenant DELETE /fleet/vms/{id} ok", "warm-pool boot failed"} {
			if !acts[want] {
				t.Errorf("acme's activity has no %q: %v", want, acts)
			}
		}
		filtered := everything[api.Activity](r, operatorToken, "/fleet/activity?actor=lease&action=scrub&")
		if len(filtered) != 1 || filtered[0].Target != l.ID {
			t.Errorf("activity of the lease's scrub: %+v", filtered)
		}
		for _, a := range everything[api.Activity](r, operatorToken, "/fleet/activity?tenant=operator&") {
			if owner[a.ID] != "" {
				t.Errorf("the operator's own activity has %s's %+v", owner[a.ID], a)
			}
			delete(owner, a.ID)
		}
		for id, of := range owner {
			if of == "" {
				t.Errorf("the operator's own activity lacks %s", id)
			}
		}
		second := r.key("", api.RoleOperator, 0)
		r.must(second.Secret, "POST", "/fleet/nodes/n2/cordon", nil)
		if a := everything[api.Activity](r, operatorToken, "/fleet/activity?target=n2&")[0]; a.Actor != "operator:"+second.ID[:8] {
			t.Errorf("what a second operator did is %+v", a)
		}
		nodes := everything[api.Node](r, acme, "/fleet/nodes?")
		if len(nodes) != 0 {
			t.Errorf("a tenant without leases sees nodes %+v", nodes)
		}
	})
}

// On a leased host a tenant sees the host itself, and only its own VMs.
func TestATenantSeesTheHostsThatItLeases(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1", "n2")
		acme := r.tenant("acme", nil)
		r.launch(r.leader(), body{"name": "operators", "image": "tiny", "node": "n1"})
		pending := into[api.Lease](t, r.must(acme, "POST", "/fleet/leases", body{"node": "n1", "duration": "1h", "drain": true}))
		r.lease("acme", "n2", "1h")
		r.must(acme, "POST", "/fleet/vms", body{"name": "mine", "image": "tiny", "node": "n2"})
		if pending.State != api.LeasePending {
			t.Errorf("the lease of a host in use is %s", pending.State)
		}
		var names []string
		for _, n := range everything[api.Node](r, acme, "/fleet/nodes?") {
			names = append(names, n.Name)
		}
		if !slices.Equal(names, []string{"n1", "n2"}) {
			t.Errorf("a tenant sees %v, want the hosts of its leases", names)
		}
		for node, want := range map[string]int{"n1": 0, "n2": 1} {
			vms := everything[api.VM](r, acme, "/fleet/nodes/"+node+"/vms?")
			if len(vms) != want || slices.ContainsFunc(vms, func(v api.VM) bool { return deref(v.Tenant) != "acme" }) {
				t.Errorf("on %s a tenant sees %+v, want its own %d", node, vms, want)
			}
		}
		if got := into[api.Lease](t, r.must(acme, "GET", "/fleet/leases/"+pending.ID, nil)); len(got.BlockedBy) != 1 || got.StartsAt != 0 {
			t.Errorf("the pending lease shows %+v", got)
		}
		ended := into[api.Lease](t, r.must(acme, "DELETE", "/fleet/leases/"+pending.ID, nil)) // nothing ran under it
		if ended.State != api.LeaseEnded || !r.free("n1") || len(everything[api.LedgerRow](r, acme, "/fleet/ledger?lease_id="+pending.ID+"&")) != 0 {
			t.Errorf("a pending lease ended as %+v", ended)
		}
	})
}

// The name is another's by the time a repeat comes.
func TestARepeatOfAPoolsCreationNeverShowsAnothersPool(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		acme, beta := r.tenant("acme", nil), r.tenant("beta", nil)
		pool := body{"name": "ci", "image": "tiny", "min_ready": 0}
		r.must(acme, "POST", "/fleet/pools", pool, api.HeaderIdempotencyKey, "k")
		r.must(acme, "DELETE", "/fleet/pools/ci", nil)
		r.must(beta, "POST", "/fleet/pools", pool)
		if got := r.as(acme, "POST", "/fleet/pools", pool, api.HeaderIdempotencyKey, "k"); got.code() != api.CodeNotFound {
			t.Errorf("got %s, want not_found", got)
		}
	})
}

func TestPoolsAreFilteredByOwnerAndState(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		acme := r.tenant("acme", nil)
		r.pool("shared", body{"image": "tiny", "min_ready": 1})
		r.must(acme, "POST", "/fleet/pools", body{"name": "own", "image": "tiny", "min_ready": 0})
		for query, want := range map[string]string{"tenant=acme": "own", "tenant=operator": "shared", "state=paused": "own", "tenant=acme&state=ready": "", "": "own shared"} {
			var names []string
			for _, p := range everything[api.Pool](r, operatorToken, "/fleet/pools?"+query+"&") {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%q gives %q, want %q", query, got, want)
			}
		}
	})
}

func TestANullQuotaIsNoLimit(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		acme := r.tenant("acme", body{"max_vms": 0, "max_pools": 0})
		got := into[api.Tenant](t, r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"quota": nil}))
		if got.Quota != (api.Quota{}) {
			t.Errorf("got %s, want no limit", asJSON(got))
		}
		r.must(acme, "POST", "/fleet/vms", body{"image": "tiny"})
	})
}

func TestATenantsOwnPolicyShowsInWhatItSeesAndMay(t *testing.T) {
	scenario(t, 1, func(t *testing.T, r *rig) {
		r.ready("n1")
		r.pool("shared", body{"image": "tiny", "min_ready": 2})
		acme, beta := r.tenant("acme", nil), r.tenant("beta", nil)
		got := into[api.Tenant](t, r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"policy": body{"allow_shared_pool_claims": true}}))
		if got.Policy.AllowSharedPoolClaims == nil || !*got.Policy.AllowSharedPoolClaims || got.Policy.MinLeaseHours != nil {
			t.Errorf("got %s", asJSON(got))
		}
		if l := into[api.LaunchAnswer](t, r.must(acme, "POST", "/fleet/vms", body{"pool": "shared"})); !l.Warm {
			t.Errorf("acme got %+v, want a warm VM", l)
		}
		if got := r.as(beta, "POST", "/fleet/vms", body{"pool": "shared"}); got.code() != api.CodeNotFound {
			t.Errorf("beta got %s, want not_found", got)
		}
		if got := r.as(acme, "PATCH", "/fleet/tenants/acme", body{"policy": body{"require_lease_for_macos": false}}); got.status != 403 {
			t.Errorf("a tenant changed its own policy: %s", got)
		}
		r.must(operatorToken, "PATCH", "/fleet/tenants/acme", body{"policy": nil})
		if got := r.as(acme, "GET", "/fleet/pools/shared", nil); got.status != 404 {
			t.Errorf("acme sees a pool that the fleet's policy hides: %s", got)
		}
		if got := r.as(operatorToken, "PATCH", "/fleet/tenants/acme", body{"policy": body{"max_boots_per_node": 9}}); got.status != 400 {
			t.Errorf("boots on a host are nobody's own: %s", got)
		}
	})
}
