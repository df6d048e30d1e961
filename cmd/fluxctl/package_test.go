package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// packaged is what nfpm.yaml says that a test can hold it to.
type packaged struct {
	Name, Description, License, Maintainer string
	Contents                               []struct {
		Src, Dst, Type string
		Info           struct {
			Mode fs.FileMode
		} `yaml:"file_info"`
	}
	Scripts struct{ Postinstall string }
}

// The package is put together by dpkg's own program from the list that nfpm takes, installed below a directory of its
// own, and run from there.
func TestTheDebInstallsProgramsThatRunAndUnitsThatFindThem(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil || runtime.GOOS != "linux" {
		t.Skip("there is no dpkg-deb")
	}
	raw, err := os.ReadFile("../../nfpm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var p packaged
	if err := yaml.Unmarshal(raw, &p); err != nil {
		t.Fatal(err)
	}
	if p.Name != "fluxvm" || p.License != "Apache-2.0" || p.Maintainer == "" {
		t.Errorf("got %+v", p)
	}
	stage, bin := t.TempDir(), t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-o", bin+"/", "./cmd/fluxvm-agent", "./cmd/fluxctl", "./cmd/fluxvm-guest")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range p.Contents {
		to := filepath.Join(stage, c.Dst)
		if c.Info.Mode == 0 {
			t.Errorf("%s has no mode: it would get that of whoever builds the package", c.Dst)
		}
		if c.Type == "dir" {
			if err := os.MkdirAll(to, c.Info.Mode); err != nil {
				t.Fatal(err)
			}
			continue
		}
		from := filepath.Join("../..", c.Src)
		if name, ok := strings.CutPrefix(c.Src, "build/bin/"); ok {
			from = filepath.Join(bin, name)
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, c.Info.Mode); err != nil {
			t.Fatal(err)
		}
	}
	after, err := os.ReadFile(filepath.Join("../..", p.Scripts.Postinstall))
	if err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(stage, "DEBIAN")
	if err := os.Mkdir(control, 0o755); err != nil {
		t.Fatal(err)
	}
	about := fmt.Sprintf("Package: %s\nVersion: 0.0.1\nArchitecture: %s\nMaintainer: %s\nDescription: %s\n", p.Name, runtime.GOARCH, p.Maintainer, strings.SplitN(p.Description, "\n", 2)[0])
	for name, f := range map[string]struct {
		text string
		mode fs.FileMode
	}{"control": {about, 0o644}, "postinst": {string(after), 0o755}} {
		if err := os.WriteFile(filepath.Join(control, name), []byte(f.text), f.mode); err != nil {
			t.Fatal(err)
		}
	}
	deb, root := filepath.Join(t.TempDir(), "fluxvm.deb"), t.TempDir()
	// -Z none: what is tested is no packing.
	for _, argv := range [][]string{{"dpkg-deb", "--root-owner-group", "-Znone", "--build", stage, deb}, {"dpkg-deb", "--extract", deb, root}, {"sh", "-n", filepath.Join(control, "postinst")}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	for program, args := range map[string][]string{"usr/bin/fluxvm-agent": {"--version"}, "usr/bin/fluxctl": {"version"}} {
		out, err := exec.Command(filepath.Join(root, program), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), filepath.Base(program)) {
			t.Errorf("%s: %v: %s", program, err, out)
		}
	}
	if out, err := exec.Command(filepath.Join(root, "usr/libexec/fluxvm/fluxvm-guest"), "help").CombinedOutput(); err == nil || !strings.Contains(string(out), "the agent inside a FluxVM guest") {
		t.Errorf("fluxvm-guest: %v: %s", err, out)
	}
	for _, unit := range []string{"fluxvm-central.service", "fluxvm-node.service"} {
		text, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system", unit))
		if err != nil {
			t.Fatal(err)
		}
		_, line, _ := strings.Cut(string(text), "\nExecStart=")
		program, _, _ := strings.Cut(line, " ")
		if info, err := os.Stat(filepath.Join(root, program)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s starts %q, which the package does not bring: %v", unit, program, err)
		}
	}
}

// A Mac's daemon is built on a Mac; what goreleaser builds needs no C library, and so no Mac.
func TestTheFleetsReleaseNeedsNoCAndNamesProgramsThatThereAre(t *testing.T) {
	raw, err := os.ReadFile("../../.goreleaser.fleet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Builds []struct {
			ID, Main, Binary string
			Env, Goos        []string
		}
		Archives []struct{ Ids []string }
	}
	if err := yaml.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Builds) != 3 || len(r.Archives) != 1 || len(r.Archives[0].Ids) != 3 {
		t.Fatalf("got %+v", r)
	}
	for _, b := range r.Builds {
		if info, err := os.Stat(filepath.Join("../..", b.Main)); err != nil || !info.IsDir() || filepath.Base(b.Main) != b.Binary {
			t.Errorf("%s: %q and %q: %v", b.ID, b.Main, b.Binary, err)
		}
		if strings.Join(b.Env, " ") != "CGO_ENABLED=0" || b.ID == "agent" && strings.Join(b.Goos, " ") != "linux" {
			t.Errorf("%s is built with %v for %v", b.ID, b.Env, b.Goos)
		}
	}
}
