package central

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"github.com/fluxvm/fluxvm/central/console"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/certs"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

// route is one entry of the table that the API is made from.
type route struct {
	method, path string
	who          access
	local        bool // answered by the replica itself, never forwarded
	handle       func(*request) error
}

// routes is the whole API. A route that is not here does not exist. The console's files lie beside it: see serveConsole.
func (r *Replica) routes() []route {
	return []route{
		{"GET", "/healthz", forAnyone, true, (*request).healthz},
		{"GET", "/readyz", forAnyone, true, (*request).readyz},
		{"GET", "/metrics", forAnyone, true, (*request).getMetrics},
		{"GET", "/openapi.json", forAnyone, true, (*request).getOpenAPI},
		{"POST", "/fleet/register", forNodes, true, (*request).registerNode},
		{"GET", eventsPath, forTenants, true, (*request).streamEvents},
		{"GET", "/fleet/cluster", forOperator, false, (*request).getCluster},
		{"GET", "/fleet/cluster/checksum", forOperator, true, (*request).getChecksum},
		{"POST", "/fleet/cluster/replicas", forReplicas, false, (*request).addReplica},
		{"DELETE", "/fleet/cluster/replicas/{name}", forOperator, false, (*request).removeReplica},
		{"POST", "/fleet/cluster/transfer", forOperator, false, (*request).transferLeadership},
		{"POST", "/fleet/cluster/snapshot", forOperator, false, (*request).takeSnapshot},
		{"POST", restorePath, forOperator, false, (*request).restoreCluster},
		{"POST", "/fleet/join-tokens", forOperator, false, (*request).createJoinToken},
		{"GET", "/fleet/activity", forTenants, false, (*request).listActivity},
		{"GET", "/fleet/capacity", forOperator, false, (*request).getCapacity},
		{"GET", "/fleet/nodes", forTenants, false, (*request).listNodes},
		{"GET", "/fleet/nodes/{name}", forTenants, false, (*request).getNode},
		{"PATCH", "/fleet/nodes/{name}", forOperator, false, (*request).patchNode},
		{"DELETE", "/fleet/nodes/{name}", forOperator, false, (*request).deleteNode},
		{"POST", "/fleet/nodes/{name}/cordon", forOperator, false, (*request).cordonNode},
		{"POST", "/fleet/nodes/{name}/uncordon", forOperator, false, (*request).uncordonNode},
		{"POST", "/fleet/nodes/{name}/drain", forOperator, false, (*request).drainNode},
		{"POST", "/fleet/nodes/{name}/lost", forOperator, false, (*request).loseNode},
		{"POST", "/fleet/nodes/{name}/replace", forOperator, false, (*request).replaceNode},
		{"GET", "/fleet/nodes/{name}/vms", forTenants, false, (*request).listNodeVMs},
		{"GET", "/fleet/images", forTenants, false, (*request).listImages},
		{"POST", "/fleet/images", forOperator, false, (*request).createImage},
		{"GET", "/fleet/images/{name}", forTenants, false, (*request).getImage},
		{"PATCH", "/fleet/images/{name}", forOperator, false, (*request).patchImage},
		{"DELETE", "/fleet/images/{name}", forOperator, false, (*request).deleteImage},
		{"GET", "/fleet/pools", forTenants, false, (*request).listPools},
		{"POST", "/fleet/pools", forTenants, false, (*request).createPool},
		{"GET", "/fleet/pools/{name}", forTenants, false, (*request).getPool},
		{"PATCH", "/fleet/pools/{name}", forTenants, false, (*request).patchPool},
		{"DELETE", "/fleet/pools/{name}", forTenants, false, (*request).deletePool},
		{"GET", "/fleet/pools/{name}/status", forTenants, false, (*request).getPoolStatus},
		{"POST", "/fleet/pools/{name}/roll", forTenants, false, (*request).rollPool},
		{"GET", "/fleet/vms", forTenants, false, (*request).listVMs},
		{"POST", "/fleet/vms", forTenants, false, (*request).launchVM},
		{"GET", "/fleet/vms/{id}", forTenants, false, (*request).getVM},
		{"PATCH", "/fleet/vms/{id}", forTenants, false, (*request).patchVM},
		{"DELETE", "/fleet/vms/{id}", forTenants, false, (*request).deleteVM},
		{"DELETE", "/fleet/vms/{node}/{id}", forTenants, false, (*request).deleteVMOnNode},
		{"POST", "/fleet/vms/{id}/exec", forTenants, false, (*request).execVM},
		{"GET", "/fleet/vms/{id}/console", forTenants, false, (*request).getConsole},
		{"POST", "/fleet/nodes/{name}/scrub", forOperator, false, (*request).scrubNode},
		{"GET", "/fleet/tenants", forTenants, false, (*request).listTenants},
		{"POST", "/fleet/tenants", forOperator, false, (*request).createTenant},
		{"GET", "/fleet/tenants/{name}", forTenants, false, (*request).getTenant},
		{"PATCH", "/fleet/tenants/{name}", forOperator, false, (*request).patchTenant},
		{"DELETE", "/fleet/tenants/{name}", forOperator, false, (*request).deleteTenant},
		{"GET", "/fleet/tenants/{name}/usage", forTenants, false, (*request).getTenantUsage},
		{"GET", "/fleet/tenants/{name}/keys", forTenants, false, (*request).listKeys},
		{"POST", "/fleet/tenants/{name}/keys", forTenants, false, (*request).createKey},
		{"DELETE", "/fleet/tenants/{name}/keys/{id}", forTenants, false, (*request).deleteKey},
		{"GET", "/fleet/operator-keys", forOperator, false, (*request).listOperatorKeys},
		{"POST", "/fleet/operator-keys", forOperator, false, (*request).createOperatorKey},
		{"DELETE", "/fleet/operator-keys/{id}", forOperator, false, (*request).deleteOperatorKey},
		{"GET", "/fleet/policy", forOperator, false, (*request).getPolicy},
		{"PATCH", "/fleet/policy", forOperator, false, (*request).patchPolicy},
		{"GET", "/fleet/prices", forOperator, false, (*request).getPrices},
		{"PUT", "/fleet/prices", forOperator, false, (*request).putPrices},
		{"GET", "/fleet/leases", forTenants, false, (*request).listLeases},
		{"POST", "/fleet/leases", forTenants, false, (*request).createLease},
		{"GET", "/fleet/leases/{id}", forTenants, false, (*request).getLease},
		{"PATCH", "/fleet/leases/{id}", forTenants, false, (*request).patchLease},
		{"DELETE", "/fleet/leases/{id}", forTenants, false, (*request).endLease},
		{"GET", "/fleet/ledger", forTenants, false, (*request).getLedger},
		{"POST", "/fleet/ledger", forOperator, false, (*request).adjustLedger},
		{"GET", "/fleet/usage", forTenants, false, (*request).getUsage},
	}
}

