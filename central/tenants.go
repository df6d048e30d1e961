package central

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// keyPrefix begins the secret of every API key.
const keyPrefix = "fvx_"

func wireTenant(t *fsm.Tenant) api.Tenant {
	return api.Tenant{Name: t.Name, Quota: t.Quota, DefaultTTLSeconds: t.DefaultTTL, MaxTTLSeconds: t.MaxTTL, Policy: t.Policy, CreatedAt: t.CreatedAt, Version: t.Version}
}

func wireKey(k *fsm.Key) api.Key {
	return api.Key{ID: k.ID, Tenant: orNull(k.Tenant), Role: k.Role, CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, LastUsedAt: k.LastUsedAt}
}

// tenant finds the tenant that the path names, if the caller may know of it.
func (q *request) tenant(view fsm.View) (*fsm.Tenant, error) {
	name := q.name("name")
	if t := view.Tenant(name); t != nil && q.caller.sees(t.Name) {
		return t, nil
	}
	return nil, api.NotFound("tenant", name)
}

func (q *request) listTenants() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	return q.send(http.StatusOK, listPage(p, view.Tenants(p.after), func(t *fsm.Tenant) string { return t.Name },
		func(t *fsm.Tenant) bool { return q.caller.sees(t.Name) }, wireTenant))
}

func (q *request) createTenant() error {
	var body api.TenantRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindCreateTenant, q.op(body), fsm.CreateTenant{Request: body}); err != nil {
		return err
	}
	t := q.r.state.View().Tenant(body.Name)
	if t == nil {
		return api.Errorf(api.CodeNotFound, "tenant %s was created under this key and has been deleted since", body.Name)
	}
	return q.sendVersioned(http.StatusCreated, t.Version, wireTenant(t))
}

func (q *request) getTenant() error {
	view := q.r.state.View()
	t, err := q.tenant(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.sendVersioned(http.StatusOK, t.Version, wireTenant(t))
}

func (q *request) patchTenant() error {
	body, err := api.DecodeTenantPatch(q.body)
	if err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPatchTenant, nil, fsm.PatchTenant{Name: q.name("name"), Patch: body, IfMatch: version})
	if err != nil {
		return err
	}
	q.wakePools() // what its pools waited for may have changed
	t := result.Value.(*fsm.Tenant)
	return q.sendVersioned(http.StatusOK, t.Version, wireTenant(t))
}

func (q *request) deleteTenant() error {
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindDeleteTenant, nil, fsm.DeleteTenant{Name: q.name("name"), IfMatch: version}); err != nil {
		return err
	}
	return q.noContent()
}

func (q *request) getTenantUsage() error {
	view := q.r.state.View()
	t, err := q.tenant(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.send(http.StatusOK, api.TenantUsage{Tenant: t.Name, Quota: t.Quota, Used: view.Holding(t.Name)})
}

// keysOf lists the keys of a tenant, or the operators'.
func (q *request) keysOf(view fsm.View, tenant string) error {
	p, err := q.page()
	if err != nil {
		return err
	}
	q.index(view)
	return q.send(http.StatusOK, listPage(p, skipTo(p, view.Keys(tenant), func(k *fsm.Key) string { return k.ID }), func(k *fsm.Key) string { return k.ID }, all, wireKey))
}

func (q *request) listKeys() error {
	view := q.r.state.View()
	t, err := q.tenant(view)
	if err != nil {
		return err
	}
	return q.keysOf(view, t.Name)
}

func (q *request) listOperatorKeys() error { return q.keysOf(q.r.state.View(), "") }

func (q *request) createKey() error {
	t, err := q.tenant(q.r.state.View())
	if err != nil {
		return err
	}
	return q.makeKey(t.Name)
}

func (q *request) createOperatorKey() error { return q.makeKey("") }

// makeKey makes an API key. Its secret is shown here and never again.
func (q *request) makeKey(tenant string) error {
	var body api.KeyRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	if err := body.Check(tenant == ""); err != nil {
		return err
	}
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	secret := NewToken(keyPrefix)
	row := fsm.Key{ID: uuid.NewString(), Tenant: tenant, Role: body.Role, Hash: hashToken(secret)}
	if body.ExpiresInSecs > 0 {
		row.ExpiresAt = g.now().Add(time.Duration(body.ExpiresInSecs) * time.Second)
	}
	result, err := q.propose(fsm.KindCreateKey, q.op(body), fsm.CreateKey{Key: row})
	if err != nil {
		return err
	}
	made, ok := result.Value.(*fsm.Key)
	if !ok {
		return api.Errorf(api.CodeConflict, "a key was made under this Idempotency-Key, and its secret is shown only once; ask again with another one")
	}
	out := wireKey(made)
	out.Secret = secret
	return q.send(http.StatusCreated, out)
}

func (q *request) deleteKey() error {
	t, err := q.tenant(q.r.state.View())
	if err != nil {
		return err
	}
	return q.revoke(t.Name)
}

func (q *request) deleteOperatorKey() error { return q.revoke("") }

func (q *request) revoke(tenant string) error {
	if _, err := q.propose(fsm.KindDeleteKey, nil, fsm.DeleteKey{ID: q.name("id"), Tenant: tenant}); err != nil {
		return err
	}
	return q.noContent()
}

func (q *request) getPolicy() error {
	view := q.r.state.View()
	p := view.Policy()
	q.index(view)
	return q.sendVersioned(http.StatusOK, p.Version, p)
}

func (q *request) patchPolicy() error {
	var body api.PolicyPatch
	if err := q.decode(&body); err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPatchPolicy, nil, fsm.PatchPolicy{Patch: body, IfMatch: version})
	if err != nil {
		return err
	}
	q.wakePools()
	p := result.Value.(*fsm.Policy)
	return q.sendVersioned(http.StatusOK, p.Version, p.Policy)
}
