package central

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fluxvm/fluxvm/central/consensus"
	"github.com/fluxvm/fluxvm/fsm"
	"github.com/fluxvm/fluxvm/pkg/api"
	"github.com/fluxvm/fluxvm/pkg/api/apitest"
)

const operatorToken = "fvx_op_test"

// realStart is a moment with a monotonic part; times in a bubble have none.
var realStart = time.Now()

// rig is three replicas on a network in memory and modelled nodes, inside a synctest bubble: all its time is virtual.
type rig struct {
	t       *testing.T
	network *consensus.Network
	names   []string
	began   time.Time

	mu      sync.Mutex
	rng     *rand.Rand
	members map[string]*member
	nodes   map[string]*modelNode
	cut     map[[2]string]bool // replica and node that do not hear each other
	moved   map[string]bool    // VMs that may be made on more than one node
	passed  map[string]int     // requests passed from one replica to another, by the first
}

type member struct {
	*Replica
	name         string
	public, peer http.Handler
	cancel       context.CancelFunc
	done         chan error
	jump         atomic.Int64 // what its wall clock is off by
}

// scenario runs f in a bubble on a rig of three replicas that has a leader, and audits it at the end.
func scenario(t *testing.T, seed uint64, f func(t *testing.T, r *rig)) {
	t.Helper()
	scenarioOf(t, 3, seed, f)
}

// scenarioOf is scenario with so many replicas.
func scenarioOf(t *testing.T, replicas int, seed uint64, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var names []string
		for i := range replicas {
			names = append(names, fmt.Sprint("central-", i+1))
		}
		r := &rig{t: t, network: consensus.NewNetwork(), names: names, began: time.Now(), rng: rand.New(rand.NewPCG(seed, 1)),
			members: map[string]*member{}, nodes: map[string]*modelNode{}, cut: map[[2]string]bool{}, passed: map[string]int{}, moved: map[string]bool{}}
		t.Cleanup(r.close)
		for _, name := range r.names {
			r.start(name)
		}
		r.serving()
		f(t, r)
		r.audit()
	})
}

func (r *rig) start(name string) {
	r.t.Helper()
	r.startAs(name, func(*Config) {})
}

// startAs is start with another configuration.
func (r *rig) startAs(name string, change func(*Config)) *member {
	r.t.Helper()
	m := &member{name: name, done: make(chan error, 1)}
	var initial []consensus.Server
	for _, n := range r.names {
		initial = append(initial, consensus.Server{Name: n, Addr: n})
	}
	cfg := Config{Name: name, Network: r.network, Bootstrap: true, Initial: initial, OperatorToken: operatorToken, ElectionTimeout: time.Second, URL: "http://" + name,
		Wall:  func() time.Time { return jumped(realStart.Add(time.Since(r.began)), time.Duration(m.jump.Load())) },
		Peers: peersOf{r, name}, Nodes: nodesOf{r, name},
		Exit: func(code int, message string) { r.t.Errorf("replica %s ended with %d: %s", name, code, message) }}
	change(&cfg)
	replica, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	m.Replica, m.public, m.peer = replica, replica.Handler(), replica.PeerHandler()
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	r.mu.Lock()
	r.members[name] = m
	r.mu.Unlock()
	go func() { m.done <- replica.Run(ctx) }()
	return m
}

// end stops a replica in good order.
func (r *rig) end(name string) {
	r.t.Helper()
	m := r.member(name)
	r.mu.Lock()
	delete(r.members, name)
	r.mu.Unlock()
	m.cancel()
	if err := <-m.done; err != nil {
		r.t.Errorf("stopping %s: %v", name, err)
	}
}

// crash ends a replica that gets no word out any more, to anyone.
func (r *rig) crash(name string) {
	r.t.Helper()
	r.network.Isolate(name)
	r.cutOff(name)
	r.end(name)
	r.network.Rejoin(name)
	r.heal(name)
}

func (r *rig) close() {
	for _, n := range r.nodes {
		close(n.stop)
		n.ended.Wait()
	}
	for _, name := range r.names {
		if r.member(name) != nil {
			r.end(name)
		}
	}
}

func (r *rig) member(name string) *member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.members[name]
}

func (r *rig) node(name string) *modelNode {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[name]
}

func (r *rig) isCut(replica, node string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut[[2]string{replica, node}]
}

