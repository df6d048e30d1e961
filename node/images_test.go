package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/api"
)

func sum(raw []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(raw)) }

// archive is a tar of the files, in order, packed with gzip.
func archive(t *testing.T, files ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	w := tar.NewWriter(packed)
	for _, h := range files {
		text := h.Uname // where these tests keep what a file holds
		h.Uname, h.Mode = "", 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)[:h.Size]); err != nil {
			t.Fatal(err)
		}
	}
	if w.Close() != nil || packed.Close() != nil {
		t.Fatal("the archive cannot be made")
	}
	return out.Bytes()
}

func file(name, text string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Uname: text}
}

func (h *host) imports() (names []string) {
	entries, _ := os.ReadDir(filepath.Join(h.dir, importedDir))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestImportedImagesAreCheckedReportedAndBooted(t *testing.T) {
	h := newHost(t, nil)
	source := t.TempDir()
	disk := append(make([]byte, 3<<20), "the end"...)
	packed := archive(t, tar.Header{Name: "mac/", Typeflag: tar.TypeDir}, file("mac/._disk.img", "xattr"), file("mac/disk.img", string(disk)), file("mac/.DS_Store", "x"), file("mac/aux.img", "aux"))
	for name, raw := range map[string][]byte{"disk.raw": disk, "mac.tar.gz": packed, "dir/aux.img": []byte("aux"), "dir/disk.img": disk, "dir/.DS_Store": []byte("x")} {
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lines := fmt.Sprintf("%x  aux.img\n%x  disk.img\n", sha256.Sum256([]byte("aux")), sha256.Sum256(disk))
	for name, c := range map[string]struct {
		from, digest string
		files        []string
	}{
		"a-disk":      {"disk.raw", sum(disk), []string{"disk.img"}},
		"an-archive":  {"mac.tar.gz", sum(packed), []string{"aux.img", "disk.img"}},
		"a-directory": {"dir", sum([]byte(lines)), []string{"aux.img", "disk.img"}},
	} {
		req := fields{"name": name, "from": filepath.Join(source, c.from), "digest": sum([]byte("another"))}
		if e := h.refused(api.CodeInvalid, "POST", "/v1/images", req); e.Field != "digest" || !strings.Contains(e.Detail, c.digest) {
			t.Errorf("%s: got %+v, want the digest that it has", name, e)
		}
		if left := h.imports(); slices.Contains(left, name) || slices.ContainsFunc(left, func(n string) bool { return strings.HasSuffix(n, partSuffix) }) {
			t.Errorf("%s: a refused import leaves %v", name, left)
		}
		req["digest"] = c.digest
		h.want(201, "POST", "/v1/images", req)
		h.want(200, "POST", "/v1/images", req) // a repeat
		req["digest"] = sum([]byte("newer"))
		h.refused(api.CodeConflict, "POST", "/v1/images", req)
		if left, err := filepath.Glob(filepath.Join(h.dir, importedDir, name, ".[D_]*")); err != nil || len(left) > 0 {
			t.Errorf("%s: what a Mac adds is imported, too: %q, %v", name, left, err)
		}
		for _, f := range c.files {
			raw, err := os.ReadFile(filepath.Join(h.dir, importedDir, name, f))
			if err != nil || f == "disk.img" && !bytes.Equal(raw, disk) {
				t.Errorf("%s: %s holds %d bytes, %v", name, f, len(raw), err)
			}
		}
	}
	if got, want := h.report().Images, []string{"local:a-directory", "local:a-disk", "local:an-archive"}; !slices.Equal(got, want) {
		t.Errorf("the report names %q, want %q", got, want)
	}
	// What was cut off is gone with the next start, and what is whole stays.
	if err := os.Mkdir(filepath.Join(h.dir, importedDir, "x.123"+partSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	h.restart()
	if got, want := h.imports(), []string{"a-directory", "a-disk", "an-archive"}; !slices.Equal(got, want) {
		t.Errorf("a restart leaves %q, want %q", got, want)
	}
	if path, err := h.localImage("local:a-disk"); err != nil || path != filepath.Join(h.dir, importedDir, "a-disk") {
		t.Errorf("a create finds %q, %v", path, err)
	}
	if _, err := h.localImage("local:../../etc"); err == nil {
		t.Error("an image outside the directory is found")
	}
	h.want(204, "DELETE", "/v1/images/a-disk", nil)
	h.refused(api.CodeNotFound, "DELETE", "/v1/images/a-disk", nil)
	items := decode[api.List[api.HostImage]](t, h.want(200, "GET", "/v1/images", nil)).Items
	if len(items) != 2 || items[0].Path != "local:a-directory" || items[0].Digest != sum([]byte(lines)) || items[0].Bytes != int64(len(disk))+3 {
		t.Errorf("got %+v", items)
	}
}

func TestArchivesThatReachOutsideAreRefused(t *testing.T) {
	h := newHost(t, nil)
	for name, files := range map[string][]tar.Header{
		"a link":       {{Name: "disk.img", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}},
		"a deep file":  {file("a/b/c", "x")},
		"two of one":   {file("disk.img", "x"), file("a/disk.img", "y")},
		"a hidden one": {file("a/.fluxvm.json", "{}")},
	} {
		path := filepath.Join(t.TempDir(), "x.tgz")
		raw := archive(t, files...)
		if err := os.WriteFile(path, raw, fs.FileMode(0o600)); err != nil {
			t.Fatal(err)
		}
		if w := h.do("POST", "/v1/images", fields{"name": "x", "from": path, "digest": sum(raw)}); w.Code < 400 {
			t.Errorf("%s is imported", name)
		}
		if left := h.imports(); len(left) > 0 {
			t.Errorf("%s leaves %v", name, left)
		}
	}
	for field, req := range map[string]fields{
		"name":   {"name": "../x", "from": "/x", "digest": sum(nil)},
		"from":   {"name": "x", "from": "http://10.0.0.1/x", "digest": sum(nil)},
		"digest": {"name": "x", "from": "/x", "digest": "md5:1"},
	} {
		if e := h.refused(api.CodeInvalid, "POST", "/v1/images", req); e.Field != field {
			t.Errorf("%v: got %+v", req, e)
		}
	}
}

func TestAnImageThatVMsWereMadeFromStays(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newHost(t, nil)
		id := h.boot(nil)
		v, err := h.find(id)
		if err != nil {
			t.Fatal(err)
		}
		v.size.Image = h.importedPath("used")
		if err := os.MkdirAll(h.importedPath("used"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := keepImported(h.importedPath("used"), imported{Digest: "sha256:x"}); err != nil {
			t.Fatal(err)
		}
		h.refused(api.CodeConflict, "DELETE", "/v1/images/used", nil)
		h.want(204, "DELETE", "/v1/vms/"+id, nil)
		h.want(204, "DELETE", "/v1/images/used", nil)
	})
}
