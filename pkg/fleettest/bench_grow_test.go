package fleettest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	benchVMs      = 10_000
	growPairs     = 6 // benchstat gives no spread for fewer
	failoverPairs = 8
)

// many launches VMs that stay.
func (f *benchFleet) many(vms int) {
	f.t.Helper()
	next := make(chan int)
	var launching sync.WaitGroup
	for range 32 {
		launching.Go(func() {
			for i := range next {
				if _, _, err := f.launch(fmt.Sprintf(`{"name":"stays-%d","image":"tiny","labels":{"bench":"stays"}}`, i)); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	for i := 0; i < vms && !f.t.Failed(); i++ {
		next <- i
	}
	close(next)
	launching.Wait()
	f.quiet()
}

// growth measures figures 6 and 7: what VMs that are there cost launches, and lists.
func (b *bench) growth() {
	empty, full := b.fleet(benchHosts), b.fleet(benchHosts)
	full.many(benchVMs)
	var without, with []float64
	launches := func(f *benchFleet, rates *[]float64) func() {
		return func() {
			*rates = append(*rates, b.block(16, blockTime, func() error { _, _, err := f.launch(`{"image":"tiny"}`); return err }).rate())
			f.reset()
		}
	}
	pairs(growPairs, launches(empty, &without), launches(full, &with))
	b.add(benchFigure{ID: 6, Name: fmt.Sprintf("launches/s with %d VMs / with none, 16 clients", benchVMs), Goal: 0.85, Stretch: 0.95, Unit: "launches/s", Higher: true}, ratios(with, without), without)

	dir := filepath.Join(b.dir, b.name("pages"))
	pages := 0
	list := func(keep bool) error {
		for cursor := "?limit=500"; cursor != ""; {
			raw, _, err := b.ask(http.MethodGet, full.lead+"/fleet/vms"+cursor, full.token, nil)
			if err != nil {
				return err
			}
			_, rest, more := strings.Cut(string(raw[max(0, len(raw)-200):]), `"next_cursor":"`)
			next, _, _ := strings.Cut(rest, `"`)
			if cursor = ""; more {
				cursor = "?limit=500&cursor=" + next
			}
			if keep {
				err = errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, fmt.Sprintf("page-%04d", pages)), raw, 0o600))
				pages++
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := list(true); err != nil {
		b.t.Fatal(err)
	}
	bare := freeAddr(b.t)
	full.start(part{Bare: true, Listen: bare, Dir: dir})
	eventually(b.ctx, b.t, "for the bare handler", func() bool { _, _, err := b.ask(http.MethodGet, "http://"+bare+"/0", "", nil); return err == nil })
	var base, ours []float64
	pairs(growPairs, func() {
		base = append(base, b.block(1, blockTime, func() error {
			for i := range pages {
				if _, _, err := b.ask(http.MethodGet, fmt.Sprintf("http://%s/%d", bare, i), full.token, nil); err != nil {
					return err
				}
			}
			return nil
		}).ms(0.5))
	}, func() {
		ours = append(ours, b.block(1, blockTime, func() error { return list(false) }).ms(0.5))
	})
	b.add(benchFigure{ID: 7, Name: fmt.Sprintf("list of %d VMs / the same bytes from a bare handler", benchVMs), Goal: 4, Stretch: 2, Unit: "ms"}, ratios(ours, base), base)
}

// playBare is the baseline of lists: a handler that has every page as bytes.
func playBare(ctx context.Context, p part) error {
	files, err := filepath.Glob(filepath.Join(p.Dir, "page-*"))
	if err != nil {
		return err
	}
	var pages [][]byte
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pages = append(pages, raw)
	}
	listener, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var i int
		if _, err := fmt.Sscanf(req.URL.Path, "/%d", &i); err != nil || i < 0 || i >= len(pages) {
			http.NotFound(w, req)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(pages[i]) // the caller has gone
	})}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	_ = server.Serve(listener) // it says that it was closed
	return nil
}

// failovers measures figure 9: from the leader's end to the next write that is acknowledged.
func (b *bench) failovers() {
	raw, fleet := b.rawLog(), b.fleet(10)
	var base, ours []float64
	kill := func(s *scale, leader func() string, write func(url string) error, took *[]float64) func() {
		return func() {
			dead := leader()
			from := time.Now()
			s.parts[dead].end(s.parts[dead].Process.Kill)
			eventually(b.ctx, b.t, "for the next leader", func() bool {
				return slices.ContainsFunc(s.urls, func(url string) bool { return url != dead && write(url) == nil })
			})
			*took = append(*took, time.Since(from).Seconds())
			s.parts[dead] = s.start(s.roles[dead])
			eventually(b.ctx, b.t, "for the replica to be back", func() bool {
				resp, err := b.client.Get(dead + "/readyz")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				return s.raw || resp.StatusCode == http.StatusOK
			})
			pauseFor(b.ctx, time.Second) // it follows
		}
	}
	pairs(failoverPairs, kill(raw.scale, func() string { raw.find(); return raw.leader }, func(url string) error {
		_, _, err := b.ask(http.MethodPost, url, "", make([]byte, rawClaim))
		return err
	}, &base), kill(fleet.scale, fleet.leader, func(url string) error {
		_, _, err := b.ask(http.MethodPost, url+"/fleet/vms", fleet.token, []byte(`{"image":"tiny"}`))
		return err
	}, &ours))
	// How long a follower waits is drawn by lot, for each side its own: what belongs together are the medians.
	var all []float64
	for _, one := range ours {
		all = append(all, one/median(base))
	}
	b.add(benchFigure{ID: 9, Name: "leader killed to next launch / to next raw commit, 2 s timeouts", Goal: 1.3, Stretch: 1.1, Unit: "s"}, all, base)
}

// elsewhere runs a test of another package that prints its figures in a line beginning with BENCH.
func (b *bench) elsewhere(dir, test string, out any) error {
	cmd := exec.CommandContext(b.ctx, "go", "test", "-count=1", "-v", "-timeout=10m", "-run", "^"+test+"$", ".")
	cmd.Dir = filepath.Join("..", "..", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) } // the test itself, which ends what it started
	cmd.WaitDelay = time.Minute
	raw, err := cmd.CombinedOutput()
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		if line, ok := strings.CutPrefix(lines.Text(), "BENCH "); ok {
			return json.Unmarshal([]byte(line), out)
		}
	}
	return fmt.Errorf("%s in %s printed no figures (%v): %s", test, dir, errors.Join(err, context.Cause(b.ctx)), raw[max(0, len(raw)-700):])
}

