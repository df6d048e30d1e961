package vz

import (
	"errors"

	"golang.org/x/sys/unix"
)

// clone makes to a copy of from that shares its blocks until one of them is written (clonefile, on APFS).
func clone(from, to string) error {
	err := unix.Clonefile(from, to, 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EXDEV) {
		return copyFile(from, to)
	}
	return err
}
