//go:build linux

package qemu

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func TestAMaskedProcessMakesNoHolesAndIsToldThatItDid(t *testing.T) {
	program, err := exec.LookPath("fallocate")
	if err != nil {
		t.Skip("SKIPPED: there is no fallocate to try it with (util-linux)")
	}
	file := filepath.Join(t.TempDir(), "ram")
	whole := bytes.Repeat([]byte("memory"), 4096)
	for _, masked := range []bool{true, false} {
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, "--punch-hole", "--offset", "0", "--length", "8192", file)
		start := cmd.Start
		if masked {
			start = func() error { return startMasked(cmd) }
		}
		if err := start(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("masked %t: %v", masked, err)
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if kept := bytes.Equal(got, whole); kept != masked {
			t.Errorf("masked %t: the file was kept %t", masked, kept)
		}
	}
	// This process itself is as free as before.
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 8192, 8192); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file); bytes.Equal(got[8192:16384], whole[8192:16384]) {
		t.Error("the filter is on this process, too")
	}
}

func TestACopyKeepsHolesAndContent(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	for at, text := range map[int64]string{0: "first", 40 << 20: "middle"} {
		if _, err := f.WriteAt([]byte(text), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(64 << 20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := copyFile(from, to); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(from)
	b, _ := os.ReadFile(to)
	if !bytes.Equal(a, b) {
		t.Error("the copy differs")
	}
	var st unix.Stat_t
	if err := unix.Stat(to, &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("the copy takes %d KiB of disk (%v)", st.Blocks/2, err)
	}
}

func TestASavedStateSharesItsMemoryWithItsCopies(t *testing.T) {
	d := testDriver(t)
	from, to := t.TempDir(), t.TempDir()
	for _, name := range []string{ramFile, stateFile, diskFile} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.CopySaved(from, to); err != nil {
		t.Fatal(err)
	}
	for name, shared := range map[string]bool{ramFile: true, stateFile: false, diskFile: false} {
		a, errA := os.Stat(filepath.Join(from, name))
		b, errB := os.Stat(filepath.Join(to, name))
		if errA != nil || errB != nil || os.SameFile(a, b) != shared {
			t.Errorf("%s: shared %t, %v, %v", name, os.SameFile(a, b), errA, errB)
		}
	}
	if err := d.CopySaved(t.TempDir(), t.TempDir()); err == nil {
		t.Error("an empty directory was taken for a saved state")
	}
}

func TestATemplateIsForOneKindOfMachine(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"vmlinuz", "initrd"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e, err := New(Config{Binary: "/bin/sh"})
	if err != nil {
		t.Fatal(err)
	}
	d := e.FluxVM()
	spec := testSpec(dir)
	if got := d.Template(spec); got != "" {
		t.Errorf("before the host was looked at: got %q", got)
	}
	d.host = &host{binary: "/bin/sh", accel: accelTCG}
	usual := d.Template(spec)
	same := spec2(spec)
	same.Name, same.Labels = "other", map[string]string{"a": "b"}
	if got := d.Template(same); usual == "" || got != usual {
		t.Errorf("another name: got %q, want %q", got, usual)
	}
	seen := []string{usual}
	other := func(what string, got string) {
		if got == "" || slices.Contains(seen, got) {
			t.Errorf("%s: got %q, which is another kind's", what, got)
		}
		seen = append(seen, got)
	}
	for what, change := range map[string]func(){
		"memory":  func() { same.MemoryMiB++ },
		"vcpus":   func() { same.VCPUs = 2 },
		"disk":    func() { same.DiskSizeGiB = 1 },
		"network": func() { same.Network = &api.Network{Mode: "nat"} },
	} {
		change()
		other(what, d.Template(same))
	}
	if err := os.Chtimes(filepath.Join(dir, "initrd"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	other("a new image", d.Template(same))
	if got := d.Template(testSpec("/no/such")); got != "" {
		t.Errorf("no image: got %q", got)
	}
}

func TestARestoredMachineHasItsMemoryInTheFileForItselfAlone(t *testing.T) {
	for want, m := range map[string]memory{
		"mem-path=saved/ram,share=off":             {file: "saved/ram"},
		"mem-path=saved/ram,share=off,prealloc=on": {file: "saved/ram", eager: true},
		"mem-path=ram,share=on":                    {file: "ram", shared: true},
	} {
		got := strings.Join(m.arguments(256), " ")
		if !strings.Contains(got, want+" ") || !strings.Contains(got, "size=256M") || !strings.Contains(got, "-incoming defer") {
			t.Errorf("got %q, want %q in it", got, want)
		}
	}
	if got := strings.Join(memory{}.arguments(256), " "); strings.Contains(got, "memory-backend") || strings.Contains(got, "incoming") {
		t.Errorf("a machine that boots: got %q", got)
	}
}
