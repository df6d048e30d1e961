package fsm

import (
	"slices"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// How long a key is remembered, in FSM time, and how many at most.
const (
	keyLifeMS     = 24 * 3600 * 1000
	maxOperations = 1 << 20
	prunePerWrite = 64
)

// replay ends a command that repeats a keyed request; it is no failure.
type replay struct{ op *Operation }

func (replay) Error() string { return "the request was carried out before" }

// repeated answers a repeat of a keyed request: replay if it is the same request, a refusal if it is another.
func (t *tx) repeated() error {
	o := t.env.Op
	if o == nil {
		return nil
	}
	have := t.Operation(o.Scope, o.Key)
	if have == nil || t.now-have.At >= keyLifeMS {
		return nil
	}
	if have.Digest != o.Digest {
		return api.Errorf(api.CodeKeyReused, "the Idempotency-Key was used for another request; take a new key for each new request")
	}
	return replay{have}
}

// remember binds the command's key, if it has one, to what it led to.
func (t *tx) remember(op Operation) (*Operation, error) {
	o := t.env.Op
	if o == nil {
		return &op, nil
	}
	var stale []*Operation
	for old := range t.operations.from(operationAt, number("", 0)) {
		if t.now-old.At < keyLifeMS || len(stale) == prunePerWrite {
			break
		}
		stale = append(stale, old)
	}
	if old := t.Operation(o.Scope, o.Key); old != nil && !slices.Contains(stale, old) {
		stale = append(stale, old) // expired, or repeated would have found it
	}
	for _, old := range stale {
		t.expire(old)
	}
	if t.meta.Operations >= maxOperations {
		return nil, api.Errorf(api.CodeUnavailable, "too many requests carry keys of the last 24 hours; try again later")
	}
	op.Scope, op.Key, op.Digest, op.At = o.Scope, o.Key, o.Digest, t.now
	t.ops(1)
	t.operations.put(&op)
	return &op, nil
}

// expire drops an operation whose time is over. The key may name another request from now on, so the VM lets go of it.
func (t *tx) expire(op *Operation) {
	t.operations.remove(op)
	t.ops(-1)
	if v := t.VM(op.Ref); v != nil && v.Key == op.Key && v.Scope == op.Scope {
		row := *v
		row.Scope, row.Key = "", ""
		t.putVM(v, &row)
	}
}

// operationOf is the keyed request that a VM came from, nil if there was none or its time is over.
func (t *tx) operationOf(v *VM) *Operation {
	if op := t.Operation(v.Scope, v.Key); op != nil && op.Ref == v.ID {
		return op
	}
	return nil
}

// forget frees the key of a VM whose request came to nothing after all, so that a repeat may try again.
func (t *tx) forget(v *VM) {
	if op := t.operationOf(v); op != nil {
		t.operations.remove(op)
		t.ops(-1)
	}
}

func (t *tx) ops(n int) { t.meta.Operations += n }