// Handler is the fleet API as clients see it.
func (r *Replica) Handler() http.Handler { return r.fence(r.router(false)) }

// PeerHandler is what other replicas see: the API for forwarded requests, and this replica's status.
func (r *Replica) PeerHandler() http.Handler {
	outer := http.NewServeMux()
	outer.HandleFunc("GET "+statusPath, r.serveStatus)
	outer.HandleFunc("GET "+keyUsesPath, r.serveKeyUses)
	outer.HandleFunc("GET "+standingPath, r.serveStanding)
	outer.Handle("/", r.router(true))
	return r.onlyMembers(outer)
}

func (r *Replica) router(forwarded bool) http.Handler {
	m := mux.NewRouter().UseEncodedPath().SkipClean(true)
	for _, rt := range r.routes() {
		methods := []string{rt.method}
		if rt.method == http.MethodGet && rt.path != eventsPath { // a stream has no end to be asked about
			methods = append(methods, http.MethodHead)
		}
		m.Handle(rt.path, r.handler(rt, forwarded)).Methods(methods...)
	}
	if !forwarded {
		r.serveConsole(m)
	}
	m.MethodNotAllowedHandler = refuseMethod(m)
	m.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		writeError(w, named(w, req), api.Errorf(api.CodeNotFound, "there is no such route in the fleet's API; GET /openapi.json lists them, and the API of a host (/v1) is at the host's own address"))
	})
	return m
}

