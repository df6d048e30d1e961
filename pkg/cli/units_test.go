package cli

import (
	"testing"
	"time"
)

func TestSizesAreWholeAndHaveAUnit(t *testing.T) {
	for in, want := range map[string]int64{"16G": 16384, "16GiB": 16384, "16GB": 16384, "16g": 16384, "512M": 512, "512 MiB": 512, "1.5G": 1536, "1T": 1 << 20, "2048K": 2} {
		if got, err := parseSize(in, 1<<20, "MiB"); err != nil || got != want {
			t.Errorf("%q: got %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "16", "G", "-1G", "16X", "1..5G", "0G", "1K", "0.3M", "16Gi", "99999999999T", "1e3G", "NaNG"} {
		if got, err := parseSize(in, 1<<20, "MiB"); err == nil || exitCode(err) != 2 {
			t.Errorf("%q: got %d, %v; want a usage error", in, got, err)
		}
	}
	if _, err := parseSize("512M", 1<<30, "GiB"); err == nil {
		t.Error("512M is no whole number of GiB; got no error")
	}
}

func TestSizesAreShownShort(t *testing.T) {
	for mib, want := range map[int64]string{0: "0 MiB", 512: "512 MiB", 1024: "1 GiB", 1536: "1.5 GiB", 16384: "16 GiB", 2 << 20: "2 TiB"} {
		if got := sizeMiB(mib); got != want {
			t.Errorf("%d: got %q, want %q", mib, got, want)
		}
	}
}

func TestDurationsHaveUnits(t *testing.T) {
	day := 24 * time.Hour
	for in, want := range map[string]time.Duration{"90s": 90 * time.Second, "2h": 2 * time.Hour, "1d": day, "7d": 7 * day, "1w": 7 * day, "1h30m": 90 * time.Minute, "1d12h": 36 * time.Hour, "0s": 0} {
		if got, err := parseDuration(in); err != nil || got != want {
			t.Errorf("%q: got %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "90", "h", "-1h", "2x", "1.5h", "2 h", "99999999999h", "2147483647w"} {
		if got, err := parseDuration(in); err == nil || exitCode(err) != 2 {
			t.Errorf("%q: got %v, %v; want a usage error", in, got, err)
		}
	}
}

func TestDurationsAreShownInTwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0s", 400 * time.Millisecond: "0s", 45 * time.Second: "45s", 90 * time.Second: "1m30s", 2 * time.Hour: "2h",
		90 * time.Minute: "1h30m", 26*time.Hour + 5*time.Second: "1d2h", 24*time.Hour + time.Minute: "1d", 60*time.Minute - 200*time.Millisecond: "1h", 2*time.Hour - 3*time.Second: "2h", 7*24*time.Hour - time.Minute: "7d"} {
		if got := shortDuration(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestShortTimesKeepADigit(t *testing.T) {
	for ms, want := range map[int64]string{0: "0ms", 12: "12ms", 94: "94ms", 95: "0.1s", 870: "0.9s", 12400: "12.4s"} {
		if got := seconds(ms); got != want {
			t.Errorf("%d: got %q, want %q", ms, got, want)
		}
	}
}

func TestPairsNeedKeyAndValue(t *testing.T) {
	got, err := pairs("label", []string{"a=1", "b=", "c=x=y"})
	if err != nil || len(got) != 3 || got["a"] != "1" || got["b"] != "" || got["c"] != "x=y" {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range [][]string{{"a"}, {"=1"}, {"a=1", "a=2"}} {
		if _, err := pairs("label", bad); exitCode(err) != 2 {
			t.Errorf("%v: got %v, want a usage error", bad, err)
		}
	}
}
