package runners

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
	"github.com/fluxvm/fluxvm/pkg/fleettest"
)

// model is GitHub as far as a scaler sees it: one repository, one run.
type model struct {
	t   *testing.T
	url string

	mu      sync.Mutex
	jobs    map[int64]string // status by number
	runners map[int64]*modelRunner
	next    int64
	limited bool
}

type modelRunner struct {
	name         string
	online, busy bool
}

func newModel(t *testing.T) *model {
	m := &model{t: t, jobs: map[int64]string{}, runners: map[int64]*modelRunner{}, next: 100}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /repos/acme/app/actions/runs", m.answer(func(r *http.Request) (int, any) {
		runs := []map[string]any{}
		if r.URL.Query().Get("status") == "in_progress" {
			runs = append(runs, map[string]any{"id": 7})
		}
		return 200, map[string]any{"total_count": len(runs), "workflow_runs": runs}
	}))
	mux.HandleFunc("GET /repos/acme/app/actions/runs/7/jobs", m.answer(func(*http.Request) (int, any) {
		jobs := []map[string]any{}
		for _, id := range slices.Sorted(maps.Keys(m.jobs)) {
			jobs = append(jobs, map[string]any{"id": id, "status": m.jobs[id], "labels": []string{"self-hosted", "fluxvm"}, "created_at": "2026-01-02T08:00:00Z"})
		}
		return 200, map[string]any{"total_count": len(jobs), "jobs": jobs}
	}))
	mux.HandleFunc("GET /repos/acme/app/actions/runners", m.answer(func(*http.Request) (int, any) {
		all := []map[string]any{}
		for id, r := range m.runners {
			all = append(all, map[string]any{"id": id, "name": r.name, "status": map[bool]string{true: "online", false: "offline"}[r.online], "busy": r.busy})
		}
		return 200, map[string]any{"total_count": len(all), "runners": all}
	}))
	mux.HandleFunc("POST /repos/acme/app/actions/runners/generate-jitconfig", m.answer(func(r *http.Request) (int, any) {
		var body struct {
			Name   string   `json:"name"`
			Labels []string `json:"labels"`
			Group  int64    `json:"runner_group_id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Group == 0 || len(body.Labels) == 0 {
			return 422, map[string]any{"message": "Invalid input"}
		}
		m.next++
		m.runners[m.next] = &modelRunner{name: body.Name}
		return 201, map[string]any{"runner": map[string]any{"id": m.next, "name": body.Name}, "encoded_jit_config": "once-" + fmt.Sprint(m.next)}
	}))
	mux.HandleFunc("DELETE /repos/acme/app/actions/runners/{id}", m.answer(func(r *http.Request) (int, any) {
		var id int64
		_, _ = fmt.Sscan(r.PathValue("id"), &id)
		switch r := m.runners[id]; {
		case r == nil:
			return 404, map[string]any{"message": "Not Found"}
		case r.busy:
			return 422, map[string]any{"message": "Runner is currently running a job"}
		}
		delete(m.runners, id)
		return 204, nil
	}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	m.url = server.URL
	return m
}

func (m *model) answer(of func(*http.Request) (int, any)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer gh-secret" {
			w.WriteHeader(401)
			return
		}
		if m.limited {
			w.Header().Set("Retry-After", "30")
			w.WriteHeader(403)
			return
		}
		code, body := of(r)
		w.WriteHeader(code)
		if body != nil {
			_ = json.NewEncoder(w).Encode(body)
		}
	}
}

func (m *model) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// take lets the runner of a VM take a job.
func (m *model) take(vm string, job int64) {
	m.t.Helper()
	m.set(func() {
		for _, r := range m.runners {
			if r.name == vm {
				r.online, r.busy, m.jobs[job] = true, true, "in_progress"
				return
			}
		}
		m.t.Fatalf("GitHub has no runner %s", vm)
	})
}

// finish ends the job of a VM's runner: the runner was for one job.
func (m *model) finish(vm string, job int64) {
	m.set(func() {
		maps.DeleteFunc(m.runners, func(_ int64, r *modelRunner) bool { return r.name == vm })
		m.jobs[job] = "completed"
	})
}

// rig is a fleet with a warm pool, and a model of GitHub.
type rig struct {
	t     *testing.T
	ctx   context.Context
	fleet *client.Client
	model *model
	cfg   Config
}

func newRig(t *testing.T) *rig {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	f, err := fleettest.Start(ctx, fleettest.Config{Dir: t.TempDir(), Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(client.Config{Endpoints: f.URLs(), Token: f.Token})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateImage(ctx, api.ImageRequest{Name: "tiny", Path: "sim:?boot_ms=10", VCPUs: 1, MemoryMiB: 256, HasAgent: true}, ""); err != nil {
		t.Fatal(err)
	}
	two := 2
	if _, err := c.CreatePool(ctx, api.PoolRequest{Name: "ci", Image: "tiny", MinReady: &two}, ""); err != nil {
		t.Fatal(err)
	}
	m := newModel(t)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("gh-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, ctx: ctx, fleet: c, model: m, cfg: Config{GitHub: GitHub{APIURL: m.url, TokenFile: token, Repositories: []string{app}},
		Pools: []Pool{{Name: "linux", Labels: []string{"self-hosted", "fluxvm"}, VM: api.LaunchRequest{Pool: "ci"}, MaxRunners: 2}}}}
	if err := r.cfg.check(); err != nil {
		t.Fatal(err)
	}
	r.until("the pool to be full", func() bool {
		s, err := c.PoolStatus(ctx, "ci")
		return err == nil && s.Ready == 2
	})
	return r
}

func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	for !holds() {
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("waited in vain for %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// scaler is one that looks when it is told to.
func (r *rig) scaler() *Scaler { return New(r.cfg, r.fleet, hclog.NewNullLogger()) }

// look is one look, and the end of what it began.
func (r *rig) look(s *Scaler) {
	r.t.Helper()
	if err := s.look(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	s.working.Wait()
}

// vms are those made for jobs and not ending, by name.
func (r *rig) vms() map[string]api.VM {
	r.t.Helper()
	out := map[string]api.VM{}
	for vm, err := range r.fleet.VMs(r.ctx, client.Filter{}) {
		if err != nil {
			r.t.Fatal(err)
		}
		if strings.HasPrefix(vm.Name, namePrefix) && vm.State != api.StateDeleting {
			out[vm.Name] = vm
		}
	}
	return out
}

func (r *rig) wantVMs(names ...string) map[string]api.VM {
	r.t.Helper()
	got := r.vms()
	if have := slices.Sorted(maps.Keys(got)); !slices.Equal(have, names) {
		r.t.Fatalf("the VMs are %v, want %v", have, names)
	}
	return got
}

func TestJobsGetWarmVMsThatEndWithThem(t *testing.T) {
	r := newRig(t)
	r.model.set(func() { r.model.jobs = map[int64]string{1: "queued", 2: "queued", 3: "queued", 4: "completed"} })
	s := r.scaler()
	r.look(s)
	for name, vm := range r.wantVMs("fluxvm-gha-1", "fluxvm-gha-2") {
		if vm.ClaimedFrom != "ci" || vm.ExpiresAt == 0 || vm.Labels[labelRunner] == "" || vm.Labels[labelRepo] != app {
			t.Errorf("%s is %+v, want one from the pool with a deadline and its runner's number", name, vm)
		}
	}
	r.look(s)
	r.wantVMs("fluxvm-gha-1", "fluxvm-gha-2") // two at most

	r.model.take("fluxvm-gha-1", 1)
	r.model.take("fluxvm-gha-2", 2)
	r.look(s)
	r.wantVMs("fluxvm-gha-1", "fluxvm-gha-2")

	r.model.finish("fluxvm-gha-1", 1)
	r.look(s)
	r.wantVMs("fluxvm-gha-2")
	r.look(r.scaler()) // one that has just started goes on
	r.wantVMs("fluxvm-gha-2", "fluxvm-gha-3")
}

func TestAVMWhoseRunnerWasNotStartedIsTakenUp(t *testing.T) {
	r := newRig(t)
	r.model.set(func() { r.model.jobs = map[int64]string{1: "queued"} })
	if _, _, err := r.fleet.Launch(r.ctx, api.LaunchRequest{Pool: "ci", Name: "fluxvm-gha-1", Labels: map[string]string{labelPool: "linux", labelRepo: app}}, client.LaunchOptions{WaitReady: true}); err != nil {
		t.Fatal(err)
	}
	r.look(r.scaler())
	if vm := r.wantVMs("fluxvm-gha-1")["fluxvm-gha-1"]; vm.Labels[labelRunner] == "" {
		t.Error("its runner was not started")
	}
}

func TestARunnerThatHasGotAJobIsKept(t *testing.T) {
	r := newRig(t)
	r.model.set(func() { r.model.jobs = map[int64]string{1: "queued"} })
	s := r.scaler()
	r.look(s)
	vm := r.wantVMs("fluxvm-gha-1")["fluxvm-gha-1"]
	r.model.take("fluxvm-gha-1", 1)
	if err := s.end(r.ctx, ending{vm, "no job is queued for it"}); err != nil {
		t.Fatal(err)
	}
	r.wantVMs("fluxvm-gha-1")
	r.model.finish("fluxvm-gha-1", 1)
	if err := s.end(r.ctx, ending{vm, "its job is done"}); err != nil {
		t.Fatal(err)
	}
	r.wantVMs()
}

func TestABootStartsTheRunnerByCloudInit(t *testing.T) {
	r := newRig(t)
	r.cfg.Pools[0].Launch, r.cfg.Pools[0].VM = launchCloudInit, api.LaunchRequest{Image: "tiny"}
	r.model.set(func() { r.model.jobs = map[int64]string{1: "queued"} })
	r.look(r.scaler())
	vm := r.wantVMs("fluxvm-gha-1")["fluxvm-gha-1"]
	if vm.Labels[labelRunner] == "" || vm.ClaimedFrom != "" {
		t.Errorf("the VM is %+v, want one that boots for its runner", vm)
	}
	r.cfg.Pools[0].VM.Image = "no-such-image"
	r.model.set(func() { r.model.jobs[2] = "queued" })
	r.look(r.scaler())
	r.wantVMs("fluxvm-gha-1")
	r.model.set(func() {
		if len(r.model.runners) != 1 {
			t.Errorf("GitHub has %d runners, want that of the VM that was launched alone", len(r.model.runners))
		}
	})
}

func TestWhatGitHubRefusesChangesNothing(t *testing.T) {
	r := newRig(t)
	r.model.set(func() { r.model.jobs = map[int64]string{1: "queued"} })
	s := r.scaler()
	r.look(s)
	r.model.set(func() { r.model.limited = true })
	var wait *limited
	if err := s.look(r.ctx); !errors.As(err, &wait) {
		t.Errorf("the look ended with %v, want that GitHub wants to be left alone", err)
	}
	r.wantVMs("fluxvm-gha-1")
	if err := os.WriteFile(r.cfg.GitHub.TokenFile, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.look(r.ctx); err == nil || !strings.Contains(err.Error(), "github.token_file is not valid any more") {
		t.Errorf("the look ended with %v, want what to change", err)
	}
	r.wantVMs("fluxvm-gha-1")
}
