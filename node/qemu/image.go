//go:build linux

package qemu

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// image is an image directory, opened.
type image struct {
	kernel  string
	initrd  string
	cmdline string // words for the kernel beside the driver's own
}

// openImage finds the parts of the image or says, as *api.Error, what an image is.
func openImage(path string) (image, error) {
	if path == "" {
		return image{}, api.Invalid("image", "image is required: the absolute path of a directory with vmlinuz and initrd (scripts/guest-image makes one)")
	}
	if !filepath.IsAbs(path) {
		return image{}, api.Invalid("image", "image must be an absolute path on the host; %q is not", path)
	}
	img := image{kernel: filepath.Join(path, "vmlinuz"), initrd: filepath.Join(path, "initrd")}
	if !isFile(img.initrd) {
		img.initrd = filepath.Join(path, "initrd.img")
	}
	if !isFile(img.kernel) || !isFile(img.initrd) {
		return image{}, api.Invalid("image", "image %q is no flux-vm image: it must be a directory with vmlinuz and initrd (or initrd.img); scripts/guest-image makes one", path)
	}
	raw, err := os.ReadFile(filepath.Join(path, "image.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return img, nil
	}
	var about struct {
		Cmdline string `json:"cmdline"`
		Arch    string `json:"arch"`
	}
	if err != nil || json.Unmarshal(raw, &about) != nil {
		return image{}, api.Invalid("image", "image.json of image %q cannot be read; it must be a JSON object, or not be there", path)
	}
	if about.Arch != "" && about.Arch != "amd64" {
		return image{}, api.Invalid("image", "image %q is for %s; this host runs amd64", path, about.Arch)
	}
	if strings.ContainsFunc(about.Cmdline, func(r rune) bool { return r < ' ' }) {
		return image{}, api.Invalid("image", "cmdline in image.json of image %q must be one line", path)
	}
	img.cmdline = about.Cmdline
	return img, nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
