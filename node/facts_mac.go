package node

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// What a Mac says of itself is read here, apart from how it is asked, so that it is tested anywhere.

// vmStatPages are the lines of vm_stat whose pages can be had without hurting anyone.
var vmStatPages = [...]string{"Pages free", "Pages inactive", "Pages speculative", "Pages purgeable"}

// availableMiB adds up the pages of vm_stat's output that are free or can be freed at once.
func availableMiB(vmStat string) (int64, error) {
	var pageSize, pages int64
	found := 0
	lines := bufio.NewScanner(strings.NewReader(vmStat))
	for lines.Scan() {
		line := lines.Text()
		if _, after, ok := strings.Cut(line, "page size of "); ok {
			digits, _, _ := strings.Cut(after, " ")
			n, err := strconv.ParseInt(digits, 10, 64)
			if err != nil || n <= 0 {
				return 0, fmt.Errorf("vm_stat names no page size in %q", line)
			}
			pageSize = n
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		for _, wanted := range vmStatPages {
			if name != wanted {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), "."), 10, 64)
			if err != nil || n < 0 {
				return 0, fmt.Errorf("vm_stat names no number of pages in %q", line)
			}
			pages, found = pages+n, found+1
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if pageSize == 0 || found != len(vmStatPages) {
		return 0, fmt.Errorf("vm_stat's output is not what is known: a page size of %d and %d of %d counts", pageSize, found, len(vmStatPages))
	}
	return pages * pageSize >> 20, nil
}

// pressureLevel is the word for kern.memorystatus_vm_pressure_level; nil for a number that is not known.
func pressureLevel(n uint32) *string {
	word := ""
	switch n {
	case 1:
		word = api.PressureNormal
	case 2:
		word = api.PressureWarn
	case 4:
		word = api.PressureCritical
	default:
		return nil
	}
	return &word
}

// chipName makes a label's value of a processor's brand: "Apple M4 Max" is m4-max.
func chipName(brand string) string {
	words := strings.Fields(strings.ToLower(brand))
	if len(words) < 2 || words[0] != "apple" {
		return ""
	}
	return strings.Join(words[1:], "-")
}
