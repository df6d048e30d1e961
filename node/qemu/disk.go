//go:build linux

package qemu

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// diskImage is a disk image, looked at.
type diskImage struct {
	path   string
	format string // qcow2 or raw, never guessed by QEMU
	bytes  int64  // what the guest sees
}

// importedDisk is the disk of an image that was imported: such an image is a directory.
const importedDisk = "disk.img"

const (
	formatQCOW2 = "qcow2"
	formatRaw   = "raw"
)

// Of a qcow2 header, in bytes from its start; QEMU's docs/interop/qcow2.txt describes them.
const (
	qcow2Magic        = "QFI\xfb"
	qcow2Backing      = 8
	qcow2Size         = 24
	qcow2Crypt        = 32
	qcow2Incompatible = 72
	qcow2HeaderLength = 100
	qcow2Header2      = 72  // length of version 2's header
	qcow2Header3      = 104 // the least length of version 3's

	// qcow2Known are the incompatible features that a safe image may have: dirty, and another compression or L2 entries.
	qcow2Known = 1 | 1<<3 | 1<<4

	extensionEnd      = 0
	extensionBacking  = 0xe2792aca // format of a backing file
	extensionDataFile = 0x44415441 // name of an external data file
)

// otherFormats begin like this. They are refused: as raw disks they would not boot, and QEMU is never left to guess.
var otherFormats = map[string]string{"KDMV": "vmdk", "COWD": "vmdk", "vhdxfile": "vhdx", "conectix": "vpc", "QED\x00": "qed", "<<< ": "vdi", "LUKS\xba\xbe": "luks"}

// openDisk looks at a disk image or says, as *api.Error, what an image is. An image may name no other file: with a
// backing or data file whoever made it could have the guest read any file of the host.
func openDisk(path string) (diskImage, error) {
	refuse := func(format string, args ...any) (diskImage, error) {
		return diskImage{}, api.Invalid("image", "image %q "+format, append([]any{path}, args...)...)
	}
	if path == "" {
		return diskImage{}, api.Invalid("image", "image is required: the absolute path of a qcow2 or raw disk image")
	}
	if !filepath.IsAbs(path) {
		return refuse("must be an absolute path on the host")
	}
	if imported := filepath.Join(path, importedDisk); isFile(imported) {
		path = imported
	}
	f, err := os.Open(path)
	if err != nil {
		return refuse("cannot be read on this host; give the absolute path of a qcow2 or raw disk image that is there")
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return refuse("is no disk image: it must be a qcow2 or raw file")
	}
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return refuse("cannot be read: %v", err)
	}
	head = head[:n]
	if strings.HasPrefix(string(head), qcow2Magic) {
		size, why := checkQCOW2(head)
		if why != "" {
			return refuse("%s; make one without: qemu-img convert -O qcow2 IMAGE NEW", why)
		}
		return diskImage{path, formatQCOW2, size}, nil
	}
	for begins, format := range otherFormats {
		if strings.HasPrefix(string(head), begins) {
			return refuse("is %s; turn it into qcow2: qemu-img convert -O qcow2 IMAGE NEW", format)
		}
	}
	if info.Size() == 0 || info.Size()%512 != 0 {
		return refuse("is no disk image: it is neither qcow2 nor a whole number of 512-byte sectors")
	}
	return diskImage{path, formatRaw, info.Size()}, nil
}

// checkQCOW2 is the size of the disk, or why the image is not taken.
func checkQCOW2(head []byte) (size int64, why string) {
	if len(head) < qcow2Header2 {
		return 0, "is cut off"
	}
	word := func(at int) uint32 { return binary.BigEndian.Uint32(head[at:]) }
	long := func(at int) uint64 { return binary.BigEndian.Uint64(head[at:]) }
	version, extensions := word(4), qcow2Header2
	switch {
	case version != 2 && version != 3:
		return 0, fmt.Sprintf("is qcow2 of version %d", version)
	case long(qcow2Backing) != 0:
		return 0, "has a backing file"
	case word(qcow2Crypt) != 0:
		return 0, "is encrypted"
	case long(qcow2Size) == 0 || long(qcow2Size) > 1<<50:
		return 0, "has no sensible size"
	}
	if version == 3 {
		if len(head) < qcow2Header3 || word(qcow2HeaderLength) < qcow2Header3 || int64(word(qcow2HeaderLength)) > int64(len(head)) {
			return 0, "is cut off"
		}
		extensions = int(word(qcow2HeaderLength))
		switch features := long(qcow2Incompatible); {
		case features&(1<<2) != 0:
			return 0, "keeps its data in another file"
		case features&(1<<1) != 0:
			return 0, "is marked as damaged"
		case features&^uint64(qcow2Known) != 0:
			return 0, "has features that are not known here"
		}
	}
	for at := extensions; at+8 <= len(head); {
		kind, length := word(at), int64(word(at+4))
		switch kind {
		case extensionEnd:
			return int64(long(qcow2Size)), ""
		case extensionBacking:
			return 0, "names the format of a backing file"
		case extensionDataFile:
			return 0, "names another file for its data"
		}
		if length > int64(len(head)) {
			return 0, "has a header that does not end"
		}
		at += 8 + int(length+7)&^7
	}
	return 0, "has a header that does not end"
}

// makeOverlay makes a disk that begins as the image and keeps what is written to itself, or keeps the one that is there
// from an earlier start. Without an image it begins empty.
func makeOverlay(ctx context.Context, tool, path string, over *diskImage, sizeGiB int64) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	args := []string{"create", "-q", "-f", formatQCOW2}
	if over != nil {
		args = append(args, "-b", over.path, "-F", over.format)
	}
	args = append(args, path+".new")
	if sizeGiB > 0 {
		args = append(args, fmt.Sprintf("%dG", sizeGiB))
	}
	out, err := exec.CommandContext(ctx, tool, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making the disk: %w: %s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Chmod(path+".new", 0o600); err != nil {
		return fmt.Errorf("making the disk: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("making the disk: %w", err)
	}
	return nil
}
