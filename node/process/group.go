//go:build linux

package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// Controllers of control groups that machines are bounded with.
const (
	Memory  = "memory"
	PIDs    = "pids"
	CPU     = "cpu"
	Freezer = "freezer"
)

// daemonGroup is where a daemon of version 2 moves itself: a group with processes of its own can have no bounded ones
// below it. The unit file names it as well.
const daemonGroup = "daemon"

// Groups are the control groups that this daemon may make, by what bounds them. The zero value can make none.
type Groups struct {
	parents map[string]string // directory in which a controller's groups are made
	unified bool              // version 2: all parents are one
}

// FindGroups looks for control groups of either version that the daemon may make groups in. What is missing is left
// out: no version, no right to write, a controller that the kernel lacks.
func FindGroups() (Groups, error) { return findGroups("/proc/self", os.Getpid()) }

func findGroups(self string, pid int) (Groups, error) {
	mounts, err := os.ReadFile(filepath.Join(self, "mountinfo"))
	if err != nil {
		return Groups{}, fmt.Errorf("looking for control groups: %w", err)
	}
	own, err := os.ReadFile(filepath.Join(self, "cgroup"))
	if err != nil {
		return Groups{}, fmt.Errorf("looking for control groups: %w", err)
	}
	g := Groups{parents: map[string]string{}}
	at := mountedAt(string(mounts), string(own))
	for _, controller := range []string{Memory, PIDs, CPU, Freezer} {
		if dir := at[controller]; dir != "" && canMake(dir, pid) {
			g.parents[controller] = dir
		}
	}
	if dir := at[""]; dir != "" && g.parents[Memory] == "" {
		if parent := openUnified(dir, pid); parent != "" {
			g = Groups{unified: true, parents: map[string]string{Memory: parent, PIDs: parent, CPU: parent, Freezer: parent}}
		}
	}
	return g, nil
}

// mountedAt is the process's own directory for each controller of version 1, and for version 2 under the empty name.
func mountedAt(mountinfo, cgroup string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(cgroup) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			for name := range strings.SplitSeq(f[1], ",") {
				paths[name] = f[2]
			}
		}
	}
	out := map[string]string{}
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, kind := strings.Fields(before), strings.Fields(after)
		if len(f) < 5 || len(kind) < 3 {
			continue
		}
		place := func(name string) {
			if path, ok := paths[name]; ok {
				out[name] = filepath.Join(f[4], strings.TrimPrefix(path, strings.TrimSuffix(f[3], "/")))
			}
		}
		switch kind[0] {
		case "cgroup2":
			place("")
		case "cgroup":
			for name := range strings.SplitSeq(kind[2], ",") {
				place(name)
			}
		}
	}
	return out
}

// canMake says whether groups can be made in the directory, by making one.
func canMake(dir string, pid int) bool {
	probe := filepath.Join(dir, fmt.Sprintf("fluxvm-probe-%d", pid))
	return os.Mkdir(probe, 0o755) == nil && os.Remove(probe) == nil
}

// openUnified readies a group of version 2 for bounded groups below it and gives its directory; empty where that may
// not be. The daemon's own processes go to a group beside them.
func openUnified(own string, pid int) string {
	parent := own
	if filepath.Base(own) == daemonGroup {
		parent = filepath.Dir(own)
	}
	has, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil || !slices.Contains(strings.Fields(string(has)), Memory) || !canMake(parent, pid) {
		return ""
	}
	if parent == own {
		leaf := filepath.Join(own, daemonGroup)
		if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return ""
		}
		if writeFile(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid)) != nil {
			return ""
		}
	}
	for _, c := range []string{Memory, PIDs, CPU} {
		if err := writeFile(filepath.Join(parent, "cgroup.subtree_control"), "+"+c); err != nil && c == Memory {
			return ""
		}
	}
	return parent
}

// Has says whether groups can be made with the controller.
func (g Groups) Has(controller string) bool { return g.parents[controller] != "" }

// String says what machines can be bounded with, for the log.
func (g Groups) String() string {
	var names []string
	for _, c := range []string{Memory, PIDs, CPU, Freezer} {
		if g.Has(c) {
			names = append(names, c)
		}
	}
	switch {
	case len(names) == 0:
		return "none"
	case g.unified:
		return "v2: " + strings.Join(names, " ")
	}
	return "v1: " + strings.Join(names, " ")
}

// Confinement is which of the controllers bound a machine here, in api's words.
func (g Groups) Confinement(controllers ...string) (words []string) {
	for _, c := range controllers {
		if g.Has(c) {
			words = append(words, api.ConfinedByGroup+c)
		}
	}
	return words
}

// Limits bound a machine. Zeros do not.
type Limits struct {
	MemoryMiB int64
	Processes int // and threads
	VCPUs     int
}

// Group is the control group of one machine, a directory for each controller.
type Group struct {
	dirs    map[string]string
	unified bool
}

// Make makes the machine's group, and notes in the file where it is so that a later daemon finds it. A group that is
// left from an earlier start is removed first.
func (g Groups) Make(id string, l Limits, note string) (*Group, error) {
	if old, err := OpenGroup(note); err == nil {
		if err := old.Remove(note); err != nil {
			return nil, err
		}
	}
	made := &Group{dirs: map[string]string{}, unified: g.unified}
	var lines strings.Builder
	for _, c := range []string{Memory, PIDs, CPU, Freezer} {
		if parent := g.parents[c]; parent != "" {
			made.dirs[c] = filepath.Join(parent, "fluxvm-"+id)
			fmt.Fprintf(&lines, "%s %t %s\n", c, g.unified, made.dirs[c])
		}
	}
	if len(made.dirs) == 0 {
		return made, nil
	}
	if err := os.WriteFile(note, []byte(lines.String()), 0o600); err != nil {
		return nil, fmt.Errorf("noting the control group: %w", err)
	}
	if err := made.make(l); err != nil {
		return nil, errors.Join(fmt.Errorf("making a control group: %w", err), made.Remove(note))
	}
	return made, nil
}

