package central

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	memberPeriod = 2 * time.Second
	// promoteWithin is how many entries a new replica may lack and still get a vote: it is then as good as caught up.
	promoteWithin = 64
)

// addReplica answers POST /fleet/cluster/replicas: a replica shows its join token, and follows the log without a vote
// from then on. It gets its vote in passMembers.
func (q *request) addReplica() error {
	var body api.ReplicaRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	if _, port, err := net.SplitHostPort(body.ClusterAddr); (err != nil || port == "" || port == "0") && q.r.cfg.Network == nil {
		return api.Invalid("cluster_addr", "cluster_addr must be HOST:PORT, where the other replicas reach this one: give it --advertise")
	}
	if err := q.ofReplica(body.Name); err != nil {
		return err
	}
	change := fsm.AdmitReplica{Name: body.Name, Addr: body.ClusterAddr, Operator: q.caller.role == roleOperator}
	if !change.Operator {
		change.TokenHash = hashToken(q.caller.secret)
	}
	have := q.r.memberNamed(body.Name)
	if have != nil && (have.Voter || have.Addr != body.ClusterAddr) {
		return api.Errorf(api.CodeConflict, "replica %s is a member already: if it lost its data, or moved, remove it first with fluxctl cluster remove %s, and join again", body.Name, body.Name)
	}
	if _, err := q.propose(fsm.KindAdmitReplica, q.op(change), change); err != nil {
		return err
	}
	if err := q.r.log.AddNonvoter(q.Context(), body.Name, body.ClusterAddr); err != nil {
		return err
	}
	return q.send(http.StatusCreated, api.Replica{Name: body.Name, ClusterAddr: body.ClusterAddr, Role: "nonvoter", LastContactMS: -1})
}

func (r *Replica) memberNamed(name string) *consensus.Member {
	for _, m := range r.log.Members() {
		if m.Name == name {
			return &m
		}
	}
	return nil
}

// removeReplica answers DELETE /fleet/cluster/replicas/{name}. A leader hands over first: the next one removes it.
func (q *request) removeReplica() error {
	name := q.name("name")
	have := q.r.memberNamed(name)
	if have == nil {
		return api.Errorf(api.CodeNotFound, "there is no replica %s in this cluster", name)
	}
	if err := q.mayLose(name); err != nil {
		return err
	}
	if name == q.r.cfg.Name {
		if err := q.r.log.Transfer(q.Context(), ""); err != nil {
			return err
		}
		return api.Errorf(api.CodeNotLeader, "the leader handed over so that it can be removed; try again")
	}
	if err := q.r.log.Remove(q.Context(), name); err != nil {
		return err
	}
	q.r.logger.Info("removed a replica", "replica", name, "actor", q.caller.actor)
	return q.noContent()
}

// mayLose refuses a removal that would leave too few replicas that answer to change anything afterwards.
func (q *request) mayLose(name string) error {
	known := q.r.statuses(q.Context())
	voters, healthy := 0, 0
	for _, m := range q.r.log.Members() {
		if !m.Voter || m.Name == name {
			if m.Name == name && !m.Voter {
				return nil
			}
			continue
		}
		voters++
		if _, ok := known[m.Name]; ok {
			healthy++
		}
	}
	switch {
	case voters == 0:
		return api.Errorf(api.CodeConflict, "replica %s is the only one with a vote: let another one join first", name)
	case healthy <= voters/2:
		return api.Errorf(api.CodeConflict, "without %s only %d of %d replicas would answer, too few to change anything: start the others, or remove the dead ones first", name, healthy, voters)
	}
	return nil
}

// transferLeadership answers POST /fleet/cluster/transfer.
func (q *request) transferLeadership() error {
	var body api.TransferRequest
	if len(q.body) > 0 {
		if err := q.decode(&body); err != nil {
			return err
		}
	}
	if err := q.r.log.Transfer(q.Context(), body.To); err != nil {
		return err
	}
	q.r.logger.Info("handed leadership over", "to", body.To, "actor", q.caller.actor)
	return q.noContent()
}

// takeSnapshot answers POST /fleet/cluster/snapshot with the whole state, as of now, in the form that restore takes.
func (q *request) takeSnapshot() error {
	if len(q.body) > 0 {
		if err := q.decode(&struct{}{}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(q.Context(), proposeTimeout)
	defer cancel()
	if err := q.r.log.VerifyRead(ctx); err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	q.w.Header().Set("Content-Type", "application/octet-stream")
	q.w.Header().Set("Content-Disposition", `attachment; filename="fluxvm-`+strconv.FormatUint(view.Index(), 10)+`.snapshot"`)
	q.w.WriteHeader(http.StatusOK)
	if _, err := view.WriteTo(q.w); err != nil {
		q.r.logger.Warn("a backup was cut short; its missing checksum shows that", "request_id", q.id, "error", err)
	}
	return nil
}

// passMembers gives replicas that have joined and caught up their vote.
func (g *reign) passMembers(ctx context.Context) error {
	waiting := false
	for _, m := range g.r.log.Members() {
		waiting = waiting || !m.Voter
	}
	if !waiting {
		return nil
	}
	target, known := g.r.log.AppliedIndex(), g.r.statuses(ctx)
	for _, m := range g.r.log.Members() {
		s, heard := known[m.Name]
		if m.Voter || !heard || s.ClusterID != g.view().Meta().ClusterID || s.Applied+promoteWithin < target {
			continue
		}
		if err := g.r.log.AddVoter(ctx, m.Name, m.Addr); err != nil {
			return err
		}
		g.r.logger.Info("a replica has caught up and has a vote now", "replica", m.Name, "index", s.Applied)
	}
	return nil
}
