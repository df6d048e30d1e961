package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fluxvm/fluxvm/pkg/client"
)

// workdir is a directory where terraform runs as people run it: the provider is the built program, taken from a directory laid
// out as a registry is.
type workdir struct {
	dir string
	env []string
}

// newWorkdir makes one for a fleet, with the files of from, and says terraform init.
func (f fleet) newWorkdir(t *testing.T, from string) *workdir {
	t.Helper()
	w := f.emptyWorkdir(t)
	if err := os.CopyFS(w.dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	w.must(t, "init", "-no-color")
	return w
}

func (f fleet) emptyWorkdir(t *testing.T) *workdir {
	t.Helper()
	binary := must[string](t)(filepath.Abs("../build/bin/terraform-provider-fluxvm"))
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("%v; run make build", err)
	}
	host := os.Getenv("TF_ACC_PROVIDER_HOST")
	if host == "" {
		host = "registry.terraform.io"
	}
	home := t.TempDir()
	at := filepath.Join(home, "mirror", host, "fluxvm/fluxvm/0.0.1", runtime.GOOS+"_"+runtime.GOARCH)
	rc := fmt.Sprintf("provider_installation {\n  filesystem_mirror {\n    path = %q\n  }\n}\n", filepath.Join(home, "mirror"))
	if err := errors.Join(os.MkdirAll(at, 0o700), os.Symlink(binary, filepath.Join(at, "terraform-provider-fluxvm_v0.0.1")),
		os.WriteFile(filepath.Join(home, "rc"), []byte(rc), 0o600), os.Mkdir(filepath.Join(home, "work"), 0o700)); err != nil {
		t.Fatal(err)
	}
	return &workdir{dir: filepath.Join(home, "work"), env: append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(home, "rc"), "TF_IN_AUTOMATION=1",
		client.EnvFleetURL+"="+strings.Join(f.access.Endpoints, ","), client.EnvToken+"="+f.access.Token)}
}

// run gives what a command wrote, and its exit code.
func (w *workdir) run(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Getenv("TF_ACC_TERRAFORM_PATH"), args...)
	cmd.Dir, cmd.Env = w.dir, slices.Concat(w.env, env)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

func (w *workdir) must(t *testing.T, args ...string) string {
	t.Helper()
	out, code := w.run(t, nil, args...)
	if code != 0 {
		t.Fatalf("terraform %s: exit %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// apply applies, and wants the plan to be empty afterwards.
func (w *workdir) apply(t *testing.T, args ...string) {
	t.Helper()
	w.must(t, append([]string{"apply", "-auto-approve", "-no-color"}, args...)...)
	w.plansNothing(t, args...)
}

func (w *workdir) plansNothing(t *testing.T, args ...string) {
	t.Helper()
	if out, code := w.run(t, nil, append([]string{"plan", "-detailed-exitcode", "-no-color"}, args...)...); code != 0 {
		t.Fatalf("the plan is not empty: exit %d\n%s", code, out)
	}
}

func (w *workdir) destroy(t *testing.T, args ...string) {
	t.Helper()
	w.must(t, append([]string{"destroy", "-auto-approve", "-no-color"}, args...)...)
}

// outputs reads the root module's outputs.
func (w *workdir) outputs(t *testing.T) map[string]any {
	t.Helper()
	var raw map[string]struct {
		Value any `json:"value"`
	}
	if err := json.Unmarshal([]byte(w.must(t, "output", "-json")), &raw); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for name, o := range raw {
		out[name] = o.Value
	}
	return out
}

// fluxctl runs the command line against the fleet, as someone else would.
func (f fleet) fluxctl(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), must[string](t)(filepath.Abs("../build/bin/fluxctl")), args...)
	cmd.Env = append(os.Environ(), client.EnvFleetURL+"="+strings.Join(f.access.Endpoints, ","), client.EnvToken+"="+f.access.Token)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("fluxctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
