//go:build linux

package qemu

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
)

// benchPairs is how many machines of each kind TestDensityBench compares.
const benchPairs = 10

// densityFigures are what TestDensityBench prints for programs: of what a copy of a template costs over what a machine
// costs that boots, the median of the pairs, and the least and the most; and what each machine took, pair by pair.
type densityFigures struct {
	Refill       float64    `json:"refill_ratio"` // of the times until each could be handed out
	RefillSpread [2]float64 `json:"refill_spread"`
	PSS          float64    `json:"pss_ratio"` // of what each holds once all are idle
	PSSSpread    [2]float64 `json:"pss_spread"`
	Boot         []float64  `json:"boot_seconds"`
	Copy         []float64  `json:"copy_seconds"`
	BootHolds    []float64  `json:"boot_mib"`
	CopyHolds    []float64  `json:"copy_mib"`
}

// TestDensityBench starts machines by a boot and from one template, in turns so that whatever else the host does
// meets both, and leaves all of them running. It is a measurement, run only when it is named:
//
//	go test -count=1 -v -run '^TestDensityBench$' ./node/qemu
func TestDensityBench(t *testing.T) {
	if !strings.Contains(flag.Lookup("test.run").Value.String(), t.Name()) {
		t.Skip("a measurement; run it by its name")
	}
	spec := testSpec(testImage(t))
	spec.MemoryMiB = 256
	d := testDriver(t)
	source := started(t, d, spec2(spec), t.TempDir())
	awaitAgent(t, source)
	template := saved(t, source, true)
	if err := source.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}

	interrupted, stop := signal.NotifyContext(t.Context(), os.Interrupt) // so that the machines are ended first
	defer stop()
	goOn := func() {
		if interrupted.Err() != nil {
			t.Fatal("interrupted")
		}
	}
	var booted, copied []machine.Machine
	var bootTook, copyTook []float64 // seconds
	for n := range benchPairs {
		goOn()
		began := time.Now()
		m := started(t, d, spec2(spec), t.TempDir())
		awaitAgent(t, m)
		bootTook, booted = append(bootTook, time.Since(began).Seconds()), append(booted, m)

		began = time.Now()
		m = restored(t, d, spec2(spec), template)
		renewed(t, m, n) // nobody is given a copy before
		copyTook, copied = append(copyTook, time.Since(began).Seconds()), append(copied, m)
	}
	bootHolds, copyHolds := settled(t, booted, copied, goOn)

	out := densityFigures{Boot: bootTook, Copy: copyTook, BootHolds: bootHolds, CopyHolds: copyHolds}
	out.Refill, out.RefillSpread = ratio(copyTook, bootTook)
	out.PSS, out.PSSSpread = ratio(copyHolds, bootHolds)
	fmt.Printf("%d VMs of %d MiB each way %18s %24s\n", benchPairs, spec.MemoryMiB, "boot", "copy of a template")
	for _, row := range []struct {
		what       string
		boot, copy []float64
		ratio      float64
		spread     [2]float64
	}{
		{"seconds until its agent answers", bootTook, copyTook, out.Refill, out.RefillSpread},
		{"PSS in MiB once all are idle", bootHolds, copyHolds, out.PSS, out.PSSSpread},
	} {
		fmt.Printf("%-32s %20s %20s   ratio %.3f (%.3f to %.3f)\n", row.what, spread(row.boot), spread(row.copy), row.ratio, row.spread[0], row.spread[1])
	}
	line, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("BENCH %s\n", line)
}

// settled waits until the machines' memory stays what it is, and gives what each of both kinds holds in MiB. Before each
// look it calls goOn.
func settled(t *testing.T, a, b []machine.Machine, goOn func()) (ofA, ofB []float64) {
	t.Helper()
	const look, still, quiet = time.Second, 0.005, 5 // a change below still between looks, so often in a row
	last, calm := 0.0, 0
	for end := time.Now().Add(bootWithin); ; <-time.After(look) {
		goOn()
		ofA, ofB = held(t, a), held(t, b)
		total := 0.0
		for _, mib := range slices.Concat(ofA, ofB) {
			total += mib
		}
		if calm++; max(total-last, last-total) > still*total {
			calm = 0
		}
		if last = total; calm >= quiet {
			return ofA, ofB
		}
		if time.Now().After(end) {
			t.Log("what the machines hold did not settle")
			return ofA, ofB
		}
	}
}

func held(t *testing.T, all []machine.Machine) (mib []float64) {
	t.Helper()
	for _, m := range all {
		mib = append(mib, float64(pss(t, m)))
	}
	return mib
}

// ratio compares pair by pair.
func ratio(of, to []float64) (median float64, spread [2]float64) {
	var all []float64
	for i := range of {
		all = append(all, of[i]/to[i])
	}
	slices.Sort(all)
	return middle(all), [2]float64{all[0], all[len(all)-1]}
}

// middle is the median of sorted numbers.
func middle(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func spread(all []float64) string {
	sorted := slices.Sorted(slices.Values(all))
	return fmt.Sprintf("%.2f (%.2f-%.2f)", middle(sorted), sorted[0], sorted[len(sorted)-1])
}
