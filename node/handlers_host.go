package node

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func (d *Daemon) hostMemory(*call) (answer, error) {
	m, err := d.cfg.Facts.Memory()
	if err != nil {
		return answer{}, err
	}
	return ok(m)
}

// imageLister is a driver that knows what it can boot.
type imageLister interface {
	// Images are paths or names that a create may give.
	Images() []string
}

// images are what the drivers offer and what VMs here were made from, by path and then backend.
func (d *Daemon) images() []api.HostImage {
	type key struct{ path, backend string }
	count := map[key]int{}
	for _, driver := range d.cfg.Drivers {
		if l, ok := driver.(imageLister); ok {
			for _, path := range l.Images() {
				count[key{path, driver.Name()}] = 0
			}
		}
	}
	for _, v := range d.list() {
		m := v.view()
		if m.Image != "" {
			count[key{m.Image, m.Backend}]++
		}
	}
	keys := slices.SortedFunc(maps.Keys(count), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.backend, b.backend))
	})
	out := make([]api.HostImage, 0, len(keys))
	for _, k := range keys {
		out = append(out, api.HostImage{Path: k.path, Backend: k.backend, VMs: count[k]})
	}
	return d.withImported(out)
}

// imagePaths are the images of the report.
func (d *Daemon) imagePaths() []string {
	paths := []string{}
	for _, driver := range d.cfg.Drivers {
		if l, ok := driver.(imageLister); ok {
			paths = append(paths, l.Images()...)
		}
	}
	for name := range d.importedImages() {
		paths = append(paths, api.LocalImage+name)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func (d *Daemon) listImages(c *call) (answer, error) {
	page, err := pageOf(c, d.images(), func(i api.HostImage) string { return i.Path + " " + i.Backend })
	if err != nil {
		return answer{}, err
	}
	return ok(page)
}

func (d *Daemon) listEvents(c *call) (answer, error) {
	limit, err := c.limit()
	if err != nil {
		return answer{}, err
	}
	since := uint64(0)
	if text := cmp.Or(c.URL.Query().Get("cursor"), c.URL.Query().Get("since")); text != "" {
		if since, err = strconv.ParseUint(text, 10, 64); err != nil {
			return answer{}, api.Invalid("since", "since must be the id of an event")
		}
	}
	items, more := d.events.after(since, limit)
	page := api.List[api.Activity]{Items: items}
	if more {
		page.NextCursor = &items[len(items)-1].ID
	}
	return ok(page)
}
