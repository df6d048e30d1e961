package api

import "strings"

// Image is a catalog entry: what VMs boot from, and the size they take unless told otherwise.
// Path is understood by the backend: a directory with kernel and initrd for flux-vm, sim:?… for sim.
type Image struct {
	Name        string `json:"name"`
	Path        string `json:"path"`
	GuestOS     string `json:"guest_os"`
	Title       string `json:"title"`
	VCPUs       int    `json:"vcpus"`
	MemoryMiB   int64  `json:"memory_mib"`
	DiskSizeGiB int64  `json:"disk_size_gib"`
	HasAgent    bool   `json:"has_agent"`
	CreatedAt   Time   `json:"created_at"`
	Version     uint64 `json:"version"`
}

// ImageRequest is the body of POST /fleet/images.
type ImageRequest struct {
	Name        string `json:"name"`
	Path        string `json:"path"`
	GuestOS     string `json:"guest_os,omitempty"` // linux
	Title       string `json:"title,omitempty"`
	VCPUs       int    `json:"vcpus,omitempty"`      // 1
	MemoryMiB   int64  `json:"memory_mib,omitempty"` // 512
	DiskSizeGiB int64  `json:"disk_size_gib,omitempty"`
	HasAgent    bool   `json:"has_agent,omitempty"`
}

// ImagePatch is the merge patch of PATCH /fleet/images/{name}. It changes what later VMs boot.
type ImagePatch struct {
	Path        Optional[string] `json:"path,omitzero"`
	Title       Optional[string] `json:"title,omitzero"`
	VCPUs       Optional[int]    `json:"vcpus,omitzero"`
	MemoryMiB   Optional[int64]  `json:"memory_mib,omitzero"`
	DiskSizeGiB Optional[int64]  `json:"disk_size_gib,omitzero"`
	HasAgent    Optional[bool]   `json:"has_agent,omitzero"`
}

// LocalImage begins the path of an image that was imported on hosts: each has it below its own data directory, and says in
// its reports which ones it has.
const LocalImage = "local:"

// ImportRequest is the body of POST /v1/images on a node. A repeat with the same digest changes nothing.
type ImportRequest struct {
	Name   string `json:"name"`
	From   string `json:"from"`   // absolute path on the host of a directory, a tar (.tar, .tar.gz, .tgz) or a raw disk; or an https URL of one of the latter two
	Digest string `json:"digest"` // sha256: and 64 hex digits: of the file, or of a directory that of what "sha256sum *" prints in it
}

// HostImage is an image as its node shows it (GET /v1/images): one that VMs were made from, that a driver offers, or that
// was imported.
type HostImage struct {
	Path    string `json:"path"` // what a create gives as its image
	Backend string `json:"backend,omitempty"`
	VMs     int    `json:"vms"` // on this host that were made from it
	Digest  string `json:"digest,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"` // of its files
}

// Check refuses what no image could be imported from.
func (r *ImportRequest) Check() error {
	if err := CheckName("name", r.Name, MaxVMName); err != nil {
		return err
	}
	if !strings.HasPrefix(r.From, "/") && !strings.HasPrefix(r.From, "https://") {
		return Invalid("from", "from must be an absolute path on the host or an https URL; %q is neither", r.From)
	}
	hex, ok := strings.CutPrefix(r.Digest, "sha256:")
	if !ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "" {
		return Invalid("digest", "digest must be sha256: and 64 lower-case hex digits; sha256sum FILE prints them; for a directory, in it: LC_ALL=C sha256sum * | sha256sum")
	}
	return nil
}
