package layout

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/fluxvm/fluxvm"

// tree is the module's source, every .go file of it whatever its build tags.
type tree struct {
	fsys  fs.FS
	fset  *token.FileSet
	files []*source
}

// source is one .go file.
type source struct {
	path      string // from the module's root, with slashes
	dir       string // of the package: path without the file's name
	syntax    *ast.File
	lines     int
	test      bool
	generated bool
}

// violation is a place that breaks a rule. What ends with what to do instead.
type violation struct {
	where string
	what  string
}

// rule is one sentence of docs/architecture.md.
type rule struct {
	name string
	why  string
	find func(*tree) ([]violation, error)
}

// read parses the module. Directories that hold no source of this module are left out.
func read(fsys fs.FS) (*tree, error) {
	t := &tree{fsys: fsys, fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || slices.Contains([]string{"build", "bin", "testdata", "node_modules", "vendor"}, name)) {
				return fs.SkipDir
			}
			if _, err := fs.Stat(fsys, path.Join(p, "go.mod")); err == nil && p != "." {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		raw, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(t.fset, p, raw, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parsing: %w", err)
		}
		t.files = append(t.files, &source{path: p, dir: path.Dir(p), syntax: syntax, lines: bytes.Count(raw, []byte("\n")),
			test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(syntax)})
		return nil
	})
	return t, err
}

// imports lists what the file imports, as paths.
func (s *source) imports() []string {
	var all []string
	for _, spec := range s.syntax.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// inside turns an import path of this module into a directory.
func inside(importPath string) (dir string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// standard says whether the import is of the standard library.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}

// below says whether the directory is one of the roots or under it.
func below(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") })
}

// driver says whether the directory holds a way of running machines. node/machine is the contract drivers fulfil, and
// node/process what those have in common whose machines are processes.
func driver(dir string) bool {
	return below(dir, "node") && dir != "node" && !below(dir, "node/machine", "node/process")
}

// packages gives the files of each directory.
func (t *tree) packages() map[string][]*source {
	all := map[string][]*source{}
	for _, f := range t.files {
		all[f.dir] = append(all[f.dir], f)
	}
	return all
}

// dirs lists the directories that hold a package, in order.
func (t *tree) dirs() []string { return slices.Sorted(maps.Keys(t.packages())) }

// at is the place of a node in the source.
func (t *tree) at(pos token.Pos) string {
	p := t.fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// reached walks the imports of a package inside the module and gives, for every import path found on the way, the
// chain that led there. Tests of the package itself are walked, those of what it imports are not. pkg/fleettest ends
// the walk: it puts a whole fleet together.
func (t *tree) reached(dir string) map[string][]string {
	packages := t.packages()
	chains := map[string][]string{}
	var walk func(dir string, chain []string, tests bool)
	walk = func(dir string, chain []string, tests bool) {
		for _, f := range packages[dir] {
			if f.test && !tests {
				continue
			}
			for _, p := range f.imports() {
				if _, seen := chains[p]; seen {
					continue
				}
				chains[p] = append(slices.Clone(chain), f.path)
				if next, ok := inside(p); ok && next != "pkg/fleettest" {
					walk(next, chains[p], false)
				}
			}
		}
	}
	walk(dir, nil, true)
	return chains
}
