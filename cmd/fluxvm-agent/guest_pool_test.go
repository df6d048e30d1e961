package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// TestGuestPoolRefillsFromATemplate keeps one real guest ready and takes it again and again: the first has booted, the
// ones after start from its template, each as a guest of its own, and a template that is spoiled costs one boot.
// FLUXVM_TEST_IMAGE names the guest image.
func TestGuestPoolRefillsFromATemplate(t *testing.T) {
	image := os.Getenv("FLUXVM_TEST_IMAGE")
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil || image == "" || image == "/none" {
		t.Skip("it needs QEMU, and FLUXVM_TEST_IMAGE naming a guest image (make image)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := startFleet(ctx, t, "--replicas", "1", "--nodes", "1", "--backend", "flux-vm")
	c := f.client(t)
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: image, VCPUs: 1, MemoryMiB: 128, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	one := 1
	if _, err := c.CreatePool(ctx, api.PoolRequest{Name: "p", Image: "tiny", MinReady: &one, RotateIdentity: true}, ""); err != nil {
		t.Fatal(err)
	}
	templates := func() []string {
		found, _ := filepath.Glob(filepath.Join(f.data, "node-1", "snapshots", "template.*"))
		return found
	}
	const look = "busybox cat /proc/sys/kernel/random/boot_id /etc/machine-id; busybox od -An -N16 -tx1 /dev/urandom"
	seen := map[string]string{}
	take := func(name string) (ready time.Duration) {
		t.Helper()
		eventually(ctx, t, "a spare", func() bool {
			s, err := c.PoolStatus(ctx, "p")
			return err == nil && s.State == api.PoolReady
		})
		p, err := c.Pool(ctx, "p")
		if err != nil || len(p.Warm) != 1 {
			t.Fatalf("the pool has %+v, %v", p.Warm, err)
		}
		spare, err := c.VM(ctx, p.Warm[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		was, err := c.Exec(ctx, spare.ID, api.ExecRequest{Argv: []string{"/bin/busybox", "cat", "/etc/machine-id"}})
		if err != nil {
			t.Fatal(err)
		}
		answer, _, err := c.Launch(ctx, api.LaunchRequest{Name: name, Pool: "p"}, client.LaunchOptions{})
		if err != nil || !answer.Warm || answer.VM.ID != spare.ID {
			t.Fatalf("taking %s: %+v, %v", name, answer, err)
		}
		out, err := c.Exec(ctx, name, api.ExecRequest{Argv: []string{"/bin/busybox", "sh", "-c", strings.ReplaceAll(look, "busybox", "/bin/busybox")}})
		marks := strings.Fields(strings.Replace(out.Stdout, "\n ", "\n=", 1))
		if err != nil || out.ExitCode != 0 || len(marks) < 3 {
			t.Fatalf("looking at %s: %+v, %v", name, out, err)
		}
		if marks[1] == strings.TrimSpace(was.Stdout) {
			t.Errorf("%s has the machine id that it had as a spare", name)
		}
		for i, mark := range []string{marks[0], marks[1], strings.Join(marks[2:], " ")} {
			if other := seen[mark]; other != "" {
				t.Errorf("%s and %s have the same %s (%s)", name, other, []string{"boot id", "machine id", "random bytes"}[i], mark)
			}
			seen[mark] = name
		}
		if err := c.DeleteVM(ctx, name); err != nil {
			t.Error(err)
		}
		return spare.ReadyAt.Sub(spare.CreatedAt)
	}
	booted := take("booted")
	have := templates()
	if len(have) != 1 {
		t.Fatalf("got templates %v, want one", have)
	}
	var copies []time.Duration
	for _, name := range []string{"copy-1", "copy-2", "copy-3"} {
		copies = append(copies, take(name))
		if copied := copies[len(copies)-1]; copied >= booted {
			t.Errorf("%s was ready after %s, no sooner than one that booted, after %s", name, copied, booted)
		}
	}
	t.Logf("ready after: %s by a boot, %v from its template", booted.Round(time.Millisecond), copies)

	// The spare that is there now came from the template; the next will not find one that works.
	eventually(ctx, t, "a spare", func() bool {
		s, err := c.PoolStatus(ctx, "p")
		return err == nil && s.State == api.PoolReady
	})
	states, err := filepath.Glob(filepath.Join(have[0], "*"))
	if err != nil || len(states) == 0 {
		t.Fatalf("the template holds %v, %v", states, err)
	}
	for _, path := range states { // the spare has the old files open
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("spoiled"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	take("copy-4")
	again := take("booted-again")
	t.Logf("ready after %s with a spoiled template, and after %s from the one made anew", again.Round(time.Millisecond), take("copy-5").Round(time.Millisecond))
	if got := templates(); len(got) != 1 {
		t.Errorf("got templates %v, want the one made anew", got)
	}
	if s, err := c.PoolStatus(ctx, "p"); err != nil || s.LastError != nil {
		t.Errorf("the pool took that for a failed boot: %+v, %v", s, err)
	}
	f.interrupt(ctx, t)
}
