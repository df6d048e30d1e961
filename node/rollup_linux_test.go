package node

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const oneRollup = `55d0c0000000-7ffd0a000000 ---p 00000000 00:00 0    [rollup]
Rss:              310000 kB
Pss:              180000 kB
Pss_Dirty:        100000 kB
Shared_Clean:     150000 kB
Shared_Dirty:      40000 kB
Private_Clean:     20000 kB
Private_Dirty:    100000 kB
Referenced:       300000 kB
Anonymous:        140000 kB
Swap:                  8 kB
SwapPss:               8 kB
`

func TestARollupIsTheSumOverTheProcessesThereAre(t *testing.T) {
	proc := t.TempDir()
	for _, pid := range []int{7, 8} {
		dir := filepath.Join(proc, strconv.Itoa(pid))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "smaps_rollup"), []byte(oneRollup), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one := &api.MemoryUsage{RSSKiB: 310000, PSSKiB: 180000, PrivateKiB: 120000, SharedKiB: 190000, SwapKiB: 8}
	two := &api.MemoryUsage{RSSKiB: 620000, PSSKiB: 360000, PrivateKiB: 240000, SharedKiB: 380000, SwapKiB: 16}
	for name, c := range map[string]struct {
		pids []int
		want *api.MemoryUsage
	}{"one": {[]int{7}, one}, "two": {[]int{7, 8}, two}, "one ended": {[]int{7, 9}, one}, "all ended": {[]int{9}, nil}, "none": {nil, nil}} {
		got, err := rollupIn(proc, c.pids)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// This test's own process, for real.
	got, err := rollup([]int{os.Getpid()})
	if err != nil || got == nil || got.PSSKiB <= 0 || got.PSSKiB > got.RSSKiB || got.PrivateKiB > got.PSSKiB {
		t.Errorf("got %+v and %v", got, err)
	}
}

func TestMetricsTellOfDensity(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, func(c *Config) { c.Settings.Policy = Policy{MaxVMs: 1} })
		id := h.sandbox(nil)
		h.setBalloon(id, 100)
		h.refused(api.CodeHostFull, "POST", "/v1/vms", body("00000000-0000-4000-8000-000000000001", nil))
		text := h.want(200, "GET", "/metrics", nil).Body.String()
		for _, want := range []string{`fluxvm_node_sandboxes{state="active"} 1`, "fluxvm_node_balloon_target_bytes 1.048576e+08", `fluxvm_node_denied_total{scope="vms"} 1`, "fluxvm_node_memory_reserved_bytes 0"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %s in the metrics", want)
			}
		}
	})
}