// serveConsole lets the router answer with the web page's files. They are no part of the API, need no token and no
// leader, and are never forwarded: a replica that is cut off still shows a page that can say so.
func (r *Replica) serveConsole(m *mux.Router) {
	files := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a := &answer{ResponseWriter: w, status: http.StatusOK}
		r.console.ServeHTTP(a, req)
		r.metrics.answered(console.Path, req.Method, a.status)
	})
	for _, path := range []string{"/", strings.TrimSuffix(console.Path, "/")} {
		m.Handle(path, files).Methods(http.MethodGet, http.MethodHead)
	}
	m.PathPrefix(console.Path).Handler(files).Methods(http.MethodGet, http.MethodHead)
}

// named gives the request its id, in the headers that every answer has.
func named(w http.ResponseWriter, req *http.Request) (id string) {
	id = requestID(req)
	w.Header().Set(api.HeaderRequestID, id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	return id
}

// refuseMethod answers a path that is there with a method that it does not take.
func refuseMethod(m *mux.Router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var methods []string
		for _, method := range [...]string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
			probe := *req
			probe.Method = method
			var match mux.RouteMatch
			if m.Match(&probe, &match) && match.MatchErr == nil {
				methods = append(methods, method)
			}
		}
		w.Header().Set("Allow", strings.Join(methods, ", "))
		id := named(w, req)
		e := api.Errorf(api.CodeInvalid, "this route takes %s", strings.Join(methods, ", ")).Filled(id)
		e.Status = http.StatusMethodNotAllowed
		writeProblem(w, http.StatusMethodNotAllowed, e)
	})
}

// request is one request on its way through: who asks, what for, and where the answer goes.
type request struct {
	*http.Request
	r         *Replica
	w         *answer
	id        string
	caller    caller
	body      []byte
	key       string         // idempotency key of a POST
	forwarded bool           // it came from another replica
	from      string         // address of the caller, without a port
	peer      certs.Identity // that the caller's certificate shows; zero without one
	leaves    []func()       // that give back what it holds
}

// answer notes the status for metrics and logs.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach what is below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func requestID(req *http.Request) string {
	if id := req.Header.Get(api.HeaderRequestID); id != "" && len(id) <= 64 && !strings.ContainsFunc(id, func(c rune) bool { return c < 0x21 || c > 0x7e }) {
		return id
	}
	return uuid.NewString()
}

// handler is the way of every request: read, authenticate, forward or make sure of the state, handle, answer.
func (r *Replica) handler(rt route, forwarded bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		q := &request{Request: req, r: r, w: &answer{ResponseWriter: w, status: http.StatusOK}, id: named(w, req), forwarded: forwarded}
		q.from, q.peer = origin(req, forwarded)
		defer q.leave()
		if err := q.serve(rt); err != nil {
			q.fail(q.refusal(err))
		}
		r.metrics.answered(rt.path, rt.method, q.w.status)
	})
}

