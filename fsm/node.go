package fsm

import (
	"path"

	"github.com/fluxvm/fluxvm/pkg/api"
)

// registerNode adds a host, or takes over changed facts of a known one. Its value is the *Node.
func (t *tx) registerNode(c RegisterNode) (any, error) {
	have := t.Node(c.Node.Name)
	if have == nil {
		return t.addNode(c)
	}
	row := *have
	switch {
	case have.UUID != c.Node.UUID && have.UUID != "":
		return nil, api.Errorf(api.CodeConflict, "another host is registered as %s; give this one another --name, or if it is that host made anew: fluxctl fleet node-replace %s", c.Node.Name, c.Node.Name)
	case c.TokenHash != "" && have.CredentialHash == "":
		if err := t.useToken(c.TokenHash, "node", c.Node.Name); err != nil {
			return nil, err
		}
	case c.TokenHash != "" && have.CredentialHash != c.Node.CredentialHash:
		return nil, api.Errorf(api.CodeConflict, "node %s has another credential than this host, which has lost its own; put DATA/credential back, or let it take over: fluxctl fleet node-replace %s", c.Node.Name, c.Node.Name)
	case !c.Operator && have.CredentialHash != c.Node.CredentialHash:
		return nil, api.Errorf(api.CodeUnauthenticated, "the credential is not that of node %s", c.Node.Name)
	}
	if have.CredentialHash == "" {
		row.CredentialHash = c.Node.CredentialHash
	}
	if have.UUID == "" { // it takes over
		if err := t.onlyName(&c.Node); err != nil {
			return nil, err
		}
	}
	return t.takeFacts(row, &c.Node), nil
}

func (t *tx) addNode(c RegisterNode) (any, error) {
	switch {
	case c.TokenHash != "":
		if err := t.useToken(c.TokenHash, "node", c.Node.Name); err != nil {
			return nil, err
		}
	case !c.Operator:
		return nil, api.Errorf(api.CodeUnauthenticated, "node %s is not registered; start it with a join token (fluxctl cluster join-token)", c.Node.Name)
	}
	if err := t.onlyName(&c.Node); err != nil {
		return nil, err
	}
	row := Node{Name: c.Node.Name, CredentialHash: c.Node.CredentialHash, CreatedAt: t.now, State: api.NodeHealthy, ConfirmedAt: t.now}
	copyFacts(&row, &c.Node)
	t.putNode(&row)
	t.log("node/"+row.Name, "POST /fleet/register", row.Name, "", "ok")
	return &row, nil
}

// onlyName refuses a host that is registered under another name: it was renamed, or its data directory copied.
func (t *tx) onlyName(n *Node) error {
	for other := range t.Nodes("") {
		if other.UUID == n.UUID && other.Name != n.Name {
			return KnownAs(other.Name)
		}
	}
	return nil
}

// KnownAs refuses a host that is registered as the named node.
func KnownAs(name string) *api.Error {
	return api.Errorf(api.CodeConflict, "this host is registered as %s; start it with --name %s, or if it is a copy of that host remove DATA/uuid and DATA/credential here", name, name)
}

func copyFacts(row, facts *Node) {
	row.UUID, row.BootID, row.URL = facts.UUID, facts.BootID, facts.URL
	row.Backends, row.Rename, row.Claim, row.Labels = facts.Backends, facts.Rename, facts.Claim, facts.Labels
	row.VCPUsTotal, row.MemoryMiBTotal, row.CPUOvercommit = facts.VCPUsTotal, facts.MemoryMiBTotal, max(facts.CPUOvercommit, 1)
	row.Mac, row.Chip = facts.Mac, facts.Chip
}

