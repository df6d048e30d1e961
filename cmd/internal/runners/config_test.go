package runners

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gha.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path)
}

// config is a file with one pool, in which the last of what is given wins.
func config(pool string) string {
	return `{"github": {"token_file": "t", "repositories": ["acme/app"]}, "pools": [` + pool + `]}`
}

func TestThePoolOfTheWarmPoolsPageIsTaken(t *testing.T) {
	c, err := load(t, config(`{"name": "macos", "labels": ["self-hosted", "macOS", "fluxvm"], "launch": "exec", "vm": {"pool": "ios-ci"}, "max_runners": 2}`))
	if err != nil {
		t.Fatal(err)
	}
	if p := c.Pools[0]; p.VM.TTLSeconds != 6*3600 || p.RunnerDir != "/opt/actions-runner" || p.RunnerGroup != 1 || c.PollSeconds != 10 || c.GitHub.APIURL != "https://api.github.com" {
		t.Errorf("what was left out became %+v", c)
	}
}

func TestTheExampleIsTaken(t *testing.T) {
	if _, err := Load("../../../examples/gha-runners.json"); err != nil {
		t.Error(err)
	}
}

func TestConfigurationsAreRefusedWithWhatToChange(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"cloud-init from a pool":   {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "launch": "cloud-init", "vm": {"pool": "p"}}`), "use launch exec"},
		"cloud_init from a pool":   {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "vm": {"pool": "p", "cloud_init": {"user": "me"}}}`), "use launch exec and no vm.cloud_init"},
		"commands of their own":    {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "launch": "cloud-init", "vm": {"image": "p", "cloud_init": {"runcmd": ["true"]}}}`), "put your commands into the image"},
		"no pool and no image":     {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "vm": {}}`), "vm must name a warm pool"},
		"a name for all VMs":       {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "vm": {"pool": "p", "name": "n"}}`), "named after its job"},
		"no labels":                {config(`{"name": "a", "max_runners": 1, "vm": {"pool": "p"}}`), "labels must list"},
		"no most":                  {config(`{"name": "a", "labels": ["x"], "vm": {"pool": "p"}}`), "max_runners must be at least 1"},
		"an unknown way to launch": {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "launch": "ssh", "vm": {"pool": "p"}}`), "exec or cloud-init"},
		"a field that is none":     {config(`{"name": "a", "labels": ["x"], "max_runner": 1, "vm": {"pool": "p"}}`), "max_runner"},
		"a bad name":               {config(`{"name": "A B", "labels": ["x"], "max_runners": 1, "vm": {"pool": "p"}}`), "name must be"},
		"a quoted directory":       {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "vm": {"pool": "p"}, "runner_dir": "/a'b"}`), "runner_dir"},
		"twice the same name": {config(`{"name": "a", "labels": ["x"], "max_runners": 1, "vm": {"pool": "p"}}, {"name": "a", "labels": ["y"], "max_runners": 1, "vm": {"pool": "p"}}`),
			"names must differ"},
		"no pools":            {config(``), "pools must hold"},
		"no token":            {`{"github": {"repositories": ["a/b"]}, "pools": []}`, "github.token_file"},
		"no repositories":     {`{"github": {"token_file": "t"}, "pools": []}`, "github.repositories"},
		"a URL as repository": {`{"github": {"token_file": "t", "repositories": ["https://x/y"]}, "pools": []}`, "OWNER/NAME"},
		"GitHub in clear":     {`{"github": {"token_file": "t", "api_url": "http://ghe.lan", "repositories": ["a/b"]}, "pools": []}`, "https://"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := load(t, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want one that says %q", err, c.want)
			}
		})
	}
}
