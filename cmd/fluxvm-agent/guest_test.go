package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// TestGuestGetsItsClaimAndEndsOnTimeWithAllReplicasStopped takes a real guest from a warm pool with a hostname,
// environment, a file and a secret, looks at them from within, stops every replica's process where it stands, and waits
// for the guest's host to end the VM at its deadline. FLUXVM_TEST_IMAGE names the guest image.
func TestGuestGetsItsClaimAndEndsOnTimeWithAllReplicasStopped(t *testing.T) {
	image := os.Getenv("FLUXVM_TEST_IMAGE")
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil || image == "" || image == "/none" {
		t.Skip("it needs QEMU, and FLUXVM_TEST_IMAGE naming a guest image (make image)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	f := startFleet(ctx, t, "--processes", "--replicas", "3", "--nodes", "1", "--backend", "flux-vm")
	c := f.client(t)
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: image, VCPUs: 1, MemoryMiB: 128, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	one := 1
	if _, err := c.CreatePool(ctx, api.PoolRequest{Name: "p", Image: "tiny", MinReady: &one, RotateIdentity: true}, ""); err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "the pool to be full", func() bool {
		s, err := c.PoolStatus(ctx, "p")
		return err == nil && s.State == api.PoolReady
	})
	claim := func(name string) *api.Claim {
		return &api.Claim{Hostname: name, Env: map[string]string{"STAGE": "it's a test"}, Secrets: map[string]string{"TOKEN": "s3cret-" + name},
			Files: []api.ClaimFile{{Path: "/etc/job", Content: "42\n", Mode: "0600"}}}
	}
	launch := func(name string, req api.LaunchRequest, warm bool) (id string, took time.Duration) {
		t.Helper()
		req.Name = name
		began := time.Now()
		answer, _, err := c.Launch(ctx, req, client.LaunchOptions{WaitReady: true})
		took = time.Since(began)
		if err != nil || answer.Warm != warm {
			t.Fatalf("launching %s: %+v, %v", name, answer, err)
		}
		return answer.VM.ID, took
	}
	_, plain := launch("plain", api.LaunchRequest{Image: "tiny", Reschedulable: true}, false)
	_, cold := launch("cold", api.LaunchRequest{Image: "tiny", Reschedulable: true, Claim: claim("cold")}, false)
	id, warm := launch("warm", api.LaunchRequest{Pool: "p", TTLSeconds: 60, Claim: claim("warm")}, true)
	deadline := time.Now().Add(time.Minute)
	t.Logf("cold %s, cold with a claim %s, warm with a claim %s", plain.Round(time.Millisecond), cold.Round(time.Millisecond), warm.Round(time.Millisecond))
	const look = `. /run/fluxvm/env; hostname; echo "$STAGE"; cat /etc/job /run/fluxvm/secrets/TOKEN; echo; ls -l /etc/job /run/fluxvm/secrets/TOKEN | cut -c1-10; awk '$2=="/run"||$2=="/run/fluxvm/secrets"{print $3}' /proc/mounts`
	for _, name := range []string{"cold", "warm"} {
		out, err := c.Exec(ctx, name, api.ExecRequest{Argv: []string{"/bin/busybox", "sh", "-c", strings.NewReplacer("hostname", "busybox hostname", "cat ", "busybox cat ", "ls ", "busybox ls ", "| cut", "| busybox cut", "awk ", "busybox awk ").Replace(look)}})
		want := name + "\nit's a test\n42\ns3cret-" + name + "\n-rw-------\n-rw-------\ntmpfs\n"
		if err != nil || out.Stdout != want {
			t.Errorf("within %s: %q %q %v, want %q", name, out.Stdout, out.Stderr, err, want)
		}
	}

	replicas := map[string]int{}
	for name, pid := range f.pids() {
		if strings.HasPrefix(name, "replica-") {
			replicas[name] = pid
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer func() {
		for _, pid := range replicas {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	if len(replicas) != 3 {
		t.Fatalf("stopped %v, want three replicas", replicas)
	}
	_, node, _ := strings.Cut(f.env(t, "FLUXVM_NODE_URLS"), "=")
	there := func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, node+"/v1/vms/"+id, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+f.env(t, "FLUXVM_TOKEN"))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return true
		}
		defer resp.Body.Close()
		return resp.StatusCode != http.StatusNotFound
	}
	if time.Now().Before(deadline.Add(-5*time.Second)) && !there() {
		t.Error("the VM went before its time")
	}
	eventually(ctx, t, "the host to end the VM by itself", func() bool { return !there() })
	if early := time.Until(deadline.Add(-2 * time.Second)); early > 0 {
		t.Errorf("the VM went %s early", early)
	}
	t.Logf("with every replica stopped the host ended it %s after its deadline", time.Since(deadline).Round(time.Second))
	for _, pid := range replicas {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	eventually(ctx, t, "the fleet to know it", func() bool {
		_, err := c.VM(ctx, id)
		return hasCode(err, api.CodeNotFound)
	})
	for _, name := range []string{"plain", "cold"} {
		if err := c.DeleteVM(ctx, name); err != nil {
			t.Error(err)
		}
	}
	f.interrupt(ctx, t)
}