// cutOff loses all between a replica and the nodes.
func (r *rig) cutOff(replica string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.nodes {
		r.cut[[2]string{replica, node}] = true
	}
}

func (r *rig) heal(replica string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pair := range r.cut {
		if pair[0] == replica {
			delete(r.cut, pair)
		}
	}
}

func (r *rig) random(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(n)
}

// moves says that a VM may boot on another node when its own is lost.
func (r *rig) moves(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved[id] = true
}

// eventually polls in virtual time, less and less often.
func (r *rig) eventually(what string, within time.Duration, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(within)
	for step := 10 * time.Millisecond; !ok(); step = min(step*5/4, time.Second) {
		if time.Now().After(deadline) {
			r.t.Fatalf("after %s still not: %s", within, what)
		}
		r.wait(step)
	}
}

// leader waits until one replica that the others hear leads, and gives its name.
func (r *rig) leader() (name string) {
	r.t.Helper()
	r.eventually("a leader that is ready", 30*time.Second, func() bool {
		for _, n := range r.names {
			if m := r.member(n); m != nil && m.Leads() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				err := m.log.VerifyRead(ctx)
				cancel()
				if err == nil {
					name = n
					return true
				}
			}
		}
		return false
	})
	return name
}

// serving waits until every replica that runs can serve: a leader is ready, and all have applied what makes the cluster.
func (r *rig) serving() {
	r.t.Helper()
	r.leader()
	r.eventually("every replica ready", 30*time.Second, func() bool {
		for _, n := range r.names {
			if m := r.member(n); m != nil {
				if got, err := send(r.t, m.public, "", "GET", "/readyz", nil); err != nil || got.status != http.StatusOK {
					return false
				}
			}
		}
		return true
	})
}

// applied waits until every replica that runs has applied what is committed now.
func (r *rig) applied() {
	r.t.Helper()
	index := r.member(r.leader()).state.View().Index()
	r.eventually("every replica at the leader's index", time.Minute, func() bool {
		for _, n := range r.names {
			if m := r.member(n); m != nil && m.state.View().Index() < index {
				return false
			}
		}
		return true
	})
}

// follower gives a replica that does not lead.
func (r *rig) follower() string {
	leader := r.leader()
	return r.names[(slices.Index(r.names, leader)+1)%len(r.names)]
}

// newLeader waits until another replica leads.
func (r *rig) newLeader(old string) (name string) {
	r.t.Helper()
	r.eventually("another leader", 30*time.Second, func() bool { name = r.leader(); return name != old })
	return name
}

