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
	Scripts struct{ Postinstall, Preremove string }
}

// buildDeb puts the package together by dpkg's own program from the list that nfpm takes.
func buildDeb(t *testing.T) (deb string) {
	t.Helper()
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
	control := filepath.Join(stage, "DEBIAN")
	if err := os.Mkdir(control, 0o755); err != nil {
		t.Fatal(err)
	}
	about := fmt.Sprintf("Package: %s\nVersion: 0.0.1\nArchitecture: %s\nMaintainer: %s\nDescription: %s\n", p.Name, runtime.GOARCH, p.Maintainer, strings.SplitN(p.Description, "\n", 2)[0])
	if err := os.WriteFile(filepath.Join(control, "control"), []byte(about), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"postinst": p.Scripts.Postinstall, "prerm": p.Scripts.Preremove} {
		text, err := os.ReadFile(filepath.Join("../..", from))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(control, name), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	deb = filepath.Join(t.TempDir(), "fluxvm.deb")
	// -Z none: what is tested is no packing.
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "-Znone", "--build", stage, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return deb
}

// It is unpacked below a directory of its own, and run from there.
func TestTheDebBringsProgramsThatRunAndUnitsThatFindThem(t *testing.T) {
	deb, root := buildDeb(t), t.TempDir()
	if out, err := exec.Command("dpkg-deb", "--extract", deb, root).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
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

// installing installs the package DEB as its user would, on a copy of this machine that is written to memory and forgotten.
const installing = `set -eu
mount -t tmpfs none "$1"; mkdir "$1/up" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
cp "$2" "$1/root/fluxvm.deb"
exec chroot "$1/root" /bin/sh -ec '
  rm -rf /run/systemd/system; dpkg --install /fluxvm.deb
  fluxvm-agent --version; fluxctl version; test -x /usr/libexec/fluxvm/fluxvm-guest
  getent passwd fluxvm || ! command -v systemd-sysusers
  mkdir -p /etc/fluxvm; touch /etc/fluxvm/node.toml
  if command -v systemctl && command -v systemd-analyze; then
    fluxctl service install node --root /; systemctl --root / is-enabled fluxvm-node.service
    systemd-analyze verify --man=no fluxvm-node.service fluxvm-central.service
  fi
  dpkg --remove fluxvm; ! test -e /usr/bin/fluxvm-agent; test -e /etc/fluxvm/node.toml
  ! test -e /etc/systemd/system/multi-user.target.wants/fluxvm-node.service
  echo all is well'`

func TestTheDebInstallsAndGoesWithItsServices(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("this needs root on Linux")
	}
	for _, program := range []string{"dpkg", "unshare", "chroot"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("there is no " + program)
		}
	}
	dir := t.TempDir()
	if err := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs none "$1" && mkdir "$1/up" "$1/work" && mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" /mnt`, "sh", dir).Run(); err != nil {
		t.Skipf("this system gives no copy of itself: %v", err)
	}
	out, err := exec.Command("unshare", "--mount", "sh", "-c", installing, "sh", dir, buildDeb(t)).CombinedOutput()
	if err != nil || !strings.HasSuffix(string(out), "all is well\n") {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		// Keys of newer versions of systemd, which the units say are not known to older ones.
		if strings.Contains(line, "fluxvm-") && strings.Contains(line, ".service:") && !strings.Contains(line, "RestartSteps") && !strings.Contains(line, "RestartMaxDelaySec") {
			t.Errorf("systemd-analyze: %s", line)
		}
	}
}
