//go:build linux

package procbox

import (
	"context"
	"encoding/json"
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
	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/node/machine"
	"github.com/fluxvm/fluxvm/node/process"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/guest"
)

// Names in a machine's directory.
const (
	pidFile     = "box.pid"
	groupFile   = "cgroup"
	agentSocket = "ga.sock"
	consoleFile = "console.log"
)

const (
	// hostImage is the image that is the host's own programs.
	hostImage = "host"

	leastMemoryMiB = 32

	// mostProcesses is how many processes and threads a box may have.
	mostProcesses = 2048

	// buildWithin is how long a box may take until it runs.
	buildWithin = 30 * time.Second

	agentProgram = "fluxvm-guest"
)

// Config is what an operator may set.
type Config struct {
	Agent  string       // fluxvm-guest; "": beside this program, else on PATH
	Logger hclog.Logger // nil: silent
}

// Driver runs boxes. Its methods are as machine.Driver says.
type Driver struct {
	cfg Config
	log hclog.Logger

	mu     sync.Mutex
	proved bool
	agent  string
	groups process.Groups
}

// New does not look at the host: Ready does, or the first start.
func New(cfg Config) *Driver {
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Driver{cfg: cfg, log: log.Named(api.BackendProcbox)}
}

// Name is procbox.
func (d *Driver) Name() string { return api.BackendProcbox }

// Features are the same on every host.
func (d *Driver) Features() machine.Features {
	return machine.Features{Agent: true, Pause: true, Survives: true}
}

// Ready says why no box could run on this host, nil when one can. The first call proves it with a box that ends at once.
func (d *Driver) Ready(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proved {
		return nil
	}
	agent, err := findAgent(d.cfg.Agent)
	if err != nil {
		return err
	}
	groups, err := process.FindGroups()
	if err != nil {
		return err
	}
	for _, c := range []string{process.Memory, process.Freezer} {
		if !groups.Has(c) {
			return fmt.Errorf("control groups cannot be made here (%s), so that nothing would bound a box: run the daemon as root, or under systemd with Delegate=yes", groups)
		}
	}
	if err := probe(ctx, agent); err != nil {
		return fmt.Errorf("trying a box: %w", err)
	}
	d.agent, d.groups, d.proved = agent, groups, true
	d.log.Info("boxes can run", "control_groups", groups.String(), "own_user", os.Geteuid() == 0, "agent", agent)
	return nil
}

// Confinement is what holds a box.
func (d *Driver) Confinement() (words []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.proved {
		return nil
	}
	if os.Geteuid() == 0 {
		words = append(words, api.ConfinedByUser)
	}
	words = append(words, api.ConfinedByCapabilities, api.ConfinedByFiles, api.ConfinedByNamespaces)
	return append(words, d.groups.Confinement(process.Memory, process.PIDs, process.CPU)...)
}

