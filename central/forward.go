package central

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	leaderPatience = 3 * time.Second // how long a request waits for a leader to appear
	statusPath     = "/peer/status"
	statusTimeout  = time.Second
)

// hopHeaders are between two ends of one connection and are not passed on.
var hopHeaders = [...]string{"Connection", "Keep-Alive", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// forward passes the request to the leader, once. A leader that is still getting ready is waited for.
func (q *request) forward(rt route) error {
	deadline := time.Now().Add(leaderPatience)
	for {
		name, addr := q.r.log.Leader()
		if addr != "" && name != q.r.cfg.Name {
			if q.forwarded {
				return api.Errorf(api.CodeNotLeader, "the leader has changed; try again")
			}
			return q.passTo(addr)
		}
		if time.Now().After(deadline) {
			return api.Errorf(api.CodeNotLeader, "the cluster has no leader that is ready; try again in a moment")
		}
		pause(q.Context(), 20*time.Millisecond)
		if err := q.Context().Err(); err != nil {
			return err
		}
		if q.leading() != nil {
			return q.serveCurrent(rt)
		}
	}
}

// passTo sends the request to another replica's cluster port and copies its answer.
func (q *request) passTo(addr string) error {
	var body io.Reader = bytes.NewReader(q.body)
	if q.URL.Path == restorePath {
		body = q.Request.Body
	}
	req, err := http.NewRequestWithContext(q.Context(), q.Method, "http://"+addr+q.URL.RequestURI(), body)
	if err != nil {
		return err
	}
	req.Header = q.Header.Clone()
	for _, h := range hopHeaders {
		req.Header.Del(h)
	}
	req.Header.Set(api.HeaderRequestID, q.id)
	q.introduce(req.Header)
	resp, err := q.r.peers.Do(req)
	if err != nil {
		var op *net.OpError
		if q.Method == http.MethodGet || errors.As(err, &op) && op.Op == "dial" {
			return api.Errorf(api.CodeNotLeader, "the leader cannot be reached now; try again in a moment")
		}
		return api.Errorf(api.CodeOutcomeUnknown, "the leader was lost before it answered; repeat the request with the same Idempotency-Key to learn what became of it")
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		q.w.Header()[k] = v
	}
	q.w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(q.w, resp.Body) // the caller sees a cut answer as one
	return nil
}

// status is what a replica tells the others of itself.
type status struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Applied uint64 `json:"applied"`
	Contact int64  `json:"contact_ms"` // -1: it never heard from a leader
	Version string `json:"version"`

	ClusterID string `json:"cluster_id"`

	Newest       fsm.Kind `json:"newest_kind"` // the highest kind of command that it understands; 0: it is too old to say
	DiskLow      bool     `json:"disk_low"`
	Members      []string `json:"members,omitempty"`        // whom it counts as members
	CertNotAfter api.Time `json:"cert_not_after,omitempty"` // when its certificate ends; 0 without TLS
}

func (r *Replica) status() status {
	out := status{Name: r.cfg.Name, URL: r.cfg.URL, Applied: r.log.AppliedIndex(), Contact: -1, Version: r.cfg.Version, ClusterID: r.state.View().Meta().ClusterID,
		Newest: r.cfg.newest, DiskLow: r.disk.isLow()}
	if ago, ok := r.log.LastContact(); ok {
		out.Contact = ago.Milliseconds()
	}
	for _, m := range r.log.Members() {
		out.Members = append(out.Members, m.Name)
	}
	out.CertNotAfter = r.certNotAfter()
	return out
}

