package central

import (
	"cmp"
	"context"
	"encoding/base64"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	maxLimit     = 500
	defaultLimit = 100
	longestWait  = 5 * time.Minute
)

// page is the part of a list that is asked for. after is the key of the last item of the page before.
type page struct {
	limit int
	after string
}

func (q *request) page() (page, error) {
	p := page{limit: defaultLimit}
	query := q.URL.Query()
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxLimit {
			return p, api.Invalid("limit", "limit must be from 1 to %d", maxLimit)
		}
		p.limit = n
	}
	if text := query.Get("cursor"); text != "" {
		raw, err := base64.RawURLEncoding.DecodeString(text)
		after, ok := strings.CutPrefix(string(raw), "1:")
		if err != nil || !ok || after == "" {
			return p, api.Invalid("cursor", "cursor must be the next_cursor of an earlier answer")
		}
		p.after = after
	}
	return p, nil
}

func cursor(key string) *string {
	text := base64.RawURLEncoding.EncodeToString([]byte("1:" + key))
	return &text
}

// listPage takes one page from rows in the order of their keys. rows must begin at the page's after.
func listPage[R, T any](p page, rows iter.Seq[R], key func(R) string, keep func(R) bool, show func(R) T) api.List[T] {
	out := api.List[T]{Items: []T{}}
	last := ""
	for row := range rows {
		k := key(row)
		if p.after != "" && k == p.after || !keep(row) {
			continue
		}
		if len(out.Items) == p.limit {
			out.NextCursor = cursor(last)
			break
		}
		out.Items = append(out.Items, show(row))
		last = k
	}
	return out
}

func all[R any](R) bool { return true }

// skipTo drops rows up to the page's beginning, for indexes that cannot start in the middle.
func skipTo[R any](p page, rows iter.Seq[R], key func(R) string) iter.Seq[R] {
	return func(yield func(R) bool) {
		passed := p.after == ""
		for row := range rows {
			if !passed {
				passed = key(row) >= p.after
			}
			if passed && !yield(row) {
				return
			}
		}
	}
}

// waitForChange holds a blocking read (?index=N&wait=60s) until the state is newer than N and what the route shows
// may have changed, or the wait is over.
func (q *request) waitForChange(path string) error {
	query := q.URL.Query()
	text := query.Get("index")
	if text == "" {
		return nil
	}
	index, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return api.Invalid("index", "index must be the X-Fluxvm-Index of an earlier answer")
	}
	wait := time.Minute
	if text := query.Get("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 || wait > longestWait {
			return api.Invalid("wait", "wait must be a duration such as 60s, at most %s", longestWait)
		}
	}
	view := q.r.state.View()
	if view.Index() > index {
		return nil
	}
	ctx, cancel := context.WithTimeout(q.Context(), wait)
	defer cancel()
	select {
	case <-view.Watch(shownBy(path)):
	case <-view.Abandoned():
	case <-ctx.Done():
	case <-q.r.closing:
	}
	return nil
}

// shownBy is the kind of row that a route is about; anything else wakes at every command.
func shownBy(path string) string {
	switch {
	case strings.HasPrefix(path, "/fleet/vms"):
		return fsm.EventVM
	case path == "/fleet/nodes", path == "/fleet/nodes/{name}":
		return fsm.EventNode
	case strings.HasPrefix(path, "/fleet/images"):
		return "image"
	case strings.HasPrefix(path, "/fleet/leases"):
		return fsm.EventLease
	}
	return ""
}

// listVMs answers GET /fleet/vms.
func (q *request) listVMs() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	query := q.URL.Query()
	if err := oneOf("state", query.Get("state"), api.StatePlaced, api.StateBooting, api.StateRunning, api.StateStopped, api.StatePaused, api.StateFailed, api.StateUnknown, api.StateLost, api.StateDeleting); err != nil {
		return err
	}
	keep, err := vmFilter(query.Get("tenant"), query.Get("node"), query.Get("pool"), query.Get("state"), query["label"])
	if err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	return q.sendRaw(http.StatusOK, joined(listPage(p, view.VMs(p.after), func(v *fsm.VM) string { return v.ID },
		func(v *fsm.VM) bool { return q.caller.sees(v.Tenant) && keep(v) }, q.r.encoded.vm)))
}

// oneOf refuses a filter that nothing ever matches: an empty list would be taken for an answer.
func oneOf[S ~string](name, value string, known ...S) error {
	if value == "" || slices.Contains(known, S(value)) {
		return nil
	}
	words := make([]string, len(known))
	for i, k := range known {
		words[i] = string(k)
	}
	return api.Invalid(name, "%s must be one of %s", name, strings.Join(words, ", "))
}

// vmFilter keeps the VMs that match every filter given. The operator's own VMs are tenant=operator.
func vmFilter(tenant, node, pool, state string, labels []string) (func(*fsm.VM) bool, error) {
	selector := map[string]string{}
	for _, one := range labels {
		for term := range strings.SplitSeq(one, ",") {
			k, v, ok := strings.Cut(term, "=")
			if !ok || k == "" {
				return nil, api.Invalid("label", "label must be KEY=VALUE")
			}
			selector[k] = v
		}
	}
	if err := api.CheckSelector("label", selector); err != nil {
		return nil, err
	}
	return func(v *fsm.VM) bool {
		return (tenant == "" || cmp.Or(v.Tenant, "operator") == tenant) && (node == "" || v.Node == node) && (pool == "" || v.Pool == pool || v.ClaimedFrom == pool) &&
			(state == "" || string(v.State) == state) && api.Matches(selector, v.Labels)
	}, nil
}

// listActivity answers GET /fleet/activity, newest first.
func (q *request) listActivity() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	before := uint64(0)
	if p.after != "" {
		if before, err = strconv.ParseUint(p.after, 10, 64); err != nil {
			return api.Invalid("cursor", "cursor must be the next_cursor of an earlier answer")
		}
	}
	view := q.r.state.View()
	q.index(view)
	query := q.URL.Query()
	tenant, actor, action, target := query.Get("tenant"), query.Get("actor"), query.Get("action"), query.Get("target")
	return q.send(http.StatusOK, listPage(page{limit: p.limit}, view.Activities(before), func(a *fsm.Activity) string { return strconv.FormatUint(a.Seq, 10) },
		func(a *fsm.Activity) bool {
			return q.caller.sees(a.Tenant) && (tenant == "" || cmp.Or(a.Tenant, "operator") == tenant) && (actor == "" || a.Actor == actor) &&
				(action == "" || a.Action == action) && (target == "" || a.Target == target)
		}, q.showActivity))
}

// showActivity hides from a tenant where its operator sits.
func (q *request) showActivity(a *fsm.Activity) api.Activity {
	out := wireActivity(a)
	if q.caller.tenant != "" && !strings.HasPrefix(a.Actor, "tenant:"+q.caller.tenant+":") {
		delete(out.Detail, "from")
	}
	return out
}
