package central

import (
	"net/http"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func (q *request) listPools() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	query := q.URL.Query()
	tenant, state := query.Get("tenant"), query.Get("state")
	if err := oneOf("state", state, api.PoolReady, api.PoolFilling, api.PoolBackingOff, api.PoolPaused); err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	return q.send(http.StatusOK, listPage(p, view.Pools(p.after), func(p *fsm.Pool) string { return p.Name }, func(p *fsm.Pool) bool {
		return q.seesPool(view, p) && (tenant == "" || p.Owner() == tenant) && (state == "" || string(poolStatus(view, p).State) == state)
	}, func(p *fsm.Pool) api.Pool { return q.showPool(view, p) }))
}

// pool finds the pool that the path names, if the caller may know of it.
func (q *request) pool(view fsm.View) (*fsm.Pool, error) {
	name := q.name("name")
	if p := view.Pool(name); p != nil && q.seesPool(view, p) {
		return p, nil
	}
	return nil, api.NotFound("pool", name)
}

// seesPool: a tenant sees its own pools and the shared ones it may use.
func (q *request) seesPool(view fsm.View, p *fsm.Pool) bool {
	return q.caller.tenant == "" || view.Usable(p, q.caller.tenant)
}

// showPool leaves out the nodes of a pool that is not the caller's.
func (q *request) showPool(view fsm.View, p *fsm.Pool) api.Pool {
	return wirePool(view, p, !q.caller.sees(p.Tenant))
}

// changedPool finds the pool that a change is about. A shared one is the operator's to change.
func (q *request) changedPool() (*fsm.Pool, error) {
	p, err := q.pool(q.r.state.View())
	if err == nil && !q.caller.sees(p.Tenant) {
		return nil, api.Errorf(api.CodeForbidden, "pool %s is shared; only the operator changes it", p.Name)
	}
	return p, err
}

func (q *request) getPool() error {
	view := q.r.state.View()
	p, err := q.pool(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.sendVersioned(http.StatusOK, p.Version, q.showPool(view, p))
}

func (q *request) getPoolStatus() error {
	view := q.r.state.View()
	p, err := q.pool(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.send(http.StatusOK, poolStatus(view, p))
}

// sharedNote is the advice that comes with a new shared pool.
const sharedNote = "policy keeps tenants from taking VMs of this shared pool (allow_shared_pool_claims, isolate_tenant_networks, require_lease_for_macos), except those with a policy of their own that lets them; for a tenant, make a pool of its own"

func (q *request) createPool() error {
	var body api.PoolRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	tenant, err := q.ownTenant(body.Tenant)
	if err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindCreatePool, q.op(body), fsm.CreatePool{Tenant: tenant, Request: body}); err != nil {
		return err
	}
	q.wakePools()
	view := q.r.state.View()
	p := view.Pool(body.Name)
	if p == nil || p.Tenant != tenant { // a repeat may come when the name is another's
		return api.Errorf(api.CodeNotFound, "pool %s was created under this key and has been deleted since", body.Name)
	}
	out := wirePool(view, p, false)
	if p.Tenant == "" && !view.SharedAllowed("", p.GuestOS) {
		out.Note = sharedNote
	}
	return q.sendVersioned(http.StatusCreated, p.Version, out)
}

func (q *request) wakePools() {
	if g := q.leading(); g != nil {
		poke(g.poolPoke)
	}
}

func (q *request) patchPool() error {
	var body api.PoolPatch
	if err := q.decode(&body); err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	if _, err := q.changedPool(); err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPatchPool, nil, fsm.PatchPool{Name: q.name("name"), Tenant: q.caller.tenant, Patch: body, IfMatch: version})
	if err != nil {
		return err
	}
	q.wakePools()
	p := result.Value.(*fsm.Pool)
	return q.sendVersioned(http.StatusOK, p.Version, wirePool(q.r.state.View(), p, false))
}

func (q *request) deletePool() error {
	if _, err := q.changedPool(); err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindDeletePool, nil, fsm.DeletePool{Name: q.name("name"), Tenant: q.caller.tenant, IfMatch: version}); err != nil {
		return err
	}
	if g := q.leading(); g != nil {
		poke(g.vmPoke)
	}
	return q.noContent()
}

func (q *request) rollPool() error {
	var body api.RollRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	if _, err := q.changedPool(); err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindRollPool, q.op(body), fsm.RollPool{Name: q.name("name"), Tenant: q.caller.tenant, Roll: body}); err != nil {
		return err
	}
	q.wakePools()
	view := q.r.state.View()
	p, err := q.pool(view)
	if err != nil {
		return err
	}
	return q.sendVersioned(http.StatusAccepted, p.Version, wirePool(view, p, false))
}
