package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/guest"
)

// owner changes the macOS guest that the agent runs in. macOS has no machine id in a file, and its boot id cannot be set.
type owner struct{}

// SetHostname names the guest, for good.
func (owner) SetHostname(name string) error {
	return errors.Join(run("/usr/sbin/scutil", "--set", "HostName", name), run("/usr/sbin/scutil", "--set", "LocalHostName", name),
		run("/usr/sbin/scutil", "--set", "ComputerName", name))
}

// InMemory mounts a tmpfs on the directory, unless one is there from an earlier claim.
func (owner) InMemory(dir string) error {
	var on unix.Statfs_t
	if err := unix.Statfs(dir, &on); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if unix.ByteSliceToString(on.Fstypename[:]) == "tmpfs" {
		return nil
	}
	return run("/sbin/mount_tmpfs", "-s", "1m", dir)
}

// Renew goes on after a failure: each part that is done makes the guest less stale.
func (o owner) Renew(to guest.Renewal) error {
	errs := []error{mixIn(to.Seed)}
	if to.UnixNanos > 0 {
		at := unix.NsecToTimeval(to.UnixNanos)
		if err := unix.Settimeofday(&at); err != nil {
			errs = append(errs, fmt.Errorf("setting the clock: %w", err))
		}
	}
	if to.Hostname != "" {
		errs = append(errs, o.SetHostname(to.Hostname))
	}
	if to.HostKeys {
		errs = append(errs, renewHostKeys())
	}
	return errors.Join(errs...)
}

// mixIn gives the bytes to the kernel's generator.
func mixIn(seed []byte) error {
	if err := os.WriteFile("/dev/random", seed, 0); err != nil {
		return fmt.Errorf("renewing the randomness: %w", err)
	}
	return nil
}

// renewHostKeys makes new keys in place of those there are. launchd starts an sshd for each connection, which reads them.
func renewHostKeys() error {
	old, err := filepath.Glob("/etc/ssh/ssh_host_*_key*")
	if err != nil || len(old) == 0 {
		return err
	}
	for _, key := range old {
		if err := os.Remove(key); err != nil {
			return fmt.Errorf("removing copied SSH host keys: %w", err)
		}
	}
	return run("/usr/bin/ssh-keygen", "-A")
}
