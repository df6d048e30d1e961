package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

// Path is where the console lies on every replica.
const Path = "/console/"

// Policy is the content security policy of every answer. The page may load what comes from here, speak to the replica
// that served it, and do nothing else: no inline script or style, no frame, no other host.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; manifest-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

//go:embed all:dist
var dist embed.FS

// unbuilt is committed, so that there is always something to embed; it is served while index.html is not there.
const unbuilt, index = "unbuilt.html", "index.html"

// file is one file as it is served.
type file struct {
	name        string
	raw, zipped []byte // zipped is nil where it would not be smaller
	etag        string
}

// Handler serves the files. Its answers are the same on every replica of one version and need no leader.
type Handler struct {
	files map[string]*file // by what follows Path; the empty name is the page
}

// New reads the files that this program was built with.
func New() (*Handler, error) {
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, fmt.Errorf("opening the console's files: %w", err)
	}
	return load(sub)
}

// Built says whether the real console is there.
func (h *Handler) Built() bool { return h.files[index] != nil }

func load(from fs.FS) (*Handler, error) {
	h := &Handler{files: map[string]*file{}}
	err := fs.WalkDir(from, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
			return err
		}
		raw, err := fs.ReadFile(from, p)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(raw)
		f := &file{name: p, raw: raw, etag: `"` + hex.EncodeToString(sum[:12]) + `"`}
		var small bytes.Buffer
		w, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		if small.Len() < len(raw)*9/10 {
			f.zipped = small.Bytes()
		}
		h.files[p] = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the console's files: %w", err)
	}
	page := h.files[index]
	if page == nil {
		page = h.files[unbuilt]
	}
	delete(h.files, unbuilt)
	h.files[""] = page
	return h, nil
}

// ServeHTTP answers GET and HEAD below Path, and / and /console with the way there.
func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	headers := w.Header()
	headers.Set("Content-Security-Policy", Policy)
	headers.Set("X-Content-Type-Options", "nosniff")
	headers.Set("X-Frame-Options", "DENY")
	headers.Set("Referrer-Policy", "no-referrer")
	headers.Set("Cross-Origin-Opener-Policy", "same-origin")
	headers.Set("Cross-Origin-Resource-Policy", "same-origin")
	headers.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	name, below := strings.CutPrefix(req.URL.Path, Path)
	if !below {
		http.Redirect(w, req, Path, http.StatusFound)
		return
	}
	f := h.files[name]
	if f == nil {
		http.Error(w, "there is no such file of the console; it begins at "+Path, http.StatusNotFound)
		return
	}
	headers.Set("Content-Type", kind(f.name))
	headers.Set("Cache-Control", "no-cache") // asked again each time, so that no page meets another version's script
	headers.Set("Vary", "Accept-Encoding")
	body, etag := f.raw, f.etag
	if f.zipped != nil && acceptsGzip(req) {
		body, etag = f.zipped, strings.TrimSuffix(f.etag, `"`)+`-gz"`
		headers.Set("Content-Encoding", "gzip")
	}
	headers.Set("ETag", etag)
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(body))
}

func acceptsGzip(req *http.Request) bool {
	return slices.ContainsFunc(strings.Split(req.Header.Get("Accept-Encoding"), ","), func(one string) bool {
		coding, weight, _ := strings.Cut(strings.TrimSpace(one), ";")
		return coding == "gzip" && strings.TrimSpace(weight) != "q=0"
	})
}

// kind is the type of a file. It does not ask the host, whose tables differ.
func kind(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".json", ".webmanifest":
		return "application/json"
	}
	return "application/octet-stream"
}
