package provider

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"text/template"

	"go.yaml.in/yaml/v4"
)

// release is what a registry depends on in .goreleaser.yaml.
type release struct {
	Project string `yaml:"project_name"`
	Builds  []struct {
		Main, Binary      string
		Env, Goos, Goarch []string
		Ldflags           []string
	}
	Archives []struct {
		Formats []string
		Name    string `yaml:"name_template"`
	}
	Checksum struct {
		Name      string `yaml:"name_template"`
		Algorithm string
		Extra     []extraFile `yaml:"extra_files"`
	}
	Signs []struct {
		Artifacts string
		Args      []string
	}
	Release struct {
		Extra []extraFile `yaml:"extra_files"`
	}
}

type extraFile struct {
	Glob string
	Name string `yaml:"name_template"`
}

// A registry finds a release by the names of its files, which it prescribes.
func TestReleaseHasTheRegistrysLayout(t *testing.T) {
	t.Parallel()
	var r release
	if err := yaml.Unmarshal(must[[]byte](t)(os.ReadFile("../.goreleaser.yaml")), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Builds) != 1 || len(r.Archives) != 1 || len(r.Signs) != 1 || len(r.Checksum.Extra) != 1 || len(r.Release.Extra) != 1 {
		t.Fatalf("a release of a provider is one build, one archive, one signature and one manifest; got %+v", r)
	}
	named := func(text string) string {
		var out strings.Builder
		values := map[string]any{"ProjectName": r.Project, "Version": "1.2.3", "Os": "linux", "Arch": "amd64"}
		if err := must[*template.Template](t)(template.New("").Option("missingkey=error").Parse(text)).Execute(&out, values); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	const at = "terraform-provider-fluxvm_1.2.3_"
	for what, c := range map[string]struct{ got, want string }{
		"program":              {named(r.Builds[0].Binary), "terraform-provider-fluxvm_v1.2.3"},
		"archive":              {named(r.Archives[0].Name) + "." + r.Archives[0].Formats[0], at + "linux_amd64.zip"},
		"sums":                 {named(r.Checksum.Name), at + "SHA256SUMS"},
		"sums' algorithm":      {r.Checksum.Algorithm, "sha256"},
		"manifest in the sums": {named(r.Checksum.Extra[0].Name), at + "manifest.json"},
		"manifest":             {named(r.Release.Extra[0].Name), at + "manifest.json"},
		"manifest's file":      {r.Release.Extra[0].Glob, "terraform-registry-manifest.json"},
		"file in the sums":     {r.Checksum.Extra[0].Glob, "terraform-registry-manifest.json"},
		"what is signed":       {r.Signs[0].Artifacts, "checksum"},
		"version":              {named(r.Builds[0].Ldflags[0]), "-s -w -X main.version=1.2.3"},
		"program's source":     {r.Builds[0].Main, "./cmd/terraform-provider-fluxvm"},
	} {
		if c.got != c.want {
			t.Errorf("the %s is %q, want %q", what, c.got, c.want)
		}
	}
	if !slices.Contains(r.Signs[0].Args, "--detach-sign") || !slices.Contains(r.Builds[0].Env, "CGO_ENABLED=0") {
		t.Error("the signature must be a detached one, and the program must need no C library")
	}
	for _, list := range [][]string{r.Builds[0].Goos, r.Builds[0].Goarch} {
		if want := []string{"darwin", "linux", "amd64", "arm64"}; !slices.ContainsFunc(list, func(s string) bool { return slices.Contains(want, s) }) {
			t.Errorf("%q has none of the platforms %q", list, want)
		}
	}
	if source := string(must[[]byte](t)(os.ReadFile("../cmd/terraform-provider-fluxvm/main.go"))); !strings.Contains(source, "var version =") {
		t.Error("the program has no main.version for the linker to set")
	}
	var manifest struct {
		Version  int
		Metadata struct {
			Protocols []string `json:"protocol_versions"`
		}
	}
	if err := json.Unmarshal(must[[]byte](t)(os.ReadFile("../terraform-registry-manifest.json")), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Version != 1 || !slices.Equal(manifest.Metadata.Protocols, []string{"6.0"}) {
		t.Errorf("the manifest says %+v; the provider speaks protocol 6", manifest)
	}
}