func (r *Replica) serveStatus(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-r.opened:
	default:
		http.Error(w, "this replica is starting", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(r.status()) // the other side notices a cut answer
}

// statuses asks every member how it is, all at once. One that does not answer in a second is absent.
func (r *Replica) statuses(ctx context.Context) map[string]status {
	out := askPeers[status](ctx, r, statusPath)
	for name, s := range out {
		if s.Name != name {
			delete(out, name)
		}
	}
	out[r.cfg.Name] = r.status()
	return out
}

// askPeers reads a path of every other member, all at once, by name. One that does not answer in a second is absent.
func askPeers[T any](ctx context.Context, r *Replica, path string) map[string]T {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var mu sync.Mutex
	out := map[string]T{}
	var asked sync.WaitGroup
	for _, m := range r.log.Members() {
		if m.Name == r.cfg.Name {
			continue
		}
		asked.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.Addr+path, nil)
			if err != nil {
				return
			}
			resp, err := r.peers.Do(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			var said T
			if resp.StatusCode == http.StatusOK && json.NewDecoder(io.LimitReader(resp.Body, api.MaxBody)).Decode(&said) == nil {
				mu.Lock()
				defer mu.Unlock()
				out[m.Name] = said
			}
		})
	}
	asked.Wait()
	return out
}

// getCluster answers GET /fleet/cluster.
func (q *request) getCluster() error {
	r, meta := q.r, q.r.state.View().Meta()
	leader, _ := r.log.Leader()
	out := api.Cluster{ID: meta.ClusterID, Epoch: meta.Epoch, Leader: leader, Term: r.log.Term(), Index: meta.Index, Replicas: []api.Replica{}}
	known := r.statuses(q.Context())
	for _, m := range r.log.Members() {
		s, heard := known[m.Name]
		one := api.Replica{Name: m.Name, ClusterAddr: m.Addr, URL: s.URL, Role: "voter", Healthy: heard && s.Contact >= 0, AppliedIndex: s.Applied, LastContactMS: s.Contact, Version: s.Version, CertificateExpiresAt: s.CertNotAfter, DiskLow: s.DiskLow}
		switch {
		case m.Name == leader:
			one.Role, one.LastContactMS = "leader", 0
		case !m.Voter:
			one.Role = "nonvoter"
		}
		if !heard {
			one.LastContactMS = -1
		}
		out.Replicas = append(out.Replicas, one)
	}
	return q.send(http.StatusOK, out)
}

// healthz says that the process answers.
func (q *request) healthz() error { return q.send(http.StatusOK, map[string]string{"status": "ok"}) }

// readyz says that requests sent here can be served: a leader is known and what was stored is applied.
func (q *request) readyz() error {
	leader, _ := q.r.log.Leader()
	ago, ok := q.r.log.LastContact()
	switch {
	case leader == "" || !ok:
		return api.Errorf(api.CodeUnavailable, "no leader is known yet")
	case leader == q.r.cfg.Name && q.leading() == nil:
		return api.Errorf(api.CodeUnavailable, "this replica leads and is getting ready")
	case q.r.log.AppliedIndex() < q.r.log.LastIndexAtStart():
		return api.Errorf(api.CodeUnavailable, "this replica is still applying what it had stored")
	case q.r.state.View().Meta().ClusterID == "":
		return api.Errorf(api.CodeUnavailable, "the cluster is being set up")
	case ago > 10*time.Second:
		return api.Errorf(api.CodeUnavailable, "this replica has not heard from the leader for %s s", strconv.Itoa(int(ago.Seconds())))
	case q.r.disk.isLow():
		return api.Errorf(api.CodeUnavailable, "the disk of this replica's data directory is nearly full")
	}
	ready := api.Ready{Status: "ready", Leader: leader, CertificateExpiresAt: q.r.certNotAfter()}
	return q.send(http.StatusOK, ready)
}

func (q *request) getMetrics() error {
	if q.r.cfg.Network == nil && !q.fromHere() {
		if err := q.authenticate(route{method: http.MethodGet, who: forOperator}); err != nil {
			return err
		}
	}
	q.r.metrics.handler().ServeHTTP(q.w, q.Request)
	return nil
}

func (q *request) getOpenAPI() error {
	q.w.Header().Set("Content-Type", "application/json")
	_, _ = q.w.Write(api.OpenAPI()) // the caller has gone
	return nil
}
