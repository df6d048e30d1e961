package fsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Result is what a command led to. Err is a refusal, and then nothing changed. Value depends on the kind.
type Result struct {
	Index    uint64
	Err      *api.Error
	Value    any
	Replayed bool // the command repeats a keyed request; Value is what that one led to
}

// ErrUpgrade wraps what a replica cannot understand. It must halt rather than skip: state would part.
var ErrUpgrade = errors.New("this replica is too old for the log")

// tx is one command being applied: a view of the state as changed so far, and the way to change it.
type tx struct {
	View
	index  uint64
	env    Envelope
	now    api.Time
	meta   Meta
	events []Event

	endedAt api.Time // when what the command ends has really ended; 0: now
}

// Entry is a command at its index of the log.
type Entry struct {
	Index   uint64
	Command []byte
}

// Apply is ApplyAll of one entry.
func (s *State) Apply(index uint64, command []byte) (Result, error) {
	results, err := s.ApplyAll([]Entry{{index, command}})
	if err != nil {
		return Result{}, err
	}
	return results[0], nil
}

// ApplyAll carries out commands, and then shows what came of them. It returns an error only for what it cannot
// understand (ErrUpgrade), with the results of the commands before. It must be called for every entry, in order, by one
// goroutine. How entries are put together makes no difference to the state, the results or the events.
func (s *State) ApplyAll(entries []Entry) (results []Result, err error) {
	results = make([]Result, 0, len(entries))
	var events []Event
	for i := 0; i < len(entries) && err == nil; i++ {
		t := &tx{View: s.work, index: entries[i].Index}
		var r Result
		if r, err = t.apply(entries[i].Command, s.newest); err == nil {
			results, events = append(results, r), append(events, t.events...)
			s.touched.add(t.index, t.journal.touched())
		}
		t.journal.empty()
	}
	s.publish()
	s.events.add(events)
	return results, err
}

// apply carries out the command. Nothing stays of one that is refused, or not understood, but the time and the index.
func (t *tx) apply(raw []byte, newest Kind) (Result, error) {
	var err error
	if t.env, err = decode(raw); err == nil && t.env.Kind > newest {
		err = unknown(t.env.Kind)
	}
	if err != nil {
		return Result{}, fmt.Errorf("%w: entry %d: %w", ErrUpgrade, t.index, err)
	}
	was := t.Meta()
	t.meta, t.now = was, max(was.Now, t.env.Now)
	value, err := t.dispatch()
	result := Result{Index: t.index, Value: value}
	if err != nil {
		t.journal.undo()
		t.meta, t.events = was, nil
		var refusal *api.Error
		var repeat replay
		switch {
		case errors.As(err, &repeat):
			result.Value, result.Replayed = repeat.op, true
		case errors.As(err, &refusal):
			result.Err, result.Value = refusal, nil
		default:
			return Result{}, fmt.Errorf("%w: entry %d: %w", ErrUpgrade, t.index, err)
		}
	}
	t.meta.Now, t.meta.Index = t.now, t.index
	t.tables.meta.put(&t.meta)
	return result, nil
}

