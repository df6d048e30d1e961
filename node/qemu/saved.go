//go:build linux

package qemu

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
)

const (
	ramFile   = "ram"   // of a saved state: the guest's memory
	stateFile = "state" // and all the rest of it

	// stateHandle is the name under which QEMU is handed what a state goes to or comes from.
	stateHandle = "state"

	// ignoreShared leaves memory that is in a file out of a saved state: it is in the file.
	ignoreShared = "x-ignore-shared"

	// fullSpeed is how fast a state may go from one QEMU to another, in bytes a second; QEMU's own limit is low.
	fullSpeed = 1 << 40

	statusPoll = 5 * time.Millisecond
)

// EagerRestoreEnv makes machines read all of a saved state at their start instead of when they need it. It is what
// density is measured against.
const EagerRestoreEnv = "FLUXVM_KVM_EAGER_RESTORE"

func runStatus(ctx context.Context, monitor *qmp) (string, error) {
	var status struct{ Status string }
	err := monitor.execute(ctx, "query-status", nil, &status)
	return status.Status, err
}

// Save writes the machine down. Its memory goes to a second QEMU whose memory is the file; that one then writes the
// state of the devices. So any machine can be saved, wherever its own memory lies, and the file is exact.
func (m *microVM) Save(ctx context.Context, to string, halt bool) (err error) {
	m.turning.Lock()
	defer m.turning.Unlock()
	scribe, err := m.driver.newScribe(ctx, m.spec, to)
	if err != nil {
		return fmt.Errorf("saving a VM: %w", err)
	}
	defer func() {
		if ended := scribe.end(); err == nil && ended != nil {
			err = fmt.Errorf("saving a VM: %w", ended)
		}
	}()
	if err := m.saveTo(ctx, scribe, to, halt); err != nil {
		return fmt.Errorf("saving a VM: %w", m.failed(err))
	}
	return scribe.write(ctx, to)
}

// saveTo halts the machine, hands its memory to the scribe and copies its disk.
func (m *microVM) saveTo(ctx context.Context, scribe *scribe, to string, halt bool) (err error) {
	m.mu.Lock()
	was := m.state
	m.mu.Unlock()
	status, err := runStatus(ctx, m.monitor)
	if err != nil {
		return err
	}
	if status == "postmigrate" || status == "finish-migrate" { // QEMU saves no machine twice that has not run in between
		if err := m.monitor.execute(ctx, "cont", nil, nil); err != nil {
			return err
		}
	}
	if err := m.turnNow(ctx, "stop", statePaused); err != nil {
		return err
	}
	if was == stateRunning && !halt {
		defer func() {
			// Whatever became of the copy, the original goes on.
			on, cancel := context.WithTimeout(context.WithoutCancel(ctx), qmpTimeout)
			defer cancel()
			err = errors.Join(err, m.turnNow(on, "cont", stateRunning))
		}()
	}
	if err := migrate(ctx, m.monitor, scribe.in, false); err != nil {
		return err
	}
	if err := awaitStatus(ctx, scribe.monitor, "paused"); err != nil {
		return err
	}
	if m.spec.DiskSizeGiB > 0 && !halt {
		return copyFile(filepath.Join(m.dir, diskFile), filepath.Join(to, diskFile))
	}
	return nil
}

// migrate sends the machine's state to the open file, or socket, and waits until it is there.
func migrate(ctx context.Context, monitor *qmp, to *os.File, skipShared bool) error {
	if err := skipMemory(ctx, monitor, skipShared); err != nil {
		return err
	}
	if err := monitor.execute(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(fullSpeed)}, nil); err != nil {
		return err
	}
	if err := monitor.hand(ctx, stateHandle, to); err != nil {
		return err
	}
	if err := monitor.execute(ctx, "migrate", map[string]any{"uri": "fd:" + stateHandle}, nil); err != nil {
		return err
	}
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	for {
		var m struct {
			Status string
			Why    string `json:"error-desc"`
		}
		if err := monitor.execute(ctx, "query-migrate", nil, &m); err != nil {
			return err
		}
		switch m.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("QEMU could not write the VM's state: %s", m.Why)
		}
		select {
		case <-ctx.Done():
			_ = monitor.execute(context.WithoutCancel(ctx), "migrate_cancel", nil, nil)
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func skipMemory(ctx context.Context, monitor *qmp, skip bool) error {
	return monitor.execute(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []map[string]any{{"capability": ignoreShared, "state": skip}}}, nil)
}

