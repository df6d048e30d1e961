package chaos

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Checks that a violation can belong to.
const (
	checkIndex    = "index"    // of answers
	checkHistory  = "history"  // of a register or a name
	checkClaim    = "claim"    // one VM, one launch
	checkKey      = "key"      // one key, one effect
	checkQuota    = "quota"    // used is at most allowed
	checkRevoked  = "revoked"  // a key that is gone
	checkFence    = "fence"    // orders of a deposed leader
	checkTwice    = "twice"    // a VM on two hosts
	checkAnswer   = "answer"   // an answer that no server should give
	checkRecovery = "recovery" // a fleet whose fault was healed serves again
	checkProcess  = "process"  // a process that ended in a way that it never should
	checkAudit    = "audit"    // what is there in the end
	checkLedger   = "ledger"
	checkReplicas = "replicas" // equal state at equal index
)

// Violation is a promise that was broken, when that was noticed, and how.
type Violation struct {
	AfterMS int64  `json:"after_ms"` // since clients began
	Check   string `json:"check"`
	What    string `json:"what"`
}

const mostViolations = 50

// record is what a campaign has counted and found so far.
type record struct {
	out   io.Writer
	began time.Time
	found chan struct{} // closed at the first violation

	mu         sync.Mutex
	violations []Violation
	operations map[string]int // by kind, those with an answer
	repeated   int            // tries under a key whose first outcome was unknown
	left       int            // requests whose outcome was never learnt
	faults     map[string]int
	skipped    map[string]string // faults that this machine cannot make, and why
	leaders    map[uint64]string // by term
	gaps       []time.Duration   // without a write, after a leader was killed
	exits      map[int]int       // of replicas and hosts that ended by themselves, by exit code
	undecided  int               // histories that took too long to check
	checked    int               // histories, and what they had
	events     int
	sums       map[uint64]string // a replica's state by index
	compared   int
}

func newRecord(out io.Writer) *record {
	return &record{out: out, began: time.Now(), found: make(chan struct{}), operations: map[string]int{}, faults: map[string]int{}, skipped: map[string]string{},
		leaders: map[uint64]string{}, exits: map[int]int{}, sums: map[uint64]string{}}
}

// broken notes a violation and says so at once.
func (r *record) broken(check, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := Violation{AfterMS: time.Since(r.began).Milliseconds(), Check: check, What: fmt.Sprintf(format, args...)}
	if len(r.violations) == 0 {
		close(r.found)
	}
	if r.violations = append(r.violations, v); len(r.violations) <= mostViolations {
		fmt.Fprintf(r.out, "chaos: VIOLATION after %.1f s, %s: %s\n", float64(v.AfterMS)/1000, check, v.What)
	}
}

// held notes a violation if there is an error.
func (r *record) held(check string, err error) {
	if err != nil {
		r.broken(check, "%v", err)
	}
}

// with changes what is counted.
func (r *record) with(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *record) did(kind string)   { r.with(func() { r.operations[kind]++ }) }
func (r *record) fault(kind string) { r.with(func() { r.faults[kind]++ }) }

// sum compares a replica's state with what others had at the same index.
func (r *record) sum(name string, index uint64, sha string) {
	r.mu.Lock()
	known, ok := r.sums[index]
	r.sums[index] = sha
	if ok {
		r.compared++
	}
	r.mu.Unlock()
	if ok && known != sha {
		r.broken(checkReplicas, "%s has the state %.12s at index %d, another replica %.12s", name, sha, index, known)
	}
}

// log says what happens, for whoever reads along.
func (r *record) log(format string, args ...any) {
	fmt.Fprintf(r.out, "chaos: %6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}
