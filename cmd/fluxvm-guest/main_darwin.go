package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

// On macOS the agent is a LaunchDaemon (examples/deploy/dev.fluxvm.guest.plist): launchd starts it at boot, as root and
// before anybody logs in, and again when it ends.

const usage = `fluxvm-guest: the agent inside a FluxVM guest

  fluxvm-guest        serve the host on vsock; launchd runs it as a LaunchDaemon
`

func main() {
	if len(os.Args) > 1 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	l, err := listenVsock(guest.VsockPort)
	if err == nil {
		err = serveVsock(ctx, l, server(owner{}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fluxvm-guest:", err)
		os.Exit(1)
	}
}

func poweroff() error { return run("/sbin/shutdown", "-h", "now") }

// run carries out one of macOS's own programs.
func run(argv ...string) error {
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("running %s: %w: %s", argv[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
