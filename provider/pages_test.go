package provider

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
)

var update = flag.Bool("update", false, "write the provider's pages into docs instead of comparing them")

// generated are the parts of docs that the generator writes; what people wrote beside them stays.
var generated = [...]string{"index.md", "resources", "data-sources", "ephemeral-resources"}

// The pages in docs are what tfplugindocs makes of the schema and of examples. It asks this package for the schema and not
// terraform, which before 1.12 does not tell identities.
func TestAccPagesAreAsGenerated(t *testing.T) {
	if os.Getenv("TF_ACC") == "" && !*update {
		t.Skip("NOT RUN: the provider's pages are compared with TF_ACC=1, since the generator has to be built; `make acceptance` does")
	}
	t.Parallel()
	root := must[string](t)(filepath.Abs(".."))
	work := t.TempDir()
	schemas := filepath.Join(work, "schema.json")
	if err := os.WriteFile(schemas, schemaJSON(t), 0o600); err != nil {
		t.Fatal(err)
	}
	// The generator wants its output below the provider's directory.
	to, err := os.MkdirTemp(root, ".pages-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(to) })
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/go.mod", "tfplugindocs", "generate", "--provider-name", "terraform-provider-fluxvm",
		"--rendered-provider-name", "FluxVM", "--providers-schema", schemas, "--rendered-website-dir", filepath.Base(to), "--website-temp-dir", filepath.Join(work, "site"))
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the generator failed: %v\n%s", err, out)
	}
	docs := filepath.Join(root, "docs")
	if *update {
		for _, part := range generated {
			if err := os.RemoveAll(filepath.Join(docs, part)); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(filepath.Join(to, part), filepath.Join(docs, part)); err != nil {
				t.Fatal(err)
			}
		}
		return
	}
	if diff := cmp.Diff(pages(t, docs), pages(t, to)); diff != "" {
		t.Errorf("docs is out of date; run make docs and commit. Written -, generated +:\n%s", diff)
	}
}

// pages reads the generated parts of a directory.
func pages(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, part := range generated {
		err := filepath.WalkDir(filepath.Join(dir, part), func(at string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			raw, err := os.ReadFile(at)
			out[strings.TrimPrefix(at, dir)] = string(raw)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

type object = map[string]any

// schemaJSON is what `terraform providers schema -json` tells of the provider.
func schemaJSON(t *testing.T) []byte {
	t.Helper()
	server, err := providerserver.NewProtocol6WithError(New("test")())()
	if err != nil {
		t.Fatal(err)
	}
	s := must[*tfprotov6.GetProviderSchemaResponse](t)(server.GetProviderSchema(t.Context(), &tfprotov6.GetProviderSchemaRequest{}))
	ids := must[*tfprotov6.GetResourceIdentitySchemasResponse](t)(server.GetResourceIdentitySchemas(t.Context(), &tfprotov6.GetResourceIdentitySchemasRequest{}))
	identities := object{}
	for name, id := range ids.IdentitySchemas {
		attributes := object{}
		for _, a := range id.IdentityAttributes {
			attributes[a.Name] = object{"type": "string", "description": a.Description, "required_for_import": a.RequiredForImport}
		}
		identities[name] = object{"version": id.Version, "attributes": attributes}
	}
	all := func(of map[string]*tfprotov6.Schema) object {
		out := object{}
		for name, one := range of {
			out[name] = block(t, one)
		}
		return out
	}
	var out bytes.Buffer
	err = json.NewEncoder(&out).Encode(object{"format_version": "1.0", "provider_schemas": object{"fluxvm": object{
		"provider": block(t, s.Provider), "resource_schemas": all(s.ResourceSchemas), "data_source_schemas": all(s.DataSourceSchemas),
		"ephemeral_resource_schemas": all(s.EphemeralResourceSchemas), "resource_identity_schemas": identities,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func block(t *testing.T, s *tfprotov6.Schema) object {
	t.Helper()
	if len(s.Block.BlockTypes) > 0 {
		t.Fatal("a schema has blocks; the pages are made of attributes only")
	}
	return object{"version": s.Version, "block": object{"description": s.Block.Description, "description_kind": "markdown", "attributes": attributes(t, s.Block.Attributes)}}
}

func attributes(t *testing.T, list []*tfprotov6.SchemaAttribute) object {
	t.Helper()
	out := object{}
	for _, a := range list {
		one := object{"description": a.Description, "description_kind": "markdown", "required": a.Required, "optional": a.Optional, "computed": a.Computed,
			"sensitive": a.Sensitive, "write_only": a.WriteOnly}
		if n := a.NestedType; n != nil {
			one["nested_type"] = object{"attributes": attributes(t, n.Attributes), "nesting_mode": strings.ToLower(n.Nesting.String())}
		} else {
			one["type"] = json.RawMessage(must[[]byte](t)(a.Type.MarshalJSON())) //nolint:staticcheck // deprecated for Terraform's own use
		}
		out[a.Name] = one
	}
	return out
}