func awaitStatus(ctx context.Context, monitor *qmp, want string) error {
	tick := time.NewTicker(statusPoll)
	defer tick.Stop()
	for {
		status, err := runStatus(ctx, monitor)
		if err != nil {
			return err
		}
		if status == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("QEMU stays %s: %w", status, ctx.Err())
		case <-tick.C:
		}
	}
}

// receive makes QEMU take the state of a machine from the open file or socket.
func receive(ctx context.Context, monitor *qmp, from *os.File) error {
	if err := monitor.hand(ctx, stateHandle, from); err != nil {
		return err
	}
	return monitor.execute(ctx, "migrate-incoming", map[string]any{"uri": "fd:" + stateHandle}, nil)
}

// scribe is a QEMU that never runs its guest: what it is handed it writes to files.
type scribe struct {
	proc    *process.Process
	monitor *qmp
	in      *os.File // where it takes a machine's state from, the other end of the pair
	dir     string
}

func (d *FluxVM) newScribe(ctx context.Context, spec machine.Spec, dir string) (*scribe, error) {
	img, err := openImage(spec.Image)
	if err != nil {
		return nil, err
	}
	h, err := d.inspected(ctx)
	if err != nil {
		return nil, err
	}
	if spec.DiskSizeGiB > 0 {
		if err := makeDisk(filepath.Join(dir, diskFile), spec.DiskSizeGiB); err != nil {
			return nil, err
		}
	}
	spec.Network = spec.Network.WithoutForwards() // they are the original's
	if err := h.handOver(spec.ID, dir); err != nil {
		return nil, err
	}
	ours, its, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer its.Close()
	proc, err := launch(h.binary, d.arguments(h, img, spec, memory{file: ramFile, shared: true}), dir, false)
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	s := &scribe{proc: proc, in: ours, dir: dir}
	s.monitor, err = openMonitor(ctx, dir, proc, func(qmpEvent) {})
	if err == nil {
		err = receive(ctx, s.monitor, its)
	}
	if err != nil {
		return nil, errors.Join(err, s.end())
	}
	return s, nil
}

// socketPair are the two ends of a stream from one QEMU to another.
func socketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "out"), os.NewFile(uintptr(fds[1]), "in"), nil
}

// write keeps the state of the devices beside the memory.
func (s *scribe) write(ctx context.Context, dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, stateFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("saving a VM: %w", err)
	}
	if err := errors.Join(migrate(ctx, s.monitor, f, true), f.Close()); err != nil {
		return fmt.Errorf("saving a VM: %w", err)
	}
	return nil
}

