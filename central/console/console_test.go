package console

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
)

func built(t *testing.T) *Handler {
	t.Helper()
	h, err := load(fstest.MapFS{
		"unbuilt.html": {Data: []byte("not built")},
		"index.html":   {Data: []byte("<!doctype html><title>built</title>")},
		"app.js":       {Data: []byte(strings.Repeat("console.log('fluent');\n", 100))},
		".hidden":      {Data: []byte("no")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func ask(h http.Handler, method, path string, header ...string) *http.Response {
	req := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w.Result()
}

func text(t *testing.T, resp *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestEveryAnswerKeepsThePageToItself(t *testing.T) {
	h := built(t)
	for _, path := range []string{"/", "/console", "/console/", "/console/app.js", "/console/absent"} {
		resp := ask(h, "GET", path)
		for name, want := range map[string]string{"Content-Security-Policy": Policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestThePolicyAllowsNothingInlineAndNoOtherHost(t *testing.T) {
	for directive := range strings.SplitSeq(Policy, "; ") {
		name, sources, _ := strings.Cut(directive, " ")
		for source := range strings.FieldsSeq(sources) {
			if source != "'none'" && source != "'self'" && directive != "require-trusted-types-for 'script'" {
				t.Errorf("%s allows %s", name, source)
			}
		}
	}
	for _, must := range []string{"default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"} {
		if !strings.Contains(Policy, must) {
			t.Errorf("the policy lacks %s, which default-src does not cover", must)
		}
	}
}

func TestRootLeadsToTheConsole(t *testing.T) {
	for _, path := range []string{"/", "/console"} {
		if resp := ask(built(t), "GET", path); resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != Path {
			t.Errorf("%s: %d to %q, want 302 to %s", path, resp.StatusCode, resp.Header.Get("Location"), Path)
		}
	}
}

func TestFilesAreServedWithTypeAndETag(t *testing.T) {
	h := built(t)
	page := ask(h, "GET", "/console/")
	if got := text(t, page); page.StatusCode != 200 || !strings.Contains(got, "<title>built") || page.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("the page: %d %s %q", page.StatusCode, page.Header.Get("Content-Type"), got)
	}
	script := ask(h, "GET", "/console/app.js")
	if script.Header.Get("Content-Type") != "text/javascript; charset=utf-8" || script.Header.Get("Cache-Control") != "no-cache" || script.Header.Get("ETag") == "" {
		t.Errorf("the script's headers: %v", script.Header)
	}
	if again := ask(h, "GET", "/console/app.js", "If-None-Match", script.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
		t.Errorf("asked again with its ETag: %d, want 304", again.StatusCode)
	}
	if head := ask(h, "HEAD", "/console/"); head.StatusCode != 200 || text(t, head) != "" {
		t.Errorf("HEAD: %d with a body, want 200 without", head.StatusCode)
	}
	for _, absent := range []string{"/console/absent.js", "/console/unbuilt.html", "/console/.hidden", "/console/../console.go", "/console//app.js"} {
		if resp := ask(h, "GET", absent); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d, want 404", absent, resp.StatusCode)
		}
	}
}

func TestWhoTakesGzipGetsTheSameContent(t *testing.T) {
	h := built(t)
	plain, small := ask(h, "GET", "/console/app.js"), ask(h, "GET", "/console/app.js", "Accept-Encoding", "br, gzip;q=0.8")
	if small.Header.Get("Content-Encoding") != "gzip" || small.Header.Get("ETag") == plain.Header.Get("ETag") || small.Header.Get("Vary") != "Accept-Encoding" {
		t.Fatalf("headers: %v, want gzip under an ETag of its own", small.Header)
	}
	r, err := gzip.NewReader(small.Body)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil || string(raw) != text(t, plain) {
		t.Errorf("unzipped: %v, %d bytes, want what is served plain", err, len(raw))
	}
	if refused := ask(h, "GET", "/console/app.js", "Accept-Encoding", "gzip;q=0"); refused.Header.Get("Content-Encoding") != "" {
		t.Error("gzip is sent to a client that refuses it")
	}
}

func TestAProgramWithoutTheConsoleSaysHowToBuildIt(t *testing.T) {
	raw, err := fs.ReadFile(dist, "dist/"+unbuilt)
	if err != nil {
		t.Fatal(err)
	}
	h, err := load(fstest.MapFS{unbuilt: {Data: raw}})
	if err != nil {
		t.Fatal(err)
	}
	if h.Built() {
		t.Error("it says that it is built")
	}
	if resp := ask(h, "GET", "/console/"); resp.StatusCode != 200 || !strings.Contains(text(t, resp), "make console") {
		t.Errorf("%d, want the page that names make console", resp.StatusCode)
	}
}

// inlined finds what the policy refuses in a page: script without src, style, and event attributes.
func inlined(page string) string {
	return regexp.MustCompile(`(?i)<script(?:\s+[a-z]+(?:="(?:module)?")?)*\s*>|<style|\sstyle=|\son[a-z]+=|javascript:`).FindString(page)
}

func TestThePagesOfThisProgramFitThePolicy(t *testing.T) {
	for _, bad := range []string{`<script>x</script>`, `<script type="module">x</script>`, `<p style="color:red">`, `<body onload="x()">`, `<style>`} {
		if inlined(bad) == "" {
			t.Errorf("%s is not noticed", bad)
		}
	}
	h, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range h.files {
		if strings.HasSuffix(f.name, ".html") {
			if found := inlined(string(f.raw)); found != "" {
				t.Errorf("%q holds %q, which the policy refuses", name, found)
			}
		}
	}
}
