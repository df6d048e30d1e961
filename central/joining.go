package central

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/client"
)

const (
	standingPath = "/peer/standing"
	standingPoll = 200 * time.Millisecond
	waitingNote  = 10 * time.Second // between two words on what a start waits for
	removedCheck = 10 * time.Second // of silence, before the others are asked whether this replica is still a member
)

// standing is what a replica tells one that wants to start about itself and about what it knows of that one.
type standing struct {
	Name      string `json:"name"`
	Blank     bool   `json:"blank"`
	ClusterID string `json:"cluster_id"`
	Met       bool   `json:"met"`     // the asker has voted for it, or stored what it sent
	Removed   bool   `json:"removed"` // it leads, and the asker is no member
}

// serveStanding answers GET /peer/standing?name=ASKER, from before the log is opened on.
func (r *Replica) serveStanding(w http.ResponseWriter, req *http.Request) {
	stands := r.stands.Load()
	if stands == nil {
		http.Error(w, "this replica is starting", http.StatusServiceUnavailable)
		return
	}
	name := req.URL.Query().Get("name")
	s := (*stands)()
	out := standing{Name: r.cfg.Name, Blank: s.Blank, ClusterID: s.ClusterID, Met: s.HasMet(name)}
	if r.Leads() && req.URL.Query().Get("member") != "" {
		ctx, cancel := context.WithTimeout(req.Context(), statusTimeout)
		defer cancel()
		out.Removed = r.log.VerifyRead(ctx) == nil && r.memberNamed(name) == nil
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // the other side notices a cut answer
}

// askStanding asks the replica at a cluster address.
func (r *Replica) askStanding(ctx context.Context, addr string, more url.Values) (s standing, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*statusTimeout)
	defer cancel()
	query := url.Values{"name": {r.cfg.Name}}
	for k, v := range more {
		query[k] = v
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+standingPath+"?"+query.Encode(), nil)
	if err != nil {
		return s, err
	}
	resp, err := r.peers.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return s, fmt.Errorf("it answered %s", resp.Status)
	}
	return s, json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&s)
}

// mayStart is asked before a blank replica takes part in the initial set. A replica that has voted, or stored entries,
// and then lost its disk would vote again and could undo what was acknowledged: whoever it did that for remembers it.
// So every other one of the set is asked, and waited for.
func (r *Replica) mayStart(ctx context.Context) error {
	waiting, silent := map[string]string{}, map[string]error{}
	for _, s := range r.cfg.Initial {
		if s.Name != r.cfg.Name {
			waiting[s.Name] = s.Addr
		}
	}
	said := r.wall()
	for len(waiting) > 0 {
		for name, addr := range waiting {
			s, err := r.askStanding(ctx, addr, nil)
			switch {
			case err != nil:
				silent[name] = err
				continue
			case s.Name != name:
				return refusal("the replica at %s is %q, not %q: correct --initial, which must be the same on every replica", addr, s.Name, name)
			case s.Met:
				return refusal("replica %q has been part of this cluster (%s says so) and its data directory is empty: it must not vote again. "+
					"Put its directory back, or remove it (fluxctl cluster remove %s), make a token (fluxctl cluster join-token --kind replica > FILE) and start it with --join URL --join-token-file FILE instead of --bootstrap",
					r.cfg.Name, name, r.cfg.Name)
			}
			delete(waiting, name)
		}
		if len(waiting) == 0 {
			break
		}
		if r.wall().Sub(said) > waitingNote {
			said = r.wall()
			names := make([]string, 0, len(waiting))
			for name, addr := range waiting {
				names = append(names, fmt.Sprintf("%s at %s (%v)", name, addr, silent[name]))
			}
			slices.Sort(names)
			r.logger.Warn("the first start of a cluster needs the whole initial set; waiting", "for", strings.Join(names, ", "))
		}
		if pause(ctx, standingPoll); ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// join asks the cluster to take this replica in. It keeps asking until it is let in or refused for good.
func (r *Replica) join(ctx context.Context, addr string) error {
	if r.cfg.JoinToken == "" {
		return refusal("this replica is new and has no join token: make one with fluxctl cluster join-token --kind replica, and name its file with --join-token-file")
	}
	c, err := client.New(client.Config{Endpoints: r.cfg.Join, Token: r.cfg.JoinToken, UserAgent: "fluxvm-central/" + r.cfg.Version, HTTPClient: r.joinVia()})
	if err != nil {
		return err
	}
	// The key is the same at every try of this replica with this token, also after a crash: the token is used up once.
	key := "join-" + hashToken(r.cfg.JoinToken + "\n" + r.cfg.Name + "\n" + addr)[:32]
	for {
		_, err := c.AddReplica(ctx, api.ReplicaRequest{Name: r.cfg.Name, ClusterAddr: addr}, key)
		var refused *api.Error
		switch {
		case err == nil:
			r.logger.Info("joined the cluster; following its log until caught up", "via", strings.Join(r.cfg.Join, ","))
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &refused) && !refused.Code.Temporary() && refused.Code != api.CodeOutcomeUnknown:
			return refusal("the cluster does not let this replica join: %s", refused.Detail)
		}
		r.logger.Warn("could not join yet; trying again", "error", err)
		pause(ctx, time.Second)
	}
}

func refusal(format string, args ...any) error {
	return &consensus.ExitError{Code: consensus.ExitConfig, Message: fmt.Sprintf(format, args...)}
}

// notRemoved ends the process when the leader says that this replica is no member any more: raft tells a removed
// replica at most once.
func (r *Replica) notRemoved(ctx context.Context) {
	ago, heard := r.log.LastContact()
	if heard && ago < removedCheck || r.log.Standing().ClusterID == "" {
		return
	}
	for _, m := range r.log.Members() {
		if m.Name == r.cfg.Name {
			continue
		}
		if s, err := r.askStanding(ctx, m.Addr, url.Values{"member": {"1"}}); err == nil && s.Removed && s.ClusterID == r.log.Standing().ClusterID {
			r.cfg.Exit(consensus.ExitConfig, consensus.Removed(r.cfg.Name))
			return
		}
	}
}
