//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

func TestLastKernelArgumentWins(t *testing.T) {
	line := "console=ttyS0 fluxvm.hostname=a quiet xfluxvm.hostname=b fluxvm.hostname=c fluxvm.hostnames=d\n"
	if got := kernelArgument(line, "fluxvm.hostname"); got != "c" {
		t.Errorf("got %q, want c", got)
	}
	if got := kernelArgument(line, "ip"); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func TestPortIsFoundByName(t *testing.T) {
	sys := t.TempDir()
	for port, name := range map[string]string{"vport1p1": "org.qemu.guest_agent.0\n", "vport1p2": guest.PortName + "\n"} {
		if err := os.MkdirAll(filepath.Join(sys, port), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, port, "name"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := findPort(sys, "/dev"); err != nil || got != "/dev/vport1p2" {
		t.Errorf("got %q and %v, want /dev/vport1p2", got, err)
	}
	if _, err := findPort(t.TempDir(), "/dev"); err == nil || !strings.Contains(err.Error(), guest.PortName) {
		t.Errorf("got %v, want the name that is missing", err)
	}
	if _, err := findPort("/no/such", "/dev"); err == nil || !strings.Contains(err.Error(), "virtio_console") {
		t.Errorf("got %v, want the module that is missing", err)
	}
}

func TestReapTellsLivingFromGone(t *testing.T) {
	if _, err := reap(); !errors.Is(err, errNoChild) {
		t.Fatalf("got %v, want no child", err)
	}
	pid, err := spawn([]string{"/bin/sh", "-c", "exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	for {
		got, err := reap()
		if err != nil {
			t.Fatal(err)
		}
		if got == pid {
			break
		}
	}
	if _, err := reap(); !errors.Is(err, errNoChild) {
		t.Errorf("got %v, want no child", err)
	}
}