func (q *request) serve(rt route) error {
	select {
	case <-q.r.opened:
	default:
		return api.Errorf(api.CodeUnavailable, "this replica is starting; try again in a moment")
	}
	if rt.path == restorePath {
		q.Request.Body = guard.Steady(q.w, q.Request.Body) // no request to be read, but a backup to be kept
		return q.serveCurrent(rt)
	}
	if err := q.enter(rt.who); err != nil {
		return err
	}
	raw, err := io.ReadAll(http.MaxBytesReader(q.w, q.Request.Body, api.MaxBody))
	if err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return api.Errorf(api.CodeTooLarge, "the body has more than %d bytes; send less", api.MaxBody)
		}
		return api.Errorf(api.CodeInvalid, "the body could not be read to its end")
	}
	q.body = raw
	if rt.local {
		err := q.admitTo(rt)
		if known := (*api.Error)(nil); errors.As(err, &known) && known.Code == api.CodeUnauthenticated && q.leading() == nil {
			q.catchUp() // the token may be newer than what this replica has
			err = q.admitTo(rt)
		}
		if err != nil {
			return err
		}
		return rt.handle(q)
	}
	stale, err := q.flag("stale")
	if err != nil {
		return err
	}
	if stale && rt.method == http.MethodGet {
		if err := q.admitTo(rt); err != nil {
			return err
		}
		ago, ok := q.r.log.LastContact()
		if !ok {
			return api.Errorf(api.CodeUnavailable, "this replica has not heard from a leader yet; ask another one or try again")
		}
		q.w.Header().Set(api.HeaderLastContact, strconv.FormatInt(ago.Milliseconds(), 10))
		return q.handle(rt)
	}
	return q.serveCurrent(rt)
}

// catchUp waits, a few seconds at most, until this replica has applied what the leader had when it was asked.
func (q *request) catchUp() {
	ctx, cancel := context.WithTimeout(q.Context(), leaderPatience)
	defer cancel()
	leader, _ := q.r.log.Leader()
	want := q.r.statuses(ctx)[leader].Applied
	for q.r.log.AppliedIndex() < want && ctx.Err() == nil {
		pause(ctx, 5*time.Millisecond)
	}
}

// serveCurrent answers on the leader, wherever the request came in.
func (q *request) serveCurrent(rt route) error {
	if rt.method == http.MethodPost {
		if q.key = q.Request.Header.Get(api.HeaderIdempotencyKey); q.key == "" {
			q.key = uuid.NewString()
			q.Request.Header.Set(api.HeaderIdempotencyKey, q.key)
		} else if err := api.CheckKey(q.key); err != nil {
			return err
		}
		q.w.Header().Set(api.HeaderIdempotencyKey, q.key)
	}
	if q.leading() == nil {
		return q.forward(rt)
	}
	if rt.method == http.MethodGet {
		ctx, cancel := context.WithTimeout(q.Context(), proposeTimeout)
		defer cancel()
		if err := q.r.log.VerifyRead(ctx); err != nil {
			return err
		}
	}
	if err := q.admitTo(rt); err != nil {
		return err
	}
	return q.handle(rt)
}

// admitTo lets in who may use the route, with query parameters that it takes. What asks whether a replica lives may add
// what it likes.
func (q *request) admitTo(rt route) error {
	if err := q.authenticate(rt); err != nil || rt.who == forAnyone {
		return err
	}
	return api.CheckQuery(q.URL.Query(), q.r.queries[rt.method+" "+rt.path])
}

// handle runs the handler, after waiting for a change if the request asks for that.
func (q *request) handle(rt route) error {
	if rt.method == http.MethodGet {
		if err := q.waitForChange(rt.path); err != nil {
			return err
		}
		if !q.stillGood() { // a wait may outlast the key
			return unknownToken()
		}
	}
	return rt.handle(q)
}

// op is the request's idempotency key as a command carries it. body is the decoded request, so that spacing and
// order of fields do not matter.
func (q *request) op(body any) *fsm.Op {
	raw, err := json.Marshal(body)
	if err != nil {
		raw = q.body
	}
	return &fsm.Op{Scope: q.caller.tenant, Key: q.key, Digest: hashToken(q.Method + " " + q.URL.Path + "\n" + string(raw))}
}

