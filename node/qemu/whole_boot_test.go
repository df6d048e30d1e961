//go:build linux

package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// testDisk is the disk image beside the micro-VM's, or skips the test loudly.
func testDisk(t testing.TB) string {
	t.Helper()
	disk := filepath.Join(testImage(t), "disk.qcow2")
	if _, err := openDisk(disk); err != nil {
		t.Skipf("SKIPPED, no disk was booted: %v; make it with: scripts/guest-image --disk build/images/tiny", err)
	}
	return disk
}

// checkConfined looks at the real process.
func checkConfined(t *testing.T, e *Engine, m machine.Machine, id, dir string) {
	t.Helper()
	h, err := e.inspected(within(t))
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID()))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"Seccomp:\t2\n": h.filter, "NoNewPrivs:\t1\n": h.filter}
	if h.drop != "" {
		user := fmt.Sprint(process.UserOf(id))
		want["Uid:\t"+strings.Join([]string{user, user, user, user}, "\t")+"\n"] = true
		want["CapEff:\t0000000000000000\n"] = true
		root, err := os.Stat(fmt.Sprintf("/proc/%d/root", m.PID()))
		own, errOwn := os.Stat(dir)
		if err != nil || errOwn != nil || !os.SameFile(root, own) {
			t.Errorf("its root is %v (%v, %v), want its own directory", root, err, errOwn)
		}
	}
	for line, holds := range want {
		if holds && !strings.Contains(string(status), line) {
			t.Errorf("want %q; got\n%s", line, status)
		}
	}
	told := e.Confinement()
	if slices.Contains(told, api.ConfinedByUser) != (h.drop != "") || slices.Contains(told, "cgroup_memory") != h.groups.Has(process.Memory) {
		t.Errorf("it is told to be confined by %q", told)
	}
	if h.groups.Has(process.Memory) {
		in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", m.PID()))
		if err != nil || !strings.Contains(string(in), "fluxvm-"+id) {
			t.Errorf("its control groups are %s, %v", in, err)
		}
	}
}

func TestGuestOnADiskLivesThroughItsWholeLife(t *testing.T) {
	disk := testDisk(t)
	e := testEngine(t)
	d := e.Whole()
	if err := d.Ready(within(t)); err != nil {
		t.Fatal(err)
	}
	spec, dir := wholeSpec(disk), t.TempDir()
	spec.DiskSizeGiB, spec.ExtraDisks, spec.Balloon = 1, []api.ExtraDisk{{SizeGiB: 2}}, &api.BalloonDevice{}
	spec.CloudInit = &api.CloudInit{Hostname: "web-1", User: "ada"}
	if err := d.Check(spec); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	m := started(t, d, spec, dir)
	awaitAgent(t, m)
	t.Logf("agent answers after %s", time.Since(began).Round(time.Millisecond))
	checkConfined(t, e, m, spec.ID, dir)

	if got := shell(t, m, "cat /sys/block/vda/size /sys/block/vdb/size; awk '$2==\"/\"{print $1, $3}' /proc/mounts | tail -n 1"); got != "2097152\n4194304\n/dev/vda1 ext4" {
		t.Errorf("got %q, want both disks' sizes and the root on the first", got)
	}
	seed := shell(t, m, "mkdir -p /mnt; mount -t iso9660 -o ro /dev/vdc /mnt; cat /mnt/meta-data /mnt/user-data; head -c 32808 /dev/vdc | tail -c 8")
	if !strings.Contains(seed, `"local-hostname":"web-1"`) || !strings.Contains(seed, "#cloud-config\n{") || !strings.Contains(seed, `"name":"ada"`) {
		t.Errorf("the seed says %q", seed)
	}
	if _, ok := m.(machine.Saver); ok {
		t.Error("a whole VM says that it can be saved")
	}
	setBalloon(t, m, 64)
	becomes(t, "the balloon", func() (bool, int64) { got := actual(t, m); return got == 64, got })

	// A guest that restarts itself comes back, and so does what it wrote.
	shell(t, m, "umount /mnt; echo kept > /root/kept; sync")
	if _, err := m.Exec(within(t), api.ExecRequest{Argv: []string{"sh", "-c", "sleep 0.3; touch /run/before; reboot -f"}, Detach: true}); err != nil {
		t.Fatal(err)
	}
	for ctx := within(t); ; <-time.After(50 * time.Millisecond) {
		got, err := m.Exec(ctx, api.ExecRequest{Argv: []string{"sh", "-c", "test ! -e /run/before && cut -d. -f1 /proc/uptime"}})
		if err == nil && got.ExitCode == 0 && ctx.Err() == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the guest did not come back: %+v, %v", got, err)
		}
	}
	if got := shell(t, m, "cat /root/kept"); got != "kept" {
		t.Errorf("after its restart: got %q", got)
	}

	pid := m.PID()
	m.Release()
	m, err := testEngine(t).Whole().Adopt(within(t), spec, dir)
	if err != nil || m.PID() != pid {
		t.Fatalf("adopting process %d: %v, %v", pid, m, err)
	}
	t.Cleanup(m.Release)
	if err := m.Pause(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Ping(within(t)); !errors.Is(err, machine.ErrNoAgent) {
		t.Errorf("a paused guest: got %v, want ErrNoAgent", err)
	}
	if err := m.Stop(within(t), false); err != nil {
		t.Fatal(err)
	}
	if err := m.Err(); err != nil {
		t.Errorf("after a clean stop: %v", err)
	}
	if console, err := m.Console(1 << 20); err != nil || !strings.Contains(string(console), "Power down") {
		t.Errorf("the console says %q, %v", console, err)
	}
}

func TestGuestOnADiskHasNoBalloonUnaskedAndStartsAgainFromItsDisk(t *testing.T) {
	spec, dir := wholeSpec(testDisk(t)), t.TempDir()
	d := testEngine(t).Whole()
	m := started(t, d, spec, dir)
	awaitAgent(t, m)
	if _, err := m.(machine.Ballooner).Balloon(within(t)); !errors.Is(err, machine.ErrNoBalloon) {
		t.Errorf("a balloon nobody asked for: got %v, want ErrNoBalloon", err)
	}
	if told, err := m.(machine.Observed).GuestMemory(within(t)); told != nil || err != nil {
		t.Errorf("memory that nothing tells: %v, %v", told, err)
	}
	// Its disk was made over the image, which nothing is written to.
	if head, err := os.ReadFile(filepath.Join(dir, overlayFile)); err != nil || !strings.HasPrefix(string(head), qcow2Magic) {
		t.Errorf("the disk: %v", err)
	}
	shell(t, m, "echo kept > /root/kept; sync")
	if err := m.Stop(within(t), true); err != nil {
		t.Fatal(err)
	}
	again, err := d.Start(within(t), spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Release)
	awaitAgent(t, again)
	if got := shell(t, again, "cat /root/kept"); got != "kept" {
		t.Errorf("after the second start: got %q", got)
	}
	if err := again.Stop(within(t), true); err != nil {
		t.Error(err)
	}
}
