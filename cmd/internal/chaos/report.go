package chaos

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Report is what a campaign found.
type Report struct {
	Seed          uint64            `json:"seed"`
	Replicas      int               `json:"replicas"`
	Hosts         int               `json:"hosts"`
	Seconds       float64           `json:"seconds"` // under faults
	Operations    int               `json:"operations"`
	ByKind        map[string]int    `json:"operations_by_kind"`
	Faults        map[string]int    `json:"faults"`
	Skipped       map[string]string `json:"faults_not_made"`
	LeaderChanges int               `json:"leader_changes"`
	Histories     int               `json:"histories_checked"`
	Undecided     int               `json:"histories_undecided"`
	Compared      int               `json:"states_compared"` // of replicas at equal index
	Orders        int               `json:"orders_seen"`     // by hosts
	Events        int               `json:"events_seen"`
	Repeated      int               `json:"unknown_outcomes"` // requests repeated because their outcome was unknown
	Left          int               `json:"unknown_outcomes_left"`
	Gaps          []int64           `json:"write_gaps_ms"` // after each kill of a leader
	GapMedianMS   int64             `json:"write_gap_median_ms"`
	GapMaxMS      int64             `json:"write_gap_max_ms"`
	Exits         map[int]int       `json:"exits"` // of processes that ended by themselves, by code
	Violations    []Violation       `json:"violations"`
}

func (r *record) report(cfg Config, took time.Duration, orders int) Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Report{Seed: cfg.Seed, Replicas: cfg.Replicas, Hosts: cfg.Hosts, Seconds: took.Seconds(), ByKind: r.operations, Faults: r.faults, Skipped: r.skipped,
		LeaderChanges: max(0, len(r.leaders)-1), Histories: r.checked, Undecided: r.undecided, Compared: r.compared, Orders: orders, Events: r.events, Repeated: r.repeated, Left: r.left,
		Exits: r.exits, Violations: slices.Clone(r.violations), Gaps: []int64{}}
	for _, n := range r.operations {
		out.Operations += n
	}
	gaps := slices.Sorted(slices.Values(r.gaps))
	for _, g := range gaps {
		out.Gaps = append(out.Gaps, g.Milliseconds())
	}
	if n := len(gaps); n > 0 {
		out.GapMedianMS, out.GapMaxMS = gaps[n/2].Milliseconds(), gaps[n-1].Milliseconds()
	}
	return out
}

// print tells the report to a reader.
func (out Report) print(w io.Writer) {
	fmt.Fprintf(w, "\nchaos: seed %d, %d replicas, %d hosts, %.0f s under faults\n", out.Seed, out.Replicas, out.Hosts, out.Seconds)
	fmt.Fprintf(w, "  operations       %d:%s\n", out.Operations, counts(out.ByKind))
	total := 0
	for _, n := range out.Faults {
		total += n
	}
	fmt.Fprintf(w, "  faults           %d:%s\n", total, counts(out.Faults))
	for _, name := range slices.Sorted(maps.Keys(out.Skipped)) {
		fmt.Fprintf(w, "  NOT MADE         %s: %s\n", name, out.Skipped[name])
	}
	fmt.Fprintf(w, "  leader changes   %d\n", out.LeaderChanges)
	fmt.Fprintf(w, "  write gap        median %d ms, max %d ms, after %d kills of the leader\n", out.GapMedianMS, out.GapMaxMS, len(out.Gaps))
	fmt.Fprintf(w, "  unknown outcomes %d repeated under their key, %d left\n", out.Repeated, out.Left)
	fmt.Fprintf(w, "  checked          %d histories (%d undecided), %d states at equal index, %d orders to hosts, %d events\n", out.Histories, out.Undecided, out.Compared, out.Orders, out.Events)
	fmt.Fprintf(w, "  violations       %d\n", len(out.Violations))
	for i, v := range out.Violations {
		if i == mostViolations {
			fmt.Fprintf(w, "    and %d more\n", len(out.Violations)-i)
			break
		}
		fmt.Fprintf(w, "    after %.1f s, %s: %s\n", float64(v.AfterMS)/1000, v.Check, v.What)
	}
}

func counts(of map[string]int) (text string) {
	for _, k := range slices.Sorted(maps.Keys(of)) {
		text += fmt.Sprintf(" %s %d,", k, of[k])
	}
	return text[:max(0, len(text)-1)]
}

// write keeps the report as JSON.
func (out Report) write(path string) error {
	raw, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.WriteFile(path, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// idle says what a campaign did too little of to mean anything; empty if it did enough.
func (out Report) idle() string {
	kinds := 0
	for _, n := range out.Faults {
		if n > 0 {
			kinds++
		}
	}
	switch {
	case out.Seconds < 60:
		return "" // an excerpt
	case out.Operations < int(out.Seconds):
		return fmt.Sprintf("%d operations in %.0f s", out.Operations, out.Seconds)
	case kinds < 10:
		return fmt.Sprintf("%d kinds of faults in %.0f s", kinds, out.Seconds)
	case out.LeaderChanges == 0:
		return "the leader never changed"
	case out.Histories == 0 || out.Compared == 0 || out.Orders == 0:
		return fmt.Sprintf("%d histories, %d states and %d orders were checked", out.Histories, out.Compared, out.Orders)
	}
	return ""
}
