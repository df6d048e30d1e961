package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPingIsAnswered(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	hello, err := c.Ping(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if hello.Protocol != Protocol || hello.Hostname == "" {
		t.Errorf("got %+v, want protocol %d and a host name", hello, Protocol)
	}
}

func TestExecReturnsWhatTheCommandLeft(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	tests := map[string]struct {
		req  ExecRequest
		want ExecAnswer
	}{
		"output, error output and code": {
			ExecRequest{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}},
			ExecAnswer{ExitCode: 3, Stdout: []byte("out\n"), Stderr: []byte("err\n")},
		},
		"standard input and environment": {
			ExecRequest{Argv: []string{"sh", "-c", `read line; echo "$line $GREETING"`}, Env: map[string]string{"GREETING": "world"}, Stdin: []byte("hello\n")},
			ExecAnswer{Stdout: []byte("hello world\n")},
		},
		"bytes that are no text": {
			ExecRequest{Argv: []string{"printf", `\036\377`}},
			ExecAnswer{Stdout: []byte{frameStart, 0xff}},
		},
		"a signal":     {ExecRequest{Argv: []string{"sh", "-c", "kill -TERM $$"}}, ExecAnswer{ExitCode: 143}},
		"no program":   {ExecRequest{Argv: []string{"no-such-program"}}, ExecAnswer{ExitCode: 127, Stderr: []byte("exec: \"no-such-program\": executable file not found in $PATH\n")}},
		"no such path": {ExecRequest{Argv: []string{"/no/such"}}, ExecAnswer{ExitCode: 127, Stderr: []byte("fork/exec /no/such: no such file or directory\n")}},
		"a directory":  {ExecRequest{Argv: []string{"/tmp"}}, ExecAnswer{ExitCode: 126, Stderr: []byte("fork/exec /tmp: permission denied\n")}},
		"a child that keeps the outputs open": {
			ExecRequest{Argv: []string{"sh", "-c", "sleep 100 & echo $!; exec 1>&-; exit 4"}, TimeoutMS: 60_000},
			ExecAnswer{ExitCode: 4},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := c.Exec(soon(t), tt.req)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(name, "a child") {
				pid, _ := strconv.Atoi(strings.TrimSpace(string(got.Stdout)))
				_ = syscall.Kill(pid, syscall.SIGKILL)
				got.Stdout = nil
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestExecRefusesWhatIsNoCommand(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	if _, err := c.Exec(soon(t), ExecRequest{}); err == nil || !strings.Contains(err.Error(), "names no program") {
		t.Errorf("got %v, want a refusal that says what is missing", err)
	}
}

func TestLongOutputIsCutAtTheBound(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	got, err := c.Exec(soon(t), ExecRequest{Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&2", MaxOutput+1, MaxOutput)}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Stdout) != MaxOutput || len(got.Stderr) != MaxOutput || !got.Truncated || got.ExitCode != 0 {
		t.Errorf("got %d and %d bytes, truncated %v, code %d; want %d each, true, 0", len(got.Stdout), len(got.Stderr), got.Truncated, got.ExitCode, MaxOutput)
	}
}

func TestCommandIsKilledWithItsChildrenAtTheTimeout(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	got, err := c.Exec(soon(t), ExecRequest{Argv: []string{"sh", "-c", "sleep 1000 & echo $!; wait"}, TimeoutMS: 300})
	if err != nil {
		t.Fatal(err)
	}
	if !got.TimedOut || got.ExitCode != 137 {
		t.Errorf("got %+v, want timed out with 137", got)
	}
	awaitEnd(t, strings.TrimSpace(string(got.Stdout)))
}

func TestCommandIsKilledWhenTheCallerGivesUp(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(soon(t))
	ended := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, ExecRequest{Argv: []string{"sh", "-c", "echo $$ > " + file + ".new; mv " + file + ".new " + file + "; exec sleep 1000"}})
		ended <- err
	}()
	pid := awaitFile(t, file)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	awaitEnd(t, pid)
}

func TestDetachedCommandRunsOn(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	stop := serve(t, p, &Server{})
	file := filepath.Join(t.TempDir(), "pid")
	got, err := c.Exec(soon(t), ExecRequest{Argv: []string{"sh", "-c", "echo $$ > " + file + ".new; mv " + file + ".new " + file + "; exec sleep 1000"}, Detach: true})
	if err != nil || got.ExitCode != 0 {
		t.Fatalf("got %+v and %v, want a start", got, err)
	}
	pid := awaitFile(t, file)
	stop()
	n, _ := strconv.Atoi(pid)
	if err := syscall.Kill(n, 0); err != nil {
		t.Errorf("the command has ended with the agent: %v", err)
	}
	_ = syscall.Kill(n, syscall.SIGKILL)
	awaitEnd(t, pid)
}

func TestManyCallsShareTheStream(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	serve(t, p, &Server{})
	ctx := soon(t)
	var wait sync.WaitGroup
	for n := range 24 {
		wait.Go(func() {
			want := strings.Repeat(strconv.Itoa(n), 1000*n)
			got, err := c.Exec(ctx, ExecRequest{Argv: []string{"cat"}, Stdin: []byte(want)})
			if err != nil || string(got.Stdout) != want {
				t.Errorf("command %d: got %d bytes and %v, want %d bytes", n, len(got.Stdout), err, len(want))
			}
			if _, err := c.Ping(ctx); err != nil {
				t.Errorf("ping %d: %v", n, err)
			}
		})
	}
	wait.Wait()
}

func TestAgentAnswersTheNextHostAfterAHalfFrame(t *testing.T) {
	p := newPort(t)
	serve(t, p, &Server{Idle: time.Millisecond})
	frame := frameOf(t, `{"id":1,"op":"ping"}`)
	for n := range frame {
		host := p.attach()
		if _, err := host.Write(frame[:n]); err != nil {
			t.Fatal(err)
		}
		_ = host.Close()
	}
	if _, err := client(t, p).Ping(soon(t)); err != nil {
		t.Errorf("after half frames of earlier hosts: %v", err)
	}
}

func TestHostPassesOverWhatAnEarlierAgentLeft(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	answer := frameOf(t, `{"id":1,"body":{}}`)
	for _, left := range [][]byte{answer[:20], []byte("\x1e00300000deadbeef{"), answer, frameOf(t, `{"id":2,"op":"exec"}`), frameOf(t, `[]`)} {
		if _, err := p.Write(left); err != nil {
			t.Fatal(err)
		}
	}
	serve(t, p, &Server{})
	if _, err := c.Ping(soon(t)); err != nil {
		t.Error(err)
	}
}

func TestAnswersForAnEarlierHostReachNoOne(t *testing.T) {
	p := newPort(t)
	serve(t, p, &Server{Idle: time.Millisecond})
	dir := t.TempDir()
	first := Attach(p.attach())
	go func() {
		_, _ = first.Exec(context.Background(), ExecRequest{Argv: []string{"sh", "-c", "touch " + dir + "/on; while [ ! -e " + dir + "/go ]; do sleep 0.01; done; echo first"}})
	}()
	awaitFile(t, dir+"/on")
	_ = first.Close()
	c := client(t, p)
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		got, err := c.Exec(soon(t), ExecRequest{Argv: []string{"echo", "second"}})
		if err != nil || string(got.Stdout) != "second\n" {
			t.Fatalf("got %q and %v, want the second host's own answer", got.Stdout, err)
		}
	}
}

func TestCallsEndWhenTheStreamDoes(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Ping(context.Background())
		ended <- err
	}()
	_ = p.host.Close()
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	<-c.Done()
	if _, err := c.Exec(soon(t), ExecRequest{Argv: []string{"true"}}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v afterwards, want ErrClosed", err)
	}
}

func TestGuestThatNeverReadsBlocksNoCaller(t *testing.T) {
	c := client(t, newPort(t))
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		if _, err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		cancel()
	}
}