func (g *Group) make(l Limits) error {
	for _, dir := range g.dirs {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if l.MemoryMiB > 0 && g.dirs[Memory] != "" {
		bytes := strconv.FormatInt(l.MemoryMiB<<20, 10)
		if g.unified {
			if err := writeFile(filepath.Join(g.dirs[Memory], "memory.max"), bytes); err != nil {
				return err
			}
			_ = writeFile(filepath.Join(g.dirs[Memory], "memory.swap.max"), "0") // kernels without swap have no such file
		} else {
			if err := writeFile(filepath.Join(g.dirs[Memory], "memory.limit_in_bytes"), bytes); err != nil {
				return err
			}
			_ = writeFile(filepath.Join(g.dirs[Memory], "memory.memsw.limit_in_bytes"), bytes)
		}
	}
	if l.Processes > 0 && g.dirs[PIDs] != "" {
		if err := writeFile(filepath.Join(g.dirs[PIDs], "pids.max"), strconv.Itoa(l.Processes)); err != nil {
			return err
		}
	}
	if l.VCPUs > 0 && g.dirs[CPU] != "" {
		const period = 100000 // microseconds, the kernel's default
		quota := strconv.Itoa(l.VCPUs * period)
		name := "cpu.cfs_quota_us"
		if g.unified {
			name = "cpu.max"
		}
		if err := writeFile(filepath.Join(g.dirs[CPU], name), quota); err != nil {
			return err
		}
	}
	return nil
}

// OpenGroup is the group that the file notes.
func OpenGroup(note string) (*Group, error) {
	f, err := os.Open(note)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	g := &Group{dirs: map[string]string{}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.SplitN(lines.Text(), " ", 3)
		if len(words) == 3 && strings.HasPrefix(filepath.Base(words[2]), "fluxvm-") {
			g.unified = words[1] == "true"
			g.dirs[words[0]] = words[2]
		}
	}
	return g, lines.Err()
}

// Add puts the process, and what it starts from now on, into the group.
func (g *Group) Add(pid int) error {
	for _, dir := range g.distinct() {
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("putting process %d into its control group: %w", pid, err)
		}
	}
	return nil
}

func (g *Group) distinct() []string {
	var out []string
	for _, dir := range g.dirs {
		if !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	return out
}

// Freeze halts all processes of the group, or lets them go on, and returns when they are.
func (g *Group) Freeze(ctx context.Context, on bool) error {
	dir := g.dirs[Freezer]
	if dir == "" {
		return errors.New("this host has no control group that can halt processes")
	}
	file, word, state, want := "freezer.state", "THAWED", "freezer.state", "THAWED"
	if g.unified {
		file, word, state, want = "cgroup.freeze", "0", "cgroup.events", "frozen 0"
	}
	if on && g.unified {
		word, want = "1", "frozen 1"
	} else if on {
		word, want = "FROZEN", "FROZEN"
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for try := 1; ; try++ {
		// A freezer of version 1 can miss processes that are just being made, and then never gets there by itself: it is
		// told again, and now and then lets all go on for a moment.
		if on && !g.unified && try%50 == 0 {
			if err := writeFile(filepath.Join(dir, file), "THAWED"); err != nil {
				return fmt.Errorf("halting processes: %w", err)
			}
		}
		if try == 1 || !g.unified {
			if err := writeFile(filepath.Join(dir, file), word); err != nil {
				return fmt.Errorf("halting processes: %w", err)
			}
		}
		raw, err := os.ReadFile(filepath.Join(dir, state))
		if err != nil {
			return fmt.Errorf("halting processes: %w", err)
		}
		if strings.Contains(string(raw), want) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("halting processes: %w", ctx.Err())
		}
	}
}

// Frozen says whether the group is halted.
func (g *Group) Frozen() bool {
	name, want := "freezer.state", "FROZEN"
	if g.unified {
		name, want = "cgroup.freeze", "1"
	}
	raw, err := os.ReadFile(filepath.Join(g.dirs[Freezer], name))
	return err == nil && strings.TrimSpace(string(raw)) == want
}

// OutOfMemory says whether the kernel has ended a process of the group for its memory.
func (g *Group) OutOfMemory() bool {
	name := "memory.oom_control"
	if g.unified {
		name = "memory.events"
	}
	raw, _ := os.ReadFile(filepath.Join(g.dirs[Memory], name))
	for line := range strings.Lines(string(raw)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strings.TrimSpace(n) != "0"
		}
	}
	return false
}

// Remove takes the group away, whose processes have ended, and the note of it.
func (g *Group) Remove(note string) error {
	for _, dir := range g.distinct() {
		// The kernel counts a process in for a moment after it has ended.
		for end := time.Now().Add(killWithin); ; <-time.After(10 * time.Millisecond) {
			err := os.Remove(dir)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				return fmt.Errorf("removing a control group: %w", err)
			}
		}
	}
	if err := os.Remove(note); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing a control group: %w", err)
	}
	return nil
}

func writeFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
