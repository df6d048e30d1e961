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

// renewer makes a guest that was copied another one. Paths are below root.
type renewer struct{ root string }

func (r renewer) path(elem ...string) string {
	return filepath.Join(append([]string{r.root}, elem...)...)
}

// renew goes on after a failure: each part that is done makes the copy less alike.
func (r renewer) renew(to guest.Renewal) error {
	errs := []error{r.seed(to.Seed)} // first: what follows may need random numbers
	if to.UnixNanos > 0 {
		errs = append(errs, setClock(to.UnixNanos))
	}
	if to.Hostname != "" {
		errs = append(errs, r.rename(to.Hostname))
	}
	if to.MachineID != "" {
		errs = append(errs, r.setMachineID(to.MachineID))
	}
	if to.BootID != "" {
		errs = append(errs, r.setBootID(to.BootID))
	}
	if to.HostKeys {
		errs = append(errs, r.renewHostKeys())
	}
	return errors.Join(errs...)
}

// seed mixes the bytes into the kernel's generator and makes it draw from them at once.
func (r renewer) seed(bytes []byte) error {
	if len(bytes) < 32 {
		return fmt.Errorf("renewing the randomness: %d bytes are too few, 32 are the least", len(bytes))
	}
	f, err := os.OpenFile(r.path("dev", "urandom"), os.O_WRONLY, 0)
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

func (r renewer) rename(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("naming the host %q: %w", name, err)
	}
	return r.replace("the host's name", name+"\n", "etc", "hostname")
}

// replace rewrites a file that is there; one that is not is not missed.
func (r renewer) replace(what, text string, path ...string) error {
	info, err := os.Lstat(r.path(path...))
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err == nil {
		err = os.WriteFile(r.path(path...), []byte(text), info.Mode().Perm())
	}
	if err != nil {
		return fmt.Errorf("keeping %s: %w", what, err)
	}
	return nil
}

func (r renewer) setMachineID(id string) error {
	path := r.path("etc", "machine-id")
	if err := os.WriteFile(path+".new", []byte(id+"\n"), 0o444); err != nil {
		return fmt.Errorf("keeping the machine id: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keeping the machine id: %w", err)
	}
	return r.replace("the machine id of D-Bus", id+"\n", "var", "lib", "dbus", "machine-id")
}

// setBootID covers the kernel's own, which was copied and cannot be written.
func (r renewer) setBootID(id string) error {
	at, cover := r.path(bootIDPath), r.path("run", "fluxvm-boot-id")
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
func (r renewer) renewHostKeys() error {
	old, err := filepath.Glob(r.path("etc", "ssh", "ssh_host_*_key*"))
	if err != nil || len(old) == 0 {
		return err
	}
	for _, key := range old {
		if err := os.Remove(key); err != nil {
			return fmt.Errorf("removing copied SSH host keys: %w", err)
		}
	}
	if out, err := exec.Command("ssh-keygen", "-A", "-f", r.root).CombinedOutput(); err != nil {
		return fmt.Errorf("making SSH host keys: %w: %s", err, strings.TrimSpace(string(out)))
	}
	raw, err := os.ReadFile(r.path("run", "sshd.pid"))
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
