package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// sizeUnits are the letters of a size in bytes. They are powers of 1024 however they are spelled: 16G, 16GB and
// 16GiB are one size, as they are wherever machines are sold.
var sizeUnits = [...]struct {
	letter string
	bytes  float64
}{{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}}

// parseSize reads a size such as 16G, 16GiB, 512M or 1.5G and gives it in units of unit bytes, of which it must be
// a whole number. A bare number is refused, since nobody can see what it counts.
func parseSize(text string, unit int64, name string) (int64, error) {
	bad := usagef("%q is no size; write it like 16G, 16GiB or 512M", text)
	s := strings.ToLower(strings.TrimSpace(text))
	cut := strings.IndexFunc(s, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if cut <= 0 {
		return 0, bad
	}
	number, err := strconv.ParseFloat(s[:cut], 64)
	if err != nil {
		return 0, bad
	}
	suffix := strings.TrimSpace(s[cut:])
	for _, u := range sizeUnits {
		if suffix != u.letter && suffix != u.letter+"b" && suffix != u.letter+"ib" {
			continue
		}
		amount := number * u.bytes / float64(unit)
		if amount != math.Trunc(amount) || amount < 1 || amount > math.MaxInt32 {
			return 0, usagef("%q must be a whole number of %s, such as 16G", text, name)
		}
		return int64(amount), nil
	}
	return 0, bad
}

// mibValue and gibValue are flags that hold a size.
type (
	mibValue int64
	gibValue int64
)

func (v *mibValue) Set(s string) error {
	n, err := parseSize(s, 1<<20, "MiB")
	*v = mibValue(n)
	return err
}
func (v *mibValue) String() string {
	if *v == 0 {
		return ""
	}
	return sizeMiB(int64(*v))
}
func (v *mibValue) Type() string { return "SIZE" }

func (v *gibValue) Set(s string) error {
	n, err := parseSize(s, 1<<30, "GiB")
	*v = gibValue(n)
	return err
}
func (v *gibValue) String() string {
	if *v == 0 {
		return ""
	}
	return sizeMiB(int64(*v) << 10)
}
func (v *gibValue) Type() string { return "SIZE" }

// vcpusValue is a flag for vCPUs. None at all is the default, so 0 is refused: nobody means it.
type vcpusValue int

func (v *vcpusValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return usagef("%q is not a whole number", s)
	}
	if n < 1 {
		return usagef("a VM has 1 vCPU at least; leave --vcpus out for the default")
	}
	*v = vcpusValue(n)
	return nil
}
func (v *vcpusValue) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.Itoa(int(*v))
}
func (v *vcpusValue) Type() string { return "NUMBER" }

// sizeMiB shows an amount of memory: 512 MiB, 16 GiB, 1.5 GiB, 2 TiB.
func sizeMiB(mib int64) string {
	unit, per := "MiB", int64(1)
	switch {
	case mib >= 1<<20:
		unit, per = "TiB", 1<<20
	case mib >= 1<<10:
		unit, per = "GiB", 1<<10
	}
	text := strconv.FormatFloat(float64(mib)/float64(per), 'f', 1, 64)
	return strings.TrimSuffix(text, ".0") + " " + unit
}

// sizeWords is a machine's size as a person says it: 6 vCPUs, 16 GiB.
func sizeWords(vcpus int, memoryMiB int64) string {
	return count(vcpus, "vCPU") + ", " + sizeMiB(memoryMiB)
}

// count is a number with its noun: 1 host, 3 hosts.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

var durationUnits = [...]struct {
	letter string
	unit   time.Duration
}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}}

// parseDuration reads a duration such as 90s, 2h, 1d or 1h30m: whole numbers with the units w, d, h, m and s.
func parseDuration(text string) (time.Duration, error) {
	bad := usagef("%q is no duration; write it like 90s, 30m, 2h or 7d", text)
	rest := strings.TrimSpace(text)
	if rest == "" {
		return 0, bad
	}
	var total time.Duration
	for rest != "" {
		cut := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if cut <= 0 {
			return 0, bad
		}
		n, err := strconv.ParseInt(rest[:cut], 10, 32)
		if err != nil {
			return 0, bad
		}
		unit := time.Duration(0)
		for _, u := range durationUnits {
			if rest[cut:cut+1] == u.letter {
				unit = u.unit
			}
		}
		if unit == 0 || n > int64((math.MaxInt64-total)/unit) {
			return 0, bad
		}
		total += time.Duration(n) * unit
		rest = rest[cut+1:]
	}
	return total, nil
}

// durationValue is a flag that holds a duration of at least a second.
type durationValue time.Duration

func (v *durationValue) Set(s string) error {
	d, err := parseDuration(s)
	if err == nil && d < time.Second {
		err = usagef("%q is too short; the least is 1s", s)
	}
	*v = durationValue(d)
	return err
}
func (v *durationValue) String() string {
	if *v == 0 {
		return ""
	}
	return shortDuration(time.Duration(*v))
}
func (v *durationValue) Type() string   { return "DURATION" }
func (v *durationValue) seconds() int64 { return int64(time.Duration(*v) / time.Second) }

// shortDuration shows a duration in its two largest units: 45s, 2h, 1h30m, 7d. It rounds to the smaller one, so that
// what was set to 2h a moment ago still reads 2h.
func shortDuration(d time.Duration) string {
	switch {
	case d >= 24*time.Hour:
		d = d.Round(time.Hour)
	case d >= time.Hour:
		d = d.Round(time.Minute)
	default:
		d = d.Round(time.Second)
	}
	if d < time.Second {
		return "0s"
	}
	var out strings.Builder
	shown := 0
	for _, u := range durationUnits[1:] {
		n := d / u.unit
		if n == 0 && shown == 0 {
			continue
		}
		if n > 0 {
			fmt.Fprintf(&out, "%d%s", n, u.letter)
		}
		d -= n * u.unit
		if shown++; shown == 2 {
			break
		}
	}
	return out.String()
}

// seconds shows a short time measured in milliseconds: 0.9s, 12.4s, and 12ms where seconds would say nothing.
func seconds(ms int64) string {
	if ms < 95 {
		return strconv.FormatInt(ms, 10) + "ms"
	}
	return strconv.FormatFloat(float64(ms)/1000, 'f', 1, 64) + "s"
}

// since is how long ago an instant was, and until how far ahead it lies; a dash where there is none.
func since(t api.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return shortDuration(max(0, api.TimeOf(now).Sub(t)))
}

func until(t api.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return shortDuration(max(0, t.Sub(api.TimeOf(now))))
}

// pairs reads k=v terms, as labels and selectors are given.
func pairs(flag string, terms []string) (map[string]string, error) {
	var out map[string]string
	for _, term := range terms {
		k, v, ok := strings.Cut(term, "=")
		if !ok || k == "" {
			return nil, usagef("--%s %q must be KEY=VALUE", flag, term)
		}
		if out == nil {
			out = map[string]string{}
		}
		if old, twice := out[k]; twice && old != v {
			return nil, usagef("--%s gives %q twice; keep one", flag, k)
		}
		out[k] = v
	}
	return out, nil
}
