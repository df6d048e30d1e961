package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsNameTestsThatExist: a table that says which test holds a rule must not outlive the test.
func TestDocsNameTestsThatExist(t *testing.T) {
	root := "../.."
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9_]+)\(`)
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "build" || d.Name() == ".git" || d.Name() == "node_modules") {
			if err == nil {
				err = filepath.SkipDir
			}
			return err
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		raw, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(raw, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	named := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(Test[A-Z][A-Za-z0-9_]+)`").FindAllSubmatch(raw, -1) {
			if named++; !have[string(m[1])] {
				t.Errorf("%s names %s, and there is no such test", filepath.Base(page), m[1])
			}
		}
	}
	if named < 30 {
		t.Errorf("the pages name %d tests; the table of docs/warm-pools.md alone has more", named)
	}
}