// dispatch has a case for every kind.
func (t *tx) dispatch() (any, error) {
	switch t.env.Kind {
	case KindInitCluster:
		return run(t, (*tx).initCluster)
	case KindTick:
		return run(t, func(*tx, Tick) (any, error) { return nil, nil })
	case KindCreateImage:
		return run(t, (*tx).createImage)
	case KindPatchImage:
		return run(t, (*tx).patchImage)
	case KindDeleteImage:
		return run(t, (*tx).deleteImage)
	case KindRegisterNode:
		return run(t, (*tx).registerNode)
	case KindPatchNode:
		return run(t, (*tx).patchNode)
	case KindDeleteNode:
		return run(t, (*tx).deleteNode)
	case KindNodeHealth:
		return run(t, (*tx).nodeHealth)
	case KindCreateJoinToken:
		return run(t, (*tx).createJoinToken)
	case KindCreatePool:
		return run(t, (*tx).createPool)
	case KindPatchPool:
		return run(t, (*tx).patchPool)
	case KindDeletePool:
		return run(t, (*tx).deletePool)
	case KindRollPool:
		return run(t, (*tx).rollPool)
	case KindFillPool:
		return run(t, (*tx).fillPool)
	case KindFillPools:
		return run(t, (*tx).fillPools)
	case KindLaunchVM:
		return run(t, (*tx).launchVM)
	case KindMoveVM:
		return run(t, (*tx).moveVM)
	case KindFailHandOver:
		return run(t, (*tx).failHandOver)
	case KindReportVMs:
		return run(t, (*tx).reportVMs)
	case KindPatchVM:
		return run(t, (*tx).patchVM)
	case KindDeleteVMs:
		return run(t, (*tx).deleteVMs)
	case KindCreateTenant:
		return run(t, (*tx).createTenant)
	case KindPatchTenant:
		return run(t, (*tx).patchTenant)
	case KindDeleteTenant:
		return run(t, (*tx).deleteTenant)
	case KindCreateKey:
		return run(t, (*tx).createKey)
	case KindDeleteKey:
		return run(t, (*tx).deleteKey)
	case KindTouchKeys:
		return run(t, (*tx).touchKeys)
	case KindPatchPolicy:
		return run(t, (*tx).patchPolicy)
	case KindPutPrices:
		return run(t, (*tx).putPrices)
	case KindCreateLease:
		return run(t, (*tx).createLease)
	case KindPatchLease:
		return run(t, (*tx).patchLease)
	case KindEndLease:
		return run(t, (*tx).endLease)
	case KindAdvanceLease:
		return run(t, (*tx).advanceLease)
	case KindReportScrub:
		return run(t, (*tx).reportScrub)
	case KindRetryScrub:
		return run(t, (*tx).retryScrub)
	case KindAdjustLedger:
		return run(t, (*tx).adjustLedger)
	case KindAdmitReplica:
		return run(t, (*tx).admitReplica)
	case KindAdoptNode:
		return run(t, (*tx).adoptNode)
	case KindLoseNode:
		return run(t, (*tx).loseNode)
	case KindLoseVMs:
		return run(t, (*tx).loseVMs)
	case KindUpdateNodes:
		return run(t, (*tx).updateNodes)
	case KindRelocateVMs:
		return run(t, (*tx).relocateVMs)
	}
	return nil, unknown(t.env.Kind)
}

func unknown(k Kind) error {
	return fmt.Errorf("command kind %d is not known here; upgrade this replica", k)
}

// run reads the body, answers a repeat of a keyed request with its operation, and applies the command.
func run[B any](t *tx, apply func(*tx, B) (any, error)) (any, error) {
	var body B
	if err := json.Unmarshal(t.env.Body, &body); err != nil {
		return nil, fmt.Errorf("decoding the body of a command of kind %d: %w", t.env.Kind, err)
	}
	if err := t.authorised(); err != nil {
		return nil, err
	}
	if err := t.repeated(); err != nil {
		return nil, err
	}
	return apply(t, body)
}

func (t *tx) event(kind, action, tenant string, row any) {
	t.events = append(t.events, Event{Index: t.index, N: len(t.events), Kind: kind, Action: action, Tenant: tenant, Row: row})
}

// maxActivity is how many entries of the activity log are kept.
const maxActivity = 10_000

// log writes an activity entry.
func (t *tx) log(actor, action, target, tenant, outcome string, detail ...string) {
	t.meta.ActivitySeq++
	entry := &Activity{Seq: t.meta.ActivitySeq, At: t.now, Tenant: tenant, Actor: actor, Action: action, Target: target, Outcome: outcome}
	for i := 0; i+1 < len(detail); i += 2 {
		if entry.Detail == nil {
			entry.Detail = map[string]string{}
		}
		if detail[i+1] != "" {
			entry.Detail[detail[i]] = detail[i+1]
		}
	}
	if t.env.From != "" && actor == t.env.Actor {
		if entry.Detail == nil {
			entry.Detail = map[string]string{}
		}
		entry.Detail["from"] = t.env.From
	}
	t.activity.put(entry)
	if entry.Seq > maxActivity {
		if old := t.activity.find(byID, number("", entry.Seq-maxActivity)); old != nil {
			t.activity.remove(old)
		}
	}
}

// initCluster names the cluster. The whole initial set may propose it; the first one counts.
func (t *tx) initCluster(c InitCluster) (any, error) {
	if t.meta.ClusterID != "" {
		return t.meta.ClusterID, nil
	}
	t.meta.ClusterID, t.meta.Epoch, t.meta.OperatorHash, t.meta.CreatedAt = c.ClusterID, max(c.Epoch, 1), c.OperatorHash, t.now
	t.log("central", "InitCluster", c.ClusterID, "", "ok")
	return c.ClusterID, nil
}

// checkVersion holds a change to the version its caller has seen; 0 is any.
func checkVersion(what string, have, want uint64) error {
	if want != 0 && have != want {
		return api.Errorf(api.CodeConflict, "the %s has changed since version %s; read it again and repeat the change on what it is now", what, strconv.FormatUint(want, 10))
	}
	return nil
}
