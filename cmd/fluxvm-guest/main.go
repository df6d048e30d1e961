//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

// usage is what a person sees who runs it by hand.
const usage = `fluxvm-guest: the agent inside a FluxVM guest

  fluxvm-guest        serve the host on the virtio-serial port ` + guest.PortName + ` and on vsock
  /init               the same program as process 1: set the guest up, then do so
`

func main() {
	switch {
	case os.Getpid() == 1 && len(os.Args) > 1 && os.Args[1] == guest.BoxArgument:
		runBox()
	case os.Getpid() == 1: // whatever the arguments: the kernel hands on words it does not know
		runInit()
	case len(os.Args) > 1 && os.Args[1] != agentArg:
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	default:
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		serving := serve
		if os.Getenv(boxEnv) != "" {
			serving = serveBox
		}
		if err := serving(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "fluxvm-guest:", err)
			os.Exit(1)
		}
	}
}

// serve answers the host until ctx ends: on the virtio-serial port, and on vsock where the kernel has it. Which of the two
// a host gives, only the host knows; a guest that has neither waits for the port, whose driver may still be loading.
func serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := server(owner{root: "/"})
	s.Idle = time.Millisecond // the port itself waits for a host
	var sockets sync.WaitGroup
	defer sockets.Wait()
	if l, err := listenVsock(guest.VsockPort); err == nil {
		sockets.Go(func() {
			if err := serveVsock(ctx, l, s); err != nil {
				complain(err)
			}
		})
		defer cancel() // before the wait
	}
	port, err := openPort(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer port.Close()
	stop := context.AfterFunc(ctx, func() { interrupt(port) })
	defer stop()
	return s.Serve(ctx, port)
}

// openPort waits for the host's port; its driver may still be loading.
func openPort(ctx context.Context) (*hostPort, error) {
	for tick := time.Millisecond; ; tick = min(2*tick, time.Second) {
		path, err := findPort("/sys/class/virtio-ports", "/dev")
		if err == nil {
			var port *hostPort
			if port, err = openHostPort(path); err == nil {
				return port, nil
			}
		}
		select {
		case <-time.After(tick):
		case <-ctx.Done():
			return nil, fmt.Errorf("opening the host's port: %w", err)
		}
	}
}

// findPort looks the port's device up by its name. The kernel knows it without udev's links.
func findPort(sys, dev string) (string, error) {
	ports, err := os.ReadDir(sys)
	if err != nil {
		return "", fmt.Errorf("the kernel shows no virtio-serial ports; load virtio_console: %w", err)
	}
	for _, p := range ports {
		name, err := os.ReadFile(filepath.Join(sys, p.Name(), "name"))
		if err == nil && strings.TrimSpace(string(name)) == guest.PortName {
			return filepath.Join(dev, p.Name()), nil
		}
	}
	return "", errors.New("no virtio-serial port is named " + guest.PortName)
}

// poweroff begins the shutdown: by our own init where it is, else by the guest's own program.
func poweroff() error {
	if os.Getenv(initEnv) != "" {
		return syscall.Kill(1, syscall.SIGTERM)
	}
	cmd := exec.Command("poweroff")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running poweroff: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
