package layout

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

var pureRule = rule{"fsm is a pure function of the log", "equal logs must give equal state on every replica, today and after a restart", findImpure}

// impureImports bring clock, randomness, input and output or logging along.
var impureImports = []string{"os", "net", "log", "io/ioutil", "io/fs", "math/rand", "crypto/rand", "syscall", "runtime", "testing", "hash/maphash",
	"github.com/google/uuid", "github.com/hashicorp/go-hclog", "github.com/hashicorp/go-metrics", "github.com/hashicorp/raft", "golang.org/x/sys"}

// impureCalls are functions of packages that are fine otherwise.
var impureCalls = map[string][]string{
	"time":    {"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
	"fmt":     {"Print", "Printf", "Println", "Scan", "Scanf", "Scanln"},
}

func findImpure(t *tree) (found []violation, err error) {
	var files []*ast.File
	for _, f := range t.packages()["fsm"] {
		if f.test {
			continue
		}
		files = append(files, f.syntax)
		for _, p := range f.imports() {
			if below(p, impureImports...) {
				found = append(found, violation{f.path, "imports " + p + "; what it gives must arrive inside the command"})
			}
		}
	}
	if len(files) == 0 {
		return nil, nil
	}
	lookup, err := exports(files)
	if err != nil {
		return nil, err
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(t.fset, "gc", lookup)}
	if _, err := config.Check(module+"/fsm", t.fset, files, info); err != nil {
		return nil, fmt.Errorf("checking the types of fsm: %w", err)
	}
	for _, f := range files {
		found = append(found, impureIn(t, f, info)...)
	}
	return found, nil
}

func impureIn(t *tree, f *ast.File, info *types.Info) (found []violation) {
	say := func(n ast.Node, format string, args ...any) {
		found = append(found, violation{t.at(n.Pos()), fmt.Sprintf(format, args...)})
	}
	sorted := map[ast.Expr]bool{} // arguments of slices.Sorted and the like
	ast.Inspect(f, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.GoStmt:
			say(x, "starts a goroutine; return what is to be done instead")
		case *ast.RangeStmt:
			if _, ok := info.TypeOf(x.X).Underlying().(*types.Map); ok {
				say(x, "ranges over a map, whose order differs between replicas; range over its sorted keys")
			}
		case *ast.CallExpr:
			pkg, name := called(x, info)
			if pkg == "slices" && strings.HasPrefix(name, "Sorted") && len(x.Args) > 0 {
				sorted[x.Args[0]] = true
			}
			if pkg == "maps" && slices.Contains([]string{"Keys", "Values", "All"}, name) && !sorted[x] {
				say(x, "takes the unsorted maps.%s; wrap it in slices.Sorted", name)
			}
			if slices.Contains(impureCalls[pkg], name) {
				say(x, "calls %s.%s; time arrives inside the command, and output is the caller's", pkg, name)
			}
		case *ast.Ident:
			if fn, ok := info.Uses[x].(*types.Func); ok && fn.Pkg() != nil && fn.Pkg().Path() == "time" && slices.Contains(impureCalls["time"], x.Name) && fn.Signature().Recv() == nil {
				say(x, "uses time.%s; time arrives inside the command", x.Name)
			}
		}
		if e, ok := n.(ast.Expr); ok && float(info.Types[e]) {
			say(e, "computes with a float, whose rounding may differ; use whole numbers with their unit in the name")
			return false
		}
		return true
	})
	return found
}

func float(tv types.TypeAndValue) bool {
	basic, ok := types.Unalias(orInvalid(tv.Type)).Underlying().(*types.Basic)
	return ok && basic.Info()&(types.IsFloat|types.IsComplex) != 0
}

func orInvalid(typ types.Type) types.Type {
	if typ == nil {
		return types.Typ[types.Invalid]
	}
	return typ
}

// called names the package and function of a call, empty for methods and values.
func called(call *ast.CallExpr, info *types.Info) (pkg, name string) {
	fun := call.Fun
	if generic, ok := fun.(*ast.IndexExpr); ok {
		fun = generic.X
	}
	selector, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	if fn, ok := info.Uses[selector.Sel].(*types.Func); ok && fn.Pkg() != nil && fn.Signature().Recv() == nil {
		return fn.Pkg().Path(), fn.Name()
	}
	return "", ""
}

// exports asks the go command for the compiled form of everything the files import.
func exports(files []*ast.File) (importer.Lookup, error) {
	paths := map[string]bool{}
	for _, f := range files {
		for _, spec := range f.Imports {
			paths[strings.Trim(spec.Path.Value, `"`)] = true
		}
	}
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", "--"}, slices.Sorted(maps.Keys(paths))...)
	out, err := exec.Command("go", args...).Output()
	if err != nil {
		var stderr []byte
		if exit, ok := err.(*exec.ExitError); ok {
			stderr = exit.Stderr
		}
		return nil, fmt.Errorf("compiling what fsm imports: %w: %s", err, stderr)
	}
	compiled := map[string]string{}
	for line := range strings.Lines(string(out)) {
		p, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		compiled[p] = file
	}
	return func(p string) (io.ReadCloser, error) {
		if compiled[p] == "" {
			return nil, fmt.Errorf("the go command compiled no %s", p)
		}
		return os.Open(compiled[p])
	}, nil
}
