package central

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
)

// showNode is a host with what this replica last heard of it.
func (q *request) showNode(view fsm.View) func(*fsm.Node) api.Node {
	wall := q.r.wall()
	return func(n *fsm.Node) api.Node {
		b := q.r.fleet.get(n.Name)
		var seen api.Time
		if b != nil {
			seen = api.TimeOf(wall.Add(-wall.Sub(b.at)))
		}
		out := wireNode(view, n, b, seen)
		if n.Drain != nil {
			var stuck map[string]string
			if g := q.leading(); g != nil {
				stuck = g.stuck.why(n.Name)
			}
			out.Drain = wireDrain(view, n, q.r.clock.now(), stuck)
		}
		return out
	}
}

func (q *request) listNodes() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	view := q.r.state.View()
	q.index(view)
	return q.send(http.StatusOK, listPage(p, view.Nodes(p.after), func(n *fsm.Node) string { return n.Name },
		func(n *fsm.Node) bool { return q.seesNode(view, n) }, q.showNode(view)))
}

func (q *request) getNode() error {
	view := q.r.state.View()
	n, err := q.node(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.sendVersioned(http.StatusOK, n.Version, q.showNode(view)(n))
}

func (q *request) node(view fsm.View) (*fsm.Node, error) {
	name := q.name("name")
	if n := view.Node(name); n != nil && q.seesNode(view, n) {
		return n, nil
	}
	return nil, api.NotFound("node", name)
}

// seesNode: a tenant sees the hosts it leases.
func (q *request) seesNode(view fsm.View, n *fsm.Node) bool {
	if q.caller.tenant == "" {
		return true
	}
	l := view.Lease(n.Lease)
	return l != nil && l.Tenant == q.caller.tenant
}

func (q *request) listNodeVMs() error {
	p, err := q.page()
	if err != nil {
		return err
	}
	view := q.r.state.View()
	n, err := q.node(view)
	if err != nil {
		return err
	}
	q.index(view)
	return q.send(http.StatusOK, listPage(p, view.VMs(p.after), func(v *fsm.VM) string { return v.ID }, func(v *fsm.VM) bool { return v.Node == n.Name && q.caller.sees(v.Tenant) }, wireVM))
}

// getCapacity sums up the healthy, uncordoned hosts.
func (q *request) getCapacity() error {
	view := q.r.state.View()
	var out api.Capacity
	show := q.showNode(view)
	for n := range view.Nodes("") {
		one := show(n)
		out.Nodes++
		out.VMs += one.VMCount
		if n.State != api.NodeHealthy || n.Cordoned {
			continue
		}
		out.Healthy++
		out.VCPUsTotal += one.VCPUsTotal * one.CPUOvercommit
		out.VCPUsFree += one.FreeVCPUs
		out.MemoryMiBTotal += one.MemoryMiBTotal
		out.MemoryMiBFree += one.FreeMemoryMiB
		if n.Mac {
			out.MacOSTotal += api.MacOSPerHost
			out.MacOSFree += one.FreeMacOS
		}
	}
	q.index(view)
	return q.send(http.StatusOK, out)
}

func (q *request) patchNode() error {
	var body api.NodePatch
	if err := q.decode(&body); err != nil {
		return err
	}
	change := fsm.PatchNode{Action: "PATCH /fleet/nodes/{name}", By: q.caller.actor}
	if body.Cordoned.Set {
		change.Cordoned = &body.Cordoned.V
	}
	if body.Reason.Set {
		change.Reason = &body.Reason.V
	}
	return q.changeNode(change, nil)
}

func (q *request) cordonNode() error {
	yes := true
	return q.steerNode(fsm.PatchNode{Action: "POST /fleet/nodes/{name}/cordon", Cordoned: &yes, By: q.caller.actor})
}

func (q *request) uncordonNode() error {
	no := false
	return q.steerNode(fsm.PatchNode{Action: "POST /fleet/nodes/{name}/uncordon", Cordoned: &no, Draining: &no})
}

// steerNode is for the routes whose body may hold a reason and nothing else.
func (q *request) steerNode(change fsm.PatchNode) error {
	reason, op, err := q.reason()
	if err != nil {
		return err
	}
	change.Reason = reason
	return q.changeNode(change, op)
}

func (q *request) changeNode(change fsm.PatchNode, op *fsm.Op) error {
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	change.Name, change.IfMatch = q.name("name"), version
	if _, err := q.propose(fsm.KindPatchNode, op, change); err != nil {
		return err
	}
	q.wakePools()
	if g := q.leading(); g != nil {
		poke(g.vmPoke)
	}
	return q.getNode()
}

func (q *request) deleteNode() error {
	name := q.name("name")
	force, err := q.flag("force")
	if err != nil {
		return err
	}
	version, err := q.ifMatch()
	if err != nil {
		return err
	}
	if _, err := q.propose(fsm.KindDeleteNode, nil, fsm.DeleteNode{Name: name, Force: force, IfMatch: version}); err != nil {
		return err
	}
	q.r.fleet.forget(name)
	return q.noContent()
}

// createJoinToken makes a secret that lets hosts or replicas in. It is shown here and never again.
func (q *request) createJoinToken() error {
	var body api.JoinTokenRequest
	if err := q.decode(&body); err != nil {
		return err
	}
	op := q.op(body)
	if body.NamePattern == "" {
		body.NamePattern = "*"
	}
	if body.Uses == 0 {
		body.Uses = 1
	}
	if body.ExpiresInSecs == 0 {
		body.ExpiresInSecs = 3600
	}
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "this replica stopped leading; try again")
	}
	token := NewToken("fvj_")
	row := fsm.JoinToken{ID: uuid.NewString(), Hash: hashToken(token), Kind: body.Kind, NamePattern: body.NamePattern, UsesLeft: body.Uses,
		ExpiresAt: g.now().Add(time.Duration(body.ExpiresInSecs) * time.Second)}
	result, err := q.propose(fsm.KindCreateJoinToken, op, fsm.CreateJoinToken{Token: row})
	if err != nil {
		return err
	}
	if result.Replayed {
		return api.Errorf(api.CodeConflict, "a join token was made under this key, and its secret is shown only once; ask again with another key")
	}
	return q.send(http.StatusCreated, api.JoinToken{ID: row.ID, Token: token, Kind: row.Kind, NamePattern: row.NamePattern, Uses: row.UsesLeft, ExpiresAt: row.ExpiresAt})
}

