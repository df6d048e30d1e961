package central

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/fluxvm/fluxvm/pkg/api"
)

const (
	bootTakes  = 50 * time.Millisecond // from create to running
	agentTakes = 50 * time.Millisecond // from there to the guest agent
	nodeGrace  = time.Minute           // how long a node leaves an expired VM to central
)

// modelNode is a small but whole node daemon: it runs machines that do nothing, on time that passes, keeps the
// newest fencing token over restarts, reports to every replica, and can lag, lose answers, refuse, be silent,
// reboot and forget.
type modelNode struct {
	rig  *rig
	name string

	mu         sync.Mutex
	facts      api.Register
	joined     bool
	vms        map[string]*machineRow
	gone       map[string]ending // ended VMs
	barred     map[string]uint64 // the number of the last order that made each or was to end it
	ran        map[string]*span  // when machines really ran
	orders     []orderLog
	epoch      uint64
	term       uint64
	acked      map[string]string // replica → digest it has
	lag        func() time.Duration
	lose       int                                                                       // the answers to the next orders are lost after the work is done
	refuse     *api.Error                                                                // what creates are refused with
	noRename   *api.Error                                                                // what changes are refused with
	silent     bool                                                                      // answers nothing and sends no beats
	closed     bool                                                                      // nothing listens: connections are refused
	mute       bool                                                                      // answers orders but sends no beats
	unlisted   string                                                                    // the VM that lists do not have yet, though it is there
	oldAgents  bool                                                                      // guest agents take no claims
	claims     map[string][]api.GuestClaim                                               // what guests were given, by VM
	failBoots  bool                                                                      // machines fail instead of running
	bootTakes  time.Duration                                                             // 0: bootTakes
	keepGone   time.Duration                                                             // how long ended VMs are reported; 0: for ever
	late       time.Duration                                                             // the next order arrives that late, after its sender has given up
	scrub      func(ctx context.Context, nth int, lease string) (api.ScrubAnswer, error) // how scrubs go, from 1 on; nil: well
	execs      map[string]int                                                            // OP of a command → which run it was
	scrubs     []string                                                                  // the leases they were asked for
	lease      time.Time                                                                 // until then it may run what may boot elsewhere
	kick, stop chan struct{}
	ended      sync.WaitGroup
}

// ending is why a machine ended, and when.
type ending struct {
	why string
	at  time.Time
}

// span is when a machine ran; to is zero while it does.
type span struct{ from, to time.Time }

type machineRow struct {
	api.Machine
	cluster  string
	born     time.Time
	deadline time.Time
	leased   bool // it may boot elsewhere
}

// orderLog is one order that reached the node with a token.
type orderLog struct {
	op, id, name string
	epoch, term  uint64
	number       uint64
	outcome      string // done, again (known already), stale, refused or absent
}

func (r *rig) addNode(name string, change func(*modelNode)) *modelNode {
	n := &modelNode{rig: r, name: name, vms: map[string]*machineRow{}, gone: map[string]ending{}, barred: map[string]uint64{}, ran: map[string]*span{}, claims: map[string][]api.GuestClaim{}, execs: map[string]int{}, acked: map[string]string{}, kick: make(chan struct{}, 1), stop: make(chan struct{})}
	n.facts = api.Register{Name: name, UUID: uuid.NewString(), BootID: "boot-1", Instance: "daemon-1", URL: "http://" + name, Backends: []string{api.BackendSim},
		Capabilities: api.Capabilities{Rename: true, Claim: true}, VCPUsTotal: 64, MemoryMiBTotal: 65536, CPUOvercommit: 1, Labels: map[string]string{"host": name}, Images: []string{},
		Density: api.Density{HostMemAvailableMiB: 60000}}
	if change != nil {
		change(n)
	}
	r.mu.Lock()
	r.nodes[name] = n
	r.mu.Unlock()
	n.ended.Go(n.run)
	return n
}

// with changes the node under its lock and tells central.
func (n *modelNode) with(change func()) {
	n.mu.Lock()
	change()
	n.mu.Unlock()
	poke(n.kick)
}

// reboot loses all that ran and nothing that was on disk.
func (n *modelNode) reboot() {
	n.with(func() {
		for id := range n.vms {
			n.end(id, "its host was rebooted")
		}
		n.facts.BootID, n.facts.Instance = uuid.NewString(), uuid.NewString()
	})
}

