package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestALeaderThatCannotTakeUpItsOfficeEndsWith70(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "operator-token"), 0o700); err != nil { // where the first leader wants to write a file
		t.Fatal(err)
	}
	p := startProcess(t, "central", "--bootstrap", "--name", "solo", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0", "--data", dir, "--election-timeout", "1s")
	if code := p.wait(); code != 70 || !strings.Contains(p.out.String(), "could not take up the leadership 3 times") {
		t.Errorf("it ended with %d: %s", code, &p.out)
	}
}

func TestTheUnitFileNamesFlagsAndExitCodesThatThereAre(t *testing.T) {
	raw, err := os.ReadFile("../../examples/deploy/fluxvm-central.service")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]string{}
	for l := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(l), "="); ok && !strings.HasPrefix(key, "#") {
			set[key] = value
		}
	}
	args := strings.Fields(set["ExecStart"])
	if len(args) < 3 || args[1] != "central" {
		t.Fatalf("ExecStart: %q", args)
	}
	if err := centralCommand().ParseFlags(args[2:]); err != nil {
		t.Errorf("ExecStart: %v", err)
	}
	for key, want := range map[string]string{"RestartPreventExitStatus": "78 79", "Restart": "on-failure", "StartLimitIntervalSec": "0", "RestartMaxDelaySec": "60"} {
		if set[key] != want {
			t.Errorf("%s is %q, want %q", key, set[key], want)
		}
	}
}