// decode reads the body strictly and holds it to its own rules, where it has any.
func (q *request) decode(v any) error {
	if err := api.Decode(q.body, v); err != nil {
		return err
	}
	if ruled, ok := v.(interface{ Check() error }); ok {
		return ruled.Check()
	}
	return nil
}

// name is a part of the path, unescaped.
func (q *request) name(part string) string {
	raw := mux.Vars(q.Request)[part]
	if plain, err := url.PathUnescape(raw); err == nil {
		return plain
	}
	return raw
}

func (q *request) flag(name string) (bool, error) {
	text := q.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, api.Invalid(name, "%s must be true or false", name)
	}
	return on, nil
}

// ifMatch is the version that a change is held to; 0 is any.
func (q *request) ifMatch() (uint64, error) {
	text := q.Header.Get("If-Match")
	if text == "" || text == "*" {
		return 0, nil
	}
	version, err := strconv.ParseUint(strings.Trim(text, `"`), 10, 64)
	if err != nil || version == 0 {
		return 0, api.Errorf(api.CodeConflict, "the If-Match header is no ETag of this object; read it again")
	}
	return version, nil
}

// propose commits a command of the caller's.
func (q *request) propose(kind fsm.Kind, op *fsm.Op, body any) (fsm.Result, error) {
	g := q.leading()
	if g == nil {
		return fsm.Result{}, api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	result, err := g.proposeFor(q.Context(), q.caller, kind, op, body)
	if err == nil && result.Replayed {
		q.w.Header().Set(api.HeaderReplayed, "true")
	}
	return result, err
}

// leading gives the reign, nil if this replica does not lead or is not ready to.
func (q *request) leading() *reign { return q.r.reign.Load() }

// send writes a JSON answer. Reads carry the index of the state that they show.
func (q *request) send(status int, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	return q.sendRaw(status, raw)
}

// sendRaw is send of what is JSON already.
func (q *request) sendRaw(status int, raw []byte) error {
	q.index(q.r.state.View())
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(status)
	_, _ = q.w.Write(append(raw, '\n')) // the caller has gone
	return nil
}

func (q *request) index(view fsm.View) {
	if q.w.Header().Get(api.HeaderIndex) == "" {
		q.w.Header().Set(api.HeaderIndex, strconv.FormatUint(view.Index(), 10))
	}
}

// sendVersioned is send for an object with a version, its ETag.
func (q *request) sendVersioned(status int, version uint64, v any) error {
	q.w.Header().Set("ETag", `"`+strconv.FormatUint(version, 10)+`"`)
	return q.send(status, v)
}

func (q *request) noContent() error {
	q.w.WriteHeader(http.StatusNoContent)
	return nil
}

// fail answers with an error. What is no *api.Error is the server's fault: logged here, and named by its id only.
func (q *request) fail(err error) {
	var known *api.Error
	if errors.Is(err, syscall.ENOSPC) {
		known = api.Errorf(api.CodeStorageFull, "the disk of the replica's data directory is full; make room and try again")
	} else if !errors.As(err, &known) {
		if q.Context().Err() != nil {
			return // nobody waits
		}
		q.r.logger.Error("a request failed", "request_id", q.id, "method", q.Method, "path", q.URL.Path, "error", err)
		known = api.Errorf(api.CodeInternal, "something went wrong in the server; its log has more under request_id %s", q.id)
	}
	writeError(q.w, q.id, known)
}

func writeError(w http.ResponseWriter, id string, e *api.Error) {
	filled := e.Filled(id)
	if filled.RetryAfterSecs > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(filled.RetryAfterSecs))
	}
	writeProblem(w, filled.Status, filled)
}

func writeProblem(w http.ResponseWriter, status int, e *api.Error) {
	raw, err := json.Marshal(e)
	if err != nil {
		raw = []byte(`{"code":"internal"}`) // strings and numbers always encode
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(append(raw, '\n'))
}
