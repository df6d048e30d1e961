package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
)

func TestAPartThatAsksForAnOperatorIsNotStartedAgain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var said bytes.Buffer
	k := &keeper{program: agent, data: t.TempDir(), logger: hclog.New(&hclog.LoggerOptions{Output: &said}), pids: map[string]int{}}
	k.keep(ctx, part{"replica-1", []string{"central", "--name", "c", "--listen", "127.0.0.1:0", "--cluster-listen", "127.0.0.1:0", "--data", filepath.Join(k.data, "empty")}})
	raw, err := os.ReadFile(k.logFile("replica-1"))
	if ctx.Err() != nil || err != nil || strings.Count(string(raw), "holds no replica") != 1 || !strings.Contains(said.String(), "not started again") {
		t.Errorf("got %v, %v, it said %s and wrote %s", ctx.Err(), err, &said, raw)
	}
}

func TestAPartThatEndsAgainAndAgainIsStartedLessOften(t *testing.T) {
	wait := restartAfter
	for i, step := range []struct {
		code int
		ran  time.Duration
		want time.Duration
	}{
		{70, time.Second, 2 * time.Second}, {70, time.Second, 4 * time.Second}, {1, 0, 8 * time.Second}, {-1, 0, time.Second}, {70, 0, 2 * time.Second},
		{70, 0, 4 * time.Second}, {0, 0, 8 * time.Second}, {70, 0, 16 * time.Second}, {70, 0, 32 * time.Second}, {70, 0, time.Minute}, {70, 0, time.Minute}, {70, 2 * time.Minute, time.Second},
	} {
		again, next := restart(step.code, step.ran, wait)
		if !again || next != step.want {
			t.Errorf("step %d: got %v, %s, want %s", i, again, next, step.want)
		}
		wait = next
	}
	for _, code := range []int{78, 79} {
		if again, _ := restart(code, time.Hour, restartAfter); again {
			t.Errorf("%d: it is started again", code)
		}
	}
}
