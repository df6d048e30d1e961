package central

import (
	"net/http"
	"testing"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// machineOf is the state of a replica that does not run, whose log held entries up to the index when it was started.
func machineOf(t *testing.T, stored int64, exit func(code int, message string)) machine {
	t.Helper()
	r, err := New(Config{Name: "a", Network: consensus.NewNetwork(), Peers: http.DefaultTransport, Nodes: http.DefaultTransport, Exit: exit})
	if err != nil {
		t.Fatal(err)
	}
	r.stored.Store(stored)
	return machine{r}
}

// ticks are commands from one index to another, each a second later than the one before.
func ticks(t *testing.T, from, to uint64) (out []consensus.Entry) {
	t.Helper()
	for i := from; i <= to; i++ {
		raw, err := fsm.Encode(fsm.Envelope{Kind: fsm.KindTick, Now: api.Time(i * 1000), Term: 1, Actor: actorCentral}, fsm.Tick{})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, consensus.Entry{Index: i, Command: raw})
	}
	return out
}

// Raft cuts batches without regard to where this process began to take part, and that decides what it knows of time.
func TestTimeCountsFromTheFirstLiveCommandHoweverBatchesAreCut(t *testing.T) {
	const first, stored, last = 3, 7, 12
	for cut := uint64(first); cut <= last; cut++ {
		m := machineOf(t, stored, func(_ int, message string) { t.Error(message) })
		got := append(m.Apply(ticks(t, first, cut)), m.apply(ticks(t, cut+1, last))...)
		for i, r := range got {
			if r, ok := r.(fsm.Result); !ok || r.Index != uint64(first+i) {
				t.Errorf("cut after %d: result %d is %+v", cut, i, r)
			}
		}
		if before := m.r.clock.before(); len(got) != last-first+1 || before != stored*1000 {
			t.Errorf("cut after %d: %d results, and the newest time before this process is %d, want %d", cut, len(got), before, stored*1000)
		}
		if now := m.r.clock.now(); now < last*1000 || now > (last+3600)*1000 {
			t.Errorf("cut after %d: it is %d, want %d and what has passed since", cut, now, last*1000)
		}
	}
}

// apply is Apply of what may be nothing.
func (m machine) apply(entries []consensus.Entry) []any {
	if len(entries) == 0 {
		return nil
	}
	return m.Apply(entries)
}

// The process ends where it does not understand the log, with what came before carried out and nothing after it.
func TestABatchThatIsNotUnderstoodEndsTheReplica(t *testing.T) {
	const unknown = 5
	for _, stored := range []int64{-1, 0, unknown - 2, unknown - 1, unknown, unknown + 1, 100} {
		exits := 0
		m := machineOf(t, stored, func(code int, _ string) {
			if exits++; code != ExitUpgrade {
				t.Errorf("stored %d: it ended with %d, want %d", stored, code, ExitUpgrade)
			}
		})
		batch := ticks(t, 1, 8)
		batch[unknown-1].Command = []byte("\x01" + `{"v":1,"kind":999,"now":null,"body":{}}`)
		got := m.Apply(batch)
		for i, r := range got {
			if _, failed := r.(error); failed != (i+1 >= unknown) {
				t.Errorf("stored %d: entry %d gave %v", stored, i+1, r)
			}
		}
		if at := m.r.state.View().Index(); exits != 1 || len(got) != len(batch) || at != unknown-1 {
			t.Errorf("stored %d: it was to end %d times with %d results and its state at %d, want 1, %d and %d", stored, exits, len(got), at, len(batch), unknown-1)
		}
	}
}
