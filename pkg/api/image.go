package api

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
