package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFileThatIsAppendedToStaysBoundedAndKeepsItsEnd(t *testing.T) {
	const keep = 10_000
	path := filepath.Join(t.TempDir(), "console.log")
	line := strings.Repeat("x", 99) + "\n"
	for range 5 * keep / len(line) {
		if err := Append(path, []byte(line), keep); err != nil {
			t.Fatal(err)
		}
	}
	if err := Append(path, []byte("the end\n"), keep); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 2*keep || info.Size() < keep {
		t.Errorf("it has %d bytes, want %d to %d", info.Size(), keep, 2*keep)
	}
	if got := Tail(path, 10); got != "x\nthe end\n" {
		t.Errorf("it ends with %q", got)
	}
}

func TestLastWordsAreTheMachinesAndElseItsHolders(t *testing.T) {
	console, log := filepath.Join(t.TempDir(), "console.log"), filepath.Join(t.TempDir(), "log")
	if got := LastWords(console, log, "holder", 100); len(got) > 0 {
		t.Errorf("got %q of nothing", got)
	}
	if err := os.WriteFile(log, []byte("no room"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LastWords(console, log, "holder", 100); string(got) != "holder: no room" {
		t.Errorf("got %q", got)
	}
	if err := os.WriteFile(console, []byte("panic"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := LastWords(console, log, "holder", 3); string(got) != "nic" {
		t.Errorf("got %q", got)
	}
}