// end takes a machine away and remembers that for the reports.
func (n *modelNode) end(id, why string) {
	if s := n.ran[id]; s != nil && s.to.IsZero() {
		s.to = time.Now()
	}
	delete(n.vms, id)
	n.gone[id] = ending{why, time.Now()}
}

// secret is the node's own credential.
func (n *modelNode) secret() string { return "node-secret-" + n.name }

// run lets machines boot and expire, and reports every few seconds and whenever something changed.
func (n *modelNode) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.Time{}
	for {
		select {
		case <-n.stop:
			return
		case <-n.kick:
			beat = time.Now()
		case <-timer.C:
		}
		changed, next := n.live(time.Now())
		if changed || !time.Now().Before(beat) {
			beat = time.Now().Add(n.reportAll())
		}
		timer.Reset(max(min(time.Until(next), time.Until(beat)), time.Millisecond))
	}
}

// live moves machines on to now and says when the next of them has something coming.
func (n *modelNode) live(now time.Time) (changed bool, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	next = now.Add(time.Hour)
	soon := func(t time.Time) bool {
		if now.Before(t) {
			if t.Before(next) {
				next = t
			}
			return false
		}
		return true
	}
	boot := max(n.bootTakes, bootTakes)
	for id, m := range n.vms {
		switch held := m.leased && soon(n.lease); {
		case held && (m.State == api.StateRunning || m.State == api.StateBooting):
			m.State, m.Reason, m.Agent, changed = api.StateStopped, "held", false, true
			if s := n.ran[id]; s != nil {
				s.to = now
			}
		case !held && m.Reason == "held":
			m.State, m.Reason, m.born, changed = api.StateBooting, "", now, true
		}
		if m.State == api.StateBooting && soon(m.born.Add(boot)) {
			m.State, changed = api.StateRunning, true
			if n.failBoots {
				m.State, m.Reason = api.StateFailed, "no bootable device"
			} else {
				n.ran[id] = &span{from: now}
			}
		}
		if m.State == api.StateRunning && !m.Agent && soon(m.born.Add(boot+agentTakes)) {
			m.Agent, m.CanClaim, changed = true, !n.oldAgents, true
		}
		if !m.deadline.IsZero() && soon(m.deadline.Add(nodeGrace)) {
			n.end(id, "its TTL ran out on the node")
			changed = true
			n.orders = append(n.orders, orderLog{op: "expire", id: id, outcome: "done"})
		}
	}
	return changed, next
}

// report is what the node says now.
func (n *modelNode) report() api.Register {
	out := n.facts
	out.VMs = []api.ReportedVM{}
	for _, m := range n.vms {
		if m.ID == n.unlisted {
			continue
		}
		out.VMs = append(out.VMs, api.ReportedVM{ID: m.ID, Name: m.Name, State: m.State, Reason: m.Reason, GuestOS: m.GuestOS, VCPUs: m.VCPUs, MemoryMiB: m.MemoryMiB, IP: m.IP, Agent: m.Agent, CanClaim: m.CanClaim, Cluster: m.cluster})
	}
	for id, e := range n.gone {
		if n.keepGone > 0 && time.Since(e.at) > n.keepGone {
			continue
		}
		out.VMs = append(out.VMs, api.ReportedVM{ID: id, State: api.StateGone, Reason: e.why, VCPUs: 1, MemoryMiB: 1})
	}
	slices.SortFunc(out.VMs, func(a, b api.ReportedVM) int { return strings.Compare(a.ID, b.ID) })
	raw, err := json.Marshal(out.VMs)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(raw)
	out.VMsDigest, out.VMCount = hex.EncodeToString(sum[:]), len(n.vms)
	for i := range out.VMs { // how long ago changes by itself, so the digest leaves it out
		if e, ended := n.gone[out.VMs[i].ID]; ended {
			out.VMs[i].EndedMSAgo = time.Since(e.at).Milliseconds()
		}
	}
	return out
}