const (
	joinPrefix   = "fvj_"
	beatInterval = 10 * time.Second
)

// registerNode takes a beat in, on whichever replica it reaches. Only news of facts goes through the log, and only
// the leader puts it there, many at once; the node reports to every replica, so the leader hears the same.
func (q *request) registerNode() error {
	var report api.Register
	if err := q.decode(&report); err != nil {
		return err
	}
	if err := q.ofNode(&report); err != nil {
		return err
	}
	facts := factsOf(&report)
	facts.Rename = facts.Rename && !q.r.fleet.isTooOld(report.Name, report.Instance)
	credential := q.caller.secret
	joining := strings.HasPrefix(credential, joinPrefix)
	if report.Credential != "" {
		facts.CredentialHash = hashToken(report.Credential)
	} else if credential != "" {
		facts.CredentialHash = hashToken(credential)
	}
	known := q.r.state.View().Node(report.Name)
	vouched := q.caller.role == roleOperator
	trusted := known != nil && known.UUID == report.UUID && (vouched || known.CredentialHash == facts.CredentialHash && !joining)
	now := q.r.wall()
	if trusted {
		switch q.r.fleet.twin(&report, now) {
		case twinFound:
			return api.Errorf(api.CodeConflict, "%s", twinFault(report.Name))
		case twinPossible:
			return q.send(http.StatusOK, api.RegisterAnswer{OK: true, NextInMS: twinPatience.Milliseconds() / 4, Replicas: q.r.urls()})
		}
	}
	if !trusted {
		if err := q.admit(facts, joining, vouched); err != nil {
			return err
		}
	} else if known.URL != facts.URL {
		if err := ownURL(q.r.state.View(), &facts); err != nil {
			return err
		}
	}
	if vouched || joining {
		credential = report.Credential
	}
	want, late := q.r.fleet.hear(report, credential, now)
	if g := q.leading(); trusted && !late && g != nil && !known.SameFacts(&facts) {
		g.facts.add(facts) // the leader hears it, too, wherever else it came in
	}
	certificate, err := q.nodeCertificate(&report)
	if err != nil {
		return err
	}
	return q.send(http.StatusOK, api.RegisterAnswer{OK: true, NextInMS: q.nextBeat(), WantVMs: want, LeaseMS: q.leaseFor(report.Name), Replicas: q.r.urls(), Certificate: certificate})
}

