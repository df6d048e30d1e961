package layout

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const (
	maxLines = 800
	maxDepth = 4
)

var shapeRules = []rule{
	{"depth", "a path that is hard to type hides what is in it", findDepth},
	{"file size", "what does not fit one sitting belongs into two files, named after the two nouns", findLong},
	{"package names", "a package called util holds what nobody could place", findNames},
	{"doc.go", "each package says what it owns and what it refuses to own", findDocs},
	{"no init", "what runs before main cannot be tested, ordered or left out", findInit},
	{"no mutable globals", "two fleets in one process must not share anything", findGlobals},
	{"command kinds", "a kind without sample and line is one that an old log cannot be checked against", findKinds},
}

func findDepth(t *tree) (found []violation, _ error) {
	for _, dir := range t.dirs() {
		if depth := len(strings.Split(dir, "/")); depth > maxDepth {
			found = append(found, violation{dir, fmt.Sprintf("lies %d deep, %d is the limit; move it up", depth, maxDepth)})
		}
	}
	return found, nil
}

func findLong(t *tree) (found []violation, _ error) {
	for _, f := range t.files {
		if f.lines > maxLines && !f.generated {
			found = append(found, violation{f.path, fmt.Sprintf("has %d lines, %d is the limit; split it by noun", f.lines, maxLines)})
		}
	}
	return found, nil
}

func findNames(t *tree) (found []violation, _ error) {
	banned := []string{"util", "utils", "common", "shared", "helper", "helpers", "types", "misc"}
	for _, dir := range t.dirs() {
		for _, f := range t.packages()[dir] {
			name := strings.TrimSuffix(f.syntax.Name.Name, "_test")
			if slices.Contains(banned, name) || slices.Contains(banned, path.Base(dir)) {
				found = append(found, violation{dir, fmt.Sprintf("is called %s; name it after what it holds", name)})
				break
			}
		}
	}
	return found, nil
}

func findDocs(t *tree) (found []violation, _ error) {
	for _, dir := range t.dirs() {
		files := slices.DeleteFunc(t.packages()[dir], func(f *source) bool { return f.test })
		if len(files) == 0 {
			continue
		}
		at := slices.IndexFunc(files, func(f *source) bool { return path.Base(f.path) == "doc.go" })
		if at < 0 || len(strings.TrimSpace(files[at].syntax.Doc.Text())) == 0 {
			found = append(found, violation{dir, "has no doc.go with a package comment; say what it owns, what it refuses to own and who calls it"})
		}
	}
	return found, nil
}

func findInit(t *tree) (found []violation, _ error) {
	for _, f := range t.files {
		for _, d := range f.syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				found = append(found, violation{t.at(fn.Pos()), "is an init function; do the work where it is asked for"})
			}
		}
	}
	return found, nil
}

// findGlobals resolves the names of each package without its imports, which is enough to know a package-level
// variable from everything else.
func findGlobals(t *tree) (found []violation, _ error) {
	packages := t.packages()
	for _, dir := range t.dirs() {
		byName := map[string][]*ast.File{}
		for _, f := range packages[dir] {
			if !f.test && !f.generated {
				byName[f.syntax.Name.Name] = append(byName[f.syntax.Name.Name], f.syntax)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			info := &types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}
			config := types.Config{Importer: noImports{}, Error: func(error) {}, DisableUnusedImportCheck: true}
			config.Check(dir, t.fset, byName[name], info) // its errors are those of the missing imports
			for _, f := range byName[name] {
				found = append(found, globalsIn(t, f, info)...)
			}
		}
	}
	return found, nil
}

// noImports stands for packages that are not looked at.
type noImports struct{}

func (noImports) Import(p string) (*types.Package, error) { return nil, fs.ErrNotExist }

