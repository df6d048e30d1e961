package runners

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

// Scaler follows the queues of a configuration.
type Scaler struct {
	cfg    Config
	github *github
	fleet  *client.Client
	logger hclog.Logger

	mu       sync.Mutex
	underway map[string]launch // by the VM's name
	working  sync.WaitGroup
}

// stepTime bounds what is done for one VM: a boot and the start of its runner.
const stepTime = startGrace - time.Minute

// New makes a scaler of a configuration that Load has checked.
func New(cfg Config, fleet *client.Client, logger hclog.Logger) *Scaler {
	return &Scaler{cfg: cfg, github: &github{cfg.GitHub, &http.Client{Timeout: 30 * time.Second}}, fleet: fleet, logger: logger, underway: map[string]launch{}}
}

// Run looks at the queues until ctx ends. VMs and runners stay then; the next Run goes on with them.
func (s *Scaler) Run(ctx context.Context) error {
	defer s.working.Wait()
	for {
		rest := time.Duration(s.cfg.PollSeconds) * time.Second
		if err := s.look(ctx); err != nil && ctx.Err() == nil {
			s.logger.Warn("could not follow the queues; the next look goes on", "error", err)
			var wait *limited
			if errors.As(err, &wait) {
				rest = max(rest, time.Until(wait.until))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
		}
	}
}

// look is one look at the queues; what it begins goes on after it. A repository that cannot be asked keeps the others
// from nothing.
func (s *Scaler) look(ctx context.Context) error {
	w := world{runners: map[string]map[int64]runner{}, underway: s.taken()}
	for vm, err := range s.fleet.VMs(ctx, client.Filter{}) {
		if err != nil {
			return fmt.Errorf("listing the fleet's VMs: %w", err)
		}
		if vm.Labels[labelPool] != "" {
			w.vms = append(w.vms, vm)
		}
	}
	var failed []error
	for _, repo := range s.cfg.GitHub.Repositories {
		there, err := s.github.list(ctx, repo)
		if err == nil {
			var jobs []job
			jobs, err = s.github.queued(ctx, repo)
			w.jobs = append(w.jobs, jobs...)
			w.runners[repo] = there
		}
		failed = append(failed, err)
	}
	w.now = api.TimeOf(time.Now())
	next := plan(s.cfg.Pools, w)
	for _, l := range next.launches {
		s.begin(ctx, l, func(ctx context.Context) error { return s.launch(ctx, l) })
	}
	for _, one := range next.starts {
		s.begin(ctx, one.launch, func(ctx context.Context) error { return s.start(ctx, one.launch, one.vm.ID) })
	}
	for _, e := range next.ends {
		if err := s.end(ctx, e); err != nil {
			failed = append(failed, fmt.Errorf("ending %s: %w", e.vm.Name, err))
		}
	}
	return errors.Join(failed...)
}

func (s *Scaler) taken() map[string]launch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.underway)
}

// begin does something for one VM beside the looks.
func (s *Scaler) begin(ctx context.Context, l launch, do func(context.Context) error) {
	s.mu.Lock()
	s.underway[l.name] = l
	s.mu.Unlock()
	s.working.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, stepTime)
		defer cancel()
		if err := do(ctx); err != nil && ctx.Err() == nil {
			s.logger.Warn("could not bring a runner up", "pool", l.pool.Name, "repository", l.repo, "vm", l.name, "error", err)
		}
		s.mu.Lock()
		delete(s.underway, l.name)
		s.mu.Unlock()
	})
}

// launch makes a VM, and its runner in it. A name that is taken means that it was made before.
func (s *Scaler) launch(ctx context.Context, l launch) error {
	req := l.pool.VM
	req.Name = l.name
	req.Labels = map[string]string{labelPool: l.pool.Name, labelRepo: l.repo}
	maps.Copy(req.Labels, l.pool.VM.Labels)
	if l.pool.Launch == launchCloudInit {
		return s.launchBooting(ctx, l, req)
	}
	answer, _, err := s.fleet.Launch(ctx, req, client.LaunchOptions{WaitReady: true})
	if err != nil {
		return err
	}
	s.logger.Info("launched", "vm", answer.VM.Name, "repository", l.repo, "pool", l.pool.Name, "warm", answer.Warm, "node", answer.Node)
	return s.start(ctx, l, answer.VM.ID)
}

