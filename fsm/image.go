package fsm

import "github.com/fluxvm/fluxvm/pkg/api"

// createImage adds a catalog entry. Its value is the *Image.
func (t *tx) createImage(c CreateImage) (any, error) {
	r := c.Image
	if t.images.find(byID, text(r.Name)) != nil {
		return nil, api.Errorf(api.CodeNameTaken, "there is an image %s already; choose another name or change that one", r.Name)
	}
	row := &Image{api.Image{Name: r.Name, Path: r.Path, GuestOS: r.GuestOS, Title: r.Title, VCPUs: r.VCPUs, MemoryMiB: r.MemoryMiB,
		DiskSizeGiB: r.DiskSizeGiB, HasAgent: r.HasAgent, CreatedAt: t.now, Version: t.index}}
	if row.GuestOS == "" {
		row.GuestOS = api.GuestLinux
	}
	if row.Title == "" {
		row.Title = row.Name
	}
	row.VCPUs = max(row.VCPUs, 1)
	if row.MemoryMiB == 0 {
		row.MemoryMiB = 512
	}
	if _, err := t.remember(Operation{Ref: row.Name}); err != nil {
		return nil, err
	}
	t.images.put(row)
	t.log(t.env.Actor, "POST /fleet/images", row.Name, "", "ok")
	return row, nil
}

// patchImage changes what later VMs boot. Its value is the *Image.
func (t *tx) patchImage(c PatchImage) (any, error) {
	have := t.images.find(byID, text(c.Name))
	if have == nil {
		return nil, api.NotFound("image", c.Name)
	}
	if err := checkVersion("image", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := *have
	set(&row.Path, c.Patch.Path)
	set(&row.Title, c.Patch.Title)
	set(&row.VCPUs, c.Patch.VCPUs)
	set(&row.MemoryMiB, c.Patch.MemoryMiB)
	set(&row.DiskSizeGiB, c.Patch.DiskSizeGiB)
	set(&row.HasAgent, c.Patch.HasAgent)
	row.VCPUs, row.Version = max(row.VCPUs, 1), t.index
	if row.MemoryMiB == 0 {
		row.MemoryMiB = 512
	}
	t.images.put(&row)
	if have.HasAgent && !row.HasAgent {
		t.agentGone(row.Name)
	}
	t.log(t.env.Actor, "PATCH /fleet/images/{name}", row.Name, "", "ok")
	return &row, nil
}

// set takes over a field of a patch that is there; null is the zero value.
func set[V any](field *V, o api.Optional[V]) {
	if o.Set {
		*field = o.V
	}
}

// deleteImage removes a catalog entry. VMs booted from it go on.
func (t *tx) deleteImage(c DeleteImage) (any, error) {
	have := t.images.find(byID, text(c.Name))
	if have == nil {
		return nil, api.NotFound("image", c.Name)
	}
	if err := checkVersion("image", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	for p := range t.Pools("") {
		if p.Image == c.Name {
			return nil, api.Errorf(api.CodeConflict, "pool %s boots from image %s; delete the pool or roll it to another image first", p.Name, c.Name)
		}
	}
	t.images.remove(have)
	t.log(t.env.Actor, "DELETE /fleet/images/{name}", c.Name, "", "ok")
	return nil, nil
}
