package central

import (
	"net/http"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

func (q *request) listImages() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	return q.send(http.StatusOK, listPage(p, view.Images(p.after), func(i *fsm.Image) string { return i.Name }, all, func(i *fsm.Image) api.Image { return i.Image }))
}

func (q *request) getImage() error {
	view := q.r.state.View()
	name := q.name("name")
	i := view.Image(name)
	if i == nil || i.Name != name {
		return api.NotFound("image", name)
	}
	q.index(view)
	return q.sendVersioned(http.StatusOK, i.Version, i.Image)
}

func (q *request) createImage() error {
	var body api.ImageRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	result, err := q.propose(fsm.KindCreateImage, q.op(body), fsm.CreateImage{Image: body})
	if err != nil {
		return err
	}
	i := q.r.state.View().Image(body.Name)
	if row, ok := result.Value.(*fsm.Image); ok {
		i = row
	}
	if i == nil {
		return api.Errorf(api.CodeNotFound, "image %s was created under this key and has been deleted since", body.Name)
	}
	return q.sendVersioned(http.StatusCreated, i.Version, i.Image)
}

func (q *request) patchImage() error {
	var body api.ImagePatch
	if err := q.decode(&body); err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	result, err := q.propose(fsm.KindPatchImage, nil, fsm.PatchImage{Name: q.name("name"), Patch: body, IfMatch: version})
	if err != nil {
		return err
	}
	i := result.Value.(*fsm.Image)
	return q.sendVersioned(http.StatusOK, i.Version, i.Image)
}

func (q *request) deleteImage() error {
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindDeleteImage, nil, fsm.DeleteImage{Name: q.name("name"), IfMatch: version}); err != nil {
		return err
	}
	return q.noContent()
}
