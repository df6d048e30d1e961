package runners

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	launchExec      = "exec"       // the guest agent starts the runner
	launchCloudInit = "cloud-init" // the first boot starts it

	defaultTTL    = 6 * time.Hour // ends a VM whatever has become of its job
	defaultDir    = "/opt/actions-runner"
	defaultGitHub = "https://api.github.com"
	defaultPoll   = 10 * time.Second
)

// Config is the file of gha-runners.
type Config struct {
	GitHub      GitHub `json:"github"`
	PollSeconds int    `json:"poll_seconds,omitempty"` // between two looks at GitHub; 0 is 10
	Pools       []Pool `json:"pools"`
}

// GitHub says whose jobs are run.
type GitHub struct {
	APIURL       string   `json:"api_url,omitempty"` // empty is https://api.github.com
	TokenFile    string   `json:"token_file"`        // may administer the repositories' runners and read their actions; read at each use
	Repositories []string `json:"repositories"`      // OWNER/NAME
}

// Pool is a kind of runner, and how many there may be.
type Pool struct {
	Name        string            `json:"name"`
	Labels      []string          `json:"labels"`           // it takes jobs whose runs-on are all among these
	Launch      string            `json:"launch,omitempty"` // exec (the default) or cloud-init
	VM          api.LaunchRequest `json:"vm"`               // what to launch for a job
	MaxRunners  int               `json:"max_runners"`
	RunnerDir   string            `json:"runner_dir,omitempty"`   // of run.sh in the guest; empty is /opt/actions-runner
	RunnerGroup int64             `json:"runner_group,omitempty"` // of GitHub; 0 is the default group, 1
}

var (
	poolName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`) // it is part of the names of VMs
	repository = regexp.MustCompile(`^[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+$`)
)

// Load reads and checks a configuration file.
func Load(path string) (Config, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("reading the configuration: %w", err)
	}
	var c Config
	if err := api.Decode(raw, &c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	if err := c.check(); err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// check fills in what was left out, and says what must change.
func (c *Config) check() error {
	c.GitHub.APIURL = strings.TrimRight(cmp.Or(c.GitHub.APIURL, defaultGitHub), "/")
	if u, err := url.Parse(c.GitHub.APIURL); err != nil || u.Scheme != "https" && !strings.HasPrefix(u.Host, "127.0.0.1:") {
		return errors.New("github.api_url must begin with https://: the token goes there")
	}
	if c.GitHub.TokenFile == "" {
		return errors.New("github.token_file must name the file with GitHub's token")
	}
	if len(c.GitHub.Repositories) == 0 {
		return errors.New(`github.repositories must list the repositories whose jobs are run, such as ["acme/app"]`)
	}
	for _, r := range c.GitHub.Repositories {
		if !repository.MatchString(r) {
			return fmt.Errorf("github.repositories: %q must be OWNER/NAME", r)
		}
	}
	if c.PollSeconds < 0 || c.PollSeconds > 3600 {
		return errors.New("poll_seconds must be from 1 to 3600")
	}
	c.PollSeconds = cmp.Or(c.PollSeconds, int(defaultPoll/time.Second))
	if len(c.Pools) == 0 {
		return errors.New("pools must hold at least one pool of runners")
	}
	seen := map[string]bool{}
	for i := range c.Pools {
		p := &c.Pools[i]
		if err := p.check(); err != nil {
			return fmt.Errorf("pools[%d] (%s): %w", i, p.Name, err)
		}
		if seen[p.Name] {
			return fmt.Errorf("pools[%d]: there is another pool %s; names must differ", i, p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

func (p *Pool) check() error {
	p.Launch, p.RunnerDir, p.RunnerGroup = cmp.Or(p.Launch, launchExec), cmp.Or(p.RunnerDir, defaultDir), cmp.Or(p.RunnerGroup, 1)
	switch {
	case !poolName.MatchString(p.Name):
		return errors.New("name must be 1-20 characters of a-z, 0-9 and -, and begin and end with a letter or digit")
	case len(p.Labels) == 0:
		return errors.New(`labels must list what jobs ask for in runs-on, such as ["self-hosted", "fluxvm"]`)
	case p.MaxRunners < 1:
		return errors.New("max_runners must be at least 1")
	case p.Launch != launchExec && p.Launch != launchCloudInit:
		return errors.New("launch must be exec or cloud-init")
	case p.VM.Pool == "" && p.VM.Image == "":
		return errors.New("vm must name a warm pool (pool) or an image")
	case p.VM.Pool != "" && (p.Launch == launchCloudInit || p.VM.CloudInit != nil):
		return errors.New("a VM of a warm pool has booted already, so cloud-init cannot run: use launch exec and no vm.cloud_init, or an image instead of the pool")
	case p.Launch == launchCloudInit && p.VM.CloudInit != nil && len(p.VM.CloudInit.RunCmd) > 0:
		return errors.New("vm.cloud_init.runcmd is where the runner is started: put your commands into the image or into a job")
	case p.VM.Name != "":
		return errors.New("vm.name must be left out: each VM is named after its job")
	case !strings.HasPrefix(p.RunnerDir, "/") || strings.ContainsAny(p.RunnerDir, "'\n"):
		return errors.New("runner_dir must be an absolute path in the guest, without quotes")
	}
	p.VM.TTLSeconds = cmp.Or(p.VM.TTLSeconds, int64(defaultTTL/time.Second))
	return nil
}

// takes says whether the pool's runners take a job that asks for these labels. GitHub ignores their case.
func (p *Pool) takes(labels []string) bool {
	for _, l := range labels {
		if !slices.ContainsFunc(p.Labels, func(own string) bool { return strings.EqualFold(own, l) }) {
			return false
		}
	}
	return len(labels) > 0
}