// reportAll beats to every replica and gives the time to the next beat.
func (n *modelNode) reportAll() time.Duration {
	next := 10 * time.Second
	for _, replica := range n.rig.names {
		n.mu.Lock()
		quiet := n.silent || n.closed || n.mute
		body := n.report()
		whole := n.acked[replica] != body.VMsDigest
		token := n.secret()
		if !n.joined {
			token, body.Credential = operatorToken, n.secret()
		}
		n.mu.Unlock()
		if quiet {
			return time.Second
		}
		sent := time.Now()
		answer, ok := n.beat(replica, token, body, whole)
		if ok && answer.WantVMs {
			answer, ok = n.beat(replica, token, body, true)
		}
		n.mu.Lock()
		if delete(n.acked, replica); ok {
			n.acked[replica], n.joined = body.VMsDigest, true
			if until := sent.Add(time.Duration(answer.LeaseMS) * time.Millisecond); answer.LeaseMS > 0 && until.After(n.lease) {
				n.lease = until
			}
		} else {
			next = time.Second
		}
		n.mu.Unlock()
	}
	return next
}

func (n *modelNode) beat(replica, token string, body api.Register, whole bool) (answer api.RegisterAnswer, ok bool) {
	body.HasVMs = whole
	if !whole {
		body.VMs = nil
	}
	if n.rig.isCut(replica, n.name) {
		return answer, false
	}
	got, err := n.rig.try(replica, token, "POST", "/fleet/register", body)
	if err != nil || got.status != http.StatusOK {
		return answer, false
	}
	return answer, json.Unmarshal(got.body, &answer) == nil
}

// RoundTrip answers a request of central's.
func (n *modelNode) RoundTrip(req *http.Request) (*http.Response, error) {
	n.mu.Lock()
	closed, silent, lag := n.closed, n.silent, time.Duration(0)
	if n.lag != nil {
		lag = n.lag()
	}
	n.mu.Unlock()
	switch {
	case closed:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	case silent:
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if pause(req.Context(), lag/2); req.Context().Err() != nil {
		return nil, req.Context().Err()
	}
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body.Close()
	}
	n.mu.Lock()
	late := n.late
	n.late = 0
	n.mu.Unlock()
	if late > 0 {
		n.ended.Go(func() {
			pause(context.Background(), late)
			n.serve(req, body)
		})
		<-req.Context().Done()
		return nil, req.Context().Err()
	}
	if req.URL.Path == "/v1/scrub" {
		if resp, decided, err := n.scrubAsWished(req, body); decided {
			return resp, err
		}
	}
	status, answer, lost := n.serve(req, body)
	pause(req.Context(), lag/2)
	if lost {
		return nil, errors.New("read: connection reset by peer")
	}
	return answered(req, status, answer), nil
}

func answered(req *http.Request, status int, answer any) *http.Response {
	raw, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	if status == http.StatusNoContent {
		raw = nil
	}
	if text, ok := answer.(string); ok {
		raw = []byte(text)
	}
	return &http.Response{StatusCode: status, Status: strconv.Itoa(status), Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(raw)), Request: req}
}

// serve does what a request asks for.
func (n *modelNode) serve(req *http.Request, body []byte) (status int, answer any, lost bool) {
	n.live(time.Now())
	n.mu.Lock()
	defer n.mu.Unlock()
	if req.Header.Get("Authorization") != "Bearer "+n.secret() {
		return refused(api.Errorf(api.CodeUnauthenticated, "that is not this node's credential"))
	}
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/") // v1 vms ID …
	entry := orderLog{op: req.Method}
	if len(parts) > 2 {
		entry.id = parts[2]
	}
	if token := req.Header.Get(api.HeaderFencing); token != "" {
		if _, err := fmt.Sscanf(token, "%d.%d.", &entry.epoch, &entry.term); err != nil {
			return refused(api.Invalid(api.HeaderFencing, "not a token"))
		}
		_, _ = fmt.Sscanf(token, "%d.%d.%d", &entry.epoch, &entry.term, &entry.number) // a scrub's has none
	}
	switch {
	case req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, "/console"):
		return http.StatusOK, "login: ", false
	case req.Method == http.MethodGet:
		if n.vms[entry.id] == nil {
			return refused(api.Errorf(api.CodeNotFound, "no VM %s here", entry.id))
		}
		return http.StatusOK, n.vms[entry.id].Machine, false
	case strings.HasSuffix(req.URL.Path, "/exec"):
		return n.exec(req.Header.Get(api.HeaderFencing))
	case req.URL.Path == "/v1/scrub":
		entry.op = opScrub
	}
	var refusal *api.Error
	status, answer, refusal, entry = n.carryOut(entry, body)
	n.orders = append(n.orders, entry)
	poke(n.kick)
	if n.lose > 0 {
		n.lose--
		lost = true
	}
	if refusal != nil {
		status, answer, _ = refused(refusal)
	}
	return status, answer, lost
}

