//go:build linux

package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// owner changes the guest that the agent runs in, as a claim asks.
type owner struct {
	root string // empty: /
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

// RotateIdentity makes the machine id and the SSH host keys new, as far as the guest has any.
func (o owner) RotateIdentity() error {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return err
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // a random UUID, as systemd makes them
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		info, err := os.Lstat(o.root + path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() { // a link to the other one
			continue
		}
		if err == nil {
			err = os.WriteFile(o.root+path, []byte(hex.EncodeToString(id[:])+"\n"), 0o444)
		}
		if err != nil {
			return fmt.Errorf("writing a machine id: %w", err)
		}
	}
	keys, err := filepath.Glob(o.root + "/etc/ssh/ssh_host_*_key*")
	if err != nil || len(keys) == 0 {
		return err
	}
	for _, key := range keys {
		if err := os.Remove(key); err != nil {
			return fmt.Errorf("removing an SSH host key: %w", err)
		}
	}
	args := []string{"-A"}
	if o.root != "" {
		args = append(args, "-f", o.root)
	}
	if out, err := exec.Command("ssh-keygen", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("making SSH host keys: %w: %s", err, out)
	}
	if o.root == "" {
		_ = exec.Command("systemctl", "try-restart", "ssh.service", "sshd.service").Run() // a server that runs has read the old ones
	}
	return nil
}
