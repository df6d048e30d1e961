//go:build seededbugs

package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// bug is a fault that someone could have built in, as a change of one source file, and what must find it.
type bug struct {
	name   string
	file   string   // from the module's root
	change []string // old, new, old, new, …
	found  []string // by one of these checks
	faults string   // that bring it out; empty: all of them are made
}

var bugs = []bug{
	{"stale-read", "central/http.go", []string{ // a follower answers current reads from what it has
		"	if q.leading() == nil {\n		return q.forward(rt)\n	}\n	if rt.method == http.MethodGet {",
		"	if q.leading() == nil && rt.method != http.MethodGet {\n		return q.forward(rt)\n	}\n	if rt.method == http.MethodGet && q.leading() != nil {"},
		[]string{checkIndex, checkHistory, checkRevoked}, ""},
	{"double-claim", "fsm/launch.go", []string{ // some claims leave the spare in the pool
		"	t.putVM(plan.Claim, &row)\n	p := *plan.Pool", "	if t.index%4 != 0 {\n		t.putVM(plan.Claim, &row)\n	}\n	p := *plan.Pool"},
		[]string{checkClaim}, ""},
	{"lost-ack", "central/forward.go", []string{ // a leader that is lost before it answers is taken for one that did it
		"		return api.Errorf(api.CodeOutcomeUnknown, \"the leader was lost", "		if q.Method != http.MethodPost {\n			return q.noContent()\n		}\n		return api.Errorf(api.CodeOutcomeUnknown, \"the leader was lost"},
		[]string{checkHistory, checkAudit, checkRevoked}, "kill-leader,kill-all,stop,reset"},
	{"no-fence", "node/fence.go", []string{ // a host obeys whoever has a token
		"	if t.older(g.seen) {", "	if false {"}, []string{checkFence}, ""},
	{"ledger-drift", "fsm/ledger.go", []string{ // a stretch is charged for a millisecond too much
		"	row.Amount = row.cost(row.EndedAt)", "	row.Amount = row.cost(row.EndedAt + 1)"}, []string{checkLedger}, ""},
	{"dup-key", "fsm/operation.go", []string{ // some repeats of a request are carried out again
		"	return replay{have}", "	if t.index%3 == 0 {\n		return nil\n	}\n	return replay{have}"},
		[]string{checkKey, checkLedger, checkAnswer, checkClaim}, ""},
	{"wall-clock", "fsm/apply.go", []string{ // the state machine reads the replica's own clock
		"	\"strconv\"\n", "	\"strconv\"\n	\"time\"\n",
		"	t.now = max(t.meta.Now, env.Now)", "	t.now = max(t.meta.Now, env.Now, api.TimeOf(time.Now()))"}, []string{checkReplicas}, ""},
	{"over-quota", "fsm/launch.go", []string{ // a cold launch is not held to its tenant's quota
		"	if err := v.mayHold(l.Tenant, holds(p.GuestOS, p.VCPUs, p.MemoryMiB)); err != nil {\n		return p, err\n	}\n", ""}, []string{checkQuota}, ""},
	{"lossy-snapshot", "fsm/snapshot.go", []string{ // a snapshot lacks the ledger
		", partOf[LedgerRow](tableLedger)", ""}, []string{checkLedger, checkReplicas}, "kill,kill-leader,stop,snapshots"},
}

// perBug is how long a campaign may take to find one.
const perBug = 3 * time.Minute

// TestEachSeededBugIsFound builds programs with one fault each and lets campaigns find it. FLUXVM_BUG picks one.
func TestEachSeededBugIsFound(t *testing.T) {
	if err := unable(); err != nil {
		t.Skip(err)
	}
	var table strings.Builder
	for _, b := range bugs {
		if pick := os.Getenv("FLUXVM_BUG"); pick != "" && pick != b.name {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			first := b.hunt(t)
			fmt.Fprintf(&table, "  %-16s found after %5.1f s by %s: %.100s\n", b.name, float64(first.AfterMS)/1000, first.Check, first.What)
		})
	}
	if table.Len() == 0 {
		t.Fatal("there is no bug of that name")
	}
	fmt.Printf("\nchaos: seeded bugs\n%s", table.String())
}

// hunt lets a campaign find the bug and gives the first violation.
func (b bug) hunt(t *testing.T) Violation {
	dir := t.TempDir()
	overlay, path := b.overlay(t, dir), filepath.Join(dir, "report.json")
	agent := build(t, overlay)
	err := outside(t, agent, perBug, "CHAOS_IMPATIENT=1", "CHAOS_REPORT="+path, "CHAOS_FAULTS="+b.faults)
	raw, read := os.ReadFile(path)
	if read != nil {
		t.Fatalf("the campaign did not come to an end: %v, %v", err, read)
	}
	var report Report
	if err := json.Unmarshal(raw, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Violations) == 0 {
		t.Fatalf("not found in %.0f s and %d operations", report.Seconds, report.Operations)
	}
	first := report.Violations[0]
	if !slices.Contains(b.found, first.Check) {
		t.Errorf("found by %s: %s; want it found by one of %v", first.Check, first.What, b.found)
	}
	return first
}

// overlay writes what go build -overlay takes: the file with the bug in the place of the one without.
func (b bug) overlay(t *testing.T, dir string) string {
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, b.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for i := 0; i < len(b.change); i += 2 {
		if strings.Count(text, b.change[i]) != 1 {
			t.Fatalf("%s has %d times what the bug is made from: %q", b.file, strings.Count(text, b.change[i]), b.change[i])
		}
		text = strings.Replace(text, b.change[i], b.change[i+1], 1)
	}
	changed, list := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	all, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, b.file): changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{changed: []byte(text), list: all} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return list
}