func TestPoweroffIsTheAgentsToRefuse(t *testing.T) {
	p := newPort(t)
	c := client(t, p)
	off := make(chan struct{}, 1)
	serve(t, p, &Server{Poweroff: func() error { off <- struct{}{}; return nil }})
	if err := c.Poweroff(soon(t)); err != nil {
		t.Error(err)
	}
	<-off

	p = newPort(t)
	c = client(t, p)
	serve(t, p, &Server{})
	if err := c.Poweroff(soon(t)); err == nil || !strings.Contains(err.Error(), "may not power") {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := c.call(soon(t), "dance", nil, nil); err == nil || !strings.Contains(err.Error(), "update fluxvm-guest") {
		t.Errorf("got %v, want what to change", err)
	}
}

// awaitFile waits for the file and returns its trimmed text.
func awaitFile(t *testing.T, path string) string {
	t.Helper()
	var raw []byte
	await(t, path+" to appear", func() (ok bool) {
		var err error
		raw, err = os.ReadFile(path)
		return err == nil
	})
	return strings.TrimSpace(string(raw))
}

// awaitEnd waits until the process is gone or a zombie that someone else has to reap.
func awaitEnd(t *testing.T, pid string) {
	t.Helper()
	await(t, "process "+pid+" to end", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx := soon(t); !ok(); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