func refused(e *api.Error) (int, any, bool) {
	filled := e.Filled("node")
	return filled.Status, filled, false
}

func (n *modelNode) carryOut(entry orderLog, body []byte) (int, any, *api.Error, orderLog) {
	if entry.epoch < n.epoch || entry.epoch == n.epoch && entry.term < n.term {
		entry.outcome = "stale"
		return 0, nil, api.Errorf(api.CodeStaleToken, "an older token than this node has seen"), entry
	}
	n.epoch, n.term = entry.epoch, entry.term
	switch entry.op {
	case http.MethodPost:
		return n.create(entry, body)
	case http.MethodPatch:
		return n.change(entry, body)
	case http.MethodDelete:
		n.barred[entry.id] = max(n.barred[entry.id], entry.number)
		if n.vms[entry.id] == nil {
			entry.outcome = "absent"
			return 0, nil, api.Errorf(api.CodeNotFound, "no VM %s here", entry.id), entry
		}
		n.end(entry.id, "deleted")
		entry.outcome = "done"
		return http.StatusNoContent, nil, nil, entry
	case opScrub:
		return n.clean(entry, body)
	}
	entry.outcome = "refused"
	return 0, nil, api.Errorf(api.CodeInvalid, "no such route"), entry
}

func (n *modelNode) create(entry orderLog, body []byte) (int, any, *api.Error, orderLog) {
	var spec api.MachineRequest
	if err := api.Decode(body, &spec); err != nil {
		return 0, nil, err.(*api.Error), entry
	}
	if err := spec.Check(); err != nil {
		return 0, nil, err.(*api.Error), entry
	}
	entry.id, entry.name = spec.ID, spec.Name
	if have := n.vms[spec.ID]; have != nil {
		entry.outcome = "again"
		return http.StatusCreated, have.Machine, nil, entry
	}
	refusal := n.refuse
	if last, ended := n.barred[spec.ID]; ended && entry.number <= last { // a later one is of a VM that comes back
		refusal = api.Errorf(api.CodeConflict, "VM %s was here and has ended", spec.ID)
	}
	if refusal != nil {
		entry.outcome = "refused"
		return 0, nil, refusal, entry
	}
	m := &machineRow{Machine: api.Machine{ID: spec.ID, Name: spec.Name, Backend: spec.Backend, Image: spec.Image, GuestOS: spec.GuestOS, VCPUs: spec.VCPUs, MemoryMiB: spec.MemoryMiB,
		State: api.StateBooting, Labels: spec.Labels, CreatedAt: api.TimeOf(time.Now())}, cluster: spec.Labels[api.LabelCluster], born: time.Now(), leased: spec.Reschedulable}
	if spec.ExpiresInMS != nil {
		m.deadline = time.Now().Add(time.Duration(*spec.ExpiresInMS) * time.Millisecond)
	}
	n.vms[spec.ID], n.barred[spec.ID], entry.outcome = m, entry.number, "done"
	delete(n.gone, spec.ID)
	return http.StatusCreated, m.Machine, nil, entry
}