// findAgent is the path of fluxvm-guest.
func findAgent(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if self, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(self), agentProgram); isProgram(beside) {
			return beside, nil
		}
	}
	path, err := exec.LookPath(agentProgram)
	if err != nil {
		return "", fmt.Errorf("finding %s: it is neither beside this program nor on PATH; put it there (make build makes it)", agentProgram)
	}
	return filepath.Abs(path)
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// probe builds a box and lets it end.
func probe(ctx context.Context, agent string) error {
	dir, err := os.MkdirTemp("", "fluxvm-probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	proc, word, err := launch(agent, "probe", "", dir)
	if err != nil {
		return err
	}
	defer proc.Close()
	err = instruct(ctx, word, guest.Box{Hostname: "probe", MemoryMiB: leastMemoryMiB, Probe: true})
	if err != nil {
		return errors.Join(err, proc.End())
	}
	if !proc.EndsWithin(buildWithin) {
		return errors.Join(errors.New("it does not end"), proc.End())
	}
	_ = proc.Collect()
	return nil
}

// Check refuses, with the field's name, what a box cannot be.
func (d *Driver) Check(spec machine.Spec) error {
	n := spec.Network
	refused := []struct {
		field string
		asked bool
		do    string
	}{
		{"guest_os", spec.GuestOS != "" && spec.GuestOS != api.GuestLinux, "procbox runs linux guests only; macos needs the vz backend on a Mac"},
		{"apple", spec.Apple != nil, "procbox is no Mac; leave apple out"},
		{"cloud_init", spec.CloudInit != nil, "a box has no cloud-init; leave cloud_init out, or use backend qemu with a disk image"},
		{"networks", len(spec.Networks) > 0, "procbox joins no named networks; leave networks out"},
		{"network.mode", n != nil && n.Mode != "" && n.Mode != "none", "a box has a loopback of its own and no other network; leave network out, or use backend flux-vm or qemu"},
		{"network.forwards", n != nil && (len(n.Forwards) > 0 || n.Bridge != ""), "a box has no network that ports could be forwarded to; use backend flux-vm or qemu"},
		{"disk_size_gib", spec.DiskSizeGiB != 0, "a box has no disk: what it writes is in its memory; leave disk_size_gib out"},
		{"extra_disks", len(spec.ExtraDisks) > 0, "a box has no disks; leave extra_disks out"},
		{"security_profile", spec.SecurityProfile != "" && spec.SecurityProfile != "standard", "procbox has the security profile standard only"},
		{"balloon", spec.Balloon != nil, "a box has no balloon: what it frees is the host's at once; leave balloon out"},
		{"hugepages", spec.Hugepages, "procbox has no huge pages; leave hugepages out"},
		{"vfio_devices", len(spec.VFIODevices) > 0, "procbox passes no devices through; leave vfio_devices out"},
	}
	for _, r := range refused {
		if r.asked {
			return api.Invalid(r.field, "%s", r.do)
		}
	}
	if spec.MemoryMiB < leastMemoryMiB {
		return api.Invalid("memory_mib", "memory_mib must be at least %d for procbox", leastMemoryMiB)
	}
	return checkImage(spec.Image)
}

func checkImage(path string) error {
	if path == "" || path == hostImage {
		return nil
	}
	info, err := os.Stat(path)
	if !filepath.IsAbs(path) || err != nil || !info.IsDir() {
		return api.Invalid("image", "image %q is no procbox image: it must be %q (the host's programs, read-only; the default) or the absolute path of a directory with the root of a Linux system", path, hostImage)
	}
	return nil
}

// Start builds the box. One that an earlier daemon left in dir without noting it is ended first.
func (d *Driver) Start(ctx context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	b, err := d.start(ctx, spec, dir)
	if err != nil {
		return nil, fmt.Errorf("starting a box: %w", err)
	}
	return b, nil
}

func (d *Driver) start(ctx context.Context, spec machine.Spec, dir string) (_ *box, err error) {
	if err := d.Ready(ctx); err != nil {
		return nil, err
	}
	if err := checkImage(spec.Image); err != nil {
		return nil, err
	}
	if err := d.clear(spec, dir); err != nil {
		return nil, err
	}
	image := spec.Image
	if image == hostImage {
		image = ""
	}
	proc, word, err := launch(d.agent, spec.ID, image, dir)
	if err != nil {
		return nil, err
	}
	note := filepath.Join(dir, groupFile)
	group, err := d.groups.Make(spec.ID, process.Limits{MemoryMiB: spec.MemoryMiB, Processes: mostProcesses, VCPUs: max(1, spec.VCPUs)}, note)
	if err == nil {
		err = group.Add(proc.PID) // before it has read its first word
	}
	if err == nil {
		name := spec.Name
		if name == "" {
			name = spec.ID
		}
		err = instruct(ctx, word, guest.Box{Hostname: name, Image: image, MemoryMiB: spec.MemoryMiB})
	} else {
		_ = word.Close()
	}
	if err != nil {
		err = errors.Join(err, proc.End())
		if group != nil {
			err = errors.Join(err, group.Remove(note))
		}
		proc.Close()
		return nil, err
	}
	return d.attach(spec, dir, proc, group), nil
}

// launch starts process 1 in its namespaces. It waits for the word that instruct gives.
func launch(agent, id, image, dir string) (*process.Process, *os.File, error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	console, err := os.OpenFile(filepath.Join(dir, consoleFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the console: %w", err)
	}
	defer console.Close()
	program, err := os.Open(agent)
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", agentProgram, err)
	}
	files = append(files, program)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("making a pair of sockets: %w", err)
	}
	if err := unix.SetNonblock(pair[0], true); err != nil { // so that reading has deadlines
		return nil, nil, err
	}
	ours := os.NewFile(uintptr(pair[0]), "word")
	files = append(files, os.NewFile(uintptr(pair[1]), "word"))
	port, err := listen(dir)
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	files = append(files, port)
	if image != "" && os.Geteuid() == 0 { // the box's root may not be able to go where the image is
		fd, err := unix.OpenTree(unix.AT_FDCWD, image, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("opening the image: %w", err), ours.Close())
		}
		files = append(files, os.NewFile(uintptr(fd), "image"))
	}
	cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", guest.BoxProgram), guest.BoxArgument, "-uuid", id)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", []string{}, console, console, files
	cmd.SysProcAttr = namespaces(id)
	proc, err := process.Launch(cmd, nil, filepath.Join(dir, pidFile))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("making namespaces (the host must allow user namespaces): %w", err), ours.Close())
	}
	return proc, ours, nil
}

