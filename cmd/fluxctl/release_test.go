package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v4"
)

// releaseFile is all that our files for goreleaser may hold. The names are of its own configuration (version 2); it ignores
// no key that it does not know, and neither does the test.
type releaseFile struct {
	Version int
	Project string `yaml:"project_name"`
	Builds  []struct {
		ID, Main, Binary                  string
		Env, Flags, Ldflags, Goos, Goarch []string
		Modified                          string `yaml:"mod_timestamp"`
		Ignore                            []struct{ Goos, Goarch string }
		Hooks                             struct{ Post []string }
	}
	Archives []struct {
		IDs, Formats, Files []string
		Name                string `yaml:"name_template"`
		Uneven              bool   `yaml:"allow_different_binary_count"`
	}
	Checksum struct {
		Name      string `yaml:"name_template"`
		Algorithm string
		Extra     []releaseExtra `yaml:"extra_files"`
	}
	Signs []struct {
		Artifacts string
		Args      []string
	}
	Release struct {
		Draft    bool
		Existing bool           `yaml:"use_existing_draft"`
		Extra    []releaseExtra `yaml:"extra_files"`
	}
	Changelog struct{ Disable bool }
}

type releaseExtra struct {
	Glob string
	Name string `yaml:"name_template"`
}

func TestReleasesNameOnlyWhatThereIs(t *testing.T) {
	out, err := exec.Command("go", "tool", "dist", "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	systems := strings.Fields(string(out))
	for file, builds := range map[string]int{".goreleaser.yaml": 1, ".goreleaser.fleet.yaml": 3, ".goreleaser.mac.yaml": 2} {
		raw, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		var r releaseFile
		d := yaml.NewDecoder(strings.NewReader(string(raw)))
		d.KnownFields(true)
		if err := d.Decode(&r); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if r.Version != 2 || len(r.Builds) != builds || len(r.Archives) != 1 || len(r.Archives[0].IDs) != builds || r.Checksum.Algorithm != "sha256" || !r.Release.Draft {
			t.Errorf("%s: got %+v", file, r)
		}
		texts := []string{r.Checksum.Name}
		for _, b := range r.Builds {
			if info, err := os.Stat(filepath.Join("../..", b.Main)); err != nil || !info.IsDir() {
				t.Errorf("%s: %s builds %q: %v", file, b.ID, b.Main, err)
			}
			cgo := "CGO_ENABLED=0"
			if r.Release.Existing {
				cgo = "CGO_ENABLED=1" // the Mac's
			}
			if !slices.Contains(r.Archives[0].IDs, b.ID) || !slices.Contains(b.Env, cgo) {
				t.Errorf("%s: %s is in no archive, or is built with %v", file, b.ID, b.Env)
			}
			for _, system := range b.Goos {
				for _, machine := range b.Goarch {
					if !slices.Contains(systems, system+"/"+machine) {
						t.Errorf("%s: %s is built for %s/%s, for which Go builds nothing", file, b.ID, system, machine)
					}
				}
			}
			for _, i := range b.Ignore {
				if !slices.Contains(b.Goos, i.Goos) || !slices.Contains(b.Goarch, i.Goarch) {
					t.Errorf("%s: %s ignores %+v, which it does not build", file, b.ID, i)
				}
			}
			texts = append(append(append(texts, b.Binary, b.Modified), b.Ldflags...), b.Hooks.Post...)
		}
		for _, a := range r.Archives {
			for _, f := range a.Formats {
				if f != "zip" && f != "tar.gz" {
					t.Errorf("%s: an archive of the format %q", file, f)
				}
			}
			for _, glob := range a.Files {
				if found, err := filepath.Glob(filepath.Join("../..", glob)); err != nil || len(found) == 0 {
					t.Errorf("%s: an archive holds %q, and there is none: %v", file, glob, err)
				}
			}
			texts = append(texts, a.Name)
		}
		for _, s := range r.Signs {
			texts = append(texts, s.Args...)
		}
		values := map[string]any{"ProjectName": r.Project, "Version": "1.2.3", "Os": "linux", "Arch": "amd64", "CommitTimestamp": "1", "Path": "x", "Env": map[string]string{"GPG_FINGERPRINT": "x", "IDENTITY": "x"}}
		for _, text := range texts {
			parsed, err := template.New("").Option("missingkey=error").Parse(text)
			if err == nil {
				err = parsed.Execute(&strings.Builder{}, values)
			}
			if err != nil {
				t.Errorf("%s: %q: %v", file, text, err)
			}
		}
	}
}

// A Mac's daemon is built and signed on a Mac; what goreleaser builds elsewhere needs none.
func TestTheDaemonIsReleasedForLinuxAndByAMacForMacs(t *testing.T) {
	for file, want := range map[string][]string{".goreleaser.fleet.yaml": {"linux"}, ".goreleaser.mac.yaml": {"darwin"}} {
		raw, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		var r releaseFile
		if err := yaml.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		for _, b := range r.Builds {
			if filepath.Base(b.Main) != b.Binary || b.ID == "agent" && !slices.Equal(b.Goos, want) {
				t.Errorf("%s: %s is %q of %q for %q", file, b.ID, b.Binary, b.Main, b.Goos)
			}
			if signed := strings.Contains(strings.Join(b.Hooks.Post, "\n"), "--entitlements examples/deploy/fluxvm.entitlements"); signed != r.Release.Existing {
				t.Errorf("%s: %s is signed for Apple's framework: %v", file, b.ID, signed)
			}
		}
	}
	if _, err := os.Stat("../../examples/deploy/fluxvm.entitlements"); err != nil {
		t.Error(err)
	}
}
