//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

const (
	boxEnv = "FLUXVM_BOX" // set for the agent of a box

	// consoleKeep is how long the log of a box may grow before it begins anew, in bytes.
	consoleKeep = 256 << 10
)

// staging is where a box's root is put together: any directory that is there on every host.
const staging = "/tmp"

// runBox is process 1 of a box: a guest that is only namespaces of the host's kernel. The host has made the namespaces
// and hands the rest over in files; see guest.Box. It never returns.
func runBox() {
	word := os.NewFile(guest.BoxWord, "word")
	var b guest.Box
	err := json.NewDecoder(word).Decode(&b)
	if err == nil {
		err = build(b)
	}
	if err == nil {
		err = setEnvironment()
	}
	if err != nil {
		fmt.Fprint(word, err)
		os.Exit(1)
	}
	fmt.Fprint(word, guest.BoxReady)
	_ = word.Close()
	if b.Probe {
		os.Exit(0)
	}
	_ = os.Setenv(boxEnv, "1")
	supervise(func() {
		fmt.Fprintln(os.Stderr, guest.BoxEnded)
		os.Exit(0)
	})
}

// mounting is one mount of a box.
type mounting struct {
	from, at, kind string
	flags          uintptr
	options        string
}

func (m mounting) mount() error {
	if err := unix.Mount(m.from, m.at, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mounting %s: %w", m.at, err)
	}
	return nil
}

// hostPrograms are what a box without an image sees of the host, read-only.
var hostPrograms = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs"}

// ownDirs are directories of a root that are a box's own.
var ownDirs = []string{"boot", "dev", "etc", "home", "lost+found", "proc", "root", "run", "sys", "tmp"}

// hostDevices are all the devices of a box.
var hostDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// build makes the box's root and enters it. Nothing of the host can be reached from there by a name.
func build(b guest.Box) error {
	root := filepath.Join(staging, "root")
	size := fmt.Sprintf("mode=0755,size=%dm", b.MemoryMiB/2) // a full disk is a better end than one for want of memory
	steps := []func() error{
		mounting{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""}.mount,
		mounting{"tmpfs", staging, "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, size}.mount,
		func() error { return makeRoot(root, b) },
		func() error { return furnish(root) },
		func() error { return enter(root) },
		func() error { return unix.Sethostname([]byte(b.Hostname)) },
		func() error { return writeBoxFiles(b) },
		func() error { return linkUp("lo") },
		shut,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// makeRoot makes a root that shows the image's directories, or the host's programs, and where nothing else is yet.
func makeRoot(root string, b guest.Box) error {
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	if err := (mounting{root, root, "", unix.MS_BIND, ""}).mount(); err != nil {
		return err
	}
	base, paths := "/", hostPrograms
	if b.Image != "" {
		base = filepath.Join(staging, "image") + "/"
		if err := attachImage(b.Image, base); err != nil {
			return err
		}
		entries, err := os.ReadDir(base)
		if err != nil {
			return fmt.Errorf("reading the image: %w; it must be readable by all", err)
		}
		paths = nil
		for _, e := range entries {
			if !slices.Contains(ownDirs, e.Name()) {
				paths = append(paths, "/"+e.Name())
			}
		}
		if err := copyEtc(base+"etc", filepath.Join(root, "etc")); err != nil {
			return fmt.Errorf("copying the image's /etc: %w", err)
		}
	}
	for _, path := range paths {
		if err := show(base, root, path); err != nil {
			return err
		}
	}
	return nil
}

// attachImage mounts the image: what the host hands over, where its root may have to open it, else the path.
func attachImage(path, at string) error {
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	err := unix.MoveMount(guest.BoxImage, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if errors.Is(err, unix.EBADF) {
		return mounting{path, at, "", unix.MS_BIND | unix.MS_REC, ""}.mount()
	}
	if err != nil {
		return fmt.Errorf("mounting the image: %w", err)
	}
	return nil
}

// copyEtc copies what is readable, so that the box may change it. The image's other directories stay as they are.
func copyEtc(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		at := filepath.Join(to, strings.TrimPrefix(path, from))
		switch {
		case errors.Is(err, fs.ErrNotExist) && path == from:
			return nil // an image without
		case errors.Is(err, fs.ErrPermission):
			return nil
		case err != nil:
			return err
		case e.IsDir():
			return os.MkdirAll(at, 0o755)
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, at)
		case !e.Type().IsRegular():
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(at, raw, info.Mode().Perm()|0o600)
	})
}

// show shows a file or directory below base, read-only; a link is copied. One that is not there is not missed.
func show(base, root, path string) error {
	at, path := filepath.Join(root, path), base+strings.TrimPrefix(path, "/")
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(to, at)
	case info.IsDir():
		err = os.Mkdir(at, 0o755)
	default:
		err = os.WriteFile(at, nil, 0o644)
	}
	if err != nil {
		return err
	}
	return readOnly(path, at)
}

// readOnly binds and then forbids writing: the kernel takes both at once for neither.
func readOnly(path, at string) error {
	if err := (mounting{path, at, "", unix.MS_BIND | unix.MS_REC, ""}).mount(); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, unix.AT_RECURSIVE, &attr); err != nil {
		return fmt.Errorf("making %s read-only (this needs Linux 5.12): %w", at, err)
	}
	return nil
}