// launchBooting registers the runner first, because the VM's first boot starts it.
func (s *Scaler) launchBooting(ctx context.Context, l launch, req api.LaunchRequest) error {
	id, secret, err := s.github.register(ctx, l)
	if err != nil {
		return err
	}
	number := strconv.FormatInt(id, 10)
	req.Labels[labelRunner] = number
	boot := api.CloudInit{}
	if req.CloudInit != nil {
		boot = *req.CloudInit
	}
	boot.RunCmd = []string{fmt.Sprintf("cd '%s' && %s='%s' %s=1 ./run.sh", l.pool.RunnerDir, envConfig, secret, envRoot)}
	req.CloudInit = &boot
	answer, _, err := s.fleet.Launch(ctx, req, client.LaunchOptions{})
	if err != nil {
		return errors.Join(err, s.github.remove(context.WithoutCancel(ctx), l.repo, number))
	}
	s.logger.Info("launched", "vm", answer.VM.Name, "repository", l.repo, "pool", l.pool.Name, "runner", number, "node", answer.Node)
	return nil
}

// What the runner reads from its environment instead of from its command line, which everybody in the guest can read.
const (
	envConfig = "ACTIONS_RUNNER_INPUT_JITCONFIG"
	envRoot   = "RUNNER_ALLOW_RUNASROOT" // the VM has one job and is then deleted
)

// start starts the runner in a VM whose agent answers. Its number is on the VM before it is started, so that whatever
// happens next is seen at the next look.
func (s *Scaler) start(ctx context.Context, l launch, vm string) error {
	found, err := s.exec(ctx, vm, api.ExecRequest{Argv: []string{"test", "-x", l.pool.RunnerDir + "/run.sh"}})
	if err != nil {
		return fmt.Errorf("asking the guest for the runner's program: %w", err)
	}
	if found.ExitCode != 0 {
		return fmt.Errorf("the guest has no %s/run.sh: put GitHub's runner into the image, or say in runner_dir where it is", l.pool.RunnerDir)
	}
	id, secret, err := s.github.register(ctx, l)
	if err != nil {
		return err
	}
	number := strconv.FormatInt(id, 10)
	if _, err := s.fleet.PatchVM(ctx, vm, api.VMPatch{Labels: api.Some(map[string]*string{labelRunner: &number})}); err != nil {
		return errors.Join(err, s.github.remove(context.WithoutCancel(ctx), l.repo, number))
	}
	if _, err := s.exec(ctx, vm, api.ExecRequest{Argv: []string{"sh", "-c", `cd "$0" && exec ./run.sh`, l.pool.RunnerDir}, Env: map[string]string{envConfig: secret, envRoot: "1"}, Detach: true}); err != nil {
		return fmt.Errorf("starting the runner: %w", err)
	}
	s.logger.Info("started a runner", "vm", l.name, "repository", l.repo, "pool", l.pool.Name, "runner", number)
	return nil
}

// exec tries again while the agent does not answer yet.
func (s *Scaler) exec(ctx context.Context, vm string, req api.ExecRequest) (api.ExecAnswer, error) {
	for {
		out, err := s.fleet.Exec(ctx, vm, req)
		if err == nil || !errors.Is(err, &api.Error{Code: api.CodeConflict}) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return out, err
		case <-time.After(time.Second):
		}
	}
}

// end takes the runner from GitHub first: one that has got a job meanwhile is kept.
func (s *Scaler) end(ctx context.Context, e ending) error {
	if id := e.vm.Labels[labelRunner]; id != "" {
		err := s.github.remove(ctx, e.vm.Labels[labelRepo], id)
		if errors.Is(err, errBusy) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	err := s.fleet.DeleteVM(ctx, e.vm.ID)
	if err != nil && !errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
		return err
	}
	s.logger.Info("deleted", "vm", e.vm.Name, "repository", e.vm.Labels[labelRepo], "why", e.why)
	return nil
}
