//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRenewalRewritesWhatTheImageHas(t *testing.T) {
	o := owner{root: t.TempDir()}
	write := func(text string, path ...string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(o.path(path...)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(o.path(path...), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("old\n", "etc", "machine-id")
	write("old\n", "var", "lib", "dbus", "machine-id")
	id := strings.Repeat("a1", 16)
	if err := o.setMachineID(id); err != nil {
		t.Fatal(err)
	}
	for _, path := range [][]string{{"etc", "machine-id"}, {"var", "lib", "dbus", "machine-id"}} {
		if got, err := os.ReadFile(o.path(path...)); err != nil || string(got) != id+"\n" {
			t.Errorf("%v: got %q and %v", path, got, err)
		}
	}
	if err := o.replace("the host's name", "x\n", "etc", "hostname"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(o.path("etc", "hostname")); !os.IsNotExist(err) {
		t.Errorf("a file that was not there is now: %v", err)
	}
	if err := o.renewHostKeys(); err != nil {
		t.Errorf("an image without SSH: %v", err)
	}
}

func TestTooLittleRandomnessIsRefusedBeforeAnythingIsDone(t *testing.T) {
	if err := (owner{root: t.TempDir()}).seed(make([]byte, 16)); err == nil || !strings.Contains(err.Error(), "32") {
		t.Errorf("got %v", err)
	}
}
