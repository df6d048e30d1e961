package node

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

// role is what a caller may do.
type role int

const (
	anyone role = iota // also without a token
	reader
	admin
)

// call is one request on its way through a handler: who sent it and what it holds.
type call struct {
	*http.Request
	id    string // the request's
	actor string
	token token  // the fencing token
	body  []byte // as sent; empty for a GET
}

// answer is what a handler gives back. A nil body sends none.
type answer struct {
	status   int
	body     any
	replayed bool // the request repeats one that was carried out
}

func ok(body any) (answer, error) { return answer{status: http.StatusOK, body: body}, nil }

type callKey struct{}

// routes builds the API.
func (d *Daemon) routes() http.Handler {
	r := mux.NewRouter().SkipClean(true)
	r.NotFoundHandler = d.handle(anyone, func(*call) (answer, error) {
		return answer{}, api.Errorf(api.CodeNotFound, "there is no such route in the API of a host, which is /v1; the fleet's (/fleet) is at the address of a replica")
	})
	r.MethodNotAllowedHandler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { d.refuseMethod(r, w, req) })
	at := func(method, path string, who role, do func(*call) (answer, error), query ...string) {
		r.Handle(path, d.handle(who, func(c *call) (answer, error) {
			if err := api.CheckQuery(c.URL.Query(), query); err != nil {
				return answer{}, err
			}
			return do(c)
		})).Methods(method)
	}
	r.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }).Methods(http.MethodGet)
	at(http.MethodGet, "/readyz", anyone, func(*call) (answer, error) { return ok("ok\n") })
	r.Handle("/metrics", d.guardMetrics()).Methods(http.MethodGet)

	at(http.MethodPost, "/v1/vms", admin, d.createVM)
	at(http.MethodGet, "/v1/vms", reader, d.listVMs, "cursor", "limit")
	at(http.MethodGet, "/v1/vms/{id}", reader, d.getVM)
	at(http.MethodPatch, "/v1/vms/{id}", admin, d.patchVM)
	at(http.MethodDelete, "/v1/vms/{id}", admin, d.deleteVM)
	at(http.MethodPost, "/v1/vms/{id}/start", admin, d.startVM)
	at(http.MethodPost, "/v1/vms/{id}/stop", admin, d.stopVM)
	at(http.MethodPost, "/v1/vms/{id}/restart", admin, d.restartVM)
	at(http.MethodPost, "/v1/vms/{id}/pause", admin, d.pauseVM)
	at(http.MethodPost, "/v1/vms/{id}/resume", admin, d.resumeVM)
	at(http.MethodPost, "/v1/vms/{id}/exec", admin, d.execVM)
	at(http.MethodGet, "/v1/vms/{id}/console", reader, d.readConsole, "limit")
	at(http.MethodGet, "/v1/vms/{id}/balloon", reader, d.getBalloon)
	at(http.MethodPost, "/v1/vms/{id}/balloon", admin, d.postBalloon)
	at(http.MethodGet, "/v1/vms/{id}/memory", reader, d.getMemory)
	at(http.MethodPost, "/v1/vms/{id}/fork", admin, d.forkVM)
	at(http.MethodPost, "/v1/vms/{id}/snapshot", admin, d.snapshotVM)
	at(http.MethodGet, "/v1/snapshots", reader, d.listSnapshots, "cursor", "limit")
	at(http.MethodDelete, "/v1/snapshots/{name}", admin, d.deleteSnapshot)
	at(http.MethodPost, "/v1/sandboxes", admin, d.createSandbox)
	at(http.MethodGet, "/v1/sandboxes", reader, d.listSandboxes, "cursor", "limit")
	at(http.MethodPost, "/v1/sandboxes/{id}/exec", admin, d.execSandbox)
	at(http.MethodPost, "/v1/sandboxes/{id}/hibernate", admin, d.hibernateSandbox)
	at(http.MethodPost, "/v1/sandboxes/{id}/wake", admin, d.wakeSandbox)
	at(http.MethodPost, "/v1/scrub", admin, d.scrub)
	at(http.MethodGet, "/v1/host/memory", reader, d.hostMemory)
	at(http.MethodPost, "/v1/images", admin, d.importImage)
	at(http.MethodDelete, "/v1/images/{name}", admin, d.removeImage)
	at(http.MethodGet, "/v1/images", reader, d.listImages, "cursor", "limit")
	at(http.MethodGet, "/v1/events", reader, d.listEvents, "cursor", "limit", "since")
	at(http.MethodGet, "/v1/sandboxes/density", reader, func(*call) (answer, error) { return ok(d.density()) })

	var top http.Handler = r
	if d.steer != nil {
		r.PathPrefix(d.steer.Paths()).Handler(d.admit(http.HandlerFunc(d.steer.ServeHTTP)))
		top = d.steer.Intercept(r)
	}
	// A page in a browser on this host may not give orders, even where everyone on loopback is the admin.
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		d.refuse(w, req, api.Errorf(api.CodeForbidden, "requests from web pages of another origin are refused"))
	}))
	inner, given := origins.Handler(top), d.cfg.AdvertiseURL
	return d.observe(r, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !guard.Named(req, given) {
			d.refuse(w, req, api.Errorf(api.CodeForbidden, "this listener is for this host alone and goes by other names than the one in the Host header; use localhost or 127.0.0.1"))
			return
		}
		inner.ServeHTTP(w, req)
	}))
}

