package guest

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	exitNotRunnable = 126
	exitNotFound    = 127
	exitSignal      = 128 // and the signal's number

	// pipesWithin is how long outputs are still read once the command has ended, when a child of it holds them.
	pipesWithin = 500 * time.Millisecond
)

// run runs the command to its end, or to its start when it is detached. ctx kills it and all its children.
func run(ctx context.Context, req ExecRequest) (ExecAnswer, error) {
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return ExecAnswer{}, errors.New("the command names no program")
	}
	if req.Detach {
		return detach(req), nil
	}
	if req.TimeoutMS > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(req.TimeoutMS)*time.Millisecond)
		defer cancel()
	}
	var stdout, stderr capped
	cmd := exec.CommandContext(ctx, req.Argv[0], req.Argv[1:]...)
	cmd.Env = environment(req.Env)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if len(req.Stdin) > 0 {
		cmd.Stdin = bytes.NewReader(req.Stdin)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipesWithin
	if err := cmd.Start(); err != nil {
		return notStarted(ctx, err), nil
	}
	_ = cmd.Wait() // what it says is in ProcessState
	return ExecAnswer{
		ExitCode: exitCode(cmd.ProcessState), Stdout: stdout.bytes(), Stderr: stderr.bytes(),
		Truncated: stdout.cut() || stderr.cut(),
		TimedOut:  errors.Is(ctx.Err(), context.DeadlineExceeded) && !cmd.ProcessState.Exited(),
	}, nil
}

// detach starts the command in a session of its own. The goroutine that waits for it lives as long as it does.
func detach(req ExecRequest) ExecAnswer {
	cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
	cmd.Env = environment(req.Env)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return notStarted(context.Background(), err)
	}
	go func() { _ = cmd.Wait() }()
	return ExecAnswer{}
}

func notStarted(ctx context.Context, err error) ExecAnswer {
	answer := ExecAnswer{ExitCode: exitNotRunnable, Stderr: []byte(err.Error() + "\n")}
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		answer.ExitCode = exitNotFound
	case ctx.Err() != nil:
		answer.TimedOut = errors.Is(ctx.Err(), context.DeadlineExceeded)
	}
	return answer
}

func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return state.ExitCode()
}

func environment(extra map[string]string) []string {
	env := os.Environ()
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		env = append(env, k+"="+extra[k])
	}
	return env
}

// capped keeps the first MaxOutput bytes of what is written to it. It has a lock because a child of the command
// may still write while the answer is made.
type capped struct {
	mu   sync.Mutex
	kept []byte
	more bool
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	room := min(len(p), MaxOutput-len(c.kept))
	c.kept = append(c.kept, p[:room]...)
	c.more = c.more || room < len(p)
	return len(p), nil
}

func (c *capped) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.kept)
}

func (c *capped) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.more
}