// SameFacts says whether a report brings nothing that is not committed.
func (n *Node) SameFacts(facts *Node) bool {
	return n.UUID == facts.UUID && n.BootID == facts.BootID && n.URL == facts.URL && n.Rename == facts.Rename && n.Claim == facts.Claim &&
		n.VCPUsTotal == facts.VCPUsTotal && n.MemoryMiBTotal == facts.MemoryMiBTotal && n.CPUOvercommit == max(facts.CPUOvercommit, 1) &&
		n.Mac == facts.Mac && n.Chip == facts.Chip && equal(n.Backends, facts.Backends) &&
		len(n.Labels) == len(facts.Labels) && api.Matches(facts.Labels, n.Labels)
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// putNode stores a node, with a new version and an event if it shows.
func (t *tx) putNode(row *Node) {
	row.Version = t.index
	action, have := ActionChanged, t.Node(row.Name)
	if have == nil {
		action = ActionCreated
	}
	t.nodes.put(row)
	if have != nil && have.CPUOvercommit != row.CPUOvercommit {
		t.recount(row)
	}
	t.event(EventNode, action, "", row)
}

// patchNode changes what the operator wants of a host. Its value is the *Node.
func (t *tx) patchNode(c PatchNode) (any, error) {
	have := t.Node(c.Name)
	if have == nil {
		return nil, api.NotFound("node", c.Name)
	}
	if err := checkVersion("node", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	row := *have
	if c.Cordoned != nil {
		if *c.Cordoned && (!row.Cordoned || row.CordonedBy == "") {
			row.CordonedBy = c.By
		}
		row.Cordoned = *c.Cordoned
		if !row.Cordoned {
			row.Draining, row.Reason, row.CordonedBy, row.Drain = false, "", "", nil
		}
	}
	if c.Draining != nil {
		row.Draining = *c.Draining
		row.Cordoned = row.Cordoned || row.Draining
		if !row.Draining {
			row.Drain = nil
		}
	}
	if c.Drain != nil && row.Draining {
		drain := Drain{By: c.By, StartedAt: t.now, Force: c.Drain.Force, Total: t.Use(row.Name).VMs}
		if have.Drain != nil { // it goes on, in another way
			drain.StartedAt, drain.Total = have.Drain.StartedAt, have.Drain.Total
		}
		if c.Drain.DeadlineSeconds > 0 {
			drain.Deadline = t.now + api.Time(c.Drain.DeadlineSeconds*1000)
		}
		row.Drain = &drain
	}
	if c.Reason != nil {
		row.Reason = *c.Reason
	}
	if _, err := t.remember(Operation{Ref: row.Name}); err != nil {
		return nil, err
	}
	t.putNode(&row)
	t.log(t.env.Actor, c.Action, row.Name, "", "ok", "reason", row.Reason)
	return &row, nil
}

// deleteNode forgets a host. One that still holds VMs stays, by force only while it is healthy: forgotten they would run
// on there, and nobody would pay for them.
func (t *tx) deleteNode(c DeleteNode) (any, error) {
	have := t.Node(c.Name)
	if have == nil {
		return nil, api.NotFound("node", c.Name)
	}
	if err := checkVersion("node", have.Version, c.IfMatch); err != nil {
		return nil, err
	}
	if have.Lease != "" {
		return nil, api.Errorf(api.CodeConflict, "node %s is held by lease %s; end the lease first", c.Name, have.Lease)
	}
	for v := range t.VMsOn(c.Name) {
		switch {
		case v.State == api.StateLost:
		case have.State == api.NodeHealthy:
			return nil, api.Errorf(api.CodeConflict, "node %[1]s is healthy and holds %[2]d VMs, which would run on unbilled; end them first with fluxctl fleet drain %[1]s --force, or if the host is to go with them stop its daemon, wait 30 s and delete it with force", c.Name, t.Use(c.Name).VMs)
		case !c.Force:
			return nil, api.Errorf(api.CodeConflict, "node %s still holds %d VMs; drain it and delete them first, or if it is gone for good give it up with fluxctl fleet node-lost %s, or delete it with force", c.Name, t.Use(c.Name).VMs, c.Name)
		}
	}
	t.forgetVMs(have)
	t.nodes.remove(have)
	t.event(EventNode, ActionDeleted, "", have)
	t.log(t.env.Actor, "DELETE /fleet/nodes/{name}", c.Name, "", "ok")
	return nil, nil
}

// forgetVMs drops the VMs of a host that is deleted. Those of a silent one ended when it was last heard.
func (t *tx) forgetVMs(n *Node) {
	if n.State != api.NodeHealthy {
		t.endedAt = max(n.ConfirmedAt, 1)
		defer func() { t.endedAt = 0 }()
	}
	var all []*VM
	for v := range t.VMsOn(n.Name) {
		all = append(all, v)
	}
	for _, v := range all {
		t.putVM(v, nil)
		t.log("central", "end", v.Name, v.Tenant, "ok", "vm_id", v.ID, "reason", "its node was deleted")
	}
}

// nodeHealth records what central thinks of hosts. VMs of a silent host become unknown, and come back with it.
func (t *tx) nodeHealth(c NodeHealth) (any, error) {
	for _, change := range c.Changes {
		have := t.Node(change.Name)
		if have == nil || have.State == change.State && have.Fault == change.Fault || have.Adopting {
			continue
		}
		row := *have
		row.State, row.Fault, row.ConfirmedAt = change.State, change.Fault, max(have.ConfirmedAt, change.ConfirmedAt)
		t.putNode(&row)
		t.log("central", "node "+string(change.State), row.Name, "", "ok", "fault", row.Fault)
		if have.State == change.State {
			continue
		}
		if change.State == api.NodeUnreachable {
			t.unknownVMs(row.Name)
		}
	}
	return nil, nil
}

func (t *tx) unknownVMs(node string) {
	var rows []*VM
	for v := range t.VMsOn(node) {
		if v.State == api.StateRunning || v.State == api.StateBooting || v.State == api.StatePaused {
			rows = append(rows, v)
		}
	}
	for _, v := range rows {
		row := *v
		row.State, row.Reason = api.StateUnknown, "its node is silent"
		t.putVM(v, &row)
	}
}

// createJoinToken keeps a token's hash. Its value is the *JoinToken.
func (t *tx) createJoinToken(c CreateJoinToken) (any, error) {
	row := c.Token
	if _, err := t.remember(Operation{Ref: row.ID}); err != nil {
		return nil, err
	}
	t.pruneTokens()
	t.joins.put(&row)
	t.log(t.env.Actor, "POST /fleet/join-tokens", row.ID, "", "ok", "kind", row.Kind, "name_pattern", row.NamePattern)
	return &row, nil
}

// pruneTokens removes join tokens whose time is over. Used up ones go with their last use.
func (t *tx) pruneTokens() {
	var over []*JoinToken
	for have := range t.joins.each(byID, "") {
		if t.now >= have.ExpiresAt {
			over = append(over, have)
		}
	}
	for _, have := range over {
		t.joins.remove(have)
	}
}

// useToken takes one use of a join token.
func (t *tx) useToken(hash, kind, name string) error {
	have := t.JoinTokenByHash(hash)
	if have == nil || have.Kind != kind || have.UsesLeft < 1 || t.now >= have.ExpiresAt {
		return api.Errorf(api.CodeUnauthenticated, "the join token is unknown, used up or expired; make a new one with fluxctl cluster join-token")
	}
	if ok, err := path.Match(have.NamePattern, name); err != nil || !ok {
		return api.Errorf(api.CodeForbidden, "the join token is for names like %s, not %s", have.NamePattern, name)
	}
	row := *have
	row.UsesLeft--
	if row.UsesLeft == 0 {
		t.joins.remove(have)
		return nil
	}
	t.joins.put(&row)
	return nil
}
