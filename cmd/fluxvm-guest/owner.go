//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

const (
	rndReseedCRNG = 0x5207 // RNDRESEEDCRNG: the kernel's generator takes what was mixed in at once

	bootIDPath = "proc/sys/kernel/random/boot_id"
)

// owner changes the guest that the agent runs in: for who takes it over, and where it is a copy. Paths are below root.
type owner struct{ root string }

func (o owner) path(elem ...string) string {
	return filepath.Join(append([]string{o.root}, elem...)...)
}

// SetHostname names the running guest.
func (owner) SetHostname(name string) error { return unix.Sethostname([]byte(name)) }

// InMemory mounts a tmpfs on the directory, unless it lies on one, as /run does nearly everywhere.
func (owner) InMemory(dir string) error {
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if on.Type == unix.TMPFS_MAGIC {
		return nil
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=1m"); err != nil {
		return fmt.Errorf("mounting a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// Renew goes on after a failure: each part that is done makes the copy less alike.
func (o owner) Renew(to guest.Renewal) error {
	errs := []error{o.seed(to.Seed)} // first: what follows may need random numbers
	if to.UnixNanos > 0 {
		errs = append(errs, setClock(to.UnixNanos))
	}
	if to.Hostname != "" {
		errs = append(errs, o.rename(to.Hostname))
	}
	if to.MachineID != "" {
		errs = append(errs, o.setMachineID(to.MachineID))
	}
	if to.BootID != "" {
		errs = append(errs, o.setBootID(to.BootID))
	}
	if to.HostKeys {
		errs = append(errs, o.renewHostKeys())
	}
	return errors.Join(errs...)
}

// seed mixes the bytes into the kernel's generator and makes it draw from them at once.
func (o owner) seed(bytes []byte) error {
	if len(bytes) < 32 {
		return fmt.Errorf("renewing the randomness: %d bytes are too few, 32 are the least", len(bytes))
	}
	f, err := os.OpenFile(o.path("dev", "urandom"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("renewing the randomness: %w", err)
	}
	defer f.Close()
	if _, err := f.Write(bytes); err != nil {
		return fmt.Errorf("renewing the randomness: %w", err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), rndReseedCRNG, 0); err != nil {
		return fmt.Errorf("renewing the randomness: %w", err)
	}
	return nil
}

func setClock(unixNanos int64) error {
	at := unix.NsecToTimespec(unixNanos)
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &at); err != nil {
		return fmt.Errorf("setting the clock: %w", err)
	}
	return nil
}

func (o owner) rename(name string) error {
	if err := o.SetHostname(name); err != nil {
		return fmt.Errorf("naming the host %q: %w", name, err)
	}
	return o.replace("the host's name", name+"\n", "etc", "hostname")
}

// replace rewrites a file that is there; one that is not is not missed.
func (o owner) replace(what, text string, path ...string) error {
	info, err := os.Lstat(o.path(path...))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err == nil {
		err = os.WriteFile(o.path(path...), []byte(text), info.Mode().Perm())
	}
	if err != nil {
		return fmt.Errorf("keeping %s: %w", what, err)
	}
	return nil
}

func (o owner) setMachineID(id string) error {
	path := o.path("etc", "machine-id")
	if err := os.WriteFile(path+".new", []byte(id+"\n"), 0o444); err != nil {
		return fmt.Errorf("keeping the machine id: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keeping the machine id: %w", err)
	}
	return o.replace("the machine id of D-Bus", id+"\n", "var", "lib", "dbus", "machine-id")
}

// setBootID covers the kernel's own, which was copied and cannot be written.
func (o owner) setBootID(id string) error {
	at, cover := o.path(bootIDPath), o.path("run", "fluxvm-boot-id")
	if err := os.WriteFile(cover, []byte(id+"\n"), 0o444); err != nil {
		return fmt.Errorf("making a boot id: %w", err)
	}
	if now, err := os.ReadFile(at); err == nil && strings.TrimSpace(string(now)) == id {
		return nil // an earlier cover shows the file that was just written
	}
	if err := unix.Mount(cover, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("making a boot id: %w", err)
	}
	return nil
}

// renewHostKeys makes new keys in place of those there are, and tells a running sshd.
func (o owner) renewHostKeys() error {
	old, err := filepath.Glob(o.path("etc", "ssh", "ssh_host_*_key*"))
	if err != nil || len(old) == 0 {
		return err
	}
	for _, key := range old {
		if err := os.Remove(key); err != nil {
			return fmt.Errorf("removing copied SSH host keys: %w", err)
		}
	}
	if out, err := exec.Command("ssh-keygen", "-A", "-f", o.root).CombinedOutput(); err != nil {
		return fmt.Errorf("making SSH host keys: %w: %s", err, strings.TrimSpace(string(out)))
	}
	raw, err := os.ReadFile(o.path("run", "sshd.pid"))
	if err != nil {
		return nil // none runs
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil && pid > 1 {
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("telling sshd of its new keys: %w", err)
		}
	}
	return nil
}
