package chaos

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// step is one operation of a history: what, from when to when (ms), and whether it may take effect at any later time.
type step struct {
	input, output any
	call, back    int
	endless       bool
}

func judged(t *testing.T, model porcupine.Model, steps []step) error {
	t.Helper()
	o := &object{kind: "thing", name: "x", model: model}
	zero := time.Unix(1000, 0)
	for _, s := range steps {
		o.note(s.input, s.output, zero.Add(time.Duration(s.call)*time.Millisecond), zero.Add(time.Duration(s.back)*time.Millisecond), s.endless)
	}
	return o.judge(newRecord(io.Discard))
}

func TestSettingsAreAtomic(t *testing.T) {
	set := func(v int64, call, back int) step {
		return step{input: settingInput{write: true, value: v}, output: settingOutput{}, call: call, back: back}
	}
	get := func(v int64, call, back int) step {
		return step{input: settingInput{}, output: settingOutput{v}, call: call, back: back}
	}
	endless := func(s step) step { s.endless = true; return s }
	for name, c := range map[string]struct {
		steps []step
		ok    bool
	}{
		"a read shows the last write":              {[]step{set(1, 0, 1), get(1, 2, 3)}, true},
		"a read of what was before the last write": {[]step{set(1, 0, 1), set(2, 2, 3), get(1, 4, 5)}, false},
		"a read beside a write shows either":       {[]step{set(1, 0, 1), set(2, 2, 6), get(1, 3, 4), get(2, 7, 8)}, true},
		"two reads beside a write never go back":   {[]step{set(1, 0, 1), set(2, 2, 9), get(2, 3, 4), get(1, 5, 6)}, false},
		"a write without an answer may show late":  {[]step{set(1, 0, 1), endless(set(2, 2, 3)), get(1, 4, 5), get(2, 6, 7)}, true},
		"… or never":                                        {[]step{set(1, 0, 1), endless(set(2, 2, 3)), get(1, 4, 5), get(1, 6, 7)}, true},
		"… but not twice":                                   {[]step{set(1, 0, 1), endless(set(2, 2, 3)), get(2, 4, 5), set(3, 6, 7), get(3, 8, 9), get(2, 10, 11)}, false},
		"an acknowledged write that is lost":                {[]step{set(1, 0, 1), set(2, 2, 3), get(2, 4, 5), get(1, 6, 7)}, false},
		"a value that nobody wrote":                         {[]step{set(1, 0, 1), get(7, 2, 3)}, false},
		"nothing was written yet, and it is as it was made": {[]step{get(0, 2, 3)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := judged(t, settingModel(0), c.steps); (err == nil) != c.ok {
				t.Errorf("got %v, want it right: %t", err, c.ok)
			}
		})
	}
}

func TestNamesAreHeldByOne(t *testing.T) {
	at := func(op nameOp, id string, call, back int) step {
		return step{input: nameInput{op: op, id: id}, call: call, back: back}
	}
	endless := func(s step) step { s.endless = true; return s }
	for name, c := range map[string]struct {
		steps []step
		ok    bool
	}{
		"taken, seen, freed, taken again":      {[]step{at(nameTaken, "a", 0, 1), at(nameSeen, "a", 2, 3), at(nameFreed, "a", 4, 5), at(nameSeen, "", 6, 7), at(nameTaken, "b", 8, 9)}, true},
		"taken twice at once":                  {[]step{at(nameTaken, "a", 0, 1), at(nameTaken, "b", 2, 3)}, false},
		"refused while nobody has it":          {[]step{at(nameInUse, "", 0, 1)}, false},
		"gone without a delete":                {[]step{at(nameTaken, "a", 0, 1), at(nameSeen, "", 2, 3)}, false},
		"there after its delete":               {[]step{at(nameTaken, "a", 0, 1), at(nameFreed, "a", 2, 3), at(nameSeen, "a", 4, 5)}, false},
		"in use after its delete":              {[]step{at(nameTaken, "a", 0, 1), at(nameFreed, "a", 2, 3), at(nameInUse, "", 4, 5)}, false},
		"a host lost it":                       {[]step{at(nameTaken, "a", 0, 1), endless(at(nameMayEnd, "", 2, 2)), at(nameSeen, "a", 3, 4), at(nameSeen, "", 5, 6)}, true},
		"… once only":                          {[]step{at(nameTaken, "a", 0, 1), endless(at(nameMayEnd, "", 2, 2)), at(nameSeen, "", 3, 4), at(nameTaken, "b", 5, 6), at(nameSeen, "", 7, 8)}, false},
		"a launch that failed held it a while": {[]step{at(nameMaybe, "", 0, 9), at(nameUnsure, "", 0, 9), at(nameSeen, "a", 1, 2), at(nameInUse, "", 3, 4), at(nameSeen, "", 5, 6), at(nameSeen, "", 10, 11)}, true},
		"… and not after it was refused":       {[]step{at(nameMaybe, "", 0, 9), at(nameUnsure, "", 0, 9), at(nameSeen, "", 10, 11), at(nameSeen, "a", 12, 13)}, false},
		"a hand-over that went to another VM":  {[]step{at(nameMaybe, "", 0, 9), at(nameUnsure, "", 0, 9), at(nameTaken, "b", 0, 9), at(nameSeen, "a", 1, 2), at(nameSeen, "b", 5, 6)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := judged(t, nameModel(), c.steps); (err == nil) != c.ok {
				t.Errorf("got %v, want it right: %t", err, c.ok)
			}
		})
	}
}

// TestABrokenHistoryIsToldByItsEnd: a reader needs the few operations that make no sense, not hundreds.
func TestABrokenHistoryIsToldByItsEnd(t *testing.T) {
	var steps []step
	for i := range 100 {
		steps = append(steps, step{input: settingInput{write: true, value: int64(i)}, output: settingOutput{}, call: 2 * i, back: 2*i + 1})
	}
	steps[40] = step{input: settingInput{}, output: settingOutput{7}, call: 80, back: 81}
	err := judged(t, settingModel(0), steps)
	if err == nil || !strings.Contains(err.Error(), "80-81 ms get → 7") || strings.Contains(err.Error(), "set 41") {
		t.Errorf("got %v, want it to end with the read of 7", err)
	}
}

func TestIndexesOnlyRise(t *testing.T) {
	x := newIndexes()
	first, second := x.asked(), x.asked()
	if err := errors.Join(x.answered(first, 5), x.answered(second, 3)); err != nil {
		t.Errorf("two reads at once may show any order: %v", err)
	}
	if floor := x.asked(); x.answered(floor, 4) == nil {
		t.Error("a read older than one before it passes")
	}
	_ = x.answered(0, 9) // a write
	if floor := x.asked(); x.answered(floor, 8) == nil || x.answered(floor, 9) != nil {
		t.Error("a read must be as new as the last write, and need not be newer")
	}
	if err := errors.Join(x.answeredBy("r#1", x.askedOf("r#1"), 5), x.answeredBy("r#2", x.askedOf("r#2"), 3)); err != nil {
		t.Errorf("a replica may begin anew: %v", err)
	}
	if x.answeredBy("r#1", x.askedOf("r#1"), 4) == nil {
		t.Error("a replica that goes back passes")
	}
}
