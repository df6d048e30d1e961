package fleettest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"
)

// blockTime is how long one side is measured before it is the other's turn.
const blockTime = 2 * time.Second

// benchFigure is one line of the report. Value is the median over the pairs of blocks, Spread the smallest and the
// largest of them, Baseline the median of what the other side took, in Unit.
type benchFigure struct {
	ID       int        `json:"id"`
	Name     string     `json:"name"`
	Value    float64    `json:"value"`
	Goal     float64    `json:"goal"`
	Stretch  float64    `json:"stretch"`
	Spread   []float64  `json:"spread"`
	Baseline float64    `json:"baseline"`
	Unit     string     `json:"unit"`
	Higher   bool       `json:"higher_is_better,omitempty"`
	Load     [2]float64 `json:"load_average"` // of a minute, before and after
	Pairs    []float64  `json:"pairs"`
}

// stepTime bounds each step, so that one that is stuck does not keep the others from being measured.
const stepTime = 10 * time.Minute

// bench is one run of make bench.
type bench struct {
	t       *testing.T
	ctx     context.Context
	fail    context.CancelCauseFunc // ends the step under way
	dir     string                  // data of everything that is compared: one disk
	client  *http.Client
	figures []benchFigure
	missing []string // what was asked for and not measured, and why
	began   float64  // load average when the figures under way began
}

// TestBench measures ratios: what this fleet takes against the least that the same machine takes for the same, in turns.
// FLUXVM_BENCH says which figures (all, or 1,2,3), FLUXVM_BENCH_OUT the directory for bench.json and bench.txt.
func TestBench(t *testing.T) {
	which, out := os.Getenv("FLUXVM_BENCH"), os.Getenv("FLUXVM_BENCH_OUT")
	if which == "" || out == "" {
		t.Skip("make bench measures")
	}
	asked, err := benchAsked(which)
	if err != nil {
		t.Fatal(err)
	}
	removeStale(out)
	dir := filepath.Join(out, fmt.Sprint(benchData, os.Getpid())) // not in the temporary directory, which may be memory
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM) // what was started and written goes then, too
	defer stop()
	b := &bench{t: t, dir: dir, client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	t.Cleanup(b.client.CloseIdleConnections)
	for _, step := range []struct {
		figures []int
		run     func(*bench)
	}{
		{[]int{1, 2, 5}, (*bench).launches},
		{[]int{3, 4}, (*bench).crowd},
		{[]int{6, 7}, (*bench).growth},
		{[]int{8}, (*bench).placement},
		{[]int{9}, (*bench).failovers},
		{[]int{10}, (*bench).density},
	} {
		wanted := slices.DeleteFunc(step.figures, func(id int) bool { return !asked[id] })
		if len(wanted) == 0 {
			continue
		}
		b.began = loadAverage()
		t.Run(fmt.Sprint(wanted), func(t *testing.T) { // what it starts ends with it
			limited, end := context.WithTimeoutCause(ctx, stepTime, fmt.Errorf("this step has taken %s", stepTime))
			defer end()
			b.t = t
			b.ctx, b.fail = context.WithCancelCause(limited)
			defer b.fail(nil)
			step.run(b)
		})
		if b.t = t; ctx.Err() != nil {
			t.Fatalf("interrupted: what an earlier run wrote into %s stays", out)
		}
		for _, id := range wanted {
			if !slices.ContainsFunc(b.figures, func(f benchFigure) bool { return f.ID == id }) {
				b.missing = append(b.missing, fmt.Sprintf("%d was not measured: see above", id))
			}
		}
	}
	b.figures = slices.DeleteFunc(b.figures, func(f benchFigure) bool { return !asked[f.ID] })
	slices.SortStableFunc(b.figures, func(a, b benchFigure) int { return cmp.Compare(a.ID, b.ID) })
	if len(b.figures) == 0 {
		t.Fatalf("nothing was measured: what an earlier run wrote into %s stays", out)
	}
	b.report(out)
}

// benchData begins the name of a run's data directory, which ends with its process id.
const benchData = "bench-data-"

// removeStale removes the data of runs that were killed.
func removeStale(out string) {
	dirs, _ := filepath.Glob(filepath.Join(out, benchData+"*")) // the pattern is right
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), benchData)); err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir) // if not now, then next time
		}
	}
}

// benchAsked reads which figures are to be measured.
func benchAsked(which string) (asked map[int]bool, err error) {
	const most = 10
	asked = map[int]bool{}
	for _, one := range strings.Split(which, ",") {
		id, err := strconv.Atoi(strings.TrimSpace(one))
		switch {
		case one == "all":
			for id := range most {
				asked[id+1] = true
			}
		case err != nil || id < 1 || id > most:
			return nil, fmt.Errorf("there is no figure %q: say make bench ONLY=1,2 with numbers from 1 to %d, or leave ONLY out for all", one, most)
		default:
			asked[id] = true
		}
	}
	return asked, nil
}