func (n *modelNode) change(entry orderLog, body []byte) (int, any, *api.Error, orderLog) {
	var patch api.MachinePatch
	if err := api.Decode(body, &patch); err != nil {
		return 0, nil, err.(*api.Error), entry
	}
	if err := patch.Check(); err != nil {
		return 0, nil, err.(*api.Error), entry
	}
	entry.name = patch.Name.V
	m := n.vms[entry.id]
	switch {
	case n.noRename != nil:
		entry.outcome = "refused"
		return 0, nil, n.noRename, entry
	case m == nil:
		entry.outcome = "absent"
		return 0, nil, api.Errorf(api.CodeNotFound, "no VM %s here", entry.id), entry
	case patch.Claim != nil && !m.CanClaim:
		entry.outcome = "refused"
		return 0, nil, api.Invalid("claim", "the guest agent cannot take a claim"), entry
	}
	entry.outcome = "done"
	if patch.Claim != nil {
		n.claims[entry.id] = append(n.claims[entry.id], *patch.Claim)
	}
	if patch.Name.Set {
		m.Name = patch.Name.V
	}
	for k, v := range patch.Labels.V {
		if v == nil {
			delete(m.Labels, k)
		} else {
			m.Labels[k] = *v
		}
	}
	switch e := patch.ExpiresInMS; {
	case e.Set && e.Null:
		m.deadline = time.Time{}
	case e.Set:
		m.deadline = time.Now().Add(time.Duration(e.V) * time.Millisecond)
	}
	return http.StatusOK, m.Machine, nil, entry
}

// exec runs a command once for each OP, and answers with how often it has run.
func (n *modelNode) exec(token string) (int, any, bool) {
	_, op, _ := strings.Cut(token, ".")
	_, op, ok := strings.Cut(op, ".")
	if !ok {
		return refused(api.Invalid(api.HeaderFencing, "a command without a token"))
	}
	if _, again := n.execs[op]; !again {
		n.execs[op] = len(n.execs) + 1
	}
	lost := n.lose > 0
	n.lose = max(0, n.lose-1)
	return http.StatusOK, api.ExecAnswer{Stdout: fmt.Sprintf("run %d\n", n.execs[op])}, lost
}

// opScrub is a scrub in the log of orders; its id is the lease's.
const opScrub = "SCRUB"

// clean answers a scrub as a host does on which all goes well.
func (n *modelNode) clean(entry orderLog, body []byte) (int, any, *api.Error, orderLog) {
	var ask api.ScrubRequest
	if err := api.Decode(body, &ask); err != nil {
		return 0, nil, err.(*api.Error), entry
	}
	if entry.id = ask.LeaseID; len(n.vms) > 0 {
		entry.outcome = "refused"
		return 0, nil, api.Errorf(api.CodeConflict, "%d VMs are still here", len(n.vms)), entry
	}
	entry.outcome = "done"
	return http.StatusOK, api.ScrubAnswer{LeaseID: ask.LeaseID}, nil, entry
}

// scrubAsWished lets the scenario decide how a scrub goes; decided is false when nothing is said of it.
func (n *modelNode) scrubAsWished(req *http.Request, body []byte) (resp *http.Response, decided bool, err error) {
	var ask api.ScrubRequest
	if err := api.Decode(body, &ask); err != nil {
		return nil, true, err
	}
	n.mu.Lock()
	n.scrubs = append(n.scrubs, ask.LeaseID)
	wish, nth := n.scrub, len(n.scrubs)
	n.mu.Unlock()
	if wish == nil {
		return nil, false, nil
	}
	answer, err := wish(req.Context(), nth, ask.LeaseID)
	if answer.LeaseID == "" && err == nil {
		return nil, false, nil
	}
	var e *api.Error
	status, out := http.StatusOK, any(answer)
	if errors.As(err, &e) {
		status, out, _ = refused(e)
	} else if err != nil {
		return nil, true, err
	}
	return answered(req, status, out), true, nil
}

// asked is how often a scrub was asked for.
func (n *modelNode) asked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.scrubs)
}

// log copies the orders seen so far.
func (n *modelNode) log() []orderLog {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.orders)
}

// has gives the machine that the node has under the id, nil if there is none.
func (n *modelNode) has(id string) *machineRow {
	n.mu.Lock()
	defer n.mu.Unlock()
	if m := n.vms[id]; m != nil {
		out := *m
		return &out
	}
	return nil
}

func (n *modelNode) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.vms)
}

// nodesOf carries a replica's requests to nodes.
type nodesOf struct {
	rig     *rig
	replica string
}

func (t nodesOf) RoundTrip(req *http.Request) (*http.Response, error) {
	n := t.rig.node(req.URL.Host)
	if n == nil || t.rig.isCut(t.replica, req.URL.Host) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("no route to host")}
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	resp, err := n.RoundTrip(req.WithContext(ctx))
	if t.rig.isCut(t.replica, req.URL.Host) {
		return nil, errors.New("read: connection timed out")
	}
	return resp, err
}
