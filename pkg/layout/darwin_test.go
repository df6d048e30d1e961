package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// macPackage is one package as go list gives it for a Mac.
type macPackage struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	CgoFiles   []string
	ImportMap  map[string]string
	Module     *struct{ Path string }
}

// forMac lists what a Mac's programs are made of, dependencies first. Tools that only Linux runs are not among it.
func forMac(t *testing.T) (list []macPackage) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,ImportMap,Module",
		"./cmd/fluxvm-agent", "./cmd/fluxctl", "./cmd/fluxvm-guest", "./cmd/terraform-provider-fluxvm", "./node/...", "./pkg/...")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=1")
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("listing the packages of a Mac: %v: %s", err, said.String())
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p macPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// macChecker type-checks packages as a Mac's compiler would, with cgo's names taken as they are, since no SDK of Apple's is
// here. Of packages that are not ours only what can be seen from outside is read, and no fault is reported.
type macChecker struct {
	fset    *token.FileSet
	known   map[string]*types.Package
	checked map[string]bool // files, by path
	faults  []string
}

// check takes the package whose imports were checked before. changed holds sources in place of those on disk.
func (m *macChecker) check(p macPackage, changed map[string]string) {
	if p.ImportPath == "unsafe" {
		return
	}
	var files []*ast.File
	for _, name := range append(p.GoFiles, p.CgoFiles...) {
		path := filepath.Join(p.Dir, name)
		var text any
		if c, ok := changed[path]; ok {
			text = c
		}
		f, err := parser.ParseFile(m.fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			m.faults = append(m.faults, err.Error())
			continue
		}
		files, m.checked[path] = append(files, f), true
	}
	conf := types.Config{
		FakeImportC: true, IgnoreFuncBodies: !p.ours(), Sizes: types.SizesFor("gc", "arm64"), Importer: importers{m.known, p.ImportMap},
		Error: func(err error) {
			if p.ours() {
				m.faults = append(m.faults, err.Error())
			}
		},
	}
	m.known[p.ImportPath], _ = conf.Check(p.ImportPath, m.fset, files, nil)
}

func (p macPackage) ours() bool { return p.Module != nil && p.Module.Path == module }

// importers finds what was checked before.
type importers struct {
	known map[string]*types.Package
	names map[string]string // as go list maps them: vendored ones
}

func (i importers) Import(path string) (*types.Package, error) {
	if to := i.names[path]; to != "" {
		path = to
	}
	if p := i.known[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed", path)
}

func TestFilesForMacsTypeCheck(t *testing.T) {
	list := forMac(t)
	m := &macChecker{fset: token.NewFileSet(), known: map[string]*types.Package{"unsafe": types.Unsafe}, checked: map[string]bool{}}
	for _, p := range list {
		m.check(p, nil)
	}
	for _, f := range m.faults {
		t.Error(f)
	}
	tree, err := read(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	for _, f := range tree.files {
		path, err := filepath.Abs(filepath.Join("../..", f.path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_darwin.go") || strings.HasSuffix(path, "_darwin_arm64.go") {
			if seen = append(seen, path); !m.checked[path] {
				t.Errorf("%s was not checked: do its build tags name a system beside darwin?", f.path)
			}
		}
	}
	if len(seen) < 3 {
		t.Errorf("looked at %d files for Macs", len(seen))
	}
	t.Run("a planted fault is found", func(t *testing.T) { plantFaults(t, m, list, seen) })
}

// plantFaults proves the check by faults of many kinds in the one file that speaks to Apple's framework, and by one in each
// other file that only a Mac compiles. files are by path.
func plantFaults(t *testing.T, m *macChecker, list []macPackage, files []string) {
	host := ""
	for _, path := range files {
		if strings.HasSuffix(path, "/node/vz/host_darwin_arm64.go") {
			host = path
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if said := m.faultsOf(t, list, path, string(raw)+"\nvar _ int = plantedFault\n"); !strings.Contains(said, "plantedFault") {
			t.Errorf("%s: a fault in it is not found: %q", path, said)
		}
		if said := m.faultsOf(t, list, path, string(raw)); said != "" {
			t.Errorf("%s: without a fault the check said %q", path, said)
		}
	}
	raw, err := os.ReadFile(host)
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ right, wrong, says string }{
		"a method that the framework's package lacks": {"g.vm.RequestStop()", "g.vm.RequestHalt()", "RequestHalt"},
		"an argument of another type":                 {"SetDisplays(display)", "SetDisplays(p.Display)", "SetDisplays"},
		"a field that our plan lacks":                 {"p.MemoryMiB<<20", "p.MemoryMB<<20", "MemoryMB"},
		"an interface that is not kept":               {") Ask() error", ") Beg() error", "missing method Ask"},
		"a number that is not the framework's":        {"[codeLimitExceeded-", "[codeLimitExceeded+1-", "out of bounds"},
		"a number that is too small":                  {"[codeLimitExceeded-", "[codeLimitExceeded-1-", "must not be negative"},
		"a call that needs another order of words":    {"(silence[0], serial)", "(serial, p)", "cannot use p"},
	} {
		text := strings.Replace(string(raw), c.right, c.wrong, 1)
		if text == string(raw) {
			t.Fatalf("%q is not in the file any more; plant another fault", c.right)
		}
		if said := m.faultsOf(t, list, host, text); !strings.Contains(said, c.says) {
			t.Errorf("%s: the check said %q, want %q in it", what, said, c.says)
		}
	}
}

// faultsOf checks the file's package anew with another text in its place.
func (m *macChecker) faultsOf(t *testing.T, list []macPackage, path, text string) string {
	t.Helper()
	at := slices.IndexFunc(list, func(p macPackage) bool { return p.Dir == filepath.Dir(path) })
	if at < 0 {
		t.Fatalf("the package of %s is not among those of a Mac", path)
	}
	before := m.known[list[at].ImportPath]
	m.faults = nil
	m.check(list[at], map[string]string{path: text})
	m.known[list[at].ImportPath] = before // others were checked against it
	return strings.Join(m.faults, "; ")
}
