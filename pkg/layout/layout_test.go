package layout

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func allRules() []rule { return slices.Concat(importRules, shapeRules, []rule{pureRule}) }

func TestRepositoryKeepsItsRules(t *testing.T) {
	source, err := read(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(source.files) < 20 {
		t.Fatalf("found %d .go files; the rules were not tried on the repository", len(source.files))
	}
	for _, r := range allRules() {
		t.Run(strings.ReplaceAll(r.name, " ", "-"), func(t *testing.T) {
			found, err := r.find(source)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range found {
				t.Errorf("%s %s\n\tRule: %s, because %s.", v.where, v.what, r.name, r.why)
			}
		})
	}
}

// plant is a small tree and what the one rule must say of it; nothing when says is empty.
type plant struct {
	rule  string
	files map[string]string
	says  string
}

func TestEveryRuleFindsItsViolation(t *testing.T) {
	const mod = `"` + module
	used := map[string]bool{}
	for name, p := range map[string]plant{
		"a client that imports the daemon":      {"import table", map[string]string{"pkg/client/a.go": "package client\nimport _ " + mod + "/node\""}, "imports node; pkg/client may import only pkg/api"},
		"a package without a row":               {"import table", map[string]string{"pkg/other/a.go": "package other\nimport _ " + mod + "/pkg/api\""}, "has no row"},
		"a driver that imports the client":      {"import table", map[string]string{"node/vz/a.go": "package vz\nimport _ " + mod + "/pkg/client\""}, "imports pkg/client"},
		"a driver of parts":                     {"import table", map[string]string{"node/vz/a.go": "package vz\nimport _ " + mod + "/node/vz/disk\""}, ""},
		"the table under other build tags":      {"import table", map[string]string{"pkg/cli/a_darwin.go": "//go:build darwin && never\n\npackage cli\nimport _ " + mod + "/fsm\""}, "imports fsm"},
		"a provider with fsm":                   {"no fsm or raft outside central", map[string]string{"provider/a.go": "package provider\nimport _ " + mod + "/fsm\""}, "leads to"},
		"a host with raft, two steps away":      {"no fsm or raft outside central", map[string]string{"node/a.go": "package node\nimport _ " + mod + "/x\"", "x/a.go": "package x\nimport _ \"github.com/hashicorp/raft\""}, "node/a.go → x/a.go"},
		"a test of the client with fsm":         {"no fsm or raft outside central", map[string]string{"pkg/client/a_test.go": "package client\nimport _ " + mod + "/fsm\""}, "leads to"},
		"a test with a whole fleet":             {"no fsm or raft outside central", map[string]string{"pkg/client/a_test.go": "package client\nimport _ " + mod + "/pkg/fleettest\"", "pkg/fleettest/a.go": "package fleettest\nimport _ " + mod + "/fsm\""}, ""},
		"central with a driver, two steps away": {"central reaches no driver", map[string]string{"central/a.go": "package central\nimport _ " + mod + "/x\"", "x/a.go": "package x\nimport _ " + mod + "/node/sim\""}, "leads to the driver node/sim"},
		"central with the contract":             {"central reaches no driver", map[string]string{"central/a.go": "package central\nimport _ " + mod + "/node/machine\""}, ""},
		"a daemon that names a driver":          {"only commands name drivers", map[string]string{"node/a.go": "package node\nimport _ " + mod + "/node/qemu\""}, "names the driver"},
		"a command that names a driver":         {"only commands name drivers", map[string]string{"cmd/internal/hostd/a.go": "package hostd\nimport _ " + mod + "/node/qemu\""}, ""},
		"a driver that imports the daemon":      {"drivers do not import the daemon", map[string]string{"node/sim/a_test.go": "package sim\nimport _ " + mod + "/node\""}, "imports the daemon"},
		"a command with fleettest":              {"pkg/fleettest is for tests", map[string]string{"cmd/fluxctl/a.go": "package main\nimport _ " + mod + "/pkg/fleettest\""}, "imports pkg/fleettest"},
		"the dev fleet":                         {"pkg/fleettest is for tests", map[string]string{"cmd/fluxvm-agent/a.go": "package main\nimport _ " + mod + "/pkg/fleettest\""}, ""},
		"words that know the network":           {"pkg/api is words only", map[string]string{"pkg/api/a.go": "package api\nimport _ \"net/http\""}, "imports net/http"},
		"words that know a library":             {"pkg/api is words only", map[string]string{"pkg/api/a.go": "package api\nimport _ \"github.com/google/uuid\""}, "imports github.com/google/uuid"},
		"a guest with a library":                {"pkg/guest imports the standard library only", map[string]string{"pkg/guest/a.go": "package guest\nimport _ \"golang.org/x/sys/unix\""}, "imports golang.org"},

		"five deep":          {"depth", map[string]string{"a/b/c/d/e/a.go": "package e"}, "lies 5 deep"},
		"four deep":          {"depth", map[string]string{"a/b/c/d/a.go": "package d"}, ""},
		"a long file":        {"file size", map[string]string{"x/a.go": "package x\n" + strings.Repeat("//\n", maxLines)}, "has 801 lines"},
		"a generated file":   {"file size", map[string]string{"x/a.go": "// Code generated by y. DO NOT EDIT.\npackage x\n" + strings.Repeat("//\n", maxLines)}, ""},
		"a drawer":           {"package names", map[string]string{"pkg/x/a.go": "package util"}, "is called util"},
		"a drawer directory": {"package names", map[string]string{"pkg/helpers/a.go": "package x"}, "is called x"},
		"no doc.go":          {"doc.go", map[string]string{"x/a.go": "// Package x is.\npackage x"}, "has no doc.go"},
		"an empty doc.go":    {"doc.go", map[string]string{"x/doc.go": "package x"}, "has no doc.go"},
		"a doc.go":           {"doc.go", map[string]string{"x/doc.go": "// Package x is.\npackage x"}, ""},
		"an init":            {"no init", map[string]string{"x/a_test.go": "package x\nfunc init() {}"}, "is an init function"},
		"a method init":      {"no init", map[string]string{"x/a.go": "package x\ntype y int\nfunc (y) init() {}"}, ""},

		"an assigned global":        {"no mutable globals", map[string]string{"x/a.go": "package x\nvar count int", "x/b.go": "package x\nfunc f() { count = 1 }"}, "x/b.go:2 changes the package-level variable count"},
		"a counted global":          {"no mutable globals", map[string]string{"x/a.go": "package x\nvar count int\nfunc f() { count++ }"}, "changes"},
		"an element of a global":    {"no mutable globals", map[string]string{"x/a.go": "package x\nvar seen = map[string]bool{}\nfunc f() { seen[\"\"] = true }"}, "changes"},
		"a field of a global":       {"no mutable globals", map[string]string{"x/a.go": "package x\nvar conf struct{ n []int }\nfunc f() { conf.n[0] = 1 }"}, "changes"},
		"a deletion from a global":  {"no mutable globals", map[string]string{"x/a.go": "package x\nvar seen = map[string]bool{}\nfunc f() { delete(seen, \"\") }"}, "changes"},
		"the address of a global":   {"no mutable globals", map[string]string{"x/a.go": "package x\nvar n int\nfunc f() *int { return &n }"}, "takes the address"},
		"a global loop variable":    {"no mutable globals", map[string]string{"x/a.go": "package x\nvar n int\nfunc f() { for n = range 3 {} }"}, "changes"},
		"another package's global":  {"no mutable globals", map[string]string{"x/a.go": "package x\nimport \"net/http\"\nfunc f() { http.DefaultClient = nil }"}, "http.DefaultClient"},
		"a global lock":             {"no mutable globals", map[string]string{"x/a.go": "package x\nimport \"sync\"\nvar mu sync.Mutex"}, "keeps a package-level sync.Mutex"},
		"a global atomic":           {"no mutable globals", map[string]string{"x/a.go": "package x\nimport \"sync/atomic\"\nvar p = &atomic.Pointer[int]{}"}, "keeps a package-level atomic.Pointer"},
		"a shadowing local":         {"no mutable globals", map[string]string{"x/a.go": "package x\nvar n int\nfunc f() int { n := 1; n = 2; return n }"}, ""},
		"a table and an error":      {"no mutable globals", map[string]string{"x/a.go": "package x\nimport \"errors\"\nvar ErrX = errors.New(\"x\")\nvar t = map[int]int{1: 2}\nfunc f() int { return t[1] }"}, ""},
		"a kind without a sample":   {"command kinds", map[string]string{"fsm/command.go": "package fsm\nconst KindTick Kind = 1", "docs/consistency.md": "`Tick`"}, "no golden sample"},
		"a kind without a line":     {"command kinds", map[string]string{"fsm/command.go": "package fsm\nconst KindTick Kind = 1", "docs/consistency.md": "", "fsm/testdata/01-tick.json": ""}, "no line in docs"},
		"a number used twice":       {"command kinds", map[string]string{"fsm/command.go": "package fsm\nconst (\nKindA Kind = 1\nKindB Kind = 1\n)", "docs/consistency.md": "`A` `B`", "fsm/testdata/a.bin": "", "fsm/testdata/b.bin": ""}, "number of A"},
		"a kind with all it needs":  {"command kinds", map[string]string{"fsm/command.go": "package fsm\nconst KindLaunchVM Kind = 1\nconst other = 1", "docs/consistency.md": "`LaunchVM`", "fsm/testdata/launch_vm.json": ""}, ""},
		"no state machine":          {"command kinds", map[string]string{"x/a.go": "package x"}, ""},
		"a clock":                   {pureRule.name, fsmFile("time", "func f() { _ = time.Now() }"), "time.Now"},
		"a clock as a value":        {pureRule.name, fsmFile("time", "var now = time.Now"), "time.Now"},
		"a duration":                {pureRule.name, fsmFile("time", "const d = 3 * time.Second"), ""},
		"a timeout":                 {pureRule.name, fsmFile("context", "func f(c context.Context) { context.WithTimeout(c, 1) }"), "context.WithTimeout"},
		"randomness":                {pureRule.name, fsmFile("math/rand/v2", "var _ = rand.Int"), "imports math/rand/v2"},
		"input and output":          {pureRule.name, fsmFile("os", "var _ = os.Args"), "imports os"},
		"a log":                     {pureRule.name, fsmFile("log/slog", "var _ = slog.Info"), "imports log/slog"},
		"output through fmt":        {pureRule.name, fsmFile("fmt", "func f() { fmt.Println() }"), "calls fmt.Println"},
		"a goroutine":               {pureRule.name, fsmFile("fmt", "func f() { go f() }\nvar _ = fmt.Sprint"), "starts a goroutine"},
		"a float":                   {pureRule.name, fsmFile("fmt", "func f(n int) int { return int(float64(n) * 1.5) }\nvar _ = fmt.Sprint"), "computes with a float"},
		"a float in a struct":       {pureRule.name, fsmFile("fmt", "type row struct { share float32 }\nvar _ = fmt.Sprint"), "computes with a float"},
		"a map range":               {pureRule.name, fsmFile("fmt", "type set map[string]bool\nfunc f(s set) { for range s {} }\nvar _ = fmt.Sprint"), "ranges over a map"},
		"a slice range":             {pureRule.name, fsmFile("fmt", "func f(s []int) { for range s {} }\nvar _ = fmt.Sprint"), ""},
		"a map range through maps":  {pureRule.name, fsmFile("maps", "func f(m map[int]int) { for range maps.Keys(m) {} }"), "unsorted maps.Keys"},
		"a map range, sorted first": {pureRule.name, fsmFile2("func f(m map[int]int) { for range slices.Sorted(maps.Keys(m)) {} }"), ""},
		"whole numbers":             {pureRule.name, fsmFile("fmt", "func f(n int) int { return n * 3 / 2 }\nvar _ = fmt.Sprint"), ""},
		"a test of the log":         {pureRule.name, map[string]string{"fsm/a_test.go": "package fsm\nimport _ \"os\""}, ""},
	} {
		used[p.rule] = used[p.rule] || p.says != ""
		t.Run(name, func(t *testing.T) {
			planted := fstest.MapFS{}
			for path, text := range p.files {
				planted[path] = &fstest.MapFile{Data: []byte(text)}
			}
			source, err := read(planted)
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(allRules(), func(r rule) bool { return r.name == p.rule })
			if at < 0 {
				t.Fatalf("there is no rule %q", p.rule)
			}
			found, err := allRules()[at].find(source)
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, v := range found {
				said += v.where + " " + v.what + "\n"
			}
			if p.says == "" && said != "" || !strings.Contains(said, p.says) {
				t.Errorf("the rule said %q, want %q in it", said, p.says)
			}
		})
	}
	for _, r := range allRules() {
		if !used[r.name] {
			t.Errorf("the rule %q is proved by no planted violation; known: %v", r.name, slices.Sorted(maps.Keys(used)))
		}
	}
}

// fsmFile is a state machine of one file that imports one package.
func fsmFile(imported, body string) map[string]string {
	return map[string]string{"fsm/a.go": "package fsm\nimport \"" + imported + "\"\n" + body}
}

func fsmFile2(body string) map[string]string {
	return map[string]string{"fsm/a.go": "package fsm\nimport (\n\"maps\"\n\"slices\"\n)\n" + body}
}
