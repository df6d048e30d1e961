package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/cli"
)

func TestServeIsACommandOfFluxctl(t *testing.T) {
	var out bytes.Buffer
	got := cli.Run(t.Context(), cli.Env{Out: &out, More: hostCommands}, []string{"serve", "--help"})
	if got != 0 || !strings.Contains(out.String(), "Examples:\n  fluxctl serve") || !strings.Contains(out.String(), "--listen") {
		t.Errorf("got %d, %s", got, &out)
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	var buffer bytes.Buffer
	if isTerminal(&buffer) || isTerminal(nil) {
		t.Error("got a terminal, want none")
	}
}
