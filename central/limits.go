package central

import (
	"errors"
	"math"
	"net/http"
	"net/netip"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guard"
)

// What one replica takes. An operator's keys are held to the last one only.
const (
	refusalsPerSecond, refusalsBurst = 5, 100    // of one address, for tokens that are not good
	requestsPerSecond, requestsBurst = 500, 1000 // of one key
	requestsEach                     = 256       // under way at once, of one key
	requestsAll                      = 2048      // under way at once, hosts' reports apart
)

// limits are what callers are held to. A nil limit is none.
type limits struct {
	refusals, requests *guard.Rate
	each, all          *guard.Slots
}

// newLimits gives none in memory: there time stands still while tests ask a day's worth.
func newLimits(wall func() time.Time, inMemory bool) limits {
	if inMemory {
		return limits{}
	}
	return limits{guard.NewRate(refusalsPerSecond, refusalsBurst, wall), guard.NewRate(requestsPerSecond, requestsBurst, wall),
		guard.NewSlots(requestsEach, requestsEach*requestsAll), guard.NewSlots(requestsAll, requestsAll)}
}

func tooMany(wait time.Duration, format string) *api.Error {
	e := api.Errorf(api.CodeRateLimited, "%s", format)
	e.RetryAfterSecs = max(1, int(math.Ceil(wait.Seconds())))
	return e
}

// enter takes a place among the requests under way, for as long as q lasts. Hosts' reports and what probes ask have theirs
// apart, so that clients who wait cannot make hosts look silent.
func (q *request) enter(who access) error {
	if who == forNodes || who == forAnyone || q.r.limits.all == nil {
		return nil
	}
	leave, ok := q.r.limits.all.Enter("")
	if !ok {
		return tooMany(time.Second, "this replica has as many requests under way as it takes; ask another one, or try again in a moment")
	}
	q.leaves = append(q.leaves, leave)
	return nil
}

// spend counts a request against the key that it came with.
func (q *request) spend() error {
	if q.caller.key == "" || q.caller.role == roleOperator || q.r.limits.requests == nil {
		return nil
	}
	if ok, wait := q.r.limits.requests.Take(q.caller.key); !ok {
		return tooMany(wait, "this key asks too often; slow down, or wait for changes with index and wait, or GET /fleet/events")
	}
	leave, ok := q.r.limits.each.Enter(q.caller.key)
	if !ok {
		return tooMany(time.Second, "this key has as many requests under way as one may; wait for some of them to end")
	}
	q.leaves = append(q.leaves, leave)
	return nil
}

func (q *request) leave() {
	for _, leave := range q.leaves {
		leave()
	}
}

// refusal counts a request that was refused for what it showed, and writes it down. From an address with too many of
// them it says so instead; a good token is never held to what others at its address do.
func (q *request) refusal(err error) error {
	var known *api.Error
	if !errors.As(err, &known) || known.Code != api.CodeUnauthenticated && known.Code != api.CodeForbidden {
		return err
	}
	q.r.metrics.refusals.WithLabelValues(string(known.Code)).Inc()
	if q.r.limits.refusals != nil {
		if ok, wait := q.r.limits.refusals.Take(q.from); !ok {
			if known.Code == api.CodeForbidden {
				return err // it is known who that is
			}
			return tooMany(wait, "too many requests from this address were refused for their token; correct it and wait")
		}
	}
	who := q.caller.actor
	if who == "" {
		who = "unknown"
	}
	q.r.logger.Warn("refused", "code", string(known.Code), "actor", who, "certificate", q.peer.String(), "from", q.from, "method", q.Method, "path", q.URL.Path, "request_id", q.id)
	return err
}

// fence refuses requests that a web page of someone else's has made a browser on this host send.
func (r *Replica) fence(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		writeError(w, named(w, req), api.Errorf(api.CodeForbidden, "requests from web pages of another origin are refused"))
	}))
	inner := origins.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !guard.Named(req, r.cfg.URL) {
			writeError(w, named(w, req), api.Errorf(api.CodeForbidden, "this listener is for this host alone and goes by other names than the one in the Host header; use localhost or 127.0.0.1, or start central with that name in --url"))
			return
		}
		inner.ServeHTTP(w, req)
	})
}

// fromHere says that the caller is on this host, and asks this replica itself.
func (q *request) fromHere() bool {
	ip, err := netip.ParseAddr(q.from)
	return !q.forwarded && err == nil && ip.Unmap().IsLoopback()
}
