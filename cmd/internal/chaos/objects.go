package chaos

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	perObject    = 60 // operations on one object; then another takes its place, and its history is checked
	checkTimeout = 30 * time.Second
)

// object is one thing that clients compete for: a setting, or the name of a VM.
type object struct {
	kind, name string
	model      porcupine.Model

	mu      sync.Mutex
	ops     []porcupine.Operation
	open    int // in progress
	retired bool
}

// begin says that an operation is under way. It is refused once the object is retired.
func (o *object) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retired {
		return false
	}
	o.open++
	return true
}

// note adds an operation to the history. One that may take effect at any later time has no end.
func (o *object) note(input, output any, call, back time.Time, endless bool) {
	op := porcupine.Operation{Input: input, Output: output, Call: call.UnixNano(), Return: back.UnixNano()}
	if endless {
		op.Return = math.MaxInt64
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ops = append(o.ops, op)
}

// end gives the object back. It says whether it is used up, and whether it can be checked now.
func (o *object) end() (usedUp, ripe bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open--
	usedUp = !o.retired && len(o.ops) >= perObject
	o.retired = o.retired || usedUp
	return usedUp, o.retired && o.open == 0
}

// objects are those that clients compete for now, of one kind.
type objects struct {
	kind  string
	model func() porcupine.Model
	make  func(ctx context.Context, n int) (name string, err error) // nil error: it is there, as the model begins
	gone  func(ctx context.Context, name string)                    // nil: it stays
	rec   *record

	mu     sync.Mutex
	now    []*object
	made   int
	checks sync.WaitGroup
}

// fill makes the first objects.
func (s *objects) fill(ctx context.Context, n int) error {
	for range n {
		o, err := s.another(ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.now = append(s.now, o)
		s.mu.Unlock()
	}
	return nil
}

func (s *objects) another(ctx context.Context) (*object, error) {
	s.mu.Lock()
	s.made++
	n := s.made
	s.mu.Unlock()
	name, err := s.make(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("making %s %d: %w", s.kind, n, err)
	}
	return &object{kind: s.kind, name: name, model: s.model()}, nil
}

// take gives an object to work on, nil if another one is just being made. put it back.
func (s *objects) take(rng *rand.Rand) *object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.now[rng.IntN(len(s.now))]; o.begin() {
		return o
	}
	return nil
}

func (s *objects) put(ctx context.Context, o *object) {
	usedUp, ripe := o.end()
	if usedUp {
		if next, err := s.another(ctx); err == nil {
			s.mu.Lock()
			for i := range s.now {
				if s.now[i] == o {
					s.now[i] = next
				}
			}
			s.mu.Unlock()
		}
	}
	if ripe {
		s.check(ctx, o)
	}
}

// check holds a history to its model, beside everything else.
func (s *objects) check(ctx context.Context, o *object) {
	s.checks.Go(func() {
		s.rec.held(checkHistory, o.judge(s.rec))
		if s.gone != nil {
			s.gone(ctx, o.name)
		}
	})
}

// finish checks what is left, once no client works any more.
func (s *objects) finish() {
	s.checks.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.now {
		o.mu.Lock()
		ripe := !o.retired && len(o.ops) > 0
		o.retired = true
		o.mu.Unlock()
		if ripe {
			s.rec.held(checkHistory, o.judge(s.rec))
		}
	}
}

// judge says whether the history can have happened one operation after the other.
func (o *object) judge(rec *record) error {
	o.mu.Lock()
	ops := o.ops
	o.mu.Unlock()
	result := porcupine.CheckOperationsTimeout(o.model, ops, checkTimeout)
	rec.with(func() {
		rec.checked++
		if result == porcupine.Unknown {
			rec.undecided++
		}
	})
	if result == porcupine.Illegal {
		return fmt.Errorf("the history of %s %s, %d operations, has no order in which it makes sense: %s", o.kind, o.name, len(ops), o.shortest())
	}
	return nil
}

// shortest tells the operations up to the first that makes no sense.
func (o *object) shortest() (text string) {
	byEnd := sortedByReturn(o.ops)
	for n := 1; n <= len(byEnd); n++ {
		some := byEnd[:n]
		last := some[n-1].Return
		var until []porcupine.Operation
		for _, op := range o.ops { // those that had begun by then may have had their effect
			if op.Call <= last {
				if op.Return > last {
					op.Return = math.MaxInt64
					if in, ok := op.Input.(settingInput); ok && !in.write {
						continue // a read without an answer says nothing
					}
					if in, ok := op.Input.(nameInput); ok && (in.op == nameSeen || in.op == nameInUse) {
						continue
					}
				}
				until = append(until, op)
			}
		}
		if porcupine.CheckOperationsTimeout(o.model, until, time.Second) != porcupine.Illegal {
			continue
		}
		for _, op := range byEnd[max(0, n-8):n] {
			text += fmt.Sprintf("; %d-%d ms %s", (op.Call-o.ops[0].Call)/1e6, (op.Return-o.ops[0].Call)/1e6, o.model.DescribeOperation(op.Input, op.Output))
		}
		return "the last of them" + text
	}
	return "only as a whole"
}

func sortedByReturn(ops []porcupine.Operation) []porcupine.Operation {
	out := slices.Clone(ops)
	slices.SortFunc(out, func(a, b porcupine.Operation) int {
		switch {
		case a.Return < b.Return:
			return -1
		case a.Return > b.Return:
			return 1
		}
		return 0
	})
	return out
}