func globalsIn(t *tree, f *ast.File, info *types.Info) (found []violation) {
	global := func(e ast.Expr) string {
		for {
			switch x := e.(type) {
			case *ast.Ident:
				if v, ok := info.Uses[x].(*types.Var); ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
					return x.Name
				}
				return ""
			case *ast.SelectorExpr:
				if pkg, ok := x.X.(*ast.Ident); ok {
					if _, imported := info.Uses[pkg].(*types.PkgName); imported {
						return pkg.Name + "." + x.Sel.Name
					}
				}
				e = x.X
			case *ast.IndexExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.SliceExpr:
				e = x.X
			default:
				return ""
			}
		}
	}
	say := func(pos token.Pos, name, what string) {
		found = append(found, violation{t.at(pos), fmt.Sprintf("%s the package-level variable %s; put it into a struct that is made and passed on", what, name)})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.AssignStmt:
			for _, left := range x.Lhs {
				if name := global(left); name != "" && x.Tok != token.DEFINE {
					say(x.Pos(), name, "changes")
				}
			}
		case *ast.IncDecStmt:
			if name := global(x.X); name != "" {
				say(x.Pos(), name, "changes")
			}
		case *ast.RangeStmt:
			for _, left := range []ast.Expr{x.Key, x.Value} {
				if left != nil && x.Tok == token.ASSIGN && global(left) != "" {
					say(x.Pos(), global(left), "changes")
				}
			}
		case *ast.UnaryExpr:
			if name := global(x.X); x.Op == token.AND && name != "" {
				say(x.Pos(), name, "takes the address of")
			}
		case *ast.CallExpr:
			if fn, ok := x.Fun.(*ast.Ident); ok && len(x.Args) > 0 && slices.Contains([]string{"delete", "clear", "copy"}, fn.Name) {
				if name := global(x.Args[0]); name != "" {
					say(x.Pos(), name, "changes")
				}
			}
		}
		return true
	})
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.VAR {
			continue
		}
		for _, spec := range decl.Specs {
			if name := lockType(spec.(*ast.ValueSpec)); name != "" {
				found = append(found, violation{t.at(spec.Pos()), "keeps a package-level " + name + "; put it into a struct that is made and passed on"})
			}
		}
	}
	return found
}

// lockType names the sync or atomic type of a variable: such a value only makes sense when it changes.
func lockType(spec *ast.ValueSpec) string {
	kind := spec.Type
	if kind == nil && len(spec.Values) == 1 {
		value := spec.Values[0]
		if and, ok := value.(*ast.UnaryExpr); ok {
			value = and.X
		}
		if literal, ok := value.(*ast.CompositeLit); ok {
			kind = literal.Type
		}
	}
	if generic, ok := kind.(*ast.IndexExpr); ok {
		kind = generic.X
	}
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if of, ok := kind.(*ast.SelectorExpr); ok {
		if pkg, ok := of.X.(*ast.Ident); ok && (pkg.Name == "sync" || pkg.Name == "atomic") {
			return pkg.Name + "." + of.Sel.Name
		}
	}
	return ""
}

// findKinds reads the constants of type Kind of fsm/command.go. There is nothing to find without that file.
func findKinds(t *tree) (found []violation, err error) {
	at := slices.IndexFunc(t.files, func(f *source) bool { return f.path == "fsm/command.go" })
	if at < 0 {
		return nil, nil
	}
	page, err := fs.ReadFile(t.fsys, "docs/consistency.md")
	if err != nil {
		return []violation{{"docs/consistency.md", "is missing; it explains every command kind"}}, nil
	}
	samples, err := sampleNames(t.fsys)
	if err != nil {
		return nil, err
	}
	numbers := map[string]string{}
	for _, k := range kindsOf(t.files[at].syntax) {
		if other, taken := numbers[k.value]; taken {
			found = append(found, violation{t.at(k.pos), fmt.Sprintf("gives %s the number of %s; numbers are never used twice", k.name, other)})
		}
		numbers[k.value] = k.name
		if !slices.Contains(samples, letters(k.name)) {
			found = append(found, violation{t.at(k.pos), fmt.Sprintf("%s has no golden sample in fsm/testdata; add a file named after it", k.name)})
		}
		if !strings.Contains(string(page), "`"+k.name+"`") {
			found = append(found, violation{t.at(k.pos), fmt.Sprintf("%s has no line in docs/consistency.md; add `%s` with what it decides", k.name, k.name)})
		}
	}
	return found, nil
}

type kind struct {
	name  string // without the prefix Kind
	value string
	pos   token.Pos
}

func kindsOf(f *ast.File) (all []kind) {
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec)
			if of, ok := spec.Type.(*ast.Ident); !ok || of.Name != "Kind" {
				continue
			}
			for i, name := range spec.Names {
				k := kind{name: strings.TrimPrefix(name.Name, "Kind"), pos: name.Pos(), value: strconv.Itoa(int(name.Pos()))}
				if literal, ok := spec.Values[i].(*ast.BasicLit); ok {
					k.value = literal.Value
				}
				all = append(all, k)
			}
		}
	}
	return all
}

// sampleNames lists the files under fsm/testdata by the letters of their names: 16-launch_vm.json is launchvm.
func sampleNames(fsys fs.FS) (names []string, err error) {
	if _, err := fs.Stat(fsys, "fsm/testdata"); err != nil {
		return nil, nil
	}
	err = fs.WalkDir(fsys, "fsm/testdata", func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			stem, _, _ := strings.Cut(path.Base(p), ".")
			names = append(names, letters(stem))
		}
		return err
	})
	return names, err
}

func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
}
