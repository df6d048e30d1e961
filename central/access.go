package central

import (
	"strings"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// role is what a caller is.
type role string

const (
	roleOperator role = "operator"
	roleViewer   role = "viewer" // an operator's viewer, or with a tenant that tenant's
	roleTenant   role = "tenant"
	roleNode     role = "node"    // shows a credential; the handler holds it to the node that it speaks for
	roleReplica  role = "replica" // shows a join token; the state holds it to that
)

// access is who may use a route. What a tenant sees there is its own.
type access string

const (
	forAnyone   access = "anyone" // no token needed
	forNodes    access = "nodes"
	forReplicas access = "replicas" // that want to join; and the operator
	forOperator access = "operator" // and its viewers, to read
	forTenants  access = "tenants"  // and the operator; viewers of both, to read
)

// caller is who asks.
type caller struct {
	role   role
	tenant string // empty: the operator's side
	actor  string // for the activity log
	key    string // id of the key that was shown; empty for the first operator's token
	secret string // what a node showed
	from   string // address
}

// sees says whether the caller may know of something that the tenant owns (empty: the operator).
func (c caller) sees(tenant string) bool { return c.tenant == "" || c.tenant == tenant }

// may says whether the caller may use a route by that method.
func (c caller) may(who access, method string) bool {
	switch {
	case who == forAnyone:
		return true
	case c.role == roleOperator:
		return true
	case who == forNodes:
		return c.role == roleNode
	case who == forReplicas:
		return c.role == roleReplica
	case who == forOperator && c.tenant != "", c.role == roleNode:
		return false
	case c.role == roleViewer:
		return method == "GET"
	}
	return true
}

// authenticate finds out who asks. What the state says of tokens holds on every replica.
func (q *request) authenticate(rt route) error {
	if rt.who == forAnyone {
		return nil
	}
	if err := q.peerMay(rt.who); err != nil {
		return err
	}
	token, ok := api.BearerToken(q.Header.Get("Authorization"))
	if !ok || token == "" {
		return api.Errorf(api.CodeUnauthenticated, "send a token in the header Authorization: Bearer …")
	}
	view := q.r.state.View()
	meta := view.Meta()
	if meta.ClusterID == "" {
		return api.Errorf(api.CodeUnavailable, "the cluster is still being set up; try again in a moment")
	}
	hash := hashToken(token)
	switch key := view.KeyByHash(hash); {
	case hash == meta.OperatorHash:
		q.caller = caller{role: roleOperator, actor: "operator"}
	case key != nil && key.Good(q.r.clock.now()):
		q.caller = callerOf(key)
		q.r.used.note(key.ID, q.r.clock.now())
	case rt.who == forNodes:
		q.caller = caller{role: roleNode, secret: token}
	case rt.who == forReplicas && strings.HasPrefix(token, joinPrefix):
		q.caller = caller{role: roleReplica, actor: "replica", secret: token}
	default:
		return unknownToken()
	}
	if !q.caller.may(rt.who, rt.method) {
		return api.Errorf(api.CodeForbidden, "a key of role %s may not do this; use one that may", q.caller.role)
	}
	q.caller.from = q.from
	return q.spend()
}

func unknownToken() *api.Error {
	return api.Errorf(api.CodeUnauthenticated, "the token is not known here, or its key was revoked or has expired; check FLUXVM_TOKEN")
}

// stillGood says whether the key behind a request that lasts may still be used.
func (q *request) stillGood() bool {
	if q.caller.key == "" {
		return true
	}
	key := q.r.state.View().Key(q.caller.key)
	return key != nil && key.Good(q.r.clock.now())
}

func callerOf(key *fsm.Key) caller {
	c := caller{role: role(key.Role), tenant: key.Tenant, key: key.ID}
	short := key.ID[:min(8, len(key.ID))]
	if key.Tenant == "" {
		c.actor = "operator:" + short
	} else {
		c.actor = "tenant:" + key.Tenant + ":" + short
	}
	return c
}

// ownTenant settles whose thing a request makes: the caller's own, or the one that the operator names. What a tenant
// writes into a body never makes a thing another's.
func (q *request) ownTenant(named string) (string, error) {
	if q.caller.tenant == "" {
		return named, nil
	}
	if named != "" && named != q.caller.tenant {
		return "", api.Errorf(api.CodeForbidden, "a tenant's key acts for its own tenant only; leave tenant out")
	}
	return q.caller.tenant, nil
}
