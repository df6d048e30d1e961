package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// TestAFullDiskCostsOneReplicaAndNoWrite fills the disk of one of three replicas, which is a small one of its own: first
// below the reserve, then to the last byte.
func TestAFullDiskCostsOneReplicaAndNoWrite(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	dir := t.TempDir()
	small := filepath.Join(dir, "c1")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("a small disk cannot be made here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(small, syscall.MNT_DETACH) })
	k := startThreeIn(ctx, t, dir, "--disk-reserve-mib", "32")
	c := k.client(t, "c1", "c2", "c3")
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?boot_ms=5&agent_ms=5", VCPUs: 1, MemoryMiB: 64, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	n := 0
	launch := func() {
		t.Helper()
		n++
		name := fmt.Sprint("vm-", n)
		got, _, err := c.Launch(ctx, api.LaunchRequest{Name: name, Image: "tiny"}, client.LaunchOptions{Key: name})
		if err != nil {
			t.Fatalf("launch %d: %v", n, err)
		}
		if err := c.DeleteVM(ctx, got.VM.ID); err != nil {
			t.Fatal(err)
		}
	}
	launch()
	ready := func() string {
		resp, err := http.Get(k.api["c1"] + "/readyz")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		raw, _ := io.ReadAll(resp.Body)
		return resp.Status + " " + string(raw)
	}

	ballast := filepath.Join(small, "ballast")
	fill(t, ballast, 40<<20)
	eventually(ctx, t, "c1 to say that its disk is nearly full, and another to lead", func() bool {
		now, err := c.Cluster(ctx)
		return strings.Contains(ready(), "disk") && err == nil && now.Leader != "" && now.Leader != "c1"
	})
	for range 5 {
		launch()
	}

	fill(t, filepath.Join(small, "rest"), 1<<30)
	ended := func() bool {
		select {
		case <-k.run["c1"].done:
			return true
		default:
			return false
		}
	}
	for !ended() && ctx.Err() == nil { // until its log needs room
		launch()
	}
	if code := k.run["c1"].wait(); code != 70 || !strings.Contains(k.run["c1"].out.String(), "the disk is full") {
		t.Errorf("c1 ended with %d: %s", code, &k.run["c1"].out)
	}
	for range 5 {
		launch()
	}

	if err := errors.Join(os.Remove(ballast), os.Remove(filepath.Join(small, "rest"))); err != nil {
		t.Fatal(err)
	}
	k.run["c1"] = startProcess(t, k.args["c1"]...)
	k.await(ctx, t, "c1")
	launch()
	eventually(ctx, t, "c1 to catch up", func() bool {
		now, err := c.Cluster(ctx)
		if err != nil {
			return false
		}
		for _, r := range now.Replicas {
			if r.AppliedIndex < now.Index {
				return false
			}
		}
		return true
	})
	k.run["c1"].end()
	if code, report := offlineCommand(t, "", "check", "--data", small); code != 0 {
		t.Errorf("its data afterwards: %d %s", code, report)
	}
}

// fill writes a file of so many bytes, or fewer when the disk is full.
func fill(t *testing.T, path string, size int64) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 4<<10)
	for written := int64(0); written < size; written += int64(len(chunk)) {
		if _, err := f.Write(chunk); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
