//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// Config is what an operator may set. The zero value is right on most hosts.
type Config struct {
	Binary         string       // QEMU's program, a name on PATH or a path; "": qemu-system-x86_64
	Accel          string       // kvm or tcg; "": KVM where a guest has proved that it works, else tcg
	TranslationMiB int          // under tcg, the cache of translated code of each VM in MiB; 0: 32
	OpenNetwork    bool         // guests with a network may reach the host and beyond it; false: forwarded ports only
	Logger         hclog.Logger // nil: silent
}

// Driver runs micro-VMs. Its methods are as machine.Driver says.
type Driver struct {
	cfg Config
	log hclog.Logger

	mu   sync.Mutex
	host *host // nil until a guest is first needed; an error is not kept
}

// New checks the configuration. It does not look at the host: Ready does, or the first start.
func New(cfg Config) (*Driver, error) {
	if cfg.Accel != "" && cfg.Accel != accelKVM && cfg.Accel != accelTCG {
		return nil, fmt.Errorf("accelerator %q is unknown; use kvm, tcg, or leave it out", cfg.Accel)
	}
	if cfg.TranslationMiB < 0 {
		return nil, fmt.Errorf("translation cache of %d MiB: it must be positive, or 0 for 32", cfg.TranslationMiB)
	}
	if cfg.Binary == "" {
		cfg.Binary = "qemu-system-x86_64"
	}
	if cfg.TranslationMiB == 0 {
		cfg.TranslationMiB = 32
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Driver{cfg: cfg, log: log.Named(api.BackendFluxVM)}, nil
}

// Name is flux-vm.
func (d *Driver) Name() string { return api.BackendFluxVM }

// Features are the same on every host.
func (d *Driver) Features() machine.Features {
	return machine.Features{Agent: true, Pause: true, Balloon: true, BalloonReclaims: true, Survives: true}
}

// Ready says why no VM could run on this host, nil when one can. The first call proves the accelerator, which
// takes up to about ten seconds where KVM hangs.
func (d *Driver) Ready(ctx context.Context) error {
	_, err := d.inspected(ctx)
	return err
}

func (d *Driver) inspected(ctx context.Context) (host, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.host != nil {
		return *d.host, nil
	}
	h, why, err := inspect(ctx, d.cfg)
	if err != nil {
		return host{}, err
	}
	d.log.Info("accelerator chosen", "accel", h.accel, "because", why, "qemu", h.binary, "syscall_filter", h.sandbox)
	d.host = &h
	return h, nil
}

// Start boots the machine. A QEMU that an earlier daemon left in dir without noting it is ended first.
func (d *Driver) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	m, err := d.start(ctx, spec, dir)
	if err != nil {
		return nil, fmt.Errorf("starting a VM: %w", err)
	}
	return m, nil
}

func (d *Driver) start(ctx context.Context, spec machine.Spec, dir string) (*vm, error) {
	img, err := openImage(spec.Image)
	if err != nil {
		return nil, err
	}
	h, err := d.inspected(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.clear(spec, dir); err != nil {
		return nil, err
	}
	if spec.DiskSizeGiB > 0 {
		if err := makeDisk(filepath.Join(dir, diskFile), spec.DiskSizeGiB); err != nil {
			return nil, err
		}
	}
	return d.boot(ctx, h, arguments(h, d.cfg, img, spec, memory{}), spec, dir, nil)
}

// boot starts QEMU and attaches to it, or leaves nothing behind.
func (d *Driver) boot(ctx context.Context, h host, args []string, spec machine.Spec, dir string, feed func(context.Context, *qmp) error) (*vm, error) {
	proc, err := launch(h.binary, args, dir, feed != nil)
	if err != nil {
		return nil, err
	}
	m, err := d.attach(ctx, spec, dir, proc, feed)
	if err != nil {
		_ = proc.kill()
		endWithin(proc, killWithin)
		how := proc.collect()
		proc.close()
		if said := lastLine(tail(filepath.Join(dir, logFile), logTail)); said != "" {
			return nil, fmt.Errorf("%w; QEMU %s: %s", err, how, said)
		}
		return nil, err
	}
	return m, nil
}

// Adopt takes over a VM that an earlier daemon started.
func (d *Driver) Adopt(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	proc, err := findProcess(dir, spec.ID)
	if err != nil {
		return nil, fmt.Errorf("adopting a VM: %w", err)
	}
	if proc == nil {
		return nil, machine.ErrGone
	}
	m, err := d.attach(ctx, spec, dir, proc, nil)
	if err != nil {
		select {
		case <-proc.ended:
			err = machine.ErrGone
		default:
			err = fmt.Errorf("adopting a VM: %w", err)
		}
		proc.close()
		return nil, err
	}
	if m.hasEnded() { // while no daemon ran; what the guest last said is kept, and QEMU goes
		if err := m.Stop(ctx, true); err != nil {
			return nil, fmt.Errorf("adopting a VM whose guest has ended: %w", err)
		}
		return nil, machine.ErrGone
	}
	return m, nil
}

// Remove ends what may be left of the machine. There is nothing of it outside dir but its process.
func (d *Driver) Remove(spec machine.Spec, dir string) error {
	if err := d.clear(spec, dir); err != nil {
		return fmt.Errorf("removing a VM: %w", err)
	}
	return nil
}

// clear ends a leftover process and takes away what the next one makes anew.
func (d *Driver) clear(spec machine.Spec, dir string) error {
	proc, err := findProcess(dir, spec.ID)
	if err != nil {
		return err
	}
	if proc != nil {
		defer proc.close()
		d.log.Warn("ending a QEMU that was left behind", "vm", spec.ID, "pid", proc.pid)
		if err := proc.kill(); err != nil {
			return err
		}
		if !endWithin(proc, killWithin) {
			return fmt.Errorf("process %d of an earlier start does not end", proc.pid)
		}
		_ = proc.collect()
	}
	for _, name := range []string{pidFile, logFile, monitorSocket, agentSocket, incomingSocket, consoleFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// makeDisk makes a sparse disk, or keeps the one that is there from an earlier start.
func makeDisk(path string, sizeGiB int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("making the disk: %w", err)
	}
	if err := errors.Join(f.Truncate(sizeGiB<<30), f.Close()); err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("making the disk: %w", err)
	}
	return nil
}

// launch starts QEMU in a session of its own and notes which process it is. With masked it may not make holes in
// files: see maskHoles.
func launch(binary string, args []string, dir string, masked bool) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening QEMU's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} // and none of the daemon's secrets
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	start := cmd.Start
	if masked {
		start = func() error { return startMasked(cmd) }
	}
	if err := start(); err != nil {
		return nil, fmt.Errorf("running QEMU: %w", err)
	}
	// Nobody waits for it through cmd: process.collect reaps it, whichever daemon started it.
	pid := cmd.Process.Pid
	proc, err := openProcess(pid)
	if err != nil {
		err = errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		return nil, err
	}
	_ = cmd.Process.Release()
	who, err := identify(pid)
	if err == nil {
		err = who.write(filepath.Join(dir, pidFile))
	}
	if err != nil {
		_ = proc.kill()
		endWithin(proc, killWithin)
		_ = proc.collect()
		proc.close()
		return nil, err
	}
	return proc, nil
}

// endWithin waits for the process to end.
func endWithin(p *process, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-p.ended:
		return true
	case <-timer.C:
		return false
	}
}

// tail is the end of the file, at most limit bytes; empty when it cannot be read.
func tail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	raw, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-limit), limit))
	if err != nil {
		return ""
	}
	return string(raw)
}