// observe names the request and counts it.
func (d *Daemon) observe(r *mux.Router, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		began := time.Now()
		id := uuid.NewString()
		w.Header().Set(api.HeaderRequestID, id)
		seen := &observed{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(seen, req.WithContext(context.WithValue(req.Context(), callKey{}, id)))
		route := "none"
		var match mux.RouteMatch
		if r.Match(req, &match) && match.Route != nil {
			if path, err := match.Route.GetPathTemplate(); err == nil {
				route = path
			}
		}
		d.metrics.request(knownMethod(req.Method), route, seen.status, time.Since(began))
	})
}

// knownMethod keeps callers from making up label values.
func knownMethod(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodPut:
		return m
	}
	return "other"
}

type observed struct {
	http.ResponseWriter
	status int
}

func (o *observed) WriteHeader(status int) {
	o.status = status
	o.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// Hijack lets a steering driver drop the connection.
func (o *observed) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(o.ResponseWriter).Hijack()
}

// handle checks the caller, reads the body and writes what do gives back.
func (d *Daemon) handle(who role, do func(*call) (answer, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !d.enter() {
			d.refuse(w, req, api.Errorf(api.CodeUnavailable, "the daemon is starting or ending; try again"))
			return
		}
		defer d.leave()
		leave, ok := d.under.Enter("")
		if !ok {
			d.refuse(w, req, api.Errorf(api.CodeRateLimited, "this host has as many requests under way as it takes; try again in a moment"))
			return
		}
		defer leave()
		out, err := d.do(w, req, who, do)
		if err != nil {
			d.refuse(w, req, d.refusal(req, err))
			return
		}
		write(w, out)
	})
}

func (d *Daemon) do(w http.ResponseWriter, req *http.Request, who role, do func(*call) (answer, error)) (answer, error) {
	c := &call{Request: req, id: requestID(req)}
	var err error
	if c.actor, err = d.authorize(req, who); err != nil {
		return answer{}, err
	}
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return do(c)
	}
	if c.token, err = parseToken(req.Header.Get(api.HeaderFencing)); err != nil {
		return answer{}, err
	}
	if c.body, err = io.ReadAll(http.MaxBytesReader(w, req.Body, api.MaxBody)); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return answer{}, api.Errorf(api.CodeTooLarge, "the body has more than %d bytes; send less", api.MaxBody)
		}
		return answer{}, api.Errorf(api.CodeInvalid, "the body could not be read to its end")
	}
	return do(c)
}

// empty refuses a body on a route that takes none.
func (c *call) empty() error {
	if len(c.body) == 0 {
		return nil
	}
	return api.Decode(c.body, &struct{}{})
}

// authorize says who the caller is. Where no token is set, everyone who can reach the listener is the admin.
func (d *Daemon) authorize(req *http.Request, who role) (actor string, err error) {
	shown, found := api.BearerToken(req.Header.Get("Authorization"))
	has := anyone
	switch {
	case found && matches(shown, d.id.credential) && d.ofCentral(req):
		has, actor = admin, "central"
	case found && matches(shown, d.cfg.AdminTokens...), d.open4all():
		has, actor = admin, "admin"
	case found && matches(shown, d.cfg.ReadTokens...):
		has, actor = reader, "reader"
	}
	switch {
	case has >= who:
		return actor, nil
	case has == anyone:
		return "", api.Errorf(api.CodeUnauthenticated, "this host wants a token: send Authorization: Bearer TOKEN")
	}
	return "", api.Errorf(api.CodeForbidden, "this token may only read; use an admin token")
}

