package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestMemoryOfALinuxHost(t *testing.T) {
	for dir, want := range map[string]api.HostMemory{
		"testdata/proc":             {MemTotalMiB: 64233, MemAvailableMiB: 40960, PSI: &api.PSI{SomeAvg10: 12.34, FullAvg10: 1.5}},
		"testdata/proc-without-psi": {MemTotalMiB: 2048, MemAvailableMiB: 1024}, // its thresholds are passed over
	} {
		if got, err := memoryBelow(dir); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v\n%s", dir, err, cmp.Diff(want, got))
		}
	}
	for _, dir := range []string{"testdata/proc-old", "testdata/absent"} {
		if got, err := memoryBelow(dir); err == nil {
			t.Errorf("%s: got %+v, want an error", dir, got)
		}
	}
	if got, err := (hostFacts{}).Memory(); err != nil || got.MemTotalMiB <= 0 || got.MemAvailableMiB <= 0 || got.PressureLevel != nil {
		t.Errorf("this host: %+v, %v", got, err)
	}
}
