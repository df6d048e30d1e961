package node

import (
	"os"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAvailableMemoryOfAMacIsWhatVMStatSaysCanBeHad(t *testing.T) {
	raw, err := os.ReadFile("testdata/vm_stat")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	if got, err := availableMiB(text); err != nil || got != 1600000*16384>>20 {
		t.Errorf("got %d MiB, %v; want free, inactive, speculative and purgeable pages: %d", got, err, 1600000*16384>>20)
	}
	intel := strings.Replace(text, "16384", "4096", 1)
	if got, err := availableMiB(intel); err != nil || got != 1600000*4096>>20 {
		t.Errorf("smaller pages: got %d, %v", got, err)
	}
	for name, broken := range map[string]string{
		"nothing":            "",
		"no page size":       strings.Replace(text, "page size of 16384 bytes", "", 1),
		"a line is missing":  strings.Replace(text, "Pages inactive", "Pages idle", 1),
		"a number is broken": strings.Replace(text, "60000.", "many.", 1),
		"a size is broken":   strings.Replace(text, "16384", "0", 1),
	} {
		if got, err := availableMiB(broken); err == nil {
			t.Errorf("%s: got %d, want an error", name, got)
		}
	}
}

func TestPressureOfAMacInWords(t *testing.T) {
	for n, want := range map[uint32]string{1: api.PressureNormal, 2: api.PressureWarn, 4: api.PressureCritical} {
		if got := pressureLevel(n); got == nil || *got != want {
			t.Errorf("level %d: got %v, want %s", n, got, want)
		}
	}
	if got := pressureLevel(3); got != nil {
		t.Errorf("an unknown level: got %s, want none", *got)
	}
}

func TestChipAsALabel(t *testing.T) {
	for brand, want := range map[string]string{"Apple M4 Max": "m4-max", "Apple M1": "m1", "Apple M2 Ultra": "m2-ultra", "Intel(R) Core(TM) i7": "", "": ""} {
		if got := chipName(brand); got != want || got != "" && api.CheckLabels("labels", map[string]string{"kairon.zyvor.dev/chip": got}) != nil {
			t.Errorf("%q: got %q, want %q", brand, got, want)
		}
	}
}