// namespaces are the box's own. Its root is a user of its own where the daemon has users to give.
func namespaces(id string) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWNET | unix.CLONE_NEWCGROUP,
		Credential: &syscall.Credential{},
	}
	user, group := os.Geteuid(), os.Getegid()
	if user == 0 {
		user = process.UserOf(id)
		group, attr.GidMappingsEnableSetgroups = user, true
	} else {
		attr.Credential.NoSetGroups = true // only root may give groups up
	}
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: group, Size: 1}}
	return attr
}

// listen makes the socket at which hosts reach the agent.
func listen(dir string) (*os.File, error) {
	l, err := process.ListenIn(dir, agentSocket)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// instruct tells process 1 what box it is, and returns when that has been built.
func instruct(ctx context.Context, word *os.File, b guest.Box) error {
	defer word.Close()
	ctx, cancel := context.WithTimeout(ctx, buildWithin)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = word.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := json.NewEncoder(word).Encode(b); err != nil {
		return errors.Join(fmt.Errorf("telling it what to be: %w", err), ctx.Err())
	}
	said, err := io.ReadAll(io.LimitReader(word, 4<<10))
	switch {
	case err != nil:
		return errors.Join(fmt.Errorf("waiting for it: %w", err), ctx.Err())
	case string(said) == guest.BoxReady:
		return nil
	case len(said) == 0:
		return errors.New("its first process has ended")
	}
	return errors.New(string(said))
}

// Adopt takes over a box that an earlier daemon started.
func (d *Driver) Adopt(_ context.Context, spec machine.Spec, dir string) (machine.Machine, error) {
	proc, err := process.Find(markOf(spec.ID, dir))
	if err != nil {
		return nil, fmt.Errorf("adopting a box: %w", err)
	}
	if proc == nil {
		return nil, machine.ErrGone
	}
	group, err := process.OpenGroup(filepath.Join(dir, groupFile))
	if err != nil {
		proc.Close()
		return nil, fmt.Errorf("adopting a box: %w", err)
	}
	return d.attach(spec, dir, proc, group), nil
}

// markOf is how the box's process 1 is told from all other processes. A box that lies about its own command line is
// still not process 1 of another one, whose number and start are noted.
func markOf(id, dir string) process.Mark {
	return process.Mark{Note: filepath.Join(dir, pidFile), Log: filepath.Join(dir, consoleFile), Ours: func(pid int) bool {
		return process.HasArgument(pid, "-uuid", id)
	}}
}

// Remove ends what may be left of the box.
func (d *Driver) Remove(spec machine.Spec, dir string) error {
	if err := d.clear(spec, dir); err != nil {
		return fmt.Errorf("removing a box: %w", err)
	}
	return nil
}

// clear ends a leftover box and takes away what the next one makes anew.
func (d *Driver) clear(spec machine.Spec, dir string) error {
	proc, err := process.Find(markOf(spec.ID, dir))
	if err != nil {
		return err
	}
	note := filepath.Join(dir, groupFile)
	group, noGroup := process.OpenGroup(note)
	if proc != nil {
		defer proc.Close()
		d.log.Warn("ending a box that was left behind", "vm", spec.ID, "pid", proc.PID)
		if err := proc.Kill(); err != nil {
			return err
		}
		if noGroup == nil {
			ctx, cancel := context.WithTimeout(context.Background(), buildWithin)
			defer cancel()
			_ = group.Freeze(ctx, false) // what is halted does not end
		}
		if err := proc.End(); err != nil {
			return err
		}
	}
	if noGroup == nil {
		if err := group.Remove(note); err != nil {
			return err
		}
	}
	for _, name := range []string{pidFile, agentSocket, consoleFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// LastConsole is what the box said last.
func (d *Driver) LastConsole(_ machine.Spec, dir string, limit int) ([]byte, error) {
	return []byte(process.Tail(filepath.Join(dir, consoleFile), int64(limit))), nil
}