// open4all says that no token is needed: none is set and the API is on loopback (Config.guarded sees to that).
func (d *Daemon) open4all() bool {
	return len(d.cfg.AdminTokens) == 0 && len(d.cfg.ReadTokens) == 0 && d.loopback
}

func matches(shown string, tokens ...string) bool {
	sum, found := sha256.Sum256([]byte(shown)), 0
	for _, t := range tokens {
		want := sha256.Sum256([]byte(t))
		found |= subtle.ConstantTimeCompare(sum[:], want[:])
	}
	return found == 1
}

// admit is handle's check for a handler that writes its own answers: reading for GET, everything else for admins.
func (d *Daemon) admit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		who := admin
		if req.Method == http.MethodGet {
			who = reader
		}
		if !d.enter() {
			d.refuse(w, req, api.Errorf(api.CodeUnavailable, "the daemon is starting or ending; try again"))
			return
		}
		_, err := d.authorize(req, who)
		d.leave() // what it causes may wait for the daemon's own work
		if err != nil {
			d.refuse(w, req, err)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// guardMetrics lets callers on this host scrape without a token.
func (d *Daemon) guardMetrics() http.Handler {
	guarded := d.admit(d.metrics.handler)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		host, _, err := net.SplitHostPort(req.RemoteAddr)
		if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsLoopback() {
			d.metrics.handler.ServeHTTP(w, req)
			return
		}
		guarded.ServeHTTP(w, req)
	})
}

// refuseMethod answers 405 with the methods that the path has.
func (d *Daemon) refuseMethod(r *mux.Router, w http.ResponseWriter, req *http.Request) {
	var allowed []string
	for _, m := range [...]string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete} {
		try := req.Clone(req.Context())
		try.Method = m
		var match mux.RouteMatch
		if r.Match(try, &match) && match.MatchErr == nil {
			allowed = append(allowed, m)
		}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	problem := api.Errorf(api.CodeInvalid, "%s is not possible here; use %s", knownMethod(req.Method), strings.Join(allowed, " or ")).Filled(requestID(req))
	problem.Status = http.StatusMethodNotAllowed
	writeProblem(w, problem)
}

func requestID(req *http.Request) string {
	id, _ := req.Context().Value(callKey{}).(string)
	return id
}

// refuse writes an error; one that has no code is ours, and is logged.
func (d *Daemon) refuse(w http.ResponseWriter, req *http.Request, err error) {
	var e *api.Error
	if !errors.As(err, &e) {
		d.log.Error("request failed", "method", req.Method, "path", req.URL.Path, "request", requestID(req), "error", err)
		e = api.Errorf(api.CodeInternal, "the host could not do it; its log has the reason under request %s", requestID(req))
	}
	writeProblem(w, e.Filled(requestID(req)))
}

func writeProblem(w http.ResponseWriter, e *api.Error) {
	if e.RetryAfterSecs > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfterSecs))
	}
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(e.Status)
	json.NewEncoder(w).Encode(e)
}

func write(w http.ResponseWriter, a answer) {
	if a.replayed {
		w.Header().Set(api.HeaderReplayed, "true")
	}
	switch body := a.body.(type) {
	case nil:
		w.WriteHeader(a.status)
	case string:
		writeText(w, a.status, body)
	case []byte:
		writeText(w, a.status, string(body))
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(a.status)
		json.NewEncoder(w).Encode(body)
	}
}

func writeText(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

const maxPage = 500

// pageOf cuts the page that the request asks for out of everything; key gives what the cursor names, and rises.
func pageOf[T any](c *call, all []T, key func(T) string) (api.List[T], error) {
	limit, err := c.limit()
	if err != nil {
		return api.List[T]{}, err
	}
	cursor := c.URL.Query().Get("cursor")
	start := 0
	for start < len(all) && cursor != "" && key(all[start]) <= cursor {
		start++
	}
	page := api.List[T]{Items: all[start:min(len(all), start+limit)]}
	if start+limit < len(all) {
		next := key(page.Items[len(page.Items)-1])
		page.NextCursor = &next
	}
	return page, nil
}

// limit is how many items the request wants, at most and by default maxPage.
func (c *call) limit() (int, error) { return c.upTo(maxPage) }

func (c *call) upTo(most int) (int, error) {
	text := c.URL.Query().Get("limit")
	if text == "" {
		return most, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, api.Invalid("limit", "limit must be from 1 to %d", most)
	}
	return n, nil
}