// furnish mounts what every root needs.
func furnish(root string) error {
	mounts := []mounting{
		{"proc", "proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "dev", "tmpfs", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0755,size=1m"},
	}
	for _, m := range mounts {
		m.at = filepath.Join(root, m.at)
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := m.mount(); err != nil {
			return err
		}
	}
	for _, dir := range []string{"root", "home", "etc", "run", "tmp", "dev/pts"} { // the root is a tmpfs
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky); err != nil {
		return err
	}
	dev := filepath.Join(root, "dev")
	if err := (mounting{"devpts", filepath.Join(dev, "pts"), "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"}).mount(); err != nil {
		return err
	}
	for name, to := range map[string]string{"ptmx": "pts/ptmx", "shm": "/tmp", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, filepath.Join(dev, name)); err != nil {
			return err
		}
	}
	for _, name := range hostDevices {
		at := filepath.Join(dev, name)
		if err := os.WriteFile(at, nil, 0o666); err != nil {
			return err
		}
		if err := (mounting{"/dev/" + name, at, "", unix.MS_BIND, ""}).mount(); err != nil {
			return err
		}
	}
	return nil
}

// enter makes root the root and lets go of the host's.
func enter(root string) error {
	if err := unix.Chdir(root); err != nil {
		return fmt.Errorf("entering the box: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("entering the box: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's files: %w", err)
	}
	for _, fd := range []int{guest.BoxProgram, guest.BoxImage} {
		_ = unix.Close(fd) // the latter is there with an image only
	}
	return unix.Chdir("/")
}

// writeBoxFiles gives a root that has none the files by which programs know where they are. An image's own stay.
func writeBoxFiles(b guest.Box) error {
	var id [16]byte
	rand.Read(id[:])
	for path, text := range map[string]string{
		"/etc/passwd":     "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":      "root:x:0:\nnogroup:x:65534:\n",
		"/etc/hosts":      "127.0.0.1 localhost " + b.Hostname + "\n::1 localhost\n",
		"/etc/hostname":   b.Hostname + "\n",
		"/etc/machine-id": hex.EncodeToString(id[:]) + "\n",
	} {
		if _, err := os.Lstat(path); err == nil && path != "/etc/hostname" && path != "/etc/machine-id" {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil && !errors.Is(err, os.ErrPermission) {
			return err
		}
	}
	return nil
}

// shut takes from the whole box, process 1 too, what the kernel would let it begin anew with: user namespaces, in which
// every right is had again, and the kernel's settings.
func shut() error {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		return fmt.Errorf("forbidding user namespaces in the box: %w", err)
	}
	return readOnly("/proc/sys", "/proc/sys")
}

// serveBox is serve in a box: hosts come to a socket. The commands it runs have no capabilities, and can get none.
func serveBox(ctx context.Context) error {
	if err := giveUpCapabilities(); err != nil {
		return err
	}
	const port = 3 // what process 1 has as guest.BoxPort
	l, err := net.FileListener(os.NewFile(port, "port"))
	if err != nil {
		return fmt.Errorf("listening for the host: %w", err)
	}
	var hosts sync.WaitGroup
	defer hosts.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("listening for the host: %w", err)
		}
		hosts.Go(func() {
			defer conn.Close()
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			stop := context.AfterFunc(ctx, func() { interrupt(conn) })
			defer stop()
			_ = server(boxOwner{owner{root: "/"}}).Serve(ctx, stream{conn, cancel})
		})
	}
}

// boxOwner is the owner of a box, whose randomness, time and boot are the host's.
type boxOwner struct{ owner }

// Renew makes the box go by another name and other marks.
func (o boxOwner) Renew(to guest.Renewal) error {
	var errs []error
	if to.Hostname != "" {
		errs = append(errs, o.rename(to.Hostname))
	}
	if to.MachineID != "" {
		errs = append(errs, o.setMachineID(to.MachineID))
	}
	if to.HostKeys {
		errs = append(errs, o.renewHostKeys())
	}
	return errors.Join(errs...)
}

// stream is a connection whose end ends its session: unlike a port's, the host does not come back to it.
type stream struct {
	net.Conn
	ended context.CancelFunc
}

func (s stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		s.ended()
	}
	return n, err
}

// giveUpCapabilities takes from all that this process starts what it has itself, on every thread of it.
func giveUpCapabilities() error {
	for c := uintptr(0); c < 64; c++ {
		_, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0)
		if errors.Is(errno, unix.EINVAL) {
			break // the kernel knows no more
		}
		if errno != 0 {
			return fmt.Errorf("dropping capabilities: %w", errno)
		}
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("giving up new privileges: %w", errno)
	}
	return nil
}
