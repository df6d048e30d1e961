package vz

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	// openWithin is how long a helper may take to answer. A big saved state takes its time to come in.
	openWithin = 5 * time.Minute

	// adoptWithin is how long a helper that an earlier daemon started may take until it listens.
	adoptWithin = 60 * time.Second
)

// Config is what the driver is made of.
type Config struct {
	// Helper is the command line of the helper: a program and arguments. It must come to RunHelper in the directory and
	// with the files with which it is started.
	Helper []string

	Limits Limits       // of guests on this host
	Leases string       // file in which the Mac's NAT notes the addresses it gave; "": the Mac's own
	Logger hclog.Logger // nil: silent
}

// Driver runs VMs on a Mac. Its methods are as machine.Driver says.
type Driver struct {
	cfg Config
	log hclog.Logger
}

// New checks the configuration.
func New(cfg Config) (*Driver, error) {
	if len(cfg.Helper) == 0 {
		return nil, errors.New("the vz backend needs the command line of its helper")
	}
	if cfg.Limits.MaxVCPUs < 1 || cfg.Limits.MaxMemoryMiB < 1 {
		return nil, errors.New("the limits of guests on this host are not known")
	}
	if cfg.Leases == "" {
		cfg.Leases = "/var/db/dhcpd_leases"
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Driver{cfg: cfg, log: log.Named(api.BackendVZ)}, nil
}

// Name is vz.
func (d *Driver) Name() string { return api.BackendVZ }

// Features are the same on every Mac. What the balloon takes of a guest does not go back to the Mac: macOS goes on
// counting the pages as the guest's. So nothing is ever reclaimed by it.
func (d *Driver) Features() machine.Features {
	return machine.Features{MacOS: true, Agent: true, Pause: true, Balloon: true, Survives: true}
}

// Start boots the machine. A helper that an earlier daemon left in dir is ended first.
func (d *Driver) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.start(ctx, spec, dir, "")
	if err != nil {
		return nil, fmt.Errorf("starting a VM: %w", explained(err))
	}
	return m, nil
}

func (d *Driver) start(ctx context.Context, spec machine.Spec, dir, restore string) (*vm, error) {
	img, err := openImage(spec.Image)
	if err != nil {
		return nil, err
	}
	if err := clearOld(dir); err != nil {
		return nil, err
	}
	if err := prepare(spec, img, dir); err != nil {
		return nil, err
	}
	p := planOf(spec, img)
	p.Restore = restore
	if err := writeFile(at(dir, planFile), p); err != nil {
		return nil, fmt.Errorf("writing the plan: %w", err)
	}
	pid, err := d.launch(ctx, dir)
	if err != nil {
		if said := process.LastLine(process.Tail(at(dir, logFile), logTail)); said != "" {
			return nil, fmt.Errorf("%w; the helper said: %s", err, said)
		}
		return nil, err
	}
	m, err := d.attach(ctx, spec, dir, pid)
	if err != nil {
		return nil, errors.Join(err, endHelper(dir))
	}
	return m, nil
}

// launch starts the helper in a session of its own and waits until its guest runs, or leaves nothing behind.
func (d *Driver) launch(ctx context.Context, dir string) (pid int, err error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	lock, err := holdForHelper(dir)
	if err != nil {
		return 0, err
	}
	defer lock.Close() // the helper has its own hold of it
	log, err := os.OpenFile(at(dir, logFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	out, in, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer out.Close()
	cmd := exec.Command(d.cfg.Helper[0], d.cfg.Helper[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = dir, log, log, []*os.File{readyFD - 3: in, lockFD - 3: lock}
	cmd.Env = append(helperEnv(), "PWD="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		return 0, fmt.Errorf("running the helper: %w", err)
	}
	if err := awaitReady(ctx, out); err != nil {
		return 0, errors.Join(err, ignoreDone(cmd.Process.Kill()), reaped(cmd))
	}
	// Nobody waits for it through cmd: whoever watches the machine reaps it. Release forgets the id, so it is read first.
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release()
}

func ignoreDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// reaped waits for a helper that was killed. How it ended says nothing.
func reaped(cmd *exec.Cmd) error {
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return err
	}
	return nil
}

// helperEnv is what a helper gets of the daemon's environment: none of its secrets.
func helperEnv() (env []string) {
	for _, name := range []string{"HOME", "PATH", "TMPDIR", "USER", "LANG", "LC_ALL"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// Adopt takes over a VM that an earlier daemon started.
func (d *Driver) Adopt(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.adopt(ctx, spec, dir)
	if err != nil && !errors.Is(err, machine.ErrGone) {
		err = fmt.Errorf("adopting a VM: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (d *Driver) adopt(ctx context.Context, spec machine.Spec, dir string) (*vm, error) {
	ctx, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	for {
		lives, err := helperLives(dir)
		if err != nil {
			return nil, err
		}
		if !lives {
			return nil, machine.ErrGone
		}
		m, err := d.attach(ctx, spec, dir, helperPID(dir))
		if err == nil {
			return m, nil
		}
		if !pause(ctx, 50*time.Millisecond) { // it does not listen before its guest runs
			return nil, err
		}
	}
}

// Remove ends what may be left of the machine. There is nothing of it outside dir but its helper.
func (d *Driver) Remove(_ machine.Spec, dir string) error {
	if err := clearOld(dir); err != nil {
		return fmt.Errorf("removing a VM: %w", err)
	}
	return nil
}

// clearOld ends a helper that was left behind and takes away what the next one makes anew.
func clearOld(dir string) error {
	if err := endHelper(dir); err != nil {
		return err
	}
	for _, name := range []string{socketFile, endFile, logFile, consoleFile, planFile} {
		if err := os.Remove(at(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readEnd is what a helper wrote of its guest's end; false if it wrote nothing.
func readEnd(dir string) (a answer, ok bool) {
	raw, err := os.ReadFile(filepath.Join(dir, endFile))
	if err != nil {
		return answer{}, false
	}
	err = readLine(strings.NewReader(string(raw)+"\n"), &a)
	return a, err == nil && a.Ended
}
