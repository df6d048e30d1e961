package vz

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fluxvm/fluxvm/node/machine"
)

// prepare makes the files of a VM that are not there yet. Disks of an earlier start are kept.
func prepare(spec machine.Spec, img image, dir string) error {
	if img.disk != "" || spec.DiskSizeGiB > 0 {
		if err := makeDisk(img.disk, filepath.Join(dir, diskFile), spec.DiskSizeGiB); err != nil {
			return err
		}
	}
	for i, e := range spec.ExtraDisks {
		if err := makeDisk("", filepath.Join(dir, extraDisk(i)), e.SizeGiB); err != nil {
			return err
		}
	}
	if img.kind == BootMacOS {
		return makeDisk(img.auxiliary, filepath.Join(dir, auxiliaryFile), 0)
	}
	return nil
}

// makeDisk clones the disk, or makes an empty one, and grows it. It appears as a whole.
func makeDisk(from, to string, sizeGiB int64) error {
	if _, err := os.Stat(to); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := to + ".part"
	err := os.RemoveAll(part)
	if err == nil && from != "" {
		err = clone(from, part)
	}
	if err == nil {
		err = grow(part, sizeGiB<<30)
	}
	if err == nil {
		err = os.Rename(part, to)
	}
	if err != nil {
		return fmt.Errorf("making the disk: %w", errors.Join(err, os.RemoveAll(part)))
	}
	return nil
}

// grow makes the file at least so long, by a hole. A clone takes the image's mode, so the owner's right to write is
// given back.
func grow(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil || info.Size() >= size {
		return err
	}
	return os.Truncate(path, size)
}

// copyFile is clone where the file system cannot share blocks: a copy that keeps long runs of zeros as holes.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(copyBlocks(out, in), out.Close())
}

func copyBlocks(out *os.File, in io.Reader) error {
	const block = 1 << 20
	buffer, zeros := make([]byte, block), make([]byte, block)
	for size := int64(0); ; {
		n, err := io.ReadFull(in, buffer)
		if n > 0 && !bytes.Equal(buffer[:n], zeros[:n]) {
			if _, err := out.WriteAt(buffer[:n], size); err != nil {
				return err
			}
		}
		size += int64(n)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return out.Truncate(size)
		case err != nil:
			return err
		}
	}
}

// writeFile replaces a file as a whole.
func writeFile(path string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