// direct carries a request to a handler without a network.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	in := req.Clone(req.Context())
	in.RequestURI = req.URL.RequestURI()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	out := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.handler.ServeHTTP(out, in)
	}()
	select {
	case <-done:
		if err := req.Context().Err(); err != nil {
			return nil, err
		}
		resp := out.Result()
		resp.Request = req
		return resp, nil
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// peersOf carries a replica's requests to others.
type peersOf struct {
	rig  *rig
	from string
}

func (p peersOf) RoundTrip(req *http.Request) (*http.Response, error) {
	to := p.rig.member(req.URL.Host)
	if to == nil || !p.rig.network.Connected(p.from, to.name) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	if !strings.HasPrefix(req.URL.Path, "/peer/") {
		p.rig.mu.Lock()
		p.rig.passed[p.from]++
		p.rig.mu.Unlock()
	}
	resp, err := direct{to.peer}.RoundTrip(req)
	if !p.rig.network.Connected(p.from, to.name) || p.rig.member(to.name) != to {
		return nil, errors.New("read: connection reset by peer")
	}
	return resp, err
}

// reply is an answer of the API.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (a reply) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// code is that of a refusal.
func (a reply) code() api.Code {
	var e api.Error
	if a.status < 400 || json.Unmarshal(a.body, &e) != nil {
		return ""
	}
	return e.Code
}

func into[T any](t *testing.T, a reply) (out T) {
	t.Helper()
	if a.status >= 400 {
		t.Fatalf("got %s", a)
	}
	if err := json.Unmarshal(a.body, &out); err != nil {
		t.Fatalf("%v in %s", err, a)
	}
	return out
}

// try sends one request to a replica; its answer is held to the OpenAPI file. A body that is no []byte is encoded.
func (r *rig) try(replica, token, method, path string, body any, header ...string) (reply, error) {
	m := r.member(replica)
	if m == nil {
		return reply{}, errors.New("connection refused")
	}
	return send(r.t, m.public, token, method, path, body, header...)
}

func send(t testing.TB, handler http.Handler, token, method, path string, body any, header ...string) (reply, error) {
	raw, ok := body.([]byte)
	if body != nil && !ok {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return reply{}, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://fleet"+path, bytes.NewReader(raw))
	if err != nil {
		return reply{}, err
	}
	if raw == nil {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := apitest.Check(t, direct{handler}).RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, got}, err
}

// call is try by the operator, which must be answered.
func (r *rig) call(replica, method, path string, body any, header ...string) reply {
	r.t.Helper()
	got, err := r.try(replica, operatorToken, method, path, body, header...)
	if err != nil {
		r.t.Fatalf("%s %s on %s: %v", method, path, replica, err)
	}
	return got
}

// insist repeats a request, under its key, on every replica in turn until one carries it out or refuses it for good.
func (r *rig) insist(method, path string, body any, key string) (got reply) {
	r.t.Helper()
	i := r.random(len(r.names))
	r.eventually(method+" "+path+" to be carried out", 2*time.Minute, func() bool {
		i++
		var err error
		got, err = r.try(r.names[i%len(r.names)], operatorToken, method, path, body, api.HeaderIdempotencyKey, key)
		return err == nil && got.status < 500
	})
	return got
}

func (r *rig) image(name string) {
	r.t.Helper()
	got := r.insist("POST", "/fleet/images", api.ImageRequest{Name: name, Path: "sim:?" + name, VCPUs: 1, MemoryMiB: 512, HasAgent: true}, "image-"+name)
	if got.status != http.StatusCreated {
		r.t.Fatalf("making image %s: %s", name, got)
	}
}

// pool makes a pool and waits until it is full.
func (r *rig) pool(name string, body map[string]any) {
	r.t.Helper()
	body["name"] = name
	if got := r.insist("POST", "/fleet/pools", body, "pool-"+name); got.status != http.StatusCreated {
		r.t.Fatalf("making pool %s: %s", name, got)
	}
	r.full(name)
}

func (r *rig) full(pool string) {
	r.t.Helper()
	r.eventually("pool "+pool+" to be full", time.Minute, func() bool { return r.status(pool).State == api.PoolReady })
}

// status is the pool's, as the leader has it.
func (r *rig) status(pool string) api.PoolStatus {
	r.t.Helper()
	got, err := r.try(r.leader(), operatorToken, "GET", "/fleet/pools/"+pool+"/status", nil)
	if err != nil || got.status >= 500 {
		return api.PoolStatus{}
	}
	return into[api.PoolStatus](r.t, got)
}

// vms are all VMs, as the leader has them.
func (r *rig) vms() []api.VM {
	r.t.Helper()
	return into[api.List[api.VM]](r.t, r.call(r.leader(), "GET", "/fleet/vms?limit=500", nil)).Items
}

// registered waits until the leader has heard every node's whole list and calls it healthy.
func (r *rig) registered() {
	r.t.Helper()
	r.eventually("all nodes healthy", time.Minute, func() bool {
		m := r.member(r.leader())
		for name := range r.nodes {
			row, b := m.state.View().Node(name), m.fleet.get(name)
			if row == nil || row.State != api.NodeHealthy || b == nil || b.vms == nil {
				return false
			}
		}
		return true
	})
}

// ready is a rig with nodes and an image.
func (r *rig) ready(nodes ...string) {
	r.t.Helper()
	for _, n := range nodes {
		r.addNode(n, nil)
	}
	r.registered()
	r.image("tiny")
}

// skip makes the fleet's own time pass at once, as an outage would. Nodes and timers know nothing of it.
func (r *rig) skip(d time.Duration) {
	r.t.Helper()
	m := r.member(r.leader())
	raw, err := fsm.Encode(fsm.Envelope{Kind: fsm.KindTick, Now: m.clock.now().Add(d), Term: m.log.Term(), Actor: actorCentral}, fsm.Tick{})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, _, err := m.log.Propose(ctx, raw); err != nil {
		r.t.Fatal(err)
	}
}

// wait lets virtual time pass.
func (r *rig) wait(d time.Duration) { pause(context.Background(), d) }