// end leaves only the files of the saved state.
func (s *scribe) end() error {
	if s.monitor != nil {
		s.monitor.close()
	}
	err := errors.Join(s.in.Close(), s.proc.End())
	s.proc.Close()
	for _, name := range []string{pidFile, logFile, monitorSocket, agentSocket} {
		if gone := os.Remove(filepath.Join(s.dir, name)); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// Restore starts a machine from a saved state.
func (d *FluxVM) Restore(ctx context.Context, spec machine.Spec, dir, saved string) (machine.Machine, error) {
	m, err := d.restore(ctx, spec, dir, saved)
	if err != nil {
		return nil, fmt.Errorf("restoring a VM: %w", err)
	}
	return &microVM{m, d}, nil
}

func (d *FluxVM) restore(ctx context.Context, spec machine.Spec, dir, saved string) (*vm, error) {
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
	if err := os.Rename(filepath.Join(saved, diskFile), filepath.Join(dir, diskFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if spec.DiskSizeGiB > 0 {
		if err := makeDisk(filepath.Join(dir, diskFile), spec.DiskSizeGiB); err != nil {
			return nil, err
		}
	}
	ram, err := filepath.Rel(dir, filepath.Join(saved, ramFile))
	if err != nil {
		return nil, err
	}
	mem := memory{file: ram, eager: os.Getenv(EagerRestoreEnv) == "1"}
	m, err := d.boot(ctx, h, d.arguments(h, img, spec, mem), spec, dir, func(ctx context.Context, monitor *qmp) error {
		return feed(ctx, monitor, filepath.Join(saved, stateFile))
	})
	if err != nil {
		return nil, err
	}
	// A launch begins with the balloon deflated, whatever the original's was.
	if err := m.SetBalloon(ctx, 0); err != nil {
		return nil, errors.Join(err, m.Stop(ctx, true))
	}
	return m, nil
}

// feed hands the saved state of the devices to a QEMU that waits for it, and lets the guest go on.
func feed(ctx context.Context, monitor *qmp, state string) error {
	f, err := os.Open(state)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := skipMemory(ctx, monitor, true); err != nil {
		return err
	}
	if err := receive(ctx, monitor, f); err != nil {
		return err
	}
	if err := awaitStatus(ctx, monitor, "paused"); err != nil {
		return err
	}
	return monitor.execute(ctx, "cont", nil, nil)
}

// CopySaved shares the memory, which nobody writes any more, and copies the rest.
func (d *FluxVM) CopySaved(from, to string) error {
	err := os.Link(filepath.Join(from, ramFile), filepath.Join(to, ramFile))
	if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EMLINK) || errors.Is(err, unix.EPERM) {
		err = copyFile(filepath.Join(from, ramFile), filepath.Join(to, ramFile))
	}
	if err == nil {
		err = copyFile(filepath.Join(from, stateFile), filepath.Join(to, stateFile))
	}
	if err == nil {
		if err = copyFile(filepath.Join(from, diskFile), filepath.Join(to, diskFile)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("copying a saved VM: %w", err)
	}
	return nil
}

// copyFile copies a file and keeps its holes, sharing blocks where the file system can.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = out.Truncate(info.Size())
	if err == nil && unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		err = copyData(out, in, info.Size())
	}
	return errors.Join(err, out.Close())
}

func copyData(out, in *os.File, size int64) error {
	for at := int64(0); at < size; {
		data, err := unix.Seek(int(in.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // the rest is a hole
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(in.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.NewOffsetWriter(out, data), io.NewSectionReader(in, data, hole-data)); err != nil {
			return err
		}
		at = hole
	}
	return nil
}

// Template is what a guest can tell of its machine right after the boot: the image's files, the size, the devices,
// and what runs it.
func (d *FluxVM) Template(spec machine.Spec) string {
	img, err := openImage(spec.Image)
	if err != nil {
		return ""
	}
	d.mu.Lock()
	h := d.host
	d.mu.Unlock()
	if h == nil {
		return ""
	}
	sum := sha256.New()
	for _, path := range []string{h.binary, img.kernel, img.initrd} {
		info, err := os.Stat(path)
		if err != nil {
			return ""
		}
		fmt.Fprintf(sum, "%s %d %d\n", path, info.Size(), info.ModTime().UnixNano())
	}
	fmt.Fprintf(sum, "%q %s %d %d %d %d %t %t", img.cmdline, h.accel, d.cfg.TranslationMiB, max(1, spec.VCPUs), spec.MemoryMiB, spec.DiskSizeGiB,
		d.network(spec) != "", d.cfg.OpenNetwork)
	return hex.EncodeToString(sum.Sum(nil)[:12])
}
