package node

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/gorilla/mux"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	importedDir = "images" // below the data directory; a scrub leaves it alone, as images are the operator's
	aboutImage  = ".fluxvm.json"
	partSuffix  = ".part"

	// mostImages bounds what a report may hold of them.
	mostImages = 256
)

// imported is aboutImage.
type imported struct {
	Digest string `json:"digest"`
	Bytes  int64  `json:"bytes"`
}

func (d *Daemon) importedPath(name string) string {
	return filepath.Join(d.cfg.DataDir, importedDir, name)
}

// localImage is the path of an image that a create names by local:; others stay as they are.
func (d *Daemon) localImage(image string) (string, error) {
	name, is := strings.CutPrefix(image, api.LocalImage)
	if !is {
		return image, nil
	}
	return d.importedPath(name), api.CheckName("image", name, api.MaxVMName)
}

// importedImages are the images that were imported, by name. What has no name of its own was cut off while it came in.
func (d *Daemon) importedImages() map[string]imported {
	entries, err := os.ReadDir(filepath.Join(d.cfg.DataDir, importedDir))
	if err != nil {
		return nil // none was ever imported
	}
	found := map[string]imported{}
	for _, e := range entries {
		if about, err := readImported(d.importedPath(e.Name())); err == nil && !strings.HasSuffix(e.Name(), partSuffix) {
			found[e.Name()] = about
		}
	}
	return found
}

func readImported(dir string) (about imported, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, aboutImage))
	if err == nil {
		err = json.Unmarshal(raw, &about)
	}
	return about, err
}

func (d *Daemon) importImage(c *call) (answer, error) {
	var req api.ImportRequest
	if err := api.Decode(c.body, &req); err != nil {
		return answer{}, err
	}
	if err := req.Check(); err != nil {
		return answer{}, err
	}
	have := d.importedImages()
	if about, ok := have[req.Name]; ok && about.Digest == req.Digest {
		return imageAnswer(api.HostImage{Path: api.LocalImage + req.Name, Digest: about.Digest, Bytes: about.Bytes}, http.StatusOK)
	} else if ok {
		return answer{}, api.Errorf(api.CodeConflict, "image %s is here with the digest %s; import the new one under another name, so that VMs of one image are alike", req.Name, about.Digest)
	}
	if len(have) >= mostImages {
		return answer{}, api.Errorf(api.CodeConflict, "%d images are here; remove some with fluxctl image rm", len(have))
	}
	part := d.importedPath(req.Name + "." + uuid.NewString() + partSuffix)
	defer os.RemoveAll(part)
	about, err := bringIn(c.Context(), req, part)
	if err == nil {
		err = keepImported(part, about)
	}
	if err == nil {
		err = os.Rename(part, d.importedPath(req.Name))
	}
	if err != nil {
		return answer{}, saveError(err)
	}
	if err := syncDir(filepath.Dir(part)); err != nil {
		return answer{}, saveError(err)
	}
	d.record(c.actor, "image.import", req.Name, "ok", map[string]any{"digest": req.Digest, "bytes": about.Bytes})
	d.beats.poke()
	return imageAnswer(api.HostImage{Path: api.LocalImage + req.Name, Digest: about.Digest, Bytes: about.Bytes}, http.StatusCreated)
}

func imageAnswer(image api.HostImage, status int) (answer, error) {
	return answer{status: status, body: image}, nil
}

func keepImported(dir string, about imported) error {
	raw, err := json.Marshal(about)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, aboutImage), raw, 0o600)
}

// bringIn makes the directory to from what the request names and checks its digest.
func bringIn(ctx context.Context, req api.ImportRequest, to string) (about imported, err error) {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return about, err
	}
	in, dir, err := openSource(ctx, req.From)
	if err != nil {
		return about, api.Invalid("from", "the image cannot be read: %v", err)
	}
	if dir {
		about.Digest, about.Bytes, err = copyTree(ctx, req.From, to)
	} else {
		defer in.Close()
		sum := sha256.New()
		about.Bytes, err = unpack(ctx, io.TeeReader(in, sum), req.From, to)
		if err == nil {
			_, err = io.Copy(sum, cancelled{ctx, in}) // what follows the end of an archive counts, too
		}
		about.Digest = digestOf(sum)
	}
	switch {
	case err != nil:
		return about, fmt.Errorf("importing image %s: %w", req.Name, err)
	case about.Digest != req.Digest:
		return about, api.Invalid("digest", "the image has the digest %s; nothing was imported", about.Digest)
	}
	return about, nil
}

func digestOf(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }

// openSource opens a file or what a URL gives. A directory has no reader.
func openSource(ctx context.Context, from string) (in io.ReadCloser, dir bool, err error) {
	if strings.HasPrefix(from, "https://") {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
		if err != nil {
			return nil, false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, false, err
		}
		if resp.StatusCode != http.StatusOK {
			return nil, false, errors.Join(fmt.Errorf("the server answers %s", resp.Status), resp.Body.Close())
		}
		return resp.Body, false, nil
	}
	info, err := os.Stat(from)
	switch {
	case err != nil:
		return nil, false, err
	case info.IsDir():
		return nil, true, nil
	case !info.Mode().IsRegular():
		return nil, false, errors.New("it is neither a file nor a directory")
	}
	in, err = os.Open(from)
	return in, false, err
}

