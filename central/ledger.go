package central

import (
	"cmp"
	"encoding/csv"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func wireLedger(r *fsm.LedgerRow) api.LedgerRow {
	return api.LedgerRow{ID: strconv.FormatUint(r.Seq, 10), Tenant: orNull(r.Tenant), Kind: r.Kind, VMID: r.VMID, LeaseID: r.LeaseID, Name: r.Name, Node: r.Node, Pool: r.Pool,
		GuestOS: r.GuestOS, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB, StartedAt: r.StartedAt, EndedAt: r.EndedAt, EndReason: r.EndReason, Rate: r.Rate, AmountMicros: r.Amount}
}

// rowsFor are the ledger rows that the caller may see, from the number on.
func (q *request) rowsFor(view fsm.View, start uint64) iter.Seq[*fsm.LedgerRow] {
	if q.caller.tenant != "" {
		return view.LedgerOf(q.caller.tenant, start)
	}
	switch tenant := q.URL.Query().Get("tenant"); tenant {
	case "":
		return view.Ledger(start)
	case "operator":
		return view.LedgerOf("", start)
	default:
		return view.LedgerOf(tenant, start)
	}
}

// getLedger answers GET /fleet/ledger, as JSON or, where that is preferred, as CSV.
func (q *request) getLedger() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	start := uint64(0)
	if p.after != "" {
		if start, err = strconv.ParseUint(p.after, 10, 64); err != nil {
			return api.Invalid("cursor", "cursor must be the next_cursor of an earlier answer")
		}
	}
	from, to, err := q.span(0)
	if err != nil {
		return err
	}
	query := q.URL.Query()
	kind, vm, lease := query.Get("kind"), query.Get("vm_id"), query.Get("lease_id")
	if err := oneOf("kind", kind, api.LedgerVM, api.LedgerLease, api.LedgerPool, api.LedgerAdjustment); err != nil {
		return err
	}
	keep := func(r *fsm.LedgerRow) bool {
		return (kind == "" || r.Kind == kind) && (vm == "" || r.VMID == vm) && (lease == "" || r.LeaseID == lease) &&
			r.StartedAt < to && (r.EndedAt == 0 || r.EndedAt > from || r.StartedAt >= from)
	}
	view := q.r.state.View()
	q.index(view)
	asCSV := strings.Contains(q.Header.Get("Accept"), "text/csv")
	if asCSV && query.Get("limit") == "" {
		p.limit = maxLimit
	}
	list := listPage(p, q.rowsFor(view, start), func(r *fsm.LedgerRow) string { return strconv.FormatUint(r.Seq, 10) }, keep, wireLedger)
	if !asCSV {
		return q.send(http.StatusOK, list)
	}
	q.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	if list.NextCursor != nil {
		q.w.Header().Set("X-Fluxvm-Next-Cursor", *list.NextCursor)
	}
	out := csv.NewWriter(q.w)
	_ = out.Write(api.LedgerColumns()) // the caller sees a cut answer as one
	for _, row := range list.Items {
		_ = out.Write(row.Record())
	}
	out.Flush()
	return nil
}

// span reads from and to; to is the end of time where it is absent.
func (q *request) span(defaultFrom api.Time) (from, to api.Time, err error) {
	from, to = defaultFrom, 1<<62
	for _, part := range []struct {
		name string
		at   *api.Time
	}{{"from", &from}, {"to", &to}} {
		text := q.URL.Query().Get(part.name)
		if text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return 0, 0, api.Invalid(part.name, "%s must be a time such as 2026-01-31T00:00:00Z", part.name)
		}
		*part.at = api.TimeOf(at)
	}
	if to <= from {
		return 0, 0, api.Invalid("to", "to must be after from")
	}
	return from, to, nil
}

func (q *request) adjustLedger() error {
	var body api.AdjustmentRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	result, err := q.propose(fsm.KindAdjustLedger, q.op(body), fsm.AdjustLedger{Request: body})
	if err != nil {
		return err
	}
	row, ok := result.Value.(*fsm.LedgerRow)
	if op, replayed := result.Value.(*fsm.Operation); replayed {
		seq, err := strconv.ParseUint(op.Ref, 10, 64)
		if err != nil {
			return err
		}
		for r := range q.r.state.View().Ledger(seq) {
			row, ok = r, true
			break
		}
	}
	if !ok {
		return api.Errorf(api.CodeInternal, "the adjustment was made and is not there")
	}
	return q.send(http.StatusCreated, wireLedger(row))
}