// placement measures figure 8, where the decision can be reached.
func (b *bench) placement() {
	var out struct{ Ratios, BaselineMS []float64 }
	if err := b.elsewhere("central", "TestPlacementBench", &out); err != nil {
		b.t.Fatal(err)
	}
	b.add(benchFigure{ID: 8, Name: "placement at 10,000 hosts / a bare scan of their rows", Goal: 3, Stretch: 1, Unit: "ms"}, out.Ratios, out.BaselineMS)
}

// density measures figure 10, which needs QEMU and a guest image.
func (b *bench) density() {
	var out struct {
		Boot     []float64 `json:"boot_seconds"`
		Copy     []float64 `json:"copy_seconds"`
		BootHold []float64 `json:"boot_mib"`
		CopyHold []float64 `json:"copy_mib"`
	}
	if err := b.elsewhere("node/qemu", "TestDensityBench", &out); err != nil {
		b.t.Skipf("figure 10 was not measured: %v", err)
	}
	b.add(benchFigure{ID: 10, Name: "copy of a template / cold boot, time to its agent", Goal: 0.2, Stretch: 0.1, Unit: "s"}, ratios(out.Copy, out.Boot), out.Boot)
	b.add(benchFigure{ID: 10, Name: "memory (PSS) of a copy / of a cold boot, ten idle each", Goal: 0.45, Stretch: 0.3, Unit: "MiB"}, ratios(out.CopyHold, out.BootHold), out.BootHold)
}
