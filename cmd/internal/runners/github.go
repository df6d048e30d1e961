package runners

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// github speaks to GitHub's REST API (docs.github.com/rest/actions), as of its version below.
type github struct {
	cfg    GitHub
	client *http.Client
}

const (
	githubVersion = "2022-11-28"
	pageSize      = 100
	maxAnswer     = 16 << 20
)

var errBusy = errors.New("the runner has a job")

// limited says that GitHub wants to be left alone until then.
type limited struct{ until time.Time }

func (l *limited) Error() string {
	return "GitHub's rate limit is used up until " + l.until.UTC().Format(time.RFC3339)
}

// call makes one request. A nil body sends none; a nil out reads none.
func (g *github) call(ctx context.Context, method, path string, query url.Values, body, out any) error {
	token, err := os.ReadFile(g.cfg.TokenFile)
	if err != nil {
		return fmt.Errorf("reading GitHub's token: %w", err)
	}
	raw := []byte(nil)
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	where := g.cfg.APIURL + path
	if len(query) > 0 {
		where += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, where, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", githubVersion)
	resp, err := g.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if raw, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return refusal(method, path, resp, raw)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// status is an answer of GitHub that is no success.
type status struct {
	code int
	text string
}

func (s *status) Error() string { return s.text }

func refusal(method, path string, resp *http.Response, raw []byte) error {
	if resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusTooManyRequests {
		if secs, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			return &limited{time.Now().Add(time.Duration(secs) * time.Second)}
		}
		if at, err := strconv.ParseInt(resp.Header.Get("X-RateLimit-Reset"), 10, 64); err == nil && resp.Header.Get("X-RateLimit-Remaining") == "0" {
			return &limited{time.Unix(at, 0)}
		}
	}
	var said struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(raw, &said) // then there is only the status
	text := fmt.Sprintf("GitHub answered %s to %s %s: %s", resp.Status, method, path, said.Message)
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		text += "; the token of github.token_file is not valid any more"
	case http.StatusForbidden, http.StatusNotFound:
		text += "; the token needs to read the repository's actions and to administer it (fine-grained: Actions read, Administration write)"
	}
	return &status{resp.StatusCode, text}
}

// queued lists the jobs of a repository that wait for a runner: those of runs that wait, and of runs under way.
func (g *github) queued(ctx context.Context, repo string) (out []job, err error) {
	for _, state := range []string{"queued", "in_progress"} {
		var runs []struct {
			ID int64 `json:"id"`
		}
		if err := pages(ctx, g, "/repos/"+repo+"/actions/runs", "workflow_runs", url.Values{"status": {state}}, &runs); err != nil {
			return nil, err
		}
		for _, run := range runs {
			var jobs []struct {
				ID        int64     `json:"id"`
				Status    string    `json:"status"`
				Labels    []string  `json:"labels"`
				CreatedAt time.Time `json:"created_at"`
			}
			if err := pages(ctx, g, fmt.Sprintf("/repos/%s/actions/runs/%d/jobs", repo, run.ID), "jobs", url.Values{"filter": {"latest"}}, &jobs); err != nil {
				return nil, err
			}
			for _, j := range jobs {
				if j.Status == "queued" {
					out = append(out, job{repo: repo, id: j.ID, labels: j.Labels, since: j.CreatedAt})
				}
			}
		}
	}
	return out, nil
}

// list gives the runners of a repository.
func (g *github) list(ctx context.Context, repo string) (map[int64]runner, error) {
	var all []struct {
		ID     int64  `json:"id"`
		Status string `json:"status"`
		Busy   bool   `json:"busy"`
	}
	if err := pages(ctx, g, "/repos/"+repo+"/actions/runners", "runners", nil, &all); err != nil {
		return nil, err
	}
	out := map[int64]runner{}
	for _, r := range all {
		out[r.ID] = runner{id: r.ID, online: r.Status == "online", busy: r.Busy}
	}
	return out, nil
}

// register makes a runner that takes one job, and gives what starts it: a secret that works once.
func (g *github) register(ctx context.Context, l launch) (id int64, secret string, err error) {
	body := map[string]any{"name": l.name, "labels": l.pool.Labels, "runner_group_id": l.pool.RunnerGroup, "work_folder": "_work"}
	var out struct {
		Runner struct {
			ID int64 `json:"id"`
		} `json:"runner"`
		Config string `json:"encoded_jit_config"`
	}
	if err := g.call(ctx, http.MethodPost, "/repos/"+l.repo+"/actions/runners/generate-jitconfig", nil, body, &out); err != nil {
		return 0, "", err
	}
	if out.Runner.ID == 0 || out.Config == "" {
		return 0, "", errors.New("GitHub answered without a runner")
	}
	return out.Runner.ID, out.Config, nil
}

// remove takes a runner from GitHub. One that is gone already is no error; one with a job is errBusy.
func (g *github) remove(ctx context.Context, repo, id string) error {
	err := g.call(ctx, http.MethodDelete, "/repos/"+repo+"/actions/runners/"+id, nil, nil, nil)
	var s *status
	if errors.As(err, &s) {
		switch s.code {
		case http.StatusNotFound:
			return nil
		case http.StatusUnprocessableEntity, http.StatusConflict:
			return errBusy
		}
	}
	return err
}

// pages reads all pages of a list, whose items stand below key.
func pages[T any](ctx context.Context, g *github, path, key string, query url.Values, out *[]T) error {
	q := url.Values{"per_page": {strconv.Itoa(pageSize)}}
	maps.Copy(q, query)
	for page := 1; ; page++ {
		q.Set("page", strconv.Itoa(page))
		var answer map[string]json.RawMessage
		if err := g.call(ctx, http.MethodGet, path, q, nil, &answer); err != nil {
			return err
		}
		var items []T
		if err := json.Unmarshal(answer[key], &items); err != nil {
			return fmt.Errorf("reading GitHub's answer to %s: %w", path, err)
		}
		if *out = append(*out, items...); len(items) < pageSize {
			return nil
		}
	}
}