// unpack puts an archive's files, or a disk, into the directory.
func unpack(ctx context.Context, in io.Reader, from, to string) (int64, error) {
	name, _, _ := strings.Cut(from, "?")
	packed := strings.HasSuffix(name, ".tar.gz") || strings.HasSuffix(name, ".tgz")
	if !packed && !strings.HasSuffix(name, ".tar") {
		return writeSparse(ctx, in, filepath.Join(to, "disk.img"))
	}
	if packed {
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return 0, err
		}
		in = unzipped
	}
	root, err := os.OpenRoot(to)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	total := int64(0)
	for files := tar.NewReader(in); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		base := filepath.Base(h.Name)
		switch {
		case h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeReg && macsOwn(base):
			continue
		case h.Typeflag != tar.TypeReg || strings.HasPrefix(base, ".") || strings.Count(filepath.Clean(h.Name), "/") > 1:
			return total, fmt.Errorf("the archive holds %q; an image is plain files in one directory", h.Name)
		}
		if _, err := root.Lstat(base); err == nil {
			return total, fmt.Errorf("the archive holds %q twice", base)
		}
		n, err := writeSparse(ctx, files, filepath.Join(to, base))
		if total += n; err != nil {
			return total, err
		}
	}
}

// macsOwn says whether a Mac put the file into an archive beside what was asked for.
func macsOwn(name string) bool { return name == ".DS_Store" || strings.HasPrefix(name, "._") }

// copyTree copies the files of a directory and counts its digest: that of the lines "DIGEST  NAME\n" of its files, as
// sha256sum prints them, in the order of names. Hidden ones are not part of it.
func copyTree(ctx context.Context, from, to string) (digest string, total int64, err error) {
	entries, err := os.ReadDir(from) // sorted by name
	if err != nil {
		return "", 0, err
	}
	all := sha256.New()
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") { // as the shell's * does
			continue
		}
		if !e.Type().IsRegular() {
			return "", 0, fmt.Errorf("the directory holds %q, which is no plain file", e.Name())
		}
		in, err := os.Open(filepath.Join(from, e.Name()))
		if err != nil {
			return "", 0, err
		}
		sum := sha256.New()
		n, err := writeSparse(ctx, io.TeeReader(in, sum), filepath.Join(to, e.Name()))
		if err = errors.Join(err, in.Close()); err != nil {
			return "", 0, err
		}
		total += n
		fmt.Fprintf(all, "%x  %s\n", sum.Sum(nil), e.Name())
	}
	return digestOf(all), total, nil
}

// cancelled is a reader that ends with the context.
type cancelled struct {
	ctx context.Context
	in  io.Reader
}

func (c cancelled) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.in.Read(b)
}

// writeSparse writes a file and leaves long runs of zeros as holes: disks are mostly that.
func writeSparse(ctx context.Context, in io.Reader, path string) (size int64, err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffer, zeros := make([]byte, 1<<20), make([]byte, 1<<20)
	for {
		n, err := io.ReadFull(cancelled{ctx, in}, buffer)
		if n > 0 && !bytes.Equal(buffer[:n], zeros[:n]) {
			if _, err := out.WriteAt(buffer[:n], size); err != nil {
				return size, err
			}
		}
		size += int64(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return size, errors.Join(out.Truncate(size), out.Sync())
		}
		if err != nil {
			return size, err
		}
	}
}

func (d *Daemon) removeImage(c *call) (answer, error) {
	if err := c.empty(); err != nil {
		return answer{}, err
	}
	name := mux.Vars(c.Request)["name"]
	if err := api.CheckName("name", name, api.MaxVMName); err != nil {
		return answer{}, err
	}
	path := d.importedPath(name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return answer{}, api.Errorf(api.CodeNotFound, "this host has imported no image %q; fluxctl image ls lists them", name)
	}
	// A VM may read its image's kernel at each start.
	if n := d.madeFrom(path); n > 0 {
		return answer{}, api.Errorf(api.CodeConflict, "VMs made from image %s are on this host: %d; delete them first", name, n)
	}
	gone := d.importedPath(name + "." + uuid.NewString() + partSuffix)
	if err := os.Rename(path, gone); err != nil {
		return answer{}, fmt.Errorf("removing the image: %w", err)
	}
	if err := os.RemoveAll(gone); err != nil {
		return answer{}, fmt.Errorf("removing the image: %w", err)
	}
	d.record(c.actor, "image.remove", name, "ok", nil)
	d.beats.poke()
	return answer{status: http.StatusNoContent}, nil
}

func (d *Daemon) madeFrom(path string) (n int) {
	for _, v := range d.list() {
		if v.size.Image == path {
			n++
		}
	}
	return n
}

// withImported puts the imported images among those that VMs were made from, which it finds by their directories.
func (d *Daemon) withImported(others []api.HostImage) []api.HostImage {
	all := d.importedImages()
	out := slices.DeleteFunc(others, func(i api.HostImage) bool {
		_, is := all[filepath.Base(i.Path)]
		return is && i.Path == d.importedPath(filepath.Base(i.Path))
	})
	for name, about := range all {
		out = append(out, api.HostImage{Path: api.LocalImage + name, VMs: d.madeFrom(d.importedPath(name)), Digest: about.Digest, Bytes: about.Bytes})
	}
	slices.SortFunc(out, func(a, b api.HostImage) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Backend, b.Backend))
	})
	return out
}

// sweepImports removes what an import left that the daemon did not live to finish.
func (d *Daemon) sweepImports() {
	left, _ := filepath.Glob(d.importedPath("*" + partSuffix))
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			d.log.Warn("an import that was cut off is not removed", "path", path, "error", err)
		}
	}
}
