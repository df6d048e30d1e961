package vz

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// manifest is image.json. The host's operator writes it, so it may name directories of the host.
type manifest struct {
	Arch         string  `json:"arch"`           // arm64, or left out
	Cmdline      string  `json:"cmdline"`        // words for the kernel's command line, where there is a kernel
	MinVCPUs     int     `json:"min_vcpus"`      // what the installation asked for; 0: no wish
	MinMemoryMiB int64   `json:"min_memory_mib"` // the same
	Shares       []Share `json:"shares"`         // directories of the host that every VM of the image can read
}

// image is an image directory, opened.
type image struct {
	manifest
	kind          BootKind
	disk          string // empty: none
	hardwareModel string
	auxiliary     string
	kernel        string
	initrd        string
}

// What a macOS guest needs where its image does not say.
const (
	macOSMinVCPUs     = 2
	macOSMinMemoryMiB = 4096
)

// tagPattern is what the framework takes for the tag of a share.
var tagPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,35}$`)

// rosettaTag is the share through which a guest reaches Rosetta.
const rosettaTag = "rosetta"

// openImage finds the parts of the image or says, as *api.Error, what an image is.
func openImage(path string) (image, error) {
	switch {
	case path == "":
		return image{}, api.Invalid("image", "image is required: the absolute path of a directory with disk.img; docs/macs.md tells how to make one")
	case !filepath.IsAbs(path):
		return image{}, api.Invalid("image", "image must be an absolute path on the host; %q is not", path)
	}
	at := func(name string) string {
		if p := filepath.Join(path, name); isFile(p) {
			return p
		}
		return ""
	}
	img := image{disk: at(diskFile), hardwareModel: at("hardware-model"), auxiliary: at(auxiliaryFile), kernel: at("vmlinuz"), initrd: at("initrd")}
	if img.initrd == "" {
		img.initrd = at("initrd.img")
	}
	switch {
	case img.hardwareModel != "":
		img.kind = BootMacOS
		if img.auxiliary == "" || img.disk == "" {
			return image{}, api.Invalid("image", "image %q has a hardware-model and so is a macOS guest's, but lacks aux.img or disk.img: copy them from the bundle that macOS was installed into", path)
		}
	case img.kernel != "":
		img.kind = BootLinux
		if err := checkKernel(img.kernel); err != nil {
			return image{}, err
		}
	case img.disk != "":
		img.kind = BootEFI
	default:
		return image{}, api.Invalid("image", "image %q is no vz image: it must be a directory with disk.img, with vmlinuz, or with hardware-model, aux.img and disk.img", path)
	}
	raw, err := os.ReadFile(filepath.Join(path, "image.json"))
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = []byte("{}"), nil
	}
	if err == nil {
		err = api.Decode(raw, &img.manifest)
	}
	if err != nil {
		return image{}, api.Invalid("image", "image.json of image %q cannot be used: %v", path, err)
	}
	if img.kind == BootMacOS {
		img.MinVCPUs, img.MinMemoryMiB = max(img.MinVCPUs, macOSMinVCPUs), max(img.MinMemoryMiB, macOSMinMemoryMiB)
	}
	return img, img.check(path)
}

func (img image) check(path string) error {
	if img.hardwareModel != "" {
		if info, err := os.Stat(img.hardwareModel); err != nil || info.Size() == 0 {
			return api.Invalid("image", "hardware-model of image %q is empty: copy it from the bundle that macOS was installed into", path)
		}
	}
	if img.Arch != "" && img.Arch != "arm64" {
		return api.Invalid("image", "image %q is for %s; a Mac's guests are arm64", path, img.Arch)
	}
	if strings.ContainsFunc(img.Cmdline, func(r rune) bool { return r < ' ' }) {
		return api.Invalid("image", "cmdline in image.json of image %q must be one line", path)
	}
	tags := map[string]bool{rosettaTag: true}
	for _, s := range img.Shares {
		switch {
		case !tagPattern.MatchString(s.Tag) || tags[s.Tag]:
			return api.Invalid("image", "image.json of image %q: the tag %q of a share must be 1-36 of A-Z a-z 0-9 . _ -, used once, and not %s", path, s.Tag, rosettaTag)
		case !filepath.IsAbs(s.Path) || !isDir(s.Path):
			return api.Invalid("image", "image.json of image %q: the share %s must name an absolute path of a directory on this host; %q is none", path, s.Tag, s.Path)
		}
		tags[s.Tag] = true
	}
	return nil
}

// guestOS is what runs in VMs of the image.
func (img image) guestOS() string {
	if img.kind == BootMacOS {
		return api.GuestMacOS
	}
	return api.GuestLinux
}

// checkKernel refuses what the framework would refuse without a word why: it takes the plain Image only, while many
// distributions pack theirs.
func checkKernel(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return api.Invalid("image", "the kernel %q cannot be read: %v", path, err)
	}
	defer f.Close()
	var head [64]byte
	n, _ := f.Read(head[:])
	if n == len(head) && string(head[56:60]) == "ARM\x64" {
		return nil
	}
	if bytes.HasPrefix(head[:], []byte{0x1f, 0x8b}) {
		return api.Invalid("image", "the kernel %q is packed with gzip; unpack it (gunzip) and name the result vmlinuz", path)
	}
	return api.Invalid("image", "the kernel %q is no uncompressed Image for arm64", path)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// readPlan reads what the driver wrote for the helper.
func readPlan(dir string) (p Plan, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, planFile))
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	return p, err
}
