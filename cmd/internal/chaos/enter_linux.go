package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// why a machine cannot make campaigns; nil if it can.
func unable() error {
	for _, program := range []string{"unshare", "nsenter", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing (Debian: apt-get install util-linux iproute2)", program)
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("namespaces and small disks need root")
	}
	if out, err := exec.Command("unshare", apart("true")...).CombinedOutput(); err != nil {
		return fmt.Errorf("this machine gives no namespaces: %w: %s", err, out)
	}
	return nil
}

// apart are unshare's arguments for a program that is the first process of namespaces of its own: with it everything
// ends that it started, mounted or connected, however it ends itself.
func apart(program string, args ...string) []string {
	return append([]string{"--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", program}, args...)
}

// enter runs a program apart. When ctx ends it is asked to end and given the time to heal and to check.
func enter(ctx context.Context, out io.Writer, env []string, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, "unshare", apart(program, args...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) } // unshare itself takes no notice of it
	cmd.WaitDelay = 10 * time.Minute
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the campaign: %w", err)
	}
	return nil
}
