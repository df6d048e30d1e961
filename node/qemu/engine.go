//go:build linux

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	// ownMemoryMiB and ownThreads are what QEMU may use for itself. It uses a quarter of that.
	ownMemoryMiB = 512
	ownThreads   = 256

	// endsSoon is how long a process may take to end whose monitor answers no more.
	endsSoon = time.Second
)

// Config is what an operator may set. The zero value is right on most hosts.
type Config struct {
	Binary         string       // QEMU's program, a name on PATH or a path; "": qemu-system-x86_64
	Accel          string       // kvm or tcg; "": KVM where a guest has proved that it works, else tcg
	TranslationMiB int          // under tcg, the cache of translated code of each VM in MiB; 0: 32
	OpenNetwork    bool         // guests with a network may reach the host and beyond it; false: forwarded ports only
	Logger         hclog.Logger // nil: silent
}

// Engine is what both drivers share: QEMU on this host, how it runs guests and what confines it.
type Engine struct {
	cfg Config
	log hclog.Logger

	mu   sync.Mutex
	host *host // nil until a guest is first needed; an error is not kept
}

// New checks the configuration. It does not look at the host: Ready does, or the first start.
func New(cfg Config) (*Engine, error) {
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
	return &Engine{cfg: cfg, log: log.Named("qemu")}, nil
}

// Ready says why no VM could run on this host, nil when one can. The first call proves the accelerator, which
// takes up to about ten seconds where KVM hangs.
func (e *Engine) Ready(ctx context.Context) error {
	_, err := e.inspected(ctx)
	return err
}

func (e *Engine) inspected(ctx context.Context) (host, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.host != nil {
		return *e.host, nil
	}
	h, why, err := inspect(ctx, e.cfg)
	if err != nil {
		return host{}, err
	}
	e.log.Info("QEMU is ready", "accel", h.accel, "because", why, "qemu", h.binary, "syscall_filter", h.filter, "own_user", h.drop != "",
		"own_disks_only", h.drop != "" && !e.cfg.OpenNetwork, "control_groups", h.groups.String())
	e.host = &h
	return h, nil
}

// Confinement is what holds each QEMU.
func (e *Engine) Confinement() (words []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.host
	if h == nil {
		return nil
	}
	if h.drop != "" {
		words = append(words, api.ConfinedByUser, api.ConfinedByCapabilities)
	}
	if h.drop != "" && !e.cfg.OpenNetwork {
		words = append(words, api.ConfinedByFiles)
	}
	if h.filter {
		words = append(words, api.ConfinedByFilter)
	}
	return append(words, h.groups.Confinement(process.Memory, process.PIDs)...)
}

// boot starts QEMU and attaches to it, or leaves nothing behind.
func (e *Engine) boot(ctx context.Context, h host, args []string, spec machine.Spec, dir string, feed func(context.Context, *qmp) error) (*vm, error) {
	if err := h.handOver(spec.ID, dir); err != nil {
		return nil, err
	}
	group, err := h.groups.Make(spec.ID, limits(spec), filepath.Join(dir, groupFile))
	if err != nil {
		return nil, err
	}
	proc, err := launch(h.binary, args, dir, feed != nil)
	if err != nil {
		return nil, errors.Join(err, group.Remove(filepath.Join(dir, groupFile)))
	}
	var m *vm
	if err = group.Add(proc.PID); err == nil {
		m, err = e.attach(ctx, spec, dir, proc, feed)
	}
	if err != nil {
		_ = proc.Kill()
		proc.EndsWithin(killWithin)
		how := proc.Collect()
		proc.Close()
		err = errors.Join(err, group.Remove(filepath.Join(dir, groupFile)))
		if said := process.LastLine(process.Tail(filepath.Join(dir, logFile), logTail)); said != "" {
			return nil, fmt.Errorf("%w; QEMU %s: %s", err, how, said)
		}
		return nil, err
	}
	return m, nil
}

// limits are what QEMU may take of the host beside its guest's memory: its own, threads for the guest's processors and
// for input and output.
func limits(spec machine.Spec) process.Limits {
	return process.Limits{MemoryMiB: spec.MemoryMiB + ownMemoryMiB, Processes: ownThreads + 2*max(1, spec.VCPUs)}
}

// adopt takes over a VM that an earlier daemon started.
func (e *Engine) adopt(ctx context.Context, spec machine.Spec, dir string) (*vm, error) {
	proc, err := process.Find(markOf(spec.ID, dir))
	if err != nil {
		return nil, fmt.Errorf("adopting a VM: %w", err)
	}
	if proc == nil {
		return nil, machine.ErrGone
	}
	m, err := e.attach(ctx, spec, dir, proc, nil)
	if err != nil {
		if proc.EndsWithin(endsSoon) { // its monitor had gone before it
			err = machine.ErrGone
		} else {
			err = fmt.Errorf("adopting a VM: %w", err)
		}
		proc.Close()
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

// Remove ends what may be left of the machine. There is nothing of it outside dir but its process and control group.
func (e *Engine) Remove(spec machine.Spec, dir string) error {
	if err := e.clear(spec, dir); err != nil {
		return fmt.Errorf("removing a VM: %w", err)
	}
	return nil
}

// clear ends a leftover process and takes away what the next one makes anew.
func (e *Engine) clear(spec machine.Spec, dir string) error {
	proc, err := process.Find(markOf(spec.ID, dir))
	if err != nil {
		return err
	}
	if proc != nil {
		defer proc.Close()
		e.log.Warn("ending a QEMU that was left behind", "vm", spec.ID, "pid", proc.PID)
		if err := proc.End(); err != nil {
			return err
		}
	}
	if group, err := process.OpenGroup(filepath.Join(dir, groupFile)); err == nil {
		if err := group.Remove(filepath.Join(dir, groupFile)); err != nil {
			return err
		}
	}
	for _, name := range []string{pidFile, logFile, monitorSocket, agentSocket, consoleFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// markOf is how the machine's QEMU is told from all other processes.
func markOf(id, dir string) process.Mark {
	return process.Mark{Note: filepath.Join(dir, pidFile), Log: filepath.Join(dir, logFile), Ours: func(pid int) bool {
		return process.HasArgument(pid, "-uuid", id) && process.WorksIn(pid, dir)
	}}
}

// handOver gives the machine's user its disks, which QEMU opens anew at times. It cannot see what else is in the
// directory, nor change that.
func (h host) handOver(id, dir string) error {
	if h.drop == "" {
		return nil
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return fmt.Errorf("handing the disks over: %w", err)
	}
	user := process.UserOf(id)
	names, err := os.ReadDir(dir)
	for _, n := range names {
		if filepath.Ext(n.Name()) == filepath.Ext(overlayFile) || n.Name() == diskFile {
			err = errors.Join(err, os.Lchown(filepath.Join(dir, n.Name()), user, user))
		}
	}
	if err != nil {
		return fmt.Errorf("handing the disks over: %w", err)
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

// launch starts QEMU and notes which process it is. With masked it may not make holes in files: see maskHoles.
func launch(binary string, args []string, dir string, masked bool) (*process.Process, error) {
	log, err := os.OpenFile(filepath.Join(dir, logFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening QEMU's log: %w", err)
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} // and none of the daemon's secrets
	var start func() error
	if masked {
		start = func() error { return startMasked(cmd) }
	}
	p, err := process.Launch(cmd, start, filepath.Join(dir, pidFile))
	if err != nil {
		return nil, fmt.Errorf("running QEMU: %w", err)
	}
	return p, nil
}