// ownURL refuses a host at the address of another one that is healthy: orders for the one would reach the other. Of a host
// that was renamed, its identity tells.
func ownURL(view fsm.View, facts *fsm.Node) error {
	for other := range view.Nodes("") {
		if other.URL == facts.URL && other.Name != facts.Name && other.UUID != facts.UUID && other.State == api.NodeHealthy {
			return api.Errorf(api.CodeConflict, "%s is the address of node %s, which is healthy; give this host an --advertise-url of its own", facts.URL, other.Name)
		}
	}
	return nil
}

// renamed tells a host that is known under another name, by its own secret, which name that is.
func renamed(view fsm.View, facts *fsm.Node) error {
	for other := range view.Nodes("") {
		if other.UUID == facts.UUID && other.CredentialHash == facts.CredentialHash && other.Name != facts.Name {
			return fsm.KnownAs(other.Name)
		}
	}
	return nil
}

// admit brings a new host into the log, or one that has to prove who it is.
func (q *request) admit(facts fsm.Node, joining, vouched bool) error {
	g := q.leading()
	if g == nil {
		return api.Errorf(api.CodeNotLeader, "only the leader takes new nodes in; it was not this replica")
	}
	body := fsm.RegisterNode{Node: facts, Operator: vouched}
	if joining {
		body.TokenHash = hashToken(q.caller.secret)
	}
	view := q.r.state.View()
	if !vouched && view.JoinTokenByHash(body.TokenHash) == nil {
		if err := renamed(view, &facts); err != nil {
			return err
		}
		return api.Errorf(api.CodeUnauthenticated, "neither a credential of node %s nor a join token that is good; make one with fluxctl cluster join-token", facts.Name)
	}
	if err := ownURL(view, &facts); err != nil {
		return err
	}
	_, err := g.propose(q.Context(), fsm.KindRegisterNode, "node/"+facts.Name, nil, body)
	if err == nil {
		poke(g.poolPoke)
	}
	return err
}

func factsOf(report *api.Register) fsm.Node {
	out := fsm.Node{Name: report.Name, UUID: report.UUID, BootID: report.BootID, URL: report.URL, Backends: report.Backends, Rename: report.Capabilities.Rename, Claim: report.Capabilities.Claim,
		VCPUsTotal: report.VCPUsTotal, MemoryMiBTotal: report.MemoryMiBTotal, CPUOvercommit: report.CPUOvercommit, Labels: report.Labels, Mac: report.Apple != nil}
	if report.Apple != nil {
		out.Chip = report.Apple.Chip
	}
	return out
}

// nextBeat spreads the nodes' beats by a tenth, so that they do not come all at once after a failover.
func (q *request) nextBeat() int64 {
	spread := beatInterval.Milliseconds() / 10
	return beatInterval.Milliseconds() - spread/2 + int64(q.r.wall().UnixNano()/1000)%spread
}

// urls are the replicas' addresses as far as they are known here.
func (r *Replica) urls() []string {
	if known := r.known.Load(); known != nil {
		return *known
	}
	return []string{r.cfg.URL}
}

// followPeers keeps the list of the replicas' addresses for the nodes.
func (r *Replica) followPeers(ctx context.Context) {
	for ctx.Err() == nil {
		var urls []string
		known := r.statuses(ctx)
		r.vouch(known)
		if r.port != nil {
			r.port.Sift()
		}
		for _, m := range r.log.Members() {
			if s, ok := known[m.Name]; ok {
				urls = append(urls, s.URL)
			}
		}
		if len(urls) > 0 {
			r.known.Store(&urls)
		}
		r.notRemoved(ctx)
		pause(ctx, peerPeriod)
	}
}

const peerPeriod = 5 * time.Second
