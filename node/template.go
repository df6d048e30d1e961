package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// templatePrefix begins the name of a template among the snapshots; a snapshot's own name has no dot.
	templatePrefix = "template."

	// keepTemplates is how many templates stay; the ones longest not used go.
	keepTemplates = 8

	// templateRetry is how long after a failed attempt nobody tries to make that template.
	templateRetry = 10 * time.Minute
)

func (d *Daemon) snapshotsDir() string { return filepath.Join(d.cfg.DataDir, leftSnapshots) }

// templates are the saved states that VMs of one kind start from.
type templates struct {
	mu     sync.Mutex
	ready  map[string]time.Time // when last used, by directory
	making map[string]bool
	failed map[string]time.Time
}

func newTemplates() *templates {
	return &templates{ready: map[string]time.Time{}, making: map[string]bool{}, failed: map[string]time.Time{}}
}

// load finds those that an earlier daemon made, and removes what is half made.
func (t *templates) load(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for templates: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasSuffix(e.Name(), ".part"):
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("removing a template that is half made: %w", err)
			}
		case strings.HasPrefix(e.Name(), templatePrefix):
			t.ready[path] = time.Now()
		}
	}
	return nil
}

// has says whether the template can be used, and that it is.
func (t *templates) has(dir string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.ready[dir]
	if ok {
		t.ready[dir] = time.Now()
	}
	return ok
}

// begin says whether the caller is to make the template; it then calls end.
func (t *templates) begin(dir string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ready := t.ready[dir]
	if failed, ok := t.failed[dir]; ready || t.making[dir] || ok && time.Since(failed) < templateRetry {
		return false
	}
	t.making[dir] = true
	return true
}

// end says how making it went. With too many templates the one longest not used is removed: who started from it has
// files of its own.
func (t *templates) end(dir string, made bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.making, dir)
	if !made {
		t.failed[dir] = time.Now()
		return
	}
	delete(t.failed, dir)
	t.ready[dir] = time.Now()
	for len(t.ready) > keepTemplates {
		var oldest string
		for d, used := range t.ready {
			if oldest == "" || used.Before(t.ready[oldest]) {
				oldest = d
			}
		}
		t.dropLocked(oldest)
	}
}

func (t *templates) drop(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dropLocked(dir)
}

func (t *templates) dropLocked(dir string) {
	delete(t.ready, dir)
	_ = os.RemoveAll(dir) // one that stays is found and used up by the next daemon
}

// clear forgets all of them: a scrub has removed them.
func (t *templates) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.ready)
	clear(t.failed)
}

// images are the names of snapshots in the directory, sorted.
func snapshotNames(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}