// add takes a figure in. pairs holds one ratio, or count, for each pair of blocks.
func (b *bench) add(f benchFigure, pairs, baseline []float64) {
	f.Value, f.Baseline, f.Pairs = median(pairs), median(baseline), pairs
	f.Spread = []float64{slices.Min(pairs), slices.Max(pairs)}
	f.Load = [2]float64{b.began, loadAverage()}
	b.figures = append(b.figures, f)
	b.t.Logf("figure %d: %s: %.3g (%.3g to %.3g); baseline %.4g %s", f.ID, f.Name, f.Value, f.Spread[0], f.Spread[1], f.Baseline, f.Unit)
}

func (b *bench) report(out string) {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "#\tfigure\tvalue\tspread\tgoal\tstretch\t\tbaseline\tload\n")
	lines := []string{"goos: " + runtime.GOOS, "goarch: " + runtime.GOARCH, "Unit ratio better=lower", "Unit share better=higher"}
	for _, f := range b.figures {
		sign, unit, met := "≤", "ratio", f.Value <= f.Goal
		if f.Higher {
			sign, unit, met = "≥", "share", f.Value >= f.Goal
		}
		verdict := "missed"
		switch {
		case met && (f.Higher && f.Value >= f.Stretch || !f.Higher && f.Value <= f.Stretch):
			verdict = "stretch"
		case met:
			verdict = "goal"
		}
		fmt.Fprintf(w, "%d\t%s\t%.3g\t%.3g … %.3g\t%s %g\t%s %g\t%s\t%.4g %s\t%.1f … %.1f\n", f.ID, f.Name, f.Value, f.Spread[0], f.Spread[1], sign, f.Goal, sign, f.Stretch, verdict, f.Baseline, f.Unit, f.Load[0], f.Load[1])
		for _, one := range f.Pairs {
			lines = append(lines, fmt.Sprintf("BenchmarkFigure%d/%s 1 %g %s", f.ID, strings.ReplaceAll(f.Name, " ", "_"), one, unit))
		}
	}
	_ = w.Flush() // into memory
	for _, one := range b.missing {
		fmt.Fprintln(&text, one)
	}
	raw, err := json.MarshalIndent(b.figures, "", " ")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(out, "bench.json"), append(raw, '\n'), 0o600),
			os.WriteFile(filepath.Join(out, "bench.txt"), []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	}
	if err != nil {
		b.t.Fatal(err)
	}
	fmt.Print("\n", text.String(), "\n")
}

func median(all []float64) float64 {
	all = slices.Sorted(slices.Values(all))
	if len(all) == 0 {
		return math.NaN()
	}
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func loadAverage() (one float64) {
	raw, _ := os.ReadFile("/proc/loadavg") // elsewhere there is none
	_, _ = fmt.Sscan(string(raw), &one)
	return one
}

// block is what was measured of one side in its turn.
type block struct {
	took    []time.Duration // of each call, the shortest first
	elapsed time.Duration
}

// ms is the time within which that share of the calls was answered.
func (k block) ms(share float64) float64 {
	return float64(k.took[min(int(share*float64(len(k.took))), len(k.took)-1)]) / float64(time.Millisecond)
}

func (k block) rate() float64 { return float64(len(k.took)) / k.elapsed.Seconds() }

// block lets so many clients call one after the other, each as soon as it has its answer, until the time is over.
func (b *bench) block(clients int, d time.Duration, call func() error) block {
	b.t.Helper()
	var mu sync.Mutex
	var out block
	var failed error
	var working sync.WaitGroup
	began := time.Now()
	for range clients {
		working.Go(func() {
			var took []time.Duration
			var err error
			for from := time.Now(); err == nil && from.Sub(began) < d; {
				err = call()
				now := time.Now()
				took = append(took, now.Sub(from))
				from = now
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			out.took = append(out.took, took...)
		})
	}
	working.Wait()
	out.elapsed = time.Since(began)
	if failed != nil {
		b.t.Fatal(errors.Join(context.Cause(b.ctx), failed))
	}
	slices.Sort(out.took)
	return out
}

// pairs measures the sides in turns: each goes first in its share of the rounds.
func pairs(rounds int, sides ...func()) {
	for round := range rounds {
		for i := range sides {
			sides[(i+round)%len(sides)]()
		}
	}
}

// ratios divides pair by pair.
func ratios(ours, baseline []float64) (out []float64) {
	for i := range ours {
		out = append(out, ours[i]/baseline[i])
	}
	return out
}

// ask sends one request and gives the answer's body, which must be a success.
func (b *bench) ask(method, url, token string, body []byte) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(b.ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, raw)
	}
	return raw, resp.Header, err
}
