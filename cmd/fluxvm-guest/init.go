//go:build linux

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

const (
	agentArg = "agent"
	initEnv  = "FLUXVM_INIT" // set for the agent that our init started

	modulesDir  = "/lib/modules"
	modulesList = "fluxvm.list"

	// killAfter is how long processes have to end by themselves at shutdown.
	killAfter = 2 * time.Second

	// agentAgain keeps an agent that dies at once from using up the processor.
	agentAgain = 500 * time.Millisecond
)

var errNoChild = errors.New("no child is left")

// runInit is process 1. It never returns: the kernel would panic.
func runInit() {
	for _, err := range []error{mountAll(), setEnvironment(), loadModules(), setHostname(), startNetwork()} {
		// A guest that is half set up can still say what is wrong with it, so nothing here is fatal.
		if err != nil {
			complain(err)
		}
	}
	supervise(turnOff)
}

// supervise keeps the agent running and reaps what dies, until it is told to shut down. It never returns.
func supervise(off func()) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2)
	agent := startAgent()
	var again <-chan time.Time
	for {
		select {
		case sig := <-signals:
			if sig != syscall.SIGCHLD {
				shutDown(off)
			}
			for pid, err := reap(); err == nil && pid > 0; pid, err = reap() {
				if pid == agent {
					complain(errors.New("the agent has ended; starting it again"))
					agent, again = 0, time.After(agentAgain)
				}
			}
		case <-again:
			agent, again = startAgent(), nil
		}
	}
}

func complain(err error) {
	if info, failed := os.Stderr.Stat(); failed == nil && info.Mode().IsRegular() && info.Size() > consoleKeep {
		_ = os.Stderr.Truncate(0) // a box's log is a file of the host's
	}
	fmt.Fprintln(os.Stderr, "fluxvm-guest:", err)
}

func mountAll() error {
	mounts := []struct {
		kind, at, options string
		flags             uintptr
	}{
		{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID},
		{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"devpts", "/dev/pts", "mode=0620,ptmxmode=0666", unix.MS_NOSUID | unix.MS_NOEXEC},
		{"tmpfs", "/dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "/tmp", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
	}
	var errs []error
	for _, m := range mounts {
		err := os.MkdirAll(m.at, 0o755)
		if err == nil {
			err = unix.Mount(m.kind, m.at, m.kind, m.flags, m.options)
		}
		if err != nil && !errors.Is(err, unix.EBUSY) { // the kernel may have mounted /dev already
			errs = append(errs, fmt.Errorf("mounting %s: %w", m.at, err))
		}
	}
	return errors.Join(errs...)
}

func setEnvironment() error {
	var errs []error
	for k, v := range map[string]string{"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", initEnv: "1"} {
		errs = append(errs, os.Setenv(k, v))
	}
	return errors.Join(errs...)
}

// loadModules loads what the image lists, in that order: nothing here resolves dependencies.
func loadModules() error {
	list, err := os.Open(filepath.Join(modulesDir, modulesList))
	if errors.Is(err, os.ErrNotExist) {
		return nil // the kernel has all it needs built in
	}
	if err != nil {
		return fmt.Errorf("reading the list of modules: %w", err)
	}
	defer list.Close()
	var errs []error
	lines := bufio.NewScanner(list)
	for lines.Scan() {
		if name := strings.TrimSpace(lines.Text()); name != "" {
			errs = append(errs, loadModule(filepath.Join(modulesDir, name)))
		}
	}
	return errors.Join(append(errs, lines.Err())...)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("loading a module: %w", err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("loading module %s: %w", path, err)
	}
	return nil
}

func setHostname() error {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return fmt.Errorf("reading the kernel's command line: %w", err)
	}
	name := kernelArgument(string(line), "fluxvm.hostname")
	if name == "" {
		return nil
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("naming the host %q: %w", name, err)
	}
	return nil
}

// kernelArgument is the value of the last KEY=VALUE on the line, empty without one.
func kernelArgument(line, key string) string {
	value := ""
	for _, word := range strings.Fields(line) {
		if v, ok := strings.CutPrefix(word, key+"="); ok {
			value = v
		}
	}
	return value
}

// startNetwork brings up the loopback, and eth0 where there is one. DHCP goes on beside the boot.
func startNetwork() error {
	if err := linkUp("lo"); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/class/net/eth0"); err != nil {
		return nil
	}
	if err := linkUp("eth0"); err != nil {
		return err
	}
	if _, err := spawn([]string{"/bin/busybox", "udhcpc", "-i", "eth0", "-s", "/etc/udhcpc.script", "-q", "-f"}); err != nil {
		return fmt.Errorf("asking for an address: %w", err)
	}
	return nil
}

func linkUp(name string) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	defer unix.Close(socket)
	link, err := unix.NewIfreq(name)
	if err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	link.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, link); err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	return nil
}

func startAgent() int {
	files := []uintptr{0, 1, 2}
	if os.Getenv(boxEnv) != "" {
		files = append(files, guest.BoxPort)
	}
	pid, err := spawnWith([]string{"/proc/self/exe", agentArg}, files...)
	if err != nil {
		complain(fmt.Errorf("starting the agent: %w", err))
	}
	return pid
}

// spawn starts a program that reap will reap. It goes below os/exec, whose own waiting would race with that.
func spawn(argv []string) (int, error) {
	return spawnWith(argv, 0, 1, 2)
}

func spawnWith(argv []string, files ...uintptr) (int, error) {
	return syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{Env: os.Environ(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
}

// reap collects one dead child: its pid, 0 when all that are left live on, errNoChild when none is left.
func reap() (int, error) {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return 0, errNoChild
		default:
			return pid, err
		}
	}
}

// shutDown ends every process, writes what is in memory to the disks, and ends the machine with off.
func shutDown(off func()) {
	_ = syscall.Kill(-1, syscall.SIGTERM)
	_ = syscall.Kill(-1, syscall.SIGCONT) // a stopped process could not end
	for deadline := time.Now().Add(killAfter); time.Now().Before(deadline); {
		pid, err := reap()
		if errors.Is(err, errNoChild) {
			break
		}
		if pid == 0 {
			time.Sleep(5 * time.Millisecond)
		}
	}
	_ = syscall.Kill(-1, syscall.SIGKILL)
	off()
	for {
		time.Sleep(time.Hour) // the kernel panics when process 1 ends
	}
}

func turnOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		complain(fmt.Errorf("turning the machine off: %w", err))
	}
}
