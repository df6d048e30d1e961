//go:build linux

package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/fluxvm/fluxvm/node/machine"
)

// pss is the process's proportional set size in MiB.
func pss(t testing.TB, m machine.Machine) int64 {
	t.Helper()
	p, err := procfs.NewProc(m.PID())
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.ProcSMapsRollup()
	if err != nil {
		t.Fatal(err)
	}
	return int64(s.Pss >> 20)
}

// becomes polls until got is at least or, below, at most want.
func becomes(t testing.TB, what string, done func() (bool, int64)) int64 {
	t.Helper()
	for end := time.Now().Add(bootWithin); ; {
		ok, got := done()
		if ok {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("%s: it stays %d MiB", what, got)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func actual(t testing.TB, m machine.Machine) int64 {
	t.Helper()
	got, err := m.(machine.Ballooner).Balloon(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func setBalloon(t testing.TB, m machine.Machine, mib int64) {
	t.Helper()
	if err := m.(machine.Ballooner).SetBalloon(within(t), mib); err != nil {
		t.Fatal(err)
	}
}

func digestOf(t testing.TB, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// saved writes a machine down and gives the directory.
func saved(t testing.TB, m machine.Machine, halt bool) string {
	t.Helper()
	dir := t.TempDir()
	began := time.Now()
	if err := m.(machine.Saver).Save(within(t), dir, halt); err != nil {
		t.Fatal(err)
	}
	t.Logf("saved in %s", time.Since(began).Round(time.Millisecond))
	return dir
}

// restored starts a machine from a copy of a saved state.
func restored(t testing.TB, d *FluxVM, spec machine.Spec, from string) machine.Machine {
	t.Helper()
	dir, copied := t.TempDir(), t.TempDir()
	if err := d.CopySaved(from, copied); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m, err := d.Restore(within(t), spec, dir, copied)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Stop(context.Background(), true); err != nil {
			t.Error(err)
		}
		m.Release()
	})
	runs := time.Since(began)
	awaitAgent(t, m)
	t.Logf("restored: runs after %s, agent after %s", runs.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	return m
}

func renewed(t testing.TB, m machine.Machine, n int) {
	t.Helper()
	who := machine.Identity{Hostname: fmt.Sprintf("copy-%d", n), MachineID: strings.Repeat(fmt.Sprint(n), 32), BootID: fmt.Sprintf("0000000%d-0000-4000-8000-000000000000", n), HostKeys: true}
	if err := m.(machine.Renewer).Renew(within(t), who); err != nil {
		t.Fatal(err)
	}
}

func TestGuestIsCopiedWhileItRunsAndEachCopyIsItsOwn(t *testing.T) {
	image := testImage(t)
	d := testDriver(t)
	spec := testSpec(image)
	spec.DiskSizeGiB = 1
	parent := started(t, d, spec, t.TempDir())
	awaitAgent(t, parent)
	shell(t, parent, "echo before >/tmp/mark; echo on-disk | dd of=/dev/vda bs=512 conv=sync 2>/dev/null; sync; (while :; do date +%s >/tmp/alive; sleep 1; done) >/dev/null 2>&1 &")
	from := saved(t, parent, false)
	shell(t, parent, "echo after >/tmp/mark")
	ram := digestOf(t, filepath.Join(from, ramFile))

	var names, ids, boots, random []string
	for n := 1; n <= 3; n++ {
		copySpec := testSpec(image)
		copySpec.DiskSizeGiB = 1
		m := restored(t, d, copySpec, from)
		renewed(t, m, n)
		got := strings.Fields(shell(t, m, "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id /tmp/mark; head -c 7 /dev/vda; echo; head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '"))
		if len(got) != 6 || got[3] != "before" || got[4] != "on-disk" {
			t.Fatalf("copy %d: got %q", n, got)
		}
		names, ids, boots, random = append(names, got[0]), append(ids, got[1]), append(boots, got[2]), append(random, got[5])
		off := shell(t, m, "date +%s")
		var seconds int64
		fmt.Sscan(off, &seconds)
		if d := time.Since(time.Unix(seconds, 0)); d < -2*time.Second || d > 30*time.Second {
			t.Errorf("copy %d: its clock is %s off", n, d)
		}
		// What it gives back is its own alone: the memory that the next copy starts from is untouched.
		shell(t, m, "dd if=/dev/zero of=/tmp/fill bs=1M count=24 2>/dev/null; rm /tmp/fill")
		setBalloon(t, m, 64)
		becomes(t, "the copy's balloon", func() (bool, int64) { a := actual(t, m); return a >= 64, a })
		if got := digestOf(t, filepath.Join(from, ramFile)); got != ram {
			t.Fatal("a copy changed the memory that others start from")
		}
		if p := pss(t, m); p > 160 {
			t.Errorf("copy %d holds %d MiB", n, p)
		} else {
			t.Logf("copy %d: PSS %d MiB", n, p)
		}
	}
	for what, list := range map[string][]string{"host name": names, "machine id": ids, "boot id": boots, "random bytes": random} {
		if list[0] == list[1] || list[1] == list[2] || list[0] == list[2] {
			t.Errorf("copies share their %s: %q", what, list)
		}
	}
	if got := strings.TrimSpace(shell(t, parent, "cat /tmp/mark")); got != "after" {
		t.Errorf("the original has %q, want after", got)
	}
	// One that was copied can be copied again, and a copy as well.
	again := restored(t, d, spec2(spec), saved(t, parent, false))
	if got := strings.TrimSpace(shell(t, again, "cat /tmp/mark")); got != "after" {
		t.Errorf("the second copy has %q, want after", got)
	}
	grandchild := restored(t, d, spec2(spec), saved(t, again, false))
	if got := strings.TrimSpace(shell(t, grandchild, "cat /tmp/mark")); got != "after" {
		t.Errorf("the copy's copy has %q, want after", got)
	}
}

// spec2 is a spec like the other with an id of its own.
func spec2(spec machine.Spec) machine.Spec {
	spec.ID = testSpec("").ID
	return spec
}

func TestGuestIsHaltedOnDiskAndGoesOn(t *testing.T) {
	image := testImage(t)
	d := testDriver(t)
	spec, dir := testSpec(image), t.TempDir()
	m := started(t, d, spec, dir)
	awaitAgent(t, m)
	shell(t, m, "echo 42 >/tmp/answer")
	from := saved(t, m, true)
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	woken, err := d.Restore(within(t), spec, dir, from)
	if err != nil {
		t.Fatal(err)
	}
	defer woken.Release()
	defer woken.Stop(context.Background(), true)
	if err := os.RemoveAll(from); err != nil { // what it reads of it later it has open
		t.Fatal(err)
	}
	awaitAgent(t, woken)
	if got := strings.TrimSpace(shell(t, woken, "cat /tmp/answer; ls / >/dev/null; sleep 0.2")); got != "42" {
		t.Errorf("got %q, want 42", got)
	}
}

func TestGuestGivesMemoryBackByBalloonAndByReporting(t *testing.T) {
	image := testImage(t)
	d := testDriver(t)
	spec := testSpec(image)
	spec.MemoryMiB = 512
	m := started(t, d, spec, t.TempDir())
	awaitAgent(t, m)
	touch := func() int64 {
		shell(t, m, "for i in 1 2 3 4; do dd if=/dev/zero of=/tmp/fill$i bs=1M count=50 2>/dev/null || exit 1; done")
		return pss(t, m)
	}
	idle, dirty := pss(t, m), touch()
	shell(t, m, "rm -f /tmp/fill*")
	reported := becomes(t, "PSS after the guest freed it", func() (bool, int64) { p := pss(t, m); return p < dirty-100, p })
	t.Logf("free-page reporting: PSS idle %d, used %d, freed %d MiB", idle, dirty, reported)

	before := touch()
	shell(t, m, "rm -f /tmp/fill*; sync; echo 3 >/proc/sys/vm/drop_caches")
	setBalloon(t, m, 128)
	became := becomes(t, "the balloon", func() (bool, int64) { a := actual(t, m); return a >= 128, a })
	after := becomes(t, "PSS with the balloon", func() (bool, int64) { p := pss(t, m); return p < before-100, p })
	t.Logf("balloon: target 128, actual %d MiB; PSS before %d, after %d MiB", became, before, after)
	setBalloon(t, m, 0)
	becomes(t, "the balloon after 0", func() (bool, int64) { a := actual(t, m); return a == 0, a })
	if g, err := m.(machine.Observed).GuestMemory(within(t)); err != nil {
		t.Error(err)
	} else {
		for end := time.Now().Add(time.Minute); g == nil && time.Now().Before(end); <-time.After(100 * time.Millisecond) {
			g, err = m.(machine.Observed).GuestMemory(within(t))
		}
		if err != nil || g == nil || g.TotalMiB < 400 || g.TotalMiB > 512 || g.FreeMiB <= 0 {
			t.Errorf("got %+v and %v, want what a guest of 512 MiB tells", g, err)
		}
	}
}