func (q *request) getPrices() error {
	view := q.r.state.View()
	p := view.Prices()
	q.index(view)
	return q.sendVersioned(http.StatusOK, p.Version, p)
}

func (q *request) putPrices() error {
	body, err := api.DecodePrices(q.body)
	if err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPutPrices, nil, fsm.PutPrices{Prices: body, IfMatch: version})
	if err != nil {
		return err
	}
	p := result.Value.(*fsm.Prices)
	return q.sendVersioned(http.StatusOK, p.Version, p.Prices)
}

// sum adds up pieces of stretches. Times are ms until the end, so that rounding happens once.
type sum struct {
	item                         api.UsageItem
	vmMS, vcpuMS, mibMS, leaseMS int64
}

func (s *sum) add(r *fsm.LedgerRow, from, to api.Time) {
	ms := int64(to - from)
	switch r.Kind {
	case api.LedgerAdjustment:
		s.item.AmountMicros += r.Amount
		return
	case api.LedgerLease:
		s.leaseMS += ms
	default:
		s.vmMS += ms
		s.vcpuMS += ms * int64(r.VCPUs)
		s.mibMS += ms * r.MemoryMiB
	}
	s.item.AmountMicros += r.CostUntil(to) - r.CostUntil(from)
}

func (s *sum) settled() api.UsageItem {
	out := s.item
	out.VMSeconds, out.VCPUSeconds, out.GiBSeconds, out.LeaseSeconds = s.vmMS/1000, s.vcpuMS/1000, s.mibMS/1000/1024, s.leaseMS/1000
	return out
}

// group is what usage is added up by; what is not asked for is empty in all.
type group struct{ tenant, pool, day string }

// getUsage answers GET /fleet/usage: what was used in a span, by tenant, pool and day as asked for.
func (q *request) getUsage() error {
	g := q.leading()
	now := q.r.clock.now()
	if g != nil {
		now = g.now()
	}
	month := now.Std()
	from, to, err := q.span(api.TimeOf(time.Date(month.Year(), month.Month(), 1, 0, 0, 0, 0, time.UTC)))
	if err != nil {
		return err
	}
	by := map[string]bool{}
	for name := range strings.SplitSeq(cmp.Or(q.URL.Query().Get("group_by"), "tenant"), ",") {
		if name != "tenant" && name != "pool" && name != "day" {
			return api.Invalid("group_by", "group_by must be of tenant, pool and day, with commas between")
		}
		by[name] = true
	}
	view := q.r.state.View()
	sums, total := map[group]*sum{}, &sum{}
	for r := range q.rowsFor(view, 0) {
		for from, to := range pieces(r, from, to, now, by["day"]) {
			key := group{}
			if by["tenant"] {
				key.tenant = r.Tenant
			}
			if by["pool"] {
				key.pool = r.Pool
			}
			if by["day"] {
				key.day = from.Std().Format(time.DateOnly)
			}
			one := sums[key]
			if one == nil {
				one = &sum{item: api.UsageItem{Tenant: orNull(key.tenant), Pool: key.pool, Day: key.day}}
				sums[key] = one
			}
			one.add(r, from, to)
			total.add(r, from, to)
		}
	}
	out := api.Usage{Items: []api.UsageItem{}, Total: total.settled()}
	for _, one := range sums {
		out.Items = append(out.Items, one.settled())
	}
	slices.SortFunc(out.Items, func(a, b api.UsageItem) int {
		return cmp.Or(cmp.Compare(a.Day, b.Day), cmp.Compare(deref(a.Tenant), deref(b.Tenant)), cmp.Compare(a.Pool, b.Pool))
	})
	q.index(view)
	return q.send(http.StatusOK, out)
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// pieces are the parts of a stretch within a half-open span up to now, cut at midnight UTC if days are asked for. An
// adjustment is a moment, in one span only.
func pieces(r *fsm.LedgerRow, from, to, now api.Time, days bool) iter.Seq2[api.Time, api.Time] {
	const day = 24 * 3600 * 1000
	return func(yield func(api.Time, api.Time) bool) {
		if r.Kind == api.LedgerAdjustment {
			if r.StartedAt >= from && r.StartedAt < to {
				yield(r.StartedAt, r.StartedAt)
			}
			return
		}
		start, end := max(from, r.StartedAt), min(to, now)
		if r.EndedAt != 0 {
			end = min(to, r.EndedAt)
		}
		for start < end {
			stop := end
			if days {
				stop = min(end, (start/day+1)*day)
			}
			if !yield(start, stop) {
				return
			}
			start = stop
		}
	}
}
